"""Common base of explanations: text by ``print``, a page by ``save``, and the page in a notebook."""

from __future__ import annotations

import abc
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from mlirfuse.inspect import listing

_STYLE = """
:root { color-scheme: light; }
body { font: 13px/1.45 system-ui, sans-serif; margin: 20px 24px; color: #1c2430; background: #fff; }
h1 { font-size: 17px; margin: 0 0 10px; } h2 { font-size: 14px; margin: 22px 0 6px; }
table { border-collapse: collapse; font-size: 12.5px; max-width: 100%; }
th { text-align: left; font-weight: 600; color: #5a6675; white-space: nowrap; cursor: pointer; }
th[data-up="1"]::after { content: " \\25b2"; } th[data-up="-1"]::after { content: " \\25bc"; }
th, td { padding: 3px 14px 3px 0; vertical-align: top; border-bottom: 1px solid #e8ebef; }
td { overflow-wrap: anywhere; max-width: 60ch; } td.number { text-align: right; white-space: nowrap; }
iframe { width: 100%; height: 90vh; border: 0; }
"""
# A click on a heading sorts by its column, by the keys of its cells if they have any; a second click reverses the
# order.
_SORT = """
document.querySelectorAll("th").forEach(head => head.addEventListener("click", () => {
  const table = head.closest("table"), at = head.cellIndex, up = head.dataset.up == "1" ? -1 : 1;
  table.querySelectorAll("th").forEach(other => delete other.dataset.up);
  head.dataset.up = up;
  const key = row => row.cells[at].dataset.key ?? row.cells[at].textContent;
  const compare = (a, b) => a !== "" && b !== "" && !isNaN(a) && !isNaN(b) ? a - b : a < b ? -1 : a > b ? 1 : 0;
  const rows = [...table.tBodies[0].rows].sort((a, b) => up * compare(key(a), key(b)));
  table.tBodies[0].append(...rows);
}));
"""


class Shown(abc.ABC):
    """An explanation: ``str()`` returns text, :meth:`save` writes a page, and a notebook shows that page. ``rejected``:
    the ways to run that were considered before the one explained, and why each was not taken."""

    rejected: Sequence[tuple[str, str]] = ()

    def rejections(self) -> list[Table]:
        """Return the table of what was ``rejected``, if there is any."""
        return [Table(("not run by", "because"), self.rejected)] if self.rejected else []

    @abc.abstractmethod
    def to_html(self) -> str:
        """Return the self-contained page."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write :meth:`to_html` to a file."""
        with open(path, "w", encoding="utf-8") as file:
            file.write(self.to_html())

    def _repr_html_(self) -> str:
        return frame(self.to_html(), "width: 100%; height: 36em; border: 1px solid #dfe3e8")


@dataclass
class Table:
    """Rows of text under headings. ``keys``: numbers to sort a column by, one for each row, where that is not its text;
    such columns are right-aligned."""

    headings: Sequence[str]
    rows: Sequence[Sequence[Any]]
    title: str = ""
    keys: dict[str, Sequence[float]] = field(default_factory=dict)

    def __str__(self) -> str:
        title = f"{self.title}\n" if self.title else ""
        return title + listing.table(self.rows, "  ", self.headings)

    def to_html(self) -> str:
        """Return the table, sortable by its headings."""
        heads = "".join(f"<th>{escape(name)}</th>" for name in self.headings)
        rows = "".join(f"<tr>{''.join(self._cells(k, row))}</tr>" for k, row in enumerate(self.rows))
        title = f"<h2>{escape(self.title)}</h2>" if self.title else ""
        return f"{title}<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"

    def _cells(self, k: int, row: Sequence[Any]) -> Iterable[str]:
        for name, cell in zip(self.headings, row):
            key = f' class="number" data-key="{self.keys[name][k]:.9g}"' if name in self.keys else ""
            yield f"<td{key}>{escape(str(cell))}</td>"


def frame(page: str, style: str = "") -> str:
    """Embed a page in another one, isolated from its styles and names."""
    return f'<iframe srcdoc="{escape(page)}"{f" style={chr(34)}{style}{chr(34)}" if style else ""}></iframe>'


def page(title: str, parts: Iterable[str]) -> str:
    """Return a page of these HTML sections."""
    body = "".join(parts)
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style></head><body>{body}<script>{_SORT}</script></body></html>\n"
    )


class Tables(Shown):
    """An explanation that consists of a sentence and tables."""

    @abc.abstractmethod
    def summary(self) -> str:
        """Return the summary, one or two lines."""

    @abc.abstractmethod
    def tables(self) -> list[Table]:
        """Return the tables."""

    def __str__(self) -> str:
        tables = [*self.tables(), *self.rejections()]
        return "\n".join([f"{self.summary()}\n" if tables else self.summary(), *map(str, tables)])

    def to_html(self) -> str:
        head = f"<h1>{escape(self.summary())}</h1>"
        return page(self.summary(), [head, *(table.to_html() for table in [*self.tables(), *self.rejections()])])
