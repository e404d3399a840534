"""``torch.compile(model, backend="mlirfuse")``: found by the entry point group ``torch_dynamo_backends``."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule

from mlirfuse.core import config, gc_control
from mlirfuse.core.errors import UnsupportedError
from mlirfuse.frontend.torch import (
    aot,
    attention,
    channels_last,
    decompositions,
    equal_layers,
    extract,
    failure_reports,
    gc_disabled,
    losses,
    pools,
    products,
    random,
    real_dtypes,
    recompiles,
    sizes,
    traces,
    warm,
)
from mlirfuse.frontend.torch import torch_private as private
from mlirfuse.frontend.torch.cuda_graphs import Recorder
from mlirfuse.frontend.torch.eager import op_by_op, where_transformed
from mlirfuse.frontend.torch.execute import Boxed, boxed, host_program, target_of
from mlirfuse.frontend.torch.lower import Lowered, lower
from mlirfuse.frontend.torch.options import Options, checked
from mlirfuse.frontend.torch.partition import partition, partition_or_torchs
from mlirfuse.inspect import progress
from mlirfuse.ir.graph import Graph
from mlirfuse.passes import pipelines
from mlirfuse.runtime import events
from mlirfuse.runtime.host_program import HostProgram
from mlirfuse.runtime.launches import Failed

Observer = Callable[[str, Lowered, HostProgram], None]
observers: list[Observer] = []  # told of each graph that was compiled: its kind, and what runs it


def mlirfuse(module: GraphModule, inputs: Sequence[Any], *, mode: str | None = None,
             options: dict[str, Any] | None = None) -> Any:  # fmt: skip
    """The back end that Dynamo calls for each of its graphs. ``mode``: torch's names; "reduce-overhead" and
    "max-autotune" record graphs on a GPU as CUDA graphs, on the CPU no mode changes anything. Raises ValueError for a
    mode, an option or an option's value that there is not."""
    given, mode = Options.of(options), checked(mode)
    private.warn_of_untested()
    try:
        return _run_of(module, inputs, mode, given)
    except private.TorchDynamoException:  # Dynamo begins again, or stops
        raise
    except Exception as error:
        if not (given.fallback and config.fallback):
            raise
        failure_reports.not_compiled(error)
        return module.forward


def _run_of(module: GraphModule, inputs: Sequence[Any], mode: str | None, options: Options) -> Any:
    """What runs ``module``, compiled."""
    progress.follow()
    recompiles.watch()
    gc_disabled.while_dynamo_traces()  # a reset forgets it
    recorder = _recorder(mode, options, len(inputs))
    attention.prepare(module)
    losses.prepare(module, options.chunked_loss)
    with attention.eagers_kernels(), _warm(options, recorder) as keep:
        return aot.compiled(module, inputs, _compilers(options, recorder, keep))


mlirfuse.reset = recompiles.forget  # type: ignore[attr-defined]  # called by torch._dynamo.reset
gc_disabled.while_dynamo_traces()


def _recorder(mode: str | None, options: Options, count: int) -> Recorder | None:
    """What records the graphs of one of Dynamo's with ``count`` inputs, where a mode or the options ask for it."""
    by_mode = mode in ("reduce-overhead", "max-autotune")
    if not torch.cuda.is_available() or not (by_mode if options.cuda_graphs is None else options.cuda_graphs):
        return None
    return Recorder(count, every_size=by_mode)


def _warm(options: Options, recorder: Recorder | None) -> contextlib.AbstractContextManager[bool]:
    """:func:`warm.start` where nobody waits for graphs to be compiled: those who observe that, or record them."""
    return contextlib.nullcontext(False) if observers or recorder is not None else warm.start(options)


def compilers(**options: Any) -> dict[str, Any]:
    """Our compilers, decompositions and partitioner by the names of ``aot_function``'s parameters:
    ``aot_function(f, **compilers())``. ``options``: those of :class:`Options`; ``cuda_graphs`` has no effect here."""
    found = _compilers(Options.of(options))
    if options.get("fallback", True) and config.fallback:
        found["partition_fn"] = functools.partial(partition_or_torchs, turned=options.get("channels_last"))
    return found


def _compilers(options: Options, recorder: Recorder | None = None, keep: bool = False) -> dict[str, Any]:
    """``keep``: what is compiled may go into AOTAutograd's cache."""

    def compiler(which: str) -> Callable[..., Any]:
        compiled: Callable[..., Any] = _keepable if keep else functools.partial(compile_graph, recorder=recorder)
        compiled = functools.partial(compiled, options=options, which=which)
        compiled = aot.untraced(compiled) if which == "backward" else compiled
        return warm.kept(compiled) if keep else compiled

    return {
        "fw_compiler": compiler("forward"),
        "bw_compiler": compiler("backward"),
        "inference_compiler": compiler("inference"),
        "decompositions": decompositions.Table(random=not options.eager_random),
        "partition_fn": functools.partial(partition, turned=options.channels_last),
        "keep_inference_input_mutations": True,
    }


