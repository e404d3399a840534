"""The types of the operators and protocols that other modules attach to stand-ins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.lib.mixins import NDArrayOperatorsMixin

    class Operators(NDArrayOperatorsMixin):
        __array_ufunc__: ClassVar[Callable[..., Any]]
        __array_function__: ClassVar[Callable[..., Any]]
        __torch_function__: ClassVar[Any]
else:

    class Operators:
        """Operators that operators.py, protocols.py and torch_functions.py attach to each stand-in class; those modules
        need the functions, which need these classes."""

        __slots__ = ()
