"""Names of release 0.1.0 that users may have in scripts, each with its name today. Reading one warns.

Delete this file, and what calls it, one release later.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

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
    "again": ("overlapped_tail",),
    "ahead": ("prefetch",),
    "apart": ("row_stride",),
    "beside": ("vectors_per_thread",),
    "blocks": ("compensation_interval",),
    "chunks": ("vectors_per_thread",),
    "each": ("items_per_thread",),
    "fold": ("coalesced_rows",),
    "folded": ("coalesced",),
    "gathered": ("unaligned",),
    "held": ("in_registers",),
    "linked": ("chained",),
    "parts": ("row_segments", "tasks"),
    "resident": ("min_blocks_per_sm",),
    "rows": ("rows_per_thread", "rows_per_block"),
    "shared": ("shared_bytes", "shared_elements"),
    "shifted": ("unaligned",),
    "staged": ("in_shared",),
    "totals": ("compensated",),
    "unroll": ("rows_per_thread",),
    "unroll_columns": ("vectors_per_thread",),
    "unroll_rows": ("rows_per_thread",),
    "vectors": ("vectors_per_thread",),
    "whole": ("unmasked",),
}


def renamed(what: str, name: str, table: dict[str, str]) -> str:
    """``name``, or what it is called today, with a DeprecationWarning; ``what``: "the option" and the like."""
    new = table.get(name)
    if new is None:
        return name
    warn(f"{what} {name} is called {new} now; the old name goes with the next release", DeprecationWarning)
    return new


def renamed_field(name: str, fields: Iterable[str]) -> str:
    """``name``, or what the parameter of a scheduler that has ``fields`` is called today, with a DeprecationWarning."""
    found = [new for new in FIELDS.get(name, ()) if new in fields]
    return renamed("the schedule's parameter", name, {name: found[0]}) if found else name


def read_variables() -> None:
    """Set environment variables that have only their old name under the new one."""
    for old in VARIABLES:
        if os.environ.get(old):
            os.environ.setdefault(renamed("the environment variable", old, VARIABLES), os.environ.pop(old))
