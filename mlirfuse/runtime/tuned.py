"""Schedules that were measured to be best, kept in the compile cache's folder for later processes."""

from __future__ import annotations

import functools
import hashlib
import json

from mlirfuse.runtime import cache
from mlirfuse.schedule import staged
from mlirfuse.schedule.gpu import choice as gpu_choice


def short(params) -> str:
    if isinstance(params, staged.Params):
        return f"staged in {params.form}: " + "; ".join(map(short, params.stages))
    fields = {k: v for k, v in params._asdict().items() if k != "access"}
    return f"{type(params).__module__.split('.')[-1]} lanes={params.access.lanes} " + " ".join(
        f"{k}={v}" for k, v in fields.items()
    )


def _name(program, env) -> str:
    text = json.dumps([program.text, program.target.machine.chip, sorted(env.items())])
    return "tuned-" + hashlib.sha256(text.encode()).hexdigest()


def keep(program, env, chosen) -> None:
    cache.store(_name(program, env), repr([short(p) for p in chosen]).encode())


@functools.cache
def any_kept() -> bool:
    """Whether an earlier process left any results."""
    return cache.enabled() and any(cache.folder().glob("tuned-*"))


def load(program, env, alignments) -> tuple | None:
    """What an earlier process found best for these sizes, or None."""
    found = cache.load(_name(program, env))
    if found is None:
        return None
    wanted = json.loads(found.decode().replace("'", '"'))
    out = []
    for step, name in zip(program.steps, wanted):
        match = next(
            (
                p
                for p in gpu_choice.candidates(step.analysis, env, alignments, program.target.machine)
                if short(p) == name
            ),
            None,
        )
        if match is None:
            return None
        out.append(match)
    return tuple(out)
