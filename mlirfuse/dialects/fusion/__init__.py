"""The fusion dialect: classes and verifiers derived from the op table, and conversion between MLIR and :class:`Graph`.

Tensor ops have the names of the op table (``fusion.add``). Symbolic sizes are strings over the symbols that the
function's arguments declare::

    func.func @f(%x: tensor<?x?xf32> {fusion.shape = ["s0", "s1"], fusion.strides = ["s1", "1"],
                                      fusion.align = 16 : i64},
                 %w: tensor<?xf32> {fusion.shape = ["s1"]}) -> tensor<?xf32> {
      %0 = "fusion.add"(%x, %w2) : (tensor<?x?xf32>, tensor<1x?xf32>) -> tensor<?x?xf32>
      %1 = "fusion.reshape"(%0) {shape = ["s0*s1"]} : (tensor<?x?xf32>) -> tensor<?xf32>

``fusion.group`` and ``fusion.segment`` are isolated from above: all values that their region uses are operands.
"""

from mlirfuse.core.errors import FusionIRError
from mlirfuse.dialects.fusion.attributes import MLIRText, attribute, attribute_of
from mlirfuse.dialects.fusion.dialect import context, load, parse
from mlirfuse.dialects.fusion.printer import to_module_text, to_text
from mlirfuse.dialects.fusion.reader import not_read, read
from mlirfuse.dialects.fusion.verifier import verify, written_in_place

__all__ = [
    "FusionIRError",
    "MLIRText",
    "attribute",
    "attribute_of",
    "context",
    "load",
    "not_read",
    "parse",
    "read",
    "to_module_text",
    "to_text",
    "verify",
    "written_in_place",
]
