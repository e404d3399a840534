"""Graphs on a GPU recorded as CUDA graphs by torch's own ``cudagraph_trees``: ``mode="reduce-overhead"``,
``options={"cuda_graphs": True}``."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch._dynamo.backends import cudagraphs
from torch._guards import TracingContext
from torch._inductor.cudagraph_utils import get_placeholder_info
from torch._inductor.utils import count_tangents, num_fw_fixed_arguments
from torch.fx import GraphModule, Node
from torch.multiprocessing.reductions import StorageWeakRef

from mlirfuse import _native
from mlirfuse.core import threads
from mlirfuse.frontend.torch.execute import Boxed

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
_WAITING = {  # ops that look at values on the host, of which torch does not tell
    torch.ops.aten.fake_quantize_per_channel_affine_cachemask.default,
}
_lock = threads.lock()
_running = 0  # calls that make results in torch's own storages


def _empty(beside: torch.Tensor, dtype: tuple[int, int], shape: tuple[int, ...]) -> torch.Tensor:
    return torch.empty(shape, dtype=_TYPES[dtype], device=beside.device)


def in_own_storages(run: Boxed) -> Boxed:
    """``run`` with results in storages that torch itself allocated: ``cudagraph_trees`` frees those of a recorded
    graph, and cannot free what came through DLPack. Only what is recorded runs so; a replay does not call it."""

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


class Witness(NamedTuple):
    """The ``place`` of an output that is saved for the backward and lies in memory of the recorded graph's own:
    ``shared`` with a result, or ``given``, an input that each replay copies."""

    place: int
    shared: bool
    given: bool


class Seen(NamedTuple):
    """Of a graph: ``skip``, why it is not recorded; the places of its inputs that are ``fixed``, in the same memory in
    each call, and of those that it writes, ``mutated``; its ``witness``, if it saves anything."""

    skip: str | None
    fixed: Sequence[int]
    mutated: set[int]
    witness: Witness | None


def _storages(values: Iterable[Any]) -> set[StorageWeakRef]:
    tensors = (value for value in values if isinstance(value, torch.Tensor) and torch._C._has_storage(value))
    return {StorageWeakRef(value.untyped_storage()) for value in tensors}


def _alive(refs: set[StorageWeakRef]) -> set[StorageWeakRef]:
    return {ref for ref in refs if not ref.expired()}


def _witness(module: GraphModule, fixed: Sequence[int], visible: int) -> Witness | None:
    """Which output is shared with what the tensors tell that the graph was traced with. ``visible``: how many outputs
    are results; those behind them are saved."""
    nodes = list(module.graph.nodes)
    inputs, outputs = [node for node in nodes if node.op == "placeholder"], nodes[-1].args[0]

    def storages(found: Iterable[Any]) -> set[StorageWeakRef]:
        return _storages(node.meta.get("val") for node in found if isinstance(node, Node))

    still, given = storages(inputs[place] for place in fixed), storages(inputs)
    results = storages(outputs[:visible])
    saved = [
        Witness(place, storage <= results, storage <= given)
        for place, storage in enumerate(storages([output]) for output in outputs)
        if place >= visible and storage - still
    ]
    return min(saved, key=lambda each: each[1:], default=None)


class _Pending:
    """What recorded forwards saved and their backwards may still read, of one of ``cudagraph_trees``' managers: one
    tensor of each forward, by its storage, which ends when the backward has freed it. ``shared``: storages that results
    have, too. ``kept``: of those whose backward ran and may run again (``retain_graph=True``)."""

    def __init__(self) -> None:
        self.saved: set[StorageWeakRef] = set()
        self.shared: set[StorageWeakRef] = set()
        self.kept: set[StorageWeakRef] = set()

    def hold(self, manager: Any) -> bool:
        """Whether the next graph has to run as it is, since a replay would begin a new generation of memory, and write
        over what is still to be read. The user's own mark of a step overrules it."""
        if manager.user_invoked_mark_step():
            return False
        kept = bool(self.kept)
        self.saved, self.shared, self.kept = _alive(self.saved), _alive(self.shared), _alive(self.kept)
        if kept and not self.kept and not self.saved:  # that backward did not run again
            manager.set_to_running_backward()
        return bool(self.kept or (self.saved and not manager.running_forwards_with_pending_backwards))

    def keep(self, manager: Any, args: Sequence[Any]) -> None:
        """A backward that reads ``args`` runs, and may run again."""
        kept = (self.saved | self.shared) & _storages(args)
        self.kept |= kept
        if not kept:
            manager.set_to_running_backward()


_pending: weakref.WeakKeyDictionary[Any, _Pending] = weakref.WeakKeyDictionary()


def _of(manager: Any) -> _Pending:
    return _pending.setdefault(manager, _Pending())


def _fixed(module: GraphModule, inputs: Sequence[Any], which: str, count: int) -> Sequence[int]:
    """The places of parameters, buffers and tensors that were saved for the backward: a replay reads and writes them
    where they are, and torch records again where one has moved. ``count``: of Dynamo's inputs."""
    if which == "backward":
        return range(count_tangents(module))
    context = TracingContext.try_get()
    if context is None or context.fw_metadata is None:
        return range(num_fw_fixed_arguments(count, len(inputs)))
    return context.fw_metadata.static_input_indices


def _skip(module: GraphModule) -> str | None:
    """Why a graph has an op that waits for the GPU, where torch does not know of it."""
    waiting = (node for node in module.graph.nodes if node.target in _WAITING)
    return next((f"{node.target} reads values on the host" for node in waiting), None)


