"""Runs extern ops, for which no kernels are generated (products, convolutions, sorting, scattering), by the arrays' own
framework on their device.

NumPy arrays use the op table's reference. An op without a function in a CUDA framework runs on the host, with a
warning.
"""

from __future__ import annotations

import contextvars
import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mlirfuse import _native
from mlirfuse.core.errors import ShapeError, UnsupportedError, located, warn
from mlirfuse.ir import ops as table
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Op
from mlirfuse.ir.size_relations import failed
from mlirfuse.runtime import arrays, numpy_private


def _error_state() -> tuple[contextvars.ContextVar, Any] | None:
    """Return the context variable that holds NumPy's floating-point error state, and the state that reports nothing;
    None in a version of NumPy without them."""
    state, created = numpy_private.error_state, numpy_private.make_error_state
    return None if state is None or created is None else (state, created(all="ignore"))


_ERROR_STATE = _error_state()


def silencing() -> tuple[Callable[[], Any], Callable[[Any], Any]]:
    """Return two functions: one turns NumPy's floating-point warnings off, the other, of what that returned, on again.
    They take a quarter of the time of ``np.errstate``, which creates a new state at each call."""
    if _ERROR_STATE is not None:
        state, silent = _ERROR_STATE
        return functools.partial(state.set, silent), state.reset

    def enter() -> np.errstate:
        ignored = np.errstate(all="ignore")
        ignored.__enter__()
        return ignored

    return enter, lambda ignored: ignored.__exit__(None, None, None)


def quiet(function: Callable) -> Callable:
    """Return ``function``, of one argument, without NumPy's floating-point warnings."""
    enter, leave = silencing()

    def called(given):
        token = enter()
        try:
            return function(given)
        finally:
            leave(token)

    return called


def function(op: Op, env: dict[str, int]) -> Callable[..., list]:
    """Return a function that computes the extern op ``op`` for these sizes: of an array ``like`` that determines the
    framework and device of the results, and of the operands, arrays or numbers; it returns the list of results."""
    row, attrs = op.row, _attributes(op, env)
    reference = row.ref
    if reference is None:
        raise UnsupportedError(f"{op.name} has no reference: run fusion-decompose first", op.loc)
    if row.calls:

        def called(like, *given) -> list:
            library = arrays.framework(like) or "numpy"
            return list(reference(*(_placed(a, v, like, library) for a, v in zip(given, op.operands)), **attrs))

        return called
    if problem := failed(op, env):
        return _refusing(problem, op)
    number = row.kind == "create" and all(not v.shape for v in op.results)  # each kernel has its own
    types, created_types = ([v.dtype.numpy for v in values] for values in (op.operands, op.results))
    several = row.several

    @quiet
    def on_numpy(given: Sequence[np.ndarray]) -> list[np.ndarray]:
        found = reference(*given, **attrs)
        return [_owned(np.asarray(r, t), given) for r, t in zip(found if several else (found,), created_types)]

    def call(like, *given) -> list:
        if type(like) is np.ndarray:  # the usual case, on the fast path
            for a, t in zip(given, types):
                if type(a) is not np.ndarray or a.dtype is not t:
                    return on_numpy([_as_numpy(a, t) for a, t in zip(given, types)])
            return on_numpy(given)
        library = arrays.framework(like) or "numpy"
        native = _FUNCTIONS.get(library, {}).get(op.name)
        if native is not None:
            results = native(*(_placed(a, v, like, library) for a, v in zip(given, op.operands)), **attrs)
            return [_compact(r, library) for r in (results if isinstance(results, (list, tuple)) else [results])]
        if not number and arrays.device_of(like) not in (None, ("cpu",)):
            _warn_once(op.name, library)
        created = on_numpy([_as_numpy(a, t) for a, t in zip(given, types)])
        return created if number else [arrays.from_numpy(r, like) for r in created]

    return call if several else _natively(op, functools.partial(reference, **attrs) if attrs else reference, call)


def _natively(op: Op, function: Callable, otherwise: Callable[..., list]) -> Callable[..., list]:
    """Return ``otherwise``, the function of an op with one result; NumPy arrays of the op's dtypes go to the reference
    ``function`` without Python code in between, and products that BLAS has past the ufunc ``np.matmul`` too."""
    if _ERROR_STATE is None:
        return otherwise
    dtype = op.results[0].dtype.numpy
    types = tuple(v.dtype.numpy for v in op.operands)
    blas = function is np.matmul and dtype.char in "fdFD" and all(v.rank in (1, 2) for v in op.operands)

    def finish(found, given) -> np.ndarray:
        return _owned(np.asarray(found, dtype), given)

    return _native.NumpyCall(None if blas else function, types, dtype, finish, otherwise, *_ERROR_STATE)


def _refusing(problem: str, op: Op) -> Callable[..., list]:
    """What raises :class:`ShapeError` where it is called: other sizes than NumPy's rules take are equal in a graph."""

    def refuse(*_: Any) -> list:
        raise ShapeError(located(problem, op.loc))

    return refuse


