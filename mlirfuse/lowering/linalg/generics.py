"""``linalg.generic`` for elementwise values, reductions and scans."""

from __future__ import annotations

from contextlib import contextmanager

from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import ops as table
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.dtypes import DType
from mlirfuse.ir.graph import Op, Value
from mlirfuse.ir.sizes import Size
from mlirfuse.lowering import reductions as red
from mlirfuse.lowering import scans as sc
from mlirfuse.lowering.emitter import Val
from mlirfuse.lowering.linalg.elements import Elements
from mlirfuse.lowering.linalg.writer import Body, Dim, Index, Tensor, type_of


class Generics(Elements):
    """Writes ``linalg.generic`` ops."""

    def generic(self, value: Value, dtype: DType) -> Tensor:
        """A generic over the dimensions of ``value`` that yields it as ``dtype``: read if it is a tensor, else
        computed."""
        body, at = Body(value.shape), tuple(Dim(k) for k in range(value.rank))
        with self._writing(body) as lines:
            known = value in self.tensors or not self.in_body(value)
            val = self.read(self.tensor(value), at, value) if known else self.compute(value, at)
            val = self.e.cast(val, dtype)
        (name,) = self._write(
            body, lines, [self.empty(value.shape, dtype)], at, [dtype], [val], [], value.op, "parallel"
        )
        return Tensor(name, dtype, value.shape, tuple(range(value.rank)))

    @contextmanager
    def _writing(self, body: Body):
        """Lines emitted in this context go to the region of ``body``."""
        lines: list[str] = []
        saved = self.e.lines, self.e.depth, self.body
        self.e.lines, self.e.depth, self.body = lines, 2, body
        yield lines
        self.e.lines, self.e.depth, self.body = saved

    def _write(
        self, body: Body, lines, outs, out_map, dtypes, yielded, accumulators, op: Op | None, kinds
    ) -> list[str]:
        """Write the op, and return the names of its results. ``out_map``: the dimensions of all outputs, or a list with
        those of each. ``kinds``: the iterator types, or one for all of them."""
        rank = len(body.extents)
        kinds = [kinds] * rank if isinstance(kinds, str) else kinds
        out_maps = out_map if isinstance(out_map, list) else [out_map] * len(outs)
        with self.outside():
            covered = {i.number for _, at in body.operands for i in at if isinstance(i, Dim)} | {
                i.number for at in out_maps for i in at
            }
            for number in set(range(rank)) - covered:  # an empty tensor defines the extent of a dimension without one
                extent = body.extents[number]
                shape_only = Tensor(self.empty((extent,), dt.bool_), dt.bool_, (extent,), (0,))
                body.operands[shape_only, (Dim(number),)] = Val(self.e.fresh(), dt.bool_)
            space = ", ".join(f"d{k}" for k in range(rank))
            maps = [at for _, at in body.operands] + out_maps
            serialized = ", ".join(
                f"affine_map<({space}) -> ({', '.join(f'd{i.number}' if isinstance(i, Dim) else str(i) for i in at)})>"
                for at in maps
            )
            iterators = ", ".join(f'"{kind}"' for kind in kinds)
            ins = ""
            if body.operands:
                given = [t for t, _ in body.operands]
                ins = f" ins({', '.join(t.name for t in given)} : {', '.join(t.type for t in given)})"
            types = [type_of([body.extents[i.number] for i in at], d) for at, d in zip(out_maps, dtypes)]
            blocks = [f"{v.name}: {v.type}" for v in body.operands.values()]
            blocks += (
                [f"{v.name}: {v.type}" for v in accumulators]
                if accumulators
                else [f"{self.e.fresh()}: {d.signless}" for d in dtypes]
            )
            name = self.e.fresh()
            many = f"{name}:{len(outs)}" if len(outs) > 1 else name
            attributes = f"indexing_maps = [{serialized}], iterator_types = [{iterators}]"
            self.e.line(
                f"{many} = linalg.generic {{{attributes}}}{ins} outs({', '.join(outs)} : {', '.join(types)}) {{"
            )
            self.e.line(f"^bb0({', '.join(blocks)}):")
            self.e.lines += lines
            self.e.line(f"  linalg.yield {', '.join(v.name for v in yielded)} : {', '.join(v.type for v in yielded)}")
            result = types[0] if len(types) == 1 else f"({', '.join(types)})"
            where = f' loc("{op.loc[0]}":{op.loc[1]}:0)' if op is not None and op.loc else ""
            self.e.line(f"}} -> {result}{where}")
        return [name] if len(outs) == 1 else [f"{name}#{k}" for k in range(len(outs))]

    def _filled(self, op: Op, shape) -> tuple[list[str], list[DType]]:
        """Tensors of the accumulator's components, filled with the reduction's identity."""
        outs, dtypes = [], red.accumulator_types(op)
        for start in red.identity(self.e, op, 1):
            empty, to = self.empty(shape, start.dtype), type_of(shape, start.dtype)
            with self.outside():
                outs.append(self.emit(f"linalg.fill ins({start} : {start.type}) outs({empty} : {to}) -> {to}"))
        return outs, dtypes

    def _reduction(self, op: Op) -> Tensor:
        source = op.operands[0]
        axes = set(table.axes_of(op.attrs, source.rank))
        kept = [d for d in range(source.rank) if d not in axes]
        dims = tuple(kept) if op.attrs.get("keepdims") else tuple(range(len(kept)))
        order = [*kept, *sorted(axes)] if self.on_device else list(range(source.rank))  # of the loops
        everywhere = tuple(Dim(order.index(d)) for d in range(source.rank))
        extents = [source.shape[d] for d in order]
        return self._reduce(op, extents, [order.index(d) for d in kept], lambda: self.value(source, everywhere), dims)

    def _reduce(self, op: Op, extents, kept: list[int], element, dims) -> Tensor:
        """Reduce ``element()`` over the dimensions of ``extents`` that are not ``kept``."""
        shape = tuple(extents[d] for d in kept)
        outs, dtypes = self._filled(op, shape)
        body = Body(extents)
        state = tuple(Val(self.e.fresh(), d) for d in dtypes)
        with self._writing(body) as lines:
            reduced = [d for d in range(len(extents)) if d not in kept]
            new = red.element(self.e, op, element(), self._position(op, reduced, [extents[d] for d in reduced]))
            combined = red.combine(self.e, op, state, new)
        kinds = ["parallel" if d in kept else "reduction" for d in range(len(extents))]
        names = self._write(body, lines, outs, tuple(Dim(d) for d in kept), dtypes, combined, state, op, kinds)
        result = red.result(self.e, op, tuple(Val(n, d) for n, d in zip(names, dtypes)))
        return Tensor(result.name, result.dtype, shape, dims)

    def _scan(self, op: Op) -> Tensor:
        """A generic that iterates along the axis in order, with the states and the scan's elements as outputs. For a
        reverse scan it yields the elements in its own order, and a second generic reverses them."""
        value, axis = op.result, op.attrs["axis"] % op.result.rank
        kept = [d for d in range(value.rank) if d != axis]
        order = [*kept, axis]  # of the loops
        dims: list[Index] = [Dim(order.index(d)) for d in range(value.rank)]
        extents = [value.shape[d] for d in order]
        states = []
        for start in sc.identity(self.e, op, 1):
            empty, to = self.empty(extents[:-1], start.dtype), type_of(extents[:-1], start.dtype)
            with self.outside():
                states.append(self.emit(f"linalg.fill ins({start} : {start.type}) outs({empty} : {to}) -> {to}"))
        body, dtype = Body(extents), value.dtype.compute
        with self._writing(body) as lines:
            at = self._from_end(dims, axis, value) if op.attrs["reverse"] else tuple(dims)
            before = [Val(self.e.fresh(), d) for d in sc.state_types(op)]
            new = sc.element(self.e, op, [self.element_at(v, at) for v in op.operands], 1)
            state = sc.combine(self.e, op, tuple(before), new)
            created = sc.result(self.e, op, state)
        maps: list[tuple[Index, ...]] = [tuple(map(Dim, range(len(kept))))] * len(states) + [tuple(dims)]
        *_, name = self._write(
            body,
            lines,
            [*states, self.empty(value.shape, dtype)],
            maps,
            [*sc.state_types(op), dtype],
            [*state, created],
            [*before, Val(self.e.fresh(), dtype)],
            op,
            ["parallel"] * len(kept) + ["reduction"],
        )
        found = Tensor(name, dtype, value.shape, tuple(range(value.rank)))
        if not op.attrs["reverse"]:
            return found
        body, here = Body(value.shape), list[Index](map(Dim, range(value.rank)))
        with self._writing(body) as lines:
            val = self.read(found, self._from_end(here, axis, value), value)
        (name,) = self._write(
            body, lines, [self.empty(value.shape, dtype)], tuple(here), [dtype], [val], [], op, "parallel"
        )
        return Tensor(name, dtype, value.shape, tuple(range(value.rank)))

    def _from_end(self, dims: list[Index], axis: int, value: Value) -> tuple[Index, ...]:
        """An index with the one along ``axis`` counted from the end."""
        last = self.size(value.shape[axis] - 1)
        return tuple(self.e.sub(last, self.i64(i)) if d == axis else i for d, i in enumerate(dims))

    def _position(self, op: Op, reduced: list[int], extents: list[Size]) -> Val | None:
        """The row-major index along the reduced dimensions, for argmax and argmin; None for other ops."""
        if op.row.accumulator != "position":
            return None
        return self.linear([Dim(d) for d in reduced], extents)

    def _partial_sum(self, op: Op) -> Tensor:
        """Partial sum p has every parts-th row from row p on: loops over partial sums, their rows, and the kept
        dimensions."""
        source = op.operands[0]
        axes = table.axes_of(op.attrs, source.rank)
        kept = [d for d in range(source.rank) if d not in axes]
        rows, parts = sz.product(source.shape[d] for d in axes), op.attrs["parts"]
        extents = (parts, sz.ceildiv(rows, parts), *(source.shape[d] for d in kept))

        def element() -> Val:
            e = self.e
            row = e.add(e.mul(self.i64(Dim(1)), parts), self.i64(Dim(0)))
            inside = e.cmp("lt", row, self.size(rows))
            at: list[Index] = [0] * source.rank
            self.spread([source.shape[d] for d in axes], e.min(row, self.size(rows - 1)), axes, at)
            for number, d in enumerate(kept):
                at[d] = Dim(number + 2)
            return e.select(inside, self.value(source, tuple(at)), 0)

        as_sum = Op(
            "sum", op.operands, {"axes": axes, "keepdims": False}, [Value(op.result.dtype, op.result.shape)], loc=op.loc
        )
        return self._reduce(as_sum, extents, [0, *range(2, len(extents))], element, tuple(range(op.result.rank)))
