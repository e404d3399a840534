"""Records graphs as CUDA graphs through torch's ``cudagraph_trees``: ``mode="reduce-overhead"``,
``options={"cuda_graphs": True}``."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.fx import GraphModule

from mlirfuse import _native
from mlirfuse.core import threads
from mlirfuse.frontend.torch import torch_private as private
from mlirfuse.frontend.torch.execution import live_saved_tensors
from mlirfuse.frontend.torch.execution.eager import transformed
from mlirfuse.frontend.torch.execution.execute import Boxed
from mlirfuse.frontend.torch.rewrites import opaque_gradients

log = logging.getLogger("mlirfuse")

_TYPES = {  # by DLPack's code and bits
    **{(0, n): getattr(torch, f"int{n}") for n in (8, 16, 32, 64)},
    **{(1, n): getattr(torch, f"uint{n}") for n in (8, 16, 32, 64)},
    **{(2, n): getattr(torch, f"float{n}") for n in (16, 32, 64)},
    (4, 16): torch.bfloat16,
    (5, 64): torch.complex64,
    (5, 128): torch.complex128,
    (6, 8): torch.bool,
}
_WAITING = {  # ops that read values on the host, which torch's check misses
    torch.ops.aten.fake_quantize_per_channel_affine_cachemask.default,
}
_lock = threads.lock()
_running = 0  # active calls that allocate results in torch's storages


def _empty(beside: torch.Tensor, dtype: tuple[int, int], shape: tuple[int, ...]) -> torch.Tensor:
    return torch.empty(shape, dtype=_TYPES[dtype], device=beside.device)


def in_own_storages(run: Boxed) -> Boxed:
    """``run`` with results in storages that torch allocated: ``cudagraph_trees`` frees a recorded graph's results, and
    cannot free DLPack storages. Only recording runs this; a replay does not call it."""

    def owned(args: list[Any]) -> list[Any]:
        global _running
        with _lock:
            _running += 1
            _native.make_results_by(_empty)
        try:
            return run(args)
        finally:
            with _lock:
                _running -= 1
                if not _running:
                    _native.make_results_by(None)

    owned._boxed_call = True  # type: ignore[attr-defined]
    return owned


def _own(results: Sequence[Any], visible: int | None) -> list[Any]:
    """``results`` with new tensor objects for the ``visible`` ones. ``cudagraph_trees`` returns the same objects in
    each replay: autograd state attached to them, and all saved tensors, would live until the next one."""
    own = [value.detach() if isinstance(value, torch.Tensor) else value for value in results[:visible]]
    return own if visible is None else [*own, *results[visible:]]


class GraphFacts(NamedTuple):
    """Facts about a graph. ``skip``: why it is not recorded; ``fixed``: indices of inputs at the same address in each
    call; ``mutated``: indices of inputs it writes; ``visible``: the number of outputs that are not saved, for a
    forward; ``saved_tensor``: the tracked saved tensor, if any."""

    skip: str | None
    fixed: Sequence[int]
    mutated: set[int]
    visible: int | None = None
    saved_tensor: live_saved_tensors.SavedTensor | None = None


def _fixed(module: GraphModule, inputs: Sequence[Any], which: str, count: int) -> Sequence[int]:
    """The indices of parameters, buffers and saved tensors: a replay uses them at their addresses, and torch records
    again if one has moved. ``count``: the number of Dynamo's inputs."""
    if which == "backward":
        return range(private.count_tangents(module))
    metadata = private.forward_metadata()
    if metadata is None:
        return range(private.num_fw_fixed_arguments(count, len(inputs)))
    tokens = len(metadata.tokens)  # effect tokens, inputs before the counted ones
    return [tokens + place for place in metadata.static_input_indices]


def _skip(module: GraphModule) -> str | None:
    """The reason where a graph has an op that synchronizes with the GPU, and torch's check misses it."""
    waiting = (node for node in module.graph.nodes if node.target in _WAITING or opaque_gradients.reads(node.target))
    return next((f"{node.target} reads values on the host" for node in waiting), None)


