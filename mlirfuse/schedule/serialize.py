"""Parameters of schedulers as attributes: dictionaries, lists, strings, numbers and element types, as the fusion
dialect prints and reads them on a segment."""

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


def attributes(params: Any) -> Attributes:
    """The fields of a named tuple."""
    return {key: _attribute(value) for key, value in params._asdict().items()}


def _attribute(value: Any) -> Any:
    if hasattr(value, "_asdict"):
        return attributes(value)
    if isinstance(value, frozenset):
        return sorted(map(str, value))
    return list(value) if isinstance(value, tuple) else value


def read(cls: type, given: Attributes, default: Any) -> Any:
    """The named tuple ``cls`` with the fields that are ``given``, the others as in ``default`` (None: there is none).
    Raises :class:`ScheduleError`."""
    types = _types(cls)
    given = {key if key in types else old_names.renamed_field(key, types): value for key, value in given.items()}
    for key in given:
        if key not in types:
            raise ScheduleError(f"no parameter '{key}': there are {', '.join(types)}")
    missing = [key for key in types if key not in given and key not in cls._field_defaults]  # type: ignore[attr-defined]
    if default is None and missing:
        raise ScheduleError(
            f"parameter '{missing[0]}' is missing: for these sizes this scheduler takes no such segment by itself"
        )
    fields = {key: _read(key, types[key], value, getattr(default, key, None)) for key, value in given.items()}
    return cls(**fields) if default is None else default._replace(**fields)


@functools.cache
def _types(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


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
    raise ScheduleError(f"{key} = {value!r} is no {name}")


def serialized(given: Attributes) -> str:
    """A schedule for people, on a line: what the memory's accesses are first, then what is switched on."""
    words = []
    for key, value in flat(given).items():
        if value is not False:
            words.append(f"{key}={value}")
    return " ".join(words)


def flat(given: Attributes) -> Attributes:
    """The parameters that are one word each, without those that say how memory is aligned."""
    out: Attributes = {}
    for key, value in given.items():
        if key == "access":
            out |= {"lanes": value["lanes"], "index": str(value["index"])}
        elif key == "stages":
            out["stages"] = len(value)
        elif isinstance(value, (bool, int, str)) and key != "scheduler" and (key, value) != ("form", "phases"):
            out[key] = value
    return out


def text(given: Any) -> str:
    """Attributes as MLIR spells them."""
    return fusion.attribute(given)


def parse(serialized_: str) -> Any:
    """The attributes that :func:`text` spells. Raises :class:`ScheduleError`."""
    try:
        return fusion.attribute_of(serialized_)
    except ValueError as error:
        raise ScheduleError(f"'{serialized_}' is no attribute: {error}") from error
