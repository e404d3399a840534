"""The table of operations: each op of the fusion dialect is declared here, once, as a row.

Derived from a row: the dialect's class and verifier, shape and type inference, the names in the NumPy and nvFuser front
ends, the reference interpreter (which is also the fallback), the documentation and the op-by-op tests. Code generation
for it is in :mod:`mlirfuse.lowering`; the relation of its axes to its operands' axes in :mod:`mlirfuse.analysis.axes`.

:mod:`registry` defines what a row is; the other files contain the rows and register them at import.
"""

from mlirfuse.ir.ops import (  # noqa: I001  (the order of the rows is the order of the reference)
    elementwise as _elementwise,  # noqa: F401
    reductions as _reductions,  # noqa: F401
    scans as _scans,  # noqa: F401
    shapes as _shapes,  # noqa: F401
    indexing as _indexing,  # noqa: F401
    creation as _creation,  # noqa: F401
    random as _random,  # noqa: F401
    products as _products,  # noqa: F401
    extern as _library,  # noqa: F401
    activations as _activations,  # noqa: F401
    norms as _norms,  # noqa: F401
    losses as _losses,  # noqa: F401
    windows as _windows,  # noqa: F401
)
from mlirfuse.ir.ops.attributes import AttrType, map_sizes, sizes_in
from mlirfuse.ir.ops.indexing import added_at
from mlirfuse.ir.ops.registry import (
    ALL_TYPES,
    ANY,
    BOOL,
    COMPLEX,
    EXPENSIVE,
    FLOAT,
    FOREIGN,
    INT,
    NARROW,
    NUMBER,
    TABLE,
    OpDef,
    axes_of,
    broadcast_shapes,
    lookup,
    result_dtypes,
    result_shapes,
)

__all__ = [
    "ALL_TYPES",
    "ANY",
    "BOOL",
    "COMPLEX",
    "EXPENSIVE",
    "FLOAT",
    "FOREIGN",
    "INT",
    "NARROW",
    "NUMBER",
    "TABLE",
    "AttrType",
    "OpDef",
    "added_at",
    "axes_of",
    "broadcast_shapes",
    "lookup",
    "map_sizes",
    "result_dtypes",
    "result_shapes",
    "sizes_in",
]
