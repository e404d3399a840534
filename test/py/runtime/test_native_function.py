"""The callable that a jitted function is: which calls go straight to what was set for their number of arguments."""

import gc
import weakref
from collections import namedtuple

import numpy as np
import pytest

from mlirfuse import _native


class Recording(_native.Function):
    def __init__(self):
        self.calls, self.checks = [], []

    def _call(self, args, kwargs):
        self.calls.append((args, kwargs))
        return "any"

    def _check_scope(self, changed):
        self.checks.append(changed)


def make():
    """A function whose calls of two leaves are known."""
    function = Recording()
    function._set_fast_path(2, lambda *leaves: ("plain", *leaves))
    return function


@pytest.mark.parametrize("leaf", [1, 2.5, True, 1j, "text", None, np.float32(3), np.zeros(3), np.ma.zeros(3)])
def test_leaves_go_straight_to_the_target(leaf):
    function = make()
    assert function(leaf, 0)[1] is leaf and function.calls == []


@pytest.mark.parametrize(
    "other", [(1, 2), [1, 2], {"a": 1}, namedtuple("Pair", "x y")(1, 2), type("D", (dict,), {})(), object(), slice(3)]
)
def test_what_may_be_a_container_does_not(other):
    function = make()
    assert function(0, other) == "any" and function(other, 0) == "any"
    assert function.calls == [((0, other), {}), ((other, 0), {})]


def test_names_and_other_numbers_of_arguments_do_not():
    function = make()
    assert [function(), function(1), function(1, 2, 3), function(1, b=2), function(1, 2, b=3)] == ["any"] * 5
    assert function.calls == [((), {}), ((1,), {}), ((1, 2, 3), {}), ((1,), {"b": 2}), ((1, 2), {"b": 3})]
    assert function(*(1, 2)) == ("plain", 1, 2)


def test_no_arguments_at_all():
    function = Recording()
    function._set_fast_path(0, lambda: "none")
    assert function() == "none"


def test_the_latest_target_counts_until_all_are_forgotten():
    function = make()
    function._set_fast_path(2, max)
    assert function(3, 7) == 7
    function._clear_fast_paths()
    assert function(3, 7) == "any"


def test_a_scope_that_only_python_can_check_is_checked_before_every_call():
    function = make()
    function(1, 2)
    assert function.checks == []
    function._set_watched([()])
    function(1, 2), function((1,)), function(a=1)
    assert function.checks == [False] * 3
    function._check_scope = lambda changed: function._clear_fast_paths()
    assert function(1, 2) == "any"
    del function._check_scope
    function._set_watched([])
    function(1, 2)
    assert len(function.checks) == 3


class Base:
    def method(self):
        pass


class Derived(Base):
    __slots__ = ("slot",)


def defaults(x, y=1, *, z=2):
    pass


def cell_of(value):
    return (lambda: value).__closure__[0]


derived, table, items, members, cell = Derived(), {"a": 1.5, 2: 3.5}, [1.5, 2.5], {1, 2}, cell_of(1.5)
derived.slot = 1.5
GUARDS = {  # entries, changes, and what undoes these
    "item": ((table, "a", table["a"]), lambda: table.update(a=2.5), lambda: table.update(a=1.5)),
    "key of another type": ((table, 2, table[2]), lambda: table.pop(2), lambda: table.update({2: 3.5})),
    "no item": ((table, "b"), lambda: table.update(b=1), lambda: table.pop("b")),
    "size": ((table, None, None, 2), lambda: table.update(b=1), lambda: table.pop("b")),
    "list": ((items, 1, items[1]), lambda: items.pop(), lambda: items.append(2.5)),
    "length": ((items, None, None, 2), lambda: items.append(1), lambda: items.pop()),
    "cell": ((cell, None, cell.cell_contents), lambda: setattr(cell, "cell_contents", 2), None),
    "method": ((Derived, "method", Base.method), lambda: setattr(Base, "method", None), None),
    "override": ((Derived, "__len__"), lambda: setattr(Derived, "__len__", 1), lambda: delattr(Derived, "__len__")),
    "slot": ((derived, "slot", derived.slot), lambda: delattr(derived, "slot"), None),
    "code": ((defaults, "__code__", defaults.__code__), lambda: setattr(defaults, "__code__", make.__code__), None),
    "defaults": (
        (defaults, "__defaults__", defaults.__defaults__),
        lambda: setattr(defaults, "__defaults__", None),
        None,
    ),
    "none": ((cell_of, "__defaults__", None), lambda: setattr(cell_of, "__defaults__", (1,)), None),
    "keywords": (
        (defaults, "__kwdefaults__", defaults.__kwdefaults__),
        lambda: setattr(defaults, "__kwdefaults__", None),
        None,
    ),
    "class": ((Recording(), type, Recording), None, None),
    "members": (({"s": members}, "s", members, {1, 2}), lambda: members.add(3), lambda: members.remove(3)),
}


@pytest.mark.parametrize("name", GUARDS)
def test_a_scope_is_checked_where_something_is_another_object(name):
    entry, change, undo = GUARDS[name]
    function = make()
    function._set_watched([entry])
    assert function(1, 2) == ("plain", 1, 2)
    assert function.checks == []
    if change is None:
        entry[0].__class__ = type("Other", (Recording,), {})
    else:
        change()
    function(1, 2)
    assert function.checks == [True]
    if undo is not None:
        undo()
        function(1, 2)
        assert function.checks == [True]


def test_guards_that_are_replaced_while_they_are_checked():
    class Computed:
        @property
        def value(self):
            function._set_watched([])
            gc.collect()
            return 1

    function = make()
    function._set_watched([(Computed(), "value", None), (Computed(), "value", None)])
    function(1, 2)
    assert function.checks == [True]
    function(1, 2)
    assert function.checks == [True]


@pytest.mark.parametrize("entries", [None, 3])
def test_guards_are_a_sequence(entries):
    with pytest.raises(TypeError):
        Recording()._set_watched(entries)


def test_errors_pass():
    function = make()
    function._set_fast_path(2, lambda x, y: x / y)
    with pytest.raises(ZeroDivisionError):
        function(1, 0)

    def fails(changed):
        raise LookupError("scope")

    function._check_scope = fails
    function._set_watched([()])
    with pytest.raises(LookupError, match="scope"):
        function(1, 2)


@pytest.mark.parametrize("arguments", [(-1, max), (1, "no callable"), (1,)])
def test_bad_targets_are_refused(arguments):
    with pytest.raises(TypeError):
        Recording()._set_fast_path(*arguments)


def test_a_target_that_replaces_itself_is_kept_while_it_runs():
    function = Recording()

    def target(x):
        function._set_fast_path(1, abs)
        gc.collect()
        return x + 1

    function._set_fast_path(1, target)
    del target
    assert [function(-1), function(-1)] == [0, 1]


def test_a_target_that_is_forgotten_while_arguments_are_looked_at_is_kept():
    function = make()

    class Meta(type):
        def __getattr__(cls, name):
            function._clear_fast_paths()
            gc.collect()
            raise AttributeError(name)

    class Foreign(metaclass=Meta):
        pass

    x = Foreign()
    assert function(x, 2) in (("plain", x, 2), "any") and function(x, 2) == "any"


def test_cycles_are_collected():
    function = make()
    function._set_fast_path(1, function._call)
    gone = weakref.ref(function)
    del function
    gc.collect()
    assert gone() is None
