"""Runs large float32 matmuls on AMD's processors with AVX-512 by oneDNN instead of MKL, the library of torch's own ops.

On an EPYC with AVX-512, one thread, 784×512×2048 takes 15.9 to 16.7 ms by oneDNN and 18.9 by MKL, 128×256×1024 0.63 and
0.67; a small one takes 12 µs more. MKL chooses slower code there than on Intel's processors, for which torch has it.
With AVX2 alone oneDNN is slower or level at all sizes (64×256×1024, one thread: 0.76 ms, MKL 0.62; 512×256×1024 4.1
and 3.7; 784×512×2048 25.7 and 23.8).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from mlirfuse.frontend.torch.torch_private import linear_of_onednn
from mlirfuse.lowering import llvm

aten = torch.ops.aten

MIN_MULTIPLY_ADDS = 1 << 24  # 16×256×1024, a quarter of this, is as fast by either


@functools.cache
def _mkl_is_slow() -> bool:
    processor = llvm.host_processor()
    slow = processor.name.startswith("znver") and "avx512f" in processor.features
    return slow and linear_of_onednn is not None and torch.backends.mkl.is_available()


def faster(node: Node) -> Callable[..., torch.Tensor] | None:
    """What computes ``node``, of an AOTAutograd graph, faster than its own op, from the same arguments; None: nothing.
    The graph keeps its op, which has derivatives."""
    allowed = node.target in _BY_ONEDNN and _mkl_is_slow() and torch.backends.mkldnn.enabled
    if not allowed or not _is_large(node):
        return None
    *bias, _, _ = node.args
    alone = bias and bias[0].meta["val"].shape != node.meta["val"].shape[1:]
    return None if alone else _BY_ONEDNN[node.target]


def _mm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return linear_of_onednn(a, b.t(), None, "none", [], "")


def _addmm(bias: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return linear_of_onednn(a, b.t(), bias, "none", [], "")


_BY_ONEDNN: dict[Any, Callable[..., torch.Tensor]] = {aten.mm.default: _mm, aten.addmm.default: _addmm}


def _is_large(node: Node) -> bool:
    """Whether ``node`` multiplies many float32 numbers on the CPU, by sizes that are known."""
    a, b = (x.meta.get("val") if isinstance(x, Node) else None for x in node.args[-2:])
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor) or node.kwargs:
        return False
    extents = (*a.shape, b.shape[1])
    if a.device.type != "cpu" or not a.dtype is b.dtype is torch.float32 or not all(type(n) is int for n in extents):
        return False
    return extents[0] * extents[1] * extents[2] >= MIN_MULTIPLY_ADDS