def by_numpy(function: Callable) -> Callable[..., list]:
    """Return a function for a call in a graph: NumPy's ``function`` of its operands, through the host where they are on
    a device."""

    def call(*given) -> list:
        near = next((a for a in given if arrays.framework(a) not in (None, "numpy")), None)
        if near is not None and arrays.device_of(near) != ("cpu",):
            _warn_once(getattr(function, "__name__", "a function"), arrays.framework(near))
        hosted = [arrays.to_numpy(a) if arrays.framework(a) else a for a in given]
        with np.errstate(all="ignore"):
            created = function(*hosted)
        results = [
            _owned(np.asarray(r), hosted) for r in (created if isinstance(created, (list, tuple)) else [created])
        ]
        return results if near is None else [arrays.from_numpy(r, near) for r in results]

    return call


def _attributes(op: Op, env: dict[str, int]) -> dict:
    """Return the attributes of ``op`` for the sizes of a call."""
    row = op.row
    return table.map_sizes(row.attr_types, {k: op.attrs[k] for k in row.attrs}, lambda n: sz.evaluated(n, env))


def _as_numpy(array, dtype: np.dtype) -> np.ndarray:
    return np.asarray(arrays.to_numpy(array), dtype)


def _owned(array: np.ndarray, given) -> np.ndarray:
    """Return ``array``, or a row-major copy of it, in memory of its own."""
    if array.base is None and array.flags.c_contiguous:
        for other in given:
            if array is other:
                return array.copy()
        return array
    shared = any(np.may_share_memory(array, other) for other in given)
    return array.copy(order="C") if shared else np.asarray(array, order="C")


def view(op: Op, env: dict[str, int]) -> Callable[..., list]:
    """Return a function that computes the views of the view op ``op`` for these sizes, from its operand, a NumPy, torch
    or CuPy array. A reshape that strides do not permit is a copy."""
    if problem := failed(op, env):
        return _refusing(problem, op)
    attrs = _attributes(op, env)
    shapes = [tuple(sz.known(n, env) for n in v.shape) for v in op.results]
    rank = op.operands[0].rank
    full = [slice(None)] * rank
    if op.name == "reshape":
        return lambda x: [x.reshape(shapes[0])]
    if op.name == "permute":
        dims = tuple(attrs["dims"])
        return lambda x: [
            x.transpose(dims) if isinstance(x, np.ndarray) or not hasattr(x, "permute") else x.permute(dims)
        ]
    if op.name == "squeeze":
        index = tuple(0 if d in attrs["axes"] else slice(None) for d in range(rank))
        return lambda x: [x[(*index, ...)]]
    if op.name == "expand_dims":
        added = tuple(None if d in attrs["axes"] else slice(None) for d in range(rank + len(attrs["axes"])))
        return lambda x: [x[(*added, ...)]]
    if op.name == "slice":
        window, backwards = _window(attrs)
        if not backwards:
            return lambda x: [x[window]]
        return lambda x: [x[window].flip(backwards) if hasattr(x, "flip") else np.flip(x[window], backwards)]
    if op.name == "split":
        slices: list[tuple] = []
        at = 0
        for size in attrs["sizes"]:
            slices.append((*full[: attrs["axis"]], slice(at, at + size), ...))
            at += size
        return lambda x: [x[slice_] for slice_ in slices]
    assert op.name == "broadcast_in_dim", op.name
    inner = tuple(slice(None) if d in attrs["dims"] else None for d in range(len(shapes[0])))

    def broadcast(x):
        x = x[(*inner, ...)]
        return [x.expand(shapes[0]) if hasattr(x, "expand") else np.broadcast_to(x, shapes[0])]

    return broadcast


def _window(attrs: dict) -> tuple[tuple, tuple[int, ...]]:
    """Return the elements of a slice as an index with positive steps, and the dimensions that it reverses."""
    window = tuple(
        slice(start + (size - 1) * step, start + 1, -step) if step < 0 else slice(start, start + size * step, step)
        for start, size, step in zip(attrs["start"], attrs["size"], attrs["step"])
    )
    return (*window, ...), tuple(d for d, step in enumerate(attrs["step"]) if step < 0)


def update(op: Op, env: dict[str, int]) -> Callable[..., list]:
    """Return a function that writes the second operand of an ``update`` into a slice of the first, for these sizes."""
    attrs = _attributes(op, env)
    dtype = op.operands[1].dtype
    window, backwards = _window(attrs)

    def call(target, value) -> list:
        library = arrays.framework(target)
        if library is not None and arrays.framework(value) != library:
            value = arrays.from_numpy(np.asarray(arrays.to_numpy(value), dtype.numpy), target)
        if backwards and value.ndim:  # not every framework supports negative steps
            missing = op.operands[0].rank - value.ndim
            dims = tuple(d - missing for d in backwards if d >= missing and value.shape[d - missing] > 1)
            value = np.flip(value, dims) if library == "numpy" else value.flip(dims)
        if 0 not in attrs["size"]:
            target[window] = value
        return [target]

    return call


