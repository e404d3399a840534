"""What was written of a program's kernels, kept on disk: its schedules, the kernels as MLIR, and where they find their
arguments. A process that finds it neither chooses nor writes; what is compiled of the text is kept beside it."""

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
from mlirfuse.schedule.gpu.heuristics import heuristics_of
from mlirfuse.schedule.targets import Target


class KernelArtifact(NamedTuple):
    """``params``: the parameters of each step."""

    params: tuple
    module: KernelModule
    slots: Slots


def name(part: FusedRegion, target: Target, env: dict[str, int], align: int) -> str | None:
    """The entry of what is written of ``part`` for these sizes and arguments whose addresses are multiples of ``align``
    bytes: by all that decides it, the lines that kernels which check positions report too. None where nothing is
    kept."""
    if not cache.enabled():
        return None
    lines = _sites(part.graph)
    numbers: dict[Any, int] = {}
    used = {v for op in part.graph.ops for v in (*op.operands, *op.results) if v.dtype is not None}
    axes = [
        [(numbers.setdefault(axis, len(numbers)), axis.size) for axis in part.axes.flat(value)]
        for value in part.values
        if value in used
    ]
    sizes = [(symbol, env[symbol]) for symbol in part.symbols]
    properties: Any = target.properties  # a GPU's: the CPU's programs are compiled as they run
    heuristics = heuristics_of(properties)
    facts = (
        key_of(part.graph),
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
    """The numbers of the lines that use positions which kernels of ``graph`` check; errors know them from now on."""
    checked = [op for op in graph.ops if op.attrs.get("checked")]
    return [site_of(op.loc, op.attrs["axis"], op.attrs["message"]) for op in checked]


def load(name: str, graph: Graph) -> KernelArtifact | None:
    """The entry of that name, of the values and ops of ``graph``."""
    body = cache.load(name)
    if body is None:
        return None
    _sites(graph)
    reader = pickle.Unpickler(io.BytesIO(body))
    reader.persistent_load = _things(graph).__getitem__  # type: ignore[method-assign]
    return KernelArtifact(*reader.load())


def store(name: str, graph: Graph, written: KernelArtifact) -> None:
    """Keeps it, where it says nothing of what is not in ``graph``."""
    file, numbers = io.BytesIO(), {thing: at for at, thing in enumerate(_things(graph))}

    def number(thing: Any) -> int | None:
        return numbers[thing] if isinstance(thing, Value | Op) else None

    writer = pickle.Pickler(file)
    writer.persistent_id = number  # type: ignore[method-assign]
    try:
        writer.dump(tuple(written._replace(slots=_of_graph(written.slots))))
    except (KeyError, AttributeError, TypeError, pickle.PicklingError):
        return
    cache.store(name, file.getvalue())


def _of_graph(slots: Slots) -> Slots:
    """``slots`` where schedulers' own buffers, which they know by ops and reductions that they made, are known by the
    ops that those are of, and numbers."""
    names = {
        key: (key[0].results[0].op, at) if isinstance(key, tuple) else key for at, key in enumerate(slots.temporaries)
    }
    return replace(
        slots,
        temporaries={names[key]: slot for key, slot in slots.temporaries.items()},
        temporary_bytes={names[key]: nbytes for key, nbytes in slots.temporary_bytes.items()},
        ints={(kind, names[what] if kind == "offset" else what): slot for (kind, what), slot in slots.ints.items()},
    )


def _things(graph: Graph) -> list[Value | Op]:
    """The values and ops of a program, in order."""
    out: list[Value | Op] = [*graph.args]
    for op in graph.ops:
        out += [op, *op.results]
    return out
