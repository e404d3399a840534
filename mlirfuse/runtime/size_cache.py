"""What has been made for the sizes of earlier calls, for a bounded number of them."""

from __future__ import annotations

from typing import Any

_MOST = 4096  # entries: sequences of all lengths up to it; more would be a program whose sizes never repeat


class SizeCache(dict[tuple, Any]):
    """Values by tuples of sizes. It is emptied when it is full: what is in use comes back at its next call."""

    def add(self, sizes: tuple, value: Any) -> Any:
        """Keep ``value`` for these sizes, and return it."""
        if len(self) >= _MOST:
            self.clear()
        self[sizes] = value
        return value
