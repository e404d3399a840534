"""``fd.ops``: nvFuser's operations, combined from one class per category."""

from __future__ import annotations

from mlirfuse.frontend.nvfuser.ops.attention import Attention
from mlirfuse.frontend.nvfuser.ops.creation import Creation
from mlirfuse.frontend.nvfuser.ops.elementwise import Elementwise
from mlirfuse.frontend.nvfuser.ops.indexing import Indexing
from mlirfuse.frontend.nvfuser.ops.norms import Normalizations
from mlirfuse.frontend.nvfuser.ops.products import Products
from mlirfuse.frontend.nvfuser.ops.reductions import Reductions
from mlirfuse.frontend.nvfuser.ops.scans import Scans
from mlirfuse.frontend.nvfuser.ops.shapes import Shapes


class Operators(Elementwise, Reductions, Shapes, Creation, Indexing, Scans, Products, Attention, Normalizations):
    """The operations of a definition."""


def names() -> list[str]:
    """The names of all operations."""
    return sorted(n for n in dir(Operators) if not n.startswith("_"))
