"""What a device does at best, measured: how long a copy of so many bytes takes, and so many operations in registers."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from mlirfuse import _native
from mlirfuse.inspect.timing import Fills, Hold, timed
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.builder import Builder
from mlirfuse.ir.graph import Block, Graph, Layout, Value
from mlirfuse.passes import pipelines
from mlirfuse.runtime import arrays
from mlirfuse.runtime.device_array import DeviceArray
from mlirfuse.runtime.launch_template import LaunchTemplate
from mlirfuse.runtime.program import Program
from mlirfuse.schedule import targets

SMALLEST, LARGEST = 12, 30  # bytes of a copy, read and written, as powers of 2; beyond, the rate of the largest
_REPEATS = 7
_CHAINS, _LENGTH = 8, 32  # of additions and multiplications that wait for none but their own chain's


class Rates:
    """The rates of one device; each is measured when it is first asked for, and kept.

    ``hold`` as for :class:`mlirfuse.inspect.timing.OneByOne`. Kernels are this compiler's own, timed one by one as an
    audit times others: of a GPU the time contains what an event adds. A copy that fits into a cache is read from
    there, as the one before it has left it.
    """

    def __init__(self, target: Any, hold: Hold | None = None):
        self.target = target
        self.device: int | None = target.device
        self.hold = hold
        if hold is None and self.device is not None:
            self.hold = Fills(self.device)
        self._copies: dict[int, float] = {}
        self._chains: dict[dt.DType, float] = {}

    def copy_ms(self, nbytes: int) -> float:
        """How long a copy takes that reads and writes ``nbytes`` together, in milliseconds; between the sizes that are
        measured, the powers of 2, as the logarithms of both go."""
        if nbytes >= 1 << LARGEST:
            return self._copy(LARGEST) * nbytes / (1 << LARGEST)
        at = max(math.log2(max(nbytes, 1)), SMALLEST)
        low = int(at)
        if low == at:
            return self._copy(low)
        return self._copy(low) ** (low + 1 - at) * self._copy(low + 1) ** (at - low)

    @property
    def launch_ms(self) -> float:
        """How long the smallest copy takes."""
        return self._copy(SMALLEST)

    def operations_ms(self, count: int, double: bool = False) -> float:
        """How long ``count`` additions and multiplications of float32, or float64, take all threads."""
        return count * self._chain(dt.f64 if double else dt.f32)

    def _copy(self, exponent: int) -> float:
        if exponent not in self._copies:
            n = (1 << exponent) // 8
            found = self._fastest(_copied(), [self._zeros(n, dt.f32), self._zeros(n, dt.f32)], n)
            # noise must not let a larger copy be faster, nor a smaller one slower
            found = max([found, *(ms for e, ms in self._copies.items() if e < exponent)])
            self._copies[exponent] = min([found, *(ms for e, ms in self._copies.items() if e > exponent)])
        return self._copies[exponent]

    def _chain(self, dtype: dt.DType) -> float:
        if dtype not in self._chains:
            gpu = self.device is not None
            n = (1 << 22) if gpu else 4096 * self.target.properties.threads
            given = [self._zeros(n, dtype), self._zeros(n, dtype)]
            self._chains[dtype] = self._fastest(_chained(dtype), given, n) / (n * _CHAINS * _LENGTH)
        return self._chains[dtype]

    def _zeros(self, n: int, dtype: dt.DType) -> Any:
        if self.device is None:
            return np.zeros(n, dtype.numpy) + dtype.numpy.type(0)  # in pages of its own
        return DeviceArray(_native.mem_alloc(n * dtype.bytes, self.device), (n,), dtype.numpy, device=self.device)

    def _fastest(self, graph: Graph, leaves: list[Any], n: int) -> float:
        """The least time of the graph's kernel in milliseconds, on ``leaves`` of ``n`` elements."""
        env = {"s0": n}
        pipelines.lower_to_segments(graph, self.target.properties)
        program = Program(graph, self.target, env)
        alignments = {v: arrays.spec_of(leaf).align for v, leaf in zip(graph.args, leaves)}
        compiled = program.compiled_program(env, alignments)
        template = LaunchTemplate(program.graph, program, list(range(len(leaves))), ())
        with timed(self.hold) as found:
            call = _native.Dispatcher(lambda _: template.record(compiled, leaves, env, list))
            for _ in range(_REPEATS):
                call(*leaves)
        return max(min(ms for _, ms in found), 1e-6)


def _program(dtype: dt.DType) -> tuple[Graph, Builder]:
    """A graph of two lines of memory, of which the second is to be written."""
    shape = (sz.symbol("s0"),)
    x, out = Value(dtype, shape), Value(dtype, shape)
    graph = Graph("rate", Block([x, out]), [Layout((1,)), Layout((1,))], aliases={0: 1})
    return graph, Builder(graph.body)


def _copied() -> Graph:
    graph, b = _program(dt.f32)
    graph.body.returns = [b.op("copy", graph.args[0])]
    return graph


def _chained(dtype: dt.DType) -> Graph:
    """Additions and multiplications in turns in some chains side by side, more than memory keeps up with."""
    graph, b = _program(dtype)
    chains = [b.op("add", graph.args[0], b.constant(k, dtype)) for k in range(_CHAINS)]
    for k in range(_LENGTH - 2):
        chains = [b.op("add" if k % 2 else "mul", v, b.constant(0.75, dtype)) for v in chains]
    graph.body.returns = [functools.reduce(lambda a, c: b.op("add", a, c), chains)]
    return graph


@functools.cache
def cpu() -> Rates:
    """Those of this machine's processor, with the threads that kernels have."""
    return Rates(targets.cpu())


@functools.cache
def gpu(device: int) -> Rates:
    """Those of a GPU of this machine."""
    return Rates(targets.gpu(device))


def of(device: int | None) -> Rates:
    """Those of a GPU, or of the processor for None."""
    return cpu() if device is None else gpu(device)
