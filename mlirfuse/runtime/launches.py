"""Launches of kernel programs from a host program: the Record for each set of sizes and signature."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from mlirfuse import _native
from mlirfuse.core.errors import CompileError, ShapeError, located
from mlirfuse.ir import interpreter
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Graph
from mlirfuse.ir.size_relations import failed
from mlirfuse.lowering.host_steps import FusedRegion
from mlirfuse.runtime import arrays, extern_ops, kernel_artifacts, load
from mlirfuse.runtime.launch_template import LaunchTemplate, result_placement
from mlirfuse.runtime.program import Program
from mlirfuse.runtime.size_cache import SizeCache
from mlirfuse.schedule.targets import Target

ALIGNED = 256  # bytes: the least alignment of torch's tensors in GPU memory
Failed = Callable[[Graph, Exception], None]


class Launches:
    """Runs ``region`` on ``target``. Arguments whose layout in a call is not the expected one are copied first.

    ``failed`` is called, at each call, with a program that does not compile and the error; if it returns, the call runs
    op by op. Without it the error is raised. ``shared_kernels``: those
    shared with other programs.
    """

    def __init__(
        self,
        region: FusedRegion,
        target: Target,
        failed: Failed | None = None,
        shared_kernels: load.SharedKernels | None = None,
    ):
        self.region, self.target, self.failed, self._shared_kernels = region, target, failed, shared_kernels
        self._problem: Exception | None = None
        self.finish: Callable[[], None] | None = None  # what :meth:`start_compiling` returned, until it has run
        self.graph = region.graph
        self._extents = sorted({n for v in region.values for n in v.shape if n != 1}, key=str)
        self._program: Program | None = None
        self._launch_template: LaunchTemplate | None = None
        self._by_sizes = SizeCache()  # dispatchers

    def program(self, hint: dict[str, int]) -> Program:
        """Return the program, created for these sizes if it does not exist."""
        if self._program is None:
            hint = {s: hint[s] for s in self.region.symbols}
            self._program = Program(self.graph, self.target, hint, self.region.axes, self._shared_kernels)
        return self._program

    def at(self, env: dict[str, int]) -> Callable:
        """Return a function of the arguments (followed by an array that determines where results are allocated, where
        no argument is one) that returns the results for these sizes: the only one itself, else a list."""
        key = tuple([env[s] for s in self.region.symbols])
        found = self._by_sizes.get(key)
        if found is None:
            sizes = dict(zip(self.region.symbols, key))
            found = self._by_sizes.add(key, _native.Dispatcher(functools.partial(self._miss, sizes)))
        return found

    def start_compiling(self, env: dict[str, int], submit: load.Submit) -> Callable[[], None] | None:
        """Start to compile the program for the sizes ``env``, if they include all of its own, and for arguments with
        the alignment of torch's; see :meth:`Program.start_compiling`."""
        known = set(self.region.symbols) <= env.keys()
        if not known or any(sz.known(n, env) == 0 for n in self._extents):
            return None
        name = kernel_artifacts.name(self.region, self.target, env, ALIGNED)
        program = self.program(env)
        aligned = {program.graph.args[k]: ALIGNED for k in program.pointer_args}
        return program.start_compiling(env, aligned, submit, name)

    def finish_compiling(self) -> None:
        """Load a started compilation that is not loaded yet."""
        finish = self.finish
        if finish is not None:
            finish()

    def order(self) -> list[int]:
        """Return the index among a Record's outputs of each result; empty before there is a Record."""
        return [] if self._launch_template is None else self._launch_template.output_of_result

    def forget(self) -> None:
        """Look up every signature again, also in functions that callers keep."""
        for dispatcher in self._by_sizes.values():
            dispatcher.clear()

    # ---- new signatures

    def _miss(self, env: dict[str, int], leaves):
        for op in self.graph.ops:  # of a front end's graph all hold; text has been seen by nobody
            if problem := failed(op, env):
                raise ShapeError(located(problem, op.loc))
        self.finish_compiling()
        like = extern_ops.like(leaves)
        fitted = [
            leaf if k in self.graph.scalars else self._fitted(k, leaf, env, like)
            for k, leaf in enumerate(leaves[: len(self.graph.args)])
        ] + list(leaves[len(self.graph.args) :])
        record = self.record(fitted, env)
        if all(a is b for a, b in zip(fitted, leaves)) or not isinstance(record, _native.Record):
            return record
        return _native.Dispatcher(lambda _: record)(*fitted)

    def _fitted(self, k: int, leaf, env: dict[str, int], like):
        """Return ``leaf`` with the layout of argument ``k``. Raises :class:`ShapeError` where it is another tensor."""
        value = self.graph.args[k]
        if arrays.framework(leaf) is None:  # a number for a 0-d tensor
            leaf = arrays.from_numpy(np.asarray(leaf, value.dtype.numpy), like)
        shape = tuple(sz.known(n, env) for n in value.shape)
        spec = arrays.spec_of(leaf)
        floats = spec.dtype.is_float and value.dtype.is_float
        if shape == spec.shape == () and floats and spec.dtype is not value.dtype and value.op is None:
            # Dynamo passes Python's random numbers as float64, and declares float32.
            leaf = arrays.from_numpy(np.asarray(arrays.to_numpy(leaf), value.dtype.numpy), like)
            spec = arrays.spec_of(leaf)
        if tuple(spec.shape) != shape or spec.dtype is not value.dtype:
            maker = f"{value.op.name} gave" if value.op is not None else "an argument is"
            raise ShapeError(
                f"{maker} {spec.dtype}{list(spec.shape)}, the program was compiled for {value.dtype}{list(shape)}"
            )
        if not spec.writable and k in self.graph.aliases.values():
            raise RuntimeError("a tensor that torch knows to be zero (ZeroTensor) is immutable: write into its clone()")
        layout = self.graph.layouts[k]
        if layout is None or 0 in shape:
            return leaf
        expected = [sz.known(n, env) for n in layout.strides]
        if all(a == b or n == 1 for a, b, n in zip(spec.strides, expected, shape)):
            return leaf
        return restrided(leaf, shape, expected)

    def record(self, leaves, env: dict[str, int]):
        """Return the Record for these arguments, or the results where it must not be kept."""
        if any(sz.known(n, env) == 0 for n in self._extents):
            return self._empty(leaves, env)
        try:
            if self._problem is not None:
                raise self._problem
            program = self.program(env)
            alignments = {
                program.graph.args[k]: arrays.spec_of(leaves[k]).useful_alignment for k in program.pointer_args
            }
            compiled_program = program.compiled_program(env, alignments)
        except Exception as error:
            if self.failed is None:
                raise
            self._problem = CompileError(str(error))  # without its traceback, which references arrays
            self.failed(self.graph, error)
            return self._run_op_by_op(leaves, env)
        if self._launch_template is None:
            self._launch_template = LaunchTemplate(self.graph, program, list(range(len(self.graph.args))), ())
        result = None if len(self.graph.returns) == 1 else list
        return self._launch_template.record(compiled_program, leaves, env, result)

    def _empty(self, leaves, env):
        """Return the record for a call in which some tensor has no elements: it launches nothing."""
        graph = self.graph
        shapes = [tuple(sz.known(n, env) for n in v.shape) for v in graph.returns]
        device, proto = result_placement(leaves, None)
        if all(0 in shape for shape in shapes) and not graph.aliases:
            outputs = [("new", shape, None, v.dtype.numpy) for shape, v in zip(shapes, graph.returns)]
            result = None if len(outputs) == 1 else list
            return _native.Record(0, [], [], [], outputs, 0, device, result, None, proto)
        return self._run_op_by_op(leaves, env)

    def _run_op_by_op(self, leaves, env: dict[str, int]):
        """Return the results of one call, op by op."""
        graph, proto = self.graph, result_placement(leaves, None)[1]
        given = [np.asarray(arrays.to_numpy(a), v.dtype.numpy) for a, v in zip(leaves, graph.args)]
        with np.errstate(all="ignore"):
            results = interpreter.run(graph, given, env)
        like = leaves[proto] if proto >= 0 else np.empty(0)
        created = [arrays.from_numpy(np.array(r, copy=True, order="C"), like) for r in results]
        return created[0] if len(created) == 1 else created


