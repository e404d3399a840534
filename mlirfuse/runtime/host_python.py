"""Generates a host program as one Python function: each step a statement, values freed after their last use.

The source is the same for all sizes. The functions that steps call (a dispatcher of kernels, a library function with
its attributes) depend on the sizes of a call: :class:`HostFunction` binds them for each set of sizes. Functions that
depend on sizes known only at run time are looked up as the program runs.
"""

from __future__ import annotations

import builtins
import itertools
import types
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from mlirfuse.ir import scalars
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.assumptions import guard_symbols
from mlirfuse.ir.graph import Graph, Value
from mlirfuse.lowering import host_steps as st
from mlirfuse.lowering.host_steps import FusedRegion, Sequence, Step
from mlirfuse.runtime import host_calls as calls
from mlirfuse.runtime.launches import Launches
from mlirfuse.runtime.native_regions import Called, Recorder, Region, Shim, groups_of
from mlirfuse.runtime.size_cache import SizeCache

Bind = Callable[[dict[str, int]], Any]  # the function that a step calls, for the values of the symbols


class Watch(Protocol):
    """Observer of each step of a program as it runs, by its index in the sequence; steps in loops and branches belong
    to those."""

    def before(self, place: int) -> None:
        """The step runs next."""

    def after(self, place: int) -> None:
        """The step has run: on a GPU its work is queued."""


