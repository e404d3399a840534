"""Objects from outside a function: what it reads of them is that of the call, and what it returns of them is the
caller's own object."""

from __future__ import annotations

import collections
import functools
import operator
import sys
import types
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pytest

import mlirfuse

FACTOR, LIST, TABLE, NESTED, TUPLE = 2.0, [1, 2], {"a": 1, "b": [1]}, [[1], np.ones(3)], (1, [2])


class Outside:
    items: ClassVar = [1.0]

    def __init__(self):
        self.own, self.array = [2.0], np.ones(3)


OUTSIDE = Outside()


@pytest.mark.parametrize("f", [
    lambda a: a * (lambda: FACTOR)(),
    lambda a: a * sum(FACTOR * x for x in (1, 2)),
    lambda a: [a * FACTOR * x for x in (1, 2)],
    lambda a: (lambda b: (lambda c: c * FACTOR)(b))(a),
    lambda a: a * {x: FACTOR * x for x in (1, 2)}[1] if a.sum() > 0 else a,
])  # fmt: skip
def test_globals_in_functions_within(f, monkeypatch):
    compiled, a = mlirfuse.jit(f), np.ones(3)
    for factor in (2.0, 3.0, 2.0, 4.0):
        monkeypatch.setitem(globals(), "FACTOR", factor)
        for _ in range(2):
            np.testing.assert_array_equal(compiled(a), f(a))


@pytest.mark.parametrize("f", [
    lambda a: (a + 1, LIST),
    lambda a: TABLE,
    lambda a: {"x": a * 2, "y": [TABLE, TABLE["b"], NESTED[0]]},
    lambda a: (a + 1, NESTED, TUPLE[1]),
    lambda a, default=LIST: (a + 1, default),
    lambda a: (a + 1, OUTSIDE.own, Outside.items),
    lambda a: (a + 1, (lambda: LIST)()),
    lambda a: (a + 1 if a.sum() > 0 else a, LIST),
])  # fmt: skip
def test_containers_from_outside_are_returned_themselves(f):
    compiled, a = mlirfuse.jit(f), np.ones(3)
    wanted = _ids(f(a))
    assert wanted
    for _ in range(3):
        assert _ids(compiled(a)) == wanted


def test_defaults_that_change():
    def f(a, held=[2.0], *, given=OUTSIDE, more={"k": 2.0}):  # noqa: B006
        return a * held[0] + given.own[0] * more["k"]

    compiled, a = mlirfuse.jit(f), np.ones(3)
    for k in (2.0, 3.0, 2.0):
        f.__defaults__[0][0] = OUTSIDE.own[0] = f.__kwdefaults__["more"]["k"] = k
        for _ in range(2):
            assert compiled(a).tolist() == f(a).tolist() == [k + k * k] * 3


def test_dicts_of_classes_of_their_own():
    table, names = collections.defaultdict(float, a=2.0), Names([2.0])
    compiled, a = mlirfuse.jit(lambda a: a * table["a"] + names[0]), np.ones(3)
    for k in (2.0, 3.0, 4.0):
        table["a"] = table[(1, 2)] = names[0] = k
        before = mlirfuse.counters.specializations
        for _ in range(3):
            assert compiled(a).tolist() == [2 * k] * 3
        assert mlirfuse.counters.specializations == before + 1


class Names(list):
    pass


def test_containers_that_change_or_are_others_later(monkeypatch):
    compiled, a = mlirfuse.jit(lambda a: (a + 1, LIST)), np.ones(3)
    compiled(a)
    for _ in range(2):
        monkeypatch.setitem(globals(), "LIST", [3])
        assert compiled(a)[1] is LIST
        LIST.append(4)
        assert compiled(a)[1] is LIST


def _ids(result: Any) -> list[int]:
    """The ids of the containers from outside in a result."""
    known = {id(x) for x in (LIST, TABLE, TABLE["b"], NESTED, NESTED[0], TUPLE[1], OUTSIDE.own, Outside.items)}
    if id(result) in known or not isinstance(result, (tuple, list, dict)):
        return [id(result)] * (id(result) in known)
    return [i for x in (result.values() if isinstance(result, dict) else result) for i in _ids(x)]


@dataclass(frozen=True)
class Frozen:
    n: int
    k: float = field(compare=False, repr=False, default=0)
    items: Any = field(compare=False, repr=False, default=None)


@dataclass
class Mutable:
    n: int
    k: float = field(compare=False, repr=False, default=0)
    items: Any = field(compare=False, repr=False, default=None)


