"""``options=`` of ``torch.compile``."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True)
class Options:
    """``options=`` of ``torch.compile``.

    ``fallback``: what happens where a graph does not compile: it runs op by op with a warning, or the error is raised.
    ``warn_outside``: a warning for each graph that lists the ops that run as torch's own. ``eager_random``: dropout and
    random numbers are those that eager draws, by its own kernels. ``eager_rounding``: results of half types are rounded
    where eager rounds them, at each op. ``repro``: the folder for scripts of graphs that do not compile; None: that of
    temporary files. ``channels_last``: convolutions lie channels-last in the whole graph; None: where that should pay.
    ``cuda_graphs``: graphs of a GPU are recorded; None: as the mode says. ``chunked_loss``: cross entropy of a linear
    layer in chunks of rows, without its logits, "always" or "never", or "auto", where that saves much memory.
    """

    fallback: bool = True
    warn_outside: bool = False
    eager_random: bool = False
    eager_rounding: bool = False
    repro: str | None = None
    channels_last: bool | None = None
    cuda_graphs: bool | None = None
    chunked_loss: str = "auto"

    @staticmethod
    def of(given: dict[str, Any] | None) -> Options:
        """Raises ValueError for an option, or a value of one, that is none."""
        names = {field.name for field in fields(Options)}
        unknown = sorted(set(given or {}) - names)
        if unknown:
            raise ValueError(f"mlirfuse has no option '{unknown[0]}'; there are {', '.join(sorted(names))}")
        found = Options(**(given or {}))
        if found.chunked_loss not in ("auto", "always", "never"):
            raise ValueError(f"the option 'chunked_loss' is 'auto', 'always' or 'never', not {found.chunked_loss!r}")
        return found
