"""``torch.compile(model, backend="mlirfuse")``, registered by the entry point group ``torch_dynamo_backends``."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule

from mlirfuse.core import config, gc_control
from mlirfuse.core.errors import UnsupportedError
from mlirfuse.frontend.torch import fx_passes, gc_disabled, warm
from mlirfuse.frontend.torch import torch_private as private
from mlirfuse.frontend.torch.aot import decompositions, extract, trace
from mlirfuse.frontend.torch.aot.partition import partition, partition_or_torchs
from mlirfuse.frontend.torch.attention import selection
from mlirfuse.frontend.torch.execution.cuda_graphs import Recorder
from mlirfuse.frontend.torch.execution.eager import op_by_op, where_transformed
from mlirfuse.frontend.torch.execution.execute import Boxed, boxed, host_program, target_of
from mlirfuse.frontend.torch.lower import Lowered, lower, main_device
from mlirfuse.frontend.torch.options import Options, checked
from mlirfuse.frontend.torch.reports import failure_reports, recompiles, traces
from mlirfuse.frontend.torch.rewrites.matmul_epilogues import keep
from mlirfuse.inspect import progress
from mlirfuse.ir.graph import Graph
from mlirfuse.passes import pipelines
from mlirfuse.runtime import events
from mlirfuse.runtime.host_program import HostProgram
from mlirfuse.runtime.launches import Failed

Observer = Callable[[str, Lowered, HostProgram], None]
observers: list[Observer] = []  # called for each compiled graph, with "forward", "backward" or "inference"


def mlirfuse(module: GraphModule, inputs: Sequence[Any], *, mode: str | None = None,
             options: dict[str, Any] | None = None) -> Any:  # fmt: skip
    """The back end that Dynamo calls for each of its graphs. ``mode``: torch's names; "reduce-overhead" and
    "max-autotune" enable CUDA graphs; on the CPU no mode has an effect. Raises ValueError for an unknown mode or
    option, or an option's invalid value."""
    given, mode = Options.of(options), checked(mode)
    private.warn_of_untested()
    try:
        return _run_of(module, inputs, mode, given)
    except private.TorchDynamoException:  # Dynamo restarts the analysis, or stops
        raise
    except Exception as error:
        if not (given.fallback and config.fallback):
            raise
        failure_reports.not_compiled(error)
        return module.forward


def _run_of(module: GraphModule, inputs: Sequence[Any], mode: str | None, options: Options) -> Any:
    """``module`` compiled, as a callable."""
    progress.follow()
    recompiles.watch()
    gc_disabled.while_dynamo_traces()  # torch._dynamo.reset undoes it
    recorder = _recorder(mode, options, len(inputs))
    fx_passes.run(fx_passes.dynamo_graph(options), module)
    with selection.kernels_of_eager(), _warm(options, recorder) as cached:
        return trace.compiled(module, inputs, _compilers(options, recorder, cached))


mlirfuse.reset = recompiles.forget  # type: ignore[attr-defined]  # called by torch._dynamo.reset
gc_disabled.while_dynamo_traces()


def _recorder(mode: str | None, options: Options, count: int) -> Recorder | None:
    """The CUDA graph recorder for a Dynamo graph with ``count`` inputs, where a mode or the options ask for one."""
    by_mode = mode in ("reduce-overhead", "max-autotune")
    if not torch.cuda.is_available() or not (by_mode if options.cuda_graphs is None else options.cuda_graphs):
        return None
    return Recorder(count, every_size=by_mode)


def _warm(options: Options, recorder: Recorder | None) -> contextlib.AbstractContextManager[bool]:
    """:func:`warm.start`, unless an observer or a recorder needs each graph compiled."""
    return contextlib.nullcontext(False) if observers or recorder is not None else warm.start(options)


def compilers(**options: Any) -> dict[str, Any]:
    """The back end's compilers, decompositions and partitioner as keyword arguments of ``aot_function``:
    ``aot_function(f, **compilers())``. ``options``: those of :class:`Options`; ``cuda_graphs`` has no effect here."""
    found = _compilers(Options.of(options))
    if options.get("fallback", True) and config.fallback:
        found["partition_fn"] = functools.partial(partition_or_torchs, backend_options=Options.of(options))
    return found


def _compilers(options: Options, recorder: Recorder | None = None, cached: bool = False) -> dict[str, Any]:
    """``cached``: AOTAutograd's cache may store the compiled graphs."""

    def compiler(which: str) -> Callable[..., Any]:
        compiled: Callable[..., Any] = (
            _compiled_for_cache if cached else functools.partial(compile_graph, recorder=recorder)
        )
        compiled = functools.partial(compiled, options=options, which=which)
        compiled = trace.untraced(compiled) if which == "backward" else compiled
        return warm.cacheable(compiled) if cached else compiled

    return {
        "fw_compiler": compiler("forward"),
        "bw_compiler": compiler("backward"),
        "inference_compiler": compiler("inference"),
        "decompositions": decompositions.Table(random=not options.eager_random),
        "partition_fn": functools.partial(partition, backend_options=options),
        "keep_inference_input_mutations": True,
    }


