"""fusion-permute-slices: a concatenation of slices that are all of one tensor, as a permutation of it."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from mlirfuse.ir import sizes as sz
from mlirfuse.ir.builder import Builder
from mlirfuse.ir.graph import Block, Graph, Op, Value
from mlirfuse.passes.base import Pass, become, blocks, register

Digits = tuple[
    tuple[int, int], ...
]  # (extent, stride in elements of the source) of loops over a dimension, outer first


class AffineView(NamedTuple):
    """A value that has elements of the contiguous tensor ``source``, from the element ``offset`` on, where ``dims``
    say; each through the elementwise ops ``computed``: (name, attributes, constant operands, None for the value)."""

    source: Value
    dims: tuple[Digits, ...]
    offset: int
    computed: tuple[tuple[str, tuple, tuple], ...] = ()


@register
class PermuteSlices(Pass):
    """Rewrites a concatenation of slices of one tensor, or of values that ops with constants compute from the slices,
    to a reshape and a permute, if every element of the tensor is in one slice: no operand is tested for, and axes stay
    those of memory. Pixels that become channels are such, and their gradients; so are pairs that are taken apart or
    interleaved. Extents have to be numbers.

    Before::

        %0 = "fusion.slice"(%x) {start = [0, 0], step = [1, 2], size = [8, 4]}     // of 8x8
        %1 = "fusion.slice"(%x) {start = [0, 1], step = [1, 2], size = [8, 4]}
        %2 = "fusion.concatenate"(%0, %1) {axis = 1}

    After::

        %3 = "fusion.reshape"(%x) {shape = [8, 4, 2]}
        %4 = "fusion.permute"(%3) {dims = [0, 2, 1]}
        %2 = "fusion.reshape"(%4) {shape = [8, 8]}
    """

    name = "fusion-permute-slices"

    def run(self, graph: Graph) -> None:
        for block in blocks(graph):
            if any(op.name == "concatenate" for op in block.ops):
                _rewrite_all(block)


def _rewrite_all(block: Block) -> None:
    forms: dict[Value, AffineView] = {}
    for op in list(block.ops):
        if len(op.results) != 1 or op.result.dtype is None or not _numbers(op.result.shape):
            continue
        found = _form(op, forms)
        if found is None:
            continue
        forms[op.result] = found
        order = _order(found) if op.name == "concatenate" else None
        if order is not None:
            _rewrite(block, op, found, order)


def _form(op: Op, forms: dict[Value, AffineView]) -> AffineView | None:
    """The form of the op's result, if it has one."""
    if op.name == "concatenate":
        return _concatenated([forms.get(v) for v in op.operands], op.attrs["axis"])
    if op.row.kind == "elementwise":
        constants = tuple(map(_constant, op.operands))
        form = forms.get(op.operands[constants.index(None)]) if constants.count(None) == 1 else None
        return form and form._replace(computed=(*form.computed, (op.name, tuple(sorted(op.attrs.items())), constants)))
    if op.name == "slice":
        [value] = op.operands
        form = forms.get(value) or _whole(value)
        return form and _sliced(form, op)
    form = forms.get(op.operands[0]) if len(op.operands) == 1 else None
    if form is None:
        return None
    dims = list(form.dims)
    if op.name == "permute":
        dims = [dims[d] for d in op.attrs["dims"]]
    elif op.name == "squeeze":
        dims = [dim for d, dim in enumerate(dims) if d not in op.attrs["axes"]]
    elif op.name == "expand_dims":
        for axis in sorted(op.attrs["axes"]):
            dims.insert(axis, ())
    elif op.name == "reshape":
        split = _regrouped([digit for dim in dims for digit in dim], op.result.shape)
        if split is None:
            return None
        dims = split
    else:
        return None
    return form._replace(dims=tuple(dims))


def _numbers(shape) -> bool:
    return all(isinstance(n, int) and n > 0 for n in shape)


def _constant(value: Value) -> Any:
    """A number that all of ``value`` has, with its type; None where it is computed."""
    op = value.op
    if op is not None and op.name == "broadcast_in_dim" and op.operands[0].rank == 0:
        op = op.operands[0].op
    if op is None or op.name != "constant":
        return None
    return op.attrs["value"].tobytes(), op.attrs["value"], op.result.dtype  # zeros of both signs are equal otherwise


