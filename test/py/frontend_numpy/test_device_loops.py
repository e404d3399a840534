"""Loops on arrays of torch and CuPy: what runs between a loop's jumps is compiled once, whatever the trip count."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from device_loop_programs import PROGRAMS
from test_graph_breaks_of_tensors import FRAMEWORKS, Framework, agree, framework_of

import mlirfuse
from mlirfuse.frontend import tree as trees
from mlirfuse.frontend.numpy.device_loops.program import DeviceLoopProgram, explanation
from mlirfuse.frontend.numpy.syntax import NotOutlinable

torch = pytest.importorskip("torch")


@pytest.fixture(params=FRAMEWORKS)
def framework(request) -> Framework:
    return framework_of(request.param)


def on_device(framework: Framework, args):
    leaves, tree = trees.flatten(copy.deepcopy(args))
    return tree.unflatten(framework.arrays(leaves))


def device_loops(fn, args) -> DeviceLoopProgram:
    tree = trees.flatten((args, {}))[1]

    def otherwise(leaves):
        raise AssertionError("runs otherwise")

    return DeviceLoopProgram(fn, tree, mlirfuse.jit, otherwise)


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(framework, name):
    fn, *calls = PROGRAMS[name]
    for args in calls:
        program = device_loops(fn, on_device(framework, args))
        for _ in range(3):
            known = copy.deepcopy(args)
            given = on_device(framework, args)
            want = fn(*known)
            agree(framework, program.device_loops(trees.flatten((given, {}))[0]), want)
            agree(framework, given, known)


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_jitted(framework, name):
    fn, *calls = PROGRAMS[name]
    compiled = mlirfuse.jit(fn)
    for args in calls * 3:
        known = copy.deepcopy(args)
        given = on_device(framework, args)
        agree(framework, compiled(*given), fn(*known))
        agree(framework, given, known)


def test_a_program_is_compiled_once_whatever_the_trip_count(framework):
    fn, args, *_ = PROGRAMS["wave"]
    program = device_loops(fn, on_device(framework, args))
    for steps in (1, 5, 40):
        given = on_device(framework, (*args[:4], steps))
        agree(framework, program.device_loops(trees.flatten((given, {}))[0]), fn(*copy.deepcopy(args[:4]), steps))
    assert sum(s.created for s in program.regions) == 1


def test_what_cannot_run_so_runs_otherwise_with_the_arguments_as_they_were(framework):
    class Counter:
        value = 0.0

        def add(self, x):
            self.value += x.sum()

    def changes(x, n):
        for _ in range(n):
            x[1:] += 1
            counter = Counter()
            counter.add(x)
        return x

    (x,) = framework.arrays([np.arange(4.0)])
    seen = []
    program = DeviceLoopProgram(changes, trees.flatten(((x, 2), {}))[1], mlirfuse.jit, seen.append)
    with pytest.raises(NotOutlinable, match="counter"):
        program.device_loops([x, 2])
    agree(framework, x, np.arange(4.0))


def test_variables_are_pythons(framework):
    def unbound(x, n):
        for _ in range(n):
            last = x * 2
        return last + 1

    program = device_loops(unbound, on_device(framework, (np.arange(3.0), 1)))
    given = on_device(framework, (np.arange(3.0), 0))
    with pytest.raises(UnboundLocalError, match="last"):
        program.device_loops([*given])

    def numbers(x, n):
        total, kept = 0.0, []
        for i in range(n):
            total += x[i]
            kept.append(total)
        return total, kept[0], kept

    program = device_loops(numbers, on_device(framework, (np.arange(1.0, 4.0), 3)))
    given = on_device(framework, (np.arange(1.0, 4.0), 3))
    agree(framework, program.device_loops([*given]), numbers(np.arange(1.0, 4.0), 3))


def test_lists_and_objects_are_the_programs_own(framework):
    class State:
        pass

    def kept(x, n):
        states, at = [None] * n, State()
        for i in range(n):
            x = x * 0.5
            states[i] = x
            at.last = x.sum()
        return states, len(states), at.last

    program = device_loops(kept, on_device(framework, (np.arange(3.0), 4)))
    given = on_device(framework, (np.arange(3.0), 4))
    agree(framework, program.device_loops([*given]), kept(np.arange(3.0), 4))


def test_explain_tells_stretches(framework):
    fn, args, *_ = PROGRAMS["cg"]
    program = device_loops(fn, on_device(framework, args))
    told = explanation("cg", program, trees.flatten((on_device(framework, args), {}))[0])
    if framework.array is torch.Tensor and not on_device(framework, args)[0].is_cuda:
        assert "natively" in str(mlirfuse.jit(fn).explain(*on_device(framework, args)))  # in calls, as NumPy's loops
    assert told.parts[0].source == "x = np.zeros_like(b)"
    assert "compiled regions" in str(told) and max(s.runs for s in told.parts) > 5
