"""Modules are parsed without the GIL in the threads that compile kernels."""

import threading

import numpy as np
import pytest

import mlirfuse
from mlirfuse.core import mlir
from mlirfuse.lowering import ptx


def tiled() -> str:
    return mlirfuse.jit(lambda x: np.exp(x).sum(-1), target="cuda:sm_90").lower(np.ones((64, 300))).as_text("tiled")


def in_threads(function, count: int = 3) -> list:
    """What ``function`` returns or raises in threads that compile kernels."""
    found: list = []

    def run() -> None:
        with mlir.without_lock():
            try:
                found.append(function())
            except Exception as error:
                found.append(error)

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_threads_compile_what_the_bindings_parse(monkeypatch):
    text = tiled()
    wanted = ptx.to_ptx(text, "sm_90")

    def with_gil(*_):
        raise AssertionError("parsed by the bindings, which keep the GIL")

    monkeypatch.setattr(mlir.ir.Module, "parse", with_gil)
    assert in_threads(lambda: ptx.to_ptx(text, "sm_90")) == [wanted] * 3


def test_a_faulty_module_is_an_error_in_threads_too():
    faulty = "module { func.func @f() { "
    with pytest.raises(mlir.MLIRError) as usual:
        mlir.parsed(faulty)
    for error in in_threads(lambda: mlir.parsed(faulty)):
        assert isinstance(error, mlir.MLIRError) and str(error) == str(usual.value)
