"""Lowering rules of ATen and prims overloads, by category. Importing this package registers them all."""

from mlirfuse.frontend.torch.ops import (  # noqa: F401
    adaptive_pools,
    average_pools,
    diagonals,
    float8,
    foreach,
    pads,
    pointwise,
    pools,
    products,
    random,
    reductions,
    scans,
    scatter_add,
    shapes,
    unfold,
)
