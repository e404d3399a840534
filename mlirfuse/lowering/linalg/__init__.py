"""Segments as ``linalg`` on tensors: what a segment computes, spelled in MLIR's own dialects.

Each segment becomes a function of its own, ``@f_segment0``, and the function calls them in order. In a segment

- a chain of elementwise ops is one ``linalg.generic`` over the dimensions of its result, whose body is made by the op
  table's ``emit``, as in a kernel; views that only rename dimensions (permute, broadcast, squeeze, expand_dims) are its
  indexing maps;
- a reduction is a ``linalg.generic`` with reduction iterators, its accumulator begun by ``linalg.fill``;
- a reshape is ``tensor.collapse_shape`` and ``expand_shape``, a slice ``tensor.extract_slice``, a concatenation
  ``tensor.insert_slice`` for each operand, padding ``tensor.pad``; what needs an index computed from data, or a step
  backwards, reads by ``tensor.extract`` in a body.

Values between the generics of one segment are kept in their compute type: half types are rounded at casts and results
only, as in kernels. Sizes are ``index`` values, from ``tensor.dim`` of the arguments. Library ops are calls of private
functions, named for the op.
"""

from mlirfuse.lowering.linalg.program import to_linalg

__all__ = ["to_linalg"]
