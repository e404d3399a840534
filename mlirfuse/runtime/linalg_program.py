"""Programs lowered by MLIR's own passes: from the output of ``convert-fusion-to-linalg`` to code, by a pipeline.

:class:`LoweringPath` returns a target that compiles this way, for any other target. It is slow: loops over elements,
serial on a CPU, an element per thread on a GPU. Its code is generated independently of the schedulers' kernels, down to
the loops and addresses of single elements, and so verifies them.
"""

from __future__ import annotations

from dataclasses import dataclass

from mlirfuse.core import mlir
from mlirfuse.core.device_properties import DeviceProperties, HostProperties
from mlirfuse.core.errors import CompileError
from mlirfuse.dialects import fusion
from mlirfuse.ir.graph import Value
from mlirfuse.lowering import ptx
from mlirfuse.lowering.host import gpu_host
from mlirfuse.lowering.linalg.entry import ENTRY, WORKSPACE, Entry, entry_of
from mlirfuse.lowering.linalg.host import checked_entry, cpu_launch, gpu_kernels
from mlirfuse.lowering.module import AssembledModule, CpuKernel, KernelModule
from mlirfuse.lowering.slots import Slots
from mlirfuse.passes import pipelines
from mlirfuse.passes.allocs_to_workspace import BYTES_NEEDED
from mlirfuse.passes.base import run_pipeline
from mlirfuse.schedule.program import SegmentedProgram
from mlirfuse.schedule.targets import CpuTarget, GpuTarget, Target


@dataclass(frozen=True)
class LoweringPath:
    """How segments become code: from linalg on by ``pipeline``, or by this package's schedulers where that is None."""

    pipeline: str | None = None

    def target(self, base: Target) -> CpuByLinalg | GpuByLinalg:
        """Return the target that compiles this way for the device of ``base``."""
        return CpuByLinalg(base, self.pipeline) if isinstance(base, CpuTarget) else GpuByLinalg(base, self.pipeline)


@dataclass(frozen=True)
class Sizes:
    """The values of the size symbols, in place of a schedule."""

    values: tuple[tuple[str, int], ...]


class _ByLinalg:
    """The common code of both targets: a compiled program for each set of sizes, and the segments of the base's
    schedulers."""

    base: Target
    early_launch = one_launch = False

    @property
    def properties(self) -> HostProperties | DeviceProperties:
        """The processor's properties."""
        return self.base.properties

    def parameters(self, program: SegmentedProgram, env: dict[str, int], alignments: dict[Value, int]) -> tuple:
        """Return for each segment the parameters of its code: the sizes."""
        return (Sizes(tuple(sorted(env.items()))),) * len(program.steps)

    def schedules(self, program: SegmentedProgram, params: tuple) -> list[dict]:
        """Return an empty schedule for each segment."""
        return [{} for _ in program.steps]


@dataclass(frozen=True)
class CpuByLinalg(_ByLinalg):
    """A CPU whose programs are compiled from linalg."""

    base: CpuTarget
    pipeline: str | None

    name = "cpu"
    device = None
    levels_below = "host", "llvm"

    def write(self, program: SegmentedProgram, params: tuple, slots: Slots) -> KernelModule:
        """Generate the functions of ``program`` for these sizes in the LLVM dialect, and one that calls the entry.
        Raises :class:`UnsupportedError` for ops without a conversion to linalg, :class:`CompileError` where the
        pipeline fails."""
        created = _entry(program, params, slots, on_device=False)
        if created is None:
            return KernelModule((), False)
        module = lowered(created, self.pipeline or pipelines.linalg_to_llvm())
        attributes = checked_entry(module, created.parameters).attributes
        nbytes = attributes[BYTES_NEEDED].value if BYTES_NEEDED in attributes else 0
        slots.temporary_bytes[WORKSPACE] = nbytes
        text = "\n".join(str(op) for op in module.body.operations)
        return KernelModule((CpuKernel(ENTRY, text, 1, 1),), False, cpu_launch(created.parameters, slots, nbytes))


@dataclass(frozen=True)
class GpuByLinalg(_ByLinalg):
    """A GPU whose programs are compiled from linalg."""

    base: GpuTarget
    pipeline: str | None

    name = "cuda"
    levels_below = "ptx", "host"

    @property
    def device(self) -> int | None:
        """The CUDA device, None for an architecture to compile for."""
        return self.base.device

    def write(self, program: SegmentedProgram, params: tuple, slots: Slots) -> KernelModule:
        """Generate the kernels of ``program`` for these sizes as PTX, and the function that launches them. Raises like
        :meth:`CpuByLinalg.write`."""
        created = _entry(program, params, slots, on_device=True)
        if created is None:
            return KernelModule((), True)
        module = lowered(created, self.pipeline or pipelines.linalg_to_ptx(self.base.properties.chip))
        kernels = gpu_kernels(module, created.parameters, slots)
        return AssembledModule(tuple(kernels), True, gpu_host(kernels, slots), ptx.binary_of(module))


def _entry(program: SegmentedProgram, params: tuple[Sizes, ...], slots: Slots, on_device: bool) -> Entry | None:
    """Return the program's entry; None where there is nothing to compute."""
    created = entry_of(program.graph, dict(params[0].values), slots, on_device) if params else None
    return created if created is not None and created.writes else None


def lowered(created: Entry, pipeline: str):
    """Return the module after ``pipeline``. Raises :class:`CompileError` where a pass fails."""
    try:
        return run_pipeline(fusion.parse(created.text), pipeline).module
    except mlir.MLIRError as error:
        raise CompileError(f"lowering from linalg failed: {error}") from error