class HostFunction:
    """Runs ``sequence``, the steps of ``graph``, by these ``launches``, and reports to ``watch``. ``like``: an array
    that determines the framework and device of results; None: one of a call's arguments.

    It takes a list of the arguments, which it empties, so that an argument is freed after its last reader if the caller
    does not keep it, and returns the list of results.
    """

    def __init__(self, graph: Graph, sequence: Sequence, launches: Mapping[FusedRegion, Launches],
                 watch: Watch | None = None, like: Any = None, shim: Shim | None = None):  # fmt: skip
        self._launches, self._shim = launches, shim
        self._regions: list[Region] = []
        self._recorders: weakref.WeakSet[Recorder] = weakref.WeakSet()
        self._called: dict[Step, str] = {}  # the name of the function that a step calls
        self._names: dict[Value, str] = {}
        self._binds: dict[str, Bind] = {}
        # C code that imports a module looks up builtins in the globals of its caller.
        self._fixed: dict[str, Any] = {"__builtins__": builtins}
        self._fixed |= {"_pack": calls.packed, "_unalias": calls.unaliased, "_copy": calls.copy_all}
        self._runtime_sizes: dict[str, str] = {}  # symbol -> its variable in the function
        self._uses_like = False
        self._given = {v for k, v in enumerate(graph.args) if k not in graph.scalars}
        for step in sequence.walk():
            if isinstance(step, st.ReadSize):
                self._runtime_sizes.setdefault(step.name, f"n_{step.name}")
        body = self._watched(sequence, watch) if watch is not None else self._top(sequence)
        args = [self._name(v) for v in sequence.args]
        head = ["def run(args):"]
        if args:
            head.append(f"    {', '.join(args)}, = args")
        if self._uses_like and like is None:
            head.append("    like = _like(args)")
            self._fixed["_like"] = calls.like
        elif self._uses_like:
            self._fixed["like"] = like
        head += ["    args.clear()"] if args else []
        head += [f"    {name} = None" for name in self._runtime_sizes.values()]
        self.source = "\n".join([*head, *body, f"    return [{self._listed(sequence.returns)}]"]) + "\n"
        self._code = _code(self.source, graph.name)
        sizes = {s for v in _all_values(graph, sequence) for n in v.shape for s in sz.symbols(n)}
        self.symbols = sorted(
            sizes.union(*(sz.symbols(n) for n in calls.sizes_of(sequence))) - set(self._runtime_sizes)
        )

    def bound(self, env: dict[str, int]) -> Callable[[list], list]:
        """Return the function for these sizes."""
        scope = self._fixed | {name: bind(env) for name, bind in self._binds.items()}
        for region in self._regions:
            assert self._shim is not None
            self._recorders.add(Recorder(region, types.FunctionType(region.code, scope), scope, self._shim))
        return types.FunctionType(self._code, scope)

    def forget(self) -> None:
        """Look up Records again, also in functions that callers keep."""
        for recorder in list(self._recorders):
            recorder.forget()

    # ---- names

    def _name(self, value: Value) -> str:
        return self._names.setdefault(value, f"v{len(self._names)}")

    def _listed(self, values: Iterable[Value]) -> str:
        return ", ".join(map(self._name, values))

    def _bind(self, letter: str, bind: Bind, symbols: Iterable[str]) -> str:
        """Return an expression for the result of ``bind``, which depends on these symbols."""
        name = f"{letter}{len(self._binds)}"
        unknown = [s for s in sorted(symbols) if s in self._runtime_sizes]
        self._binds[name] = (lambda env: _BoundAtRuntime(bind, env, unknown)) if unknown else bind
        return f"{name}({', '.join(self._runtime_sizes[s] for s in unknown)})" if unknown else name

    def _like_argument(self) -> str:
        self._uses_like = True
        return "like"

    # ---- statements

    def _steps(self, sequence: Sequence, indent: str) -> list[str]:
        out = [line for step in sequence.steps for line in self._step(step, indent)]
        return out or [indent + "pass"]

    def _top(self, sequence: Sequence) -> list[str]:
        """The statements of the program itself, in which regions are a call each."""
        out: list[str] = []
        steps = sequence.steps
        groups = [[step] for step in steps] if self._shim is None else groups_of(steps, self._native)
        later = Counter(v for step in steps for v in _all_reads(step))
        later.update(sequence.returns)
        for group in groups:
            later.subtract(v for step in group for v in _all_reads(step))
            if len(group) == 1:
                out += self._step(group[0], "    ")
            else:
                out += self._region(group, [v for step in group for v in step.makes if later[v] > 0])
        return out

    def _region(self, group: list[Step], outputs: list[Value]) -> list[str]:
        made = {v for step in group for v in step.makes}
        inputs = list(dict.fromkeys(v for step in group for v in step.reads if v not in made))
        freed = [v for step in group if isinstance(step, st.Free) for v in step.reads if v not in made]
        lines = [line for step in group for line in self._step(step, "    ")]
        head = ["def run(args):", f"    {self._listed(inputs)}, = args", "    args.clear()"]
        source = "\n".join([*head, *lines, f"    return [{self._listed(outputs)}]"]) + "\n"
        name = f"r{len(self._regions)}"
        steps = [step if isinstance(step, st.Free) else self._called_step(step) for step in group]
        self._regions.append(Region(steps, inputs, outputs, name, _code(source, name)))
        out = [f"    given = [{self._listed(inputs)}]"]
        out += [f"    {' = '.join(map(self._name, freed))} = None"] if freed else []
        makes = f"{self._listed(outputs)}, = " if outputs else ""
        return [*out, f"    {makes}{name}(given)"]

    def _called_step(self, step: Step) -> Called:
        name = self._called[step]
        if isinstance(step, st.Call):
            return Called(step, name, calls.returns_single(step.op, self._given), None)
        assert isinstance(step, (st.Kernels, st.Foreach))
        single = isinstance(step, st.Kernels) and len(step.makes) == 1
        return Called(step, name, single, self._launches[step.region].order)

    def _native(self, step: Step) -> bool:
        """Whether a native region may run ``step``."""
        if isinstance(step, st.Kernels):
            region = step.region
            return (
                not region.graph.scalars and bool(step.reads) and not self._runtime_sizes.keys() & set(region.symbols)
            )
        if isinstance(step, st.Foreach):
            return True
        if type(step) is not st.Call or calls.symbols_of(step.op) & self._runtime_sizes.keys():
            return False
        if step.op.row.view:
            return True
        assert self._shim is not None
        return not calls.needs_like(step.op, self._given) and self._shim.takes(step)

    def _watched(self, sequence: Sequence, watch: Watch) -> list[str]:
        self._fixed |= {"_before": watch.before, "_after": watch.after}
        out: list[str] = []
        for place, step in enumerate(sequence.steps):
            lines = self._step(step, "    ")
            out += lines if isinstance(step, st.Free) else [f"    _before({place})", *lines, f"    _after({place})"]
        return out

    def _step(self, step: Step, indent: str) -> list[str]:
        return [indent + line for line in getattr(self, f"_{type(step).__name__.lower()}")(step, indent)]

    def _kernels(self, step: st.Kernels, indent: str) -> list[str]:
        call = self._called[step] = self._bind("k", self._launches[step.region].at, step.region.symbols)
        given = self._listed(step.reads)
        if len(step.region.graph.scalars) == len(step.reads):
            given += (", " if given else "") + self._like_argument()
        return [f"{self._listed(step.makes)} = {call}({given})"]

    def _foreach(self, step: st.Foreach, indent: str) -> list[str]:
        call = self._called[step] = self._bind("k", self._launches[step.region].at, ())
        return [f"{self._listed(step.makes)}, = {call}({self._listed(step.reads)})"]

    def _call(self, step: st.Call, indent: str) -> list[str]:
        op = step.op
        bind = lambda env: calls.function(op, env, self._given)  # noqa: E731
        call = self._called[step] = self._bind("f", bind, calls.symbols_of(op))
        given = self._listed(step.reads)
        if calls.needs_like(op, self._given):
            given = self._like_argument() + (", " if given else "") + given
        unpacked = "" if calls.returns_single(op, self._given) else ","
        makes = f"{self._listed(step.makes)}{unpacked} = " if step.makes else ""
        return [f"{makes}{call}({given})"]

    _start = _wait = _call

    def _compute(self, step: st.Compute, indent: str) -> list[str]:
        (created,) = step.makes
        if step.op.name == "arith.constant":
            return [f"{self._name(created)} = {scalars.constant(step.op)!r}"]
        function = f"c{len(self._fixed)}"
        self._fixed[function] = scalars.function(step.op)
        return [f"{self._name(created)} = {function}({self._listed(step.reads)})"]

    def _guard(self, step: st.Guard, indent: str) -> list[str]:
        symbols = guard_symbols(step.op)
        guard = self._bind("g", lambda env: calls.guard(step.op, env), symbols)
        return [f"{self._listed(step.makes)} = {guard}({self._listed(step.reads)})"]

    def _readsize(self, step: st.ReadSize, indent: str) -> list[str]:
        return [f"{self._runtime_sizes[step.name]} = {self._listed(step.reads)}.shape[{step.axis}]"]

    def _assign(self, step: st.Assign, indent: str) -> list[str]:
        return [f"{self._listed(step.makes)} = {self._listed(step.reads)}"]

    def _pack(self, step: st.Pack, indent: str) -> list[str]:
        return [f"{self._listed(step.makes)} = _pack({self._listed(step.reads)})"]

    def _unalias(self, step: st.Unalias, indent: str) -> list[str]:
        return [f"{self._listed(step.makes)} = _unalias({self._listed(step.reads)})"]

    def _copy(self, step: st.Copy, indent: str) -> list[str]:
        half = len(step.reads) // 2
        pairs = zip(map(self._name, step.reads[half:]), map(self._name, step.reads[:half]))
        missing = " or ".join(f"{value} is not {target}" for value, target in pairs)  # kernels wrote the others
        return [f"if {missing}:", f"    _copy({self._listed(step.reads)})"]

    def _free(self, step: st.Free, indent: str) -> list[str]:
        return [f"{' = '.join(map(self._name, step.reads))} = None"]  # no del: a loop may execute it again

    def _branch(self, step: st.Branch, indent: str) -> list[str]:
        out = [f"if {self._name(step.reads[0])}:", *self._steps(step.then, "    ")]
        if step.otherwise.steps:
            out += ["else:", *self._steps(step.otherwise, "    ")]
        return out

    def _for(self, step: st.For, indent: str) -> list[str]:
        counter = self._name(step.body.args[0])
        return [f"for {counter} in range({self._listed(step.reads[:3])}):", *self._steps(step.body, "    ")]

    def _while(self, step: st.While, indent: str) -> list[str]:
        stop = [f"    if not {self._name(step.condition)}:", "        break"]
        before = self._steps(step.before, "    ")
        return ["while True:", *before, *stop, *self._steps(step.after, "    ")]


