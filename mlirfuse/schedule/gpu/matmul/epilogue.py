"""The ops on a consumer's sums of a matrix product, and the stores of their results."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

from mlirfuse.ir import dtypes as dt
from mlirfuse.ir.graph import Value
from mlirfuse.lowering.emitter import Val
from mlirfuse.lowering.kernel import Env, Index
from mlirfuse.schedule.gpu.matmul import operands
from mlirfuse.schedule.gpu.matmul.operands import UNIT, Matrix
from mlirfuse.schedule.gpu.matmul.params import COLUMNS, PANEL_BYTES, ROW, STAGING, WARP_GROUP, WARP_ROWS, WGMMA_M
from mlirfuse.schedule.gpu.matmul.tile_body import TileBody


class Place(NamedTuple):
    """An element of the result, or a vector of adjacent columns. ``env`` has its indices, or those of the last element
    if it is outside."""

    env: Env
    row: Val
    column: Val


class SubTile(NamedTuple):
    """What a consumer computes of 64 rows of a tile: the thread's sums, the first row of its warp, and its two rows and
    their indices."""

    values: list[Val]
    warp_row: Val
    rows: tuple[Val, Val]
    envs: tuple[Env, Env]


class Epilogue:
    """Emits the ops on a consumer's sums, and what stores their results.

    A thread has the columns 8 j + 2 (lane mod 4) + (0, 1) of the rows lane / 4 and lane / 4 + 8 of its warp's 16.
    ``consumer``: the number of its warp group."""

    def __init__(self, body: TileBody, consumer: Val):
        self.body, self.e, self.k = body, body.e, body.k
        e, p = self.e, body.p
        self.stored: tuple[Matrix, ...] = body.found.stored if p.tma else ()
        self.direct = [*body.found.direct, *([] if p.tma else [matrix.value for matrix in body.found.stored])]
        self.maps = [
            body.args.tensor_map(m.value, m.value.dtype, (m.extents[1], m.extents[0]), m.pitch, (m.columns, WARP_ROWS))
            for m in self.stored
        ]
        warp = e.sub(body.warp, WARP_GROUP // 32)
        self.warp_row = e.mul(e.and_(body.warp, 3), WARP_ROWS)
        self.staging = e.add(e.mul(warp, STAGING), p.staging_at)
        # stmatrix takes from each lane the address of a row of one of four 8 x 8 matrices.
        matrix, row = body.quotient(body.lane, 8), e.and_(body.lane, 7)
        line = e.mul(e.add(row, e.mul(e.and_(matrix, 1), 8)), ROW)
        right = body.quotient(matrix, 2)
        self.units = [e.add(line, e.mul(e.xor(e.add(right, unit), row), 16)) for unit in range(0, 8, 2)]
        self.thread_row = body.quotient(body.lane, 4)
        self.thread_column = e.mul(e.and_(body.lane, 3), 2)
        analysis = body.analysis
        rows, columns = analysis.axes.dims(body.product.result)
        self.loops = analysis.loops(analysis.kept)
        self.rows, self.columns = rows, columns
        m, n, _ = operands.extents(analysis)  # known sizes that are multiples of a tile's need no bounds
        self.full_rows, self.full_columns = isinstance(m, int) and m % p.m == 0, isinstance(n, int) and n % p.n == 0
        # Where a thread's elements are in a warp's rows in shared memory: of its first row, by columns of 8.
        self.elements = {nbytes: self._elements(nbytes) for nbytes in (2, 4)}
        self.first_panel = e.mul(consumer, p.panels)
        self.panel_at = e.add(e.mul(self.warp_row, ROW), p.panels_at)  # of this warp's rows in the first of all panels

    def _elements(self, nbytes: int) -> list[Val]:
        """The offsets of a thread's two elements of ``nbytes`` in its row, for each 8 columns of 128 bytes."""
        e, line = self.e, self.e.mul(self.thread_row, ROW)
        at = e.mul(self.thread_column, nbytes)
        unit, inside = e.bitcast(e.shr(e.bitcast(at, dt.u32), 4), dt.i32), e.and_(at, UNIT - 1)
        step = 8 * nbytes // UNIT
        units = (e.xor(self.thread_row, e.add(unit, first)) for first in range(0, ROW // UNIT, step))
        return [e.add(e.add(line, inside), e.mul(unit, UNIT)) for unit in units]

    def emit(self, sums: list[str], row: Val, column: Val, panel: list[Val]) -> list[Val]:
        """Compute and store the results of the tile of 64 rows for each of ``sums``, from ``row``, ``column`` on.
        ``panel``: the first of other inputs' panels and its barriers' phase, empty if there are none; returns those
        after the tile's."""
        body, e, p = self.body, self.e, self.body.p
        parts = [self._sub_tile(name, e.add(row, n * WGMMA_M)) for n, name in enumerate(sums)]
        across = e.add(column, self.thread_column)
        stores, panels = itertools.count(), iter(body.panels)
        of_part = len(body.panels) * COLUMNS // (p.n * p.parts)
        for start in range(0, p.n, COLUMNS):
            with self.k.forget():
                for part in parts:
                    pairs = self._pairs(part, start, across)
                    for matrix, _, at in itertools.islice(panels, of_part):
                        panel = self._read_panel(matrix.value, self._columns(pairs, at - start, matrix), *panel)
                    self._store_all(part, pairs, e.add(column, start), stores)
        return panel

    def _read_panel(self, value: Value, pairs: list[list[Place]], panel: Val, phase: Val) -> list[Val]:
        """Read the elements of an input at ``pairs`` from ``panel``, once it is full; returns the next one, and the
        phase of its barriers."""
        body, e, p = self.body, self.e, self.body.p
        number = e.add(self.first_panel, panel)
        body.wait(body.mbarrier(p.panel_full_at, number), phase)
        self._read(value, pairs, e.mul(number, PANEL_BYTES))
        body.fence()  # TMA writes the panel next, which is not ordered after threads' loads otherwise
        body.warp_barrier()
        body.arrive(body.mbarrier(p.panel_empty_at, number))
        return [*body.next_panel(panel, phase)]

    def _sub_tile(self, sums: str, row: Val) -> SubTile:
        e, body = self.e, self.body
        values = [e.op(f"llvm.extractvalue {sums}[{n}] : {body.struct}", dt.f32) for n in range(body.p.n // 2)]
        warp_row = e.add(row, self.warp_row)
        first = e.add(warp_row, self.thread_row)
        rows = (first, e.add(first, 8))
        return SubTile(values, warp_row, rows, (self._row(rows[0]), self._row(rows[1])))

    def _pairs(self, part: SubTile, start: int, across: Val) -> list[list[Place]]:
        """The thread's elements in 64 columns from ``start`` on: two columns each, by column, then by row."""
        pairs = []
        for j in range(start // 8, (start + COLUMNS) // 8):
            for half in range(2):
                values = part.values[4 * j + 2 * half : 4 * j + 2 * half + 2]
                pairs.append(self._places(values, part.envs[half], part.rows[half], self.e.add(across, 8 * j)))
        return pairs

    def _store_all(self, part: SubTile, pairs: list[list[Place]], column: Val, stores: Iterator[int]) -> None:
        """Store the results of 64 columns from ``column`` on."""
        for matrix, tensor_map in zip(self.stored, self.maps):
            for at in range(0, COLUMNS, matrix.columns):
                here = self._columns(pairs, at, matrix)
                to = self.e.add(column, at), part.warp_row
                self._store(matrix.value, here, tensor_map, next(stores), to)
        for place in itertools.chain.from_iterable(pairs) if self.direct else ():
            self.body.store_at(self.direct, place.env, self.body.analysis.domain, self._inside(place))

    def _inside(self, place: Place) -> Val | None:
        """Whether the result has these elements; None if it has all."""
        e, body = self.e, self.body
        if self.full_rows and self.full_columns:
            return None
        return e.and_(e.cmp("lt", place.row, body.m), e.cmp("lt", place.column, body.n))

    @staticmethod
    def _columns(pairs: list[list[Place]], at: int, matrix: Matrix) -> list[list[Place]]:
        """Those of ``pairs`` that are in a row of ``matrix`` in shared memory, from column ``at`` of 64 on."""
        return pairs[at // 4 : (at + matrix.columns) // 4]

    def _read(self, value: Value, pairs: list[list[Place]], at: Val) -> None:
        """Read the elements of an input at ``pairs`` from shared memory."""
        e, nbytes = self.e, value.dtype.bytes
        at = e.add(at, self.panel_at)
        for n, pair in enumerate(pairs):
            address = self.body.address(e.add(e.add(at, self.elements[nbytes][n // 2]), n % 2 * 8 * ROW))
            both = self.body.shared_load(address, value.dtype, 2, 2 * nbytes)
            for k, place in enumerate(pair):
                self.k.bind_loaded(value, place.env, both if len(pair) == 1 else e.extract(both, k))

    def _places(self, values: list[Val], env: Env, row: Val, column: Val) -> list[Place]:
        """Where these sums of two columns are: one vector, or two elements."""
        e, lanes, found = self.e, self.body.access.lanes, []
        for at in range(0, len(values), lanes):
            first = e.add(column, at)
            inside = self.body.wide(first if self.full_columns else e.min(first, e.sub(self.body.n, lanes)))
            here = dict(env)
            self._spread(here, self.columns, Index(inside, 1, lanes) if lanes > 1 else Index(inside))
            self.k.bind(self.body.product.result, here, e.from_lanes(values[at : at + lanes]))
            found.append(Place(here, row, first))
        return found

    def _row(self, row: Val) -> Env:
        env: Env = {}
        inside = row if self.full_rows else self.e.min(row, self.e.sub(self.body.m, 1))
        self._spread(env, self.rows, Index(self.body.wide(inside)))
        return env

    def _spread(self, env: dict, axes: list, index: Index) -> None:
        """Set ``axes`` of one dimension from its index. Those that are one loop in the memory of every tensor are not
        divided."""
        loops = [[axis for axis in loop if axis in axes] for loop in self.loops]
        env.update(self.body.point([loop for loop in loops if loop], index))

    def _store(self, value: Value, pairs: list[list[Place]], tensor_map: str, number: int, to: tuple[Val, Val]) -> None:
        """Have TMA store 16 rows of 128 bytes of ``value``, whose elements are at ``pairs``, to a column and row: the
        store ``number`` of a tile."""
        body, e = self.body, self.e
        last_of_tile = body.p.parts * sum(body.p.n // matrix.columns for matrix in self.stored) - 1
        same_buffer = number == 0 and last_of_tile % 2 == 0  # as the last store of the tile before
        vals = [[self.k.value(value, place.env) for place in pair] for pair in pairs]
        memory = e.add(self.staging, number % 2 * (STAGING // 2))
        with body.leader(body.leads):
            e.line(f"nvvm.cp.async.bulk.wait_group {0 if same_buffer else 1} {{read}}")
        body.warp_barrier()
        if value.dtype.bytes == 4:
            self._stage_words(vals, memory)
        else:
            self._stage_matrices([self._word(pair, value.dtype) for pair in vals], memory)
        body.fence()
        body.warp_barrier()
        with body.leader(body.leads):
            e.line(
                f"nvvm.cp.async.bulk.tensor.global.shared.cta {tensor_map}, {body.address(memory)}, "
                f"box[{to[0]}, {to[1]}] : !llvm.ptr, !llvm.ptr<3>"
            )
            e.line("nvvm.cp.async.bulk.commit.group")

    def _stage_matrices(self, words: list[str], memory: Val) -> None:
        """Store pairs of 16-bit floats to the buffer at ``memory``, swizzled."""
        for u, unit in enumerate(self.units):
            four = ", ".join(words[4 * u : 4 * u + 4])
            address = self.body.address(self.e.add(memory, unit))
            self.e.line(
                f"nvvm.stmatrix {address}, {four} {{layout = #nvvm.mma_layout<row>, "
                "shape = #nvvm.ld_st_matrix_shape<m = 8, n = 8>, eltType = #nvvm.ld_st_matrix_elt_type<b16>} : "
                "!llvm.ptr<3>, i32, i32, i32, i32"
            )

    def _stage_words(self, vals: list[list[Val]], memory: Val) -> None:
        """Store pairs of float32 to the buffer at ``memory``, swizzled."""
        e = self.e
        for n, pair in enumerate(vals):
            address = self.body.address(e.add(e.add(memory, self.elements[4][n // 2]), n % 2 * 8 * ROW))
            both = e.from_lanes(pair) if len(pair) > 1 else e.splat(pair[0], 2)
            self.body.shared_store(address, both, 8)

    def _word(self, vals: list[Val], dtype: dt.DType) -> str:
        """Two elements as a register of 16-bit floats."""
        e = self.e
        val = e.from_lanes([e.cast(v, dtype) for v in vals]) if len(vals) > 1 else e.cast(e.splat(vals[0], 2), dtype)
        name = e.fresh()
        e.line(f"{name} = llvm.bitcast {val} : {val.type} to i32")
        return name
