"""User-visible reports: graphs that do not compile, with a repro script, and extern ops."""

from __future__ import annotations

from torch.fx import GraphModule

from mlirfuse.core import config
from mlirfuse.core.errors import CompileError, located, warn
from mlirfuse.frontend.torch.lower import Lowered
from mlirfuse.frontend.torch.options import Options
from mlirfuse.frontend.torch.reports import repro
from mlirfuse.ir.graph import Graph


def calls_outside(lowered: Lowered, which: str, options: Options) -> None:
    """With the option ``warn_outside``, warns with a list of the graph's extern ops."""
    if options.warn_outside and lowered.outside:
        listed = sorted({f"{op}: {why}" for op, why, _ in lowered.outside})
        warn(f"in the {which} graph torch's own ops run: {'; '.join(listed)}")


def not_compiled(error: Exception) -> None:
    """Warns that a graph runs in eager, because ``error`` was raised before any of it was compiled."""
    warn(f"mlirfuse could not compile a graph and runs it as in eager: {repro.about(error)}")


class Failures:
    """Failure reports of one graph, ``which``. ``module``: None where the compiled graph came from torch's cache."""

    def __init__(self, module: GraphModule | None, which: str, options: Options):
        self.module, self.which, self.options = module, which, options
        # AOTAutograd removes nodes' metadata once the graph is compiled.
        self._known = [(node, node.meta) for node in module.graph.nodes] if module is not None else []
        self._reported = False

    def report(self, what: str, error: Exception) -> None:
        """Warns, once per graph, that ``what`` runs op by op. Raises :class:`CompileError` with the fallback off."""
        may_fall_back = self.options.fallback and config.fallback
        if self._reported and may_fall_back:
            return
        message = f"{repro.about(error)}\n  {self._repro()}"
        if not may_fall_back:
            raise CompileError(f"{what}: {message}") from error
        self._reported = True
        warn(f"mlirfuse could not compile {what} and runs it op by op: {message}")

    def kernel(self, group: Graph, error: Exception) -> None:
        """Reports a group whose kernel failed at its first call with some sizes."""
        names = ", ".join(dict.fromkeys(op.name for op in group.ops))
        place = next((op.loc for op in group.ops if op.loc), None)
        self.report(located(f"a kernel ({names}) of the {self.which} graph", place), error)

    def _repro(self) -> str:
        if self.module is None:
            return "to get a script that reproduces it, set TORCH_COMPILE_FORCE_DISABLE_CACHES=1"
        for node, meta in self._known:
            node.meta = meta
        try:
            return f"this script reproduces it: {repro.write(self.module, self.which, self.options.repro)}"
        except Exception as error:  # the first error is the one to report
            return f"no script that reproduces it could be written: {error}"
