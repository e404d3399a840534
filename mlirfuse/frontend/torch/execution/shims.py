"""torch's C shim, by which native regions allocate, make views and run matrix products
(:mod:`mlirfuse.runtime.native_regions`)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from mlirfuse.frontend.torch import torch_private as private
from mlirfuse.frontend.torch.calls import window
from mlirfuse.lowering import host_steps as st

aten = torch.ops.aten
_PRODUCTS: dict[Any, tuple[str, Callable[..., Any]]] = {  # the out-variant in torch's shim, and torch's function
    aten.mm.default: ("mm_out", torch.mm),
    aten.bmm.default: ("bmm_out", torch.bmm),
    aten.addmm.default: ("addmm_out", torch.addmm),
    aten.baddbmm.default: ("baddbmm_out", torch.baddbmm),
}


class Shim:
    """The shim of the devices of one type, as :class:`mlirfuse.runtime.native_regions.Shim` describes it."""

    def __init__(self, base: tuple[int, ...], products: dict[str, int]):
        self.addresses, self._products = base, products

    def takes(self, step: st.Call) -> bool:
        return _view(step) or self.product(step) is not None

    def product(self, step: st.Call) -> tuple[int, Callable[..., Any]] | None:
        source, names = _serialized(step)
        found = _PRODUCTS.get(names.get("target")) if "target" in names else None
        parameters, _, body = source.removeprefix("lambda ").partition(": ")
        if found is None or body != f"target({parameters})" or found[0] not in self._products:
            return None
        return self._products[found[0]], found[1]

    def dtype(self, tensor: Any) -> int | None:
        return private.scalar_types().get(tensor.dtype) if isinstance(tensor, torch.Tensor) else None

    def out_of_memory(self, device: torch.device) -> Callable[[int, int], Any]:
        dtypes = {number: dtype for dtype, number in private.scalar_types().items()}
        return lambda count, dtype: torch.empty(count, dtype=dtypes[dtype], device=device)


def _view(step: st.Call) -> bool:
    return _serialized(step)[1].get("view") is window


def _serialized(step: st.Call) -> tuple[str, dict[str, Any]]:
    """The source of what a step calls, and the names in it; empty where it is no call of torch."""
    found: tuple[str, dict[str, Any], bool] | None = getattr(step.op.attrs.get("function"), "serialized", None)
    return found[:2] if found else ("", {})


@functools.cache
def of(device_type: str) -> Shim | None:
    """The shim for tensors on devices of this type; None where torch has none."""
    base = private.shim_addresses()
    products = private.shim_products(device_type, tuple(name for name, _ in _PRODUCTS.values()))
    return None if base is None else Shim(base, products)
