"""What the generators of pages share: writing a page, or saying whether it is current."""

import os
import sys


def write_or_check(path: str, text: str, generator: str, settled=str) -> int:
    """Writes ``text`` to ``path``; with ``--check`` on the command line, the exit status says whether it is there
    already, as far as ``settled(text)`` goes."""
    if "--check" not in sys.argv[1:]:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return 0
    current = os.path.exists(path) and settled(open(path, encoding="utf-8").read()) == settled(text)
    page = f"docs/{os.path.basename(path)}"
    print(f"{page} is up to date" if current else f"{page} is out of date: run docs/{generator}")
    return 0 if current else 1
