"""Tracing: runs a Python function once on stand-ins for its arguments, and records the operations as a graph.

:class:`~mlirfuse.frontend.numpy.traced_array.TracedArray` stands for an array,
:class:`~mlirfuse.frontend.numpy.traced_array.TracedScalar` for a number known only at run time, and
:class:`~mlirfuse.frontend.numpy.stand_in.SymInt` for an element of ``x.shape``. Sizes stay symbolic until the function
branches on one; the decision then becomes a :class:`~mlirfuse.runtime.signature.SizeGuard` of the trace.
:mod:`mlirfuse.frontend.numpy.functions` and :mod:`mlirfuse.frontend.numpy.ufunc_rules` turn NumPy's functions into ops.
"""

from __future__ import annotations

import enum
import inspect
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlirfuse.core.errors import TraceError, nearest
from mlirfuse.frontend import tree as trees
from mlirfuse.frontend.numpy import functions  # noqa: F401  (gives traced arrays their operators and functions)
from mlirfuse.frontend.numpy.effects import SideEffect, Snapshot, Stop
from mlirfuse.frontend.numpy.introspection import concrete_keys
from mlirfuse.frontend.numpy.memory_order import order_of_new, strides_of, strides_of_array
from mlirfuse.frontend.numpy.rebuild import StandIns
from mlirfuse.frontend.numpy.scope import (
    CONSTANT_TYPES,
    PLAIN_TYPES,
    Captured,
    access_paths,
    containers_of,
    namespace_of,
    roots_of,
    scope_of,
)
from mlirfuse.frontend.numpy.source import refusals
from mlirfuse.frontend.numpy.stand_in import SymInt
from mlirfuse.frontend.numpy.trace_state import Trace, in_progress
from mlirfuse.frontend.numpy.traced import Out, Traced
from mlirfuse.frontend.numpy.traced_array import Buffer, LeafArray, LeafScalar, TracedArray
from mlirfuse.frontend.numpy.views import At, Diagonal, FullView, Permute, Reshape, at_indices
from mlirfuse.ir.graph import Graph, Layout, Value, shows_argument, walk
from mlirfuse.ir.ops import map_sizes
from mlirfuse.runtime.signature import Static


def trace(
    fn,
    leaves,
    tree: trees.Tree,
    name: str | None = None,
    aliases: dict[int, int] | None = None,
    most_ops: int | None = None,
    checks_indices: bool = True,
    objects: Sequence = (),
    returns_copies: bool = False,
) -> Traced:
    """Traces ``fn`` on arguments whose tree is ``((positional…), {keyword…})``.

    ``aliases`` maps a leaf to an earlier one with the same memory and layout. ``checks_indices``: kernels check array
    indices. ``objects``: the leaves themselves, for functions that ask whether two are one object.
    ``returns_copies``: results are C-contiguous arrays of their own, also where NumPy gives views, arrays in another
    order or arrays from outside the function. Raises TraceError, ShapeError, UnsupportedError, :class:`TooLong` for
    more than ``most_ops`` ops, or any error of the function itself.
    """
    t = Trace(most_ops)
    t.checks_indices = checks_indices
    t.leaf_objects = list(objects)
    given = stand_ins_for(t, fn, leaves, tree, aliases)
    position = {leaf: k for k, leaf in enumerate(given.leaves)}
    args, kwargs = tree.unflatten(given.stand_ins)
    out_leaves, out_tree = flatten_result(t, run(fn, t, args, kwargs), returns_copies)
    out_tree = concrete_keys(out_tree)
    results = _Results(t, given, returns_copies)
    outs = results.of(out_leaves)
    graph_aliases, mutated = {}, {}
    for leaf, array in given.arrays.items():
        buffer = array._buffer
        if buffer.version and buffer.leaf == leaf and buffer.value is not t.block.args[position[leaf]]:
            result_position = results.add(buffer.value)
            graph_aliases[result_position] = position[leaf]
            mutated[leaf] = result_position
    t.block.returns = results.returns
    graph = Graph(name or graph_name(fn), t.block, t.layouts, t.scalars, graph_aliases, t.device)
    apply_equalities(t, graph)
    return Traced(
        **t.assumptions(),
        graph=graph,
        out_tree=out_tree,
        outs=outs,
        mutated=mutated,
        captured=[Captured(array, paths) for array, _, paths in t.captured.values()],
        arg_leaves=given.leaves,
        scope=scope_of(t, {id(o.value.array) for o in outs if o.kind == "outside"}),
        warnings=tuple(t.warnings),
        compares=t.compares,
    )


