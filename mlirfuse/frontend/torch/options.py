"""``options=`` of ``torch.compile``."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from typing import Any

from mlirfuse.core.errors import nearest


@dataclass(frozen=True)
class Options:
    """``options=`` of ``torch.compile``.

    ``fallback``: a graph that does not compile runs op by op with a warning (True), or raises (False).
    ``warn_outside``: warn for each graph with the list of its extern ops. ``eager_random``: draw dropout masks and
    random numbers with eager's own kernels, and so the same numbers. ``eager_rounding``: round float16 and bfloat16
    results at each op, as eager does. ``repro``: the folder for repro scripts of graphs that do not compile; None: the
    folder of temporary files. ``channels_last``: use channels-last memory format for a graph's convolutions; None:
    where it is expected to pay. ``cuda_graphs``: record CUDA graphs; None: as the mode says. ``chunked_loss``: compute
    the loss of a linear layer in chunks of rows and blocks of words, without storing all logits: "always", "never", or
    "auto" (where that saves much memory). ``matmul_epilogues``: compute a matrix product of 16-bit floats and the
    elementwise ops on its result by one kernel, on a Hopper GPU: "always" where that is possible, "never", or "auto"
    (where it is expected to be faster).
    """

    fallback: bool = True
    warn_outside: bool = False
    eager_random: bool = False
    eager_rounding: bool = False
    repro: str | None = None
    channels_last: bool | None = None
    cuda_graphs: bool | None = None
    chunked_loss: str = "auto"
    matmul_epilogues: str = "never"

    @staticmethod
    def of(given: dict[str, Any] | None) -> Options:
        """Parses the dict. Raises ValueError for an unknown option or an invalid value."""
        if not isinstance(given, (dict, type(None))):
            raise ValueError(f"options= takes a dict of mlirfuse's options, not {given!r}")
        names = [field.name for field in fields(Options)]
        for name, value in (given or {}).items():
            if name not in names:
                raise ValueError(f"mlirfuse has no option '{name}'{nearest(str(name), sorted(names))}")
            if name in ("chunked_loss", "matmul_epilogues"):
                if value not in _WHEN:
                    takes = ", ".join(map(repr, _WHEN))
                    raise ValueError(f"mlirfuse's option '{name}' takes {takes}, not {value!r}")
                continue
            none = getattr(Options, name) is None
            if name == "repro" and not isinstance(value, (str, os.PathLike, type(None))):
                raise ValueError(f"mlirfuse's option 'repro' takes the path of a folder, or None, not {value!r}")
            if name != "repro" and not (isinstance(value, bool) or (none and value is None)):
                takes = "True, False or None" if none else "True or False"
                raise ValueError(f"mlirfuse's option '{name}' takes {takes}, not {value!r}")
        return Options(**(given or {}))


_WHEN = ("auto", "always", "never")
MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs", "lite")  # as Inductor's


def checked(mode: str | None) -> str | None:
    """``mode=`` of ``torch.compile``. Raises ValueError for an unknown mode."""
    if mode is not None and mode not in MODES:
        raise ValueError(f"torch.compile has no mode {mode!r}{nearest(str(mode), MODES)}")
    return mode
