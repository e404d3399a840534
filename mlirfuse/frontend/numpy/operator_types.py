"""Type declarations of the operators that other modules attach to stand-ins."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar


class Operators:
    """Operators that operators.py, protocols.py and torch_functions.py attach to each stand-in class; those modules
    need the functions, which need these classes."""

    __slots__ = ()

    if TYPE_CHECKING:
        __add__: ClassVar[Callable[..., Any]]
        __radd__: ClassVar[Callable[..., Any]]
        __sub__: ClassVar[Callable[..., Any]]
        __rsub__: ClassVar[Callable[..., Any]]
        __mul__: ClassVar[Callable[..., Any]]
        __rmul__: ClassVar[Callable[..., Any]]
        __truediv__: ClassVar[Callable[..., Any]]
        __rtruediv__: ClassVar[Callable[..., Any]]
        __floordiv__: ClassVar[Callable[..., Any]]
        __rfloordiv__: ClassVar[Callable[..., Any]]
        __mod__: ClassVar[Callable[..., Any]]
        __rmod__: ClassVar[Callable[..., Any]]
        __pow__: ClassVar[Callable[..., Any]]
        __rpow__: ClassVar[Callable[..., Any]]
        __array_ufunc__: ClassVar[Callable[..., Any]]
        __array_function__: ClassVar[Callable[..., Any]]
        __torch_function__: ClassVar[Any]
