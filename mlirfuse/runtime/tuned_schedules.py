"""Autotuned schedules, stored in the compile cache's folder for later processes, in the format of segments'
schedules."""

from __future__ import annotations

import functools
import hashlib
import json
from typing import Any

from mlirfuse.core.errors import ScheduleError
from mlirfuse.ir.graph import Value
from mlirfuse.runtime import cache
from mlirfuse.schedule import serialize
from mlirfuse.schedule.program import SegmentedProgram


def _name(program: SegmentedProgram, env: dict[str, int]) -> str:
    properties: Any = program.target.properties  # of a GPU: only GPU schedules are autotuned
    text = json.dumps([program.text, properties.chip, sorted(env.items())])
    return "tuned-" + hashlib.sha256(text.encode()).hexdigest()


def store(program: SegmentedProgram, env: dict[str, int], schedules: tuple) -> None:
    """Store the schedules of a GPU's program for these sizes."""
    serialized = serialize.text(program.target.schedules(program, schedules))
    cache.store(_name(program, env), serialized.encode())


@functools.cache
def any_stored() -> bool:
    """Whether an earlier process stored any results."""
    return cache.enabled() and any(cache.folder().glob("tuned-*"))


def load(program: SegmentedProgram, env: dict[str, int], alignments: dict[Value, int]) -> tuple | None:
    """Return the schedules that an earlier process found best for these sizes, or None, also where they do not hold for
    these alignments."""
    found = cache.load(_name(program, env))
    if found is None:
        return None
    try:
        return program.target.read(program, serialize.parse(found.decode()), env, alignments)
    except ScheduleError:
        return None
