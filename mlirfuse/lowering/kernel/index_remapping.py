"""Ops that remap indices along a dimension: slice, roll, pad, concatenate."""

from __future__ import annotations

import functools
from collections.abc import Generator
from dataclasses import replace

from mlirfuse.core.errors import CompileError
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Op, Value
from mlirfuse.ir.sizes import Size
from mlirfuse.lowering.emitter import Val
from mlirfuse.lowering.kernel.index import Env, Index
from mlirfuse.lowering.kernel.memory import Accesses

Steps = Generator[tuple[Value, Env], Val, Val]  # an op's rule: yields operands and envs, returns the result


class IndexRemapping(Accesses):
    """The rules of :class:`mlirfuse.lowering.kernel.values.ElementEmitter` for these ops. ``inside``: the segment's
    ops."""

    inside: set[Op]

    def _through(self, op: Op, env: Env, pairs, operand: int = 0) -> Env:
        """The env of an operand whose dimension j corresponds to the result's dimension k, for (j, k) in ``pairs``."""
        source, target = self.dims(op.operands[operand]), self.dims(op.result)
        new = env
        for j, k in pairs:
            if source[j] and source[j] != target[k]:
                if new is env:
                    new = dict(env)
                self.spread(source[j], self.dim_index(target[k], env), new)
        return new

    def _slice(self, op: Op, env: Env) -> Steps:
        return (yield op.operands[0], self._sliced(op, env))

    def _sliced(self, op: Op, env: Env) -> Env:
        """The env of a slice's operand; the same object each time, so that memoized values are found."""

        def make() -> Env:
            operand, new = op.operands[0], dict(env)
            source, target = self.dims(operand), self.dims(op.result)
            for j in range(operand.rank):
                if source[j] and source[j] != target[j]:
                    i = self.scale(self.dim_index(target[j], env), op.attrs["step"][j])
                    self.spread(source[j], self.moved(i, op.attrs["start"][j]), new)
            return new

        return self._once(("sliced", self._key(op.result, env)), make)

    def _split(self, op: Op, env: Env) -> Val:
        raise CompileError("fusion.split reaches a kernel: run fusion-decompose before fusion-segment")

    def _clamp(self, i: Index, low: Size, size: Size) -> tuple[Index, Val]:
        """``i - low`` clamped to ``0 … size-1``, and whether it was inside."""
        lanes = i.lanes
        uniform = (
            i.step == 1
            and self._divisor(i) >= lanes
            and self._is_multiple(low, lanes)
            and self._is_multiple(size, lanes)
        )
        i = self.add(i, self._constant_index(sz.mul(low, -1)))
        whole = i.vector is None and (i.lanes == 1 or i.step == 0)
        e = self.e
        if whole or uniform:  # all lanes are inside or none is
            base = self.scalar(i.base)
            last = self.size(size - (i.lanes if uniform else 1))
            inside = e.and_(e.cmp("ge", base, 0), e.cmp("le", base, last))
            clamped = e.max(e.min(base, last), 0)
            return Index(clamped, i.step, i.lanes, divisor=lanes if uniform else 1), inside
        value, last = self.materialize(i), self.size(size - 1)
        inside = e.and_(e.cmp("ge", value, 0), e.cmp("le", value, last))
        return self._of_val(e.max(e.min(value, last), 0)), inside

    def _both(self, a: Val, b: Val) -> Val:
        lanes = max(a.lanes, b.lanes)
        return self.e.and_(self.e.splat(a, lanes), self.e.splat(b, lanes))

    def _maybe_outside(self, i: Index, moved: Index, low: Size, size: Size) -> tuple[Index, Val]:
        """``moved``, that is ``i - low``, of a tile, and whether its lanes are in ``0 … size-1``. A lone index is
        clamped; a vector, or an element of one, keeps its alignment and names the lanes that may be outside. Only what
        the span of ``i`` leaves open is checked. Equal indices give the same values, so that what is read there is
        read once."""
        e, lanes, step = self.e, i.lanes, i.step

        def make() -> tuple[Index, Val]:
            base, last = self.scalar(moved.base), self.size(size - 1)
            found, clamped, outside = [], base, set()
            for k in range(lanes):
                below = above = True
                if i.span:
                    below = not sz.at_least(i.span[0] + k * step, low)
                    above = not sz.at_least(low + size, i.span[1] - (lanes - 1 - k) * step)
                at = e.add(base, self.size(k * step)) if k and step != 0 else base
                checks = [e.cmp("ge", at, 0)] * below + [e.cmp("le", at, last)] * above
                found.append(functools.reduce(e.and_, checks, e.const(True, dt.bool_)))
                if checks:
                    outside.add(k)
            if lanes == 1 and step == 0:
                clamped = e.min(clamped, last) if above else clamped
                clamped = e.max(clamped, 0) if below else clamped
                return replace(moved, base=clamped, divisor=1, rest=0), found[0]
            return replace(moved, outside=moved.outside | outside), e.from_lanes(found)

        return self._once(("maybe outside", e.sum_of(self.scalar(moved.base)), step, lanes, size), make)

    def _roll(self, op: Op, env: Env) -> Steps:
        axis, operand = op.attrs["axis"], op.operands[0]
        inner = dict(self._through(op, env, [(d, d) for d in range(operand.rank) if d != axis]))
        index = self._rolled(self.dim_index(self.dims(op.result)[axis], env), op.attrs["shift"], operand.shape[axis])
        self.spread(self.dims(operand)[axis], index, inner)
        return (yield operand, inner)

    def _rolled(self, i: Index, shift: Size, extent: Size) -> Index:
        """``i - shift``, wrapped around if negative."""
        e, lanes = self.e, i.lanes
        for low, high, by in ((0, shift, extent - shift), (shift, extent, -shift)):
            if self.lies_in(i, low, high):
                return self.moved(i, by)
        one_run = i.step == 1 and self._divisor(i) >= lanes
        uniform = one_run and self._is_multiple(shift, lanes) and self._is_multiple(extent, lanes)
        one_index = i.vector is None and (lanes == 1 or i.step == 0)
        i = self.add(i, self._constant_index(sz.mul(shift, -1)))
        back = self.scalar(i.base) if one_index or uniform else self.materialize(i)
        moved = e.select(e.cmp("lt", back, 0), e.add(back, self.size(extent)), back)
        if one_index or uniform:  # all lanes come from one side
            return Index(moved, i.step, lanes, divisor=lanes if uniform else 1)
        return self._of_val(moved)

    def _lane_of(self, i: Index, k: int) -> Index:
        """Lane ``k`` of an index, alone; its step says that its neighbours are read, too."""
        if i.lanes == 1:
            return i
        if i.vector is not None:
            return Index(self.e.extract(i.vector, k))
        base, (divisor, rest) = self._once(("lane", i, k), lambda: self._lane(i, k)), self.modulo(i)
        divisor, rest = (divisor, (rest + k * i.step) % divisor) if isinstance(i.step, int) else (1, 0)
        span = i.span and (i.span[0] + sz.mul(k, i.step), i.span[1] - sz.mul(i.lanes - 1 - k, i.step))
        outside = frozenset({0} if k in i.outside else ())
        return Index(base, i.step, divisor=divisor, rest=rest, span=span, outside=outside)

    def _repeated(self, i: Index, low: Size, extent: Size, times: int) -> tuple[Index, Index, Val]:
        """The quotient and the remainder of the lone index ``i - low`` by ``times``, and whether the quotient is in
        ``0 … extent-1``. If ``times`` divides what is known of ``i`` but for a constant, neighbours have the same
        quotient, or one with another constant, so that what is read there is read once."""
        e, moved = self.e, self.moved(i, sz.mul(low, -1))
        terms, number = e.sum_of(self.scalar(moved.base))
        divisor, rest = self.modulo(moved)
        left = (rest - number) % divisor
        if divisor % times:
            one, other = replace(i, step=0), replace(moved, step=0)
            index, inside = self._maybe_outside(one, other, low, sz.mul(extent, times))
            return *self.divmod(index, times), inside

        def make() -> Val:
            return e.shr(e.add(self.scalar(moved.base), -number - left), times.bit_length() - 1)

        by = self._once(("repeated", terms, left, times), make)
        first, end = moved.span or (None, None)
        span = (first // times, (end - 1) // times + 1) if isinstance(first, int) and isinstance(end, int) else None
        at, rest = divmod(left + number, times)
        divisor //= times
        index = Index(e.add(by, at) if at else by, moved.step, divisor=divisor, rest=at % divisor, span=span)
        index, inside = self._maybe_outside(index, index, 0, extent)
        return index, Index(rest), inside

    def _pad(self, op: Op, env: Env) -> Steps:
        """Of a tile, lanes that read repeated elements are computed one by one, as several read the same."""
        lanes = max((i.lanes for i in env.values()), default=1)
        if not self.tiled or lanes == 1 or all(len(dim) < 2 for dim in self.dims(op.operands[0])):
            return (yield from self._padded(op, env))
        vals = []
        for k in range(lanes):
            val = yield from self._padded(op, {axis: self._lane_of(i, k) for axis, i in env.items()})
            vals.append(val)
        return self.e.from_lanes(vals)

    def _padded(self, op: Op, env: Env) -> Steps:
        operand, fill = op.operands
        source, target = self.dims(operand), self.dims(op.result)
        new = dict(env)
        past: Env | None = None  # the env of a contiguous vector that may extend beyond the operand
        inside: Val | None = None
        for j, (low, high) in enumerate(zip(op.attrs["low"], op.attrs["high"])):
            if source[j] != target[j] or low != 0 or high != 0:
                i = self.dim_index(target[j], env)
                cut = self.e.target == "cpu" and sz.at_least(0, low) and sz.at_least(0, high)  # like a slice
                known = cut or self.lies_in(i, low, low + operand.shape[j])
                if known is False:
                    return (yield fill, env)
                times = source[j][1].size if len(source[j]) == 2 else None
                if self.tiled and i.vector is None and isinstance(times, int):
                    outer, inner = source[j]
                    new[outer], new[inner], here = self._repeated(i, low, outer.size, times)
                    inside = here if inside is None else self._both(inside, here)
                    continue
                moved = self.moved(i, sz.mul(low, -1))
                if self.tiled and not known and i.vector is None and len(source[j]) == 1:
                    index, here = self._maybe_outside(i, moved, low, operand.shape[j])
                    new[source[j][0]] = index
                    inside = here if inside is None else self._both(inside, here)
                    continue
                if known:
                    for one_env in (new, past):
                        if one_env is not None:
                            self.spread(source[j], moved, one_env)
                    continue
                clamped, here = self._clamp(i, low, operand.shape[j])
                if i.lanes > 1 and i.vector is None and i.step == 1:
                    past = dict(new)
                    self.spread(source[j], moved, past)
                elif past is not None:
                    self.spread(source[j], clamped, past)
                self.spread(source[j], clamped, new)
                inside = here if inside is None else self._both(inside, here)
        val = None
        if inside is not None and past is not None and (operand.op is None or operand.op not in self.inside):
            val = self.load_inside(operand, past, inside)
        val, other = val or (yield operand, new), (yield fill, env)
        return val if inside is None else self.e.select(inside, val, other)

    def _concatenate(self, op: Op, env: Env) -> Steps:
        axis = op.attrs["axis"]
        i = self.dim_index(self.dims(op.result)[axis], env)
        starts = [sz.total(operand.shape[axis] for operand in op.operands[:k]) for k in range(len(op.operands))]
        for k, (operand, start) in enumerate(zip(op.operands, starts)):
            if self.lies_in(i, start, start + operand.shape[axis]):
                return (yield operand, self._along_operand(op, env, k, self.moved(i, sz.mul(start, -1))))
        lanes = max((index.lanes for index in env.values()), default=1)
        one = self.e.target == "gpu" and lanes > 1 and i.vector is None and (i.lanes == 1 or i.step == 0)
        if one:  # all lanes are in one operand
            i = Index(self.scalar(i.base))
        behind = [self._behind(i, start) for start in starts[1:]]
        with self.forget():  # who else reads inputs where operands end needs their own elements
            if envs := self._loaded_from_one_operand(op, env, i, starts, behind, lanes if one else i.lanes):
                return (yield from self._selected(op, behind, envs))
        if one:
            return (yield from self._element_of_operand(op, env, self.scalar(i.base), lanes))
        clamped = [self._clamp(i, start, v.shape[axis])[0] for start, v in zip(starts, op.operands)]
        envs = [self._along_operand(op, env, k, index) for k, index in enumerate(clamped)]
        return (yield from self._selected(op, behind, envs))

    def _selected(self, op: Op, behind: list[Val], envs: list[Env]) -> Steps:
        """The last operand of a concatenation, at its env, for which ``behind`` holds."""
        result = yield op.operands[0], envs[0]
        for condition, operand, inner in zip(behind, op.operands[1:], envs[1:]):
            result = self.e.select(condition, (yield operand, inner), result)
        return result

    def _behind(self, i: Index, start: Size) -> Val:
        """Whether ``i >= start``; one lane if all lanes are on one side."""
        aligned = i.vector is None and i.step == 1 and self._divisor(i) >= i.lanes
        at = self.scalar(i.base) if aligned and self._is_multiple(start, i.lanes) else self.materialize(i)
        return self.e.cmp("ge", at, self.size(start))

    def _along_operand(self, op: Op, env: Env, k: int, index: Index) -> Env:
        """The env of the ``k``-th operand of a concatenation, at an index along it."""
        axis, operand = op.attrs["axis"], op.operands[k]
        inner = dict(self._through(op, env, [(d, d) for d in range(operand.rank) if d != axis], k))
        self.spread(self.dims(operand)[axis], index, inner)
        return inner

    def _loaded_from_one_operand(self, op: Op, env: Env, i: Index, starts: list[Size], behind: list[Val],
                                 lanes: int) -> list[Env]:  # fmt: skip
        """Load a GPU's vector of ``lanes`` at ``i``, which are all in one operand, from that operand alone, if each
        operand is computed from elements of one input of the same dtype. Returns the envs of the operands then, not
        clamped; else []."""
        if self.e.target != "gpu" or lanes == 1 or self.past_end or any(condition.lanes > 1 for condition in behind):
            return []
        envs = [self._along_operand(op, env, k, self.moved(i, sz.mul(start, -1))) for k, start in enumerate(starts)]
        loads = [load for load in map(self._only_load, op.operands, envs) if load is not None]
        if len(loads) < len(envs) or len({self.memories[value].dtype for value, _ in loads}) > 1:
            return []
        val = self.load_of_one(loads, behind, lanes)
        if val is None:
            return []
        for value, at in loads:
            self.bind_loaded(value, at, val)
        return envs

    def _only_load(self, value: Value, env: Env) -> tuple[Value, Env] | None:
        """The only input, and its env, from which ``value`` at ``env`` is computed elementwise. The rules of the ops
        between arrive at the same env."""
        while value.op is not None and value.op in self.inside:
            op = value.op
            many = [k for k, operand in enumerate(op.operands) if operand.rank]
            if len(many) != 1:
                return None
            value = op.operands[many[0]]
            if op.name == "slice":
                env = self._sliced(op, env)
            elif op.row.kind != "elementwise" or self.dims(value) != self.dims(op.result):
                return None
        return (value, env) if value in self.memories else None

    def _element_of_operand(self, op: Op, env: Env, at: Val, lanes: int, k: int = 0, start: Size = 0) -> Steps:
        """The element at ``at`` of the ``k``-th operand, which starts at ``start``, or of a later one, if all lanes are
        in the same. Branches, because loads of vectors from all operands would not be combined to one."""
        operand, extent = op.operands[k], op.operands[k].shape[op.attrs["axis"]]
        inner = self._along_operand(op, env, k, self._clamp(Index(at), start, extent)[0])
        if k == len(op.operands) - 1:
            return self.e.splat((yield operand, inner), lanes)
        end = start + extent
        found = Val(self.e.fresh(), op.result.dtype.compute, lanes)
        with self.region(f"{found} = scf.if {self.e.cmp('lt', at, self.size(end))} -> ({found.type}) {{", "} else {"):
            val = self.e.splat((yield operand, inner), lanes)
            self.e.line(f"scf.yield {val} : {found.type}")
        with self.region("", "}"):
            val = yield from self._element_of_operand(op, env, at, lanes, k + 1, end)
            self.e.line(f"scf.yield {val} : {found.type}")
        return found
