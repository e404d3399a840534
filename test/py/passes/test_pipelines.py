"""One list of passes: `jit`, `FusionDefinition` and mlirfuse-opt's named pipelines run the same."""

import re
from pathlib import Path

import numpy as np
import pytest

import mlirfuse
from mlirfuse.core import config
from mlirfuse.frontend import tree as trees
from mlirfuse.frontend.numpy.tracing import trace
from mlirfuse.lowering import devices
from mlirfuse.nvfuser import DataType, FusionDefinition
from mlirfuse.passes import base, pipelines
from mlirfuse.runtime import events
from mlirfuse.runtime.signature import ArgSpec


def named(pipeline):
    """The steps of a named pipeline, with their options."""
    return [str(step) for step in base.build(f"builtin.module({pipeline})")]


@pytest.fixture
def ran():
    """The passes that run in a test."""
    found = []
    stop = events.observe(events.PassRan, lambda event: found.append(str(event.step)))
    yield found
    stop()


def test_jit(ran):
    mlirfuse.jit(lambda x: np.exp(x).sum(0), fallback=False)(np.ones((3, 4)))
    assert ran == named("fusion-to-segments{target=cpu}")


def test_jit_heeds_the_switches(ran):
    with config.override(single_op=False, horizontal=False):
        mlirfuse.jit(lambda x: np.exp(x) + 2, fallback=False)(np.ones(3))
    (group,) = (step for step in ran if step.startswith("fusion-group"))
    assert group == str(base.build("fusion-group{single-op=false horizontal=false}")[0])


def test_definitions(ran):
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1, -1], contiguity=[True, True], dtype=DataType.Double)
        fd.add_output(fd.ops.sum(fd.ops.sinh(x), [0]))
    fd.execute([np.ones((3, 4))])
    assert ran == named("fusion-to-segments{target=cpu}")


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90", "cuda:sm_80"])
def test_targets(target):
    leaves, tree = trees.flatten(((np.ones((3, 4)),), {}))
    graph = trace(lambda x: x.var(0), [ArgSpec.of(x) for x in leaves], tree).graph
    ran = []
    pipelines.lower_to_segments(graph, devices.named(target), lambda step, ir, seconds: ran.append(str(step)))
    assert ran == named(f"fusion-to-segments{{target={target}}}")


def test_passes_that_no_pipeline_runs_say_so():
    base.discover()
    for name, item in base.PASSES.items():
        told = "No pipeline runs this pass" in re.sub(r"\s+", " ", item.__doc__ or "")
        assert told == (not pipelines.users_of(name)), name


def test_lists_of_passes_stand_in_one_place():
    """No other file of the package spells a pipeline of ours."""
    package = Path(mlirfuse.__file__).parent
    spelled = re.compile(r"fusion-[a-z-]+(\{[^}]*\})?,\s*fusion-[a-z-]+")
    found = {p.relative_to(package).as_posix() for p in package.rglob("*.py") if spelled.search(_code(p))}
    assert found <= {"passes/pipelines.py"}, found


def _code(path):
    """A file without its docstrings."""
    return re.sub(r'"""(.|\n)*?"""', "", path.read_text())
