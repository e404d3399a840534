"""The explanation of a call that runs op by op."""

from __future__ import annotations

from mlirfuse.inspect.shown import Table, Tables


class EagerExplanation(Tables):
    """A call of a function that runs uncompiled, op by op. ``why``: the reason, with the user's line if there is
    one."""

    launches = 0  # of kernels

    def __init__(self, name: str, why: str):
        self.name, self.why = name, why

    def summary(self) -> str:
        """One sentence: that nothing is compiled, and why."""
        return f"{self.name} runs op by op: {self.why}"

    def tables(self) -> list[Table]:
        return []
