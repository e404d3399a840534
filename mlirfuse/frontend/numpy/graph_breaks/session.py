"""Tracing with graph breaks: runs the user's function on stand-ins; where it needs an unknown value, compiles the
subgraph traced so far and runs it on this call's arrays."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import numpy as np

from mlirfuse.core.errors import UnsupportedError
from mlirfuse.frontend import tree as trees
from mlirfuse.frontend.numpy.graph_breaks import tree as steps
from mlirfuse.frontend.numpy.graph_breaks.calls import of_arrays, pure
from mlirfuse.frontend.numpy.introspection import concrete_keys
from mlirfuse.frontend.numpy.memory_order import strides_of
from mlirfuse.frontend.numpy.scope import Captured
from mlirfuse.frontend.numpy.source import located, location
from mlirfuse.frontend.numpy.stand_in import SymInt
from mlirfuse.frontend.numpy.traced import Out
from mlirfuse.frontend.numpy.traced_array import Buffer, TracedArray
from mlirfuse.frontend.numpy.tracing import apply_equalities, flatten_result, laid_out, number_type
from mlirfuse.frontend.numpy.views import At, Permute, at_indices, read_along
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.builder import Builder
from mlirfuse.ir.graph import Block, Graph, Layout, Value, shows_argument
from mlirfuse.runtime import arrays
from mlirfuse.runtime.signature import ArgSpec

if TYPE_CHECKING:
    from mlirfuse.frontend.numpy.trace_state import Trace


S = TypeVar("S", bound=steps.Step)
_CONSTANTS = (bool, int, float, complex, str, bytes, type(None), type, np.dtype)  # results that are no arrays
_MOST_TEXTS = 8  # different texts of a value that is read as text: each costs a trace


class NotSplittable(BaseException):
    """The function cannot be traced with graph breaks either. Not an Exception, so that its own handlers do not catch
    it."""


class Session:
    """One call traced with graph breaks: ``t`` is the trace, whose block holds the current subgraph, ``tree`` the known
    steps of such calls, ``state`` this call's."""

    def __init__(self, t: Trace, tree: steps.Tree, state: steps.State, name: str):
        self.t, self.tree, self.state, self.name = t, tree, state, name
        self.last: steps.Step = tree.root
        self.key: Any = None
        self._again = list(state.steps)  # steps already run, to replay while the function is traced again
        self._created = list(state.created)
        self._count = state.arguments  # slots so far
        self._refs: list[weakref.ref] = []
        self._slot_of: dict[Value, int] = {}  # the block's arguments
        self._held: set[tuple] = set()  # guards assigned to steps
        self._symbols: set[str] = set()
        self._ended = False

    def abort(self, why: str) -> NoReturn:
        raise NotSplittable(located(why))

    # ---- called by the trace

    def begin(self, slots: list[int], arrays: dict[int, TracedArray]) -> None:
        """Registers the arguments' stand-ins: ``slots`` of the block's arguments, the arrays by leaf."""
        self._slot_of = dict(zip(self.t.block.args, slots))
        for leaf, array in arrays.items():
            array._buffer.slot = leaf
        self._meet_symbols(slots)

    def meet(self, x: TracedArray) -> None:
        """Registers a new stand-in."""
        self._refs.append(weakref.ref(x))

    def slot_of_captured(self, array: Any, paths: tuple) -> int:
        """The slot of a captured array, new or known."""
        known = self.tree.captured
        same = [c.is_of(array, paths) or not (paths or c.paths or not _equal(c.array, array)) for c in known]
        k = same.index(True) if any(same) else len(known)
        if k == len(known):
            known.append(Captured(array, paths))
        if k >= len(self.state.captured):
            self.state.captured.append(array)
        return -1 - k

    def captured(self, created: TracedArray, slot: int) -> None:
        """Registers a captured array that became an argument of the block."""
        created._buffer.slot = slot
        self._slot_of[created.value] = slot
        self._meet_symbols(slot)

    def _meet_symbols(self, slots: list[int] | int, kept: dict | None = None) -> None:
        """Registers new symbols; ``slots``: of the block's arguments, or the one that all new symbols are of."""
        kept = self.tree.symbols if kept is None else kept
        for name, (position, what, axis) in self.t.symbols.items():
            if name not in self._symbols:
                self._symbols.add(name)
                kept[name] = (slots if isinstance(slots, int) else slots[position], what, axis)
                self.state.env[name] = self.t.hints[name]

    # ---- steps

    def _step(self, kind: type[S], identity: Any, make: Callable[[], S]) -> S:
        """The next step, of this class and identity: creates it where the tree has none, and runs it unless it has
        run."""
        held = self._holds()
        if self._again:
            step, key = self._again.pop(0)
            if not isinstance(step, kind) or step.identity != identity:
                self.abort("it does not repeat the same steps when traced again")
        else:
            candidates = self.last.after.setdefault(self.key, [])
            alike = [c for c in candidates if isinstance(c, kind) and c.identity == identity]
            allowed = [c for c in alike if c.holds.allows(self.state)]
            if not allowed and self.tree.full:
                self.abort("it has more outcomes than the limit")
            step = allowed[-1] if allowed else make()
            if not allowed:
                step.identity, step.holds, step.where = identity, held, None if self._ended else location()
                self.tree.steps += 1
                candidates.append(step)
            key = step.run(self.state)
            self.state.steps.append((step, key))
        self.last, self.key = step, key
        return step

    def _holds(self) -> steps.Holds:
        """The guards that the trace has recorded since the last step."""
        new: dict[str, Any] = {}
        for name, given in self.t.assumptions().items():
            if isinstance(given, list):
                new[name] = [one for one in given if self._is_new(name, one[0] if name == "constants" else one)]
            elif name != "symbols":
                some = {leaf: [one for one in each if self._is_new(name, leaf, one)] for leaf, each in given.items()}
                new[name] = {leaf: bounds for leaf, bounds in some.items() if bounds}
        return steps.Holds(**new)

    def _is_new(self, *key: Any) -> bool:
        """Whether a guard is assigned to no step yet; assigns it."""
        new = key not in self._held
        self._held.add(key)
        return new

    def cut(self) -> None:
        """Ends the subgraph: compiles and runs it; live values become arrays in slots."""
        live = [x for ref in self._refs if (x := ref()) is not None]
        self._refs = [weakref.ref(x) for x in live]
        numbers = {id(x._buffer) for x in live if x._scalar}
        ends = _SubgraphEnd(self, list({id(x._buffer): x._buffer for x in live}.values()), numbers)
        indices = {step.index for x in live for step in x._path if isinstance(step, At)}
        at = {v: ends.slot_of(v) for v in indices}
        t = self.t
        layouts = dict(zip(t.block.args, t.layouts))
        by_value = {v for k, v in enumerate(t.block.args) if k in t.scalars}
        if ends.results:
            self._run(ends.results, ends.writes, layouts, by_value)
        argument = self._new_block(layouts, by_value)
        for b in ends.buffers:
            slot = ends.slots[id(b)]
            b.value = b.origin = argument(slot, b.value)
            b.touched |= b.version > 0
            b.version = 0
            if id(b) not in numbers:
                b.slot = slot
        index = {v: argument(slot, v) for v, slot in at.items()}
        permuted = ends.permuted
        for x in live:
            path = (permuted[id(x._buffer)], *x._path) if id(x._buffer) in permuted else x._path
            x._path = at_indices(path, index)
            x._value, x._version = read_along(t, x._buffer.value, x._path), 0

    def _new_block(self, layouts: dict, by_value: set) -> Callable[[int, Value], Value]:
        """Begins a new block, whose arguments are live values: returns the function that adds, for a slot and a value
        like it, its argument. ``layouts``, ``by_value``: of the old block's arguments."""
        t = self.t
        of_slot = {slot: v for v, slot in self._slot_of.items()}
        self._slot_of = {}
        t.block = Block()
        t.builder = Builder(t.block, location)
        t.layouts, t.scalars = [], set()
        created: dict[int, Value] = {}

        def argument(slot: int, like: Value) -> Value:
            if slot not in created:
                before = of_slot.get(slot)
                value = created[slot] = Value(like.dtype, t.shape(like if before is None else before))
                if before in by_value:
                    t.scalars.add(len(t.block.args))
                t.block.args.append(value)
                if before is None:
                    layout: Layout | None = Layout(sz.contiguous_strides(value.shape), 1)
                else:
                    layout = layouts[before]
                    layout = layout and Layout(tuple(map(t.canonical, layout.strides)), layout.align)
                t.layouts.append(layout)
                if layout is not None:
                    t.strides[value] = layout.strides
                self._slot_of[value] = slot
            return created[slot]

        return argument

    def _run(self, results: list[Value], writes, layouts: dict, by_value: set) -> None:
        t = self.t
        defined = {v for op in t.block.ops for v in op.results} | set(t.block.args)
        used = {v for op in t.block.ops for v in op.operands} | set(results)
        if not used <= defined:
            self.abort("a value is read in the middle of an operation")
        kept = [v for v in t.block.args if v in used]
        sources = [self._slot_of[v] for v in kept]
        block = t.block
        block.args, block.returns = kept, results
        where = {k for k, v in enumerate(kept) if v in by_value}
        graph = Graph(self.name, block, [layouts[v] for v in kept], where, {}, t.device)
        apply_equalities(t, graph)
        make = lambda: steps.Subgraph(_apart(graph, sources, writes, self.state.arguments), sources, writes)  # noqa: E731
        self._step(steps.Subgraph, (sources, writes), make)
        self._count += len(results) - len(writes)

    # ---- requests of the function

    def read(self, x: TracedArray, how: Callable[[Any], Any]) -> Any:
        """``how(x)`` of the real array or number."""
        place = self._place_of(x)
        step = self._step(steps.Read, (place, how), lambda: steps.Read(place, how))
        value = how(steps.on_host(place, self.state))
        if isinstance(value, (str, bytes)) and self.key not in step.after and len(step.after) >= _MOST_TEXTS:
            self.abort("the text of an array or number differs from call to call")
        return value

    def size(self, x: TracedArray) -> Any:
        """A number as a symbolic size, so that other values do not recompile."""
        place = self._place_of(x)
        name = f"n{self._count}_{len(self._symbols)}"
        step = self._step(steps.SizeOf, place, lambda: steps.SizeOf(place, name))
        if self.key is not None:
            return self.key
        t, name = self.t, step.name
        self._symbols.add(name)
        t.hints[name] = self.state.env[name] = int(steps.on_host(place, self.state))
        t.symbols[name] = (-1, "value", 0)
        return t.sym(sz.symbol(name))

    def _place_of(self, x: TracedArray) -> Out:
        kept = TracedArray(self.t, self.t.emit("copy", x.value), scalar=x._scalar) if x._path else x
        self.cut()
        return self._serialized(kept)

    def _serialized(self, x: Any) -> Out:
        """A leaf of a call's arguments or of the result; requires a graph break before."""
        if isinstance(x, TracedArray):
            if x._trace is not self.t:
                self.abort("it uses a stand-in of another trace")
            slot = x._buffer.slot if x._buffer.slot is not None else self._slot_of[x._buffer.value]
            return Out("argument", slot, scalar=number_type(x), path=at_indices(x._path, self._slot_of))
        if isinstance(x, SymInt):
            return Out("size", value=self.t.canonical(x.size))
        return Out("constant", value=self.t.stand_ins.original(x))

    def call(self, function: Callable, args: tuple, kwargs: dict[str, Any], pure: bool = True) -> Any:
        """Calls ``function`` with the real arrays. ``pure``: it writes into none of them."""
        given, tree = trees.flatten((tuple(args), dict(kwargs)))
        self.cut()
        leaves = [self._serialized(x) for x in given]
        for x in () if pure else given:
            if isinstance(x, TracedArray):
                x._buffer.touched = True
        arguments = [p.index for p in leaves if p.kind == "argument" and 0 <= p.index < self.state.arguments]
        written = [] if pure else sorted(set(arguments))
        function = self.t.stand_ins.original(function)
        again, identity = bool(self._again), (function, [p if p.kind != "constant" else p.kind for p in leaves])
        step = self._step(steps.Call, identity, lambda: steps.Call(function, tree, leaves, pure, written))
        if self.key == steps.LOST:
            self.abort(f"{function.__name__} writes into an array that NumPy made while the function was traced")
        created = self._created.pop(0) if again else self.state.created[-1]
        if isinstance(created, BaseException):
            raise created
        return self._wrapped(step, *created)

    def _wrapped(self, step: steps.Call, leaves: list, tree: trees.Tree) -> Any:
        """A call's result, with stand-ins for its arrays."""
        out: list[Any] = []
        first = self._count
        kept: dict[str, tuple[int, str, int]] = {}
        for x in leaves:
            elements = type(x) is np.ndarray or isinstance(x, np.generic)
            if not elements and not isinstance(x, _CONSTANTS):
                self.abort(f"{step.function.__name__} returns a {type(x).__name__}")
            if not elements:
                out.append(x)
                continue
            slot = self._count
            self._count += 1
            array = self.state.slots[slot]
            try:
                spec = arrays.describe(array)
            except (TypeError, UnsupportedError):
                self.abort(f"{step.function.__name__} returns an array of {array.dtype}")
            assert isinstance(spec, ArgSpec)
            value = self.t.argument(spec, None)
            self._slot_of[value] = slot
            self._meet_symbols(slot - first, kept)
            buffer = Buffer(value, writable=spec.writable)
            buffer.slot = slot
            if x.base is not None:
                self._share(x, buffer)
            out.append(TracedArray(self.t, value, buffer, scalar=isinstance(x, np.generic)))
        step.symbols.setdefault(self.key, [(name, *where) for name, where in kept.items()])
        return tree.unflatten(out)

    def _share(self, array: np.ndarray, buffer: Buffer) -> None:
        """Marks a result that may share memory with another array: neither may be written from here on. For libraries
        other than NumPy the function got copies, so any array may be the one."""
        for ref in self._refs:
            other = ref()
            if other is None or other._buffer.slot is None:
                continue
            known = self.state[other._buffer.slot]
            if self.state.like is not None or (isinstance(known, np.ndarray) and np.may_share_memory(known, array)):
                buffer.fixed = other._buffer.fixed = True

    def end(self, result: Any, constant: Callable[[Any], Any]) -> Any:
        """Ends the trace: the function has returned ``result``."""
        leaves, tree = flatten_result(self.t, result)
        tree = concrete_keys(tree)
        self._ended = True
        self.cut()
        serialized: list[Out] = []
        first: dict[int, int] = {}  # buffer or array id -> its index among the results
        for x in leaves:
            if isinstance(x, TracedArray) and first.setdefault(id(x), len(serialized)) < len(serialized):
                serialized.append(Out("repeated", first[id(x)]))
                continue
            leaf = self._serialized(x)
            if leaf.kind == "constant":
                leaf = constant(leaf.value)
                container = leaf.kind == "outside" and not isinstance(leaf.value.array, np.ndarray)
                if not (leaf.kind in ("constant", "argument") or container):
                    self.abort("it returns an object from its scope")
            serialized.append(leaf)
        return self._step(steps.Return, tree, lambda: steps.Return(tree, serialized)).result(self.state)

    def attribute(self, x: TracedArray, name: str) -> Any:
        """An array method or attribute that stand-ins lack."""
        if not callable(getattr(np.ndarray, name, None)):
            self.abort(f"it uses x.{name}")
        return lambda *args, **kwargs: self.call(of_arrays(name), (x, *args), kwargs, pure(of_arrays(name)))


