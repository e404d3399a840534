"""Rules for ATen and prims overloads, by what they do. Importing this package registers them all."""

from mlirfuse.frontend.torch.ops import (  # noqa: F401
    foreach,
    pointwise,
    pools,
    random,
    reductions,
    scans,
    scatter_add,
    shapes,
)
