"""Compile artifacts of a program's kernels on disk: schedules, kernels as MLIR, and argument slots. A process that
finds one neither chooses schedules nor generates kernels; the code compiled from the MLIR is cached as well."""

from __future__ import annotations

import io
import pickle
from dataclasses import replace
from typing import Any, NamedTuple

from mlirfuse.core import config
from mlirfuse.core.device_properties import serialized
from mlirfuse.core.sites import site_of
from mlirfuse.ir.graph import Graph, Op, Value
from mlirfuse.lowering.host_plan import key_of
from mlirfuse.lowering.host_steps import FusedRegion
from mlirfuse.lowering.module import KernelModule
from mlirfuse.lowering.slots import Slots
from mlirfuse.runtime import cache
from mlirfuse.schedule.gpu.tuning import heuristics_of
from mlirfuse.schedule.targets import Target


class KernelArtifact(NamedTuple):
    """``params``: the parameters of each step."""

    params: tuple
    module: KernelModule
    slots: Slots


def name(region: FusedRegion, target: Target, env: dict[str, int], align: int) -> str | None:
    """Return the name of the artifact of ``region`` for these sizes and arguments whose addresses are multiples of
    ``align`` bytes; it covers everything that the artifact depends on, and the lines that kernels with index checks
    report. None where the cache is off."""
    if not cache.enabled():
        return None
    lines = _sites(region.graph)
    numbers: dict[Any, int] = {}
    used = {v for op in region.graph.ops for v in (*op.operands, *op.results) if v.dtype is not None}
    axes = [
        [(numbers.setdefault(axis, len(numbers)), axis.size) for axis in region.axes.flat(value)]
        for value in region.values
        if value in used
    ]
    sizes = [(symbol, env[symbol]) for symbol in region.symbols]
    properties: Any = target.properties  # of a GPU: programs for the CPU are compiled at their run
    heuristics = heuristics_of(properties)
    facts = (
        key_of(region.graph),
        lines,
        axes,
        sizes,
        align,
        target.name,
        serialized(properties),
        heuristics,
        config.compiled_as(),
    )
    return cache.key("written", cache.sources(), repr(facts))


def _sites(graph: Graph) -> list[int]:
    """Return the numbers of the sites of index checks in kernels of ``graph``, and register them for errors."""
    checked = [op for op in graph.ops if op.attrs.get("checked")]
    return [site_of(op.loc, op.attrs["axis"], op.attrs["message"]) for op in checked]


def load(name: str, graph: Graph) -> KernelArtifact | None:
    """Load the artifact of that name, with the values and ops of ``graph``."""
    body = cache.load(name)
    if body is None:
        return None
    _sites(graph)
    reader = pickle.Unpickler(io.BytesIO(body))
    reader.persistent_load = _objects(graph).__getitem__  # type: ignore[method-assign]
    return KernelArtifact(*reader.load())


def store(name: str, graph: Graph, artifact: KernelArtifact) -> None:
    """Store an artifact, unless it refers to objects outside of ``graph``."""
    file, numbers = io.BytesIO(), {thing: at for at, thing in enumerate(_objects(graph))}

    def number(thing: Any) -> int | None:
        return numbers[thing] if isinstance(thing, Value | Op) else None

    writer = pickle.Pickler(file)
    writer.persistent_id = number  # type: ignore[method-assign]
    try:
        writer.dump(tuple(artifact._replace(slots=_of_graph(artifact.slots))))
    except (KeyError, AttributeError, TypeError, pickle.PicklingError):
        return
    cache.store(name, file.getvalue())


def _of_graph(slots: Slots) -> Slots:
    """Return ``slots`` with schedulers' own buffers, whose keys are ops and reductions that they created, keyed by the
    original ops and numbers."""
    names = {
        key: (key[0].results[0].op, at) if isinstance(key, tuple) else key for at, key in enumerate(slots.temporaries)
    }
    return replace(
        slots,
        inside={},
        temporaries={names[key]: slot for key, slot in slots.temporaries.items()},
        temporary_bytes={names[key]: nbytes for key, nbytes in slots.temporary_bytes.items()},
        ints={(kind, names[what] if kind == "offset" else what): slot for (kind, what), slot in slots.ints.items()},
    )


def _objects(graph: Graph) -> list[Value | Op]:
    """Return the values and ops of a program, in order."""
    out: list[Value | Op] = [*graph.args]
    for op in graph.ops:
        out += [op, *op.results]
    return out
