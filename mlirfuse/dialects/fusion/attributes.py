"""Conversion of attributes between Python and MLIR's syntax: Python values, sizes as strings, element types."""

from __future__ import annotations

import contextlib
import typing

import numpy as np

from mlirfuse.core.mlir import ir, plain_context
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.ops import AttrType
from mlirfuse.ir.ops.attributes import ELEMENT


class MLIRText(str):
    """An attribute kept in MLIR's syntax: of an op of another dialect."""

    __slots__ = ()


# ----------------------------------------------------------------------------------------------------------------
# printing


def size_list(sizes) -> str:
    return "[" + ", ".join(f'"{n}"' for n in sizes) + "]"


def quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\0A") + '"'


def attribute(value) -> str:
    """Return the MLIR syntax of a Python value: bool, int, float, str, DType, None, or a list, tuple or dict of
    those."""
    if value is None:  # in a call's list of strides: a result that is not a tensor
        return "unit"
    if isinstance(value, (bool, np.bool_)):
        return "true" if value else "false"
    if isinstance(value, (int, np.integer)):
        return f"{int(value)} : i64"
    if isinstance(value, float):
        return f"{dt.literal(value, dt.f64)} : f64"
    if isinstance(value, dt.DType):
        return value.mlir
    if isinstance(value, sz.Expr):
        return f'"{value}"'
    if isinstance(value, MLIRText):
        return str(value)
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k} = {attribute(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(attribute, value)) + "]"
    raise TypeError(f"no MLIR attribute for {value!r}")


def constant_attribute(value, dtype) -> str:
    if dtype.kind == "c":
        return f'"{complex(value)}"'
    if dtype is dt.bool_:
        return "true" if value else "false"
    serialized = (
        str(int(value)) if dtype.kind == "u" else dt.literal(value, dtype)
    )  # types that carry a sign take it literally
    return f"{serialized} : {dtype.mlir}"


# ----------------------------------------------------------------------------------------------------------------
# reading


def named_attributes(attributes) -> list:
    """Return the entries of an attribute dictionary as objects with a name and an attribute, from either of its two
    Python representations."""
    try:
        if isinstance(attributes, ir.DictAttr):
            return [_Named(a.name, a.attr) for a in (attributes[k] for k in range(len(attributes)))]
        found = [_Named(key, attributes[key]) if isinstance(key, str) else key for key in attributes]
        return [a if hasattr(a, "name") else ir.NamedAttribute(a) for a in found]
    except TypeError as error:  # the bindings have no class for a location as an attribute
        raise ValueError("an attribute has an unsupported type, such as a location") from error


class _Named(typing.NamedTuple):
    name: str
    attr: ir.Attribute


def element_of(attr):
    """Return a constant's value; of a complex one, MLIR has only the text. Raises ValueError."""
    value = python(attr)
    with contextlib.suppress(ValueError):
        value = complex(value) if isinstance(value, str) else value
    if not ELEMENT.holds(value):
        raise ValueError(f"{attr} is not {ELEMENT.takes}")
    return value


def of_type(attr, type_: AttrType):
    """Return the Python value of an op's attribute of type ``type_``. Raises ValueError for another type."""
    try:
        value = python(attr)
    except TypeError:  # the bindings have no class for a location in it
        value = attr
    if type_.sizes is not None:
        value = _read_sizes(value, type_.sizes)
    elif type_.tuples and isinstance(value, list):
        value = tuple(value)
    if not type_.holds(value):
        raise ValueError(f"{attr} is not {type_.takes}")
    return value


def _read_sizes(value, depth: int):
    if depth and isinstance(value, list):
        return tuple([_read_sizes(v, depth - 1) for v in value])
    return sz.parse(value) if isinstance(value, str) else value


def attribute_of(text: str):
    """Return the Python value of an attribute printed by :func:`attribute`. Raises ValueError."""
    with plain_context():
        try:
            return python(ir.Attribute.parse(text))
        except ir.MLIRError as error:
            raise ValueError(str(error)) from error


def python(attr):
    """Return the Python value of an MLIR attribute."""
    if isinstance(attr, ir.ArrayAttr):
        return [python(a) for a in ir.ArrayAttr(attr)]
    if isinstance(attr, ir.TypeAttr):
        text = str(ir.TypeAttr(attr).value)
        if text not in dt.BY_MLIR:
            raise ValueError(f"{text} is not an element type")
        return dt.BY_MLIR[text]
    if isinstance(attr, ir.BoolAttr):
        return bool(ir.BoolAttr(attr).value)
    if isinstance(attr, ir.IntegerAttr):
        return _integer(attr)
    if isinstance(attr, ir.FloatAttr):
        return ir.FloatAttr(attr).value
    if isinstance(attr, ir.StringAttr):
        return ir.StringAttr(attr).value
    if isinstance(attr, ir.DictAttr):
        return {a.name: python(a.attr) for a in named_attributes(ir.DictAttr(attr))}
    return str(attr)


def _integer(attr) -> int:
    return int(str(attr).split(" ")[0])
