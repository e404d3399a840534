"""Descriptions of launches as text, for the levels' text, explanations and dumps."""

from __future__ import annotations

from typing import Any

from mlirfuse.ir import sizes as sz


def kernels_of(step: Any, kernels: list) -> list:
    """Return those of ``kernels`` that belong to a program's step."""
    return [k for k in kernels if is_of(step, k.name)]


def launch_of(step: Any, kernels: list) -> Any:
    """Return the one of ``kernels`` that runs a program's step in the launch of another step; None if there is none."""
    found = (k for k in kernels for member in getattr(k, "members", ()) if is_of(step, member.name))
    return next((k for k in found if not is_of(step, k.name)), None)


def is_of(step: Any, name: str) -> bool:
    """Whether a kernel of this name belongs to a program's step."""
    return name == step.name or name.startswith(f"{step.name}_")


def launched(kernel: Any) -> str:
    """Describe a kernel's launch, in terms of the symbols of its sizes."""
    if hasattr(kernel, "grid"):
        cluster = f", clusters of {kernel.cluster}" if kernel.cluster > 1 else ""
        return f"{kernel.grid} blocks of {kernel.threads} threads{cluster}"
    return f"{kernel.tasks} tasks, {kernel.grain} at a time"


def threads_text(kernel: Any, env: dict[str, int]) -> str:
    """Describe the threads, or tasks, of a kernel in a call with these sizes."""
    if hasattr(kernel, "grid"):
        blocks = sz.substitute(kernel.grid, env)
        cluster = f" in clusters of {kernel.cluster}" if kernel.cluster > 1 else ""
        return f"{count(blocks, 'block')} of {kernel.threads} threads{cluster}"
    tasks, grain = sz.substitute(kernel.tasks, env), sz.substitute(kernel.grain, env)
    return f"{count(tasks, 'task')}, {grain} at a time" if 1 < grain < tasks else count(tasks, "task")


def count(n: int, word: str, plural: str = "s") -> str:
    """Format ``n`` with a noun."""
    return f"{n} {word}{plural if n != 1 else ''}"
