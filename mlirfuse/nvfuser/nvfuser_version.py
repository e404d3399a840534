"""The version of nvFuser's API that mlirfuse implements."""

__version__ = "0.2.36"
