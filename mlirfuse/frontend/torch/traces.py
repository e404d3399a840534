"""What torch's logs get of each graph: with ``TORCH_LOGS="mlirfuse"`` the tables of ``explain``, with ``"+mlirfuse"``
the graph at two levels too. Structured traces (``TORCH_TRACE``, for tlparse) have all three as artifacts."""

from __future__ import annotations

import logging
from collections.abc import Callable

from mlirfuse.dialects import fusion
from mlirfuse.frontend.torch.lower import Lowered
from mlirfuse.frontend.torch.torch_private import trace_structured, traced
from mlirfuse.ir.graph import Graph
from mlirfuse.runtime.host_program import HostProgram

log = logging.getLogger("mlirfuse")


def graph(which: str, level: str, given: Graph) -> None:
    """``given`` as MLIR, after the passes that lead to ``level``."""
    _reported(which, level, logging.DEBUG, lambda: _text(given))


def _text(given: Graph) -> str:
    """MLIR, or why there is none: results of torch's ops that are no tensors of ours have no type in it."""
    try:
        return fusion.to_text(given)
    except Exception as error:  # whoever looks on stops nothing
        return f"// {type(error).__name__}: {error}"


def explained(which: str, lowered: Lowered, host: HostProgram) -> None:
    """The tables of ``explain``."""
    from mlirfuse.frontend.torch.description import described  # drawing is imported where somebody looks

    _reported(which, "explain", logging.INFO, lambda: str(described(which, lowered, host)))


def _reported(which: str, what: str, severity: int, text: Callable[[], str]) -> None:
    if log.isEnabledFor(severity):
        log.log(severity, "the %s graph, %s:\n%s", which, what, text())
    if traced():
        trace_structured(
            "artifact",
            metadata_fn=lambda: {"name": f"mlirfuse_{which}_{what}", "encoding": "string"},
            payload_fn=text,
        )