class ByName:
    __slots__ = ("items", "k", "n")

    def __init__(self, n, k, items):
        self.n, self.k, self.items = n, k, items

    def __eq__(self, other):
        return isinstance(other, ByName) and self.n == other.n

    def __hash__(self):
        return hash(self.n)

    def __repr__(self):
        return f"ByName({self.n})"


@pytest.mark.parametrize("kind", [Frozen, Mutable, ByName])
@pytest.mark.parametrize("f", [
    lambda a, p: a * p.k,
    lambda a, p: (a + p.k, p),
    lambda a, p: (a + 1, p, p.items, [p.k]),
    lambda a, p: a * p.items[0],
    lambda a, p: (a + 1 if a.sum() > 0 else a, p),
])  # fmt: skip
@pytest.mark.parametrize("items", [lambda k: [k], lambda k: None if k == 0 else (k,), lambda k: np.ones(3) * k])
def test_equal_objects_with_other_attributes(f, kind, items):
    """``==`` may ignore attributes that the function reads; what it returns is this call's object."""
    compiled, a = mlirfuse.jit(f), np.ones(3)
    for k in (1.0, 2.0, 3.0, 1.0, -0.0, 0.0):
        p = kind(1, k, items(k))
        for _ in range(2):
            try:
                wanted = f(a, p)
            except TypeError:  # of None
                with pytest.raises(TypeError):
                    compiled(a, p)
                continue
            found = compiled(a, p)
            assert repr(found) == repr(wanted)
            if isinstance(wanted, tuple):
                assert found[1] is p
                assert len(wanted) < 3 or found[2] is p.items or isinstance(p.items, tuple)  # a tuple is made anew


def test_lists_and_dicts_among_the_arguments_are_returned_as_new_ones():
    """Their arrays are the caller's own."""
    compiled, given = mlirfuse.jit(lambda a, table: (a + 1, table)), {"x": np.ones(3), "y": [1]}
    found = compiled(np.ones(3), given)[1]
    assert repr(found) == repr(given) and found["x"] is given["x"]
    assert found is not given and found["y"] is not given["y"]


def test_a_write_of_what_an_array_holds_already_is_not_seen():
    def f(a, p):
        p.array[0] = 7
        return a + p.array

    compiled, a, p = mlirfuse.jit(f), np.ones(3), Outside()
    p.array[0] = 7
    compiled(a, p)
    p.array[0] = 3
    assert compiled(a, p)[0] == 4
    other = Outside()
    assert mlirfuse.jit(f)(a, other)[0] == 8 and other.array[0] == 7


def test_arrays_of_equal_objects_are_written_in_place():
    def f(a, p):
        p.items[0] = a[1]
        return a + 1, p.items

    compiled, a = mlirfuse.jit(f), np.arange(3.0)
    for _ in range(3):
        p = Frozen(1, 2.0, np.zeros(3))
        found = compiled(a, p)[1]
        assert found is p.items and p.items.tolist() == [1, 0, 0]


def test_equal_constants_share_a_specialization():
    @dataclass(frozen=True)
    class Config:
        n: int
        inner: Frozen
        sizes: tuple = (1, 2)

    compiled, a = mlirfuse.jit(lambda a, c: a * c.n + c.inner.k + sum(c.sizes)), np.ones(3)
    compiled(a, Config(2, Frozen(1, 2.0)))
    before = mlirfuse.counters.specializations
    for _ in range(3):
        np.testing.assert_array_equal(compiled(a, Config(2, Frozen(1, 2.0))), a * 2 + 5)
    assert mlirfuse.counters.specializations == before


class Slotted:
    __slots__ = ("array", "items", "k", "new")

    def __init__(self, k):
        self.k, self.items, self.array = k, [k], np.full(3, k)

    def scaled(self, a):
        return a * self.k * FACTOR

    def counted(self, a):
        self.k += 1
        self.new = a.sum()
        return a * self.k


class Mixed(Slotted):
    def __init__(self, k):
        super().__init__(k)
        self.other = [k]


SLOTTED = Slotted(1.0)


@pytest.mark.parametrize("kind", [Slotted, Mixed])
@pytest.mark.parametrize("f", [
    lambda a, p: (a * p.k, p.items, p.array),
    lambda a, p: a * p.items[0] + p.array,
    lambda a, p: a + p.scaled(a),
    lambda a, p: a * SLOTTED.items[0] + SLOTTED.array * SLOTTED.k,
    lambda a, p: p.counted(a),
    lambda a, p: (p.items.append(1.0), a * len(p.items)),
    lambda a, p: (np.add(p.array, 1, out=p.array).sum(), a + p.array),
])  # fmt: skip
def test_objects_with_slots(f, kind, monkeypatch):
    compiled, a, ours, pythons = mlirfuse.jit(f), np.ones(3), kind(1.0), kind(1.0)
    for k in (1.0, 2.0, 3.0):
        monkeypatch.setitem(globals(), "FACTOR", k)
        for p in (ours, pythons, SLOTTED):
            p.k, p.items[0], p.array = k, k, np.full(3, k)
        for _ in range(2):
            found, wanted = compiled(a, ours), f(a, pythons)
            assert repr(found) == repr(wanted)
            of_ours, of_pythons = ([getattr(p, name, None) for name in Slotted.__slots__] for p in (ours, pythons))
            assert repr(of_ours) == repr(of_pythons)
            assert not (isinstance(found, tuple) and len(found) == 3) or found[1] is ours.items


