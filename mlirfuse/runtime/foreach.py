"""Runs a ``fusion.foreach``: the kernel of one member, compiled once for all sizes, launched once for all members."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate

import numpy as np

from mlirfuse import _native
from mlirfuse.core.errors import CompileError, ShapeError
from mlirfuse.ir import interpreter
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Value
from mlirfuse.lowering.foreach import GpuForeach, Table, of_many, operand
from mlirfuse.lowering.host_steps import Foreach as Step
from mlirfuse.lowering.module import CpuKernel
from mlirfuse.runtime import arrays, extern_ops, load
from mlirfuse.runtime.host_calls import copy_into
from mlirfuse.runtime.kernel_artifacts import KernelArtifact
from mlirfuse.runtime.launch_template import result_placement
from mlirfuse.runtime.launches import ALIGNED, Failed, Launches, restrided
from mlirfuse.runtime.program import CompiledProgram, Program
from mlirfuse.schedule.targets import Target


class MemberProgram(Program):
    """One member's program. Its compiled programs launch the kernel for all ``members``."""

    def __init__(self, graph, target: Target, hint: dict[str, int], axes, members: int):
        super().__init__(graph, target, hint, axes)
        self.members = members

    def _emit(self, params: tuple) -> KernelArtifact:
        artifact = super()._emit(params)
        if len(artifact.module.kernels) != 1 or artifact.slots.temporaries:
            raise CompileError("a member of a foreach is not a single kernel")
        (kernel,) = artifact.module.kernels
        if isinstance(kernel, CpuKernel):
            return artifact
        chip = self.target.properties.chip  # type: ignore[union-attr]  # a GPU's, as it has GPU kernels
        many = of_many([kernel], Table.of(kernel, self.members, chip))
        return artifact._replace(module=replace(artifact.module, kernels=(many,)))

    def _start_loading_kernels(self, artifact: KernelArtifact, submit: load.Submit | None) -> Callable[[], load.Loaded]:
        return load.start_loading_kernel(self.target, artifact.module, submit)


