"""What is read off a function's bytecode, beside Python's own disassembler and what calls of NumPy do."""

import argparse
import ast
import dis
import statistics
import textwrap
import types
import typing

import numpy as np
import pytest

from mlirfuse.frontend.numpy import bytecode


@pytest.mark.parametrize(
    "module", [argparse, ast, dis, statistics, textwrap, typing], ids=lambda module: module.__name__
)
def test_instructions_are_those_of_the_disassembler(module):
    with open(module.__file__, encoding="utf-8") as file:
        whole = compile(file.read(), module.__file__, "exec")
    for code in bytecode.within(whole):
        steps = bytecode._steps(code)
        expected = [step for step in dis.get_instructions(code) if step.opname not in bytecode._SKIPPED]
        assert [(step.opname, step.arg, 2 * step.unit) for step in steps] == [
            (other.opname, other.arg or 0, other.offset) for other in expected
        ]
        for step, other in zip(steps, expected, strict=True):
            loads = other.opcode in {*dis.hasname, *dis.haslocal, *dis.hasfree, *dis.hasconst}
            if loads and isinstance(other.argval, (str, types.CodeType)):
                assert step.argval == other.argval
            else:
                assert not isinstance(step.argval, str)
            if step.opname == "BINARY_OP":
                assert (step.arg in bytecode._IN_PLACE) == other.argrepr.endswith("=")
                assert (step.arg in bytecode._SUBSCRIPT) == (other.argrepr == "[]")


@pytest.mark.parametrize("write", [
    lambda x, y: x.conj(y), lambda x, y: x.conjugate(y), lambda x, y: x.round(0, y), lambda x, y: np.negative(x, y),
    lambda x, y: np.cumsum(x, 0, None, y), lambda x, y: x.sum(0, None, y),
])  # fmt: skip
def test_results_by_position_are_writes(write):
    x = np.arange(1.0, 4)
    y = np.zeros(np.shape(write(x, None)))
    write(x, y)
    assert y.any()
    assert bytecode.writes(write.__code__)


@pytest.mark.parametrize("read", [
    lambda x, y: np.maximum(x, y) * np.sum(x, 0) + x.sum(0), lambda x, y: x.conj() + x.round(2) + np.add(x, y),
])  # fmt: skip
def test_calls_without_results_by_position_are_no_writes(read):
    assert not bytecode.writes(read.__code__)
