"""Native loops: a ``for`` or ``while`` statement of the user's function is outlined and compiled to one native
function.

``outline.py`` rewrites the function: at run time each loop statement checks with the current local variables whether
it can run natively, else it runs as Python. ``kernel.py`` finds the code for what a loop is called with, through the
calls that ``calls.py`` generates, or has ``compilation.py`` make it. ``statements.py``, ``control_flow.py``,
``expressions.py``, ``subscripts.py``, ``functions.py`` (with ``reductions.py``, ``products.py`` and
``rearranging.py``) and ``arrays.py`` translate a loop's statements, expressions and functions to MLIR, over the values
of ``values.py``, the state of ``variables.py`` and the blocks of ``code.py``. ``words.py`` has the layout of the
argument block, ``callbacks.py`` what code calls.

Loops work on the caller's own memory in program order, so that an error leaves the same state as in NumPy. The code
does not depend on trip counts, which are read when the loop begins.
"""
