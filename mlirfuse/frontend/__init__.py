"""The front ends: NumPy, PyTorch, nvFuser. All enable dumps as soon as ``config.dump`` names a channel."""

from __future__ import annotations

import importlib

from mlirfuse.core import config


class _Dumps:
    """Imports :mod:`mlirfuse.inspect.dump` when a dump is first requested."""

    def __init__(self) -> None:
        config.listen(self)
        self.settings_changed()

    def settings_changed(self) -> None:
        """Called when a switch of :mod:`mlirfuse.config` changes."""
        if config.dump:
            importlib.import_module("mlirfuse.inspect.dump")


_dumps = _Dumps()
