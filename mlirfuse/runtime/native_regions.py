"""Straight-line parts of a host program as one call of C++ (:class:`mlirfuse._native.Region`), for torch's tensors.

A :class:`Region` is consecutive steps that launch kernels, make views, or call a matrix product. Its second call runs
step by step and records what each step did: the Record that a launch ran, the layout of each view. What follows from
the layouts of the inputs is thereby known, and later calls with inputs of these layouts need no Python object, no
dispatcher and no signature for what stays inside. A step that cannot be recorded leaves the region as it was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any, NamedTuple, Protocol

from mlirfuse import _native
from mlirfuse.ir.graph import Value
from mlirfuse.lowering import host_steps as st

_MOST = 4  # layouts of inputs, of one region for the same sizes
_FIRST = 2  # the call that is recorded: the one before compiles the kernels


class Shim(Protocol):
    """torch's functions that a region calls by their addresses."""

    addresses: tuple[int, ...]  # as :class:`mlirfuse._native.Region` takes them

    def takes(self, step: st.Call) -> bool:
        """Whether a step is a view, or has a :meth:`product`."""

    def product(self, step: st.Call) -> tuple[int, Callable[..., Any]] | None:
        """The address of the out-variant that computes a step, and torch's function that does the same; None for
        another step."""

    def dtype(self, tensor: Any) -> int | None:
        """The number of a tensor's dtype; None where it has none."""

    def out_of_memory(self, device: Any) -> Callable[[int, int], Any]:
        """A function of a number of elements and a dtype's number that allocates them, and raises torch's error."""


class Called(NamedTuple):
    """A step with the name of the function that it calls in the host program's scope. ``single``: it returns its only
    result itself. ``order``: of a launch, a function that returns the index among the Record's outputs of each
    result."""

    step: st.Step
    function: str
    single: bool
    order: Callable[[], Sequence[int]] | None


@dataclass(eq=False)
class Region:
    """Steps of a host program (:class:`Called`, or a :class:`mlirfuse.lowering.host_steps.Free`), the values that they
    read from outside and those that are read later, the name of the function in the host program, and the code of the
    function that runs the steps one by one."""

    steps: list[Called | st.Free]
    inputs: list[Value]
    outputs: list[Value]
    name: str
    code: CodeType


def groups_of(steps: Sequence[st.Step], native: Callable[[st.Step], bool]) -> list[list[st.Step]]:
    """The steps in order, those of a region together: as long as possible, with a launch or two other calls. It ends
    behind what is freed after its last call."""
    out: list[list[st.Step]] = []
    group: list[st.Step] = []

    def close() -> None:
        launches = any(isinstance(step, (st.Kernels, st.Foreach)) for step in group)
        if launches or sum(not isinstance(step, st.Free) for step in group) > 1:
            out.append(list(group))
        else:
            out.extend([step] for step in group)
        group.clear()

    for step in steps:
        if native(step) or (group and isinstance(step, st.Free)):
            group.append(step)
            continue
        close()
        out.append([step])
    close()
    return out


class Recorder:
    """Runs ``region`` in a host program's ``scope`` by ``plain``, and puts a native Region into its place there once a
    call is recorded. Both take the list of the region's inputs, which they empty, and return the list of outputs."""

    def __init__(self, region: Region, plain: Callable[[list], list], scope: dict[str, Any], shim: Shim):
        self.region, self.plain, self.scope, self.shim = region, plain, scope, shim
        self.forget()

    def forget(self) -> None:
        """Record again: Records may be others now."""
        self.calls = self.known = 0
        self.scope[self.region.name] = self

    def __call__(self, given: list) -> list:
        self.calls += 1
        if self.calls < _FIRST or self.known >= _MOST:
            return self.plain(given)
        self.known += 1
        trace = _Trace(self.region, given, self.shim)
        results = trace.run(self.scope, given)
        native = trace.native(self.scope[self.region.name])
        if native is not None:
            self.scope[self.region.name] = native
        elif self.known == 1:
            self.scope[self.region.name] = self.plain
        return results


