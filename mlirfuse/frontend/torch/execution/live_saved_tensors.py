"""Tracks the tensors that recorded forwards saved and whose backwards have not run: a replay must not overwrite them.

Recorded graphs share memory, which torch's ``cudagraph_trees`` reuses from the start of each *generation*: the first
forward after a backward. So another model's step between a forward and its backward, or a backward that runs again,
would find saved tensors overwritten. One saved tensor of each forward is therefore a separate object that only autograd
holds: while it is alive, that backward is still to come.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch.fx import GraphModule, Node

from mlirfuse.frontend.torch.torch_private import StorageWeakRef, TensorWeakRef, current_graph_task_id, has_storage

log = logging.getLogger("mlirfuse")


class SavedTensor(NamedTuple):
    """A saved tensor with new memory in each call: its index among all outputs, and its index among the results that
    the user gets, if it is one."""

    output_index: int
    result: int | None


def saved_tensor(module: GraphModule, fixed: Sequence[int], visible: int) -> SavedTensor | None:
    """The tensor to track for a forward graph: one that nothing else holds, if there is one, judged by the traced fake
    tensors. ``fixed``: indices of inputs at the same address in each call. ``visible``: the number of outputs that are
    results; saved ones follow."""
    nodes = list(module.graph.nodes)
    inputs, outputs = [node for node in nodes if node.op == "placeholder"], nodes[-1].args[0]
    still, exposed = _storages(inputs[k] for k in fixed), _storages([*inputs, *outputs[:visible]])
    results = {_created_by(node): k for k, node in enumerate(outputs[:visible])}
    saved = [
        (storage <= exposed, k)
        for k, storage in enumerate(_storages([output]) for output in outputs)
        if k >= visible and storage - still
    ]
    output_index = min(saved, default=(False, None))[1]
    return None if output_index is None else SavedTensor(output_index, results.get(_created_by(outputs[output_index])))


def _created_by(node: Any) -> Any:
    while isinstance(node, Node) and node.target is torch.ops.aten.detach.default:
        node = node.args[0]
    return node


def _storages(nodes: Iterable[Any]) -> set[StorageWeakRef]:
    values = [node.meta.get("val") for node in nodes if isinstance(node, Node)]
    tensors = [value for value in values if isinstance(value, torch.Tensor) and has_storage(value)]
    return {StorageWeakRef(value.untyped_storage()) for value in tensors}


def followed(results: list[Any], which: SavedTensor) -> TensorWeakRef:
    """Replaces the tracked tensor by a separate object with the version that users see. ``cudagraph_trees``, which
    keeps tensors between replays and treats those that only autograd holds as free, thereby knows that it is not."""
    saved = results[which.output_index if which.result is None else which.result].detach()
    results[which.output_index] = saved
    return TensorWeakRef(saved)


def alive(refs: Iterable[TensorWeakRef]) -> list[TensorWeakRef]:
    return [ref for ref in refs if ref() is not None]


def split(refs: Iterable[TensorWeakRef], values: Iterable[Any]) -> tuple[list[TensorWeakRef], list[TensorWeakRef]]:
    """The references whose tensors are among ``values``, and the other live ones."""
    places, living = set(map(id, values)), alive(refs)
    return [ref for ref in living if id(ref()) in places], [ref for ref in living if id(ref()) not in places]


class LiveSavedTensors:
    """The state of one ``cudagraph_trees`` manager: tensors ``saved`` for pending backwards, and those ``kept`` by a
    backward that may run again (``retain_graph=True``)."""

    def __init__(self) -> None:
        self.saved: list[TensorWeakRef] = []
        self.kept: list[TensorWeakRef] = []
        self.reported = False

    def hold(self, manager: Any) -> bool:
        """Whether the next graph must run unrecorded, since recording would start a new generation: while a backward is
        pending, or inside one that reads the previous generation's memory. The user's ``cudagraph_mark_step_begin()``
        overrides the former."""
        kept = bool(self.kept)
        self.saved, self.kept = alive(self.saved), alive(self.kept)
        if kept and not self.saved:  # no backward ran again
            manager.set_to_running_backward()
        if current_graph_task_id() != -1:
            return bool(manager.can_start_new_generation())
        if manager.user_invoked_mark_step() or not manager.in_new_torch_compile_invocation():
            return False
        held = bool(self.kept or (self.saved and not manager.running_forwards_with_pending_backwards))
        if held and not self.reported:
            self.reported = True
            log.warning(
                "CUDA graphs are not replayed while an earlier forward's backward may still run: "
                "drop its results, or call torch.compiler.cudagraph_mark_step_begin() at the start of a step"
            )
        return held

    def read(self, manager: Any, args: Sequence[Any], again: bool, recorded: bool) -> None:
        """Called when a backward that reads ``args`` starts; ``again``: it may run again. One that is not ``recorded``
        starts a new generation."""
        read, others = split(self.saved, args)
        if again and read:
            self.kept += read
            return
        self.saved, self.kept = others, split(self.kept, args)[1]
        if not recorded:
            manager.set_to_running_backward()


_of_managers: weakref.WeakKeyDictionary[Any, LiveSavedTensors] = weakref.WeakKeyDictionary()


def live_saved_tensors(manager: Any) -> LiveSavedTensors:
    return _of_managers.get(manager) or _of_managers.setdefault(manager, LiveSavedTensors())
