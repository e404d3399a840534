"""Output to torch's logs: with ``TORCH_LOGS="mlirfuse"`` each graph's tables of ``explain``, with ``"+mlirfuse"`` also
the graph at two levels. Structured traces (``TORCH_TRACE``, for tlparse) get all three as artifacts."""

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
    """Logs ``given`` as MLIR at ``level``."""
    _reported(which, level, logging.DEBUG, lambda: _text(given))


def _text(given: Graph) -> str:
    """The MLIR text, or a comment with the error: non-tensor results of extern ops have no MLIR type."""
    try:
        return fusion.to_text(given)
    except Exception as error:  # logging must not stop compilation
        return f"// {type(error).__name__}: {error}"


def explained(which: str, lowered: Lowered, host: HostProgram) -> None:
    """Logs the tables of ``explain``."""
    from mlirfuse.frontend.torch.reports.description import described  # lazy: imports drawing

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
