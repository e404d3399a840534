"""``options=`` of ``torch.compile``."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from typing import Any

from mlirfuse.core.errors import nearest


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
        """Raises ValueError for an option that is none, or that does not take its value."""
        if not isinstance(given, (dict, type(None))):
            raise ValueError(f"options= takes a dict of mlirfuse's options, and not {given!r}")
        names = [field.name for field in fields(Options)]
        for name, value in (given or {}).items():
            if name not in names:
                raise ValueError(f"mlirfuse has no option '{name}'{nearest(str(name), sorted(names))}")
            if name == "chunked_loss":
                if value not in _CHUNKED:
                    takes = ", ".join(map(repr, _CHUNKED))
                    raise ValueError(f"mlirfuse's option '{name}' takes {takes}, not {value!r}")
                continue
            none = getattr(Options, name) is None
            if name == "repro" and not isinstance(value, (str, os.PathLike, type(None))):
                raise ValueError(f"mlirfuse's option 'repro' takes the path of a folder, or None, and not {value!r}")
            if name != "repro" and not (isinstance(value, bool) or (none and value is None)):
                takes = "True, False or None" if none else "True or False"
                raise ValueError(f"mlirfuse's option '{name}' takes {takes}, and not {value!r}")
        return Options(**(given or {}))


_CHUNKED = ("auto", "always", "never")
MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs", "lite")  # as torch's own back end


def checked(mode: str | None) -> str | None:
    """``mode=`` of ``torch.compile``. Raises ValueError for one that torch does not have."""
    if mode is not None and mode not in MODES:
        raise ValueError(f"torch.compile has no mode {mode!r}{nearest(str(mode), MODES)}")
    return mode
