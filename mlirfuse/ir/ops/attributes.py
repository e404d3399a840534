"""Types of op attributes: how the dialect's reader converts MLIR's attributes, and what it checks.

An attribute's name determines its type, in all rows alike; a row may override that (``OpDef.types``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlirfuse.ir import sizes as sz
from mlirfuse.ir.dtypes import DType
from mlirfuse.ir.sizes import Size


@dataclass(frozen=True)
class AttrType:
    """``takes``: the type's name in messages. ``holds(value)``: whether a Python value has the type. ``sizes``: the
    nesting depth of its sizes in tuples (0: it is a size; None: it contains none). ``tuples``: the nesting depth of
    other elements in tuples. ``printed``: whether the text of the IR has it."""

    takes: str
    holds: Callable[[Any], bool]
    sizes: int | None = None
    tuples: int = 0
    printed: bool = True


_LARGEST = 2**63  # attributes are 64-bit integers in MLIR


def _is_integer(value: Any) -> bool:
    if isinstance(value, (bool, np.bool_)):
        return False
    return isinstance(value, (int, np.integer)) and -_LARGEST <= int(value) <= _LARGEST


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, complex, np.number)) and not isinstance(value, (bool, np.bool_))


def _is_bool(value: Any) -> bool:
    return isinstance(value, (bool, np.bool_))


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_size(value: Any) -> bool:
    return _is_integer(value) or isinstance(value, sz.Expr)


def _is_dtype(value: Any) -> bool:
    return isinstance(value, DType)


def _tuple_of(holds: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, (tuple, list)) and all(map(holds, value))


INTEGER = AttrType("an integer", _is_integer)
INTEGERS = AttrType("a list of integers", _tuple_of(_is_integer), tuples=1)
NUMBER = AttrType("a number", _is_number)
ELEMENT = AttrType("a number or a bool", lambda value: _is_number(value) or _is_bool(value))
BOOL = AttrType("true or false", _is_bool)
TEXT = AttrType("a string", _is_text)
TEXTS = AttrType("a list of strings", _tuple_of(_is_text), tuples=1)
DTYPE = AttrType("an element type", _is_dtype)
DTYPES = AttrType("a list of element types", _tuple_of(_is_dtype), tuples=1)
SIZE = AttrType("a size", _is_size, sizes=0)
SIZES = AttrType("a list of sizes", _tuple_of(_is_size), sizes=1)
SIZE_LISTS = AttrType("a list of lists of sizes", _tuple_of(_tuple_of(_is_size)), sizes=2)
FUNCTION = AttrType("a Python callable", callable, printed=False)

BY_NAME: dict[str, AttrType] = {
    "approximate": TEXT,
    "at": SIZES,
    "axes": INTEGERS,
    "axis": INTEGER,
    "callee": TEXT,
    "causal": BOOL,
    "collective": TEXT,
    "consumes": BOOL,
    "correction": NUMBER,
    "count": INTEGER,
    "descending": BOOL,
    "stable": BOOL,
    "dilation": INTEGERS,
    "dims": INTEGERS,
    "dtype": DTYPE,
    "dtypes": DTYPES,
    "effects": BOOL,
    "eps": NUMBER,
    "exact_zero": BOOL,
    "fast_sums": BOOL,
    "formats": TEXTS,
    "function": FUNCTION,
    "groups": INTEGER,
    "has": TEXTS,
    "high": SIZES,
    "ignore_index": INTEGER,
    "keepdims": BOOL,
    "label_smoothing": NUMBER,
    "largest": BOOL,
    "low": SIZES,
    "momentum": NUMBER,
    "p": NUMBER,
    "padding": INTEGERS,
    "parts": INTEGER,
    "ranks": INTEGER,
    "reduction": TEXT,
    "reverse": BOOL,
    "scale": NUMBER,
    "shape": SIZES,
    "shares": INTEGERS,
    "shapes": SIZE_LISTS,
    "shift": SIZE,
    "size": SIZES,
    "sizes": SIZES,
    "start": SIZES,
    "stats": BOOL,
    "step": INTEGERS,
    "stride": INTEGERS,
    "strides": SIZE_LISTS,
    "tf32": BOOL,
    "to": DTYPE,
    "training": BOOL,
}


def map_sizes(types: Mapping[str, AttrType], attrs: Mapping[str, Any], function: Callable[[Size], Any]) -> dict:
    """Return ``attrs`` with ``function`` applied to every size in them."""
    return {key: _mapped(types.get(key), value, function) for key, value in attrs.items()}


def _mapped(type_: AttrType | None, value: Any, function: Callable[[Size], Any]) -> Any:
    if type_ is None or type_.sizes is None or value is None:
        return value
    if type_.sizes == 0:
        return function(value)
    if type_.sizes == 1:
        return tuple(map(function, value))
    return tuple(tuple(map(function, inner)) for inner in value)


def sizes_in(types: Mapping[str, AttrType], attrs: Mapping[str, Any]) -> list[Size]:
    """Return every size in ``attrs``, in order."""
    found: list[Size] = []
    map_sizes(types, attrs, lambda size: found.append(size))
    return found
