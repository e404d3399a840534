"""What is computed from the sizes of a call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def inverse_of(size: int) -> int:
    """``factor | shift << 32``, such that ``n * factor >> shift`` is ``n // size`` for 0 <= n < 2**31 (Granlund and
    Montgomery, Division by invariant integers using multiplication, 1994)."""
    size = max(size, 1)  # of an empty tensor nothing is divided
    shift = 31 + (size - 1).bit_length()
    return (1 << shift) // size + 1 | shift << 32


def place(nbytes: Sequence[int], spans: Sequence[tuple[int, int]]) -> tuple[list[int], int]:
    """Where buffers begin in a workspace, in bytes, and how large it is. ``spans``: the first and the last step that
    each is needed in; those that are never needed together may share memory."""
    offsets: list[int] = []
    workspace = 0
    placed: list[tuple[int, int, int, int]] = []  # (offset, end, first, last)
    for size, (first, last) in zip(nbytes, spans):
        size = (size + 255) // 256 * 256
        offset = 0
        for start, end, f, l in sorted(placed):
            if f <= last and first <= l and start < offset + size and offset < end:
                offset = end
        placed.append((offset, offset + size, first, last))
        offsets.append(offset)
        workspace = max(workspace, offset + size)
    return offsets, workspace


def function(source: str, names: Sequence[str]) -> Callable[..., Any]:
    """A function of the sizes ``names``, in this order, that gives what the Python expression ``source`` says."""
    scope = {"max": max, "min": min, "inverse_of": inverse_of}
    exec(f"def evaluate({', '.join(names)}):\n    return {source}", scope)
    found: Callable[..., Any] = scope["evaluate"]  # type: ignore[assignment]
    return found


def choice(tree: Any, names: Sequence[str]) -> Callable[..., int]:
    """A function of the sizes that goes through a tree of conditions, ``[condition, where it holds, where not]``, to
    the number at its end; -1 where there is none."""
    lines = [f"def choose({', '.join(names)}):"]
    pending: list[tuple[Any, int]] = [(tree, 1)]
    while pending:
        node, depth = pending.pop()
        if not isinstance(node, list):
            lines.append(f"{' ' * depth}return {-1 if node is None else node}")
            continue
        condition, yes, no = node
        lines.append(f"{' ' * depth}if {condition}:")
        pending += [(no, depth), (yes, depth + 1)]
    scope = {"max": max, "min": min}
    exec("\n".join(lines), scope)
    found: Callable[..., int] = scope["choose"]
    return found
