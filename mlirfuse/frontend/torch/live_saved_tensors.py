"""What recorded forwards saved and their backwards are still to read: no replay must write over it.

Recorded graphs share memory, which torch's ``cudagraph_trees`` gives anew when a *generation* begins: with the first
forward after a backward. Another model's steps between a forward and its backward, or a backward that runs again, so
find what was saved written over. One tensor of what each forward saves is therefore made an object of its own, which
only autograd holds: while it lives, that backward is still to come.
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
    """The ``place`` of an output that is saved for the backward, in other memory in each call; ``result``: that of the
    result that it is, too."""

    place: int
    result: int | None


def saved_tensor(module: GraphModule, fixed: Sequence[int], visible: int) -> SavedTensor | None:
    """What is followed of a forward graph: what only it has, if there is such a tensor, by those that the graph was
    traced with. ``fixed``: the places of inputs in the same memory in each call. ``visible``: how many outputs are
    results; those behind them are saved."""
    nodes = list(module.graph.nodes)
    inputs, outputs = [node for node in nodes if node.op == "placeholder"], nodes[-1].args[0]
    still, exposed = _storages(inputs[place] for place in fixed), _storages([*inputs, *outputs[:visible]])
    results = {_created_by(node): place for place, node in enumerate(outputs[:visible])}
    saved = [
        (storage <= exposed, place)
        for place, storage in enumerate(_storages([output]) for output in outputs)
        if place >= visible and storage - still
    ]
    place = min(saved, default=(False, None))[1]
    return None if place is None else SavedTensor(place, results.get(_created_by(outputs[place])))


def _created_by(node: Any) -> Any:
    while isinstance(node, Node) and node.target is torch.ops.aten.detach.default:
        node = node.args[0]
    return node


def _storages(nodes: Iterable[Any]) -> set[StorageWeakRef]:
    values = [node.meta.get("val") for node in nodes if isinstance(node, Node)]
    tensors = [value for value in values if isinstance(value, torch.Tensor) and has_storage(value)]
    return {StorageWeakRef(value.untyped_storage()) for value in tensors}


def followed(results: list[Any], which: SavedTensor) -> TensorWeakRef:
    """Puts an object of its own in the witness's place, whose version is that of what users have. ``cudagraph_trees``,
    which keeps tensors from replay to replay and takes those that only autograd holds for free, sees by it that what
    was saved is not."""
    saved = results[which.place if which.result is None else which.result].detach()
    results[which.place] = saved
    return TensorWeakRef(saved)


def alive(refs: Iterable[TensorWeakRef]) -> list[TensorWeakRef]:
    return [ref for ref in refs if ref() is not None]


def split(refs: Iterable[TensorWeakRef], values: Iterable[Any]) -> tuple[list[TensorWeakRef], list[TensorWeakRef]]:
    """Those whose tensors are among ``values``, and the others that live."""
    places, living = set(map(id, values)), alive(refs)
    return [ref for ref in living if id(ref()) in places], [ref for ref in living if id(ref()) not in places]


class LiveSavedTensors:
    """Of one of ``cudagraph_trees``' managers: what was ``saved``, and of that what was ``kept`` by a backward that ran
    and may run again (``retain_graph=True``)."""

    def __init__(self) -> None:
        self.saved: list[TensorWeakRef] = []
        self.kept: list[TensorWeakRef] = []
        self.reported = False

    def hold(self, manager: Any) -> bool:
        """Whether the next graph has to run as it is, since it would begin a new generation: while a backward is to
        come, or within one, which reads what lies in the one before. The user's own mark of a step overrules the
        first."""
        kept = bool(self.kept)
        self.saved, self.kept = alive(self.saved), alive(self.kept)
        if kept and not self.saved:  # that backward did not run again
            manager.set_to_running_backward()
        if current_graph_task_id() != -1:
            return bool(manager.can_start_new_generation())
        if manager.user_invoked_mark_step() or not manager.in_new_torch_compile_invocation():
            return False
        held = bool(self.kept or (self.saved and not manager.running_forwards_with_pending_backwards))
        if held and not self.reported:
            self.reported = True
            log.warning(
                "recorded graphs run as they are while the backward of a forward before them may still come: "
                "drop its results, or call torch.compiler.cudagraph_mark_step_begin() where a step begins"
            )
        return held

    def read(self, manager: Any, args: Sequence[Any], again: bool, recorded: bool) -> None:
        """A backward begins that reads ``args`` and may run ``again``. Behind one that is not ``recorded`` a generation
        begins."""
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
