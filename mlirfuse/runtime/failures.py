"""Reports of a graph that failed to compile: the error, the segment, the op and its line in the user's program, and
what to send in a bug report: the graph as a file, and the command that compiles it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from typing import Any

from mlirfuse.core import config
from mlirfuse.core.device_properties import DeviceProperties
from mlirfuse.core.errors import located
from mlirfuse.dialects import fusion
from mlirfuse.ir.graph import Graph, Op
from mlirfuse.passes.base import Pass
from mlirfuse.schedule.program import SegmentedProgram, Step
from mlirfuse.schedule.targets import Target


def innermost(error: BaseException, types: Mapping[str, type]) -> Any:
    """Return the value of a local variable with one of these names and its type, from the innermost frame of the
    error's traceback that has one; None if none has."""
    found, trace = None, error.__traceback__
    while trace is not None:
        for name, type_ in types.items():
            value = trace.tb_frame.f_locals.get(name)
            found = value if isinstance(value, type_) else found
        trace = trace.tb_next
    return found


def describe(error: BaseException) -> str:
    """Return the error's message, with the pass or the segments that were being compiled, the op and its line: those
    that the error names, else those in the innermost frames that have any."""
    op, step, program, done = (
        innermost(error, types)
        for types in (
            {"op": Op},
            {"step": Step},
            {"program": SegmentedProgram, "self": SegmentedProgram},
            {"step": Pass},
        )
    )
    message = f"{type(error).__name__}: {error}"
    steps = [step] if step is not None else getattr(program, "steps", [])  # a program may fail before it has them
    if steps:
        message += f"\n  in {'; '.join(map(_segment, steps))}"
    elif done is not None:
        message += f"\n  in the pass {done.name}"
    location = getattr(error, "loc", None)
    if location is None and op is not None:
        message, location = f"{message}\n  at the op {op.name}", op.loc
    return located(message, location or next((o.loc for s in steps for o in s.analysis.ops if o.loc), None))


def _segment(step: Step) -> str:
    """Return a segment's number, scheduler and ops, for output."""
    ops = ", ".join(dict.fromkeys(op.name for op in step.analysis.ops if not op.row.literal))
    return f"segment {step.segment.number} ({step.segment.scheduler}: {ops})"


def bug_report(graph: Graph, target: Target | None, env: Mapping[str, int]) -> str:
    """Write ``graph`` to a file, in the folder of dumps or of temporary files; return a text with the command that
    compiles it for these sizes. ``target`` None: the requested target does not exist."""
    if target is None:
        return "nothing was compiled: the target does not exist"
    try:
        folder = config.dump_dir or None
        if folder:
            os.makedirs(folder, exist_ok=True)
        handle, path = tempfile.mkstemp(prefix=f"mlirfuse_{graph.name}_", suffix=".mlir", dir=folder)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(fusion.to_module_text([graph], locations=True))
    except Exception as problem:  # the first error is the one to report
        return f"to report it, send the function; its graph could not be written: {problem}"
    return (
        f"to report it, send {path}, with: mlirfuse-opt {path} --pass-pipeline='builtin.module({_passes(target, env)})'"
    )


def _passes(target: Target, env: Mapping[str, int]) -> str:
    code, chip = (
        ("ptx", f"chip={target.properties.chip} ") if isinstance(target.properties, DeviceProperties) else ("llvm", "")
    )
    if hasattr(target, "levels_below"):  # the lowering through linalg
        return f"fusion-to-linalg,linalg-to-{code}{{{chip.strip()}}}"
    sizes = ",".join(f"{name}:{n}" for name, n in env.items() if name.startswith(("s", "t")) and n > 0)
    return f"fusion-to-{code}{{{chip}sizes={sizes}}}"
