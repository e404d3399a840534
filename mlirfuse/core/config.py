"""Settings, as attributes of this module and as environment variables read at import; :func:`override` sets some of
them temporarily.

- ``fuse_cpu`` (``MLIRFUSE_FUSE_CPU``): compile for the CPU. Off: functions on NumPy arrays, loops included, run as
  ordinary Python, so that breakpoints and line tracing work; graphs of torch run op by op
- ``fuse_gpu`` (``MLIRFUSE_FUSE_GPU``): compile for GPUs. Off: functions run op by op
- ``single_op`` (``MLIRFUSE_SINGLE_OP``): compile groups of a single op too. Off: the framework or the reference runs
  them
- ``horizontal`` (``MLIRFUSE_HORIZONTAL``): fuse siblings that share a tensor input
- ``max_args`` (``MLIRFUSE_MAX_ARGS``): the most inputs and outputs, together, of a group
- ``guards`` (``MLIRFUSE_GUARDS``): check what a trace assumed about sizes and values. Off, for tests only: the first
  trace for the same dtypes, ranks and layouts runs, right or wrong
- ``fallback`` (``MLIRFUSE_FALLBACK``): where compilation fails, run op by op with a warning. Off: raise
- ``max_specializations`` (``MLIRFUSE_MAX_SPECIALIZATIONS``): how many specializations of one function are compiled;
  further ones run op by op (with ``fallback`` off, an error)
- ``compile_seconds`` (``MLIRFUSE_COMPILE_SECONDS``): a function that takes longer to compile runs op by op
- ``check_indices`` (``MLIRFUSE_CHECK_INDICES``): GPU kernels check the indices with which ``x[i]`` and ``np.take`` read
  and write. An index out of range raises IndexError at the next call, or at :func:`mlirfuse.synchronize`. CPU kernels
  always check, and the call itself raises
- ``dump`` (``MLIRFUSE_DUMP``): what to print while compiling, as names separated by commas; see
  :mod:`mlirfuse.inspect.dump`
- ``dump_dir`` (``MLIRFUSE_DUMP_DIR``): a folder for dumps, one file each; without it they go to stderr

A setting takes effect at the next call, of functions that are already compiled too: they look up their specialization
again.
"""

from __future__ import annotations

import os
import sys
import types
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mlirfuse.core import environment, old_names
from mlirfuse.core.environment import Count, Flag
from mlirfuse.core.errors import nearest

LEVELS = ("fusion", "grouped", "segmented", "linalg", "tiled", "gpu", "nvvm", "ptx", "host", "llvm")
DUMPS = (
    *LEVELS, "guarded", "groups", "group-log", "segmenter-log", "math", "launch-params", "kernel-args",
    "effective-bandwidth", "occupancy", "sass", "guards", "cache",
)  # fmt: skip
_SETTINGS: dict[str, Flag | Count] = {
    "fuse_cpu": Flag(), "fuse_gpu": Flag(), "single_op": Flag(), "horizontal": Flag(), "max_args": Count(1_000_000),
    "guards": Flag(), "fallback": Flag(), "max_specializations": Count(1_000_000),
    "compile_seconds": Count(1_000_000, least=0), "check_indices": Flag(),
}  # fmt: skip
NAMES = (*_SETTINGS, "dump", "dump_dir")

_listeners: set[weakref.ref] = (
    set()
)  # objects with a method settings_changed(); no WeakSet: its callbacks swallow an interrupt


def dump_names(wanted) -> frozenset[str]:
    """Return the set of names in ``wanted``: text separated by commas, or an iterable. Raises ValueError for an unknown
    name."""
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


def _from_environment(name: str, default: Any) -> Any:
    return environment.read(f"MLIRFUSE_{name.upper()}", _SETTINGS[name], default)


fuse_cpu: bool = _from_environment("fuse_cpu", True)
fuse_gpu: bool = _from_environment("fuse_gpu", True)
single_op: bool = _from_environment("single_op", True)
horizontal: bool = _from_environment("horizontal", True)
guards: bool = _from_environment("guards", True)
fallback: bool = _from_environment("fallback", True)
max_specializations: int = _from_environment("max_specializations", 256)
compile_seconds: int = _from_environment("compile_seconds", 10)
max_args: int = _from_environment("max_args", 128)
check_indices: bool = _from_environment("check_indices", False)
dump: frozenset[str] = _dump_from_environment()
dump_dir: str | None = os.environ.get("MLIRFUSE_DUMP_DIR") or None


def checked(name: str, value: Any) -> Any:
    """Return ``value`` as setting ``name`` stores it. Raises AttributeError for an unknown name, ValueError for a value
    that the setting does not accept."""
    if name not in NAMES:
        raise AttributeError(f"mlirfuse.config has no setting '{name}'{nearest(name, NAMES)}")
    if name == "dump":
        return dump_names(value)
    if name == "dump_dir":
        if not isinstance(value, (str, os.PathLike, type(None))):
            raise ValueError(f"mlirfuse.config.dump_dir takes the path of a folder, or None, and not {value!r}")
        return value
    try:
        return _SETTINGS[name].parse(value)
    except ValueError:
        raise ValueError(f"mlirfuse.config.{name} takes {_SETTINGS[name].takes}, and not {value!r}") from None


def _today(name: str) -> str:
    return old_names.renamed("the option", name, old_names.SETTINGS)


class _Config(types.ModuleType):
    """This module, with assignments to settings checked and reported to listeners."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):  # set by Python's import system
            return super().__setattr__(name, value)
        name = _today(name)
        value = checked(name, value)
        changed = getattr(self, name) != value
        super().__setattr__(name, value)
        if changed:
            look_up_anew()

    def __getattr__(self, name: str) -> Any:
        if name in old_names.SETTINGS:
            return getattr(self, _today(name))
        raise AttributeError(f"mlirfuse.config has no setting '{name}'{nearest(name, NAMES)}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"mlirfuse.config.{name} cannot be deleted")


sys.modules[__name__].__class__ = _Config


def listen(listener) -> None:
    """Call ``listener.settings_changed()`` after each change of a setting, for as long as the object lives."""
    _listeners.add(weakref.ref(listener, _listeners.discard))


def look_up_anew() -> None:
    """Make every function look up its specialization again, as after a change of a setting."""
    for ref in list(_listeners):
        listener = ref()
        if listener is not None:
            listener.settings_changed()


def enabled_for(device: str) -> bool:
    """Whether functions over arrays of this device ("cpu", "cuda") are compiled."""
    return fuse_cpu if device == "cpu" else fuse_gpu


def compiled_as() -> tuple:
    """The settings that compiled code depends on; part of a specialization's key."""
    return single_op, horizontal, max_args, fuse_cpu, fuse_gpu, check_indices


@contextmanager
def override(**switches: Any) -> Iterator[None]:
    """Set settings inside a ``with`` block. Raises TypeError for an unknown name, ValueError for a value that a setting
    does not accept; in both cases nothing is set."""
    switches = {_today(name): value for name, value in switches.items()}
    for name in switches:
        if name not in NAMES:
            raise TypeError(f"mlirfuse.config has no setting '{name}'{nearest(name, NAMES)}")
    module = sys.modules[__name__]
    switches = {name: checked(name, value) for name, value in switches.items()}
    saved = {name: getattr(module, name) for name in switches}
    try:
        for name, value in switches.items():
            setattr(module, name, value)
        yield
    finally:
        for name, value in saved.items():
            setattr(module, name, value)