class Foreach(Launches):
    """Runs ``step`` on ``target``; ``failed`` as for :class:`Launches`. Its function takes the arguments of the first
    member, then those of the second …, and returns their results in the same order."""

    def __init__(self, step: Step, target: Target, failed: Failed | None = None):
        super().__init__(step.region, target, failed)
        self.region.symbols = []  # the host program does not know the members' sizes
        self.members, self.makes = step.members, step.makes
        self.reads = step.op.operands
        self.count = len(self.graph.args)
        flat = next((v for v in self.graph.args if v.shape), None)  # tensors are 1-D, all of one symbolic length
        self.sizes: list[dict[str, int]] = [{}] * self.members
        if flat is not None:
            (name,), at = flat.shape, self.graph.args.index(flat)
            self.sizes = [{str(name): sz.known(v.numel, {})} for v in self.reads[at :: self.count]]

    def program(self, hint: dict[str, int]) -> Program:
        if self._program is None:
            self._program = MemberProgram(self.graph, self.target, self._total_sizes(), self.region.axes, self.members)
        return self._program

    def order(self) -> list[int]:
        return list(range(len(self.makes)))

    def start_compiling(self, env: dict[str, int], submit: load.Submit) -> Callable[[], None] | None:
        aligned = dict.fromkeys(self.graph.args, ALIGNED)
        return self.program({}).start_compiling(self._total_sizes(), aligned, submit)

    def _total_sizes(self) -> dict[str, int]:
        """Return the sizes that parameters are chosen for: the elements of all members together, with the powers of two
        that divide each member's."""
        if not self.sizes[0]:
            return {}
        ((name, _),) = self.sizes[0].items()
        counts = [env[name] for env in self.sizes]
        common = math.gcd(*counts)
        common &= -common
        return {name: (sum(counts) // common | 1) * common}

    def _miss(self, env: dict[str, int], leaves):
        self.finish_compiling()
        like = extern_ops.like(leaves)
        fitted = [self._checked(k, leaf, like) for k, leaf in enumerate(leaves)]
        record = self._record(fitted)
        if all(a is b for a, b in zip(fitted, leaves)) or not isinstance(record, _native.Record):
            return record
        return _native.Dispatcher(lambda _: record)(*fitted)

    def _checked(self, k: int, leaf, like):
        """Return ``leaf`` in row-major order. Raises :class:`ShapeError` where it does not match operand ``k``."""
        value: Value = self.reads[k]
        if arrays.framework(leaf) is None:
            leaf = arrays.from_numpy(np.asarray(leaf, value.dtype.numpy), like)
        spec = arrays.spec_of(leaf)
        shape = tuple(spec.shape)
        if shape != value.shape or spec.dtype is not value.dtype:
            raise ShapeError(f"an argument is {spec.dtype}{list(shape)}, the program was compiled for {value}")
        expected = sz.contiguous_strides(shape)
        if all(a == b or n == 1 for a, b, n in zip(spec.strides, expected, shape)):
            return leaf
        if k % self.count in self.graph.aliases.values():
            raise ShapeError(f"an argument that is written has strides {tuple(spec.strides)} instead of {expected}")
        return restrided(leaf, shape, [sz.known(n, {}) for n in expected])

    def _record(self, leaves):
        try:
            if self._problem is not None:
                raise self._problem
            program = self.program({})
            aligned = {
                value: min(arrays.spec_of(leaf).useful_alignment for leaf in leaves[at :: self.count])
                for at, value in enumerate(self.graph.args)
            }
            compiled_program = program.compiled_program(self._total_sizes(), aligned)
        except Exception as error:
            if self.failed is None:
                raise
            self._problem = CompileError(str(error))
            self.failed(self.graph, error)
            return self._run_members_op_by_op(leaves)
        ints = self._ints(program, compiled_program)
        outputs: list[tuple] = []
        aliases = self.graph.aliases
        for at, value in enumerate(self.makes):
            member, result = divmod(at, len(self.graph.returns))
            if result in aliases:
                outputs.append(("arg", member * self.count + aliases[result]))
            else:
                outputs.append(("new", value.shape, None, value.dtype.numpy))
        device, proto = result_placement(leaves, 0)
        launch = _native.symbols()["mlirfuse_foreach_gpu" if compiled_program.module.on_gpu else "mlirfuse_foreach_cpu"]
        return _native.Record(
            launch, ints, list(range(len(leaves))), [], outputs, 0, device, list, compiled_program, proto
        )

    def _ints(self, program: Program, compiled_program: CompiledProgram) -> list[int]:
        """Return the integers that ``runtime/native/foreach.h`` describes."""
        assert isinstance(program, MemberProgram)
        (kernel,) = compiled_program.module.kernels
        plans = [program.plan(compiled_program, env).ints for env in self.sizes]
        created = len(self.graph.returns) - len(self.graph.aliases)

        def pointer(member: int, slot: int) -> int:
            """Return the index of a member's pointer ``slot`` among those of the call."""
            if slot < self.count:
                return member * self.count + slot
            return self.members * self.count + member * created + slot - self.count

        members = range(self.members)
        if isinstance(kernel, CpuKernel):
            first = [0, *accumulate(sz.known(kernel.tasks, env) for env in self.sizes)]
            slots = [pointer(m, slot) for m in members for slot in kernel.passed]
            grain = max(sz.known(kernel.grain, env) for env in self.sizes)
            head = [compiled_program.launch, self.members, len(kernel.passed), len(plans[0]), grain]
            return [*head, *first, *slots, *(n for plan in plans for n in plan)]
        assert isinstance(kernel, GpuForeach)
        (one,) = kernel.members
        numbers: list[int] = []  # the ints after the kernel, the head and the operands
        before = 1 + len(kernel.described([])) + self.members * (1 + len(one.passed))

        def number(n: int) -> int:
            numbers.append(n)
            return operand("size", before + len(numbers) - 1)

        operands = [
            [
                number(sz.known(one.grid, env)),
                *(
                    operand(kind, pointer(m, slot)) if kind == "pointer" else number(plan[slot])
                    for kind, slot in one.passed
                ),
            ]
            for m, env, plan in zip(members, self.sizes, plans)
        ]
        return [compiled_program.launch, *kernel.described(operands), *numbers]

    def _run_members_op_by_op(self, leaves) -> list:
        """Return the results of one call, op by op."""
        out: list = []
        for member, env in enumerate(self.sizes):
            own = leaves[member * self.count : (member + 1) * self.count]
            given = [arrays.to_numpy(a).reshape(-1 if v.shape else ()) for a, v in zip(own, self.graph.args)]
            with np.errstate(all="ignore"):
                results = interpreter.run(self.graph, given, env)
            for result, created in enumerate(results):
                shape = [sz.known(n, {}) for n in self.makes[len(out)].shape]
                array = arrays.from_numpy(np.array(created, copy=True, order="C").reshape(shape), own[0])
                if result in self.graph.aliases:
                    target = own[self.graph.aliases[result]]
                    copy_into(target, array)
                    array = target
                out.append(array)
        return out
