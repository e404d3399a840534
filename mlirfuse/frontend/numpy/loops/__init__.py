"""Loops that stay loops: a ``for`` or ``while`` statement of the user's function becomes one native function.

``outline.py`` rewrites the function: each loop statement asks at run time whether it can run natively, with the local
variables as they are then, and runs as Python where it cannot. ``kernel.py`` keeps a loop's code by the variables'
types, and calls it. The statements, expressions and functions of a loop become MLIR in ``statements.py``,
``expressions.py``, ``functions.py`` (with ``reductions.py`` and ``products.py``) and ``arrays.py``, over the values of
``values.py`` and the blocks of ``code.py``.

The arrays are the caller's own memory and everything happens in the program's order, so that what an error leaves
behind is what NumPy leaves. Nothing depends on trip counts, which are read when the loop begins.
"""
