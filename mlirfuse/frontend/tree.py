"""Nested containers of arguments and results: tuples, lists, dicts and named tuples, taken apart into leaves and put
together again."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Tree:
    """The structure of a nest: ``kind`` is "leaf", "tuple", "list", "dict" or "named"; ``keys`` a dict's keys or a
    named tuple's class.

    Hashable, so that it can be a part of a key.
    """

    kind: str = "leaf"
    children: tuple[Tree, ...] = ()
    keys: Any = None

    @functools.cached_property
    def leaves(self) -> int:
        """How many leaves it has."""
        return 1 if self.kind == "leaf" else sum(c.leaves for c in self.children)

    def unflatten(self, leaves):
        """The nest with these leaves. Raises ValueError if their number does not fit."""
        leaves = list(leaves)
        if len(leaves) != self.leaves:
            raise ValueError(f"{len(leaves)} leaves for a tree of {self.leaves}")
        return self._build(iter(leaves))

    def _build(self, leaves):
        if self.kind == "leaf":
            return next(leaves)
        parts = [c._build(leaves) for c in self.children]
        if self.kind == "tuple":
            return tuple(parts)
        if self.kind == "list":
            return parts
        if self.kind == "dict":
            return dict(zip(self.keys, parts))
        return self.keys(*parts)

    def paths(self, prefix: str = "") -> list[str]:
        """For each leaf, how Python spells the way to it: ``['w'][0]``."""
        if self.kind == "leaf":
            return [prefix]
        if self.kind == "dict":
            names = [f"[{k!r}]" for k in self.keys]
        elif self.kind == "named":
            names = [f".{f}" for f in self.keys._fields]
        else:
            names = [f"[{k}]" for k in range(len(self.children))]
        return [path for name, c in zip(names, self.children) for path in c.paths(prefix + name)]


LEAF = Tree()


def flatten(nest) -> tuple[list, Tree]:
    """The leaves of ``nest`` in order, and its structure. Whatever is no container is a leaf, None too."""
    leaves: list = []
    return leaves, _flatten(nest, leaves)


def _flatten(nest, leaves: list) -> Tree:
    cls = nest.__class__
    if cls is tuple or cls is list:
        return Tree("tuple" if cls is tuple else "list", tuple([_flatten(x, leaves) for x in nest]))
    if cls is dict:
        return Tree("dict", tuple([_flatten(x, leaves) for x in nest.values()]), tuple(nest))
    if isinstance(nest, tuple) and hasattr(cls, "_fields"):
        return Tree("named", tuple([_flatten(x, leaves) for x in nest]), cls)
    leaves.append(nest)
    return LEAF
