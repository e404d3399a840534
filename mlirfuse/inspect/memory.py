"""What holds memory while a host program runs, by its steps and its sizes: no call is needed, nor a device."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from mlirfuse.inspect import listing
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Value
from mlirfuse.lowering import host_steps as st
from mlirfuse.runtime.host_program import HostProgram


@dataclass
class Held:
    """Bytes at the moment when most are held: ``arguments`` of the graph that are still there, and ``others``, results
    of its steps by what they are."""

    arguments: int
    others: list[tuple[str, int]]

    @property
    def nbytes(self) -> int:
        return self.arguments + sum(n for _, n in self.others)


def peak(host: HostProgram, env: dict[str, int]) -> Held:
    """What is held at the peak of a call with the sizes ``env``. Workspaces of kernels and libraries are not in it, nor
    what loops and branches hold inside of themselves."""
    memory: dict[Value, Value] = {v: v for v in host.graph.args}  # whose memory a value is
    shown = Counter(host.graph.args)  # how many values show a memory
    found, most = Held(0, []), -1
    for step in host.sequence.steps:
        if isinstance(step, st.Free):
            shown.subtract(memory[v] for v in step.reads if v in memory)
            continue
        for value, root in _made(step, host, memory):
            memory[value] = root
            shown[root] += 1
        now = {root: _nbytes(root, env) for root, count in shown.items() if count > 0}
        if sum(now.values()) > most:
            most, found = sum(now.values()), _held(now, host, env)
    return found


def _made(step: st.Step, host: HostProgram, memory: dict[Value, Value]) -> list[tuple[Value, Value]]:
    """What a step makes, each with the value in whose memory it lies."""
    roots = {v: v for v in step.makes}
    if isinstance(step, st.Kernels):
        program = host.launches[step.region].program(host.last_sizes)
        written = {k: step.reads[at] for k, at in program.graph.aliases.items() if at < len(step.reads)}
        roots |= {v: written[k] for k, v in enumerate(step.makes) if k in written}
    elif isinstance(step, st.Call):
        shares = step.op.attrs.get("shares") or [0 if step.op.row.view else -1] * len(step.makes)
        roots |= {v: step.op.operands[at] for v, at in zip(step.makes, shares) if at >= 0}
    elif isinstance(step, (st.Assign, st.Pack, st.Unalias)):
        roots |= dict(zip(step.makes, step.reads))
    return [(v, memory.get(root, root)) for v, root in roots.items()]


def _held(now: dict[Value, int], host: HostProgram, env: dict[str, int]) -> Held:
    names, others = listing.Names(host.graph, env), Counter[str]()
    given = set(host.graph.args)
    for value, nbytes in now.items():
        if value not in given and nbytes:
            op = value.op
            what = (op.attrs["callee"] if op.row.calls else op.name) if op is not None else "a value"
            others[f"{what} {names.type(value)} {listing.place(op.loc) if op is not None else ''}".rstrip()] += nbytes
    arguments = sum(nbytes for value, nbytes in now.items() if value in given)
    return Held(arguments, sorted(others.items(), key=lambda pair: -pair[1]))


def _nbytes(value: Value, env: dict[str, int]) -> int:
    """0 of what is no tensor, or of a size that only values tell."""
    try:
        return 0 if value.dtype is None else sz.known(value.numel, env) * value.dtype.bytes
    except KeyError:
        return 0
