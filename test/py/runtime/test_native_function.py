"""The callable that a jitted function is: which calls go straight to what was set for their number of arguments."""

import gc
import weakref
from collections import namedtuple

import numpy as np
import pytest

from mlirfuse import _native


class Recording(_native.Function):
    def __init__(self):
        self.calls, self.checks = [], 0

    def _call(self, args, kwargs):
        self.calls.append((args, kwargs))
        return "any"

    def _check_scope(self):
        self.checks += 1


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


def test_a_watched_scope_is_checked_before_every_call():
    function = make()
    function(1, 2)
    assert function.checks == 0
    function._set_watched(True)
    function(1, 2), function((1,)), function(a=1)
    assert function.checks == 3
    function._check_scope = lambda: function._clear_fast_paths()
    assert function(1, 2) == "any"


def test_errors_pass():
    function = make()
    function._set_fast_path(2, lambda x, y: x / y)
    with pytest.raises(ZeroDivisionError):
        function(1, 0)

    def fails():
        raise LookupError("scope")

    function._check_scope = fails
    function._set_watched(True)
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
