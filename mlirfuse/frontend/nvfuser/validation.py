"""``fd.validate``: compares a fusion's outputs with the op table's NumPy references in double precision.

Tolerances follow from each output's dtype and the number of elements reduced into it; where these are exceeded, from
the effect of the definition's own roundings: the reference runs again with each value rounded to its dtype in the
definition. A correct output is about as far from the exact reference as that one.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mlirfuse.frontend.nvfuser.program import DefinitionProgram
from mlirfuse.frontend.nvfuser.replay import symbol_values
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import interpreter
from mlirfuse.ir import ops as table
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.builder import Builder
from mlirfuse.ir.dtypes import DType
from mlirfuse.ir.graph import Block, Graph, Op, Value
from mlirfuse.runtime import arrays as frameworks

_WIDE = {dt.f16: dt.f64, dt.bf16: dt.f64, dt.f32: dt.f64, dt.c64: dt.c128}
_TOLERANCE = {dt.f64: 1e-11, dt.f32: 2e-5, dt.f16: 4e-3, dt.bf16: 3e-2, dt.c64: 2e-5, dt.c128: 1e-11}
_SPREAD = 4  # the factor by which an output's error may exceed that of the rounded reference


def _wide(attribute: Any) -> Any:
    """One or several dtypes, widened to double precision."""
    if isinstance(attribute, (tuple, list)):
        return type(attribute)(map(_wide, attribute))
    return _WIDE.get(attribute, attribute) if isinstance(attribute, DType) else attribute


def widened(graph: Graph, rounded: bool = False) -> Graph:
    """``graph`` with all floats in double precision; ``rounded``: rounds each result to its original dtype. Random
    numbers are drawn in their original dtype."""
    image: dict[Value, Value] = {v: Value(_wide(v.dtype), v.shape, name=v.name) for v in graph.args}
    body = Block([image[v] for v in graph.args])
    builder = Builder(body)
    for op in graph.ops:
        drawn = table.TABLE[op.name].kind == "random"
        attrs = dict(op.attrs) if drawn else {key: _wide(a) for key, a in op.attrs.items()}
        results = [Value(v.dtype if drawn else _wide(v.dtype), v.shape, name=v.name) for v in op.results]
        body.ops.append(Op(op.name, [image[v] for v in op.operands], attrs, results, loc=op.loc))
        for old, new in zip(op.results, results):
            image[old] = builder.cast(builder.cast(new, old.dtype), _wide(old.dtype)) if rounded or drawn else new
    body.returns = [image[v] for v in graph.returns]
    return Graph(graph.name, body, list(graph.layouts), set(graph.scalars), dict(graph.aliases))


def reference(program: DefinitionProgram, arguments: list, rounded: bool = False) -> list[np.ndarray]:
    """The outputs for ``arguments`` (flattened inputs and computed arguments), in double precision."""
    planned, bindings = program._bind(arguments[: program.inputs], None)
    graph, sizes = widened(planned.graph, rounded), symbol_values(planned, bindings, arguments)
    arrays = [np.array(frameworks.to_numpy(a), dtype=v.dtype.numpy) for a, v in zip(arguments, graph.args)]
    return planned.collect([np.asarray(r) for r in interpreter.run(graph, arrays, sizes)])


def reduced_elements(program: DefinitionProgram, arguments: list) -> int:
    """The number of elements of the largest reduction."""
    planned, bindings = program._bind(arguments[: program.inputs], None)
    largest = 1
    for op in planned.graph.ops:
        if op.name in ("sum", "prod", "mean", "var", "std"):
            axes = op.attrs["axes"]
            extents = [n for k, n in enumerate(op.operands[0].shape) if axes is None or k in axes]
            largest = max(largest, bindings.size(sz.product(extents)))
        elif op.name in ("matmul", "linear", "cumsum", "cumprod"):
            largest = max(largest, bindings.size(op.operands[0].shape[-1]))
    return largest


def compare(program: DefinitionProgram, arguments: list, outputs: list, expected: list) -> None:
    """Raises AssertionError where an output exceeds its tolerance."""
    assert len(outputs) == len(expected), (
        f"Expected {len(outputs)} reference outputs for validation, got {len(expected)}."
    )
    scale = math.sqrt(reduced_elements(program, arguments))
    spreads: list[float] | None = None
    for k, (given, wanted) in enumerate(zip(outputs, expected)):
        a, b = (np.asarray(frameworks.to_numpy(given)), np.asarray(frameworks.to_numpy(wanted)))
        assert a.shape == b.shape, f"output {k} has shape {a.shape}, the reference {b.shape}"
        dtype = dt.of(a.dtype)
        if dtype.kind not in "fc":
            assert np.array_equal(a, b), (
                f"output {k} differs from the reference in {int(np.sum(a != b))} of {a.size} elements"
            )
            continue
        relative, absolute = _TOLERANCE[dtype], _TOLERANCE[dtype] * scale
        if _far(a, b, relative, absolute).any():
            spreads = spreads if spreads is not None else _spreads(program, arguments)
            absolute += _SPREAD * spreads[k]
            far = _far(a, b, relative, absolute)
            if far.any():
                worst = np.nanmax(np.where(far, np.abs(_as_wide(a) - _as_wide(b)), 0))
                raise AssertionError(
                    f"output {k} differs from the reference in {int(far.sum())} of {a.size} elements, by up to "
                    f"{worst:g} (tolerances: absolute {absolute:g}, relative {relative:g})"
                )


def _as_wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.complex128 if dt.of(array.dtype).kind == "c" else np.float64)


def _far(a: np.ndarray, b: np.ndarray, relative: float, absolute: float) -> np.ndarray:
    return ~np.isclose(_as_wide(a), _as_wide(b), rtol=relative, atol=absolute, equal_nan=True)


def _spreads(program: DefinitionProgram, arguments: list) -> list[float]:
    """For each output, the largest error caused by the definition's own roundings."""
    out = []
    for exact, rounded in zip(reference(program, arguments), reference(program, arguments, rounded=True)):
        if exact.dtype.kind not in "fc" or not exact.size:
            out.append(0.0)
            continue
        with np.errstate(invalid="ignore"):
            moved = np.abs(exact - rounded)
        out.append(float(np.max(moved, where=np.isfinite(moved), initial=0.0)))
    return out