class Private:
    __slots__ = ("__k", "n")

    def __init__(self, n, k):
        self.n, self.__k = n, k

    def __eq__(self, other):
        return isinstance(other, Private) and self.n == other.n

    def __hash__(self):
        return hash(self.n)

    def scaled(self, x):
        return x * self.__k


def test_private_slots_of_equal_objects():
    f, x = mlirfuse.jit(lambda x, p: p.scaled(x)), np.ones(3)
    assert [f(x, Private(1, k))[0] for k in (2.0, 3.0, 2.0)] == [2.0, 3.0, 2.0]


class Attributes:
    kept = 1.0


HOLDER, ITEMS = Attributes(), {}


def asks_for_an_error(x, name):
    try:
        return x * HOLDER.k1
    except AttributeError:
        return x


def goes_through_names(x, name):
    for key in dir(HOLDER):
        if key.startswith("k"):
            x = x * getattr(HOLDER, key)
    return x


def goes_through_keys(x, name):
    for key in ITEMS:
        x = x * ITEMS[key]
    return x


def renames(x, name):
    items = ITEMS
    return x * items[name] if name in items else x


@pytest.mark.parametrize("f", [
    lambda x, name: x * 2 if hasattr(HOLDER, "k1") else x,
    lambda x, name: x * 2 if "k1" in HOLDER.__dict__ else x,
    lambda x, name: x * len(vars(HOLDER)),
    lambda x, name: x * getattr(HOLDER, "k1", 3),
    lambda x, name: x * getattr(HOLDER, name, 3),
    lambda x, name: x * getattr(HOLDER, f"k{1}", 3),
    lambda x, name: x * HOLDER.__dict__.get(name, 3),
    lambda x, name: x * sum(HOLDER.__dict__.values()),
    lambda x, name: x * sum(value for key, value in vars(HOLDER).items()),
    lambda x, name: x * (operator.attrgetter(name)(HOLDER) if hasattr(HOLDER, name) else 1),
    lambda x, name: x * ITEMS.get(name, 3),
    lambda x, name: x * ITEMS.get("k" + name[1:], 3),
    lambda x, name: x * sum(ITEMS.values()),
    lambda x, name: x * ({**ITEMS, "a": 1} | ITEMS).get(name, 2),
    lambda x, name: [x * ITEMS[key] for key in sorted(ITEMS)],
    lambda x, name: x * (ITEMS[f"k{1}"] if "k1" in ITEMS else 1),
    asks_for_an_error, goes_through_names, goes_through_keys, renames,
])  # fmt: skip
def test_what_is_read_by_computed_names_or_is_not_there_at_first(f):
    compiled, x = mlirfuse.jit(f), np.ones(3)
    for values in ({}, {"k1": 2.0}, {"k1": 3.0}, {"k1": 3.0, "k2": 4.0}, {"k2": 5.0}):
        for held in (HOLDER.__dict__, ITEMS):
            held.clear()
            held.update(values)
        for _ in range(2):
            np.testing.assert_array_equal(compiled(x, "k1"), f(x, "k1"))


def test_items_that_are_not_read_may_change():
    settings = {"rate": 2.0, "step": 0}
    f, x = mlirfuse.jit(lambda x: x * settings["rate"] + settings.get("shift", 1)), np.ones(3)
    f(x)
    made = mlirfuse.counters.specializations
    for step in range(1, 4):
        settings["step"] = step
        np.testing.assert_array_equal(f(x), np.full(3, 3.0))
    assert mlirfuse.counters.specializations == made


class Scaled:
    scale = 2.0

    def of(self, x):
        return x * self.scale


class Shifted(Scaled):
    def of(self, x):
        return super().of(x) + 1