def restrided(array, shape: tuple[int, ...], strides: list[int]):
    """Return a copy of ``array`` with these strides (in elements), all positive and without overlaps; row-major where
    they are not."""
    library = arrays.framework(array)
    dense = sorted(((s, n) for s, n in zip(strides, shape) if n != 1), key=lambda pair: pair[0])
    running = 1
    for stride, extent in dense:
        if stride != running:
            return _with_gaps(array, shape, strides)
        running *= extent
    order = sorted(range(len(shape)), key=lambda d: (-strides[d], d))
    back = [order.index(d) for d in range(len(shape))]
    if library == "torch":
        return array.permute(order).contiguous().permute(back)
    if library == "numpy":
        return np.ascontiguousarray(array.transpose(order)).transpose(back) if array.ndim else array.copy()
    if library == "cupy":
        import cupy

        return cupy.asarray(array.transpose(order), order="C").transpose(back)
    host = arrays.to_numpy(array)
    return arrays.from_numpy(np.ascontiguousarray(host), array)


def _with_gaps(array, shape: tuple[int, ...], strides: list[int]):
    """As :func:`restrided`, for strides with gaps. Raises :class:`ShapeError` where elements overlap."""
    reach = 1
    for stride, extent in sorted((s, n) for s, n in zip(strides, shape) if n != 1):
        if stride < reach:
            raise ShapeError(f"a tensor of shape {shape} has other strides than {tuple(strides)}")
        reach += stride * (extent - 1)
    if arrays.framework(array) == "torch":
        created = array.new_empty(reach).as_strided(shape, strides)
        return created.copy_(array)
    if not isinstance(array, np.ndarray):
        raise ShapeError(f"a tensor of shape {shape} has other strides than {tuple(strides)}")
    buffer = np.empty(reach, array.dtype)
    created = np.lib.stride_tricks.as_strided(buffer, shape, [n * array.itemsize for n in strides])
    created[...] = array
    return created
