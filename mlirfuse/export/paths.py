"""From sizes to code: what the compiler decides for any sizes, found by running its Python on numbers that note what is
asked of them.

``jit`` chooses a specialization and schedule parameters anew for each call's sizes, in Python. An exported function has
no Python: it has a tree of conditions on sizes with a compiled program at each leaf. :func:`explore` makes the tree. It
runs the choice on :class:`Number` objects, which are the sizes of one point and know how they were computed; each
comparison becomes a condition. Points that take the other side of a condition are searched for, until none is found.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from mlirfuse.ir import sizes as sz
from mlirfuse.ir.sizes import Size
from mlirfuse.runtime.signature import COMPARE

Point = dict[str, int]


class Condition(NamedTuple):
    """``left op right``, over the named sizes of a call."""

    left: Size
    op: str
    right: Size

    def __str__(self) -> str:
        return f"({self.left}) {self.op} ({self.right})"

    def at(self, point: Point) -> bool:
        """Whether it holds there."""
        return bool(COMPARE[self.op](*(sz.known(size, point) for size in (self.left, self.right))))


class Path:
    """The conditions that were met on the way to a choice at ``point``, each with whether it holds there. ``node``:
    where the way is in the tree of earlier points; None once it has left that."""

    def __init__(self, point: Point, node: Node | None = None):
        self.point, self.node = point, node
        self.taken: list[tuple[Condition, bool]] = []
        self._known: dict[Condition, bool] = {}

    def holds(self, left: Size, op: str, right: Size) -> bool:
        """Whether the condition holds at the point; noted where it depends on that."""
        difference = left - right
        if isinstance(difference, int):
            return COMPARE[op](difference, 0)
        condition = Condition(left, op, right)
        if condition not in self._known:
            self._known[condition] = condition.at(self.point)
            self.taken.append((condition, self._known[condition]))
            if self.node is not None:
                self.node = self.node.side(self._known[condition]) if self.node.condition else None
        return self._known[condition]

    def value(self, size: Size) -> int:
        """The value at the point, which is asked for where no condition will do: first whether it is one of those that
        earlier points had."""
        found: int = sz.substitute(size, self.point)
        while self.node is not None and self.node.condition is not None:
            asked, op, value = self.node.condition
            if (asked, op) != (size, "==") or not isinstance(value, int):
                break
            if self.holds(size, "==", value):
                return value
        self.holds(size, "==", found)
        return found

    def number(self, size: Size) -> Any:
        """``size`` to compute with: a :class:`Number`, or an int where it is one."""
        return size if isinstance(size, int) else Number(size, self)

    def plain(self, value: Any) -> Any:
        """``value``, a nest of tuples, with each number as the int that it is at the point: noted as a condition."""
        if isinstance(value, Number):
            return int(value)
        if isinstance(value, tuple):
            parts = [self.plain(part) for part in value]
            return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
        return value


def _other_way(op: str) -> str:
    return {"<": ">", "<=": ">=", ">": "<", ">=": "<="}.get(op, op)


class Number:
    """An integer that notes what it is compared with. It is none of Python's: what needs one asks ``__index__``, which
    notes that the number is this one, so that nothing that depends on it goes unseen."""

    __slots__ = ("path", "size")

    def __init__(self, size: Size, path: Path):
        self.size, self.path = size, path

    def _of(self, size: Size) -> Any:
        return self.path.number(size)

    def _compare(self, op: str, other: Any) -> Any:
        if isinstance(other, float):  # an integer is above it where it is above the integer below it
            if math.isinf(other):
                return COMPARE[op](0.0, other)
            if not other.is_integer() and op in ("==", "!="):
                return op == "!="
            other = math.floor(other) if op in (">", "<=") else math.ceil(other)
        if not isinstance(other, (int, Number)):
            return NotImplemented
        return self.path.holds(self.size, op, _size(other))

    def __lt__(self, other):
        return self._compare("<", other)

    def __le__(self, other):
        return self._compare("<=", other)

    def __gt__(self, other):
        return self._compare(">", other)

    def __ge__(self, other):
        return self._compare(">=", other)

    def __eq__(self, other):
        return self._compare("==", other)

    def __ne__(self, other):
        return self._compare("!=", other)

    def __bool__(self):
        return self.path.holds(self.size, "!=", 0)

    def __hash__(self):
        return hash(int(self))

    def __int__(self):
        return self.__index__()

    def __index__(self) -> int:
        return self.path.value(self.size)

    def __add__(self, other):
        return self._of(self.size + _size(other))

    __radd__ = __add__

    def __sub__(self, other):
        return self._of(self.size - _size(other))

    def __rsub__(self, other):
        return self._of(_size(other) - self.size)

    def __mul__(self, other):
        return float(int(self)) * other if isinstance(other, float) else self._of(sz.mul(self.size, _size(other)))

    __rmul__ = __mul__

    def __floordiv__(self, other):
        return self._of(sz.floordiv(self.size, self._divisor(other)))

    def __rfloordiv__(self, other):
        return self._of(sz.floordiv(_size(other), self._divisor(self)))

    def __mod__(self, other):
        return self._of(sz.mod(self.size, self._divisor(other)))

    def __rmod__(self, other):
        return self._of(sz.mod(_size(other), self._divisor(self)))

    def __truediv__(self, other):
        return Ratio(self, other)

    def __rtruediv__(self, other):
        return Ratio(other, self)

    def __neg__(self):
        return self._of(-self.size)

    def __pos__(self):
        return self

    def __abs__(self):
        return self if self >= 0 else -self

    def __lshift__(self, n):
        return self * (1 << int(n))

    def __rshift__(self, n):
        return self // (1 << int(n))

    def __rlshift__(self, n):
        return int(n) << int(self)

    def _divisor(self, other: Any) -> Size:
        size = _size(other)
        if isinstance(size, int) or self.path.holds(size, "!=", 0):
            return size
        raise ZeroDivisionError("a size divided by 0")

    def __and__(self, other: Any) -> int:
        if isinstance(other, Number) and other.size == -self.size:  # the lowest bit
            bit = 1
            while self % (2 * bit) == 0:
                bit *= 2
            return bit
        return int(self) & int(other)

    __rand__ = __and__

    def __or__(self, other: Any) -> Bits:
        return Bits((self,)) | other

    __ror__ = __or__

    def bit_length(self) -> int:
        """As that of int."""
        bits, magnitude = 0, abs(self)
        while magnitude >= 1 << bits:
            bits += 1
        return bits

    def __repr__(self) -> str:
        return f"{self.size}"


class Bits:
    """Numbers that are or-ed, for the lowest bit that any of them has: ``bits & -bits``."""

    def __init__(self, numbers: tuple, negative: bool = False):
        self.numbers, self.negative = numbers, negative

    def __or__(self, other: Any) -> Bits:
        return Bits((*self.numbers, *(other.numbers if isinstance(other, Bits) else (other,))))

    __ror__ = __or__

    def __mul__(self, factor: int) -> Bits:
        assert factor > 0 and factor & (factor - 1) == 0, "or-ed numbers are shifted alone"
        return Bits(tuple(n * factor for n in self.numbers))

    def __neg__(self) -> Bits:
        return Bits(self.numbers, True)

    def __bool__(self) -> bool:
        return any(n != 0 for n in self.numbers)

    def __and__(self, other: Bits) -> int:
        assert other.negative and other.numbers == self.numbers, "or-ed numbers are asked for their lowest bit alone"
        bit = 1
        while bit < 1 << 62 and all(n % (2 * bit) == 0 for n in self.numbers):
            bit *= 2
        return bit if bit < 1 << 62 else 0


class Ratio:
    """The quotient of two numbers, to be rounded or compared."""

    def __init__(self, above: Any, below: Any):
        self.above, self.below = above, below

    def __ceil__(self) -> Any:
        return -(-self.above // self.below)

    def __floor__(self) -> Any:
        return self.above // self.below

    def _against(self, other: Any) -> tuple[Any, Any]:
        assert self.below > 0, "sizes are divided by sizes"
        return self.above, other * self.below

    def __lt__(self, other):
        return self._against(other)[0] < self._against(other)[1]

    def __le__(self, other):
        return self._against(other)[0] <= self._against(other)[1]

    def __gt__(self, other):
        return self._against(other)[0] > self._against(other)[1]

    def __ge__(self, other):
        return self._against(other)[0] >= self._against(other)[1]


def _size(value: Any) -> Size:
    return value.size if isinstance(value, Number) else int(value)


# ---- the tree


@dataclass(eq=False)
class Node:
    """A condition with what is chosen where it holds and where it does not, or a ``leaf``, or neither where no point
    was found (``why``: what went wrong at those that were)."""

    condition: Condition | None = None
    yes: Node | None = None
    no: Node | None = None
    leaf: int | None = None
    why: str = ""

    def side(self, holds: bool) -> Node:
        side = self.yes if holds else self.no
        assert side is not None
        return side


class Failed(Exception):
    """There is no choice at a point."""


class TooManyProgramsError(ValueError):
    """More programs are needed for the open sizes than are allowed."""


@dataclass
class Explored:
    """The tree, and what is chosen at its leaves."""

    root: Node = field(default_factory=Node)
    leaves: list[Any] = field(default_factory=list)

    def at(self, point: Point) -> Node:
        """Where a point ends: a leaf, or what was not explored."""
        node = self.root
        while node.condition is not None:
            node = node.side(node.condition.at(point))
        return node


_TRIES = 3  # at points of which the choice fails, before the side of a condition is given up
_FIRST_TRIES = 64  # before anything is found: few sizes may be such that a reshape fits
_MOST_PATHS = 10_000  # to leaves
_PATIENCE = 1500  # points that find nothing new, after which the search ends


def explore(
    choose: Callable[[Path], Any],
    names: Sequence[str],
    draw: Callable[[random.Random], Point],
    allowed: Callable[[Point], bool],
    most: int,
) -> Explored:
    """The tree of what ``choose`` chooses, hashable, at any point. ``names``: those of the sizes; ``draw``: a random
    point; ``allowed``: whether a point is worth a look. The search is the same each time. Raises ValueError for more
    than ``most`` leaves (:class:`TooManyProgramsError`), the choice's own error where it fails everywhere."""
    found = Explored()
    numbers: dict[Any, int] = {}
    rng = random.Random(0)
    failures: dict[int, int] = {}
    paths = 0
    error: BaseException | None = None

    def visit(point: Point) -> bool:
        """Whether the point led to something new."""
        nonlocal error, paths
        if not allowed(point):
            return False
        node = found.at(point)
        if node.leaf is not None or failures.get(id(node), 0) >= (_TRIES if found.leaves else _FIRST_TRIES):
            return False
        path = Path(point, found.root)
        try:
            leaf = choose(path)
        except Failed as failure:
            failures[id(node)] = failures.get(id(node), 0) + 1
            node.why, error = str(failure), failure.__cause__ or failure
            return False
        number = numbers.setdefault(leaf, len(found.leaves))
        if number == len(found.leaves):
            found.leaves.append(leaf)
        paths += 1
        if len(found.leaves) > most:
            raise TooManyProgramsError(f"more than {most} programs for these sizes: give some of them as numbers")
        if paths > _MOST_PATHS:
            raise ValueError("the choice of a program depends on these sizes in too many ways: give some as numbers")
        _insert(found.root, path.taken, number)
        return True

    idle = 0
    near: Iterator[Point] = iter(())
    while idle < _PATIENCE:
        point = next(near, None)
        if point is None:
            point = draw(rng)
        if visit(point):
            idle = 0
            near = _neighbours(found.root, point, names)
        else:
            idle += 1
    if not found.leaves:
        raise error or ValueError("no sizes to compile for")
    found.root = _simplified(found.root)
    return found


