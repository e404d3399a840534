"""Tracing: a Python function runs once on stand-ins for its arguments, and what it does to them is written down as a
graph.

The stand-ins are :class:`~mlirfuse.frontend.numpy.traced_array.TracedArray` for an array,
:class:`~mlirfuse.frontend.numpy.traced_scalar.TracedScalar` for a number known only at run time, and
:class:`~mlirfuse.frontend.numpy.symint.SymInt` for what ``x.shape`` holds. Sizes stay symbolic until the function
decides something by them; then the decision is recorded as a
:class:`~mlirfuse.runtime.signature.SizeGuard` under which the trace holds. How NumPy's functions become ops
is in :mod:`mlirfuse.frontend.numpy.functions` and :mod:`mlirfuse.frontend.numpy.ufunc_rules`.
"""

from __future__ import annotations

import enum
import types
from dataclasses import dataclass

import numpy as np

from mlirfuse.core.errors import TraceError
from mlirfuse.frontend import tree as trees
from mlirfuse.frontend.numpy import functions  # noqa: F401  (gives traced arrays their operators and functions)
from mlirfuse.frontend.numpy.captures import Captured, ways_to
from mlirfuse.frontend.numpy.effects import SideEffect, Snapshot, Stop
from mlirfuse.frontend.numpy.objects import PLAIN_TYPES, namespace_of
from mlirfuse.frontend.numpy.real_views import Position
from mlirfuse.frontend.numpy.rebuild import StandIns
from mlirfuse.frontend.numpy.scope import roots_of, scope_of
from mlirfuse.frontend.numpy.source import fail
from mlirfuse.frontend.numpy.symint import SymInt
from mlirfuse.frontend.numpy.trace_state import Trace, in_progress
from mlirfuse.frontend.numpy.traced import Out, Traced
from mlirfuse.frontend.numpy.traced_array import Buffer, TracedArray
from mlirfuse.frontend.numpy.traced_scalar import LeafArray, LeafScalar
from mlirfuse.frontend.numpy.views import At, Broadcast, Diagonal, ReadOnly, Reshape
from mlirfuse.ir.graph import Graph, Layout, Value, walk
from mlirfuse.ir.ops import map_sizes
from mlirfuse.runtime.signature import ArgSpec, Static


def trace(
    fn,
    leaves,
    tree: trees.Tree,
    name: str | None = None,
    aliases: dict[int, int] | None = None,
    most_ops: int | None = None,
    checks_positions: bool = True,
) -> Traced:
    """Traces ``fn`` on arguments whose tree is ``((positional…), {keyword…})``.

    ``aliases`` maps a leaf to an earlier one that is the same memory in the same layout. ``checks_positions``: kernels
    are to check those that arrays are read and written at. Raises TraceError, ShapeError,
    UnsupportedError, :class:`TooLong` for more than ``most_ops``, or what the function itself raises.
    """
    t = Trace(most_ops)
    t.checks_positions = checks_positions
    given = stand_ins_for(t, fn, leaves, tree, aliases)
    replaced, stand_ins, arg_leaves, arrays = t.stand_ins, given.stand_ins, given.leaves, given.arrays
    device, objects = t.device, given.objects
    position = {leaf: k for k, leaf in enumerate(arg_leaves)}
    args, kwargs = tree.unflatten(stand_ins)
    out_leaves, out_tree = trees.flatten(run(fn, t, replaced, args, kwargs))
    returns: list[Value] = []
    where: dict[int, int] = {}
    identity = {id(stand_in): leaf for leaf, stand_in in enumerate(stand_ins) if isinstance(stand_in, TracedArray)}

    def add(value: Value, own: bool) -> int:
        if own and (value.op is None or value in returns):
            value = t.emit("copy", value)
        returns.append(value)
        return len(returns) - 1

    several = _several(out_leaves)
    bases: dict[int, int] = {}  # by a buffer's id, the result that is all of it
    outs = []
    for x in out_leaves:
        if isinstance(x, TracedArray):
            if x._trace is not t:
                raise TraceError(
                    "the function returns a traced array of another compiled function's trace: it was kept from there"
                )
            if id(x) in identity:
                outs.append(Out("argument", identity[id(x)], scalar=_number_type(x)))
                continue
            value, buffer = x.value, x._buffer
            path = None if buffer.leaf is None or x._scalar else _way_to(t, x, arg_leaves)
            if buffer.leaf is not None and path is not None:
                outs.append(Out("view", buffer.leaf, read_only=_is_read_only(x), path=path))
                continue
            if id(buffer) in several and _is_of_steps(x) and id(x) not in where:
                if id(buffer) not in bases:
                    bases[id(buffer)] = add(buffer.value, True)
                kind = "part" if x._path else "result"
                outs.append(Out(kind, bases[id(buffer)], read_only=_is_read_only(x), path=x._path))
                continue
            if id(x) not in where:
                if (
                    buffer.leaf is None and buffer.captured is None and _in_argument(value)
                ):  # new memory in NumPy: flatten, np.tile(x, 1)
                    value = t.emit("copy", value)
                where[id(x)] = add(value, True)
            outs.append(Out("result", where[id(x)], scalar=_number_type(x), read_only=_is_read_only(x)))
        elif isinstance(x, SymInt):
            size = t.canonical(x.size)
            outs.append(
                Out("constant", value=size, scalar=int)
                if isinstance(size, int)
                else Out("size", value=size, scalar=int)
            )
        else:
            outs.append(constant_of(t, replaced.original(x), objects))
    graph_aliases, mutated = {}, {}
    for leaf, array in arrays.items():
        buffer = array._buffer
        if buffer.version and buffer.leaf == leaf and buffer.value is not t.block.args[position[leaf]]:
            result_position = add(buffer.value, True)
            graph_aliases[result_position] = position[leaf]
            mutated[leaf] = result_position
    t.block.returns = returns
    graph = Graph(
        name or getattr(fn, "__name__", "f").replace("<", "").replace(">", ""),
        t.block,
        t.layouts,
        t.scalars,
        graph_aliases,
        device,
    )
    _finish(t, graph)
    captured = [Captured(array, paths) for array, _, paths in t.captured.values()]
    return Traced(
        graph,
        out_tree,
        outs,
        t.static_leaves,
        list(t.guards),
        t.equalities,
        mutated,
        captured,
        t.symbols,
        arg_leaves,
        {k: sorted(v) for k, v in t.scalar_ranges.items()},
        t.index_ranges,
        scope_of(t, {id(o.value.array) for o in outs if o.kind == "outside"}),
        tuple(t.warnings),
    )


