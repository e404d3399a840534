"""What the generators of pages share: prose in lines, and writing a page or saying whether it is current."""

import os
import re
import sys
import textwrap

WIDTH = 120  # columns of prose
_ALONE = re.compile(r"#|\||!\[|<")  # lines that are no part of a paragraph: headings, tables, pictures, HTML
_ITEM = re.compile(r"([-*] |\d+\. )")


def wrapped(text: str) -> str:
    """A page whose paragraphs and list items are filled to lines of :data:`WIDTH`; code and tables stay as they are."""
    out: list[str] = []
    prose: list[str] = []
    fence = ""

    def flush() -> None:
        if prose:
            out.extend(_filled(prose))
            prose.clear()

    for line in text.split("\n"):
        mark = re.match(r"\s*(```+)", line)
        if fence or mark:
            flush()
            out.append(line)
            fence = "" if fence and line.strip() == fence else fence or (mark.group(1) if mark else "")
        elif not line.strip() or _ALONE.match(line) or (line.startswith("    ") and not prose):
            flush()
            out.append(line)
        else:
            if _ITEM.match(line.lstrip()):
                flush()
            prose.append(line)
    flush()
    return "\n".join(out)


def _filled(lines: list[str]) -> list[str]:
    """One paragraph or list item. Links are not broken, nor spans of code: a line in one might begin as a list does."""
    indent = lines[0][: len(lines[0]) - len(lines[0].lstrip())]
    text = " ".join(line.strip() for line in lines)
    item = _ITEM.match(text)
    later = indent + " " * len(item.group(1)) if item else indent
    whole = re.sub(r"\[[^\]]*\]\([^)]*\)|`[^`]*`", lambda span: span.group().replace(" ", "\0"), text)
    filled = textwrap.wrap(
        whole,
        WIDTH,
        initial_indent=indent,
        subsequent_indent=later,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace("\0", " ") for line in filled]


def write_or_check(path: str, text: str, generator: str, settled=str) -> int:
    """Writes ``text`` to ``path``; with ``--check`` on the command line, the exit status says whether it is there
    already, as far as ``settled(text)`` goes."""
    if "--check" not in sys.argv[1:]:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return 0
    current = False
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            current = settled(file.read()) == settled(text)
    page = os.path.join("docs", os.path.relpath(path, os.path.dirname(os.path.abspath(__file__))))
    print(f"{page} is up to date" if current else f"{page} is out of date: run docs/{generator}")
    return 0 if current else 1
