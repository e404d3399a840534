"""What the compiler does, printed while it does it: ``MLIRFUSE_DUMP=segmented,ptx``, or ``mlirfuse.config.dump =
"segmented,ptx"``.

- ``fusion`` … ``llvm``: the levels of :mod:`mlirfuse.inspect.lowered`; those below ``linalg`` a segment at a time
- ``guarded``: the level ``grouped`` with each group behind a guard, beside the fallback
- ``math``: the ops of each segment, without its schedule
- ``groups``: each group as a Python program that runs by itself
- ``group-log``: ops left out of groups, and merges that were refused, with the reasons
- ``segmenter-log``: which segments were merged and which were not, with the reasons
- ``guards``: what a compiled kind assumes of a call, and which condition a new call did not meet, with its values
- ``cache``: which kinds, variants and entries of the disk cache were found or made
- ``launch-params``: each segment's parameters, blocks and threads, or tasks
- ``occupancy``: registers, shared memory and blocks a multiprocessor (GPU); tasks a thread (CPU)
- ``sass``: the machine code of each segment's kernels (GPU, where ``ptxas`` and ``nvdisasm`` or ``cuobjdump`` are
  there)
- ``kernel-args``: at each call: what each kernel gets
- ``effective-bandwidth``: at each call: each segment's time, and the bytes that it reads and writes over it

A dump that the target has not, such as ``ptx`` of a CPU's code, says so in a line. A dump has a header that names the
function, its kind and, where it is about one, the segment. With ``MLIRFUSE_DUMP_DIR``, or ``config.dump_dir``, each
goes to a file of its own, else to stderr. Only what is new is dumped: a call whose variant is compiled prints nothing.
The two that print at each call make calls slower while they are on: kernels are launched one by one, and timed.

Dumps are observers of :mod:`mlirfuse.runtime.events`. Importing this package makes them follow ``config.dump``: those
that it names listen, and nothing else does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mlirfuse.core import config
from mlirfuse.inspect.dump import cache, calls, code, guards, labels, tensors
from mlirfuse.runtime import events

# By channel. Labels come first: the others print under them.
OBSERVERS: tuple[tuple[frozenset[str], dict[type[events.Event], Callable[[Any], None]]], ...] = (
    (frozenset(config.DUMPS), {events.Traced: labels.number_specialization, events.Segmented: labels.name_programs}),
    (
        tensors.NAMES,
        {
            events.Traced: tensors.traced,
            events.PassRan: tensors.after,
            events.Segmented: tensors.segmented,
            events.GraphLowered: tensors.lowered,
            events.GraphPassRan: tensors.after_of_graph,
            events.GraphSegmented: tensors.segmented_graph,
        },
    ),
    (
        frozenset({"guards"}),
        {
            events.Traced: guards.traced,
            events.GraphLowered: guards.lowered,
            events.GuardFailed: guards.guard_failed,
        },
    ),
    (code.NAMES, {events.Scheduled: code.scheduled, events.Compiled: code.compiled}),
    (calls.NAMES, {events.Launching: calls.launching}),
    (
        frozenset({"cache"}),
        {
            events.Found: cache.found,
            events.Segmented: cache.segmented,
            events.Compiled: cache.compiled,
            events.CacheRead: cache.read,
            events.CacheStored: cache.stored,
        },
    ),
)


class _Follower:
    """Keeps those observers registered that ``config.dump`` asks for."""

    def __init__(self) -> None:
        self._stop: list[Callable[[], None]] = []
        self._wanted: frozenset[str] = frozenset()
        config.listen(self)
        self.switched()

    def switched(self) -> None:
        """A switch of :mod:`mlirfuse.config` has changed."""
        if config.dump == self._wanted:
            return
        for stop in self._stop:
            stop()
        self._wanted = config.dump
        self._stop = [
            events.observe(event, observer)
            for names, observers in OBSERVERS
            if names & self._wanted
            for event, observer in observers.items()
        ]


_follower = _Follower()
