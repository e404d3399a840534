"""Maps loops over blocks and threads to ids.

A scheduler writes a GPU kernel with its mapping in MLIR's terms: a ``scf.forall`` over the blocks of the grid around
one over the threads of a block::

    %blocks = gpu.grid_dim x
    scf.forall (%block) in (%blocks) {
      scf.forall (%thread) in (256) {
        …
      } {mapping = [#gpu.thread<x>]}
    } {mapping = [#gpu.block<x>]}

This module replaces the loops, with ``gpu.block_id`` and ``gpu.thread_id`` as their variables. It works on the text, as
printed by MLIR and the schedulers: access to a kernel's ops from Python takes longer than all lowering of a small
one."""

from __future__ import annotations

import re

from mlirfuse.core.errors import CompileError

_HEAD = re.compile(r"^( *)scf\.forall \((%[\w$.-]+)\) in \([^()]*\) \{$")
_TAIL = re.compile(r"^ *\} \{mapping = \[#gpu\.(block|thread)<x>\]\}$")
_OTHER_TAIL = re.compile(r"^ *\} \{mapping = ")


def mapped(body: str, threads: int) -> str:
    """``body``, which each thread runs, inside of loops over blocks and threads with the variables ``%block`` and
    ``%thread``."""
    return "\n".join([
        "    %blocks = gpu.grid_dim x",
        "    scf.forall (%block) in (%blocks) {",
        f"    scf.forall (%thread) in ({threads}) {{",
        body,
        "    } {mapping = [#gpu.thread<x>]}",
        "    } {mapping = [#gpu.block<x>]}",
    ])  # fmt: skip


def loops_to_ids(text: str) -> str:
    """``text`` with its mapped loops replaced by ids. Raises :class:`CompileError` for mappings in several dimensions,
    or to anything but blocks and threads."""
    if "scf.forall" not in text:
        return text
    out: list[str] = []
    open_: list[tuple[int, str]] = []  # for each open loop, the index of its head in ``out``, and its line
    for line in text.split("\n"):
        head, tail = _HEAD.match(line), _TAIL.match(line)
        if head:
            open_.append((len(out), line))
            out.append(f"{head[1]}{head[2]} = gpu.{{}}_id x")
        elif tail and open_:
            at, _ = open_.pop()
            out[at] = out[at].format(tail[1])
        elif tail or _OTHER_TAIL.match(line) or "scf.forall (" in line:
            raise _not_ids(line)
        else:
            out.append(line)
    if open_:
        raise _not_ids(open_[0][1])
    return "\n".join(out)


def _not_ids(line: str) -> CompileError:
    return CompileError(f"only loops mapped to #gpu.block<x> and #gpu.thread<x> are supported: {line.strip()}")
