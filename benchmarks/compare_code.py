#!/usr/bin/env python3
"""Compare what two checkouts compile the benchmarks' tables to: PTX of both GPU tables, LLVM IR of the CPU's.

    python benchmarks/compare_code.py ../before . --names accumulation=scatter_add

Needs no GPU. A change that only moves or renames code leaves every row equal. ``--names``: parts of kernels' names that
changed, OLD=NEW with commas between; they are replaced in the code of the first checkout. Exits with 1 if a row
differs.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import subprocess
import sys
from pathlib import Path

CHIP = "sm_90"


def code_of(workload, target: str, level: str) -> str:
    """The text at ``level`` of a row's function on arrays of zeros that take no memory."""
    from workloads import inputs_without_memory

    import mlirfuse

    inputs = inputs_without_memory(workload)
    return mlirfuse.jit(workload.fused, target=target).lower(*inputs).as_text(level)


def dump(checkout: str, file: str) -> None:
    """Write the code of every row of a checkout, whose modules this process imports."""
    import second_table
    import workloads

    import mlirfuse

    for module in (mlirfuse, workloads):
        if not Path(module.__file__).is_relative_to(checkout):
            sys.exit(f"{module.__file__} is imported, which is not in {checkout}: is mlirfuse installed as editable?")
    gpu = f"cuda:{CHIP}", "ptx"
    tables = {
        "first": (workloads.gpu_table(), *gpu),
        "second": (second_table.second_table(), *gpu),
        "cpu": (workloads.cpu_table(), "cpu", "llvm"),
    }
    found = {}
    for table, (rows, target, level) in tables.items():
        for at, row in enumerate(rows):
            key = f"{table} {at}: {row.name}, {row.shape}"
            try:
                found[key] = code_of(row, target, level)
            except Exception as error:  # a row that does not compile has to fail likewise
                found[key] = f"{type(error).__name__}: {error}"
    Path(file).write_text(json.dumps(found))


def dumped(checkout: Path, file: Path) -> dict[str, str]:
    """What the checkout compiles each row to, in a process of its own."""
    folders = os.pathsep.join([str(checkout), str(checkout / "benchmarks")])
    environment = os.environ | {"PYTHONPATH": folders, "MLIRFUSE_CACHE": "0"}
    command = [sys.executable, "-P", __file__, "--dump", str(checkout), str(file)]
    subprocess.run(command, env=environment, check=True)
    return json.loads(file.read_text())


def main() -> int:
    if sys.argv[1:2] == ["--dump"]:
        dump(*sys.argv[2:])
        return 0
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--names", default="", help="OLD=NEW, with commas between")
    parser.add_argument("--folder", type=Path, default=Path("/tmp"), help="where the code of both is written")
    args = parser.parse_args()
    before = dumped(args.before.resolve(), args.folder / "before.json")
    after = dumped(args.after.resolve(), args.folder / "after.json")
    differ = sorted(before.keys() ^ after.keys())
    for row in before.keys() & after.keys():
        old = before[row]
        for name in filter(None, args.names.split(",")):
            old = old.replace(*name.split("="))
        if old != after[row]:
            differ.append(row)
            lines = difflib.unified_diff(old.split("\n"), after[row].split("\n"), lineterm="", n=0)
            print(row, *list(lines)[:8], sep="\n  ")
    print(f"{len(before)} rows, {len(differ)} differ")
    return int(bool(differ))


if __name__ == "__main__":
    sys.exit(main())