class _Trace:
    """One recorded call. Registers are numbered as values appear, the inputs first; a result that is an argument has
    the argument's."""

    def __init__(self, region: Region, given: Sequence[Any], shim: Shim):
        self.region, self.shim = region, shim
        self.layouts = _native.layouts(given) if given else None
        self.device = getattr(given[0], "device", None) if given else None
        self.register = {value: k for k, value in enumerate(region.inputs)}
        self.count = len(given)
        self.live = Counter(range(self.count))  # values of each register that are not freed
        self.tensors: dict[Value, Any] = dict(zip(region.inputs, given))
        self.steps: list[tuple] = []
        self.possible = self.layouts is not None and len({id(x) for x in given}) == len(given)

    def run(self, scope: dict[str, Any], given: list) -> list:
        """The region's results, step by step. Empties ``given``."""
        given.clear()
        for step in self.region.steps:
            if isinstance(step, st.Free):
                self._free(step.reads)
                continue
            call = scope[step.function]
            reads = [self.tensors[v] for v in step.step.reads]
            found = call(*reads)
            makes = [found] if step.single else list(found)
            self.tensors |= zip(step.step.makes, makes)
            self.possible = self.possible and self._recorded(step, call, reads, makes)
            del reads, found, makes  # the next step may free them
        return [self.tensors[v] for v in self.region.outputs]

    def _free(self, values: Sequence[Value]) -> None:
        for value in values:
            self.tensors.pop(value, None)
        if not self.possible:
            return
        registers = [self.register[v] for v in values]
        self.live.subtract(registers)
        self.steps.append(("free", [r for r in dict.fromkeys(registers) if not self.live[r]]))

    def _recorded(self, called: Called, call: Any, reads: list, makes: list) -> bool:
        """Whether the step is recorded."""
        if any(self.shim.dtype(x) is None or x.numel() == 0 for x in (*reads, *makes)):
            return False
        step = called.step
        sources = list(zip(map(self.register.__getitem__, step.reads), reads))
        if called.order is not None:
            return self._launch(step, call.find(*reads), called.order(), sources, makes)
        product = self.shim.product(step) if isinstance(step, st.Call) else None
        if product is None:
            return all(self._view(value, made, sources[:1]) for value, made in zip(step.makes, makes))
        (result,), (value,) = makes, step.makes
        if not result.is_contiguous() or any(_shares(result, x) for x in reads):
            return False
        address, function = product
        args = [register for register, _ in sources]
        self.steps.append(("product", address, args, self._new(value), self._layout(result), function))
        return True

    def _launch(self, step: st.Step, record: Any, order: Sequence[int], sources: list, makes: list) -> bool:
        if record is None or len(order) != len(makes):
            return False
        at = {output: k for k, output in enumerate(order)}  # the result that each output is
        kinds = record.outputs
        if len(at) != len(order) or any(k not in at for k, kind in enumerate(kinds) if kind == "new"):
            return False
        args = [register for register, _ in sources]
        created = [k for k, kind in enumerate(kinds) if kind == "new"]
        outputs = [-1] * len(kinds)
        for k in created:
            outputs[k] = self._new(step.makes[at[k]])
            sources.append((outputs[k], makes[at[k]]))
        layouts = tuple(self._layout(makes[at[k]]) for k in created)
        self.steps.append(("launch", record, args, outputs, layouts))
        others = [at[k] for k, kind in enumerate(kinds) if kind != "new" and k in at]
        return all(self._view(step.makes[k], makes[k], sources) for k in others)

    def _new(self, value: Value) -> int:
        self.register[value], self.count = self.count, self.count + 1
        self.live[self.register[value]] = 1
        return self.register[value]

    def _view(self, value: Value, tensor: Any, sources: list[tuple[int, Any]]) -> bool:
        """Records ``value`` as a view of one of the ``sources``, or as that tensor itself."""
        for register, source in sources:
            if source is tensor:
                self.register[value] = register
                self.live[register] += 1
                return True
        found = next(((r, x) for r, x in sources if x.dtype == tensor.dtype and _shares(x, tensor)), None)
        if found is None or tensor.is_conj() or tensor.is_neg():
            return False
        register, source = found
        nbytes = tensor.data_ptr() - source.data_ptr()
        elements = nbytes // tensor.element_size()
        self.steps.append(("view", register, self._new(value), self._layout(tensor), nbytes, elements))
        return True

    def _layout(self, tensor: Any) -> tuple:
        return tuple(tensor.shape), tensor.stride(), self.shim.dtype(tensor)

    def native(self, fallback: Callable[[list], list]) -> Any:
        """The native Region of the recorded steps, or None."""
        if not self.possible:
            return None
        outputs = [self.register[v] for v in self.region.outputs]
        steps, handles = _with_handles(self.steps, len(self.region.inputs), outputs)
        device: Any = self.device
        try:
            return _native.Region(
                self.shim.addresses, device.type == "cuda", device.index or 0, self.layouts, handles,
                self.count, tuple(steps), outputs, fallback, self.shim.out_of_memory(device),
            )  # fmt: skip
        except ValueError:  # a Record that takes numbers, or runs on another device
            return None


def _shares(a: Any, b: Any) -> bool:
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def _with_handles(steps: list[tuple], inputs: int, outputs: Sequence[int]) -> tuple[list[tuple], list[int]]:
    """The steps with what each view lacks, whether it needs a tensor of its own; and the inputs that do: those that
    products read, that are results, or of which views are that need one. A view that outlives its source needs one."""
    needed = set(outputs)
    last: dict[int, int] = dict.fromkeys(outputs, len(steps))
    freed: dict[int, int] = {}
    for place, step in enumerate(steps):
        if step[0] == "free":
            freed |= dict.fromkeys(step[1], place)
        for register in _read(step):
            last[register] = max(last.get(register, -1), place)
    out = list(steps)
    for place in range(len(steps) - 1, -1, -1):
        step = steps[place]
        if step[0] == "product":
            needed.update(step[2])
        elif step[0] == "view":
            source, made = step[1], step[2]
            outlives = last.get(made, place) > freed.get(source, len(steps))
            if outlives or made in needed:
                needed |= {source, made}
            out[place] = (*step, made in needed)
    return out, sorted(k for k in needed if k < inputs)


def _read(step: tuple) -> Sequence[int]:
    if step[0] == "free":
        return []
    return [step[1]] if step[0] == "view" else step[2]
