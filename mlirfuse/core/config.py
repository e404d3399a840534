"""Switches, as attributes of this module and as environment variables read at import; :func:`override` sets some for a
while.

- ``fuse_cpu`` (``MLIRFUSE_FUSE_CPU``): compile for the CPU; off: functions on NumPy arrays run as the Python that they
  are, loops too, so that breakpoints and line tracing work; those on torch's run op by op
- ``fuse_gpu`` (``MLIRFUSE_FUSE_GPU``): compile for GPUs; off: functions run op by op
- ``single_op`` (``MLIRFUSE_SINGLE_OP``): groups of a single op become kernels too; off: such ops run through the
  framework or the reference
- ``horizontal`` (``MLIRFUSE_HORIZONTAL``): fuse siblings that share a tensor input
- ``max_args`` (``MLIRFUSE_MAX_ARGS``): inputs and outputs, together, that a group has at most
- ``guards`` (``MLIRFUSE_GUARDS``): check what a trace assumed of sizes and values; off, for tests only: the first trace
  for such dtypes, ranks and layouts runs, right or wrong
- ``fallback`` (``MLIRFUSE_FALLBACK``): where compiling fails, run op by op with a warning; off: raise
- ``max_kinds`` (``MLIRFUSE_MAX_KINDS``): kinds that one function is compiled for; past it, op by op (or, with
  ``fallback`` off, an error)
- ``compile_seconds`` (``MLIRFUSE_COMPILE_SECONDS``): a function that takes longer to compile runs op by op
- ``check_indices`` (``MLIRFUSE_CHECK_INDICES``): kernels of a GPU check the positions that ``x[i]`` and ``np.take``
  read and write at; a wrong one is an IndexError of the next call, or of :func:`mlirfuse.synchronize`. On a CPU they
  always do, and the call raises it
- ``dump`` (``MLIRFUSE_DUMP``): what to print while compiling, by names with commas between; see
  :mod:`mlirfuse.inspect.dump`
- ``dump_dir`` (``MLIRFUSE_DUMP_DIR``): a folder for dumps, one file each; else they go to stderr

A switch acts from the next call on, on functions that have been compiled already too: their calls are looked up anew.
"""

from __future__ import annotations

import os
import sys
import types
import weakref
from contextlib import contextmanager

from mlirfuse.core import settings

LEVELS = ("fusion", "grouped", "segmented", "linalg", "tiled", "gpu", "nvvm", "ptx", "host", "llvm")
DUMPS = (
    *LEVELS, "guarded", "groups", "group-log", "segmenter-log", "math", "launch-params", "kernel-args",
    "effective-bandwidth", "occupancy", "sass", "guards", "cache",
)  # fmt: skip
NAMES = (
    "fuse_cpu", "fuse_gpu", "single_op", "horizontal", "max_args", "guards", "fallback", "max_kinds", "compile_seconds",
    "check_indices", "dump", "dump_dir",
)  # fmt: skip

_listeners: set[weakref.ref] = set()  # of objects with a method switched(); WeakSet's callbacks swallow an interrupt


def dump_names(wanted) -> frozenset[str]:
    """The names in ``wanted``: text with commas between them, or an iterable. Raises ValueError for one that is
    none."""
    names = wanted.split(",") if isinstance(wanted, str) else wanted or ()
    names = frozenset(name.strip() for name in names if name.strip())
    unknown = sorted(names - set(DUMPS))
    if unknown:
        raise ValueError(f"no dump is called {', '.join(map(repr, unknown))}; there are {', '.join(DUMPS)}")
    return names


def _dump_from_environment() -> frozenset[str]:
    try:
        return dump_names(os.environ.get("MLIRFUSE_DUMP", ""))
    except ValueError as error:
        raise ValueError(f"MLIRFUSE_DUMP: {error}") from None


fuse_cpu = settings.flag("MLIRFUSE_FUSE_CPU", True)
fuse_gpu = settings.flag("MLIRFUSE_FUSE_GPU", True)
single_op = settings.flag("MLIRFUSE_SINGLE_OP", True)
horizontal = settings.flag("MLIRFUSE_HORIZONTAL", True)
guards = settings.flag("MLIRFUSE_GUARDS", True)
fallback = settings.flag("MLIRFUSE_FALLBACK", True)
max_kinds = settings.count("MLIRFUSE_MAX_KINDS", 256, 1_000_000)
compile_seconds = settings.count("MLIRFUSE_COMPILE_SECONDS", 10, 1_000_000)
max_args = settings.count("MLIRFUSE_MAX_ARGS", 128, 1_000_000)
check_indices = settings.flag("MLIRFUSE_CHECK_INDICES", False)
dump: frozenset[str] = _dump_from_environment()
dump_dir: str | None = os.environ.get("MLIRFUSE_DUMP_DIR") or None


class _Config(types.ModuleType):
    """This module, so that setting a switch is seen."""

    def __setattr__(self, name: str, value) -> None:
        if name not in NAMES:
            return super().__setattr__(name, value)
        value = dump_names(value) if name == "dump" else value
        changed = getattr(self, name) != value
        super().__setattr__(name, value)
        if changed:
            look_up_anew()


sys.modules[__name__].__class__ = _Config


def listen(listener) -> None:
    """Calls ``listener.switched()`` after each change of a switch, for as long as the object lives."""
    _listeners.add(weakref.ref(listener, _listeners.discard))


def look_up_anew() -> None:
    """Has every call find again what runs it, as after a change of a switch."""
    for ref in list(_listeners):
        listener = ref()
        if listener is not None:
            listener.switched()


def enabled_for(device: str) -> bool:
    """Whether functions over arrays of this device ("cpu", "cuda") are compiled."""
    return fuse_cpu if device == "cpu" else fuse_gpu


def compiled_as() -> tuple:
    """The switches that what is compiled depends on; part of the key of a kind."""
    return single_op, horizontal, max_args, fuse_cpu, fuse_gpu, check_indices


@contextmanager
def override(**switches):
    """Sets switches inside a ``with`` block. Raises TypeError for a name that is none."""
    for name in switches:
        if name not in NAMES:
            raise TypeError(f"no switch '{name}'; there are {', '.join(NAMES)}")
    module = sys.modules[__name__]
    saved = {name: getattr(module, name) for name in switches}
    try:
        for name, value in switches.items():
            setattr(module, name, value)
        yield
    finally:
        for name, value in saved.items():
            setattr(module, name, value)