def graph_name(fn) -> str:
    """The name of a function's graphs."""
    return getattr(fn, "__name__", "f").replace("<", "").replace(">", "")


@dataclass
class Arguments:
    """A call's stand-ins: ``stand_ins`` by leaf, ``leaves`` of the block's arguments, ``arrays`` by leaf; ``objects``
    by leaf: arguments whose attributes the function may read."""

    stand_ins: list
    leaves: list[int]
    arrays: dict[int, TracedArray]
    objects: dict[int, Any]


def stand_ins_for(t: Trace, fn, leaves, tree: trees.Tree, aliases: dict[int, int] | None = None) -> Arguments:
    """Stand-ins for arguments with the specs ``leaves``, and the scope of ``fn`` for the trace."""
    replaced = t.stand_ins = StandIns()
    paths = argument_names(fn, tree)
    stand_ins: list = []
    arg_leaves: list[int] = []
    arrays: dict[int, TracedArray] = {}
    for leaf, spec in enumerate(leaves):
        if isinstance(spec, Static):
            stand_ins.append(replaced.of(spec.value))
            continue
        arg_leaves.append(leaf)
        value = t.argument(spec, paths[leaf] or None)
        if spec.device != "cpu":
            t.device = spec.device
        if spec.scalar and not spec.writable:
            stand_ins.append(LeafScalar(t, value, spec, leaf))
            continue
        origin = (aliases or {}).get(leaf)
        if origin in arrays:  # the same memory shares one value: writes through one are visible through the other
            value, buffer = arrays[origin]._value, arrays[origin]._buffer
        else:
            buffer = Buffer(value, leaf, writable=spec.writable)
        if spec.value is not None:
            known = arrays[leaf] = LeafArray(t, value, buffer)
            known.spec, known.leaf = spec, leaf
        else:
            arrays[leaf] = TracedArray(t, value, buffer)
        stand_ins.append(arrays[leaf])
        if spec.scalar:
            buffer.writable = False
    statics = {leaf: spec.value for leaf, spec in enumerate(leaves) if isinstance(spec, Static)}
    objects = {
        leaf: value
        for leaf, value in statics.items()
        if not isinstance(value, PLAIN_TYPES) or (isinstance(value, type) and namespace_of(value) is not None)
    }
    t.roots, t.codes = roots_of(fn, list(objects.values()))
    t.leaf_of = {id(stand_in): leaf for leaf, stand_in in enumerate(stand_ins) if isinstance(stand_in, TracedArray)}
    return Arguments(stand_ins, arg_leaves, arrays, objects)