@dataclass
class Arguments:
    """What stands for a call's arguments: ``stand_ins`` for its leaves, ``leaves`` of the block's arguments, ``arrays``
    by leaf; ``objects``: arguments whose attributes the function may read."""

    stand_ins: list
    leaves: list[int]
    arrays: dict[int, TracedArray]
    objects: list


def stand_ins_for(t: Trace, fn, leaves, tree: trees.Tree, aliases: dict[int, int] | None = None) -> Arguments:
    """Stand-ins for arguments with the specifications ``leaves``, and what the trace reads around ``fn``."""
    replaced = t.stand_ins = StandIns()
    paths = argument_names(fn, tree)
    stand_ins: list = []
    arg_leaves: list[int] = []
    arrays: dict[int, TracedArray] = {}
    device = "cpu"
    for leaf, spec in enumerate(leaves):
        if isinstance(spec, Static):
            stand_ins.append(replaced.of(spec.value))
            continue
        arg_leaves.append(leaf)
        value = t.argument(spec, paths[leaf] or None)
        if spec.device != "cpu":
            device = spec.device
        if spec.scalar and not spec.writable:
            stand_ins.append(LeafScalar(t, value, spec, leaf))
            continue
        origin = (aliases or {}).get(leaf)
        if (
            origin in arrays
        ):  # the same memory: one value, so that what is written through one is read through the other
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
    t.device = device
    if device != "cpu":
        for leaf, spec in enumerate(leaves):
            if isinstance(spec, ArgSpec) and not spec.scalar and spec.device != device:
                fail(
                    TraceError,
                    f"arguments on two devices: '{paths[leaf]}' is on {spec.device}, others on "
                    f"{device}. Move them to one; only "
                    "numbers and 0-d arrays may stay on the host",
                )
    statics = [spec.value for spec in leaves if isinstance(spec, Static)]
    objects = [
        value
        for value in statics
        if not isinstance(value, PLAIN_TYPES) or (isinstance(value, type) and namespace_of(value) is not None)
    ]
    t.roots, t.words = roots_of(fn, objects)
    return Arguments(stand_ins, arg_leaves, arrays, objects)


def run(fn, t: Trace, replaced: StandIns, args, kwargs):
    """What ``fn`` gives for the stand-ins. Raises :class:`SideEffect`, everything as it was before, where it does what
    has to happen at every call."""
    given, shape = trees.flatten((args, kwargs))
    functions_read = [value for _, _, _, value in t.roots if isinstance(value, types.FunctionType)]
    codes = [f.__code__ for f in (getattr(fn, "__func__", fn), *functions_read) if isinstance(f, types.FunctionType)]
    before = Snapshot([(name, value) for name, _, _, value in t.roots], codes)
    failure, problem, result = None, None, None
    try:
        with in_progress(t):
            result = replaced.of(fn)(*args, **kwargs)
    except Stop as stopped:
        problem = str(stopped)
    except BaseException as error:
        failure = error
    written, changed = replaced.written(), before.restore()
    if failure is not None and not isinstance(failure, Exception):  # an interrupt, which may come midway in a copy
        raise failure
    if problem is None and (written or changed):
        problem = f"it changes {written or changed}, which has to happen at every call"
    if problem is None and failure is None:
        kept, now = trees.flatten((args, kwargs))
        if now != shape or any(a is not b for a, b in zip(kept, given)):
            problem = "it changes a list or dict that is an argument"
    if problem is not None:
        raise SideEffect(f"{getattr(fn, '__name__', 'the function')} cannot be compiled: {problem}") from None
    if failure is not None:
        raise failure
    return result


