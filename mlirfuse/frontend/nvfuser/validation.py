"""``fd.validate``: a fusion's outputs against a reference that runs the op table's NumPy references in double
precision."""

from __future__ import annotations

import math

import numpy as np

from mlirfuse.frontend.nvfuser.inputs import flatten
from mlirfuse.frontend.nvfuser.program import Program
from mlirfuse.frontend.nvfuser.replay import environment
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import interpreter
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Block, Graph, Op, Value
from mlirfuse.runtime import arrays as frameworks

_WIDE = {dt.f16: dt.f64, dt.bf16: dt.f64, dt.f32: dt.f64, dt.c64: dt.c128}
_TOLERANCE = {dt.f64: 1e-11, dt.f32: 2e-5, dt.f16: 4e-3, dt.bf16: 3e-2, dt.c64: 2e-5, dt.c128: 1e-11}


def _wide(dtype):
    return _WIDE.get(dtype, dtype)


def widened(graph: Graph) -> Graph:
    """``graph`` with every float in double precision."""
    image: dict[Value, Value] = {}

    def value(v: Value) -> Value:
        found = image.get(v)
        if found is None:
            found = image[v] = Value(_wide(v.dtype), v.shape, name=v.name)
        return found

    body = Block([value(v) for v in graph.args])
    for op in graph.ops:
        attrs = {key: _wide(a) if isinstance(a, dt.DType) else a for key, a in op.attrs.items()}
        body.ops.append(Op(op.name, [value(v) for v in op.operands], attrs, [value(v) for v in op.results], loc=op.loc))
    body.returns = [value(v) for v in graph.returns]
    return Graph(graph.name, body, list(graph.layouts), set(graph.scalars), dict(graph.aliases))


def reference(program: Program, inputs) -> list[np.ndarray]:
    """The outputs for ``inputs``, in double precision."""
    flat = flatten(inputs)
    planned, bindings = program._bind(flat, None)
    arguments = flat + (program.computed(flat, None) if program.computes else [])
    graph, sizes = widened(planned.graph), environment(planned, bindings, arguments)
    arrays = [np.array(frameworks.to_numpy(a), dtype=v.dtype.numpy) for a, v in zip(arguments, graph.args)]
    results = [np.asarray(r) for r in interpreter.run(graph, arrays, sizes)]
    return planned.collect(results)


def reduced_elements(program: Program, inputs) -> int:
    """How many elements the largest reduction adds up."""
    planned, bindings = program._bind(flatten(inputs), None)
    largest = 1
    for op in planned.graph.ops:
        if op.name in ("sum", "prod", "mean", "var", "std"):
            axes = op.attrs["axes"]
            extents = [n for k, n in enumerate(op.operands[0].shape) if axes is None or k in axes]
            largest = max(largest, bindings.size(sz.product(extents)))
        elif op.name in ("matmul", "linear", "cumsum", "cumprod"):
            largest = max(largest, bindings.size(op.operands[0].shape[-1]))
    return largest


def compare(program: Program, inputs, outputs, expected) -> None:
    """Raises AssertionError where an output is not as expected."""
    assert len(outputs) == len(expected), (
        f"Expected {len(outputs)} reference outputs for validation, got {len(expected)}."
    )
    scale = math.sqrt(reduced_elements(program, inputs))
    for k, (given, wanted) in enumerate(zip(outputs, expected)):
        a, b = (np.asarray(frameworks.to_numpy(given)), np.asarray(frameworks.to_numpy(wanted)))
        assert a.shape == b.shape, f"output {k} has shape {a.shape}, the reference {b.shape}"
        dtype = dt.of(a.dtype)
        if dtype.kind not in "fc":
            assert np.array_equal(a, b), (
                f"output {k} differs from the reference in {int(np.sum(a != b))} of {a.size} elements"
            )
            continue
        wide = np.complex128 if dtype.kind == "c" else np.float64
        a, b, tolerance = a.astype(wide), b.astype(wide), _TOLERANCE[dtype]
        close = np.isclose(a, b, rtol=tolerance, atol=tolerance * scale, equal_nan=True)
        if not close.all():
            worst = np.nanmax(np.where(close, 0, np.abs(a - b)))
            raise AssertionError(
                f"output {k} differs from the reference in {int((~close).sum())} of {a.size} elements, by up to {worst:g} "
                f"(tolerances: absolute {tolerance * scale:g}, relative {tolerance:g})"
            )
