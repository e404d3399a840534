"""The direct bindings' name for :mod:`mlirfuse.nvfuser.nvfuser_version`."""

from mlirfuse.nvfuser.nvfuser_version import __version__

__all__ = ["__version__"]
