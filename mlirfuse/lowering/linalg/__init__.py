"""Lowers segments to ``linalg`` on tensors, in MLIR's own dialects.

Each segment becomes a function, ``@f_segment0``, and the main function calls them in order. In a segment

- a chain of elementwise ops is one ``linalg.generic`` over the dimensions of its result, whose body is emitted by the
  op table's ``emit``, as in a kernel; views that only rename dimensions (permute, broadcast, squeeze, expand_dims) are
  its indexing maps;
- a reduction is a ``linalg.generic`` with reduction iterators, its accumulator initialized by ``linalg.fill``;
- a reshape is ``tensor.collapse_shape`` and ``expand_shape``, a slice ``tensor.extract_slice``, a concatenation
  ``tensor.insert_slice`` for each operand, padding ``tensor.pad``; ops with data-dependent indices, or negative steps,
  use ``tensor.extract`` in a body.

Values between the generics of one segment have their compute type: 16-bit floats are rounded only at casts and results,
as in kernels. Sizes are ``index`` values, from ``tensor.dim`` of the arguments. Extern ops are calls of private
functions, named after the op.
"""

from mlirfuse.lowering.linalg.program import to_linalg

__all__ = ["to_linalg"]
