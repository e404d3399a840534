"""Functions that host programs call besides kernels: extern ops and user functions, views, guards, copies."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

import numpy as np

from mlirfuse import _native
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.assumptions import Described, failed_assumption, guard_symbols
from mlirfuse.ir.effects import writes_in_place
from mlirfuse.ir.graph import Op, Value
from mlirfuse.ir.ops import sizes_in
from mlirfuse.lowering import host_steps as st
from mlirfuse.runtime import arrays, events, extern_ops

like = extern_ops.like


def sizes_of(sequence: st.Sequence) -> Iterable[sz.Expr]:
    """Return the sizes that steps use besides the shapes of values."""
    for step in sequence.walk():
        if isinstance(step, st.Kernels):
            yield from map(sz.symbol, step.region.symbols)
        elif isinstance(step, (st.Call, st.Guard)):
            names = symbols_of(step.op) if isinstance(step, st.Call) else guard_symbols(step.op)
            yield from map(sz.symbol, names)


def symbols_of(op: Op) -> set[str]:
    """Return the symbols in the attributes of ``op``, except the sizes of a call's results, which are not passed to
    it."""
    return sz.symbols_of(op.attrs["sizes"] if op.row.calls else sizes_in(op.row.attr_types, op.attrs))


def needs_like(op: Op, given: Collection[Value] = ()) -> bool:
    """Whether the function of ``op`` (:func:`function`) takes, before the operands, an array that determines where
    results are allocated. ``given``: arguments of the program that are not numbers."""
    if op.row.calls:
        return not all(v in given or _is_array(v) for v in op.operands)
    return not op.row.view and op.row.kind != "update"


def _is_array(value: Value) -> bool:
    """Whether a value is certainly not a number: arguments without dimensions and constants may be."""
    return bool(value.shape) or (value.op is not None and value.op.row.kind != "create")


def returns_single(op: Op, given: Collection[Value] = ()) -> bool:
    """Whether the function of ``op`` (:func:`function`) returns its only result itself, without a list."""
    return op.row.calls and not needs_like(op, given) and hasattr(op.attrs["function"], "single")


def function(op: Op, env: dict[str, int], given: Collection[Value] = ()) -> Callable[..., list]:
    """Return a function that computes ``op`` for these sizes: of its operands; it returns the list of its results,
    or its result (:func:`returns_single`). ``given``: as for :func:`needs_like`."""
    if op.row.calls and not needs_like(op, given) and op.attrs["function"] is not None:
        called = op.attrs["function"]
        called, extents = getattr(called, "single", called), tuple(sz.substitute(n, env) for n in op.attrs["sizes"])
        return (lambda *operands: called(*operands, *extents)) if extents else called
    if op.row.view:
        view = extern_ops.view(op, env)
        return lambda x: view(x) if hasattr(x, "__getitem__") else extern_ops.function(op, env)(x, x)
    if op.row.kind == "update":
        return extern_ops.update(op, env)
    compute = extern_ops.function(op, env)
    if not writes_in_place(op):
        return compute

    def in_place(like, target, *others):
        (created,) = compute(like, target, *others)
        copy_into(target, created)
        return [target]

    return in_place


# ---- guards


def guard(op: Op, env: dict[str, int]) -> Callable[..., bool]:
    """Return a predicate of the tensors: whether they meet the assumptions of ``op``; cached by their signature."""

    def miss(leaves):
        problem = failed_assumption(op, list(map(_described, leaves)), env)
        met = problem is None
        if problem and events.GuardFailed.observers:
            events.report(events.GuardFailed(op, problem))
        return _native.Record(0, [], [], [], [], 0, ("cpu", "numpy"), lambda _: met)

    return _native.Dispatcher(miss)


def _described(leaf) -> Described:
    spec = arrays.spec_of(leaf)
    return Described(spec.dtype, tuple(spec.shape), tuple(spec.strides), spec.align)


# ---- copies


def packed(x):
    """Return ``x``, or a row-major copy of it."""
    if isinstance(x, np.ndarray):
        return x if x.flags.c_contiguous else x.copy(order="C")
    if hasattr(x, "contiguous"):
        return x.contiguous()
    if arrays.framework(x) == "cupy":
        import cupy

        return cupy.asarray(x, order="C")
    return x


def unaliased(x, *written):
    """Return ``x``, or a copy of it where it may overlap an array that is written."""
    if isinstance(x, np.ndarray):
        return x.copy() if any(np.may_share_memory(x, target) for target in written) else x
    kind = arrays.framework(x)
    if kind is None:
        return x
    return x.clone() if kind == "torch" else x.copy()


def copy_all(*given) -> None:
    """Copy each array of the second half into the corresponding one of the first; torch's by one call per dtype."""
    pairs = [(a, b) for a, b in zip(given[: len(given) // 2], given[len(given) // 2 :]) if a is not b]
    if len(pairs) < 2 or any(arrays.framework(x) != "torch" for pair in pairs for x in pair):
        for target, value in pairs:
            copy_into(target, value)
        return
    import torch

    alike: dict[tuple, list] = {}
    for target, value in pairs:
        alike.setdefault((target.dtype, target.device), []).append((target, value))
    for group in alike.values():
        torch._foreach_copy_([target for target, _ in group], [value for _, value in group])


def copy_into(target, value) -> None:
    """Copy the elements of ``value`` into ``target``."""
    if target is value:
        return
    if type(target) is np.ndarray and type(value) is np.ndarray:
        target[...] = value
    elif arrays.framework(target) == "torch":
        target.copy_(value if arrays.framework(value) == "torch" else arrays.from_numpy(np.asarray(value), target))
    else:
        target[...] = value
