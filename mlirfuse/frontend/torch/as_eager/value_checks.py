"""Checks of values that eager makes on the CPU and torch's decompositions or fake tensors omit.

``mlirfuse::checked(x, holds, message)`` returns ``x``, and makes the call raise RuntimeError where ``holds`` is false
anywhere, e.g. for probabilities outside [0, 1]. The kernel that reads ``x`` runs the check.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from mlirfuse.frontend.torch.torch_private import assert_async, check, decomposition_table

aten = torch.ops.aten

_library = torch.library.Library("mlirfuse", "FRAGMENT")
_library.define("checked(Tensor x, Tensor holds, str message) -> Tensor")


def _checked(x: torch.Tensor, holds: torch.Tensor, message: str) -> torch.Tensor:
    assert_async(holds.all(), message)  # raises RuntimeError at once on a CPU; traced without a branch
    return x.clone()


for _key in ("CompositeExplicitAutograd", "Autograd"):
    _library.impl("checked", _checked, _key)


@torch.library.register_fake("mlirfuse::checked", lib=_library)
def _fake_checked(x: torch.Tensor, holds: torch.Tensor, message: str) -> torch.Tensor:
    return torch.empty_like(x)


CHECKED = torch.ops.mlirfuse.checked.default


def _probabilities(x: torch.Tensor, message: str) -> torch.Tensor:
    """``x`` with a check that its elements are in [0, 1]; unchecked on a GPU."""
    return CHECKED(x, (x >= 0) & (x <= 1), message) if x.device.type == "cpu" else x


def _binary_cross_entropy(x: torch.Tensor, target: torch.Tensor, weight: Any = None, reduction: int = 1) -> Any:
    x = _probabilities(x, "all elements of input should be between 0 and 1")
    target = _probabilities(target, "all elements of target should be between 0 and 1")
    return decomposition_table[aten.binary_cross_entropy.default](x, target, weight, reduction)


def _bernoulli(x: torch.Tensor, *, generator: Any = None) -> Any:
    if generator is not None:
        return NotImplemented
    x = _probabilities(x, "Expected p_in >= 0 && p_in <= 1 to be true, but got false.")
    return decomposition_table[aten.bernoulli.default](x)


def _constant_pad_nd(x: torch.Tensor, pad: Sequence[Any], value: Any = 0) -> Any:
    """Padding stays one op. What it crops must be there before any of it is padded: torch's fake tensors only check
    what remains."""
    for k, (low, high) in enumerate(zip(pad[::2], pad[1::2])):
        if not (type(low) is int and low >= 0 and type(high) is int and high >= 0):
            remains = x.shape[-1 - k] + torch.sym_min(low, 0)
            check(remains >= 0, lambda: "narrow(): length must be non-negative.")
            check(remains + torch.sym_min(high, 0) >= 0, lambda: "narrow(): length must be non-negative.")
    return NotImplemented


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten.binary_cross_entropy.default: _binary_cross_entropy,
    aten.constant_pad_nd.default: _constant_pad_nd,
}
RANDOM: dict[Any, Callable[..., Any]] = {aten.bernoulli.default: _bernoulli}
