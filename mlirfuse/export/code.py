"""The code of an exported function for one target: the tree of conditions, and a program at each leaf as plain data."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mlirfuse.core.errors import UnsupportedError
from mlirfuse.export import image
from mlirfuse.export.constants import Constant
from mlirfuse.export.gpu_choice import RANGES, GpuChoice
from mlirfuse.export.paths import Explored, Path, Point, TooManyProgramsError, explore
from mlirfuse.export.sources import Definition, Function, specialization_at
from mlirfuse.export.specialization import ExportSpecialization
from mlirfuse.export.specs import ShapeDtype, names_of
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.dtypes import DType
from mlirfuse.ir.graph import Value
from mlirfuse.ir.sizes import Size
from mlirfuse.lowering import llvm
from mlirfuse.lowering.module import GpuKernel, KernelModule
from mlirfuse.runtime import cubin, load
from mlirfuse.schedule.targets import GpuTarget

_MOST_ELEMENTS, _MOST_EXTENT = 1 << 36, 1 << 32  # of an array, in the search for sizes that matter


@dataclass(frozen=True)
class Result:
    """An array that a call makes: C-contiguous."""

    dtype: DType
    shape: tuple[Size, ...]


@dataclass(frozen=True)
class Leaf:
    """A compiled program. ``pointers``: the leaves of the call, and behind these the function's constants, that are
    passed by pointer, in order, before the results; ``ints``: what the host function gets for each integer, see
    :mod:`mlirfuse_runtime`; ``temporaries``: the parts of the workspace, (bytes, slot of the offset, first step, last
    step); ``extents``: sizes that are not to be 0; ``code``: the image of machine code, ``launch`` and ``functions``:
    offsets in it; ``gpu``: kernels by name with whether they need large clusters."""

    pointers: tuple[int, ...]
    results: tuple[Result, ...]
    outs: tuple[tuple[str, int], ...]
    written: tuple[int, ...]
    ints: tuple[tuple, ...]
    temporaries: tuple[tuple[Size, int, int, int], ...]
    extents: tuple[Size, ...]
    code: bytes
    launch: int
    functions: dict[str, int]
    constants: dict[int, Any]
    ptx: str = ""
    cubin: bytes = b""
    kernels: tuple[str, ...] = ()
    large_clusters: tuple[str, ...] = ()


@dataclass(frozen=True)
class TargetCode:
    """All programs of a function for one target."""

    target: str
    explored: Explored
    leaves: list[Leaf]
    constants: list[Constant]

    @property
    def on_gpu(self) -> bool:
        return self.target.startswith("cuda:")

    @property
    def architecture(self) -> int:
        """Of a GPU: 90 for sm_90."""
        return int(self.target.removeprefix("cuda:sm_").rstrip("af"))

    def starts(self) -> list[int]:
        """Where the code of each program begins in :attr:`code`."""
        return [0, *itertools.accumulate(_padded(len(leaf.code)) for leaf in self.leaves)][:-1]

    @property
    def code(self) -> bytes:
        """The machine code of all programs, each at a multiple of 64 bytes."""
        return b"".join(leaf.code.ljust(_padded(len(leaf.code)), b"\0") for leaf in self.leaves)


def _padded(nbytes: int) -> int:
    return -(-nbytes // 64) * 64


def alignment_of(leaf: int) -> str:
    """The name of the bytes that an argument's address is a multiple of."""
    return f"align_{leaf}"


def result_alignment(number: int) -> str:
    """That of a result's address."""
    return f"align_r{number}"


