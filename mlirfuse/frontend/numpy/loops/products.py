"""Products of vectors and matrices in compiled loops, as rules of ``functions.py``."""

from __future__ import annotations

import numpy as np

from mlirfuse.frontend.numpy.loops import arrays
from mlirfuse.frontend.numpy.loops.functions import FUNCTIONS, rule
from mlirfuse.frontend.numpy.loops.values import Array, Number, require
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir.dtypes import DType
from mlirfuse.lowering.emitter import Val


@rule(np.dot, np.matmul, method="dot")
def matmul(c, a, b):
    """The product of two arrays of one or two axes."""
    require(not isinstance(a, Number) and not isinstance(b, Number), "a product with a number")
    left, right = c.array(a), c.array(b)
    ranks = len(left.shape), len(right.shape)
    require(set(ranks) <= {1, 2}, "a product of arrays of more than two axes")
    e = c.code
    kind = dt.of(np.result_type(left.dtype.numpy, right.dtype.numpy))
    require(kind is not dt.bool_, "a product of bools")
    e.fail_if(
        e.cmp("ne", left.shape[-1], right.shape[0]),
        lambda a, b: ValueError(
            "matmul: Input operand 1 has a mismatch in its core dimension 0, with gufunc signature "
            f"(n?,k),(k,m?)->(n?,m?) (size {b} is different from {a})"
        ),
        left.shape[-1],
        right.shape[0],
    )
    if ranks == (1, 1):
        require(kind.bits >= 32, "a product of narrow integers")
        return c.cast(FUNCTIONS[np.sum](c, c.ufunc(np.multiply, [left, right])), kind)  # sums of ints are wider
    if ranks == (2, 2):
        return _of_matrices(c, left, right, kind)
    if ranks == (2, 1):
        if e.known(left.strides[0]) != left.dtype.bytes:
            return _by_rows(c, left, right, kind)
        left, right = right, c.view(left, left.shape[::-1], left.strides[::-1], True)  # columns are contiguous
    created = arrays.dense(e, c.fresh_site(), kind, [right.shape[1]])
    _by_factors(e, left, right, created)
    return created


def _by_factors(e, left: Array, right: Array, into: Array) -> None:
    """Writes the product of a vector or a matrix and a matrix: sums of the second's rows."""
    kind = into.dtype
    arrays.fill(e, into, e.const(0, kind))
    with e.each_of(left.shape) as (*row, k):
        factor = e.cast(arrays.element(e, left, [*row, k]), kind)
        with e.each(right.shape[1]) as column:
            place = arrays.element_pointer(e, into, [*row, column])
            term = e.mul(factor, e.cast(arrays.element(e, right, [k, column]), kind))
            e.store(e.add(e.load(place, kind), term), place)


_SMALL = 4096  # multiplications up to which an inline product beats the call of BLAS


def _of_matrices(c, left: Array, right: Array, kind: DType) -> Array:
    """A matrix times a matrix: large ones by NumPy's BLAS."""
    e = c.code
    if not left.dtype is right.dtype is kind:
        left, right = (c.array(c.cast(v, kind)) if v.dtype is not kind else v for v in (left, right))
    if e.known(right.shape[1]) == 1 and e.known(left.strides[1]) == kind.bytes:
        found = _by_rows(c, left, c.view(right, right.shape[:1], right.strides[:1], False), kind)
        return c.view(found, [*found.shape, e.one], [*found.strides, e.const(kind.bytes, dt.i64)], False)
    created = arrays.dense(e, c.fresh_site(), kind, [left.shape[0], right.shape[1]])

    here = lambda: _by_factors(e, left, right, created)  # noqa: E731
    if not kind.is_inexact:
        here()
        return created
    count = e.count("muli", e.count("muli", left.shape[0], left.shape[1]), right.shape[1])
    e.branch(e.cmp("gt", count, _SMALL), lambda: e.multiply(left, right, created), here)
    return created


_ROWS = 4  # rows multiplied together, so that they share reads of the vector


def _by_rows(c, left: Array, right: Array, kind: DType) -> Array:
    """A matrix times a vector."""
    e = c.code
    created = arrays.dense(e, c.fresh_site(), kind, [left.shape[0]])
    slots = [e.slot(kind.signless) for _ in range(_ROWS)]

    def rows(first: Val, count: int) -> None:
        at = [e.count("addi", first, k) for k in range(count)]
        for slot in slots[:count]:
            e.store(e.const(0, kind), slot)
        with e.each(left.shape[1]) as column:
            x = e.cast(arrays.element(e, right, [column]), kind)
            for row, slot in zip(at, slots):
                term = e.mul(e.cast(arrays.element(e, left, [row, column]), kind), x)
                e.store(arrays.fast_add(e, e.load(slot, kind), term), slot)
        for row, slot in zip(at, slots):
            e.store(e.load(slot, kind), arrays.element_pointer(e, created, [row]))

    whole = e.div(left.shape[0], e.const(_ROWS, dt.i64))
    with e.each(whole) as k:
        rows(e.count("muli", k, _ROWS), _ROWS)
    done = e.count("muli", whole, _ROWS)
    with e.each(e.count("subi", left.shape[0], done)) as k:
        rows(e.count("addi", done, k), 1)
    return created
