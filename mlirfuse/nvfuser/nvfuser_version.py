"""The version of nvFuser's API that is followed, where nvFuser has it."""

__version__ = "0.2.36"
