"""Labels of dumps: functions, specializations and programs get labels as they are reported."""

from __future__ import annotations

import itertools
import re
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, replace

from mlirfuse.core import threads
from mlirfuse.inspect.launches import kernels_of
from mlirfuse.ir.graph import Graph
from mlirfuse.runtime import events
from mlirfuse.runtime.program import Program
from mlirfuse.runtime.specializations import Source, Specialization


@dataclass(frozen=True)
class Where:
    """The subject of a dump. ``region`` counts the programs between extern ops, None where there is one."""

    function: str
    specialization: int | None = None
    region: int | None = None
    program: int | None = None
    segment: int | None = None
    scheduler: str = ""
    group: int | None = None

    def __str__(self) -> str:
        words = [self.function]
        for name in ("specialization", "region", "program", "group", "segment"):
            number = getattr(self, name)
            if number is not None:
                scheduler = f" ({self.scheduler})" if name == "segment" and self.scheduler else ""
                words.append(f"{name} {number}{scheduler}")
        return ", ".join(words)

    @property
    def file(self) -> str:
        """The beginning of a file's name."""
        words = [re.sub(r"[^\w.-]", "_", self.function)]
        words += [
            f"{name}{getattr(self, name)}"
            for name in ("specialization", "region", "program", "group", "segment")
            if getattr(self, name) is not None
        ]
        return ".".join(words)


_lock = threads.lock()
_owners: dict[str, weakref.WeakKeyDictionary] = {}  # by name: the functions of that name, numbered
_numbers: dict[str, Iterator[int]] = {}
_counts: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()  # the number of a function's specializations
_specializations: weakref.WeakKeyDictionary[Specialization, Where] = weakref.WeakKeyDictionary()
_graphs: weakref.WeakKeyDictionary[Graph, Where] = weakref.WeakKeyDictionary()  # of graphs without a specialization
# A program's label, and the graph that it is from.
_programs: weakref.WeakKeyDictionary[Program, tuple[Where, Graph]] = weakref.WeakKeyDictionary()


def of_function(source: Source) -> Where:
    """Return the label of a function: its name, with a number if several have that name."""
    with _lock:
        known = _owners.setdefault(source.name, weakref.WeakKeyDictionary())
        if source.owner not in known:
            known[source.owner] = next(_numbers.setdefault(source.name, itertools.count(1)))
        number = known[source.owner]
        return Where(source.name if number == 1 else f"{source.name}-{number}")


def number_specialization(event: events.Traced) -> None:
    """Number a new specialization."""
    owner = event.source.owner
    with _lock:
        number = _counts[owner] = _counts.get(owner, -1) + 1
        _specializations[event.specialization] = replace(of_function(event.source), specialization=number)


def name_programs(event: events.Segmented) -> None:
    """Assign labels to the programs of a specialization."""
    executor = event.specialization.executor
    assert executor is not None
    for at, (program, _) in enumerate(executor.programs(event.env)):
        _programs[program] = (
            replace(of_specialization(event.specialization), region=None if executor.host is None else at),
            executor.graph,
        )


def of_specialization(specialization: Specialization) -> Where:
    """Return the label of a specialization; its graph's name, if it was created before any dump was on."""
    return _specializations.get(specialization) or Where(specialization.graph.name)


def of_graph(graph: Graph) -> Where:
    """Return the label of a graph without a specialization: its name, with a number if several have that name."""
    with _lock:
        if graph not in _graphs:
            number = next(_numbers.setdefault(graph.name, itertools.count(1)))
            _graphs[graph] = Where(graph.name if number == 1 else f"{graph.name}-{number}")
        return _graphs[graph]


def of_program(program: Program) -> Where:
    """Return the label of a program."""
    return _programs[program][0] if program in _programs else Where(program.graph.name)


def graph_of(program: Program) -> Graph:
    """Return the graph that a program is from."""
    return _programs[program][1] if program in _programs else program.graph


def by_segment(program: Program, kernels: list, where: Where) -> Iterator[tuple[Where, list]]:
    """Iterate over the label and the kernels of each of a program's segments that launch."""
    for step in program.steps:
        yield replace(where, segment=step.segment.number, scheduler=step.segment.scheduler), kernels_of(step, kernels)
