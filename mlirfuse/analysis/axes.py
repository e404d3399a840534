"""Iteration axes of a set of ops: which dimensions of which values share a loop.

Every dimension of every value is a list of :class:`Axis` objects, outermost first, whose sizes multiply to the
dimension's extent (none for an extent of 1). An elementwise op merges its operands' axes; a reshape splits axes at its
boundaries; a permute reorders them. So views, however they are chained, cost no index arithmetic: they only name the
same axes differently.

Where two dimensions cannot share axes (``x + x.T`` would need one axis for both dimensions of ``x``), they keep
separate ones, and the kernel maps the index at that use (see :class:`mlirfuse.lowering.kernel.ElementEmitter`). Sharing
axes saves work; correctness does not depend on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mlirfuse.ir import ops
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Op, Value
from mlirfuse.ir.sizes import Size


class Axis:
    """One iteration axis: union-find with splitting. ``into``: the axes that replace it once it is merged or split."""

    __slots__ = ("into", "size", "values")

    def __init__(self, size: Size):
        self.size = size
        self.into: list[Axis] | None = None
        self.values: set[int] = (
            set()
        )  # ids of values that have this axis or are indexed from it: two axes of one value are never merged

    def __repr__(self) -> str:
        return f"Axis({self.size})"


def leaves(axes) -> list[Axis]:
    """Return ``axes`` with merged and split ones replaced by their replacements."""
    out: list[Axis] = []
    for axis in axes:
        if axis.into is None:
            out.append(axis)
            continue
        merged = [axis]
        while len(axis.into) == 1 and axis.into[0].into is not None:
            axis = axis.into[0]
            merged.append(axis)
        ends = leaves(axis.into)  # recursion as deep as the splits, each into smaller axes
        for axis in merged:
            axis.into = ends
        out.extend(ends)
    return out


def _union(a: Axis, b: Axis) -> bool:
    if a is b:
        return True
    if not a.values.isdisjoint(b.values):
        return False
    b.into = [a]
    a.values, fewer = (a.values, b.values) if len(a.values) >= len(b.values) else (b.values, a.values)
    a.values |= fewer
    if isinstance(b.size, int):
        a.size = b.size
    return True


def _split(axis: Axis, outer: Size, inner: Size) -> None:
    axis.into = [Axis(outer), Axis(inner)]
    for part in axis.into:
        part.values |= axis.values


def unify(first, second) -> bool:
    """Merge two lists of axes of the same extent, where possible. Returns whether they are the same afterwards."""
    while True:
        a, b = leaves(first), leaves(second)
        while a and b and a[0] is b[0]:
            del a[0], b[0]
        if not a and not b:
            return True
        if not a or not b:
            return False
        if (len(a) == 1 and len(b) == 1) or a[0].size == b[0].size:
            if not _union(a[0], b[0]):
                return False
        elif len(a) == 1 and all(a[0].values.isdisjoint(x.values) for x in b):
            _split(a[0], b[0].size, sz.product(x.size for x in b[1:]))
        elif len(b) == 1 and all(b[0].values.isdisjoint(x.values) for x in a):
            _split(b[0], a[0].size, sz.product(x.size for x in a[1:]))
        elif (inner := sz.quotient(a[0].size, b[0].size)) is not None:
            _split(a[0], b[0].size, inner)
        elif (inner := sz.quotient(b[0].size, a[0].size)) is not None:
            _split(b[0], a[0].size, inner)
        else:
            return False


def _regroup(flat, shape) -> list[list[Axis]] | None:
    """Return the axes ``flat``, in order, as dimensions of ``shape``, splitting axes at dimension boundaries; None if
    that is impossible."""
    left = list(flat)
    out = []
    for extent in shape:
        dim: list[Axis] = []
        need = extent
        while need != 1:
            left = leaves(left)
            if not left:
                return None
            axis = left[0]
            rest = sz.quotient(need, axis.size)
            if rest is not None:
                dim.append(left.pop(0))
                need = rest
                continue
            inner = sz.quotient(axis.size, need)
            if inner is None:
                return None
            _split(axis, need, inner)
        out.append(dim)
    return out if not leaves(left) else None


def equal_ends(a, b) -> tuple[int, int]:
    """How many items both begin with, and with how many of the others both end."""
    most = min(len(a), len(b))
    first = next((k for k in range(most) if a[k] != b[k]), most)
    return first, next((k for k in range(most - first) if a[-1 - k] != b[-1 - k]), most - first)


class Axes:
    """The axes of ``ops`` and of the values that they use. ``dims(v)`` returns the axes of each dimension.

    ``around``: the axes of the whole program that ``ops`` are taken from. Values then share the axes that they share
    there, though none of ``ops`` connects them. ``arguments``: further values, not used by any op. ``own``: results
    with row-major memory of their own. ``alike``: results that shall have the dimensions of earlier ones.
    """

    def __init__(
        self,
        program: list[Op],
        around: Axes | None = None,
        arguments: Iterable[Value] = (),
        own: Iterable[Value] = (),
        alike: Mapping[Value, Value] | None = None,
    ):
        self._dims: dict[Value, list[list[Axis]]] = {}
        self._parts: dict[tuple, Axis] = {}
        self._first: dict[tuple, Value] = {}  # the first value of equal ops
        self._same: dict[Value, Value] = {}  # of a copy: the first value
        self._around = around
        self._images: dict[Axis, Axis] = {}
        self._written = set(own).difference(value for op in program for value in op.operands)
        self._alike = alike or {}
        self._joined = {op.result for op in program if op.name == "concatenate"}
        for op in program:
            for value in op.operands:
                if value not in self._dims:
                    self._enter(value)
            if around is not None and all(value in around._dims for value in op.results):
                for value in op.results:
                    self._enter(value)
            else:
                self._visit(op)
        for value in arguments:
            if value not in self._dims:
                self._enter(value)

    def _enter(self, value: Value) -> None:
        """Register a value that no op here computes, or whose axes are those of ``around``."""
        if self._around is None or value not in self._around._dims:
            self._fresh(value)
            return
        images = self._images
        dims = self._around.dims(value)
        for axis in self._around.flat(value) if self._alike else ():  # what its axes must not be merged with stays so
            images.setdefault(axis, Axis(axis.size)).values.update(axis.values)
        self._set(value, [[images.setdefault(axis, Axis(axis.size)) for axis in dim] for dim in dims])

    def dims(self, value: Value) -> list[list[Axis]]:
        """Return the axes of each dimension of ``value``, not to be changed."""
        dims = self._dims[value]
        for dim in dims:
            for axis in dim:
                if axis.into is not None:  # merged or split since
                    dims = self._dims[value] = [leaves(dim) for dim in dims]
                    return dims
        return dims

    def flat(self, value: Value) -> list[Axis]:
        """Return all axes of ``value`` in row-major order."""
        return [axis for dim in self.dims(value) for axis in dim]

    def reduced(self, op: Op) -> list[Axis]:
        """Return the axes that the reduction ``op`` reduces."""
        operand = op.operands[0]
        dims = self.dims(operand)
        return [axis for d in ops.axes_of(op.attrs, operand.rank) for axis in dims[d]]

    def scanned(self, op: Op) -> list[Axis]:
        """Return the axes that the scan ``op`` runs along, outermost first."""
        return self.dims(op.result)[op.attrs["axis"] % op.result.rank]

    def adopt(self, value: Value, other: Value) -> None:
        """Give ``value``, a contiguous input used only by its reshape ``other``, the axes of ``other``: all in its last
        dimension, since a step along that one is a step in memory."""
        self._set(value, self._in_memory(value, other))

    def _in_memory(self, value: Value, other: Value) -> list[list[Axis]]:
        """Return dimensions for ``value`` with the axes of ``other``, which has the same elements in the same order:
        all in the last dimension."""
        last = max((d for d, n in enumerate(value.shape) if n != 1), default=-1)
        return [self.flat(other) if d == last else [] for d in range(value.rank)]

    def share(self, value: Value, other: Value) -> None:
        """Give ``value``, the result of a copy of the op that computes ``other``, the same axes."""
        self._set(value, self._dims[other])

    def _set(self, value: Value, dims) -> None:
        dims = [leaves(dim) for dim in dims]
        self._dims[value] = dims
        for dim in dims:
            for axis in dim:
                axis.values.add(id(value))

    def _fresh(self, value: Value) -> None:
        self._set(value, [[] if n == 1 else [Axis(n)] for n in value.shape])

    def _visit(self, op: Op) -> None:
        rule = getattr(self, f"_{op.name}", None)
        kind = op.row.kind
        if op.name == "reshape" and op.result in self._written and op.operands[0] in self._joined:
            # A concatenation is not split up to be stored. Copies that ops use have the dimensions' own axes.
            self._set(op.result, self._in_memory(op.result, op.operands[0]))
        elif op.row.recomputable and self._is_copy(op):
            self.share(op.result, self._same[op.result])
        elif rule is not None:
            rule(op)
        elif kind in ("elementwise", "scan"):
            self._elementwise(op)
        elif kind == "reduce":
            dims, axes = self._dims[op.operands[0]], ops.axes_of(op.attrs, op.operands[0].rank)
            keep = op.attrs.get("keepdims")
            self._set(op.result, [[] if k in axes else dim for k, dim in enumerate(dims) if keep or k not in axes])
        else:
            for result in op.results:
                self._fresh(result)

    def _is_copy(self, op: Op) -> bool:
        """Whether an earlier op computes the same."""
        key = op.name, repr(sorted(op.attrs.items())) if op.attrs else "", *(self._same.get(v, v) for v in op.operands)
        first = self._first.setdefault(key, op.result)
        if first is op.result:
            return False
        self._same[op.result] = first
        return True

    def _elementwise(self, op: Op) -> None:
        # Each result dimension takes over an operand's axes, and the other operands' axes are merged with them where
        # possible. Two dimensions of the result never share an axis: a second use of one gets a fresh axis, mapped at
        # the use.
        dims: list[list[Axis]] = []
        taken: set[Axis] = set()
        for d, extent in enumerate(op.result.shape):
            dim = None
            if extent != 1:
                sources = [self._dims[v][d] for v in op.operands if v.rank and v.shape[d] != 1]
                for source in sources:
                    if not taken.intersection(leaves(source)):
                        dim = source
                        break
                dim = [Axis(extent)] if dim is None else dim
                taken.update(leaves(dim))
            dims.append(dim or [])
        self._set(op.result, self._dims[self._alike[op.result]] if op.result in self._alike else dims)
        for operand in op.operands:
            if operand.rank:
                for d, extent in enumerate(operand.shape):
                    if extent != 1:
                        unify(self._dims[op.result][d], self._dims[operand][d])

    def _broadcast_in_dim(self, op: Op) -> None:
        operand, out = op.operands[0], op.result
        dims = [[] if n == 1 else [Axis(n)] for n in out.shape]
        for d, n, dim in zip(op.attrs["dims"], operand.shape, self._dims[operand]):
            if n != 1:
                dims[d] = dim
        self._set(out, dims)

    def _partial_sum(self, op: Op) -> None:
        dims = self._dims[op.operands[0]]
        kept = [dim for d, dim in enumerate(dims) if d not in op.attrs["axes"]]
        rows = tuple(axis for d in op.attrs["axes"] for axis in leaves(dims[d]))
        parts = self._parts.setdefault(
            (op.attrs["parts"], rows), Axis(op.attrs["parts"])
        )  # one for all sums over the same rows
        self._set(op.result, [[parts], *kept])

    def _reshape(self, op: Op) -> None:
        dims = _regroup(self.flat(op.operands[0]), op.result.shape)
        self._set(op.result, self._reshaped_between(op) if dims is None else dims)

    def _reshaped_between(self, op: Op) -> list[list[Axis]]:
        """The dimensions of a reshape that splits axes otherwise than another: its own, but for those on both sides
        that stay as they are."""
        dims, made = self._dims[op.operands[0]], op.result.shape
        first, last = equal_ends(op.operands[0].shape, made)
        own = [[] if n == 1 else [Axis(n)] for n in made[first : len(made) - last]]
        return [*dims[:first], *own, *dims[len(dims) - last :]]

    def _permute(self, op: Op) -> None:
        dims = self._dims[op.operands[0]]
        self._set(op.result, [dims[d] for d in op.attrs["dims"]])

    def _squeeze(self, op: Op) -> None:
        self._set(op.result, [d for k, d in enumerate(self._dims[op.operands[0]]) if k not in op.attrs["axes"]])

    def _expand_dims(self, op: Op) -> None:
        dims = list(self._dims[op.operands[0]])
        for a in sorted(op.attrs["axes"]):
            dims.insert(a, [])
        self._set(op.result, dims)

    def _slice(self, op: Op) -> None:
        operand, out = op.operands[0], op.result
        whole = zip(operand.shape, out.shape, op.attrs["start"], op.attrs["step"], self._dims[operand])
        self._set(
            out, [dim if n == m and s == 0 and p == 1 else self._indexed(m, operand) for n, m, s, p, dim in whole]
        )

    def _concatenate(self, op: Op) -> None:
        axis = op.attrs["axis"]
        out = op.result
        dims: list[list[Axis]] = []
        for d, n in enumerate(out.shape):
            if n == 1:
                dims.append([])
            elif d == axis:
                dims.append(self._indexed(n, *op.operands))
            else:
                dims.append(self._dims[op.operands[0]][d])
        self._set(out, dims)
        for operand in op.operands[1:]:
            for d, n in enumerate(out.shape):
                if n != 1 and d != axis:
                    unify(self._dims[out][d], self._dims[operand][d])

    def _pad(self, op: Op) -> None:
        operand, out = op.operands[0], op.result
        rows = zip(out.shape, op.attrs["low"], op.attrs["high"], self._dims[operand])
        self._set(out, [dim if lo == 0 and hi == 0 else self._indexed(n, operand) for n, lo, hi, dim in rows])

    def _roll(self, op: Op) -> None:
        operand, axis = op.operands[0], op.attrs["axis"]
        dims = list(self._dims[operand])
        dims[axis] = self._indexed(operand.shape[axis], operand)
        self._set(op.result, dims)

    def _split(self, op: Op) -> None:
        axis = op.attrs["axis"]
        for out in op.results:
            dims = list(self._dims[op.operands[0]])
            dims[axis] = self._indexed(out.shape[axis], op.operands[0])
            self._set(out, dims)

    def _take(self, op: Op) -> None:
        operand, indices = op.operands
        axis = op.attrs["axis"]
        dims = self._dims[operand][:axis] + self._dims[indices] + self._dims[operand][axis + 1 :]
        self._set(op.result, self._apart(dims, op.result.shape))

    def _take_along_axis(self, op: Op) -> None:
        self._set(op.result, self._dims[op.operands[1]])

    def _dot(self, op: Op) -> None:
        (rows, inner), (other, columns) = (self._dims[v] for v in op.operands)
        unify(inner, other)
        self._set(op.result, self._apart([rows, columns], op.result.shape))

    def _index_put_accumulate(self, op: Op) -> None:
        # The result has the operand's axes; the values' rows are the indices', and their columns the operand's.
        operand, _, first, *_ = op.operands
        self._set(op.result, self._dims[operand])
        for indices, values in ops.added_at(op.operands):
            pairs = [(self._dims[operand][d], self._dims[values][d], operand.shape[d]) for d in range(1, operand.rank)]
            rows = [(self._dims[other][0], self._dims[values][0], indices.shape[0]) for other in (indices, first)]
            for one, other, n in [*rows, *pairs]:
                if n != 1:
                    unify(one, other)

    def _indexed(self, extent: Size, *operands: Value) -> list[Axis]:
        """Return a dimension whose index is mapped to another one in the operands: it is never merged with one of their
        axes."""
        if extent == 1:
            return []
        axis = Axis(extent)
        axis.values.update(map(id, operands))
        return [axis]

    def _apart(self, dims, shape) -> list[list[Axis]]:
        """Return ``dims`` with the second occurrence of an axis replaced by a fresh one."""
        taken: set[Axis] = set()
        out = []
        for dim, n in zip(dims, shape):
            axes = leaves(dim)
            if taken.intersection(axes):
                axes = [] if n == 1 else [Axis(n)]
            taken.update(axes)
            out.append(axes)
        return out