def _whole(value: Value) -> AffineView | None:
    """``value`` as all of itself; None where its extents are no numbers."""
    if value.dtype is None or not _numbers(value.shape):
        return None
    return AffineView(value, tuple(_merged([pair]) for pair in zip(value.shape, sz.contiguous_strides(value.shape))), 0)


def _merged(digits) -> Digits:
    """``digits`` without loops of one step, and with those as one that step through memory as one."""
    out: list[tuple[int, int]] = []
    for n, stride in digits:
        if n != 1 and out and out[-1][1] == n * stride:
            out[-1] = out[-1][0] * n, stride
        elif n != 1:
            out.append((n, stride))
    return tuple(out)


def _sliced(form: AffineView, op: Op) -> AffineView | None:
    """A slice of what has ``form``."""
    dims, offset = [], form.offset
    steps = zip(form.dims, op.attrs["start"], op.attrs["step"], op.result.shape, op.operands[0].shape)
    for dim, start, step, n, all_of_it in steps:
        if n == all_of_it and start == 0 and step == 1:
            dims.append(dim)
        elif len(dim) == 1 and isinstance(start, int):
            offset += start * dim[0][1]
            dims.append(_merged([(n, step * dim[0][1])]))
        else:
            return None
    return form._replace(dims=tuple(dims), offset=offset)


def _regrouped(digits: list[tuple[int, int]], shape) -> list[Digits] | None:
    """``digits`` as dimensions of a reshape; None where it splits them otherwise."""
    left, out = digits[::-1], []
    for extent in shape:
        dim = []
        while extent != 1:
            n, stride = left.pop()
            if extent % n and n % extent:
                return None
            taken = min(n, extent)
            dim.append((taken, stride * (n // taken)))
            extent //= taken
            if n != taken:
                left.append((n // taken, stride))
        out.append(_merged(dim))
    return out


def _concatenated(forms: list[AffineView | None], axis: int) -> AffineView | None:
    """The form of a concatenation of values with ``forms``; None where they are not equal but for regular offsets."""
    first = forms[0]
    if first is None or any(form is None or form._replace(offset=0) != first._replace(offset=0) for form in forms):
        return None
    outer = _steps([form.offset for form in forms if form is not None])
    if outer is None:
        return None
    dims = [*first.dims[:axis], _merged([*outer, *first.dims[axis]]), *first.dims[axis + 1 :]]
    return first._replace(dims=tuple(dims))


def _steps(offsets: list[int]) -> list[tuple[int, int]] | None:
    """The loops that go through ``offsets`` from the first on, outer first; None where there are none."""
    if len(offsets) == 1:
        return []
    step, most = offsets[1] - offsets[0], len(offsets)
    count = next((k for k in range(2, most) if offsets[k] - offsets[k - 1] != step), most)
    regular = most % count == 0 and all(offsets[k] == offsets[k - k % count] + k % count * step for k in range(most))
    outer = _steps(offsets[::count]) if regular else None
    return None if outer is None else [*outer, (count, step)]


def _order(form: AffineView) -> list[tuple[int, int]] | None:
    """The loops in the source's order, if they go over each of its elements once; None if not."""
    order = sorted((digit for dim in form.dims for digit in dim), key=lambda digit: -digit[1])
    counts = [n for n, _ in order]
    strides = [math.prod(counts[k + 1 :]) for k in range(len(counts))]
    fits = form.offset == 0 and math.prod(counts) == form.source.numel and strides == [s for _, s in order]
    return order if fits else None


def _rewrite(block: Block, op: Op, form: AffineView, order: list[tuple[int, int]]) -> None:
    """Have ``op`` permute the source of ``form``, whose loops are ``order``, instead."""
    b = Builder(Block(), lambda: op.loc)
    dims = [order.index(digit) for dim in form.dims for digit in dim]
    value = b.reshape(form.source, tuple(n for n, _ in order))
    value = b.op("reshape", b.permute(value, dims), shape=op.result.shape)
    for name, attrs, constants in form.computed:
        operands = [
            value if found is None else b.broadcast_to(b.constant(*found[1:]), value.shape) for found in constants
        ]
        value = b.op(name, *operands, **dict(attrs))
    become(block, op, b.block.ops)
