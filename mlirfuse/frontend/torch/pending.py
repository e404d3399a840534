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
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.weak import TensorWeakRef

log = logging.getLogger("mlirfuse")


class Witness(NamedTuple):
    """The ``place`` of an output that is saved, in other memory in each call that is not replayed. ``exposed``: users
    have it too, as an input or a result."""

    place: int
    exposed: bool


def witness(module: GraphModule, fixed: Sequence[int], visible: int) -> Witness | None:
    """What is followed of a forward graph, by the tensors that it was traced with. ``fixed``: the places of inputs in
    the same memory in each call. ``visible``: how many outputs are results; those behind them are saved."""
    nodes = list(module.graph.nodes)
    inputs, outputs = [node for node in nodes if node.op == "placeholder"], nodes[-1].args[0]
    still, exposed = _storages(inputs[place] for place in fixed), _storages([*inputs, *outputs[:visible]])
    saved = [
        Witness(place, storage <= exposed)
        for place, storage in enumerate(_storages([output]) for output in outputs)
        if place >= visible and storage - still
    ]
    return min(saved, key=lambda each: each.exposed, default=None)


def _storages(nodes: Iterable[Any]) -> set[StorageWeakRef]:
    values = [node.meta.get("val") for node in nodes if isinstance(node, Node)]
    tensors = [value for value in values if isinstance(value, torch.Tensor) and torch._C._has_storage(value)]
    return {StorageWeakRef(value.untyped_storage()) for value in tensors}


def followed(results: list[Any], which: Witness, replayed: bool) -> TensorWeakRef:
    """Puts an object of its own in the witness's place. What users have and may write into is copied, unless a replay
    has done so. ``cudagraph_trees``, which keeps tensors from replay to replay and takes those that only autograd holds
    for free, sees by it that what was saved is not."""
    saved = results[which.place]
    copied = saved.clone() if which.exposed and not replayed else saved
    if copied is saved or copied.stride() != saved.stride():
        copied = torch.empty(0, dtype=saved.dtype, device=saved.device)
        copied.set_(saved.untyped_storage(), saved.storage_offset(), saved.size(), saved.stride())
    results[which.place] = copied
    return TensorWeakRef(copied)


def alive(refs: Iterable[TensorWeakRef]) -> list[TensorWeakRef]:
    return [ref for ref in refs if ref() is not None]


def among(refs: Iterable[TensorWeakRef], values: Sequence[Any]) -> list[TensorWeakRef]:
    """Those whose tensors are among ``values``."""
    return [ref for ref in refs if any(ref() is value for value in values)]


class Pending:
    """Of one of ``cudagraph_trees``' managers: what was ``saved``, and of that what was ``kept`` by a backward that ran
    and may run again (``retain_graph=True``)."""

    def __init__(self) -> None:
        self.saved: list[TensorWeakRef] = []
        self.kept: list[TensorWeakRef] = []
        self.told = False

    def hold(self, manager: Any) -> bool:
        """Whether the next graph has to run as it is, since it would begin a new generation. The user's own mark of a
        step overrules it."""
        kept = bool(self.kept)
        self.saved, self.kept = alive(self.saved), alive(self.kept)
        if kept and not self.saved:  # that backward did not run again
            manager.set_to_running_backward()
        if manager.user_invoked_mark_step() or not manager.in_new_torch_compile_invocation():
            return False
        held = bool(self.kept or (self.saved and not manager.running_forwards_with_pending_backwards))
        if held and not self.told:
            self.told = True
            log.warning(
                "recorded graphs run as they are while the backward of a forward before them may still come: "
                "drop its results, or call torch.compiler.cudagraph_mark_step_begin() where a step begins"
            )
        return held

    def keep(self, manager: Any, read: Sequence[Any]) -> None:
        """A backward that reads these runs, and may run again."""
        kept = among(self.saved, read)
        self.kept += kept
        if not kept:
            manager.set_to_running_backward()


_of_managers: weakref.WeakKeyDictionary[Any, Pending] = weakref.WeakKeyDictionary()


def pending(manager: Any) -> Pending:
    return _of_managers.setdefault(manager, Pending())