class _BoundAtRuntime:
    """Looks up a step's function by sizes that are known at run time only."""

    def __init__(self, bind: Bind, env: dict[str, int], names: list[str]):
        self._bind, self._env, self._names = bind, env, names
        self._known = SizeCache()

    def __call__(self, *sizes: int) -> Any:
        found = self._known.get(sizes)
        if found is None:
            found = self._known.add(sizes, self._bind(self._env | dict(zip(self._names, sizes))))
        return found


def _code(source: str, name: str) -> types.CodeType:
    """The code of the function ``run`` that ``source`` defines."""
    scope: dict[str, Any] = {}
    exec(compile(source, f"<host program of {name}>", "exec"), scope)
    return scope["run"].__code__


def _all_reads(step: Step) -> Iterable[Value]:
    """The values that a step reads to use them, bodies included."""
    inner = (v for body in step.bodies for s in [*body.steps] for v in _all_reads(s))
    returned = (v for body in step.bodies for v in body.returns)
    return itertools.chain(() if isinstance(step, st.Free) else step.reads, inner, returned)


def _all_values(graph: Graph, sequence: Sequence) -> Iterable[Value]:
    created = itertools.chain.from_iterable((*step.reads, *step.makes) for step in sequence.walk())
    return itertools.chain(graph.args, created)