def compiled(source: Function | Definition, target_name: str, most: int) -> TargetCode:
    """The programs of ``source`` for its target, at most so many. Raises the errors of tracing and of compiling, and
    ValueError for more programs."""
    extents, strides = names_of(source.leaves)
    aligned = {
        alignment_of(k): spec.dtype.bytes for k, spec in enumerate(source.leaves) if isinstance(spec, ShapeDtype)
    }
    aligned |= {result_alignment(k): 1 for k in range(16)}
    space, names = Space(source.leaves, extents, strides, aligned), [*extents, *strides, *aligned]
    every: list[ExportSpecialization] = []
    search = functools.partial(explore, names=names, draw=space.draw, allowed=space.has, most=most)
    found = _explored(source, extents, every, search, most)
    leaves = [_leaf(source, every[number], params) for number, params in found.leaves]
    if len({(leaf.outs, tuple((r.dtype, len(r.shape)) for r in leaf.results)) for leaf in leaves}) > 1:
        raise UnsupportedError(f"{source.name} cannot be exported: what it returns depends on sizes")
    return TargetCode(target_name, found, leaves, source.constants.found)


def _explored(
    source: Function | Definition,
    extents: Sequence[str],
    every: list[ExportSpecialization],
    search: Callable[[Any], Explored],
    most: int,
) -> Explored:
    """The tree of choices, each the number of a specialization in ``every``, which are added there, and parameters."""
    kinds: dict[tuple, list[ExportSpecialization]] = {}

    def choose(path: Path, on_gpu: GpuChoice | None = None) -> tuple:
        pattern = tuple(path.holds(sz.symbol(n), "==", 1) for n in extents)
        known = kinds.setdefault(pattern, [])
        kind = next((kind for kind in known if all(path.holds(*c) for c in kind.conditions)), None)
        if kind is None:
            kind = specialization_at(source, path.point)
            known.append(kind)
            every.append(kind)
            assert all(path.holds(*c) for c in kind.conditions)
        return every.index(kind), path.plain(_chosen(source, kind, path, on_gpu))

    if not isinstance(source.target, GpuTarget):
        return search(choose)
    error: TooManyProgramsError | None = None
    for apart in RANGES if len(extents) > 1 else RANGES[:1]:
        try:
            return search(functools.partial(choose, on_gpu=GpuChoice(source.target, most, apart)))
        except TooManyProgramsError as many:
            error = error or many
        except UnsupportedError:
            if error is None:
                raise
    assert error is not None
    raise error


def _chosen(source: Function | Definition, kind: ExportSpecialization, path: Path, on_gpu: GpuChoice | None) -> tuple:
    program, count = kind.program, len(source.leaves)

    def alignment(leaf: int) -> Any:
        if leaf >= count:
            return source.constants.found[leaf - count].alignment
        return path.number(sz.symbol(alignment_of(leaf)))

    alignments = {program.graph.args[k]: alignment(kind.leaf_of_arg[k]) for k in program.pointer_args}
    created = [v for v in program.outputs if v not in _in_place(kind) and v not in program.views]
    alignments |= {v: path.number(sz.symbol(result_alignment(k))) for k, v in enumerate(created)}
    if on_gpu is not None:
        return on_gpu.parameters(kind, path, alignments)
    return program.target.parameters(program, kind.env(path.number), alignments)


def _in_place(kind: ExportSpecialization) -> set[Value]:
    """What is written over an argument, and arguments that are returned."""
    graph = kind.program.graph
    return {graph.returns[k] for k in graph.aliases} | set(graph.args)


@dataclass(frozen=True)
class Space:
    """Where conditions are searched for: extents of all magnitudes, strides, alignments (with the least of each)."""

    leaves: Sequence[Any]
    extents: Sequence[str]
    strides: Sequence[str]
    aligned: dict[str, int]

    def has(self, point: Point) -> bool:
        """Whether arrays of these sizes are not absurdly large."""
        shapes = (spec.sizes for spec in self.leaves if isinstance(spec, ShapeDtype))
        return all(point[name] <= _MOST_EXTENT for name in self.extents) and all(
            sz.substitute(sz.product(shape), point) <= _MOST_ELEMENTS for shape in shapes
        )

    def draw(self, rng: random.Random) -> Point:
        """A random point."""
        largest = 12 if rng.random() < 0.7 else 31
        point = {name: round(2 ** rng.uniform(0, largest)) for name in self.extents}
        point |= {name: 1 if rng.random() < 0.2 else round(2 ** rng.uniform(1, 20)) for name in self.strides}
        return point | {
            name: max(least, 1 << rng.choice((0, 4, 5, 6, 6, 6, 8))) for name, least in self.aligned.items()
        }