def run(fn, t: Trace, args, kwargs):
    """The result of ``fn`` on the stand-ins. Raises :class:`SideEffect`, with all changes undone, where ``fn`` has
    effects that must happen at every call."""
    given, shape = trees.flatten((args, kwargs))
    before = Snapshot([(name, value) for name, _, _, value in t.roots], t.codes)
    failure, problem, result = None, None, None
    outer, refusals.last = refusals.last, None
    try:
        with in_progress(t):
            result = t.stand_ins.of(fn)(*args, **kwargs)
    except Stop as stopped:
        problem = str(stopped)
    except BaseException as error:
        failure = error
    if problem is None and refusals.last is not None and (failure is None or isinstance(failure, Exception)):
        failure = refusals.last  # the function may have caught it
    refusals.last = outer
    written, changed = t.stand_ins.written(), before.restore()
    if failure is not None and not isinstance(failure, Exception):  # an interrupt, possibly in the middle of a copy
        raise failure
    if problem is None and t.shared:
        problem = "another thread uses its arrays"
    if problem is None and (written or changed):
        problem = f"it changes {written or changed}, which must happen at every call"
    if problem is None and failure is None:
        kept, now = trees.flatten((args, kwargs))
        if now != shape or any(a is not b for a, b in zip(kept, given)):
            problem = "it changes a list or dict that is an argument"
    if problem is not None:
        raise SideEffect(f"{getattr(fn, '__name__', 'the function')} cannot be compiled: {problem}") from None
    if failure is not None:
        raise failure
    return result


_RETURNED_TYPES = (*CONSTANT_TYPES, type(Ellipsis), type, slice, range, frozenset, enum.Enum, types.ModuleType)


def flatten_result(t: Trace, result: Any, copies: bool = False) -> tuple[list, trees.Tree]:
    """The leaves and the structure of a function's result. Lists and dicts from outside are leaves, as the caller gets
    them themselves, unless ``copies``."""
    nested = type(result) in (list, dict) or (isinstance(result, tuple) and any(type(x) in _CONTAINERS for x in result))
    return trees.flatten(result, containers_of(t.roots) if nested and not copies else ())


_CONTAINERS = (list, dict, tuple)


def constant_of(t: Trace, x, objects: dict[int, Any]) -> Out:
    """An untraced leaf of the result: an argument's object (``objects``, by leaf) is the caller's, an object from
    outside is read at each call, an array that the function created is created anew. Raises :class:`SideEffect` for
    other objects that the function created."""
    if isinstance(x, _RETURNED_TYPES):
        return Out("constant", value=x)
    for leaf, value in objects.items():
        if value is x:
            return Out("argument", leaf)
    container = type(x) in (list, dict)
    if any(value is x for _, _, _, value in t.roots) and not isinstance(x, np.ndarray) and not container:
        return Out("constant", value=x)
    _, paths = access_paths(x, t.roots)
    if paths:
        of_arguments = [(leaf, steps) for root, steps in paths for leaf, value in objects.items() if root is value]
        if not of_arguments or isinstance(x, np.ndarray):
            return Out("outside", value=Captured(x, paths))
        if len(of_arguments) == len(paths) == 1:
            return Out("attribute", of_arguments[0][0], of_arguments[0][1])
        raise SideEffect(f"the function returns a {type(x).__name__} that arguments share with others")
    if type(x) is np.ndarray:
        return Out("constant", value=x)
    if isinstance(x, types.CoroutineType):
        x.close()  # prevents Python's 'never awaited' warning
    raise SideEffect(f"the function creates a {type(x).__name__} and returns it, which must happen at every call")


