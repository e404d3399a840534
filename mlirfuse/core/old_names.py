"""Names of release 0.1.0 that users may have in scripts, each with its name today. Reading one warns.

Delete this file, and what calls it, one release later.
"""

from __future__ import annotations

import os
from typing import Any

from mlirfuse.core.errors import warn

SETTINGS = {"max_kinds": "max_specializations"}
VARIABLES = {f"MLIRFUSE_{old.upper()}": f"MLIRFUSE_{new.upper()}" for old, new in SETTINGS.items()}
COUNTERS = {"kinds": "specializations", "variants": "compiled_programs"}
SCHEDULERS = {
    "accumulation": "scatter_add",
    "accumulation_rows": "scatter_add_rows",
    "joins": "concat_shared",
    "pieces": "concat",
    "staged": "multi_stage",
}
# An old field may have had several meanings: the scheduler's own parameters tell which.
FIELDS: dict[str, tuple[str, ...]] = {
    "across": ("vectors_per_thread",),
    "again": ("unmasked",),
    "ahead": ("prefetch",),
    "apart": ("extent",),
    "beside": ("vectors_per_thread",),
    "blocks": ("compensation_interval", "split"),
    "checked": ("unmasked",),
    "chunks": ("vectors_per_thread",),
    "coalesced": ("coalesced_rows",),
    "columns": ("extent",),
    "compensated": ("compensation_interval",),
    "each": ("vectors_per_thread", "rows_per_thread"),
    "flat": ("coalesced_rows",),
    "fold": ("coalesced_rows",),
    "folded": ("coalesced_rows",),
    "gathered": ("unaligned",),
    "height": ("read_lanes",),
    "held": ("persistent", "vectors_per_thread"),
    "in_registers": ("persistent", "vectors_per_thread"),
    "items_per_thread": ("vectors_per_thread", "rows_per_thread"),
    "length": ("extent",),
    "linked": ("chained",),
    "looped": ("persistent",),
    "overlapped_tail": ("unmasked",),
    "parts": ("row_segments", "split"),
    "resident": ("min_blocks_per_sm",),
    "row_stride": ("extent",),
    "rows": ("rows_per_thread", "coalesced_rows"),
    "shared": ("shared_bytes", "shared_elements"),
    "shifted": ("unaligned",),
    "sides": ("rows_per_thread",),
    "staged": ("in_shared", "shared_values"),
    "stash": ("persistent",),
    "striped": ("in_shared",),
    "tasks": ("split",),
    "threads": ("tx",),
    "totals": ("compensation_interval",),
    "unroll": ("rows_per_thread",),
    "unroll_columns": ("vectors_per_thread",),
    "unroll_rows": ("rows_per_thread",),
    "vectors": ("vectors_per_thread",),
    "whole": ("unmasked",),
    "width": ("write_lanes",),
}
NEGATED = {"checked", "coalesced", "flat", "folded", "looped"}  # flags that are true where the new field is false or 0
TOTALS = 64  # blocks after which a CPU's sums are added to compensated totals


def renamed(what: str, name: str, table: dict[str, str]) -> str:
    """``name``, or what it is called today, with a DeprecationWarning; ``what``: "the option" and the like."""
    new = table.get(name)
    if new is None:
        return name
    warn(f"{what} {name} is called {new} now; the old name goes with the next release", DeprecationWarning)
    return new


def renamed_fields(given: dict[str, Any], types: dict[str, Any]) -> dict[str, Any]:
    """The parameters of a schedule with the names of today, which are those of ``types``, with a DeprecationWarning for
    each that is renamed. A flag becomes a number where the parameter is one now."""
    out = {}
    for name, value in given.items():
        found = [new for new in FIELDS.get(name, ()) if new in types and name not in types]
        if not found:
            out[name] = value
            continue
        new = next((new for new in found if types[new] is type(value)), found[0])
        if name in NEGATED and isinstance(value, bool):
            value = not value
        if isinstance(value, bool) and types[new] is int:
            value = value * (TOTALS if new == "compensation_interval" else 1)
        out[renamed("the schedule's parameter", name, {name: new})] = value
    return out


def read_variables() -> None:
    """Set environment variables that have only their old name under the new one."""
    for old in VARIABLES:
        if os.environ.get(old):
            os.environ.setdefault(renamed("the environment variable", old, VARIABLES), os.environ.pop(old))
