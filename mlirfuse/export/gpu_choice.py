"""Which schedule parameters an exported function has on a GPU.

The cost models of GPUs round and divide, so that following them as those of a CPU would lead to conditions without end.
Where one size is open, the choice is tabulated over the values of that size, and is ``jit``'s. Where several are open,
where the table has too many programs, and for arrays without the usual alignment, a range of sizes shares the choice
for a point in it.
"""

from __future__ import annotations

import contextlib
from typing import Any, NamedTuple

from mlirfuse.core.errors import ScheduleError, UnsupportedError
from mlirfuse.export.paths import Path
from mlirfuse.export.specialization import ExportSpecialization
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Value
from mlirfuse.schedule.scheduler import SizedCall
from mlirfuse.schedule.targets import GpuTarget

VECTOR_BYTES = 16  # alignments beyond make no difference to a choice
_LANES = 32  # elements of the widest vector: further powers of two that divide a size make no difference
_DENSE = 4096  # sizes up to here are all looked at
_STEP, _LARGEST = 1.02, 1 << 32  # then each larger than the last by this factor, up to here
# From one power to the next where several sizes are open; wider ones make fewer programs.
RANGES = (16, 256, 1 << 16, 1 << 32)
_RANGE_OF_ONE = 4


class GpuChoice:
    """Chooses parameters for the programs of one function on ``target``. ``most``: how many programs there may be, of
    which a table may have half: other specializations and alignments need some. ``apart``: one of ``RANGES``."""

    def __init__(self, target: GpuTarget, most: int, apart: int):
        self.target, self.most, self.apart = target, most, apart
        self._tables: dict[ExportSpecialization, _Table] = {}

    def parameters(self, kind: ExportSpecialization, path: Path, alignments: dict[Value, Any]) -> tuple:
        """The parameters for the sizes at the end of ``path``. What the kernels assume is checked on the path, so that
        it holds for all sizes that end there. Raises :class:`UnsupportedError` where no kernel serves them all."""
        wide = all(n >= VECTOR_BYTES for n in alignments.values())
        aligned = {v: VECTOR_BYTES if wide else v.dtype.bytes for v in alignments}
        names = sorted(sz.symbols_of(kind.sizes.values()))
        if wide and len(names) == 1:
            table = self._table(kind, names[0], aligned)
            params = table.at(path) if len(table.choices) <= self.most // 2 else None
            if params is not None:
                self._check(kind, path, params, aligned)
                return params
        return self._of_range(kind, path, names, aligned)

    def _table(self, kind: ExportSpecialization, name: str, alignments: dict[Value, int]) -> _Table:
        if kind not in self._tables:
            self._tables[kind] = _Table(self.target, kind, name, alignments)
        return self._tables[kind]

    def _check(self, kind: ExportSpecialization, path: Path, params: tuple, alignments: dict[Value, int]) -> None:
        program = kind.program
        env = kind.env(path.number)
        checked = program.aligned(alignments, env)
        for step, choice in zip(program.steps, params):
            self.target.schedulers.check(step.analysis, choice, SizedCall(env, checked, self.target.properties))

    def _of_range(
        self, kind: ExportSpecialization, path: Path, names: list[str], alignments: dict[Value, int]
    ) -> tuple:
        """The choice for a point of the range that the sizes are in."""
        apart = _RANGE_OF_ONE if len(names) == 1 else self.apart
        for one in (_Range.representative, _Range.odd, _Range.largest):
            named = {name: one(_Range(path, name, apart)) for name in names}
            sizes = {name: sz.substitute(size, named) for name, size in kind.sizes.items()}
            params = self.target.parameters(kind.program, sizes, alignments)
            with contextlib.suppress(ScheduleError):
                self._check(kind, path, params, alignments)
                return params
        shown = ", ".join(f"{name} about {path.point[name]}" for name in names)
        raise UnsupportedError(
            f"no kernel for {self.target.properties.chip} serves all sizes of a range ({shown}): give the lengths of "
            "rows that are reduced as numbers"
        )


class _Choices(NamedTuple):
    """Parameters, and the sizes from which on each is the choice."""

    starts: list[int]
    params: list[tuple | None]


class _Table:
    """The choice for each value of one size: for each power of two that divides the size, from which value on."""

    def __init__(self, target: GpuTarget, kind: ExportSpecialization, name: str, alignments: dict[Value, int]):
        self._target, self._kind, self._name, self._alignments = target, kind, name, alignments
        powers = [1 << k for k in range(_LANES.bit_length())]
        self._by_power = {power: self._choices(power) for power in powers}

        self.choices = {params for found in self._by_power.values() for params in found.params if params is not None}

    def at(self, path: Path) -> tuple | None:
        """The choice at the end of ``path``; None where there is none."""
        number, power = path.number(sz.symbol(self._name)), 1
        while power < _LANES and number % (2 * power) == 0:
            power *= 2
        starts, params = self._by_power[power]
        low, high = 0, len(starts)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if number >= starts[middle] else (low, middle)
        return params[low]

    def _choices(self, power: int) -> _Choices:
        """The choices for sizes that ``power`` is the largest power of two, up to ``_LANES``, to divide."""
        apart = power if power == _LANES else 2 * power
        found = _Choices([power], [self._chosen(power)])
        last = power
        while last < _LARGEST:
            size = last + max(apart, int((_STEP - 1) * last) // apart * apart if last > _DENSE else 0)
            chosen = self._chosen(size)
            while chosen != found.params[-1]:  # find the first other choice behind ``last``
                low, high = last, size
                while high - low > apart:
                    middle = low + (high - low) // apart // 2 * apart
                    same = self._chosen(middle) == found.params[-1]
                    low, high = (middle, high) if same else (low, middle)
                found.starts.append(high)
                found.params.append(self._chosen(high))
                last = high
            last = size
        return found

    def _chosen(self, size: int) -> tuple | None:
        if not all(condition.at({self._name: size}) for condition in self._kind.conditions):
            return None
        env = {name: sz.substitute(n, {self._name: size}) for name, n in self._kind.sizes.items()}
        with contextlib.suppress(ScheduleError):
            return self._target.parameters(self._kind.program, env, self._alignments)
        return None


class _Range:
    """The powers of ``step`` that a size is between, which is a condition of the path."""

    def __init__(self, path: Path, name: str, step: int):
        self.number, self.least, self.step = path.number(sz.symbol(name)), 1, step
        while self.number >= self.step * self.least:
            self.least *= self.step

    def representative(self) -> int:
        """A size in the middle; of the multiples of 8, which vectors divide, another than of the rest."""
        return max(self.least * self.step // 2, 8) if self.number % 8 == 0 else self.odd()

    def odd(self) -> int:
        return self.least * self.step // 2 + 1

    def largest(self) -> int:
        return self.least * self.step - 1
