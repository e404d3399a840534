"""What the compiler reports while it works, as typed events, and who listens.

The layers report; nothing that they do depends on it. :mod:`mlirfuse.runtime.counters` counts,
:mod:`mlirfuse.inspect.dump` prints, and a program may listen too::

    stop = events.observe(events.Compiled, lambda event: print(event.seconds))

An event that nobody listens to is not made: where a call passes, the code asks ``events.Found.observers`` first.
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
    """Something that has happened. ``observers`` listen to this class alone."""

    observers: ClassVar[tuple[Callable[[Any], None], ...]] = ()

    def __init_subclass__(cls) -> None:
        cls.observers = ()


# ---- kinds of calls: ``source`` is the front end's part of a function, as the miss path knows it


@dataclass(eq=False)
class Found(Event):
    """A call with new sizes or addresses belongs to a kind that there is."""

    source: Source


@dataclass(eq=False)
class Traced(Event):
    """A front end has made the graph of a new kind, which will be compiled. ``known``: the kinds before it, by key."""

    source: Source
    specialization: Specialization
    call: Call
    known: dict[tuple, list[Specialization]]


@dataclass(eq=False)
class PassRan(Event):
    """A pass has changed the graph of a kind."""

    specialization: Specialization
    step: Pass | MLIRPasses
    seconds: float


@dataclass(eq=False)
class Segmented(Event):
    """A kind is cut into segments, and its executor can run it. ``env``: the sizes of the first call."""

    source: Source
    specialization: Specialization
    call: Call
    env: dict[str, int]
    seconds: float


# ---- graphs that a front end is handed, which have no kinds: torch's. ``name``: which graph of its function it is


@dataclass(eq=False)
class GraphLowered(Event):
    """A front end has lowered a graph, which will be compiled."""

    name: str
    graph: Graph


@dataclass(eq=False)
class GraphPassRan(Event):
    """A pass has changed such a graph."""

    graph: Graph
    step: Pass | MLIRPasses


@dataclass(eq=False)
class GraphSegmented(Event):
    """Such a graph is cut into segments. ``env``: sizes of the call that it is compiled for, where they are known."""

    graph: Graph
    env: dict[str, int]


@dataclass(eq=False)
class FellBack(Event):
    """A call runs op by op, because its kind is not compiled or could not be."""

    source: Source
    problem: str


@dataclass(eq=False)
class GuardFailed(Event):
    """The tensors of a call do not meet what a ``fusion.guard`` states: the fallback runs."""

    op: Op
    problem: str


# ---- graphs that a front end compiles whole


@dataclass(eq=False)
class Advanced(Event):
    """The compilation of a graph has come to ``what``, in words. ``programs``: how many programs of kernels were found,
    which are compiled as they first run."""

    what: str
    programs: int = 0


# ---- variants of a program


@dataclass(eq=False)
class Scheduled(Event):
    """Parameters of every segment are chosen that no variant has; the variant is compiled next."""

    program: Program
    params: tuple
    env: dict[str, int]


@dataclass(eq=False)
class Compiled(Event):
    """A variant is compiled and loaded."""

    program: Program
    compiled_program: CompiledProgram
    env: dict[str, int]
    seconds: float


@dataclass(eq=False)
class Launching(Event):
    """A variant is about to be recorded for a signature's calls. An observer may put another host function in its
    place: its address as ``launch``, and as ``keep`` what has to live as long."""

    program: Program
    compiled_program: CompiledProgram
    env: dict[str, int]
    launch: int
    keep: Any


# ---- the cache on disk


@dataclass(eq=False)
class CacheRead(Event):
    """An entry was asked for: its content, or None and what is wrong with it ("is not there")."""

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
    """Hands ``event`` to its observers. What one of them raises is told on stderr and stops nothing."""
    for observer in type(event).observers:
        try:
            observer(event)
        except Exception as error:
            name = getattr(observer, "__qualname__", repr(observer))
            sys.stderr.write(f"mlirfuse: {name} failed at {type(event).__name__}: {type(error).__name__}: {error}\n")
