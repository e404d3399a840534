#!/usr/bin/env python3
"""How long the kernels of the GPU's tables take to compile, without a GPU: from a function to PTX, and ``ptxas``.

    python benchmarks/kernel_compile.py --json benchmarks/results/kernel-compile.json

That is a first call but for what the driver and the first launch take, and more by the IR's text at each level, which
no call writes. Of each row the median of a few functions of their own, after one of another row; registers and spills
of each kernel as ``ptxas`` tells them.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import time

import timing

CHIP = "sm_90"
LIMIT = 150.0  # milliseconds a kernel


def compiled(workload, ptxas: str) -> dict:
    """Milliseconds to PTX and of the assembler, and what it says of each kernel."""
    from workloads import inputs_without_memory

    import mlirfuse

    inputs = inputs_without_memory(workload)
    timing.empty_cache()
    start = time.perf_counter()
    text = mlirfuse.jit(workload.fused, target=f"cuda:{CHIP}").lower(*inputs).as_text("ptx")
    written = time.perf_counter()
    said = ""
    for module in re.split(r"(?=^\.version)", text, flags=re.MULTILINE)[1:]:
        command = [ptxas, f"-arch={CHIP}", "-v", "-", "-o", "/dev/null"]
        said += subprocess.run(command, input=module, capture_output=True, text=True, check=True).stderr
    return {
        "ptx_ms": (written - start) * 1e3,
        "ptxas_ms": (time.perf_counter() - written) * 1e3,
        "registers": [int(n) for n in re.findall(r"Used (\d+) registers", said)],
        "spilled_bytes": sum(map(int, re.findall(r"(\d+) bytes spill stores", said))),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", help="write every figure to this file")
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    timing.use_repository()
    timing.cold_caches()
    from cuda.pathfinder import find_nvidia_binary_utility
    from second_table import second_table
    from workloads import gpu_table

    ptxas = find_nvidia_binary_utility("ptxas")
    if ptxas is None:
        print("kernel_compile.py: n/a (no ptxas: pip install '.[test]')")
        return 1
    workloads = [*gpu_table(), *second_table()]
    compiled(workloads[-1], ptxas)
    figures = []
    for workload in workloads:
        runs = [compiled(workload, ptxas) for _ in range(options.repeat)]
        entry = {"name": workload.name, "shape": workload.shape, "dtype": workload.dtype, **runs[0]}
        entry.update((part, statistics.median(run[part] for run in runs)) for part in ("ptx_ms", "ptxas_ms"))
        figures.append(entry)
        print(
            f"{entry['name']:<36} {entry['shape']:>22} {entry['dtype']:<4} {entry['ptx_ms']:7.1f} + "
            f"{entry['ptxas_ms']:6.1f} ms, registers {entry['registers']}, {entry['spilled_bytes']} bytes spilled"
        )
    times = [entry["ptx_ms"] + entry["ptxas_ms"] for entry in figures]
    each = [ms / max(1, len(entry["registers"])) for ms, entry in zip(times, figures)]
    within = sum(ms <= LIMIT for ms in times), sum(ms <= LIMIT for ms in each)
    print(
        f"\n{len(times)} rows: median {statistics.median(times):.0f} ms, most {max(times):.0f}; within {LIMIT:.0f} ms "
        f"{within[0]}, {within[1]} a kernel"
    )
    if options.json:
        timing.write_json(options.json, {"environment": timing.environment(), "chip": CHIP, "rows": figures})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
