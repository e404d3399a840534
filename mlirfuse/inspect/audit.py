"""Each kernel of a step beside what the device could do: an audit, as tables, a page or JSON.

The bound of a kernel is the largest of: a copy of as many bytes, its operations in registers, and a launch
(:mod:`mlirfuse.inspect.rates`, all measured on the device). What it takes beyond is lost.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from mlirfuse.inspect import listing
from mlirfuse.inspect.rates import Rates
from mlirfuse.inspect.shown import Table, Tables, page

LAUNCH_MS = 0.005  # on a GPU: a kernel whose bound is less is judged by its launch
_LARGE = 0.01  # of the peak: what holds less has no row of its own
CPU_MS = 1.0  # on a CPU: a kernel that takes less is not judged
_HEADINGS = ("lost ms", "ms", "bound ms", "of bound", "limit", "times", "scheduler", "bytes read", "bytes written",
             "operations", "GB/s", "best ms", "ops", "lines", "schedule")  # fmt: skip
_SORTED_BY = (*_HEADINGS[:4], "times", "bytes read", "bytes written", "operations", "GB/s")


@dataclass
class AuditedKernel:
    """A kernel, with all launches of it in a step that are equal. ``ms`` and ``bound_ms`` are those of all ``times``
    launches; ``read``, ``written`` (bytes) and ``operations`` those of one. ``limit``: what the bound is of ("memory",
    "cache", "operations", "launch"), or "" for a kernel that is not judged. ``where``: the graph or function that it is
    of. ``best_ms``: what the best schedule takes that was measured, of all launches; None: none was. ``features``: of
    one launch, by name (:class:`mlirfuse.analysis.cost.Features`); empty where they are not known."""

    where: str
    scheduler: str
    ops: str
    lines: str
    schedule: str
    times: int
    ms: float
    read: int
    written: int
    operations: int
    bound_ms: float = 0.0
    limit: str = ""
    best_ms: float | None = None
    features: dict[str, float] = field(default_factory=dict)

    @property
    def lost_ms(self) -> float:
        """What it takes beyond its bound; 0 for a kernel that is not judged."""
        return max(self.ms - self.bound_ms, 0.0) if self.limit else 0.0

    @property
    def of_bound(self) -> float:
        """The bound's share of its time, at most 1; 1 for a kernel that is not judged."""
        return min(self.bound_ms / self.ms, 1.0) if self.limit and self.ms else 1.0

    def repeated(self, times: int) -> AuditedKernel:
        """This kernel, launched so often."""
        share = times / self.times
        best = None if self.best_ms is None else self.best_ms * share
        return dataclasses.replace(self, times=times, ms=self.ms * share, bound_ms=self.bound_ms * share, best_ms=best)

    def judge(self, rates: Rates, cache_bytes: int, double: bool = False) -> None:
        """Sets the bound, and what it is of. ``cache_bytes``: the size of the cache that all of the device shares."""
        moved, each = self.read + self.written, self.ms / max(self.times, 1)
        if rates.device is None and each < CPU_MS:
            self.bound_ms, self.limit = 0.0, ""
            return
        copied, computed = rates.copy_ms(moved), rates.operations_ms(self.operations, double)
        bound, self.limit = max((copied, "memory" if moved > cache_bytes else "cache"), (computed, "operations"))
        if rates.device is not None and bound < LAUNCH_MS:
            bound, self.limit = max(bound, rates.launch_ms), "launch"
        self.bound_ms = bound * self.times


