"""``cache``: which specializations, compiled programs and entries of the disk cache were found or created."""

from __future__ import annotations

from dataclasses import replace

from mlirfuse.inspect.dump import labels
from mlirfuse.inspect.dump.labels import Where
from mlirfuse.inspect.dump.output import log
from mlirfuse.runtime import events


def found(event: events.SpecializationFound) -> None:
    log("cache", labels.of_function(event.source), "new signature, of a known specialization")


def segmented(event: events.Segmented) -> None:
    log(
        "cache", labels.of_specialization(event.specialization), f"traced and segmented in {1e3 * event.seconds:.1f} ms"
    )


def compiled(event: events.Compiled) -> None:
    where = replace(labels.of_program(event.program), program=len(event.program.compiled_programs))
    log("cache", where, f"compiled in {1e3 * event.seconds:.1f} ms, {event.compiled_program.kernels} launches")


def read(event: events.CacheRead) -> None:
    what = event.problem if event.body is None else f"found, {len(event.body)} bytes"
    log("cache", Where("disk"), f"{event.name[:24]} {what}")


def stored(event: events.CacheStored) -> None:
    log("cache", Where("disk"), f"{event.name[:24]} stored, {len(event.body)} bytes")
