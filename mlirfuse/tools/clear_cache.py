"""``python -m mlirfuse clear-cache``: removes the compiled code in the disk cache."""

from __future__ import annotations

import argparse
import sys

from mlirfuse.inspect.listing import bytes_text
from mlirfuse.runtime import cache


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m mlirfuse clear-cache",
        description="Removes the compiled code in the cache on disk, and no other file there. Programs that "
        "run meanwhile compile again what they need.",
    )
    parser.parse_args(argv)
    try:
        removed, nbytes = cache.clear()
        left = len(cache.entries())
    except OSError as error:
        sys.stderr.write(f"{cache.folder()}: error: cannot be read: {error.strerror}\n")
        return 1
    print(f"removed {removed} entries, {bytes_text(nbytes)}, from {cache.folder()}")
    if left:
        sys.stderr.write(f"{cache.folder()}: error: {left} entries cannot be removed\n")
    return 1 if left else 0
