"""Native loops: a ``for`` or ``while`` statement of the user's function is outlined and compiled to one native
function.

``outline.py`` rewrites the function: at run time each loop statement checks with the current local variables whether it
can run natively, else it runs as Python. ``kernel.py`` caches a loop's code by the variables' types and calls it.
``statements.py``, ``expressions.py``, ``subscripts.py``, ``functions.py`` (with ``reductions.py``, ``products.py`` and
``rearranging.py``) and ``arrays.py`` translate a loop's statements, expressions and functions to MLIR, over the values
of ``values.py``, the state of ``state.py`` and the blocks of ``code.py``.

Loops work on the caller's own memory in program order, so that an error leaves the same state as in NumPy. The code
does not depend on trip counts, which are read when the loop begins.
"""
