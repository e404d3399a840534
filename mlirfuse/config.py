"""Switches, as attributes of this module and as environment variables read at import; :func:`override` sets some for a while.

============= ============================ =====================================================
attribute     variable                     what it does
============= ============================ =====================================================
``fuse_cpu``  ``MLIRFUSE_FUSE_CPU``        compile for the CPU; off: functions run as they are
``fuse_gpu``  ``MLIRFUSE_FUSE_GPU``        compile for GPUs
``single_op`` ``MLIRFUSE_SINGLE_OP``       groups of a single op become kernels too
``horizontal``  ``MLIRFUSE_HORIZONTAL``    fuse siblings that share a tensor input
``guards``    ``MLIRFUSE_GUARDS``          check the assumptions of compiled code (off: for tests only)
``fallback``  ``MLIRFUSE_FALLBACK``        where compiling fails, run op by op with a warning; off: raise
``max_kinds`` ``MLIRFUSE_MAX_KINDS``       kinds that one function is compiled for; past it, op by op
============= ============================ =====================================================
"""

from __future__ import annotations

import os
from contextlib import contextmanager

_OFF = {"0", "off", "false", "no"}


def _flag(name: str, default: bool) -> bool:
    value = os.environ.get(name)
    return default if value is None else value.lower() not in _OFF


fuse_cpu = _flag("MLIRFUSE_FUSE_CPU", True)
fuse_gpu = _flag("MLIRFUSE_FUSE_GPU", True)
single_op = _flag("MLIRFUSE_SINGLE_OP", True)
horizontal = _flag("MLIRFUSE_HORIZONTAL", True)
guards = _flag("MLIRFUSE_GUARDS", True)
fallback = _flag("MLIRFUSE_FALLBACK", True)
max_kinds = int(os.environ.get("MLIRFUSE_MAX_KINDS", "256"))

NAMES = ("fuse_cpu", "fuse_gpu", "single_op", "horizontal", "guards", "fallback", "max_kinds")


def enabled_for(device: str) -> bool:
    """Whether functions over arrays of this device ("cpu", "cuda") are compiled."""
    return fuse_cpu if device == "cpu" else fuse_gpu


@contextmanager
def override(**switches):
    """Sets switches inside a ``with`` block. Raises TypeError for a name that is none."""
    for name in switches:
        if name not in NAMES:
            raise TypeError(f"no switch '{name}'; there are {', '.join(NAMES)}")
    saved = {name: globals()[name] for name in switches}
    globals().update(switches)
    try:
        yield
    finally:
        globals().update(saved)
