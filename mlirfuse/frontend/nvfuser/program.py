"""What definitions of equal content share: their graphs, one a kind of call, and what runs them.

A graph is made by replaying the definition's records with what is known of a call: extents that must be equal share one
symbol, extents of 0 and 1 are constants.
"""

from __future__ import annotations

import math
import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from mlirfuse.frontend.nvfuser import printing
from mlirfuse.frontend.nvfuser.inputs import check, check_device, describe, device_text, flatten, is_torch, wrong_number
from mlirfuse.frontend.nvfuser.promotion import DataType
from mlirfuse.frontend.nvfuser.values import (
    Bindings,
    Declaration,
    InputError,
    Scalar,
    Tensor,
    Val,
    Vector,
    at_line,
    results_of,
)
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.effects import VIEWS
from mlirfuse.ir.graph import Graph, Value
from mlirfuse.ir.sizes import Size

if TYPE_CHECKING:
    from mlirfuse.frontend.nvfuser.definition import Fusion, FusionDefinition


@dataclass
class Replay:
    sizes: dict[str, Size]
    guards: dict[tuple[int, str], bool]
    evaluated: dict[int, int]
    record: int = 0


@dataclass(eq=False)
class Planned:
    """A graph of a program. ``hidden`` compute the arguments that follow the inputs; ``outputs`` says for each output
    of the definition which of the graph's returns it is, and in which order its dimensions are to be put back (None: as
    they are). ``compiled`` holds what runs it, by kind of device."""

    graph: Graph
    hidden: list[Callable[[Bindings], Any]]
    outputs: list[tuple[int, tuple[int, ...] | None]]
    compiled: dict[str, Any] = field(default_factory=dict)

    def collect(self, results) -> list:
        """The definition's outputs, from the graph's results."""
        out = []
        for k, order in self.outputs:
            value = results[k]
            if order is not None:
                value = value.permute(*order) if is_torch(value) else value.transpose(order)
            out.append(value)
        return out


_programs: OrderedDict[str, Program] = OrderedDict()
_lock = threading.Lock()
RANDOM = {
    "uniform",
    "normal",
    "rand_like",
    "randn_like",
    "dropout",
}  # operations that draw a seed at each call unless given one
MAX_PROGRAMS = 8192
MAX_SIGNATURES = 1024


