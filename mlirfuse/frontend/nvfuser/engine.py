"""Compiled execution of a :class:`mlirfuse.frontend.nvfuser.program.DefinitionProgram`: the source of its
specializations.

A C++ dispatcher runs calls whose signature it has seen; a new one goes to :mod:`mlirfuse.runtime.specializations`. Here
a specialization is a graph of the definition: the inputs are checked against the definition, and the graph for them is
looked up or built.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from mlirfuse.core import config, environment
from mlirfuse.core.errors import UnsupportedError
from mlirfuse.frontend.nvfuser.inputs import detached, flatten, wrong_number
from mlirfuse.frontend.nvfuser.program import DefinitionProgram, Runner
from mlirfuse.frontend.nvfuser.reference import run_reference
from mlirfuse.frontend.nvfuser.replay import Planned, symbol_values
from mlirfuse.frontend.nvfuser.values import Bindings, Tensor
from mlirfuse.inspect.lowered import Lowered
from mlirfuse.runtime import arrays, placement
from mlirfuse.runtime.specializations import Call, Source, Specialization, Specializations, run_uncached
from mlirfuse.runtime.storage_views import StorageViews, is_split
from mlirfuse.schedule import targets


@dataclass(eq=False)
class BoundCall(Call):
    """A call with checked inputs, and the definition's graph for them."""

    planned: Planned = field(kw_only=True)
    bindings: Bindings = field(kw_only=True)


@dataclass(eq=False)
class BoundSpecialization(Specialization):
    """A definition's graph for one type of device. Binding the inputs yields its symbols and has checked everything
    else."""

    planned: Planned = field(kw_only=True)
    shape_cacheable = False

    def env(self, call: Call) -> dict[str, int]:
        assert isinstance(call, BoundCall)
        return symbol_values(call.planned, call.bindings, call.leaves)

    def matches(self, call: Call) -> bool:
        return True

    def finisher(self, env: dict[str, int]) -> Callable[[list], Any]:
        return self.planned.collect

    def run_op_by_op(self, leaves: Sequence, env: dict[str, int]) -> list:
        return run_reference(self.planned, list(leaves), env)


@dataclass(eq=False)
class SplitSpecialization(BoundSpecialization):
    """A graph with complex or float8 tensors, converted to one of real tensors; see
    :mod:`mlirfuse.runtime.storage_views`."""

    split: StorageViews = field(kw_only=True)

    def arguments(self, leaves: Sequence, env: dict[str, int]) -> list:
        return self.split.arguments(leaves, self.split.make(leaves, env))

    def record_or_result(self, leaves: Sequence, env: dict[str, int]) -> Any:
        assert self.executor is not None
        return self.split.record(self.executor, leaves, self.leaf_of_arg, env, self.finisher(env), read=detached)


class DefinitionSource(Source):
    """The source of a program's specializations."""

    def __init__(self, program: DefinitionProgram):
        self.owner = self.program = program
        self.name = f"fusion{program.id}"

    def describe(self, leaves: Sequence) -> BoundCall:
        leaves = detached(leaves)
        planned, bindings = self.program._bind(list(leaves[: self.program.inputs]), None)
        device = next((arrays.spec_of(leaf).device for leaf in leaves if arrays.framework(leaf)), "cpu")
        key = (planned, device, config.compiled_as())
        return BoundCall(list(leaves), [], key, device, planned=planned, bindings=bindings)

    def make(self, call: Call) -> BoundSpecialization:
        assert isinstance(call, BoundCall)
        planned, graph = call.planned, call.planned.graph.copy()
        if call.device != "cpu" and not config.check_indices:
            for op in graph.ops:
                if op.attrs.get("checked"):
                    op.attrs["checked"] = False
        where = list(range(len(graph.args)))
        written, schedules = frozenset(graph.aliases.values()), self.program.definition.schedules
        if is_split(graph):
            split = StorageViews(graph)
            return SplitSpecialization(graph, where, mutated=written, planned=planned, split=split, schedules=schedules)
        return BoundSpecialization(graph, where, mutated=written, planned=planned, schedules=schedules)

    def run_eagerly(self, call: Call) -> list:
        assert isinstance(call, BoundCall)
        planned = call.planned
        return planned.collect(run_reference(planned, call.leaves, symbol_values(planned, call.bindings, call.leaves)))


class CompiledRunner:
    """Runs a program's calls compiled."""

    def __init__(self, program: DefinitionProgram):
        definition = program.definition
        count = len(definition.inputs)
        statics = [
            k
            for k in range(count)
            if k in definition.size_arguments or (program.evaluated and not definition.inputs[k].is_tensor())
        ]
        self.specializations = Specializations(DefinitionSource(program), statics)
        self.specializations.dispatch.set_alias_sensitive(program.aliased)
        self.hands_inputs_on = program.hands_inputs_on
        # The dispatcher does not support float8.
        self.narrow = any(isinstance(v, Tensor) and v.value.dtype.kind == "n" for v in definition.inputs)

    def __call__(self, leaves: Sequence) -> list:
        if self.hands_inputs_on:  # what torch makes of a tensor with a gradient would have one
            leaves = detached(leaves)
        return (
            run_uncached(self.specializations.miss(tuple(leaves)), leaves)
            if self.narrow
            else self.specializations.dispatch(*leaves)
        )


def runner_of(program: DefinitionProgram) -> Runner:
    """The runner of a program's calls: compiled, or the reference (``MLIRFUSE_DEFINITIONS=reference`` in the
    environment)."""
    if environment.DEFINITIONS != "reference":
        return CompiledRunner(program)
    source = DefinitionSource(program)
    return lambda leaves: source.run_eagerly(source.describe(leaves))


class LoweredDefinition(Lowered):
    """A call of a definition at each level of lowering: see :mod:`mlirfuse.inspect.lowered`."""

    def __init__(self, program: DefinitionProgram, inputs: Sequence, target: str | None):
        leaves = flatten(inputs)
        if len(leaves) != program.inputs:
            raise wrong_number(program.inputs, leaves)
        if program.computes:
            leaves += program.computed(leaves, None)
        source = DefinitionSource(program)
        call = source.describe(leaves)
        found = source.make(call)
        env = found.env(call)
        created_for = targets.of(target) if target else placement.target_of(leaves)
        super().__init__("this fusion", found, found.arguments(leaves, env), env, created_for)

    def compile(self) -> None:
        """Raises UnsupportedError: ``fd.execute`` compiles."""
        raise UnsupportedError("a definition is compiled by fd.execute(inputs); fd.lower(inputs) shows the result")
