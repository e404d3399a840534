"""``torch.compile(model, backend="mlirfuse")``: found by the entry point group ``torch_dynamo_backends``."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import aot_function, aot_module
from torch._guards import TracingContext
from torch.fx import GraphModule, Interpreter

from mlirfuse.core import config
from mlirfuse.core.errors import CompileError, UnsupportedError, located, warn
from mlirfuse.frontend.torch import attention, decompositions, products, random, repro
from mlirfuse.frontend.torch.cuda_graphs import Recorder
from mlirfuse.frontend.torch.execute import Boxed, boxed
from mlirfuse.frontend.torch.lower import Lowered, lower
from mlirfuse.frontend.torch.partition import partition
from mlirfuse.ir.graph import Graph
from mlirfuse.passes import pipelines
from mlirfuse.runtime.host_program import HostProgram
from mlirfuse.runtime.launches import Failed
from mlirfuse.schedule import targets

Observer = Callable[[str, Lowered, HostProgram], None]
observers: list[Observer] = []  # told of each graph that was compiled: its kind, and what runs it


@dataclass(frozen=True)
class Options:
    """``options=`` of ``torch.compile``.

    ``fallback``: what happens where a graph does not compile: it runs op by op with a warning, or the error is raised.
    ``warn_outside``: a warning for each graph that lists the ops that run as torch's own. ``eager_random``: dropout and
    random numbers are those that eager draws, by its own kernels. ``repro``: the folder for scripts of graphs
    that do not compile; None: that of temporary files.
    """

    fallback: bool = True
    warn_outside: bool = False
    eager_random: bool = False
    repro: str | None = None

    @staticmethod
    def of(given: dict[str, Any] | None) -> Options:
        """Raises ValueError for an option that is none."""
        names = {field.name for field in fields(Options)}
        unknown = sorted(set(given or {}) - names)
        if unknown:
            raise ValueError(f"mlirfuse has no option '{unknown[0]}'; there are {', '.join(sorted(names))}")
        return Options(**(given or {}))


def mlirfuse(module: GraphModule, inputs: Sequence[Any], *, mode: str | None = None,
             options: dict[str, Any] | None = None) -> Any:  # fmt: skip
    """The back end that Dynamo calls for each of its graphs. ``mode``: torch's names; "reduce-overhead" and
    "max-autotune" record graphs on a GPU as CUDA graphs, on the CPU no mode changes anything."""
    recorder = Recorder(len(inputs)) if mode in ("reduce-overhead", "max-autotune") else None
    attention.prepare(module)
    with attention.eagers_kernels():
        return aot_autograd(**compilers(Options.of(options), recorder))(module, inputs)


def compilers(options: Options, recorder: Recorder | None = None) -> dict[str, Any]:
    """Our compilers, decompositions and partitioner, as ``aot_autograd`` and ``aot_function`` take them."""
    compiler = functools.partial(compile_graph, options=options, recorder=recorder)
    table = decompositions.without_random() if options.eager_random else decompositions.table()
    return {
        "fw_compiler": functools.partial(compiler, which="forward"),
        "bw_compiler": functools.partial(compiler, which="backward"),
        "inference_compiler": functools.partial(compiler, which="inference"),
        "decompositions": table,
        "partition_fn": partition,
        "keep_inference_input_mutations": True,
    }


def memory_efficient_fusion(fn: Any, **options: Any) -> Any:
    """functorch's function of this name, with our compilers: a function or a module compiled through AOTAutograd,
    without Dynamo, for the shapes of its first call. ``options``: those of :class:`Options`."""
    make = aot_module if isinstance(fn, torch.nn.Module) else aot_function
    return make(fn, **compilers(Options.of(options)))


def compile_graph(module: GraphModule, inputs: Sequence[Any], *, options: Options, which: str,
                  recorder: Recorder | None = None) -> Boxed:  # fmt: skip
    """One of AOTAutograd's graphs as a function of its boxed convention."""
    failed = _Failures(module, which, options)
    try:
        lowered, host = lower_to_host(module, which, failed.kernel)
    except Exception as error:
        failed.report(f"the {which} graph", error)
        return op_by_op(module)
    for observer in observers:
        observer(which, lowered, host)
    if options.warn_outside and lowered.outside:
        listed = sorted({f"{node.target}: {why}" for node, why in lowered.outside})
        warnings.warn(f"in the {which} graph torch's own ops run: {'; '.join(listed)}", stacklevel=2)
    run = boxed(lowered, host)
    if recorder is None or lowered.device.type != "cuda":
        return run
    return recorder.recorded(run, module, inputs, which)


@dataclass
class _Failures:
    """What does not compile of one graph: a warning the first time, or an error."""

    module: GraphModule
    which: str
    options: Options
    told: bool = False

    def report(self, what: str, error: Exception) -> None:
        """Warns that ``what`` runs op by op. Raises :class:`CompileError` with the fallback off."""
        if self.told:
            return
        message = f"{repro.about(error)}\n  {self._repro()}"
        if not (self.options.fallback and config.fallback):
            raise CompileError(f"{what}: {message}") from error
        self.told = True
        warn(f"mlirfuse could not compile {what} and runs it op by op: {message}")

    def kernel(self, group: Graph, error: Exception) -> None:
        """A group's kernel failed, at the first call with its sizes."""
        names = ", ".join(dict.fromkeys(op.name for op in group.ops))
        place = next((op.loc for op in group.ops if op.loc), None)
        self.report(located(f"a kernel ({names}) of the {self.which} graph", place), error)

    def _repro(self) -> str:
        try:
            return f"this script repeats it: {repro.write(self.module, self.which, self.options.repro)}"
        except Exception as error:  # what is told is the first error
            return f"no script that repeats it could be written: {error}"


def lower_to_host(module: GraphModule, which: str, failed: Failed | None = None) -> tuple[Lowered, HostProgram]:
    """The graph after all passes, and the program that runs it; ``failed`` is told of kernels that do not compile."""
    if which == "inference":
        random.share_seeds(module.graph)
    products.pad(module)
    lowered = lower(module, which, _visible(which))
    target = _target(lowered)
    pipelines.lower_to_segments(lowered.graph, target.machine)
    return lowered, HostProgram(lowered.graph, target, failed)


def _visible(which: str) -> int | None:
    """How many outputs of a forward graph are not saved for the backward."""
    context = TracingContext.try_get()
    if which != "forward" or context is None or context.fw_metadata is None:
        return None
    return context.fw_metadata.num_forward_returns


def _target(lowered: Lowered) -> Any:
    if lowered.device.type not in ("cpu", "cuda"):
        raise UnsupportedError(f"there are no kernels for tensors on {lowered.device}")
    return targets.gpu(lowered.device.index or 0) if lowered.device.type == "cuda" else targets.cpu()


def op_by_op(module: GraphModule) -> Boxed:
    """The graph by torch's own ops."""
    interpreter = Interpreter(module)

    def run(args: list[Any]) -> list[Any]:
        return interpreter.boxed_run(args)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run