class _Results:
    """Builds the description of a function's result from the graph's results, ``returns``."""

    def __init__(self, t: Trace, given: Arguments, copies: bool):
        self.t, self.arg_leaves, self.objects, self.copies = t, given.leaves, given.objects, copies
        self.returns: list[Value] = []
        self._where: dict[int, tuple[int, tuple]] = {}  # array id -> (graph result, steps)
        self._bases: dict[int, tuple[int, tuple]] = {}  # buffer id -> the result with its whole content

    def of(self, leaves: list) -> list[Out]:
        """The :class:`Out` of each leaf of the function's result."""
        several = _several(leaves)
        return [
            self._array(x, id(x._buffer) in several) if isinstance(x, TracedArray) else self._other(x) for x in leaves
        ]

    def add(self, value: Value) -> int:
        """The index of the graph's result with ``value``, in memory of its own."""
        if value.op is None or value in self.returns:
            value = self.t.emit("copy", value)
        self.returns.append(value)
        return len(self.returns) - 1

    def _laid_out(self, value: Value, strides) -> tuple[int, tuple]:
        """The index of the graph's result with a new array's elements, and the view steps from there to the array."""
        value, path = laid_out(self.t, value, strides)
        return self.add(value), path

    def _array(self, x: TracedArray, several: bool) -> Out:
        t = self.t
        if x._trace is not t:
            raise TraceError("the function returns a traced array that escaped from another compiled function's trace")
        if id(x) in t.leaf_of:
            return Out("argument", t.leaf_of[id(x)], scalar=number_type(x))
        if self.copies:
            return self._copy(x)
        value, buffer, read_only = x.value, x._buffer, _is_read_only(x)
        path = None if buffer.leaf is None or x._scalar else _view_steps(t, x, self.arg_leaves)
        if buffer.leaf is not None and path is not None:
            return Out("argument", buffer.leaf, read_only=read_only, path=path or (FullView(),))
        steps = _real_steps(t, x, self.arg_leaves)
        if several and steps is not None and id(x) not in self._where:
            if id(buffer) not in self._bases:
                self._bases[id(buffer)] = self._laid_out(buffer.value, strides_of(t, buffer.origin))
            at, permuted = self._bases[id(buffer)]
            return Out("result", at, read_only=read_only, path=(*permuted, *steps))
        if id(x) not in self._where:
            new = buffer.leaf is None and buffer.captured is None  # NumPy allocates: flatten, np.tile(x, 1)
            if new and (shows_argument(value) or (value.op is not None and value.op.row.view and not x._path)):
                value = t.emit("copy", value)
            strides = strides_of_array(t, x)
            at_argument = value.op is None or (not new and shows_argument(value))
            if at_argument and not x._scalar and value.op is not None:
                for at, other in enumerate(self.returns):
                    if _same_view(value, other):  # another array of the same memory
                        return Out("result", at, read_only=read_only, path=(FullView(),))
            self._where[id(x)] = (self.add(value), ()) if at_argument else self._laid_out(value, strides)
        at, path = self._where[id(x)]
        return Out("result", at, scalar=number_type(x), read_only=read_only, path=path)

    def _copy(self, x: TracedArray) -> Out:
        value = x.value
        if value.op is not None and value.op.row.view:
            value = self.t.emit("copy", value)
        return Out("result", self.add(value), scalar=number_type(x))

    def _other(self, x) -> Out:
        t = self.t
        if self.copies and isinstance(x, np.ndarray):
            return self._copy(t.capture(x))
        if isinstance(x, SymInt):
            size = t.canonical(x.size)
            return Out("constant" if isinstance(size, int) else "size", value=size, scalar=int)
        return constant_of(t, t.stand_ins.original(x), self.objects)


def laid_out(t: Trace, value: Value, strides) -> tuple[Value, tuple]:
    """A new array's elements, row-major with dimensions in NumPy's memory order, and the view steps from there to the
    array."""
    order = order_of_new(t, strides, value.shape)
    if order == tuple(range(value.rank)):
        return value, ()
    permute = Permute(order)
    return t.emit("copy", permute.read(t, value)), (permute.inverse(),)


def _same_view(a: Value, b: Value) -> bool:
    """Whether two values are the same view of the same value."""
    while a is not b:
        if a.op is None or b.op is None or not a.op.row.view or (a.op.name, a.op.attrs) != (b.op.name, b.op.attrs):
            return False
        if a.op.results.index(a) != b.op.results.index(b):
            return False
        a, b = a.op.operands[0], b.op.operands[0]
    return True


