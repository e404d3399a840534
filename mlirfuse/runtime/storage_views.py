"""Graphs with tensors that kernels do not support as they are: complex tensors, compiled as two real ones, which are
interleaved in memory; and float8, compiled as bytes.

The compiled graph takes each complex argument as two real views of its memory, and writes each complex result through
two views of a tensor allocated here. Float8 tensors are viewed as bytes.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence

import numpy as np

from mlirfuse import _native
from mlirfuse.core.errors import UnsupportedError
from mlirfuse.ir import ops as table
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.builder import Builder
from mlirfuse.ir.dtypes import DType
from mlirfuse.ir.graph import Graph, Layout, Op, Value
from mlirfuse.passes import pipelines
from mlirfuse.passes.base import run_pipeline
from mlirfuse.passes.narrow_floats import is_narrow
from mlirfuse.passes.split_complex import is_complex
from mlirfuse.runtime import arrays, extern_ops
from mlirfuse.runtime.executor import Executor
from mlirfuse.runtime.launch_template import result_placement

COMPONENTS = {
    "c": ("re", "im"),
    "n": ("bits",),
}  # of a tensor, by the kind of its type; others have the single one None


def is_split(graph: Graph) -> bool:
    """Whether a graph has such tensors."""
    return is_complex(graph) or is_narrow(graph)


def needed(graph: Graph) -> bool:
    """Whether kernels compute with such tensors in a graph of a NumPy function."""
    return bool(pipelines.complex_kernels(graph)) or is_narrow(graph)


class StorageViews:
    """Converts ``graph``, in place, to one of real tensors.

    ``sources``: the origin of each of its arguments, ("argument" or "created", index, part). ``results``: the origin of
    each result of the original graph, ("argument", "created" or "result", index); "created" are the complex tensors
    ``created``, allocated for each call. ``types``: the float8 types of results that are compiled as bytes.
    ``saturate``: casts to float8 give the largest number for larger ones.
    """

    def __init__(self, graph: Graph, saturate: bool = True):
        self.graph = graph
        self.created: list[Value] = []
        self.results: list[tuple[str, int]] = []
        self.sources: list[tuple[str, int, str | None]] = []
        self.types: dict[int, DType] = {}  # by index among the results of the compiled graph
        self._written = {k for k in graph.aliases.values() if graph.args[k].dtype.kind == "c"}
        for k, value in enumerate(graph.args):
            parts = COMPONENTS.get(value.dtype.kind, (None,))
            self.sources += [("argument", k, component) for component in parts]
        result_index = 0
        kept: list[Value] = []
        aliases: dict[int, int] = {}
        written: list[tuple[int, int]] = []
        for k, value in enumerate(graph.returns):
            parts = COMPONENTS.get(value.dtype.kind, (None,))
            if k in graph.aliases:
                aliases[len(kept)] = graph.aliases[k]
                self.results.append(("argument", graph.aliases[k]))
            elif value in graph.args:
                self.results.append(("argument", graph.args.index(value)))
                continue
            elif len(parts) == 1:
                self.results.append(("result", result_index))
                if value.dtype.kind == "n":
                    self.types[result_index] = value.dtype
            else:
                self.results.append(("created", len(self.created)))
                written.append((result_index, len(self.created)))
                self.created.append(value)
            kept.append(value)
            result_index += len(parts)
        graph.body.returns, graph.aliases = kept, aliases
        for op in graph.ops:
            if table.TABLE[op.name].calls and any(v.dtype.kind == "n" for v in op.operands):
                types = tuple(v.dtype if v.dtype.kind == "n" else None for v in op.operands)
                op.attrs["function"] = functools.partial(_called_with_floats, op.attrs["function"], types)
            given, created = ([v.dtype.kind == "c" for v in values] for values in (op.operands, op.results))
            if not any(given + created):
                continue
            if (op.row.kind == "library" and not op.row.calls) or (op.row.kind == "scan" and op.name != "cumsum"):
                _make_call(op)
            if op.row.calls:
                op.attrs["function"] = functools.partial(_called_on_components, op.attrs["function"], given)
        run_pipeline([graph], pipelines.to_real_tensors(saturate))
        for result_index, index in written:
            value = self.created[index]
            for n, component in enumerate(("re", "im")):
                graph.aliases[result_index + n] = len(graph.args)
                graph.parts[len(graph.args)] = component
                self.sources.append(("created", index, component))
                strides = tuple(sz.mul(s, 2) for s in sz.contiguous_strides(value.shape))
                graph.layouts.append(Layout(strides, value.dtype.real.bytes))
                graph.body.args.append(Value(value.dtype.real, value.shape))
        builder = Builder(graph.body)
        for result_index in graph.aliases:  # a value that is also returned elsewhere needs a copy of its own
            if graph.returns.count(graph.returns[result_index]) > 1:
                graph.returns[result_index] = builder.op("copy", graph.returns[result_index])

    def make(self, leaves: Sequence, env: dict[str, int]) -> list:
        """Return new arrays for results that are written through two views."""
        return self._maker(leaves, env)(leaves)

    def _maker(self, leaves: Sequence, env: dict[str, int]) -> Callable[[Sequence], list]:
        """Return :meth:`make` for calls with the signature of ``leaves`` and these sizes."""
        types = [(tuple(sz.substitute(n, env) for n in v.shape), v.dtype) for v in self.created]
        if _native.numpy_only(leaves):
            numpys = [(shape, dtype.numpy) for shape, dtype in types]
            return lambda arguments: [np.empty(shape, dtype) for shape, dtype in numpys]

        def make(arguments: Sequence) -> list:
            like = extern_ops.like(arguments)
            return [_empty(shape, dtype, like) for shape, dtype in types]

        return make

    def arguments(self, leaves: Sequence, created: list) -> list:
        """Return the arrays and numbers of the graph's arguments."""
        origins = {"argument": leaves, "created": created}
        return [_component(origins[what][k], component) for what, k, component in self.sources]

    def record(
        self,
        executor: Executor,
        leaves,
        leaf_of_arg: list[int],
        env: dict[str, int],
        finish,
        finisher_leaves=(),
        read: Callable[[list], list] = list,
    ):
        """Return the Record of calls with the signature of ``leaves`` and these sizes, which ``executor`` runs.
        ``finish`` gets the results of the original graph and, after them, the leaves ``finisher_leaves``. ``read``:
        applied to the arrays first."""
        graph, count = self.graph, len(leaf_of_arg)
        where = list(range(len(graph.args)))
        run = _native.Dispatcher(lambda given: executor.record(list(given), where, env, list))
        make = self._maker(leaves, env)

        def call(given: list):
            arguments = read(given[:count])
            created, inputs = make(arguments), arguments
            if self._written:
                inputs = [arrays.resolved(x) if k in self._written else x for k, x in enumerate(arguments)]
            results = run(*self.arguments(inputs, created)) if graph.returns else []
            for k in self._written:
                if inputs[k] is not arguments[k]:  # a copy of torch's conjugated view
                    arguments[k].copy_(inputs[k])
            return finish(self.results_of(arguments, created, results) + given[count:])

        device, proto = result_placement(leaves, None)
        outputs = [("arg", leaf) for leaf in [*leaf_of_arg, *finisher_leaves]]
        return _native.Record(0, [], [], [], outputs, 0, device, call, (self, executor), proto)

    def results_of(self, leaves: Sequence, created: list, results: list) -> list:
        """Return the results of the original graph, from those of the converted one."""
        typed = [_typed(r, self.types.get(k)) for k, r in enumerate(results)] if self.types else results
        origins = {"argument": leaves, "created": created, "result": typed}
        return [origins[what][k] for what, k in self.results]


