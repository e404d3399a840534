"""Programs that definitions of equal content share: their graphs, one per signature of calls, and their runner."""

from __future__ import annotations

import math
import sys
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mlirfuse.core import threads
from mlirfuse.frontend.nvfuser import printing
from mlirfuse.frontend.nvfuser.equalities import reshape_rule, unify
from mlirfuse.frontend.nvfuser.inputs import check, check_device, describe, device_text, flatten, is_torch, wrong_number
from mlirfuse.frontend.nvfuser.recorder import Recorder, Replay
from mlirfuse.frontend.nvfuser.replay import Planned, replayed
from mlirfuse.frontend.nvfuser.values import Bindings, InputError, Scalar, Tensor, Val, at_line
from mlirfuse.ir import ops as table
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Value

Runner = Callable[[list[Any]], list[Any]]  # from flattened inputs and computed arguments to outputs

_programs: OrderedDict[str, DefinitionProgram] = OrderedDict()
_lock = threads.lock()
RANDOM = {
    "uniform",
    "normal",
    "rand_like",
    "randn_like",
    "dropout",
}  # operations that draw a new seed at each call unless given one
MAX_PROGRAMS = 1024  # kept for definitions that are written again; a small one takes 90 KB
MAX_SIGNATURES = 1024


# Parts of nvFuser's messages that scripts look for.
_NVFUSER_SAYS = {
    "cat": " (known_size == this_size)",
    "reshape": " (Total element counts across view operation must match)",
}


