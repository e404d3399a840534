"""Compiling does not wait for Python's search for garbage, and leaves it on or off as it was."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import mlirfuse
from mlirfuse.core import garbage
from mlirfuse.runtime import load


@pytest.mark.parametrize("on", [True, False])
def test_the_search_is_as_it_was(on):
    try:
        (gc.enable if on else gc.disable)()
        with pytest.raises(ZeroDivisionError), garbage.uncollected():
            with garbage.uncollected():
                assert not gc.isenabled()
            assert not gc.isenabled()
            raise ZeroDivisionError
        assert gc.isenabled() == on
    finally:
        gc.enable()


def test_kernels_are_compiled_without_it(monkeypatch):
    looked, loaded = [], load.begun
    monkeypatch.setattr(load, "begun", lambda *given: looked.append(gc.isenabled()) or loaded(*given))
    mlirfuse.jit(lambda x: (x * 3.25 + 7.5).sum())(np.ones(5))
    assert looked == [False] and gc.isenabled()
