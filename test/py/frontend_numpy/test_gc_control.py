"""Compiling does not wait for Python's search for garbage, and leaves it on or off as it was."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

import mlirfuse
from mlirfuse.core import gc_control
from mlirfuse.runtime import load


@pytest.mark.parametrize("on", [True, False])
def test_the_search_is_as_it_was(on):
    try:
        (gc.enable if on else gc.disable)()
        with pytest.raises(ZeroDivisionError), gc_control.gc_disabled():
            with gc_control.gc_disabled():
                assert not gc.isenabled()
            assert not gc.isenabled()
            raise ZeroDivisionError
        assert gc.isenabled() == on
    finally:
        gc.enable()


def test_kernels_are_compiled_without_it(monkeypatch):
    looked, loaded = [], load.start_loading
    monkeypatch.setattr(load, "start_loading", lambda *given: looked.append(gc.isenabled()) or loaded(*given))
    mlirfuse.jit(lambda x: (x * 3.25 + 7.5).sum())(np.ones(5))
    assert looked == [False] and gc.isenabled()


class Cycle:
    """Garbage that only Python's search finds."""

    def __init__(self):
        self.itself = self


def old(x) -> bool:
    return any(x is one for one in gc.get_objects(generation=2))


def test_what_a_model_is_compiled_by_is_not_looked_through_afterwards():
    gc.collect()
    before = weakref.ref(Cycle())
    with gc_control.gc_disabled(aged=True):
        assert before() is None  # garbage does not age
        created = Cycle()
        with gc_control.gc_disabled(aged=True):
            inner = Cycle()
        assert not old(inner)  # the first that began ends it
    assert old(created) and old(inner) and gc.get_freeze_count() == 0
    found = weakref.ref(created)
    del created
    gc.collect()
    assert found() is None


def test_nothing_ages_where_something_failed_or_is_frozen_or_nobody_searches():
    with pytest.raises(ZeroDivisionError), gc_control.gc_disabled(aged=True):
        failed = Cycle()
        raise ZeroDivisionError
    assert not old(failed)
    gc.freeze()
    try:
        frozen = gc.get_freeze_count()
        with gc_control.gc_disabled(aged=True):
            created = Cycle()
        assert not old(created) and gc.get_freeze_count() >= frozen - 100  # of which few may have died
    finally:
        gc.unfreeze()
    gc.disable()
    try:
        with gc_control.gc_disabled(aged=True):
            created = Cycle()
        assert not old(created)
    finally:
        gc.enable()
