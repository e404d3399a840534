"""nvFuser's name of :mod:`mlirfuse.nvfuser.nvfuser_version` in its direct bindings."""

from mlirfuse.nvfuser.nvfuser_version import __version__

__all__ = ["__version__"]