@dataclass
class Audit(Tables):
    """A step, its kernels by the time that they lose, the most first. ``ms``: the step's time on the device, on a CPU
    that of the call; ``host_ms``: what the host needs for it. ``other``: what else ran, by kind: milliseconds and how
    often. ``memory``: what holds memory at the step's peak, with bytes, the largest first; ``peak``: all of it."""

    device: str
    kernels: list[AuditedKernel]
    ms: float = 0.0
    host_ms: float = 0.0
    other: dict[str, tuple[float, int]] = field(default_factory=dict)
    memory: list[tuple[str, int]] = field(default_factory=list)
    peak: int = 0

    def __post_init__(self) -> None:
        self.kernels.sort(key=lambda k: (-k.lost_ms, -k.ms))

    @property
    def kernel_ms(self) -> float:
        """What our kernels take."""
        return sum(k.ms for k in self.kernels)

    @property
    def lost_ms(self) -> float:
        """What they lose."""
        return sum(k.lost_ms for k in self.kernels)

    def summary(self) -> str:
        """One line: the step, its kernels, what they lose and what else there is."""
        parts = [f"{self.device}: a step {self.ms:.3f} ms, of the host {self.host_ms:.3f} ms"]
        launches, judged = sum(k.times for k in self.kernels), [k for k in self.kernels if k.limit]
        parts.append(f"{launches} launches of {len(self.kernels)} kernels {self.kernel_ms:.3f} ms")
        parts.append(f"lost {self.lost_ms:.3f} ms" if judged else "none of them judged")
        parts += [f"{kind} {ms:.3f} ms ({n})" for kind, (ms, n) in self.other.items()]
        parts += [f"peak {listing.bytes_text(self.peak)}"] if self.peak else []
        return "; ".join(parts)

    def tables(self) -> list[Table]:
        """The kernels, and what holds memory at the peak."""
        out = []
        if self.kernels:
            keys: dict[str, Sequence[float]] = dict(zip(_SORTED_BY, zip(*map(_numbers, self.kernels))))
            out.append(Table(_HEADINGS, [_cells(k) for k in self.kernels], "", keys))
        if self.memory:
            large = [(what, n) for what, n in self.memory if n >= _LARGE * self.peak]
            rest = len(self.memory) - len(large)
            large += (
                [(f"{rest} smaller ones", sum(n for _, n in self.memory) - sum(n for _, n in large))] if rest else []
            )
            rows = [(listing.bytes_text(n), f"{100 * n / self.peak:.1f}%", what) for what, n in large]
            title = f"memory at the peak: {listing.bytes_text(self.peak)}"
            numbers = [[n for _, n in large]] * 2
            out.append(Table(("bytes", "share", "what"), rows, title, dict(zip(("bytes", "share"), numbers))))
        return out

    def to_json(self) -> dict[str, Any]:
        """All of it as numbers, text, lists and dicts."""
        found = dataclasses.asdict(self)
        for row, kernel in zip(found["kernels"], self.kernels):
            row["lost_ms"] = kernel.lost_ms
        return found

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the page to a file, or JSON where its name ends so."""
        if os.fspath(path).endswith(".json"):
            with open(path, "w", encoding="utf-8") as file:
                json.dump(self.to_json(), file, indent=1)
                file.write("\n")
        else:
            super().save(path)

    def to_html(self) -> str:
        head = f"<h1>{escape(self.summary())}</h1>"
        return page(self.summary(), [head, self._bars(), *(table.to_html() for table in self.tables())])

    def _bars(self) -> str:
        """A bar for each kernel that is judged, as wide as its time: the bound's part, and what is lost."""
        shown = [k for k in self.kernels if k.limit][:40]
        scale, bars = 100 / max([k.ms for k in shown] or [1.0]), []
        for at, k in enumerate(shown):
            y, bound = 14 * at, min(k.bound_ms, k.ms)
            for x, width, color in ((0.0, bound, "#5b8bc9"), (bound, k.ms - bound, "#c0392b")):
                bars.append(f'<rect x="{x * scale:.3f}" width="{width * scale:.3f}" y="{y}" height="12" '
                            f'fill="{color}"><title>{escape(_tip(k))}</title></rect>')  # fmt: skip
        size = f'viewBox="0 0 100 {14 * len(shown)}" width="100%" height="{14 * len(shown)}"'
        key = '<span style="color: #5b8bc9">■ bound</span> &nbsp; <span style="color: #c0392b">■ lost</span>'
        svg = f'<svg xmlns="http://www.w3.org/2000/svg" {size} preserveAspectRatio="none">{"".join(bars)}</svg>'
        return f"{svg}<div>{key}</div>" if shown else ""


def merged(kernels: Iterable[AuditedKernel]) -> list[AuditedKernel]:
    """Equal kernels as one, whose times are added."""
    alike: dict[tuple[Any, ...], AuditedKernel] = {}
    for k in kernels:
        key = k.where, k.scheduler, k.ops, k.lines, k.schedule, k.read, k.written, k.operations
        first = alike.setdefault(key, k)
        if first is not k:
            first.times, first.ms, first.bound_ms = first.times + k.times, first.ms + k.ms, first.bound_ms + k.bound_ms
            first.limit = first.limit or k.limit
            first.best_ms = None if first.best_ms is None or k.best_ms is None else first.best_ms + k.best_ms
    return list(alike.values())


def _numbers(k: AuditedKernel) -> tuple[float, ...]:
    rate = (k.read + k.written) * k.times / k.ms / 1e6 if k.ms else 0.0
    return k.lost_ms, k.ms, k.bound_ms, 100 * k.of_bound, k.times, k.read, k.written, k.operations, rate


def _cells(k: AuditedKernel) -> tuple[str, ...]:
    lost, ms, bound, share, times, *_, rate = _numbers(k)
    judged = (f"{lost:.4f}", f"{ms:.4f}", f"{bound:.4f}", f"{share:.0f}%") if k.limit else ("", f"{ms:.4f}", "", "")
    best = f"{k.best_ms:.4f}" if k.best_ms is not None else ""
    sizes = listing.bytes_text(k.read), listing.bytes_text(k.written), f"{k.operations:.3g}"
    return (*judged, k.limit, str(times), k.scheduler, *sizes, f"{rate:.1f}", best, k.ops, k.lines, k.schedule)


def _tip(k: AuditedKernel) -> str:
    return f"{k.where}: {k.scheduler}: {k.ms:.4f} ms, bound {k.bound_ms:.4f} ms ({k.limit})\n{k.ops}\n{k.lines}"