def _view_steps(t: Trace, x: TracedArray, arg_leaves: list[int]) -> tuple | None:
    """The steps from an argument to its view ``x``, () for all of it. None where the graph can return the view as well
    (nothing writes into the argument, all indices are known) or must (an index is computed). With complex numbers the
    graph works on real and imaginary parts, copies diagonals, and some reshapes depend on a call's strides, so it
    cannot."""
    if x.value is x._buffer.value:
        return ()
    replayed = x._buffer.version or any(isinstance(step, (At, Diagonal)) for step in x._path)
    if not replayed and not _in_parts(t) and x._is_view():
        return None
    return _real_steps(t, x, arg_leaves)


def _in_parts(t: Trace) -> bool:
    """Whether the trace has complex numbers, which compile to real and imaginary parts."""
    values = (v for values in (t.block.args, *(op.results for op in t.block.ops)) for v in values)
    return any(v.dtype is not None and v.dtype.kind == "c" for v in values)


def _real_steps(t: Trace, x: TracedArray, arg_leaves: list[int]) -> tuple | None:
    """A view's steps on real arrays; None where one of its indices is computed."""
    positions = [step.index for step in x._path if isinstance(step, At)]
    if any(index not in t.block.args for index in positions):
        return None
    return at_indices(x._path, {index: arg_leaves[t.block.args.index(index)] for index in positions})


def _several(leaves: list) -> set[int]:
    """The ids of created buffers of which the function returns several views."""
    arrays = {id(x): x for x in leaves if isinstance(x, TracedArray) and not x._scalar}.values()
    created = [id(x._buffer) for x in arrays if x._buffer.leaf is None and x._buffer.captured is None]
    return {buffer for buffer in created if created.count(buffer) > 1}


def _is_read_only(x: TracedArray) -> bool:
    """Whether NumPy makes the array read-only. A reshape of a broadcast is a copy, so writable."""
    found = False
    for step in x._path:
        found = bool(step.read_only) or (found and not isinstance(step, Reshape))
    return found


def number_type(x: TracedArray) -> type | None:
    """The type of the number that ``x`` stands for (np.generic: NumPy's); None for an array."""
    if x._weak is not None:
        return x._weak
    return np.generic if x._scalar else None


def apply_equalities(t: Trace, graph: Graph) -> None:
    """Applies the equalities to the whole graph, so that equal sizes have one symbol."""
    if not t.learned:
        return
    canonical = t.canonical
    for value in graph.args:
        t.refresh(value, canonical)
    graph.layouts = [layout and Layout(tuple(map(canonical, layout.strides)), layout.align) for layout in graph.layouts]
    for op in walk(graph.body):
        for value in op.results:
            t.refresh(value, canonical)
        op.attrs = map_sizes(op.row.attr_types, op.attrs, canonical)


def parameter_names(fn: Callable, static: Sequence[str]) -> list[str]:
    """The function's parameter names. Raises ValueError for a name in ``static`` that is not among them."""
    found = inspect.signature(fn).parameters
    for name in static:
        if name not in found and not any(p.kind is p.VAR_KEYWORD for p in found.values()):
            called = getattr(fn, "__name__", "the function")
            raise ValueError(f"static_argnames: {called} has no parameter '{name}'{nearest(name, found)}")
    return list(found)


def argument_names(fn, tree: trees.Tree) -> list[str]:
    """A name for each leaf of ``fn``'s arguments."""
    code = getattr(getattr(fn, "__func__", fn), "__code__", None)
    names = list(code.co_varnames[: code.co_argcount]) if code else []
    if hasattr(fn, "__func__") and names:
        names = names[1:]
    return [path for name, child in arguments_of(names, tree) for path in child.paths(name)]


def arguments_of(names: Sequence[str], tree: trees.Tree) -> Iterator[tuple[str, trees.Tree]]:
    """The parameter, among these, and the structure of each argument; ``args[k]`` for those beyond the parameters."""
    positional, keyword = tree.children
    for k, child in enumerate(positional.children):
        yield names[k] if k < len(names) else f"args[{k - len(names)}]", child
    for key, child in zip(keyword.keys or (), keyword.children):
        yield str(key), child