class _SubgraphEnd:
    """The results of a subgraph that ends: the values of ``buffers``. ``numbers``: the ids of those of numbers.
    ``writes``: (slot, index among the results) of those written into arrays; ``slots``: of each buffer, by its id;
    ``permuted``: by id, the step from its result to the array."""

    def __init__(self, session: Session, buffers: list[Buffer], numbers: set[int]):
        self.session, self.buffers = session, buffers
        self.results: list[Value] = []
        self.writes: list[tuple[int, int]] = []
        self.slots: dict[int, int] = {}
        self.permuted: dict[int, Permute] = {}
        self._new: dict[Value, int] = {}  # value -> the slot of its result
        for b in buffers:
            if b.slot is not None and b.value is not b.origin:
                b.value = self._distinct(b.value, False)
                self.writes.append((b.slot, len(self.results)))
                self.results.append(b.value)
        for b in buffers:
            known = session._slot_of.get(b.value, self._new.get(b.value)) if id(b) in numbers else None
            if b.slot is not None:
                self.slots[id(b)] = b.slot
            elif known is not None:
                self.slots[id(b)] = known
            else:
                b.value, path = laid_out(session.t, b.value, strides_of(session.t, b.origin))
                self.permuted |= {id(b): step for step in path}
                self.slots[id(b)] = self._result(b.value, shows_argument(b.value))
                self._new.setdefault(b.value, self.slots[id(b)])

    def slot_of(self, value: Value) -> int:
        """The slot of an index, which becomes a result if it has none."""
        known = self.session._slot_of.get(value, self._new.get(value))
        return self._result(value, False) if known is None else known

    def _distinct(self, value: Value, copied: bool) -> Value:
        """The value, or a copy of an argument or of what is a result already."""
        return self.session.t.emit("copy", value) if copied or value.op is None or value in self.results else value

    def _result(self, value: Value, copied: bool) -> int:
        self.results.append(self._distinct(value, copied))
        return self.session._count + len(self.results) - len(self.writes) - 1


def _equal(a: Any, b: Any) -> bool:
    """Whether two created arrays are the same constant."""
    a, b = arrays.to_numpy(a), arrays.to_numpy(b)
    return (a.dtype, a.shape, a.strides) == (b.dtype, b.shape, b.strides) and a.tobytes() == b.tobytes()


def _apart(graph: Graph, sources: list[int], writes: list[tuple[int, int]], arguments: int) -> Graph:
    """``graph`` with copies of results that would alias memory that may be written before they are. The first
    ``arguments`` slots do not alias each other; other slots may be views of any."""
    builder = Builder(graph.body)
    written = {slot for slot, _ in writes}
    known = all(0 <= slot < arguments for slot in written)
    for _, k in writes:
        source = _argument_of(graph.returns[k])
        if source is None:
            continue
        slot = sources[graph.args.index(source)]
        if slot in written or not (known and 0 <= slot < arguments):
            graph.returns[k] = builder.op("copy", graph.returns[k])
    return graph


def _argument_of(value: Value) -> Value | None:
    """The argument whose memory ``value`` lies in, or None."""
    while (op := value.op) is not None:
        if op.row.kind != "shape" or len(op.operands) != 1:
            return None
        (value,) = op.operands
    return value
