"""``python -m mlirfuse export module.py:norm --arg float32[n,1024] --arg float -o norm.so``."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

from mlirfuse.core.errors import MlirfuseError, nearest
from mlirfuse.export import export, parse
from mlirfuse.export.artifact import TARGETS
from mlirfuse.tools.command import command


@command
def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m mlirfuse export",
        description="Compiles a function ahead of time and saves it: as a C library (.so, with its header), as its "
        "source (.c), or as one file for Python without the compiler (.mlirfuse).",
    )
    parser.add_argument("function", metavar="FILE.py:NAME", help="a function or FusionDefinition; or MODULE:NAME")
    parser.add_argument(
        "--arg",
        metavar="SPEC",
        action="append",
        default=[],
        help="for each argument, in order: float32[n,1024], with strides float32[n,m:s,1], float, int, bool, or a "
        "number that is a constant",
    )
    parser.add_argument("--target", action="append", metavar="TARGET", help=f"default: {', '.join(TARGETS)}")
    parser.add_argument("--max-programs", type=int, default=64, metavar="N", help="for each target; default: 64")
    parser.add_argument("-o", "--output", action="append", required=True, metavar="FILE", help="may be given again")
    args = parser.parse_args(argv)
    try:
        specs = [parse(text) for text in args.arg]
        artifact = export(_found(args.function), *specs, targets=args.target or TARGETS, max_programs=args.max_programs)
        for path in args.output:
            artifact.save(path)
    except (MlirfuseError, ValueError, TypeError, OSError, LookupError) as error:
        sys.stderr.write(f"python -m mlirfuse export: error: {error}\n")
        return 1
    counted = ", ".join(f"{count} for {target}" for target, count in artifact.programs.items())
    print(f"{', '.join(args.output)}: {artifact.name}, programs: {counted}")
    return 0


def _found(text: str) -> Any:
    """What ``FILE.py:NAME`` or ``MODULE:NAME`` names. Raises ValueError and LookupError where there is no such
    thing."""
    where, colon, name = text.rpartition(":")
    if not colon:
        raise ValueError(f"'{text}' names no function: write FILE.py:NAME")
    if where.endswith(".py"):
        spec = importlib.util.spec_from_file_location(Path(where).stem, where)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
    else:
        module = importlib.import_module(where)
    found = getattr(module, name, None)
    if found is None:
        among = [n for n, value in vars(module).items() if callable(value) and not n.startswith("_")]
        raise LookupError(f"{where} has no '{name}'{nearest(name, among) if among else ''}")
    return found
