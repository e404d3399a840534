"""Which axis is contiguous in memory, and whether a kernel would read along another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from mlirfuse.analysis.axes import Axes, Axis
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Layout, Value


def innermost(value: Value, axes: Axes, layouts: Mapping[Value, Layout]) -> Axis | None:
    """Return the axis of ``value`` with the smallest stride; ``layouts``: of a graph's arguments, where known."""
    if value in layouts:
        strides: Sequence[sz.Size] = layouts[value].strides
    else:
        given = None if value.op is None else value.op.attrs.get("strides")
        given = given and given[value.op.results.index(value)]
        strides = given or sz.contiguous_strides(value.shape)
    return next((dim[-1] for dim, step in zip(axes.dims(value), strides) if dim and step == 1), None)


def strided(value: Value, along: Axis, axes: Axes, layouts: Mapping[Value, Layout]) -> bool:
    """Whether reading ``value`` along ``along`` is strided."""
    return along in axes.flat(value) and innermost(value, axes, layouts) is not along


def against_memory_order(
    along: Axis,
    sources: Iterable[Value],
    others: Iterable[Value],
    axes: Axes,
    layouts: Mapping[Value, Layout],
    nbytes: Callable[[Value], int],
) -> bool:
    """Whether reading along ``along`` is strided for one of ``sources``, but not for most bytes of ``others``, which
    are read too."""
    if not any(strided(v, along, axes, layouts) for v in sources):
        return False
    others_along = [v for v in others if along in axes.flat(v)]
    return sum(-nbytes(v) if strided(v, along, axes, layouts) else nbytes(v) for v in others_along) > 0