@pytest.mark.parametrize("change", [
    lambda held: held["list"].__setitem__(0, 5.0), lambda held: held["dict"].__setitem__("k", 5.0),
    lambda held: setattr(held["object"], "scale", 5.0), lambda held: held["array"].fill(5.0),
    lambda held: setattr(Scaled, "scale", 5.0), lambda held: setattr(Scaled, "of", lambda self, x: x * 7),
])  # fmt: skip
@pytest.mark.parametrize("in_a_dict", [False, True])
def test_what_partials_and_base_classes_hold_may_change(monkeypatch, change, in_a_dict):
    held = {"list": [2.0], "dict": {"k": 2.0}, "object": Scaled(), "array": np.ones(3)}
    monkeypatch.setattr(Scaled, "scale", 2.0)
    monkeypatch.setattr(Scaled, "of", Scaled.of)  # sets it back

    def scaled(numbers, x, named, thing, array):
        return thing.of(x * numbers[0] * named["k"] + array)

    part = functools.partial(scaled, held["list"], named=held["dict"], thing=held["object"], array=held["array"])
    parts = {"part": part}
    f = (lambda x: Shifted().of(parts["part"](x))) if in_a_dict else (lambda x: Shifted().of(part(x)))
    compiled, x = mlirfuse.jit(f), np.arange(3.0)
    for _ in range(2):
        np.testing.assert_array_equal(compiled(x), f(x))
    change(held)
    np.testing.assert_array_equal(compiled(x), f(x))


MEMBERS, BYTES, TIMES = {1, 2}, bytearray(b"ab"), 2.0
FUNCTIONS, NAMED = [lambda x: x * TIMES], {"f": lambda x: x * TIMES}


@pytest.mark.parametrize("f, change", [
    (lambda x: x * len(MEMBERS), lambda: MEMBERS.add(3)), (lambda x: x * (2 if 3 in MEMBERS else 1), lambda: MEMBERS.add(3)),
    (lambda x: x * max(MEMBERS), lambda: MEMBERS.add(30)), (lambda x: x * BYTES[0], lambda: BYTES.__setitem__(0, 7)),
    (lambda x: FUNCTIONS[0](x), lambda: globals().update(TIMES=5.0)),
    (lambda x: NAMED["f"](x), lambda: globals().update(TIMES=5.0)),
])  # fmt: skip
def test_members_of_sets_and_functions_in_containers(monkeypatch, f, change):
    for name, value in {"MEMBERS": {1, 2}, "BYTES": bytearray(b"ab"), "TIMES": 2.0}.items():
        monkeypatch.setitem(globals(), name, value)
    compiled, x = mlirfuse.jit(f), np.arange(3.0)
    for _ in range(2):
        np.testing.assert_array_equal(compiled(x), f(x))
    change()
    np.testing.assert_array_equal(compiled(x), f(x))


OF_LATER = """
import contextlib, types
class Holder: pass
holder, module = Holder(), types.ModuleType("of_nothing")
def helper():
    return LATER
def enclosing():
    def read(): return LATER
    def write(value):
        nonlocal LATER
        LATER = value
    if False: LATER = 1
    return read, write
closure, write = enclosing()
def f(x):
    %s
        return x * %s
    %s
    return x + 1
"""


@pytest.mark.parametrize("before, after", [
    ("try:", "except: pass"), ("try:", "except (NameError, AttributeError): pass"), ("try:", "except Exception: pass"),
    ("with contextlib.suppress(NameError, AttributeError):", ""),
])  # fmt: skip
@pytest.mark.parametrize("read, write", [
    ("LATER", "LATER = 3"), ("helper()", "LATER = 3"), ("holder.LATER", "holder.LATER = 3"), ("Holder.LATER", "Holder.LATER = 3"),
    ("holder.LATER", "Holder.LATER = 3"), ("module.LATER", "module.LATER = 3"), ("closure()", "write(3)"),
])  # fmt: skip
def test_what_is_not_there_at_first(monkeypatch, read, write, before, after):
    """Handlers hide that a name or attribute is not there: calls see it once it is."""
    scope = types.ModuleType("of_later")
    monkeypatch.setitem(sys.modules, "of_later", scope)
    exec(OF_LATER % (before, read, after), vars(scope))
    f, x = scope.f, np.arange(3.0)
    compiled = mlirfuse.jit(f)
    for _ in range(2):
        np.testing.assert_array_equal(compiled(x), f(x))
    exec(write, vars(scope))
    np.testing.assert_array_equal(compiled(x), x * 3)


def test_a_method_that_super_leads_to_may_be_replaced(monkeypatch):
    shifted = Shifted()
    compiled, x = mlirfuse.jit(lambda x: shifted.of(x)), np.arange(3.0)
    np.testing.assert_array_equal(compiled(x), shifted.of(x))
    monkeypatch.setattr(Scaled, "of", lambda self, x: x * 7)
    np.testing.assert_array_equal(compiled(x), x * 7 + 1)