def _leaf(source: Function | Definition, kind: ExportSpecialization, params: tuple) -> Leaf:
    """The code of one choice."""
    program, target = kind.program, kind.program.target
    slots = program.slots()
    module = target.write(program, params, slots)
    if not module.kernels:
        raise UnsupportedError(f"{source.name} computes nothing: every result is an argument, or a view of one")
    in_user = functools.partial(sz.substitute, values=kind.sizes)
    results, position = _results(source, kind)
    program_of = load.object_of(module.launching(), processor=llvm.processor_of_level(_level(target)))
    code = image.of_object(program_of)
    leaf_of = {v: kind.leaf_of_arg[k] for k, v in enumerate(program.graph.args)}
    ints: list[tuple] = []
    for (what, of), slot in slots.ints.items():
        assert slot == len(ints)
        if what in ("size", "inverse"):
            ints.append((what, in_user(of)))
        elif what == "scalar" and leaf_of[of] >= len(source.leaves):
            ints.append(("number", source.constants.found[leaf_of[of] - len(source.leaves)].bits))
        elif what == "scalar":
            ints.append((what, leaf_of[of], "f" if of.dtype.is_float else "i"))
        else:
            ints.append((what, of[-1] if what == "number" else of if what == "handle" else 0))
    spans = program.lifetimes(slots)
    temporaries = tuple(
        (in_user(slots.temporary_bytes[key]), slot, *spans.get(key, (0, len(program.steps))))
        for key, slot in slots.temporaries.items()
    )
    extents = {n for op in program.graph.ops for v in op.results for n in v.shape if not isinstance(n, int)}
    graph = program.graph
    return Leaf(
        tuple(kind.leaf_of_arg[k] for k in program.pointer_args),
        tuple(results),
        tuple((what, position[graph.returns[k]] if what == "result" else k) for what, k in kind.outs),
        tuple(sorted(kind.leaf_of_arg[a] for a in graph.aliases.values())),
        tuple(ints),
        temporaries,
        tuple(sorted(map(in_user, extents), key=str)),
        code.content,
        code.functions["launch"],
        code.functions,
        kind.constants,
        *(_of_gpu(target, module) if isinstance(target, GpuTarget) else ()),
    )


def _of_gpu(target: GpuTarget, module: KernelModule) -> tuple[str, bytes, tuple[str, ...], tuple[str, ...]]:
    """PTX, machine code where it can be made, the kernels' names, and those with clusters of more than 8 blocks."""
    text = load.ptx_of_kernels(module, target.properties.chip)
    kernels = [kernel for kernel in module.kernels if isinstance(kernel, GpuKernel)]
    large = tuple(kernel.name for kernel in kernels if kernel.cluster > 8)
    names = tuple(kernel.name for kernel in kernels)
    return text, cubin.of(text, target.properties.chip) or b"", names, large


def _level(target: Any) -> str:
    return "x86-64" if isinstance(target, GpuTarget) else target.level


def _results(source: Function | Definition, kind: ExportSpecialization) -> tuple[list[Result], dict]:
    """The arrays that the program makes, and which of them each of the graph's results is."""
    program, in_place = kind.program, _in_place(kind)
    in_user = functools.partial(sz.substitute, values=kind.sizes)
    created = [v for v in program.outputs if v not in in_place and v not in program.views]
    shapes = {v: v.shape for v in created}
    position = {v: k for k, v in enumerate(created)}
    for value in program.outputs:
        if value not in program.views:
            continue
        root, strides, offset = program.views[value]
        dense = tuple(strides) == sz.contiguous_strides(value.shape) and offset == 0
        if root not in position or not dense or root in kind.program.graph.returns:
            raise UnsupportedError(f"{source.name} cannot be exported: it returns a view; return a copy (np.copy)")
        position[value] = position[root]
        shapes[root] = value.shape
    return [Result(v.dtype, tuple(map(in_user, shapes[v]))) for v in created], position