def _component(array, component: str | None):
    """Return the real or the imaginary numbers of a complex array as a view; of a number, that part."""
    if component is None:
        return array
    if array.__class__ is np.ndarray and component != "bits":
        return array.imag if component == "im" else array.real
    library = arrays.framework(array)
    if library is None:
        return array.imag if component == "im" else array.real
    if component == "bits":
        return array.view(sys.modules["torch"].uint8 if library == "torch" else np.uint8)
    if library == "torch":
        return sys.modules["torch"].view_as_real(arrays.resolved(array)).select(-1, int(component == "im"))
    if library == "own":
        raise UnsupportedError(
            "complex arrays of this framework are not supported: pass torch tensors, or CuPy or NumPy arrays"
        )
    return array.imag if component == "im" else array.real


def _make_call(op: Op) -> None:
    """Turn an extern op, or a scan that does not apply to each part separately, into a call, to which the pass gives
    two real operands for a complex one."""
    function = extern_ops.function(Op(op.name, op.operands, op.attrs, op.results), {})
    attrs = {
        "callee": op.name,
        "dtypes": tuple(v.dtype for v in op.results),
        "shapes": tuple(v.shape for v in op.results),
        "function": lambda *given: function(extern_ops.like(given), *given),
    }
    op.name, op.attrs = "call", {**table.TABLE["call"].attrs, **attrs}


def _called_with_floats(function: Callable[..., list], types: tuple[DType | None, ...], *operands) -> list:
    """Call a library function that expects float8, where the compiled graph has bytes."""
    return function(*map(_typed, operands, types))


def _called_on_components(function: Callable[..., list], pairs: list[bool], *operands) -> list:
    """Call a library function that expects complex tensors, where the compiled graph has two real tensors for each.
    ``pairs``: which of the function's operands are complex."""
    parts = iter(operands)
    out: list = []
    for array in function(*(_combined(next(parts), next(parts)) if pair else next(parts) for pair in pairs)):
        complex_ = array.is_complex() if arrays.framework(array) == "torch" else array.dtype.kind == "c"
        out += [_component(array, component) for component in ("re", "im")] if complex_ else [array]
    return out


def _combined(real, imaginary):
    """Return the complex array of these parts."""
    if arrays.framework(real) == "torch":
        return sys.modules["torch"].complex(real, imaginary)
    out = np.empty(real.shape, np.result_type(real.dtype, np.complex64))
    out.real, out.imag = real, imaginary
    return out


def _typed(array, dtype: DType | None):
    """Return bytes as a view of their float8 type."""
    if dtype is None:
        return array
    return array.view(arrays.torch_dtype(dtype) if arrays.framework(array) == "torch" else dtype.numpy)


def _empty(shape, dtype, like):
    library = arrays.framework(like)
    if library == "torch":
        return sys.modules["torch"].empty(shape, dtype=arrays.torch_dtype(dtype), device=like.device)
    if library == "cupy":
        import cupy

        return cupy.empty(shape, dtype.numpy)
    return np.empty(shape, dtype.numpy)