def memory_efficient_fusion(fn: Any, **options: Any) -> Any:
    """functorch's function of this name, with our compilers: a function or a module compiled through AOTAutograd,
    without Dynamo, for the shapes of its first call. ``options``: those of :class:`Options`."""
    make = private.aot_module if isinstance(fn, torch.nn.Module) else private.aot_function
    return make(fn, **compilers(**options))


def compile_graph(module: GraphModule, inputs: Sequence[Any], *, options: Options, which: str,
                  recorder: Recorder | None = None) -> Boxed:  # fmt: skip
    """One of AOTAutograd's graphs as a function of its boxed convention."""
    equal_layers.put_back(module)
    seen = None if recorder is None else recorder.look_at(module, inputs, which, _visible(which))
    compiled = _compiled(module, inputs, options, which, recorder is not None)
    assert compiled.run is not None
    if recorder is None or seen is None or compiled.lowered is None or compiled.lowered.device.type != "cuda":
        return compiled.run
    return recorder.recorded(compiled.run, module, inputs, which, seen)


def _compiled(module: GraphModule, inputs: Sequence[Any], options: Options, which: str,
              recorded: bool = False) -> warm.Compiled:  # fmt: skip
    """``recorded``: as a CUDA graph, whose inputs are read again in each replay."""
    equal_layers.put_back(module)
    failed = failure_reports.Failures(module, which, options)
    try:
        donated = _donated(module) if which == "backward" else []
        if which == "inference":  # others are cut from a joint graph, which was looked at
            channels_last.decide(module, options.channels_last)
            pools.by_offsets(module.graph)
        lowered, host = lower_to_host(module, which, failed.kernel, options.eager_rounding, [] if recorded else donated)
        for observer in observers:  # which may watch the steps of the functions that are made next
            observer(which, lowered, host)
        run = where_transformed(boxed(lowered, host), lambda: module, which)
    except Exception as error:
        failed.report(f"the {which} graph", error)
        return warm.Compiled(op_by_op(module), None, which, options)
    traces.explained(which, lowered, host)
    failure_reports.calls_outside(lowered, which, options)
    return warm.Compiled(run, lowered, which, options, module)


def _keepable(*args: Any, **kwargs: Any) -> warm.Compiled:
    """:func:`_compiled` for AOTAutograd's cache. An entry's guards are those of integers alone: what was specialized to
    the value of a float belongs to this trace."""
    found = _compiled(*args, **kwargs)
    if private.specialized_floats():
        found.lowered = None  # is not kept
    return found


def _donated(module: GraphModule) -> list[int]:
    """The indices of the inputs of a backward that are donated. AOTAutograd's own list of them is emptied: with entries
    in it a second backward (``retain_graph=True``) is refused, and :func:`boxed` sees to that."""
    private.empty_donated_indices()
    inputs = module.graph.find_nodes(op="placeholder")
    return [k for k, node in enumerate(inputs) if node.meta.get(extract.DONATED)]


@gc_control.gc_disabled(aged=True)
def lower_to_host(module: GraphModule, which: str, failed: Failed | None = None, rounds: bool = False,
                  donated: Sequence[int] = ()) -> tuple[Lowered, HostProgram]:  # fmt: skip
    """The graph after all passes, and the program that runs it; ``failed`` is told of kernels that do not compile.
    ``rounds``, ``donated``: as in :func:`mlirfuse.frontend.torch.lower.lower`."""
    if which == "inference":
        random.share_seeds(module.graph)
    real_dtypes.correct(module)
    products.pad(module)
    lowered = lower(module, which, _visible(which), rounds, donated)
    target = target_of(lowered.device)
    traces.graph(which, "fusion", lowered.graph)
    if events.GraphLowered.observers:
        events.report(events.GraphLowered(which, lowered.graph))
    watched = events.Advanced.observers or events.GraphPassRan.observers
    after = _advance(which, lowered.graph) if watched else None
    pipelines.lower_to_segments(lowered.graph, target.properties, after, foreach=True)
    traces.graph(which, "segmented", lowered.graph)
    if events.GraphSegmented.observers:
        inputs = [node.meta.get("val") for node in module.graph.find_nodes(op="placeholder")]
        events.report(events.GraphSegmented(lowered.graph, sizes.hinted(lowered.symbols, inputs)))
    host = host_program(lowered, failed)
    untold = set(host.symbols) - set(lowered.symbols)
    if untold:  # Dynamo gives each symbol as an input; AOTAutograd alone does not
        raise UnsupportedError(f"no input of the graph tells the size {min(untold)}")
    events.report(events.Advanced(f"the {which} graph", len(host.launches)))
    return lowered, host


def _advance(which: str, graph: Graph) -> Callable[[Any, Any, float], None]:
    """Reports each pass that has run."""

    def after(step: Any, _: Any, seconds: float) -> None:
        events.report(events.GraphPassRan(graph, step))
        events.report(events.Advanced(f"the {which} graph after {step.name}"))

    return after


def _visible(which: str) -> int | None:
    """How many outputs of a forward graph are not saved for the backward: the first, tokens of effects before them."""
    metadata = private.forward_metadata()
    if which != "forward" or metadata is None:
        return None
    return len(metadata.tokens) + metadata.num_forward_returns