class Recorder:
    """For the graphs of one of Dynamo's: what the forward does the backward follows. ``count``: of Dynamo's inputs.
    ``every_size``: a graph whose sizes change is recorded for each of them, else it runs as it is."""

    def __init__(self, count: int, every_size: bool = True):
        self.count, self.every_size = count, every_size
        self.on = True
        self.plain: set[StorageWeakRef] = set()  # what forwards saved that ran as they are

    def look_at(self, module: GraphModule, inputs: Sequence[Any], which: str, visible: int | None) -> Seen:
        """What has to be known of a graph before it is lowered, which changes it. ``visible``: how many outputs of a
        forward are not saved."""
        fixed = _fixed(module, inputs, which, self.count)
        skip = cudagraphs.check_for_skip(module, len(inputs)) or _skip(module)  # inputs that are written: at each call
        if not self.every_size and any(isinstance(value, torch.SymInt) for value in inputs):
            skip = "its sizes change"
        witness = None if visible is None else _witness(module, fixed, visible)
        return Seen(skip or None, fixed, cudagraphs.find_input_mutations(module.graph), witness)

    def recorded(self, run: Boxed, module: GraphModule, inputs: Sequence[Any], which: str, seen: Seen) -> Boxed:
        """``run`` as a function that records and replays; itself, with a line in the log, for a graph that touches the
        CPU or has an op that no CUDA graph holds."""
        from torch._inductor.cudagraph_trees import cudagraphify_impl  # only with a GPU

        backward, skip = which == "backward", seen.skip
        if skip or not self.on:
            if skip:
                log.warning("the %s graph is not recorded: %s", which, skip)
            if not backward:
                self.on = False
            return self._running_backward(run, module) if backward and self.on else run
        device = cudagraphs.get_device_index(module)
        owned = in_own_storages(run)
        found = cudagraphify_impl(
            owned,
            [0 if isinstance(value, torch.SymInt) else value for value in inputs],  # one graph for each value of an int
            seen.fixed,
            device_index=device,
            is_backward=backward,
            is_inference=which == "inference",
            stack_traces=cudagraphs.get_stack_traces(module),
            placeholders=get_placeholder_info(module.graph),
            mutated_input_idxs=seen.mutated,
        )
        found._boxed_call = True
        if backward:
            return self._backward(found, run, device)
        return self._forward(found, run, owned, device, seen.witness)

    def _forward(self, recorded: Boxed, run: Boxed, model: Boxed, device: int, witness: Witness | None) -> Boxed:
        """``recorded``, which records and replays ``model``; or ``run``, while what is saved has to be held.

        Of what a forward saves one tensor is made anew in each replay. ``cudagraph_trees`` keeps tensors from replay
        to replay, and takes those that only autograd holds, as it does what is saved, for free: what is recorded
        after that replay would be written over them. The new one tells it, and us, that they are not."""
        from torch._inductor.cudagraph_trees import CUDAGraphNode, get_manager

        told: weakref.WeakSet[CUDAGraphNode] = weakref.WeakSet()

        def forward(args: list[Any]) -> list[Any]:
            manager = get_manager(device, create_if_none_exists=False)
            held = manager is not None and _of(manager).hold(manager)
            results: list[Any] = run(args) if held else recorded(args)
            if witness is None:
                return results
            saved = _storages([results[witness.place]])
            if held:
                self.plain = _alive(self.plain) | saved
                return results
            manager = manager or get_manager(device, create_if_none_exists=False)
            node: Any = None if manager is None else manager.current_node
            replayed = isinstance(node, CUDAGraphNode) and node.wrapped_function.model is model
            if replayed and node not in told:
                told.add(node)
                if not node.cached_tensor_outputs:  # just recorded
                    node.unaliased_in_all_paths[witness.place] = False
            if node is not None and (replayed or not witness.given):
                pending = _of(manager)
                (pending.shared if witness.shared else pending.saved).update(saved)
            return results

        forward._boxed_call = True  # type: ignore[attr-defined]
        return forward

    def _backward(self, recorded: Boxed, run: Boxed, device: int) -> Boxed:
        """``recorded``; or ``run``, for a backward whose forward ran as it is, or that will run again
        (``retain_graph=True``): a replay may write over what is saved for it."""
        from torch._inductor.cudagraph_trees import get_manager

        def backward(args: list[Any]) -> list[Any]:
            if self.plain and self.plain & _storages(args):
                return run(args)
            manager = get_manager(device, create_if_none_exists=False)
            kept = torch._C._autograd._get_current_graph_task_keep_graph()
            if manager is not None and kept:
                _of(manager).keep(manager, args)
            elif manager is not None:  # no new generation before this: other forwards may have run meanwhile
                manager.running_forwards_with_pending_backwards = True
            return run(args) if kept else recorded(args)

        backward._boxed_call = True  # type: ignore[attr-defined]
        return backward

    @staticmethod
    def _running_backward(run: Boxed, module: GraphModule) -> Boxed:
        """A backward that runs as it is has to end the forward's generation of memory."""
        from torch._inductor.cudagraph_trees import get_manager

        device = cudagraphs.get_device_index(module)

        def told(args: list[Any]) -> list[Any]:
            manager = get_manager(device, create_if_none_exists=False)
            if manager is not None:
                manager.set_to_running_backward()
            return run(args)

        told._boxed_call = True  # type: ignore[attr-defined]
        return told