_CONSTANT_TYPES = (
    int,
    float,
    complex,
    bool,
    str,
    bytes,
    type(None),
    type(Ellipsis),
    np.generic,
    np.dtype,
    np.ufunc,
    type,
    slice,
    range,
    frozenset,
    enum.Enum,
    types.BuiltinFunctionType,
    types.ModuleType,
)


def constant_of(t: Trace, x, objects) -> Out:
    """A leaf of the result that is not traced: an object from outside is given as it is there at each call, an array
    that the function made is made anew. Raises :class:`SideEffect` for other objects that it made."""
    if isinstance(x, _CONSTANT_TYPES) or any(x is value for value in objects):
        return Out("constant", value=x)
    if any(value is x for _, _, _, value in t.roots) and not isinstance(x, np.ndarray):
        return Out("constant", value=x)
    _, paths = ways_to(x, t.roots)
    if paths:
        return Out("outside", value=Captured(x, paths))
    if type(x) is np.ndarray:
        return Out("constant", value=x)
    if isinstance(x, types.CoroutineType):
        x.close()  # or Python warns that nobody has awaited it
    raise SideEffect(f"the function makes a {type(x).__name__} and returns it, which has to happen at every call")


def _in_argument(value: Value) -> bool:
    """Whether an array of these elements could be a view of an argument."""
    while value.op is not None and value.op.row.view:
        value = value.op.operands[0]
    return value.op is None


def _way_to(t: Trace, x: TracedArray, arg_leaves: list[int]) -> tuple | None:
    """The steps from an argument to a view of it, () for all of it; None where the graph may give the view as well, or
    has to: nothing writes into the argument and all positions are known, or one is computed."""
    if x.value is x._buffer.value:
        return ()
    positions = [step for step in x._path if isinstance(step, At)]
    if not x._buffer.version and not positions:
        return None
    if any(step.index not in t.block.args for step in positions):
        return None
    leaf = lambda step: arg_leaves[t.block.args.index(step.index)]  # noqa: E731
    return tuple(Position(step.axis, leaf(step)) if isinstance(step, At) else step for step in x._path)


def _is_of_steps(x: TracedArray) -> bool:
    """Whether ``x`` is a view by steps that the sizes tell."""
    return not any(isinstance(step, At) for step in x._path)


def _several(leaves: list) -> set[int]:
    """The ids of the buffers that the function has made and of which it returns several views."""
    arrays = {id(x): x for x in leaves if isinstance(x, TracedArray) and not x._scalar}.values()
    made = [id(x._buffer) for x in arrays if x._buffer.leaf is None and x._buffer.captured is None]
    return {buffer for buffer in made if made.count(buffer) > 1}


def _is_read_only(x: TracedArray) -> bool:
    """Whether NumPy lets nobody write into the array. What it reshapes of repeated elements is a copy."""
    found = False
    for step in x._path:
        found = isinstance(step, (Broadcast, Diagonal, ReadOnly)) or (found and not isinstance(step, Reshape))
    return found


def _number_type(x: TracedArray) -> type | None:
    if x._weak is not None:
        return x._weak
    return np.generic if x._scalar else None


def _finish(t: Trace, graph: Graph) -> None:
    """Writes the equalities into the whole graph, so that equal sizes are one symbol everywhere."""
    if not t.learned:
        return
    canonical = t.canonical
    for value in graph.args:
        t._refresh(value)
    graph.layouts = [layout and Layout(tuple(map(canonical, layout.strides)), layout.align) for layout in graph.layouts]
    for op in walk(graph.body):
        for value in op.results:
            t._refresh(value)
        op.attrs = map_sizes(op.row.attr_types, op.attrs, canonical)


def argument_names(fn, tree: trees.Tree) -> list[str]:
    """What to call each leaf of the arguments of ``fn``."""
    code = getattr(getattr(fn, "__func__", fn), "__code__", None)
    names = list(code.co_varnames[: code.co_argcount]) if code else []
    if hasattr(fn, "__func__") and names:
        names = names[1:]
    positional, keyword = tree.children
    out = []
    for k, child in enumerate(positional.children):
        out += child.paths(names[k] if k < len(names) else f"args[{k - len(names)}]")
    for key, child in zip(keyword.keys or (), keyword.children):
        out += child.paths(str(key))
    return out