class Program:
    """What definitions with equal content share: their graphs, one a kind of call, and what those compile to."""

    count = 0

    def __init__(self, key: str, definition: FusionDefinition):
        self.key = key
        self.definition = definition
        self.id = Program.count
        Program.count += 1
        self.planned: dict[tuple, Planned] = {}
        self._signatures: OrderedDict[tuple, tuple[Planned, dict[str, int]]] = OrderedDict()
        self._lock = threading.RLock()
        self._runner: Callable[[list], list] | None = None
        self.inputs = len(definition.inputs)
        self.has_arrays = any(isinstance(v, Tensor) for v in definition.inputs)
        self.aliased = any(o.alias is not None for o in definition.outputs)
        # In the user's order: dumps and explanations show ops in the order of the graph.
        self.live = sorted(
            printing.live_records(definition.records, [o.value for o in definition.outputs]), key=lambda r: r.index
        )
        live = {r.index for r in self.live}
        self.guards = {k: v for k, v in definition.guards.items() if k[0] in live}
        self.evaluated = {k: v for k, v in definition.evaluated_sizes.items() if k in live}
        self.sizes = _unify(definition.equalities)
        self.rules = [rule for a, b in definition.equalities if (rule := _rule(a, b))]
        self.computes = (
            bool(self.evaluated)
            or any(r.name in RANDOM and r.call.get("rng_seed") is None for r in self.live)
            or not any(isinstance(v, Tensor) and not v.declaration.is_cpu for v in definition.inputs)
            or any(isinstance(v, Scalar) and v.dtype.kind == "c" for v in definition.inputs)
        )
        self.extents = sorted(
            {s for v in definition.graph_arguments for n in v.shape for s in sz.symbols(n)}
            | {f"v{k}" for k in definition.size_arguments},
            key=lambda s: (s[0], int(s[1:])),
        )

    @staticmethod
    def of(definition: FusionDefinition) -> Program:
        """The program of a finished definition: an earlier one's, if there is one with the same content."""
        key = printing.key(definition)
        with _lock:
            found = _programs.get(key)
            if found is None:
                found = _programs[key] = Program(key, definition)
                while len(_programs) > MAX_PROGRAMS:
                    _programs.popitem(last=False)
            else:
                _programs.move_to_end(key)
        return found

    # -- graphs

    def general(self) -> Planned:
        return self._plan((), {}, {})

    def _plan(self, constants: tuple[tuple[str, int], ...], guards: dict, evaluated: dict, divided=()) -> Planned:
        """The graph where these extents are constants (0, 1, or what a reshape fixes) and the guards hold or not.
        ``divided`` has pairs of an extent ``s<k>`` and a divisor: it is written as that many times ``q<k>``."""
        key = (constants, tuple(sorted(guards.items())), tuple(sorted(evaluated.items())), divided)
        with self._lock:
            found = self.planned.get(key)
            if found is None:
                known = dict(constants) | {name: sz.mul(by, sz.symbol(f"q{name[1:]}")) for name, by in divided}
                sizes = {name: sz.substitute(target, known) for name, target in self.sizes.items()} | known
                found = self.planned[key] = self._replayed(Replay(sizes, guards, evaluated))
        return found

    def _replayed(self, replay: Replay) -> Planned:
        from mlirfuse.frontend.nvfuser.definition import FusionDefinition

        source, fd = self.definition, FusionDefinition()
        fd._replay = replay
        mapped: dict[int, Any] = {}

        def image(value):
            if isinstance(value, Val):
                found = mapped.get(id(value))
                if found is None:  # a constant
                    found = mapped[id(value)] = Scalar(fd, value.data_type, value.constant)
                return found
            if isinstance(value, Vector):
                return Vector(image(v) for v in value)
            if isinstance(value, (list, tuple)):
                return type(value)(image(v) for v in value)
            return value

        for value in source.inputs:
            if isinstance(value, Tensor):
                d = value.declaration
                mapped[id(value)] = fd.define_tensor(d.shape, d.contiguity, d.dtype, d.is_cpu, d.stride_order)
            else:
                mapped[id(value)] = fd.define_scalar(None, value.data_type)
        for k, argument in enumerate(fd.graph_arguments):
            argument.name = source.graph_arguments[k].name
        fd._depth = 1
        for record in self.live:
            replay.record, fd._extras = record.index, []
            fd.builder.loc = lambda loc=record.loc: loc
            returned = getattr(fd.ops, record.name)(**{key: image(value) for key, value in record.call.items()})
            for made, value in zip(results_of(returned) + fd._extras, record.results):
                mapped[id(value)] = made
                if isinstance(made, Scalar):
                    made.origin = record.index
        if not any(isinstance(v, Tensor) and not v.declaration.is_cpu for v in source.inputs):
            fd.example_argument()
        return _planned(fd, source, mapped)

    # -- calls

    def execute(self, inputs, device=None) -> list:
        flat = inputs
        for value in inputs:
            kind = value.__class__
            if kind is list or kind is tuple or isinstance(value, np.generic):
                flat = flatten(inputs)
                break
        if len(flat) != self.inputs:
            raise wrong_number(self.inputs, flat)
        if device is not None and self.has_arrays:
            check_device(flat, device)
        if self.computes:
            flat = [*flat, *self.computed(flat, device)]
        return self.runner()(flat)

    def computed(self, flat, device) -> list:
        """The arguments that are computed at each call."""
        planned, bindings = self._bind(list(flat), device)
        if not self.has_arrays:
            bindings.example = example(device)
        return [compute(bindings) for compute in planned.hidden]

    def runner(self):
        """What runs calls: compiled, or the reference (``MLIRFUSE_DEFINITIONS=reference`` in the environment)."""
        found = self._runner
        if found is None:
            with self._lock:
                if self._runner is None:
                    self._runner = _make_runner(self)
                found = self._runner
        return found

    def planned_for(self, inputs) -> Planned:
        """The graph that a call with ``inputs`` runs."""
        return self._bind(flatten(inputs), None)[0]

    def _bind(self, flat, device) -> tuple[Planned, Bindings]:
        try:
            signature = tuple(map(self._signature, range(len(flat)), flat))
            found = self._signatures.get(signature)
        except TypeError:
            signature, found = None, None
        if found is None:
            symbols = check(self.definition, flat, device)
            bindings = Bindings(flat, symbols)
            symbols.update({f"h{k}": int(v.evaluate(bindings)) for k, v in self.evaluated.items()})
            for (a, b), (what, loc) in self.definition.equalities.items():
                if bindings.size(a) != bindings.size(b):
                    raise InputError(
                        f"{at_line(loc)}fd.ops.{what} needs equal sizes ({a} and {b}), got {bindings.size(a)} and {bindings.size(b)} "
                        f"from inputs of shapes {[tuple(d.shape) for d in map(describe, flat) if d]}"
                    )
            constants, divided = self._concrete(symbols)
            symbols.update({f"q{name[1:]}": symbols[name] // by for name, by in divided})
            guards = {k: bindings.size(a) <= bindings.size(b) for k, (a, b) in self.guards.items()}
            evaluated = {k: symbols[f"h{k}"] for k in self.evaluated if symbols[f"h{k}"] in (0, 1)}
            found = (self._plan(constants, {k: v for k, v in guards.items() if not v}, evaluated, divided), symbols)
            if signature is not None:
                with self._lock:
                    self._signatures[signature] = found
                    while len(self._signatures) > MAX_SIGNATURES:
                        self._signatures.popitem(last=False)
        return found[0], Bindings(flat, found[1])

    def _concrete(self, symbols: dict[str, int]) -> tuple[tuple, tuple]:
        """Which extents are constants for a call with these sizes, and which are written as a multiple: so that the
        dimensions on both sides of a reshape are seen to be the same. There are few of them: sizes that no reshape
        fixes stay symbols."""

        def own(name: str) -> bool:  # no other symbol or constant stands for it
            return not isinstance(self.sizes.get(name), (int, sz.Expr))

        constants = {s: symbols[s] for s in self.extents if symbols[s] in (0, 1) and own(s)}
        divided: dict[str, int] = {}
        for cancelled, names, divisor in self.rules:
            if any(symbols[s] == 0 for s in cancelled):
                continue
            names = [str(self.sizes.get(s, s)) for s in names]
            names = [s for s in names if s in symbols and own(s) and s[0] == "s"]
            if divisor is None:
                constants.update((s, symbols[s]) for s in names)
                continue
            for s in names:
                by = divisor if s not in divided else math.lcm(divisor, divided[s])
                if symbols[s] % by == 0 and s not in constants:
                    (constants if symbols[s] == by else divided)[s] = by
        return tuple(sorted(constants.items())), tuple(
            sorted((s, by) for s, by in divided.items() if s not in constants)
        )

    def _signature(self, k: int, value):
        """What of an input decides which graph runs and whether it passes the checks."""
        if isinstance(value, (bool, int, float, complex)):
            # The values of numbers count only where sizes are computed from them.
            return (type(value), value) if self.evaluated or k in self.definition.size_arguments else type(value)
        if is_torch(value):
            return (value.shape, value.stride(), value.dtype, value.device)
        d = describe(value)
        return (type(value), d.shape, d.strides, d.dtype, d.device) if d else (type(value), value)


def _planned(fd: FusionDefinition, source: FusionDefinition, mapped) -> Planned:
    """The outputs of a replayed definition as the graph's returns, those in another memory order permuted to be
    row-major."""
    arguments = set(fd.graph_arguments)
    returns: list[Value] = []
    aliases: dict[int, int] = {}
    outputs: list[tuple[int, tuple[int, ...] | None]] = []
    positions: dict[tuple, int] = {}
    for output in source.outputs:
        if output.alias is not None:
            value = mapped[id(output.value)].value
            if value in arguments or value in returns:  # each argument is written from a value of its own
                value = fd.builder.op("copy", value)
            else:
                positions[value, None] = len(returns)
            aliases[len(returns)] = source.inputs.index(output.alias)
            returns.append(value)
    for output in source.outputs:
        if output.alias is not None:
            continue
        tensor = mapped[id(output.value)]
        order, value, back = (output.stride_order or tensor.stride_order, tensor.value, None)
        if order is not None and (value, None) not in positions and list(order) != list(range(value.rank - 1, -1, -1)):
            memory = Declaration((0,) * value.rank, (), DataType.Null, False, tuple(order), None).memory_order
            back = tuple(memory.index(d) for d in range(value.rank))
        if (value, back) not in positions:
            positions[value, back] = len(returns)
            if back is None and _reversed(value):
                value = fd.builder.op("copy", value)  # no view: torch has no negative strides
            if back is not None:
                value = fd.builder.permute(
                    value if tensor.stride_order is not None else fd.builder.op("copy", value), memory
                )
            returns.append(value)
        outputs.append((positions[tensor.value, back], back))
    fd.block.returns = returns
    graph = Graph("fusion", fd.block, list(fd.layouts), set(fd.scalar_arguments), aliases)
    _remove_dead(graph)
    return Planned(graph, list(fd.hidden), outputs)


def _reversed(value: Value) -> bool:
    """Whether ``value`` may be a view of an argument with dimensions in reverse."""
    while value.op is not None and value.op.name in VIEWS:
        if any(step < 0 for step in value.op.attrs.get("step", ())):
            return True
        value = value.op.operands[0]
    return False


def _remove_dead(graph: Graph) -> None:
    needed = set(graph.returns)
    kept = []
    for op in reversed(graph.ops):
        if any(v in needed for v in op.results):
            kept.append(op)
            needed.update(op.operands)
    graph.body.ops = kept[::-1]


def _rule(a: Size, b: Size) -> tuple[list[str], list[str], int | None] | None:
    """What the equality of two products says of how dimensions go together in a reshape: the symbols that cancel, where
    they are not 0; and the symbols whose values it fixes, or, with a divisor, the one that is a multiple of it if all
    is well. None where it says nothing."""
    if isinstance(a, int) or (not isinstance(b, int) and any(f.op != "sym" for f in b.terms[0][0])):
        a, b = b, a
    if any(isinstance(x, sz.Expr) and len(x.terms) != 1 for x in (a, b)):
        return None
    left, right = (list(x.terms[0][0]) if isinstance(x, sz.Expr) else [] for x in (a, b))
    cancelled = []
    for factor in list(left):
        if factor in right and factor.op == "sym":
            left.remove(factor), right.remove(factor), cancelled.append(factor.args[0])
    if not left:
        left, right = right, left
    names = [f.args[0] for f in left if f.op == "sym"]
    if not right and names and len(names) == len(left):
        return cancelled, names, None
    if len(left) == 1 and left[0].op == "floordiv":
        left, right, a, b = right, left, b, a
    if len(right) == 1 and right[0].op == "floordiv" and not cancelled:
        whole, by = right[0].args
        if isinstance(by, int) and b.terms[0][1] == by and whole == a and left and all(f.op == "sym" for f in left):
            innermost = max((f.args[0] for f in left), key=lambda s: int(s[1:]))
            return [], [innermost], by // math.gcd(by, a.terms[0][1])
    return None


def _unify(equalities) -> dict[str, Size]:
    """Which symbol stands for another, from extents that must be equal: a constant, else the earliest extent."""
    parent: dict[Size, Size] = {}

    def find(x):
        while parent.get(x, x) != x:
            x = parent[x]
        return x

    def preference(x):
        if isinstance(x, int):
            return (0, x)
        name = str(x)
        return ({"s": 1, "v": 2}.get(name[0], 3), int(name[1:]))

    for a, b in equalities:
        if all(isinstance(x, int) or (x.is_symbol and str(x)[0] in "sv") for x in (a, b)):
            a, b = sorted((find(a), find(b)), key=preference)
            if a != b and not isinstance(b, int):
                parent[b] = a
    return {str(x): find(x) for x in list(parent)}


def example(device):
    """An empty array that results are made like: torch's if torch is loaded, on ``device`` or on the GPU if there is
    one."""
    torch = sys.modules.get("torch")
    if torch is None:
        if device is not None and device_text(device) != "cpu":
            raise InputError(f"device={device_text(device)} needs torch where no input is an array: import torch first")
        return np.empty(0, np.float32)
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.empty(0, dtype=torch.float32, device=device_text(device))


def _make_runner(program: Program):
    if os.environ.get("MLIRFUSE_DEFINITIONS") == "reference":
        return lambda leaves: _reference_call(program, leaves)
    from mlirfuse.frontend.nvfuser.engine import Compiled

    return Compiled(program)


def _reference_call(program: Program, leaves) -> list:
    planned, bindings = program._bind(list(leaves[: program.inputs]), None)
    from mlirfuse.frontend.nvfuser.engine import environment

    return planned.collect(run_reference(planned, list(leaves), environment(planned, bindings, leaves)))


def run_reference(planned: Planned, leaves: list, env: dict[str, int]) -> list:
    """The results of the graph op by op through the table's references, on the CPU, in the framework and on the device
    of the inputs. Those with an alias are written into that argument; those that are an argument are it."""
    from mlirfuse.ir import interpreter
    from mlirfuse.runtime import arrays

    graph = planned.graph
    given = [np.asarray(arrays.to_numpy(leaf)).astype(v.dtype.numpy, copy=False) for leaf, v in zip(leaves, graph.args)]
    results = interpreter.run(graph, given, env)
    like = (
        next(leaf for leaf, v in zip(leaves, graph.args) if arrays.framework(leaf) and v.shape != ())
        if any(v.shape for v in graph.args)
        else (next(leaf for leaf in leaves if arrays.framework(leaf)))
    )
    position = {v: k for k, v in enumerate(graph.args)}
    written = {k: np.array(results[k], copy=True) for k in graph.aliases}
    out = []
    for k, (value, result) in enumerate(zip(graph.returns, results)):
        if k in graph.aliases:
            target = leaves[graph.aliases[k]]
            arrays.write_into(target, written[k].reshape(given[graph.aliases[k]].shape))
            out.append(target)
        elif value in position:
            out.append(leaves[position[value]])
        else:
            own = any(result is a or np.may_share_memory(result, a) for a in given) and result.flags.writeable
            result = result if own else np.array(result, copy=True, order="C")
            out.append(_shared(result, like))
    return out


def _shared(array: np.ndarray, like):
    """``array`` as the framework of ``like`` has it, over the same memory where that can be."""
    from mlirfuse.runtime import arrays

    if (
        not is_torch(like)
        or like.is_cuda
        or not array.ndim
        or any(s < 0 for s in array.strides)
        or dt.of(array.dtype).kind == "n"
    ):
        return arrays.from_numpy(array, like)
    import torch

    dtype = dt.of(array.dtype)
    if dtype is dt.bf16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


@dataclass
class Statistics:
    """How many programs there are, and how many graphs were made for them (each compiled once)."""

    programs: int = 0
    graphs: int = 0
    by_program: list[int] = field(default_factory=list)


def statistics() -> Statistics:
    with _lock:
        counts = [len(p.planned) for p in _programs.values()]
    return Statistics(len(counts), sum(counts), counts)


def reset_programs() -> None:
    """Forgets all programs."""
    with _lock:
        _programs.clear()


class LRUCache:
    """Programs by content, at most ``max_fusions``, the least recently used forgotten first."""

    def __init__(self, max_fusions: int):
        self.max_fusions = max_fusions
        self._items: OrderedDict[str, list] = OrderedDict()  # key to [fusion, hits]
        self._lookups = self._hits = self._compiled = 0

    def cache_compile(self, fusion: Fusion) -> Fusion:
        """The cached fusion of this content, with everything compiled for it."""
        key = printing.key(fusion._needed())
        self._lookups += 1
        if key in self._items:
            self._hits += 1
            self._items.move_to_end(key, last=False)
            self._items[key][1] += 1
            return self._items[key][0]
        if len(self._items) == self.max_fusions:
            self._items.popitem()
        self._items[key] = [fusion, 0]
        self._items.move_to_end(key, last=False)
        self._compiled += 1
        return fusion

    def num_fusions(self) -> int:
        return len(self._items)

    def stats(self) -> str:
        out = f"Max Fusions Allowed: {self.max_fusions}\n"
        if not self._items:
            return out + "The fusion cache is empty.\n"
        out += f"Total Fusions in Cache: {len(self._items)}\nTotal Unique Fusions Compiled: {self._compiled}\nCache Hits by LRU ordering:\n"
        out += "".join(f"\t{k} -> {hits} hits\n" for k, (_, hits) in enumerate(self._items.values()))
        rate = 100.0 * self._hits / self._lookups
        return out + f"Cache Lookups: {self._lookups}\nCache Hits: {self._hits}\nHit Rate: {rate:g}%\n"