class DefinitionProgram:
    """The graphs of definitions with equal content, one per signature of calls, and their compiled programs."""

    count = 0

    def __init__(self, key: str, definition: Recorder, make_runner: Callable[[DefinitionProgram], Runner]):
        self.key = key
        self.definition = definition
        self.id = DefinitionProgram.count
        DefinitionProgram.count += 1
        self.planned: dict[tuple, Planned] = {}
        self._signatures: OrderedDict[tuple, tuple[Planned, dict[str, int]]] = OrderedDict()
        self._lock = threads.lock()
        self._make_runner = make_runner
        self._runner: Runner | None = None
        self.inputs = len(definition.inputs)
        self.has_arrays = any(isinstance(v, Tensor) for v in definition.inputs)
        self.has_fields = any(isinstance(v, Tensor) and not v.declaration.is_cpu for v in definition.inputs)
        # Whether torch gets inputs themselves: as results (or views in these), or as operands of an extern op.
        self.hands_inputs_on = any(_shows_input(o.value.value) for o in definition.outputs) or any(
            table.TABLE[op.name].kind == "library" for op in definition.block.ops
        )
        # Outputs computed only from CPU scalars, and the line of each.
        self.of_cpu_scalars = [
            (o.value, o.value.record.loc)
            for o in definition.outputs
            if o.value.record is not None and self.has_fields and _of_cpu_scalars(o.value)
        ]
        self.aliased = any(o.alias is not None for o in definition.outputs)
        # In the user's order: dumps and explanations show ops in the order of the graph.
        self.live = sorted(
            printing.live_records(definition.records, [o.value for o in definition.outputs]), key=lambda r: r.index
        )
        live = {r.index for r in self.live}
        self.guards = {k: v for k, v in definition.guards.items() if k[0] in live}
        self.evaluated = {k: v for k, v in definition.evaluated_sizes.items() if k in live}
        self.sizes = unify(definition.equalities)
        self.rules = [rule for a, b in definition.equalities if (rule := reshape_rule(a, b))]
        self.computes = (
            bool(self.evaluated)
            or any(r.name in RANDOM and r.call.get("rng_seed") is None for r in self.live)
            or not self.has_fields
            or any(isinstance(v, Scalar) and v.dtype.kind == "c" for v in definition.inputs)
        )
        self.extents = sorted(
            {s for v in definition.graph_arguments for n in v.shape for s in sz.symbols(n)}
            | {f"v{k}" for k in definition.size_arguments},
            key=lambda s: (s[0], int(s[1:])),
        )

    @staticmethod
    def of(definition: Recorder, make_runner: Callable[[DefinitionProgram], Runner]) -> DefinitionProgram:
        """The program of a finished definition; an existing one where its content is equal. ``make_runner`` creates the
        runner of its calls."""
        key = printing.key(definition) + (repr(definition.schedules) if definition.schedules else "")
        with _lock:
            found = _programs.get(key)
            if found is None:
                found = _programs[key] = DefinitionProgram(key, definition, make_runner)
                while len(_programs) > MAX_PROGRAMS:
                    _programs.popitem(last=False)
            else:
                _programs.move_to_end(key)
        return found

    # -- graphs

    def general(self) -> Planned:
        return self._plan((), {}, {})

    def _plan(self, constants: tuple[tuple[str, int], ...], guards: dict, evaluated: dict, divided=()) -> Planned:
        """The graph where these extents are constants (0, 1, or values fixed by a reshape) and the guards hold or not.
        ``divided``: pairs of an extent ``s<k>`` and a divisor; the extent is expressed as the divisor times
        ``q<k>``."""
        key = (constants, tuple(sorted(guards.items())), tuple(sorted(evaluated.items())), divided)
        with self._lock:
            found = self.planned.get(key)
            if found is None:
                known = dict(constants) | {name: sz.mul(by, sz.symbol(f"q{name[1:]}")) for name, by in divided}
                sizes = {name: sz.substitute(target, known) for name, target in self.sizes.items()} | known
                found = self.planned[key] = replayed(self.definition, self.live, Replay(sizes, guards, evaluated))
        return found

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
        return self.runner()(self.arguments(flat, device) if self.computes else flat)

    def arguments(self, flat: list, device) -> list:
        """The flattened inputs, and the computed arguments."""
        return [*flat, *self.computed(flat, device)] if self.computes else flat

    def computed(self, flat, device) -> list:
        """The arguments computed at each call."""
        planned, bindings = self._bind(list(flat), device)
        if not self.has_fields:
            bindings.example = example("cpu" if device is None and self.has_arrays else device)
        return [compute(bindings) for compute in planned.hidden]

    def runner(self) -> Runner:
        """The runner of calls, created on first use."""
        found = self._runner
        if found is None:
            with self._lock:
                if self._runner is None:
                    self._runner = self._make_runner(self)
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
            if self.of_cpu_scalars and not all(d.device == "cpu" for d in map(describe, flat) if d):
                value, loc = self.of_cpu_scalars[0]
                raise InputError(
                    f"{at_line(loc)}KernelExecutor does not support the Fusion provided: output {value!r} is computed "
                    "from CPU scalars alone, and the other inputs are on a GPU: compute it before the call, or pass a "
                    "tensor of rank 0 on the GPU (is_cpu=False)"
                )
            symbols.update({f"h{k}": int(v.evaluate(bindings)) for k, v in self.evaluated.items()})
            for (a, b), (what, loc) in self.definition.equalities.items():
                if bindings.size(a) != bindings.size(b):
                    shapes = [tuple(d.shape) for d in map(describe, flat) if d]
                    raise InputError(
                        f"{at_line(loc)}fd.ops.{what} needs equal sizes ({a} and {b}), got {bindings.size(a)} and "
                        f"{bindings.size(b)} from inputs of shapes {shapes}{_NVFUSER_SAYS.get(what, '')}"
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
        """The extents that are constants for a call with these sizes, and those expressed as a multiple, so that
        dimensions on both sides of a reshape unify. These are few: sizes that no reshape fixes stay symbols."""

        def own(name: str) -> bool:  # not replaced by another symbol or a constant
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
        """The properties of an input that select the graph and decide whether checks pass."""
        if isinstance(value, (bool, int, float, complex)):
            # The values of numbers count only where sizes are computed from them.
            return (type(value), value) if self.evaluated or k in self.definition.size_arguments else type(value)
        if is_torch(value):
            return (value.shape, value.stride(), value.dtype, value.device)
        d = describe(value)
        return (type(value), d.shape, d.strides, d.dtype, d.device) if d else (type(value), value)


def _of_cpu_scalars(value: Val) -> bool:
    """Whether ``value`` depends on CPU scalar tensors, and on no other tensor."""
    seen, pending = False, [value]
    while pending:
        found = pending.pop()
        if found.record is not None:
            pending += found.record.operands()
        elif isinstance(found, Tensor):
            if not found.declaration.is_cpu:
                return False
            seen = True
    return seen


def _shows_input(value: Value) -> bool:
    """Whether ``value`` may be an argument or its view."""
    while value.op is not None and value.op.operands and value.op.name in table.TABLE:
        if table.TABLE[value.op.name].kind != "shape":
            return False
        value = value.op.operands[0]
    return value.op is None


def example(device):
    """An empty array that determines the results' framework and device: torch's if torch is loaded, on ``device`` or on
    the GPU if there is one."""
    torch = sys.modules.get("torch")
    if torch is None:
        if device is not None and device_text(device) != "cpu":
            raise InputError(f"device={device_text(device)} needs torch where no input is an array: import torch first")
        return np.empty(0, np.float32)
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.empty(0, dtype=torch.float32, device=device_text(device))


@dataclass
class Statistics:
    """The number of programs, and the number of graphs built for them (each compiled once)."""

    programs: int = 0
    graphs: int = 0
    by_program: list[int] = field(default_factory=list)


def statistics() -> Statistics:
    with _lock:
        counts = [len(p.planned) for p in _programs.values()]
    return Statistics(len(counts), sum(counts), counts)


def reset_programs() -> None:
    """Drops all programs."""
    with _lock:
        _programs.clear()
