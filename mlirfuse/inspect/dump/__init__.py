"""Dumps of the compiler's work: ``MLIRFUSE_DUMP=segmented,ptx``, or ``mlirfuse.config.dump = "segmented,ptx"``.

- ``fusion`` … ``llvm``: the levels of :mod:`mlirfuse.inspect.lowered`; those below ``linalg`` one segment at a time
- ``guarded``: the level ``grouped`` with each group behind a guard, along with the fallback
- ``math``: the ops of each segment, without its schedule
- ``groups``: each group as an executable Python program
- ``group-log``: ops left out of groups, and rejected merges, with the reasons
- ``segmenter-log``: which segments were merged and which were not, with the reasons
- ``guards``: the assumptions of a specialization about a call, and which of them a new call violates, with its values
- ``cache``: which specializations, compiled programs and entries of the disk cache were found or created
- ``launch-params``: each segment's parameters, blocks and threads, or tasks
- ``occupancy``: registers, shared memory and blocks per multiprocessor (GPU); tasks per thread (CPU)
- ``sass``: the machine code of each segment's kernels (GPU, if ``ptxas`` and ``nvdisasm`` or ``cuobjdump`` are
  installed)
- ``kernel-args``: at each call: the arguments of each kernel
- ``effective-bandwidth``: at each call: each segment's time, and its bytes read and written per second

A dump that the target does not have, such as ``ptx`` for CPU code, prints one line that says so. A dump has a header
with the function, its specialization and, if it is about one, the segment. With ``MLIRFUSE_DUMP_DIR``, or
``config.dump_dir``, each goes to a separate file, else to stderr. Only new code is dumped: a call of a compiled program
prints nothing. The two dumps at each call make calls slower: kernels are launched one by one, and timed.

Dumps are observers of :mod:`mlirfuse.runtime.events`. Importing this package registers the observers of the dumps in
``config.dump``, and follows its changes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mlirfuse.core import config
from mlirfuse.inspect.dump import cache, calls, code, guards, labels, tensors
from mlirfuse.runtime import events

# By dump name. Labels come first: the others print under them.
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
            events.SpecializationFound: cache.found,
            events.Segmented: cache.segmented,
            events.Compiled: cache.compiled,
            events.CacheRead: cache.read,
            events.CacheStored: cache.stored,
        },
    ),
)


class _Follower:
    """Keeps the observers of the dumps in ``config.dump`` registered."""

    def __init__(self) -> None:
        self._stop: list[Callable[[], None]] = []
        self._names: frozenset[str] = frozenset()
        config.listen(self)
        self.settings_changed()

    def settings_changed(self) -> None:
        """A setting of :mod:`mlirfuse.config` has changed."""
        if config.dump == self._names:
            return
        for stop in self._stop:
            stop()
        self._names = config.dump
        self._stop = [
            events.observe(event, observer)
            for names, observers in OBSERVERS
            if names & self._names
            for event, observer in observers.items()
        ]


_follower = _Follower()
