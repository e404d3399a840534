"""map-forall-to-ids: replace loops over blocks and threads by ids."""

from __future__ import annotations

from mlirfuse.core import mlir
from mlirfuse.core.errors import CompileError
from mlirfuse.lowering.mapping import loops_to_ids
from mlirfuse.passes.base import Pass, PassError, register


@register
class MapForallToIds(Pass):
    """Replaces the loops over a grid's blocks and a block's threads by their bodies, which each thread runs, with block
    and thread ids as loop variables. ``jit`` does the same on its way to PTX.

    Before::

        gpu.func @mlirfuse_pointwise0(…) kernel {
          %blocks = gpu.grid_dim x
          scf.forall (%block) in (%blocks) {
            scf.forall (%thread) in (256) {
              …
            } {mapping = [#gpu.thread<x>]}
          } {mapping = [#gpu.block<x>]}
          gpu.return
        }

    After::

        gpu.func @mlirfuse_pointwise0(…) kernel {
          %block = gpu.block_id x
          %thread = gpu.thread_id x
          …
          gpu.return
        }
    """

    name = "map-forall-to-ids"

    def run_on_module(self, module):
        try:
            text = loops_to_ids(str(module))
        except CompileError as error:
            raise PassError(f"{self.name}: {error}") from error
        with module.context:
            return mlir.ir.Module.parse(text)