class Recorder:
    """Records the graphs of one Dynamo graph; the backward follows the forward's decision. ``count``: Dynamo's inputs.
    ``every_size``: record a graph with dynamic sizes once per size, instead of not at all."""

    def __init__(self, count: int, every_size: bool = True):
        self.count, self.every_size = count, every_size
        self.on = True
        self.manager: Any = None
        self.unrecorded: list[private.TensorWeakRef] = []  # tensors saved by forwards that ran unrecorded

    def examine(self, module: GraphModule, inputs: Sequence[Any], which: str, visible: int | None) -> GraphFacts:
        """Collects the facts about a graph, before lowering modifies it. ``visible``: the number of a forward's outputs
        that are not saved."""
        fixed = _fixed(module, inputs, which, self.count)
        skip = private.check_for_skip(module, len(inputs)) or _skip(module)  # mutated inputs are checked at each call
        if not self.every_size and any(isinstance(value, torch.SymInt) for value in inputs):
            skip = "its sizes change"
        saved_tensor = None if visible is None else live_saved_tensors.saved_tensor(module, fixed, visible)
        return GraphFacts(skip or None, fixed, private.find_input_mutations(module.graph), visible, saved_tensor)

    def recorded(self, run: Boxed, module: GraphModule, inputs: Sequence[Any], which: str, seen: GraphFacts) -> Boxed:
        """``run`` wrapped to record and replay; ``run`` itself, with a log line, for a graph that uses the CPU or has
        an op that CUDA graphs do not support."""
        backward, skip = which == "backward", seen.skip
        if skip or not self.on:
            if skip:
                log.warning("the %s graph is not recorded: %s", which, skip)
            if not backward:
                self.on = False
            if not (backward and self.on):
                return run
            return self._backward(None, run, private.get_device_index(module))
        device = private.get_device_index(module)
        owned = in_own_storages(run)
        found = private.cudagraphify_impl(
            owned,
            [0 if isinstance(value, torch.SymInt) else value for value in inputs],  # one graph per value of an int
            seen.fixed,
            device_index=device,
            is_backward=backward,
            is_inference=which == "inference",
            stack_traces=private.get_stack_traces(module),
            placeholders=private.get_placeholder_info(module.graph),
            mutated_input_idxs=seen.mutated,
        )
        found._boxed_call = True
        if backward:
            return self._backward(found, run, device)
        return self._forward(found, run, device, which, seen)

    def _manager(self, device: int) -> Any:
        """The ``cudagraph_trees`` manager of the first calling thread, with which recording and replay continue. None
        before anything is recorded, and after it was discarded."""
        if self.manager is None or self.manager.graph is None:
            self.manager = private.get_manager(device, create_if_none_exists=False)
        return self.manager

    def _forward(self, recorded: Boxed, run: Boxed, device: int, which: str, seen: GraphFacts) -> Boxed:
        """``recorded``, or ``run`` while other forwards' saved tensors must survive."""
        visible, saved_tensor = seen.visible, seen.saved_tensor

        def forward(args: list[Any]) -> list[Any]:
            manager = self._manager(device)
            if transformed(which):
                return run(args)
            held = manager is not None and live_saved_tensors.live_saved_tensors(manager).hold(manager)
            results = list(run(args)) if held else _own(recorded(args), visible)
            manager = self._manager(device)
            if saved_tensor is None or manager is None:
                return results
            saved = live_saved_tensors.followed(results, saved_tensor)
            if held:
                self.unrecorded = [*live_saved_tensors.alive(self.unrecorded), saved]
            else:
                live_saved_tensors.live_saved_tensors(manager).saved.append(saved)
            return results

        forward._boxed_call = True  # type: ignore[attr-defined]
        return forward

    def _backward(self, recorded: Boxed | None, run: Boxed, device: int) -> Boxed:
        """``recorded`` if it is one; ``run`` for a backward whose forward ran unrecorded, or that may run again
        (``retain_graph=True``): a replay may overwrite its saved tensors."""

        def backward(args: list[Any]) -> list[Any]:
            again, manager = private.keeps_graph(), self._manager(device)
            unrecorded, others = live_saved_tensors.split(self.unrecorded, args) if self.unrecorded else ([], [])
            if unrecorded:
                self.unrecorded = [*others, *unrecorded] if again else others
                return run(args)
            chosen = run if recorded is None or again or transformed("backward") else recorded
            if chosen is recorded and manager is not None and manager.can_start_new_generation():
                chosen = run  # recorded, it would start a generation and reuse the memory of its own inputs
            if manager is not None:
                live_saved_tensors.live_saved_tensors(manager).read(manager, args, again, chosen is recorded)
            return chosen(args)

        backward._boxed_call = True  # type: ignore[attr-defined]
        return backward
