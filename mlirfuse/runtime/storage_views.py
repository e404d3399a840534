"""Graphs with tensors that no kernel computes with as they are: complex ones, compiled as real ones on the parts, which
lie in memory by turns; and floats of a byte, compiled as bytes.

What is compiled takes each complex argument as two real views of its memory, and writes each complex result through two
views of a tensor that is made here. Floats of a byte are seen as bytes.
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
from mlirfuse.runtime.launch_template import place_of

COMPONENTS = {"c": ("re", "im"), "n": ("bits",)}  # of a tensor, by the kind of its type; others have one, None


def is_split(graph: Graph) -> bool:
    """Whether a graph has such tensors."""
    return is_complex(graph) or is_narrow(graph)


class StorageViews:
    """``graph``, changed in place into one of real tensors.

    ``sources``: where each of its arguments comes from, ("argument" or "made", index, part). ``results``: where each
    result of the graph as it was is, ("argument", "made" or "result", index); what is made are the complex tensors
    ``created``. ``types``: what results of bytes are.
    """

    def __init__(self, graph: Graph):
        self.graph = graph
        self.created: list[Value] = []
        self.results: list[tuple[str, int]] = []
        self.sources: list[tuple[str, int, str | None]] = []
        self.types: dict[int, DType] = {}  # by position among the results of what is compiled
        for k, value in enumerate(graph.args):
            parts = COMPONENTS.get(value.dtype.kind, (None,))
            self.sources += [("argument", k, component) for component in parts]
        position = 0
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
                self.results.append(("result", position))
                if value.dtype.kind == "n":
                    self.types[position] = value.dtype
            else:
                self.results.append(("made", len(self.created)))
                written.append((position, len(self.created)))
                self.created.append(value)
            kept.append(value)
            position += len(parts)
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
        run_pipeline([graph], pipelines.to_real_tensors())
        for position, index in written:
            value = self.created[index]
            for n, component in enumerate(("re", "im")):
                graph.aliases[position + n] = len(graph.args)
                graph.parts[len(graph.args)] = component
                self.sources.append(("made", index, component))
                strides = tuple(sz.mul(s, 2) for s in sz.contiguous_strides(value.shape))
                graph.layouts.append(Layout(strides, value.dtype.real.bytes))
                graph.body.args.append(Value(value.dtype.real, value.shape))
        builder = Builder(graph.body)
        for position in graph.aliases:  # what is also given back otherwise is written from a value of its own
            if graph.returns.count(graph.returns[position]) > 1:
                graph.returns[position] = builder.op("copy", graph.returns[position])

    def make(self, leaves: Sequence, env: dict[str, int]) -> list:
        """New arrays for what is written through two views."""
        like = extern_ops.like(leaves)
        return [_empty(tuple(sz.substitute(n, env) for n in v.shape), v.dtype, like) for v in self.created]

    def arguments(self, leaves: Sequence, created: list) -> list:
        """The arrays and numbers of the graph's arguments."""
        whole = {"argument": leaves, "made": created}
        return [_component(whole[what][k], component) for what, k, component in self.sources]

    def record(self, executor: Executor, leaves, leaf_of_arg: list[int], env: dict[str, int], finish, own=(),
               read: Callable[[list], list] = list):  # fmt: skip
        """The Record of calls with the signature of ``leaves`` and these sizes, which ``executor`` runs. ``finish``
        gets the results of the graph as it was and, behind them, the leaves ``own``. ``read``: what is done to the
        arrays first."""
        graph, count = self.graph, len(leaf_of_arg)
        where = list(range(len(graph.args)))
        run = _native.Dispatcher(lambda given: executor.record(list(given), where, env, list))

        def call(given: list):
            arguments = read(given[:count])
            created = self.make(arguments, env)
            results = run(*self.arguments(arguments, created)) if graph.returns else []
            return finish(self.results_of(arguments, created, results) + given[count:])

        device, proto = place_of(leaves, None)
        outputs = [("arg", leaf) for leaf in [*leaf_of_arg, *own]]
        return _native.Record(0, [], [], [], outputs, 0, device, call, (self, executor), proto)

    def results_of(self, leaves: Sequence, created: list, results: list) -> list:
        """The results of the graph as it was, from those of this one."""
        typed = [_typed(r, self.types.get(k)) for k, r in enumerate(results)]
        whole = {"argument": leaves, "made": created, "result": typed}
        return [whole[what][k] for what, k in self.results]


def _component(array, component: str | None):
    """The real numbers of a complex array, or the imaginary ones, as a view; of a number, that part."""
    if component is None:
        return array
    kind = arrays.framework(array)
    if kind is None:
        return array.imag if component == "im" else array.real
    if component == "bits":
        return array.view(sys.modules["torch"].uint8 if kind == "torch" else np.uint8)
    if kind == "torch":
        return sys.modules["torch"].view_as_real(array.resolve_conj()).select(-1, int(component == "im"))
    if kind == "own":
        raise UnsupportedError(
            "complex arrays of this framework are not supported: pass torch tensors, or CuPy or NumPy arrays"
        )
    return array.imag if component == "im" else array.real


def _make_call(op: Op) -> None:
    """Makes a call of a library's op, or of a scan that is not one of each part, which the pass gives two real operands
    for a complex one."""
    function = extern_ops.function(Op(op.name, op.operands, op.attrs, op.results), {})
    attrs = {
        "callee": op.name,
        "dtypes": tuple(v.dtype for v in op.results),
        "shapes": tuple(v.shape for v in op.results),
        "function": lambda *given: function(extern_ops.like(given), *given),
    }
    op.name, op.attrs = "call", {**table.TABLE["call"].attrs, **attrs}


def _called_with_floats(function: Callable[..., list], types: tuple[DType | None, ...], *operands) -> list:
    """A library's call, where what is compiled has bytes for floats of a byte."""
    return function(*map(_typed, operands, types))


def _called_on_components(function: Callable[..., list], pairs: list[bool], *operands) -> list:
    """A library's call, where what is compiled has two real tensors for each complex one. ``pairs``: which of the
    function's operands are complex."""
    parts = iter(operands)
    out: list = []
    for array in function(*(_joined(next(parts), next(parts)) if pair else next(parts) for pair in pairs)):
        complex_ = array.is_complex() if arrays.framework(array) == "torch" else array.dtype.kind == "c"
        out += [_component(array, component) for component in ("re", "im")] if complex_ else [array]
    return out


def _joined(real, imaginary):
    """The complex array of these parts."""
    if arrays.framework(real) == "torch":
        return sys.modules["torch"].complex(real, imaginary)
    out = np.empty(real.shape, np.result_type(real.dtype, np.complex64))
    out.real, out.imag = real, imaginary
    return out


def _typed(array, dtype: DType | None):
    """Bytes as what they are."""
    if dtype is None:
        return array
    return array.view(arrays.torch_dtype(dtype) if arrays.framework(array) == "torch" else dtype.numpy)


def _empty(shape, dtype, like):
    kind = arrays.framework(like)
    if kind == "torch":
        return sys.modules["torch"].empty(shape, dtype=arrays.torch_dtype(dtype), device=like.device)
    if kind == "cupy":
        import cupy

        return cupy.empty(shape, dtype.numpy)
    return np.empty(shape, dtype.numpy)
