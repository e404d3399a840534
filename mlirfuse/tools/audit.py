"""``python -m mlirfuse audit SCRIPT``: runs a script, and says what each kernel takes and could take."""

from __future__ import annotations

import argparse
import os
import runpy
import sys

from mlirfuse.inspect import launch_audit


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m mlirfuse audit",
        description="Runs a script, and prints all kernels of mlirfuse that it launched, those first that lose most "
        "time against a copy of as many bytes, or as many operations, on this device.",
    )
    parser.add_argument("--tune", action="store_true", help="also measure other schedules of each kernel")
    parser.add_argument("--save", metavar="FILE", help="write a page (.html) or all figures (.json), too")
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="what the script finds in sys.argv")
    args = parser.parse_args(argv)
    if not os.path.isfile(args.script):
        sys.stderr.write(f"python -m mlirfuse audit: error: no file '{args.script}'\n")
        return 2
    before, sys.argv = sys.argv, [args.script, *args.arguments]
    sys.path.insert(0, os.path.dirname(os.path.abspath(args.script)))
    status = 0

    def run() -> None:
        nonlocal status
        try:
            runpy.run_path(args.script, run_name="__main__")
        except SystemExit as exit:  # as scripts end: what they have launched is told nevertheless
            status = exit.code if isinstance(exit.code, int) else int(exit.code is not None)

    try:
        found = launch_audit.audited_once(run, args.tune)
    finally:
        sys.argv = before
    if args.save:
        found.save(args.save)
    print(found)
    return status