def like(leaves: Sequence):
    """Return an array that determines the framework and device of results: empty, as it must not keep an argument's
    memory alive, or one of a call's arguments where its framework cannot allocate arrays."""
    return _NOTHING if _native.numpy_only(leaves) else _like_other(leaves)


def _like_other(leaves):
    found = [a for a in leaves if arrays.framework(a)]
    away = next((a for a in found if arrays.device_of(a) != ("cpu",)), None)
    chosen = away if away is not None else found[0] if found else _NOTHING
    library = arrays.framework(chosen)
    if library == "numpy":
        return _NOTHING
    return _torch_empty(chosen.device) if library == "torch" else chosen


_NOTHING = np.empty(0)


@functools.lru_cache(maxsize=64)
def _torch_empty(device):
    return _torch().empty(0, device=device)


def _placed(array, value, like, library: str):
    """Convert an operand for the framework: constants and numbers become 0-d arrays on the device of ``like``."""
    if arrays.framework(array) == library and arrays.device_of(array) == arrays.device_of(like):
        return array
    if library == "torch" and not value.shape:  # filled on the device: a copy from the host would synchronize
        return _torch().full(
            (), np.asarray(arrays.to_numpy(array)).item(), dtype=arrays.torch_dtype(value.dtype), device=like.device
        )
    return arrays.from_numpy(np.asarray(arrays.to_numpy(array), value.dtype.numpy), like)


def _compact(array, library: str):
    if library == "torch":
        return array.contiguous()
    import cupy

    return cupy.asarray(array, order="C")


@functools.cache
def _warn_once(name: str, library: str | None) -> None:
    warn(f"mlirfuse runs '{name}' on the host: {library} arrays have no function for it here")


# ---------------------------------------------------------------------------------------------------------------- torch


def _torch():
    return sys.modules["torch"]


def _widened(function):
    """Compute 16-bit floats in float32, as the op table specifies."""

    def call(x, *more, **attrs):
        torch = _torch()
        if x.dtype not in (torch.float16, torch.bfloat16):
            return function(x, *more, **attrs)
        others = [m.float() if m.is_floating_point() else m for m in more]
        return function(x.float(), *others, **attrs).to(x.dtype)

    return call


def _scatter(x, index, values, axis):
    return x.scatter(axis, index.long(), values.expand(index.shape))


def _scan(function):
    """Run a scan by torch, where single ops do not become kernels."""

    def call(x, axis, reverse):
        return function(x.flip(axis), axis).flip(axis) if reverse else function(x, axis)

    return _widened(call)


def _index_add(x, *added):
    for index, values in table.added_at((x, *added)):
        x = x.index_add(0, index, values)
    return x


def _argsort(x, axis, descending, stable):
    return _torch().argsort(x, dim=axis, descending=descending, stable=True)


def _conv(x, w, *bias, stride, padding, dilation, groups):
    function = getattr(_torch().nn.functional, f"conv{x.ndim - 2}d")
    return function(x, w, *bias, stride=tuple(stride), padding=tuple(padding), dilation=tuple(dilation), groups=groups)


_TORCH = {
    "matmul": lambda a, b: _torch().matmul(a, b),
    "linear": lambda x, w, *bias: _torch().nn.functional.linear(x, w, *bias),
    "conv": _conv,
    "attention": lambda q, k, v, causal, scale: _torch().nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=causal, scale=scale
    ),
    "cumsum": _scan(lambda x, axis: x.cumsum(axis, dtype=x.dtype)),
    "cumprod": _scan(lambda x, axis: x.cumprod(axis, dtype=x.dtype)),
    "cummax": _scan(lambda x, axis: x.cummax(axis).values),
    "cummin": _scan(lambda x, axis: x.cummin(axis).values),
    "logcumsumexp": _scan(lambda x, axis: x.logcumsumexp(axis)),
    "argsort": _argsort,
    "sort": lambda x, axis, stable: x.sort(dim=axis, stable=stable).values,
    "partition": lambda x, axis, at: x.sort(dim=axis).values,
    "topk": lambda x, axis, count, largest: x.topk(count, dim=axis, largest=largest).values,
    "scatter": _scatter,
    "index_put_accumulate": _widened(_index_add),
}

# ---------------------------------------------------------------------------------------------------------------- CuPy


def _cupy_accumulate(x, *added):
    import cupy

    out = x.copy()
    for index, values in table.added_at((x, *added)):
        cupy.add.at(out, index, values)
    return out


_CUPY = {
    "matmul": lambda a, b: a @ b,
    "index_put_accumulate": _cupy_accumulate,
}

_FUNCTIONS = {"torch": _TORCH, "cupy": _CUPY}
