"""Converts scheduler parameters to and from attributes: dictionaries, lists, strings, numbers and element types, which
the fusion dialect prints and parses on a segment."""

from __future__ import annotations

import functools
import typing
from collections.abc import Sequence
from typing import Any

from mlirfuse.core import old_names
from mlirfuse.core.errors import ScheduleError
from mlirfuse.dialects import fusion
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.dtypes import DType

Attributes = dict[str, Any]


def attributes(params: Any, fields: Sequence[str] = ()) -> Attributes:
    """The ``fields``, or all, of a named tuple as attributes."""
    return {key: _attribute(getattr(params, key)) for key in fields or params._fields}


def _attribute(value: Any) -> Any:
    if hasattr(value, "_asdict"):
        return attributes(value)
    if isinstance(value, frozenset):
        return sorted(map(str, value))
    return list(value) if isinstance(value, tuple) else value


def read(cls: type, given: Attributes, default: Any, names: tuple[str, ...] = ()) -> Any:
    """The named tuple ``cls`` with the fields that are ``given``, which are among ``names`` or any, and the others from
    ``default``, which may be None. Raises :class:`ScheduleError` for an unknown, missing or ill-typed field."""
    types = _types(cls, names)
    given = old_names.renamed_fields(given, types)
    for key in given:
        if key not in types:
            raise ScheduleError(f"no parameter '{key}': the parameters are {', '.join(types)}")
    missing = [key for key in types if key not in given and key not in cls._field_defaults]  # type: ignore[attr-defined]
    if default is None and missing:
        raise ScheduleError(
            f"parameter '{missing[0]}' is missing, and this scheduler has no default for this segment at these sizes"
        )
    fields = {key: _read(key, types[key], value, getattr(default, key, None)) for key, value in given.items()}
    return cls(**fields) if default is None else default._replace(**fields)


@functools.cache
def _types(cls: type, names: tuple[str, ...]) -> dict[str, Any]:
    types = typing.get_type_hints(cls)
    return {name: types[name] for name in names or types}


def _read(key: str, type_: Any, value: Any, default: Any) -> Any:
    if hasattr(type_, "_fields") and isinstance(value, dict):
        return read(type_, value, default)
    if type_ is bool and isinstance(value, bool):
        return value
    if type_ is int and isinstance(value, int) and not isinstance(value, bool):
        return value
    if type_ is str and isinstance(value, str):
        return value
    if type_ is DType and isinstance(value, DType):
        return value
    if typing.get_origin(type_) is tuple and isinstance(value, (list, tuple)) and all(type(n) is int for n in value):
        return tuple(value)
    if typing.get_origin(type_) is frozenset and isinstance(value, (list, tuple, frozenset)):
        return frozenset(sz.parse(n) if isinstance(n, str) else n for n in value)
    name = getattr(type_, "__name__", str(type_)) if typing.get_origin(type_) is None else str(type_)
    raise ScheduleError(f"{key} = {value!r} is not of type {name}")


def serialized(given: Attributes) -> str:
    """A schedule on one line, for people: parameters of memory accesses first, then the enabled options."""
    words = []
    for key, value in flat(given).items():
        if value is not False:
            words.append(f"{key}={value}")
    return " ".join(words)


def flat(given: Attributes) -> Attributes:
    """The parameters with scalar values, without the alignments."""
    out: Attributes = {}
    for key, value in given.items():
        if key == "access":
            out |= {"lanes": value["lanes"], "index": str(value["index"])}
        elif key == "stages" and isinstance(value, list):
            out["stages"] = len(value)
        elif isinstance(value, (bool, int, str)) and key != "scheduler" and (key, value) != ("form", "phases"):
            out[key] = value
    return out


def text(given: Any) -> str:
    """Attributes as MLIR text."""
    return fusion.attribute(given)


def parse(serialized_: str) -> Any:
    """Parse the attributes that :func:`text` writes. Raises :class:`ScheduleError`."""
    try:
        return fusion.attribute_of(serialized_)
    except ValueError as error:
        raise ScheduleError(f"'{serialized_}' is not an MLIR attribute: {error}") from error