def _insert(node: Node, taken: Sequence[tuple[Condition, bool]], leaf: int) -> None:
    for condition, holds in taken:
        if node.condition is None:
            assert node.leaf is None
            node.condition, node.yes, node.no = condition, Node(), Node()
        assert node.condition == condition, f"{node.condition} and {condition}: the choice is not the same each time"
        node = node.side(holds)
    assert node.condition is None and node.leaf in (None, leaf)
    node.leaf = leaf


def _neighbours(root: Node, point: Point, names: Sequence[str]) -> Iterator[Point]:
    """Points that differ from ``point`` in one size so that some condition on its way turns: found by halving between
    it and far ones."""
    node, path = root, []
    while node.condition is not None:
        holds = node.condition.at(point)
        if node.side(not holds).condition is None and node.side(not holds).leaf is None:
            path.append((node.condition, holds))
        node = node.side(holds)
    for condition, holds in path:
        for name in names:
            if name not in sz.symbols_of(condition[::2]):
                continue
            for far in (1, 2, 3, 2 * point[name], 16 * point[name], point[name] << 10, 1 << 30):
                yield from _between(condition, holds, point, name, far)


def _between(condition: Condition, holds: bool, point: Point, name: str, far: int) -> Iterator[Point]:
    def turned(value: int) -> bool:
        return condition.at(point | {name: value}) != holds

    try:
        if far == point[name] or not turned(far):
            for value in (far - 1, far + 1, point[name] + 1, point[name] - 1):
                if value >= 1 and turned(value):
                    yield point | {name: value}
            return
        near = point[name]
        while abs(far - near) > 1:
            middle = (far + near) // 2
            near, far = (near, middle) if turned(middle) else (middle, far)
    except ZeroDivisionError:
        return
    yield point | {name: far}


def _simplified(node: Node) -> Node:
    """Without conditions of which both sides are the same leaf."""
    if node.condition is None:
        return node
    node.yes, node.no = _simplified(node.side(True)), _simplified(node.side(False))
    same = node.yes.condition is None and node.no.condition is None and node.yes.leaf == node.no.leaf
    return node.yes if same and node.yes.leaf is not None else node