def memory_efficient_fusion(fn: Any, **options: Any) -> Any:
    """functorch's function of this name: compiles a function or a module through AOTAutograd, without Dynamo, for the
    shapes of its first call. ``options``: those of :class:`Options`."""
    make = private.aot_module if isinstance(fn, torch.nn.Module) else private.aot_function
    return make(fn, **compilers(**options))


def compile_graph(module: GraphModule, inputs: Sequence[Any], *, options: Options, which: str,
                  recorder: Recorder | None = None) -> Boxed:  # fmt: skip
    """An AOTAutograd graph compiled to a function with the boxed calling convention."""
    fx_passes.run(fx_passes.AFTER_TRACING, module)
    seen = None if recorder is None else recorder.examine(module, inputs, which, _visible(which))
    compiled = _compiled(module, inputs, options, which, recorder is not None)
    assert compiled.run is not None
    if recorder is None or seen is None or compiled.lowered is None or compiled.lowered.device.type != "cuda":
        return compiled.run
    return recorder.recorded(compiled.run, module, inputs, which, seen)


def _compiled(module: GraphModule, inputs: Sequence[Any], options: Options, which: str,
              recorded: bool = False) -> warm.Compiled:  # fmt: skip
    """``recorded``: as a CUDA graph; each replay rereads its inputs."""
    fx_passes.run(fx_passes.AFTER_TRACING, module)
    failed = failure_reports.Failures(module, which, options)
    try:
        donated = _donated(module) if which == "backward" else []
        if which == "inference":  # others come from a joint graph, which was checked
            fx_passes.run(fx_passes.inference_graph(options), module)
        lowered, host = lower_to_host(
            module, which, failed.kernel, options.eager_rounding, [] if recorded else donated, options.matmul_epilogues
        )
        for observer in observers:  # before the function is built, whose steps they may observe
            observer(which, lowered, host)
        run = where_transformed(boxed(lowered, host), lambda: module, which)
    except Exception as error:
        failed.report(f"the {which} graph", error)
        return warm.Compiled(op_by_op(module), None, which, options)
    traces.explained(which, lowered, host)
    failure_reports.calls_outside(lowered, which, options)
    return warm.Compiled(run, lowered, which, options, module)


def _compiled_for_cache(*args: Any, **kwargs: Any) -> warm.Compiled:
    """:func:`_compiled` for AOTAutograd's cache. A cache entry guards integers only, so a graph that specializes to the
    value of a float is valid for this trace alone."""
    found = _compiled(*args, **kwargs)
    if private.specialized_floats():
        found.lowered = None  # not cached
    return found


def _donated(module: GraphModule) -> list[int]:
    """The indices of a backward's donated inputs. Empties AOTAutograd's own list, with which torch refuses a second
    backward (``retain_graph=True``); :func:`boxed` handles that case."""
    private.empty_donated_indices()
    inputs = module.graph.find_nodes(op="placeholder")
    return [k for k, node in enumerate(inputs) if node.meta.get(extract.DONATED)]


@gc_control.gc_disabled(aged=True)
def lower_to_host(
    module: GraphModule,
    which: str,
    failed: Failed | None = None,
    rounds: bool = False,
    donated: Sequence[int] = (),
    matmul_epilogues: str = "never",
) -> tuple[Lowered, HostProgram]:
    """The graph after all passes, and its host program; ``failed`` collects kernels that do not compile. ``rounds``,
    ``donated``: as in :func:`mlirfuse.frontend.torch.lower.lower`; ``matmul_epilogues`` as in :class:`Options`."""
    target = target_of(main_device(module))
    fx_passes.run(fx_passes.before_lowering(target.properties, matmul_epilogues), module)
    lowered = lower(module, which, _visible(which), rounds, donated)
    if matmul_epilogues == "auto" and keep(module, lowered.graph, target.properties):
        lowered = lower(module, which, _visible(which), rounds, donated)
    traces.graph(which, "fusion", lowered.graph)
    if events.GraphLowered.observers:
        events.report(events.GraphLowered(which, lowered.graph))
    watched = events.Advanced.observers or events.GraphPassRan.observers
    after = _advance(which, lowered.graph) if watched else None
    pipelines.lower_to_segments(lowered.graph, target.properties, after, foreach=True)
    traces.graph(which, "segmented", lowered.graph)
    if events.GraphSegmented.observers:
        events.report(events.GraphSegmented(lowered.graph, lowered.graph.hints))
    host = host_program(lowered, failed)
    undeclared = set(host.symbols) - set(lowered.symbols)
    if undeclared:  # Dynamo gives each symbol as an input; AOTAutograd alone does not
        raise UnsupportedError(f"no input of the graph declares the size {min(undeclared)}")
    events.report(events.Advanced(f"the {which} graph", len(host.launches)))
    return lowered, host


def _advance(which: str, graph: Graph) -> Callable[[Any, Any, float], None]:
    """A callback that reports each pass after it ran."""

    def after(step: Any, _: Any, seconds: float) -> None:
        events.report(events.GraphPassRan(graph, step))
        events.report(events.Advanced(f"the {which} graph after {step.name}"))

    return after


def _visible(which: str) -> int | None:
    """The number of a forward graph's outputs that are not saved for the backward (they come first, after effect
    tokens); None for other graphs."""
    metadata = private.forward_metadata()
    if which != "forward" or metadata is None:
        return None
    return len(metadata.tokens) + metadata.num_forward_returns
