"""Flatten nested tuples, lists, dicts and named tuples of arguments or results into leaves, and rebuild them."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from mlirfuse.core.errors import TraceError

# ``("leaf", 0, None)``, or a container: "tuple", "list", "dict" or "named"; its number of children; a dict's keys or a
# named tuple's class.
Node = tuple[str, int, Any]
_LEAF: Node = ("leaf", 0, None)
_CONTAINERS = (tuple, list, dict)


@dataclass(frozen=True)
class Tree:
    """The structure of a nested container: its ``nodes`` in postorder, children before their parent, the root last.

    Hashable, so that it can be part of a cache key. No method recurses.
    """

    nodes: tuple[Node, ...]

    def __hash__(self) -> int:
        return self._hash

    @functools.cached_property
    def _hash(self) -> int:
        return hash(self.nodes)

    @property
    def kind(self) -> str:
        """The root's container: "leaf", "tuple", "list", "dict" or "named"."""
        return self.nodes[-1][0]

    @property
    def keys(self) -> Any:
        """The root's dict keys or named tuple class."""
        return self.nodes[-1][2]

    @property
    def children(self) -> tuple[Tree, ...]:
        """The root's subtrees."""
        starts: list[int] = []  # of the subtrees that have no parent yet
        for k, (_, count, _) in enumerate(self.nodes[:-1]):
            first = len(starts) - count
            starts[first:] = [starts[first] if count else k]
        ends = [*starts[1:], len(self.nodes) - 1]
        return tuple(Tree(self.nodes[start:end]) for start, end in zip(starts, ends))

    @functools.cached_property
    def leaves(self) -> int:
        """The number of leaves."""
        return self.nodes.count(_LEAF)

    @functools.cached_property
    def of_leaves(self) -> Callable[[list], Any]:
        """:meth:`unflatten`, specialized for this structure; it does not check the number of leaves."""
        if self.nodes == (_LEAF,):
            return operator.itemgetter(0)
        if self.kind == "tuple" and len(self.nodes) == self.leaves + 1:
            return tuple
        return self.unflatten

    def unflatten(self, leaves):
        """The nested container with these leaves. Raises ValueError if their number is wrong."""
        leaves = list(leaves)
        if len(leaves) != self.leaves:
            raise ValueError(f"{len(leaves)} leaves for a tree of {self.leaves}")
        rest, created = iter(leaves), []
        for kind, count, keys in self.nodes:
            if kind == "leaf":
                created.append(next(rest))
                continue
            parts: Any = created[len(created) - count :]
            if kind == "tuple":
                parts = tuple(parts)
            elif kind == "dict":
                parts = dict(zip(keys, parts))
            elif kind == "named":
                parts = keys(*parts)
            created[len(created) - count :] = [parts]
        return created[0]

    def paths(self, prefix: str = "") -> list[str]:
        """Each leaf's access path as Python source: ``['w'][0]``."""
        created: list[list[str]] = []  # for each subtree that has no parent yet
        for kind, count, keys in self.nodes:
            if kind == "leaf":
                created.append([""])
                continue
            if kind == "dict":
                names = [f"[{k!r}]" for k in keys]
            elif kind == "named":
                names = [f".{f}" for f in keys._fields]
            else:
                names = [f"[{k}]" for k in range(count)]
            parts = created[len(created) - count :]
            created[len(created) - count :] = [[name + path for name, paths in zip(names, parts) for path in paths]]
        return [prefix + path for path in created[0]]


def flatten(nest, kept: Collection[int] = ()) -> tuple[list, Tree]:
    """The leaves of ``nest`` in order, and its structure. Anything but a container is a leaf, None included, and so are
    the containers whose ids are ``kept``. Raises TraceError for a container that contains itself."""
    leaves: list = []
    nodes: list[Node] = []
    open_: list[tuple[Any, Node, Any]] = []  # the enclosing containers, with their remaining children
    inside: set[int] = set()  # their ids
    node: Node
    rest = iter((nest,))
    while True:
        for x in rest:
            cls = x.__class__
            if kept and id(x) in kept:
                leaves.append(x)
                nodes.append(_LEAF)
                continue
            if cls is tuple or cls is list:
                node = "tuple" if cls is tuple else "list", len(x), None
            elif cls is dict:
                node = "dict", len(x), tuple(x)
            elif isinstance(x, tuple) and hasattr(cls, "_fields"):
                node = "named", len(x), cls
            else:
                leaves.append(x)
                nodes.append(_LEAF)
                continue
            if id(x) in inside:
                raise TraceError(
                    f"a {cls.__name__} contains itself: arguments and results are arrays and numbers, and containers "
                    "of them without a cycle"
                )
            inside.add(id(x))
            open_.append((x, node, rest))
            rest = iter(x.values() if cls is dict else x)
            break
        else:
            if not open_:
                return leaves, Tree(tuple(nodes))
            x, node, rest = open_.pop()
            nodes.append(node)
            inside.discard(id(x))


LEAF = Tree((_LEAF,))


@functools.cache
def flat_tuple(count: int) -> Tree:
    """The structure of a tuple of ``count`` leaves."""
    return Tree((_LEAF,) * count + (("tuple", count, None),))


def flatten_result(result) -> tuple[list, Tree]:
    """:func:`flatten` with a fast path for one leaf or a tuple of leaves."""
    if not isinstance(result, _CONTAINERS):
        return [result], LEAF
    if type(result) is tuple and not any(isinstance(x, _CONTAINERS) for x in result):
        return list(result), flat_tuple(len(result))
    return flatten(result)
