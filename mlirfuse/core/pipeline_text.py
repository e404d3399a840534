"""Parser of pass pipelines: ``builtin.module(fusion-group{horizontal=true},cse)`` as items with options and nested
items."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass

from mlirfuse.core.errors import MlirfuseError


class PipelineError(MlirfuseError, ValueError):
    """A pipeline string with a syntax error, or with an unknown pass or option."""


@dataclass(frozen=True)
class Item:
    """A name in a pipeline string, with the text between its braces and the items between its parentheses (None: no
    parentheses)."""

    name: str
    options: str | None = None
    nested: tuple[Item, ...] | None = None

    def __str__(self) -> str:
        braces = f"{{{self.options}}}" if self.options is not None else ""
        return self.name + braces + ("" if self.nested is None else f"({','.join(map(str, self.nested))})")


@functools.lru_cache(maxsize=256)
def parse_pipeline(text: str) -> tuple[Item, ...]:
    """Parse a pipeline string into items. Raises :class:`PipelineError` with the column of a syntax error."""
    items, end = _parse_items(text, 0)
    if end != len(text):
        raise _syntax(text, end, f"'{text[end]}' is not expected here")
    return items


def items_of(text: str) -> Iterator[Item]:
    """Iterate over all items of a pipeline string, in pre-order."""

    def walk_items(items: tuple[Item, ...]) -> Iterator[Item]:
        for item in items:
            yield item
            yield from walk_items(item.nested or ())

    return walk_items(parse_pipeline(text))


def _syntax(text: str, at: int, message: str) -> PipelineError:
    return PipelineError(f"pipeline:1:{at + 1}: {message}\n  {text}\n  {' ' * at}^")


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def _parse_items(text: str, at: int) -> tuple[tuple[Item, ...], int]:
    items: list[Item] = []
    at = _skip(text, at)
    while True:
        name = re.compile(r"[A-Za-z_][\w.\-]*").match(text, at)
        if name is None:
            if not items and (at == len(text) or text[at] == ")"):
                return (), at  # an empty list of passes
            raise _syntax(text, at, "the name of a pass is expected here")
        at = _skip(text, name.end())
        given, nested = None, None
        if at < len(text) and text[at] == "{":
            end = _closing(text, at)
            given, at = text[at + 1 : end].strip(), _skip(text, end + 1)
        if at < len(text) and text[at] == "(":
            nested, end = _parse_items(text, at + 1)
            if end == len(text) or text[end] != ")":
                raise _syntax(text, at, "this parenthesis is not closed")
            at = _skip(text, end + 1)
        items.append(Item(name.group(), given, nested))
        if at == len(text) or text[at] != ",":
            return tuple(items), at
        at = _skip(text, at + 1)


def _closing(text: str, start: int) -> int:
    """The index at which the brace opened at ``start`` closes; braces and quoted text nest."""
    depth, quote = 0, None
    for at in range(start, len(text)):
        c = text[at]
        if quote:
            quote = None if c == quote else quote
        elif c in "\"'":
            quote = c
        elif c in "{[":
            depth += 1
        elif c in "}]":
            depth -= 1
            if not depth:
                return at
    raise _syntax(text, start, "this brace is not closed")


def split_options(text: str) -> Iterator[tuple[str, str | None]]:
    """Split ``a=1 b="x y" c`` into (name, value or None) pairs."""
    at = _skip(text, 0)
    while at < len(text):
        name = re.compile(r"[\w\-]+").match(text, at)
        if name is None:
            raise PipelineError(f"'{text[at:]}' is not an option: write name=value, separated by blanks")
        at, value = name.end(), None
        if at < len(text) and text[at] == "=":
            start = at = at + 1
            while at < len(text) and not text[at].isspace():
                if text[at] in "\"'":
                    end = text.find(text[at], at + 1)
                    at = end if end > 0 else len(text) - 1
                elif text[at] in "{[":
                    at = _closing(text, at)
                at += 1
            value = text[start:at]
            if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
                value = value[1:-1]
        yield name.group(), value
        at = _skip(text, at)
