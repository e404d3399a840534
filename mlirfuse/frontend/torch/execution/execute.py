"""Execution of a lowered graph: its target, and a boxed function around the host program."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from mlirfuse import _native
from mlirfuse.core.errors import IndexOutOfRangeError, UnsupportedError
from mlirfuse.frontend.torch.execution import shims
from mlirfuse.frontend.torch.lower import Lowered
from mlirfuse.frontend.torch.torch_private import (
    DisableAutocast,
    disable_current_modes,
    keeps_graph,
    saved_tensors_hooks,
    storage_users,
)
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.effects import memory_of
from mlirfuse.runtime.host_program import HostProgram
from mlirfuse.runtime.launches import Failed
from mlirfuse.schedule import targets
from mlirfuse.schedule.targets import Target


def target_of(device: torch.device) -> Target:
    """The compilation target of tensors on ``device``; on the CPU for as many threads as torch's ops have. Raises
    :class:`UnsupportedError`."""
    if device.type not in ("cpu", "cuda"):
        raise UnsupportedError(f"there are no kernels for tensors on {device}")
    if device.type == "cuda":
        return targets.gpu(device.index or 0)
    threads = torch.get_num_threads()
    return targets.cpu(threads=threads if threads < _native.num_threads() else None)


def host_program(lowered: Lowered, failed: Failed | None = None) -> HostProgram:
    """The host program of ``lowered`` after all passes; ``failed`` collects kernels that do not compile."""
    with disable_current_modes():  # including AOTAutograd's fake tensor mode
        like = torch.empty(0, device=lowered.device)
    return HostProgram(lowered.graph, target_of(lowered.device), failed, like, shims.of(lowered.device.type))


Boxed = Callable[[list[Any]], list[Any]]


def boxed(lowered: Lowered, host: HostProgram) -> Boxed:
    """A boxed function: takes the list of inputs, empties it, and returns the list of outputs. Donates the donated
    inputs, unless autograd retains its graph.

    AOTAutograd reads ``_boxed_call`` off the function itself.
    """
    constants = lowered.constants
    sizes = _sizes(lowered)
    finish = _finish(lowered)
    if host.symbols or _returned_symbols(lowered):

        def run(args: list[Any]) -> list[Any]:
            env = sizes(args)
            args += constants
            try:
                results = host.function(env)(args)
            except IndexError as error:
                raise _as_torch_error(error) from None
            return results if finish is None else finish(results, env)
    else:
        only = host.function({})  # now, so that its kernels compile in the background

        def run(args: list[Any]) -> list[Any]:
            args += constants
            try:
                results = only(args)
            except IndexError as error:
                raise _as_torch_error(error) from None
            return results if finish is None else finish(results, {})

    limited: Any = run if lowered.device.type == "cuda" else _with_torchs_threads(run)
    limited._boxed_call = True
    if lowered.saved:
        return _noting_hooks(limited)
    limited = _copying_donated(limited, [lowered.tensors[k] for k in sorted(lowered.graph.donated)])
    return _without_autocast(limited, lowered.device.type) if lowered.graph.name == "backward" else limited


def _without_autocast(run: Boxed, device: str) -> Boxed:
    """``run``, of a backward, with products of the types of its trace, also where autocast is on only by then: Dynamo
    guards that state for a forward."""
    active = torch.is_autocast_enabled

    def run_backward(args: list[Any]) -> list[Any]:
        if not active(device):
            return run(args)
        with DisableAutocast():
            return run(args)

    run_backward._boxed_call = True  # type: ignore[attr-defined]
    return run_backward


def _with_torchs_threads(run: Boxed) -> Boxed:
    """``run`` with at most as many threads in its kernels as torch's ops have at the time of the call
    (``torch.set_num_threads``, ``OMP_NUM_THREADS``, one in a data loader's workers)."""
    limit, count = _native.limit_threads, torch.get_num_threads

    def run_limited(args: list[Any]) -> list[Any]:
        before = limit(count())
        try:
            return run(args)
        finally:
            limit(before)

    return run_limited


def _as_torch_error(error: IndexError) -> IndexError:
    """``error`` as the type that torch raises for a bad index, for handlers that expect it; torch's own errors
    unchanged."""
    return IndexOutOfRangeError(*error.args) if type(error) is IndexError else error


_hooks_seen = False  # whether saved tensors were ever given to hooks, which may have kept views of them


def _noting_hooks(run: Boxed) -> Boxed:
    """``run``, of a forward: sets :data:`_hooks_seen` where ``saved_tensors_hooks`` will be given what it saves."""
    hooks = saved_tensors_hooks

    def run_forward(args: list[Any]) -> list[Any]:
        global _hooks_seen
        if hooks(True) is not None:
            _hooks_seen = True
        return run(args)

    run_forward._boxed_call = True  # type: ignore[attr-defined]
    return run_forward


def _copying_donated(run: Boxed, donated: list[int]) -> Boxed:
    """``run`` with copies of the donated inputs that somebody else may read: a second backward, or who holds a saved
    tensor that ``saved_tensors_hooks`` or a node of autograd's graph gave out."""
    if not donated:
        return run
    keeps, references = keeps_graph, sys.getrefcount

    def run_or_copy(args: list[Any]) -> list[Any]:
        kept = keeps()
        for k in donated:
            if kept or references(args[k]) > _ALONE or (_hooks_seen and _holders(args[k]) != _ONE):
                args[k] = args[k].clone()
        return run(args)

    run_or_copy._boxed_call = True  # type: ignore[attr-defined]
    return run_or_copy


_ALONE = (lambda args: sys.getrefcount(args[0]))([object()])  # references to what only a list holds


def _holders(tensor: torch.Tensor) -> tuple[int, int]:
    """The references to a tensor's storage: Python's, and those of tensors, which may be views."""
    storage = tensor.untyped_storage()
    return sys.getrefcount(storage), storage_users(storage._cdata)


_ONE = _holders(torch.empty(0, device="cpu"))  # of memory that one tensor alone has


def _sizes(lowered: Lowered) -> Callable[[list[Any]], dict[str, int]]:
    """A function that reads the symbols' values from the inputs."""
    read = [f"{name!r}: {source}" for name, source in lowered.symbols.items()]
    return sz.function(f"{{{', '.join(read)}}}", (), parameters=("args",))


def _returned_symbols(lowered: Lowered) -> set[str]:
    """The symbols of sizes that are outputs."""
    return sz.symbols_of([what for kind, what in lowered.outputs if kind == "size"])


def _views(lowered: Lowered) -> set[int]:
    """The places of the outputs that may be views of memory made here, and that the caller sees. Without gradients,
    only those of whose memory no other output is: what shares memory has one base, by which AOTAutograd finds it. With
    gradients it makes such views itself, of an output."""
    returns, outputs = lowered.graph.returns, enumerate(lowered.outputs)
    differentiable = lowered.graph.name == "forward"
    roots = {place: memory_of(returns[what]) for place, (kind, what) in outputs if kind == "result"}
    count = Counter(roots.values())
    found = set()
    for place, root in roots.items():
        may_be = root.op is not None and (returns[lowered.outputs[place][1]] is not root or root.op.row.calls)
        if may_be and place < lowered.visible and (differentiable or count[root] == 1):
            found.add(place)
    return found


def _own(x: Any) -> Any:
    """``x``, a tensor or a number, not as a view: autograd refuses writes into views that were made where it records
    nothing. Where eager gives a view, AOTAutograd makes it."""
    return x.detach() if isinstance(x, torch.Tensor) and x._is_view() else x


def _part(x: torch.Tensor) -> torch.Tensor:
    """``x`` as a view, into which autograd refuses writes."""
    return x if x._is_view() else x.view_as(x)


def _finish(lowered: Lowered) -> Callable[[list[Any], dict[str, int]], list[Any]] | None:
    """A function from the graph's results and sizes to the outputs; None where they are the results."""
    outputs, views, parts = lowered.outputs, _views(lowered), lowered.parts
    if not views and not parts and outputs == [("result", k) for k in range(len(lowered.graph.returns))]:
        return None
    used = _returned_symbols(lowered)
    literals = [what for kind, what in outputs if kind == "literal"]
    serialized, at = [], 0
    for place, (kind, what) in enumerate(outputs):
        if place in parts:
            serialized.append(f"part(results[{what}])")
        elif place in views:
            serialized.append(f"own(results[{what}])")
        elif kind == "literal":
            serialized.append(f"literals[{at}]")
            at += 1
        else:
            serialized.append(f"results[{what}]" if kind == "result" else str(what))
    return sz.function(
        f"[{', '.join(serialized)}]", used, parameters=("results", "env"), literals=literals, own=_own, part=_part
    )
