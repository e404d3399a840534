"""An explanation as one self-contained HTML page: the drawn graph, its kernels and its ops."""

from __future__ import annotations

import functools
import json
from html import escape
from pathlib import Path
from string import Template

from mlirfuse.inspect import listing
from mlirfuse.inspect.picture import Picture


def _listing(picture: Picture) -> str:
    """Return the ops in program order, as an HTML table."""
    e, rows, last = picture.e, [], None
    number = {k.segment: k for k in e.kernels}
    for op in picture.ops:
        kernel = number.get(op.segment)
        where = (
            f"{kernel.number}"
            if kernel is not None and op not in picture.views
            else "view"
            if op in picture.views
            else "outside"
        )
        source = listing.source(op.loc) if op.loc != last else ""
        last = op.loc
        cells = [
            str(picture.number[op]),
            picture.names.statement(op),
            ", ".join(picture.names.type(v) for v in op.results),
            where,
            listing.place(op.loc),
            source,
        ]
        rows.append(
            f'<tr data-op="op{picture.number[op]}">' + "".join(f"<td>{escape(c)}</td>" for c in cells) + "</tr>"
        )
    heads = "".join(f"<th>{h}</th>" for h in ("", "op", "type", "kernel", "line", "source"))
    return f'<table class="ops"><tr>{heads}</tr>{"".join(rows)}</table>'


def _kernels(e) -> str:
    rows = []
    for k in e.kernels:
        threads = "<br>".join(map(escape, k.threads))
        cells = [
            str(k.number),
            k.scheduler,
            str(len(k.launches)),
            str(len(k.ops)),
            listing.bytes_text(k.bytes_read),
            listing.bytes_text(k.bytes_written),
        ]
        rows.append(
            "<tr>"
            + "".join(f"<td>{escape(c)}</td>" for c in cells)
            + f"<td>{threads}</td><td>{escape(k.chosen)}</td><td>{escape(k.why)}</td></tr>"
        )
    heads = "".join(
        f"<th>{h}</th>"
        for h in (
            "kernel",
            "scheduler",
            "launches",
            "ops",
            "reads",
            "writes",
            "threads",
            "chosen",
            "why it is a kernel of its own",
        )
    )
    return f'<table class="kernels"><tr>{heads}</tr>{"".join(rows)}</table>' if rows else ""


@functools.cache
def _template() -> Template:
    return Template(Path(__file__).with_name("page.html").read_text(encoding="utf-8"))


def page(explanation) -> str:
    """Return the HTML page of an :class:`mlirfuse.inspect.explain.Explanation`."""
    picture = Picture(explanation)
    svg = picture.draw()
    sections = []
    for title, items in (
        ("Outside of kernels", explanation.outside),
        ("Views, which cost no kernel", explanation.views),
    ):
        if items:
            rows = "".join(
                f"<tr><td>{escape(o.line.text)}</td><td>{escape(o.line.type)}</td><td>{escape(o.why)}</td><td>{escape(o.line.place)}</td></tr>"
                for o in items
            )
            sections.append(f"<h2>{title}</h2><table>{rows}</table>")
    if explanation.notes:
        sections.append(
            "<h2>Not merged</h2><ul>" + "".join(f"<li>{escape(note)}</li>" for note in explanation.notes) + "</ul>"
        )
    sections += [table.to_html() for table in explanation.rejections()]
    return _template().substitute(
        name=escape(explanation.name),
        summary=escape(explanation.summary()),
        kernels=_kernels(explanation),
        svg=svg,
        listing=_listing(picture),
        sections="".join(sections),
        tips=json.dumps(picture.tips).replace("</", "<\\/"),
    )
