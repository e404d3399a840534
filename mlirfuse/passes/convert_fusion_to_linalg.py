"""convert-fusion-to-linalg: convert each segment to linalg on tensors."""

from __future__ import annotations

from mlirfuse.core.errors import UnsupportedError
from mlirfuse.passes.base import IR, Pass, PassError, register


@register
class ConvertFusionToLinalg(Pass):
    """Converts each segment to a function of ``linalg`` on tensors: chains of elementwise ops and reductions as
    ``linalg.generic``, other shape ops as ops of ``tensor``. Ops outside of segments are converted in place; extern ops
    become calls of declared functions. The result is an input for other backends, and can be tested: MLIR's own passes
    lower it to executable loops. The schedulers of this project do not use it; they read the segment itself
    (fusion-schedule).

    Before::

        %0 = "fusion.segment"(%x, %w) ({
        ^bb0(%a: tensor<?x?xf32>, %b: tensor<1x?xf32>):
          %1 = "fusion.add"(%a, %b)
          %2 = "fusion.sum"(%1) {axes = [1]}
          "fusion.yield"(%2)
        })

    After::

        %0 = call @f_segment0(%x, %w, %s0)

        func.func private @f_segment0(%a: tensor<?x?xf32>, %b: tensor<1x?xf32>, %s0: index) -> tensor<?xf32> {
          %e = tensor.empty(%s0)
          %f = linalg.fill ins(%zero) outs(%e)
          %r = linalg.generic {iterator_types = ["parallel", "reduction"], …} ins(%a, %b) outs(%f) {
          ^bb0(%i: f32, %j: f32, %acc: f32):
            %1 = arith.addf %i, %j
            %2 = arith.addf %acc, %1
            linalg.yield %2
          }
          return %r
    """

    name = "convert-fusion-to-linalg"

    def run_on_ir(self, ir: IR) -> None:
        from mlirfuse.lowering.linalg import to_linalg  # imported here: most processes do not need it

        graphs = ir.graphs
        try:
            ir.module = to_linalg(graphs, ir._kept)
        except UnsupportedError as error:
            raise PassError(f"{self.name}: {error}", error.loc) from error
