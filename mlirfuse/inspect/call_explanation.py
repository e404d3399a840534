"""The explanation of a call that no single graph covers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mlirfuse.inspect.shown import Table, Tables


@dataclass(eq=False)
class CallExplanation(Tables):
    """How one call ran. ``text``: one sentence; ``parts``: what ran, in order, each a record of its strategy, a row of
    ``shown``; ``launches``: of kernels or compiled functions; ``seconds``: of the whole call, 0 if it was not run."""

    name: str
    text: str
    parts: Sequence[Any] = ()
    launches: int = 0
    seconds: float = 0.0
    shown: Sequence[Table] = ()

    def summary(self) -> str:
        return self.text

    def tables(self) -> list[Table]:
        return list(self.shown)
