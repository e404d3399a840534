"""Converts parameters of schedules to and from attributes: dictionaries, lists, strings, numbers and element types,
which the fusion dialect prints and parses on a segment."""

from __future__ import annotations

import functools
import typing
from typing import Any

from mlirfuse.core import old_names
from mlirfuse.core.errors import ScheduleError
from mlirfuse.dialects import fusion
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.dtypes import DType

Attributes = dict[str, Any]


def attribute(value: Any) -> Any:
    """The value of a parameter as an attribute."""
    if hasattr(value, "_asdict"):
        return {key: attribute(field) for key, field in value._asdict().items()}
    if isinstance(value, frozenset):
        return sorted(map(str, value))
    return list(value) if isinstance(value, tuple) else value


def read(types: dict[str, Any], given: Attributes, default: Any = None) -> Attributes:
    """The values of the ``given`` parameters, of these names and ``types``. Parts of a named tuple that are not given
    are those of its value in ``default``. Raises :class:`ScheduleError` for an unknown, missing or ill-typed one."""
    given = old_names.renamed_fields(given, types)
    for key in given:
        if key not in types:
            raise ScheduleError(f"no parameter '{key}': the parameters are {', '.join(types)}")
    return {key: _read(key, types[key], value, default and default.value(key)) for key, value in given.items()}


@functools.cache
def types_of(cls: type | None, names: tuple[str, ...] = ()) -> dict[str, Any]:
    """The types of a named tuple's fields: of those with these ``names``, or of all."""
    types = typing.get_type_hints(cls) if cls else {}
    return {name: types[name] for name in names or types}


def require_all(names: typing.Iterable[str], given: typing.Container[str]) -> None:
    """Raise :class:`ScheduleError` if a parameter without a default is not ``given``."""
    for name in names:
        if name not in given:
            raise ScheduleError(
                f"parameter '{name}' is missing, and this scheduler has no default for this segment at these sizes"
            )


def _read(key: str, type_: Any, value: Any, default: Any) -> Any:
    if hasattr(type_, "_fields") and isinstance(value, dict):
        types = types_of(type_)
        parts = read(types, value)
        if default is not None:
            return default._replace(**parts)
        require_all((name for name in types if name not in type_._field_defaults), parts)
        return type_(**parts)
    origin = typing.get_origin(type_)
    if type_ in (bool, int, str, DType) and isinstance(value, type_) and (type_ is not int or type(value) is not bool):
        return value
    if origin is tuple and isinstance(value, (list, tuple)) and all(type(n) is int for n in value):
        return tuple(value)
    if origin is frozenset and isinstance(value, (list, tuple, frozenset)):
        return frozenset(sz.parse(n) if isinstance(n, str) else n for n in value)
    raise ScheduleError(f"{key} = {value!r} is not of type {type_ if origin else type_.__name__}")


def serialized(given: Attributes) -> str:
    """A schedule on one line, for people: parameters of memory accesses first, then the enabled options."""
    return " ".join(f"{key}={value}" for key, value in flat(given).items() if value is not False)


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
