"""Rules for ATen and prims overloads, by what they do. Importing this package registers them all."""

from mlirfuse.frontend.torch.ops import accumulations, foreach, pointwise, random, reductions, scans, shapes  # noqa: F401
