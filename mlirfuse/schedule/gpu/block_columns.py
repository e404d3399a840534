"""Combines the accumulators of GPU columns that several threads of a block share, through shared memory."""

from __future__ import annotations

import functools

from mlirfuse.ir import dtypes as dt
from mlirfuse.ir.graph import Op
from mlirfuse.lowering import reductions as red
from mlirfuse.lowering.emitter import Val
from mlirfuse.schedule.gpu.kernel import GpuBody


class BlockColumns:
    """A block with ``tx`` threads along the columns, each with one vector of columns, and ``ty`` along the rows, both
    powers of two; ``x`` and ``y`` are a thread's indices among them."""

    def __init__(self, body: GpuBody, tx: int, ty: int, x: Val, y: Val):
        self.body, self.tx, self.ty, self.x, self.y = body, tx, ty, x, y
        self.lanes = body.access.lanes

    def combine(self, phase: list[Op], totals: list[tuple[Val, ...]], needed: bool) -> list[tuple[Val, ...]]:
        """The accumulators of the block's columns, combined from those of its threads: by a tree reduction if a
        combination is one instruction per lane, else by one exchange. The first row of threads gets the results, or all
        threads if ``needed``."""
        if self.ty == 1:
            return totals
        if all(len(total) == 1 for total in totals):
            return [(v,) for v in self._tree_reduce(phase, [v for (v,) in totals], needed)]
        return self._exchanged(phase, totals)

    def _tree_reduce(self, phase: list[Op], vals: list[Val], needed: bool) -> list[Val]:
        """Combine single-component accumulators by a tree reduction over the rows of threads."""
        body, e, lanes = self.body, self.body.e, self.lanes
        offsets = [body.reserve(self.ty * self.tx * lanes * v.dtype.bytes) for v in vals]

        def address(offset: int, row: Val, v: Val) -> str:
            return body.shared_address(offset, e.add(e.mul(row, self.tx), self.x), v.dtype.bytes * lanes)

        def store() -> None:
            for offset, v in zip(offsets, vals):
                body.shared_store(address(offset, self.y, v), v, min(16, v.dtype.bytes * lanes))

        def load(offset: int, row: Val, v: Val) -> Val:
            return body.shared_load(address(offset, row, v), v.dtype, lanes, min(16, v.dtype.bytes * lanes))

        half = self.ty
        while half > 1:
            half //= 2
            with body.leader(e.and_(e.cmp("ge", self.y, half), e.cmp("lt", self.y, 2 * half))):
                store()
            body.barrier()
            other, lower = e.min(e.add(self.y, half), self.ty - 1), e.cmp("lt", self.y, half)
            vals = [
                e.select(lower, red.combine(e, op, (v,), (load(offset, other, v),))[0], v)
                for op, offset, v in zip(phase, offsets, vals)
            ]
        if needed:
            with body.leader(e.cmp("eq", self.y, 0)):
                store()
            body.barrier()
            vals = [load(offset, e.const(0, dt.i32), v) for offset, v in zip(offsets, vals)]
        return vals

    def _exchanged(self, phase: list[Op], totals: list[tuple[Val, ...]]) -> list[tuple[Val, ...]]:
        """Combine the accumulators of each column in neighbouring threads, after an exchange through shared memory."""
        body, e, lanes = self.body, self.body.e, self.lanes
        tile = self.tx * lanes
        varying = list(dict.fromkeys(v for total in totals for v in total if e.known(v) is None))
        threads = min(32, max(1, self.ty // lanes))  # per column
        partials, at_once = self.ty // threads, min(tile, self.tx * self.ty // threads)
        stride = tile + 1  # padded, so that the rows of a column are in different banks
        given = {v: body.reserve(self.ty * stride * v.dtype.bytes) for v in varying}
        found = [[body.reserve(tile * v.dtype.bytes) if v in given else None for v in total] for total in totals]
        own = e.mul(self.x, lanes)
        for v in varying:
            for lane in range(lanes):
                index = e.add(e.add(e.mul(self.y, stride), own), lane)
                body.shared_store(body.shared_address(given[v], index, v.dtype.bytes), e.extract(v, lane))
        body.barrier()
        first = e.and_(body.thread, threads - 1)
        group = body.quotient(body.thread, threads)

        def partials_of(v: Val, column: Val) -> Val:
            if v not in given:
                return e.const(e.known(v), v.dtype, partials)
            rows = [e.add(first, n * threads) for n in range(partials)]
            addresses = [
                body.shared_address(given[v], e.add(e.mul(row, stride), column), v.dtype.bytes) for row in rows
            ]
            return e.from_lanes([body.shared_load(address, v.dtype) for address in addresses])

        for start in range(0, tile, at_once):
            column = e.add(e.and_(group, at_once - 1), start)
            combined = [
                red.across_lanes(e, op, tuple(partials_of(v, column) for v in total))
                for op, total in zip(phase, totals)
            ]
            combined = body.across_warp(phase, combined, threads)
            with body.leader(e.cmp("eq", first, 0)):
                for offsets, done in zip(found, combined):
                    for offset, val in zip(offsets, done):
                        if offset is not None:
                            body.shared_store(body.shared_address(offset, column, val.dtype.bytes), val)
        body.barrier()

        def result_of(offset: int | None, done: Val) -> Val:
            if offset is None:  # a count of rows, the same in every column
                return e.splat(done, lanes)
            return body.shared_load(
                body.shared_address(offset, own, done.dtype.bytes), done.dtype, lanes, min(16, done.dtype.bytes * lanes)
            )

        return [tuple(map(result_of, offsets, done)) for offsets, done in zip(found, combined)]

    def across_cluster(self, phase: list[Op], totals: list[tuple[Val, ...]], rank: Val) -> list[tuple[Val, ...]]:
        """Combine the accumulators of a cluster's blocks for the columns that they share. Each row of threads writes
        its block's accumulators, which all of its threads hold, into another block's distributed shared memory; there
        must be at least as many rows of threads as blocks."""
        body, e, lanes = self.body, self.body.e, self.lanes
        body.cluster_begins()
        offsets = {v: body.reserve(body.cluster * self.tx * lanes * v.dtype.bytes) for v in body.differing(totals)}

        def address(v: Val, block: Val) -> str:
            return body.shared_address(offsets[v], e.add(e.mul(block, self.tx), self.x), lanes * v.dtype.bytes)

        with body.leader(e.cmp("lt", self.y, body.cluster)):
            for v in offsets:
                there = e.fresh()
                e.line(f"{there} = nvvm.mapa {address(v, rank)}, {self.y} : !llvm.ptr<3> -> !llvm.ptr<7>")
                body.shared_store(there, v, min(16, lanes * v.dtype.bytes), space=7)
        body.cluster_arrive()
        body.cluster_wait()

        def of_block(total: tuple[Val, ...], block: int) -> tuple[Val, ...]:
            at = e.const(block, dt.i32)
            return tuple(
                body.shared_load(address(v, at), v.dtype, lanes, min(16, lanes * v.dtype.bytes))
                if v in offsets
                else e.const(e.known(v), v.dtype, lanes)
                for v in total
            )

        return [
            functools.reduce(functools.partial(red.combine, e, op), [of_block(total, n) for n in range(body.cluster)])
            for op, total in zip(phase, totals)
        ]
