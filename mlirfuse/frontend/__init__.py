"""The ways in. Whichever is used, dumps are there as soon as ``config.dump`` names some."""

from __future__ import annotations

import importlib

from mlirfuse.core import config


class _Dumps:
    """Imports :mod:`mlirfuse.inspect.dump` when a dump is first asked for: most programs ask for none."""

    def __init__(self) -> None:
        config.listen(self)
        self.switched()

    def switched(self) -> None:
        """A switch of :mod:`mlirfuse.config` has changed."""
        if config.dump:
            importlib.import_module("mlirfuse.inspect.dump")


_dumps = _Dumps()
