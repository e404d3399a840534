"""One loop at run time: finds the code for what it is called with, or compiles it."""

from __future__ import annotations

import ast
import time
import types
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlirfuse.core import deadline, threads
from mlirfuse.core.errors import CompileError
from mlirfuse.frontend.numpy.loops.calls import MISSED, CallWriter, Given, Missed
from mlirfuse.frontend.numpy.loops.compilation import Compiled, compiled
from mlirfuse.frontend.numpy.loops.values import NotOutlinable
from mlirfuse.frontend.numpy.scope import UNSET, content_of
from mlirfuse.frontend.numpy.syntax import attribute_data, has_attributes, only_for_attributes
from mlirfuse.runtime import events

_MOST_COMPILED = 16  # limit of combinations of types and patterns per loop
_MOST_PATTERNS = 2  # limit of extent patterns per type combination; then code for any extents
_LARGE_EXTENT = 4  # from here on, a stencil's margins surely fit


@dataclass(eq=False)
class LoopRan(events.Event):
    """A loop outlined from a function was called. ``seconds``: of its native code, compilation included; None where it
    runs as Python."""

    loop: Loop
    seconds: float | None


@dataclass(eq=False)
class Loop:
    """A loop statement. ``assigned``: the variables it assigns, whose values :meth:`__call__` returns in that order;
    ``leaves``: the statements in it that leave the function; ``lists``: names of lists that it only appends to;
    ``caught``: a handler may catch its errors; ``over``: the variables that it iterates over, by index: arrays."""

    node: ast.stmt
    assigned: list[str]
    names: list[str]
    scope: Any
    leaves: Sequence[ast.stmt]
    lists: Collection[str]
    over: Collection[str]
    caught: bool
    refused: str | None = None  # why it runs as Python
    ran: bool = False  # it has run natively
    dead: bool = False  # do not try again: nothing of it could be compiled

    def __post_init__(self) -> None:
        self.changed = frozenset(self.assigned)
        self._owners = only_for_attributes(self.node, self.names)
        self._calls: list[Callable] = []  # for all combinations of types and patterns so far
        self._latest: Callable = lambda variables: MISSED  # the call that ran last
        self._tried = 0  # number of combinations that were compiled, or refused
        self._any = False  # one has been compiled
        self._lock = threads.lock()

    def __call__(self, variables: dict[str, Any]) -> tuple | None:
        """Runs the loop natively: the values of the assigned variables (:data:`UNSET` for one without), and the
        number, from 1, of the statement that left the loop, or 0, or the error that did where a handler may catch it;
        None where it must run as Python."""
        if LoopRan.observers:
            start = time.perf_counter()
            found = self._run(variables)
            events.report(LoopRan(self, None if found is None else time.perf_counter() - start))
            return found
        found = self._latest(variables)
        return found if found.__class__ is not Missed else self._run(variables)

    def _run(self, variables: dict[str, Any]) -> tuple | None:
        if self.dead:
            return None
        tried, patterns = len(self._calls), None
        for call in self._calls:
            found = call(variables)
            if found.__class__ is not Missed:
                self._latest = call
                return found
            patterns = found.patterns or patterns
        if any(type(variables.get(name)) not in (np.ndarray, bytes) for name in self.over):
            return None
        given = Given.of(dict(self._given(variables)), self.changed)
        if given is None:
            return None
        with self._lock:
            if len(self._calls) > tried:  # another thread was first
                return self._run(variables)
            created = self._compile(given, variables, patterns)
        found = None if created is None else created(variables)
        return None if found.__class__ is Missed else found

    def goes_by_type(self, name: str, value: Any) -> bool:
        """Whether of a variable only the type matters: a list that the loop appends to, or a user's object of which the
        loop only reads attributes, which have variables of their own."""
        if type(value) is list and name in self.lists:
            return True
        return name in self._owners and not isinstance(value, type) and has_attributes(value)

    def _given(self, variables: dict[str, Any]) -> Iterator[tuple[str, Any]]:
        """The values of names at the loop's start: variables, scope entries and, as ``function.name``, the closure
        variables of nested functions."""
        for name in self.names:
            if "." in name:
                base, *attributes = name.split(".")
                value = attribute_data(variables.get(base, UNSET), attributes)
                if value is not attribute_data:
                    yield name, value
                continue
            value = variables.get(name, UNSET)
            if value is UNSET:
                if name in self.changed:  # a local variable without a value yet
                    continue
                value = self.scope.get(name, UNSET)
                if value is UNSET:
                    continue
            yield name, value
            if type(value) is types.FunctionType and value.__closure__:
                cells = zip(value.__code__.co_freevars, map(content_of, value.__closure__))
                yield from ((f"{name}.{free}", found) for free, found in cells if found is not UNSET)

    # ---- compiling

    def _compile(self, given: Given, variables: dict[str, Any], patterns: set | None) -> Callable | None:
        """Compiles the loop for these values; ``patterns``: those of sizes that there is code for, with their types.
        The new call; None after too many."""
        pattern: tuple | None = pattern_of(*given.sizes)
        self._tried += 1
        if self._tried > _MOST_COMPILED:
            self.refused = self.refused or "calls with arguments of too many types"
            return None
        patterns = set() if patterns is None else patterns
        if len(patterns) >= _MOST_PATTERNS:
            pattern, holds = None, lambda sizes: pattern_of(*sizes) not in patterns
        else:
            holds = lambda sizes: pattern_of(*sizes) == pattern  # noqa: E731
            patterns.add(pattern)
        created: Compiled | None = None
        try:
            with deadline.compiling(True):
                created = compiled(self, given, pattern)
        except (NotOutlinable, CompileError) as why:
            self.refused = str(why)
        except RecursionError:
            self.refused = "an expression that is too deep"
        except Exception as error:  # an error of ours: fall back to Python
            self.refused = f"an internal compiler error: {type(error).__name__}: {error}"
        self._any = self._any or created is not None
        self.dead = not self._any
        call = CallWriter(self, created, given, variables).written(holds, patterns)
        self._calls.append(call)
        self._latest = call
        return call


def pattern_of(extents: tuple, ints: tuple) -> tuple:
    """The pattern of extents and ints that code is specialized to: per extent a number shared by equal ones and a lower
    bound, or (-1, 1) for extent 1; the same for ints that equal an extent, else None."""
    numbers: dict[int, int] = {}

    def about(n: int) -> tuple:
        least = 0 if n == 0 else 2 if n < _LARGE_EXTENT else _LARGE_EXTENT
        return (-1, 1) if n == 1 else (numbers.setdefault(n, len(numbers)), least)

    of_arrays = tuple([tuple(map(about, shape)) for shape in extents])
    return of_arrays + tuple([(about(n),) if n in numbers and n >= _LARGE_EXTENT else () for n in ints])
