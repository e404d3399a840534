"""What the compiler reports while it works, as typed events, and their observers.

The layers report events; none of their behaviour depends on observers. :mod:`mlirfuse.runtime.counters` counts,
:mod:`mlirfuse.inspect.dump` prints, and a user's program may observe too::

    stop = events.observe(events.Compiled, lambda event: print(event.seconds))

An event without observers is not created: on the path of a call, the code first asks
``events.SpecializationFound.observers``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from mlirfuse.core import threads

if TYPE_CHECKING:
    from mlirfuse.ir.graph import Graph, Op
    from mlirfuse.passes.base import MLIRPasses, Pass
    from mlirfuse.runtime.program import CompiledProgram, Program
    from mlirfuse.runtime.specializations import Call, Source, Specialization


class Event:
    """Something that happened. ``observers`` receive the events of this class, not of its subclasses."""

    observers: ClassVar[tuple[Callable[[Any], None], ...]] = ()

    def __init_subclass__(cls) -> None:
        cls.observers = ()


# ---- specializations; ``source``: the function, as its front end describes it to the shape cache


@dataclass(eq=False)
class SpecializationFound(Event):
    """A call with new sizes or addresses matched an existing specialization."""

    source: Source


@dataclass(eq=False)
class Traced(Event):
    """A front end has traced the graph of a new specialization, which is compiled next. ``known``: the earlier
    specializations, by key."""

    source: Source
    specialization: Specialization
    call: Call
    known: dict[tuple, list[Specialization]]


@dataclass(eq=False)
class PassRan(Event):
    """A pass has changed the graph of a specialization."""

    specialization: Specialization
    step: Pass | MLIRPasses
    seconds: float


@dataclass(eq=False)
class Segmented(Event):
    """A specialization is segmented, and its executor can run it. ``env``: the sizes of the first call."""

    source: Source
    specialization: Specialization
    call: Call
    env: dict[str, int]
    seconds: float


@dataclass(eq=False)
class FellBack(Event):
    """A call runs op by op, because its specialization is not compiled or could not be."""

    source: Source
    problem: str


# ---- graphs given to a front end, which have no specializations: torch's. ``name``: which graph of its function


@dataclass(eq=False)
class GraphLowered(Event):
    """A front end has lowered a graph, which is compiled next."""

    name: str
    graph: Graph


@dataclass(eq=False)
class GraphPassRan(Event):
    """A pass has changed such a graph."""

    graph: Graph
    step: Pass | MLIRPasses


@dataclass(eq=False)
class GraphSegmented(Event):
    """Such a graph is segmented. ``env``: the sizes of the call that it is compiled for, if known."""

    graph: Graph
    env: dict[str, int]


# ---- graphs that a front end compiles as a whole


@dataclass(eq=False)
class Advanced(Event):
    """The compilation of a graph has reached the stage ``what``, as text. ``programs``: how many kernel programs it
    has, each compiled at its first run."""

    what: str
    programs: int = 0


# ---- compiled programs


@dataclass(eq=False)
class Scheduled(Event):
    """The schedule parameters of every segment are chosen, and no compiled program has them; one is compiled next."""

    program: Program
    params: tuple
    env: dict[str, int]


@dataclass(eq=False)
class Compiled(Event):
    """A program is compiled and loaded."""

    program: Program
    compiled_program: CompiledProgram
    env: dict[str, int]
    seconds: float


@dataclass(eq=False)
class Launching(Event):
    """A compiled program is about to be recorded for the calls of a signature. An observer may substitute another host
    function: its address as ``launch``, and as ``keep`` what has to live as long."""

    program: Program
    compiled_program: CompiledProgram
    env: dict[str, int]
    launch: int
    keep: Any


@dataclass(eq=False)
class GuardFailed(Event):
    """The tensors of a call violate a ``fusion.guard``: the fallback runs."""

    op: Op
    problem: str


# ---- the disk cache


@dataclass(eq=False)
class CacheRead(Event):
    """An entry was requested: its content, or None and the reason ("is not there")."""

    name: str
    body: bytes | None
    problem: str = ""


@dataclass(eq=False)
class CacheStored(Event):
    """An entry was written."""

    name: str
    body: bytes


# ---- observers

E = TypeVar("E", bound=Event)
_lock = threads.lock()


def observe(event: type[E], observer: Callable[[E], None]) -> Callable[[], None]:
    """Call ``observer`` with each event of the class ``event`` from now on, in the thread that reports it. Return a
    function that ends it."""

    def stop() -> None:
        with _lock:
            event.observers = tuple(o for o in event.observers if o is not observer)

    with _lock:
        event.observers = (*event.observers, observer)
    return stop


def report(event: Event) -> None:
    """Pass ``event`` to its observers. An exception of an observer is written to stderr and stops nothing."""
    for observer in type(event).observers:
        try:
            observer(event)
        except Exception as error:
            name = getattr(observer, "__qualname__", repr(observer))
            sys.stderr.write(f"mlirfuse: {name} failed at {type(event).__name__}: {type(error).__name__}: {error}\n")
