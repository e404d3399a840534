"""Random numbers in compiled graphs: Philox, indexed by element, from a seed that torch's generator draws on the device
in each call.

The seed follows ``torch.manual_seed`` and changes in each replay of a CUDA graph. Forward and backward share it, so
numbers are recomputed where that is cheaper than a saved mask, and are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Graph
from torch.utils.checkpoint import CheckpointPolicy

from mlirfuse.frontend.torch.fx.sizes import is_empty
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import ops as table
from mlirfuse.runtime import arrays

_BITS = {torch.float16: 11, torch.bfloat16: 8}  # bits of a uniform number, so that it never rounds to 1

_library = torch.library.Library("mlirfuse", "DEF")
_library.define("seed(Device device) -> Tensor")
_library.define("uniform(Tensor seed, int offset, SymInt[] size, ScalarType dtype) -> Tensor")
_library.define("normal(Tensor seed, int offset, SymInt[] size, ScalarType dtype) -> Tensor")


def _seed(device: torch.device) -> torch.Tensor:
    return torch.randint(-(2**63), 2**63 - 1, (), dtype=torch.int64, device=device)


def _numbers(name: str):
    def run(seed: torch.Tensor, offset: int, size: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        ours = dt.f64 if dtype is torch.float64 else dt.f32
        created = table.TABLE[name].ref(int(seed), offset, tuple(size), ours)  # type: ignore[misc]
        return arrays.from_numpy(created, seed)

    return run


def _like_numbers(seed: torch.Tensor, offset: int, size: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(size, dtype=dtype, device=seed.device)


_library.impl("seed", _seed, "CompositeExplicitAutograd")
for _name in ("uniform", "normal"):
    for _key in ("CPU", "CUDA"):
        _library.impl(_name, _numbers(_name), _key)
    _library.impl(_name, _like_numbers, "Meta")


@torch.library.register_fake("mlirfuse::seed", lib=_library)
def _fake_seed(device: torch.device) -> torch.Tensor:
    return torch.empty((), dtype=torch.int64, device=device)


SEED = torch.ops.mlirfuse.seed.default
NUMBERS = (torch.ops.mlirfuse.uniform.default, torch.ops.mlirfuse.normal.default)


def _uniform(size: Sequence[Any], device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """Numbers in [0, 1) of a float dtype."""
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    created = NUMBERS[0](SEED(device), 0, size, wide)
    if dtype in _BITS:
        steps = 2.0 ** _BITS[dtype]
        created = torch.floor(created * steps) * (1 / steps)
    return created.to(dtype)


def _normal(size: Sequence[Any], device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    wide = torch.float64 if dtype is torch.float64 else torch.float32
    return NUMBERS[1](SEED(device), 0, size, wide).to(dtype)


def _asked(dtype: torch.dtype | None, device: Any, layout: Any) -> tuple[torch.dtype, torch.device] | None:
    """The dtype and device of a factory's options; None for what is left to torch."""
    dtype = dtype or torch.get_default_dtype()
    device = torch.device(device if device is not None else "cpu")
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    if not dtype.is_floating_point or dtype.itemsize < 2 or layout not in (None, torch.strided):
        return None
    return dtype, device


def _dropout(x: torch.Tensor, p: float, train: bool | None) -> Any:
    if not 0 <= p <= 1:
        return NotImplemented
    if train is False or p == 0 or is_empty(x):
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    if p == 1:  # a product with 0, which is -0 of negative numbers and NaN of infinity
        return x * torch.zeros_like(x), torch.zeros_like(x, dtype=torch.bool)
    kept = _uniform(x.shape, x.device, torch.float32) >= p
    return x * kept * (1 / (1 - p)), kept


def _factory(make: Any):
    def decomposed(size: Sequence[Any], *, dtype: Any = None, layout: Any = None, device: Any = None,
                   pin_memory: Any = None) -> Any:  # fmt: skip
        asked = None if pin_memory else _asked(dtype, device, layout)
        return NotImplemented if asked is None else make(size, asked[1], asked[0])

    return decomposed


def _like(make: Any):
    def decomposed(x: torch.Tensor, *, dtype: Any = None, layout: Any = None, device: Any = None,
                   pin_memory: Any = None, memory_format: Any = None) -> Any:  # fmt: skip
        asked = None if pin_memory else _asked(dtype or x.dtype, device or x.device, layout)
        kept = memory_format in (None, torch.preserve_format)
        if asked is None or not kept or not x.is_contiguous() or is_empty(x):  # an empty one keeps any strides
            return NotImplemented
        return make(x.shape, asked[1], asked[0])

    return decomposed


def _bernoulli(x: torch.Tensor, p: float = 0.5, *, generator: Any = None) -> Any:
    if generator is not None or not 0 <= p <= 1 or x.dtype not in (torch.float32, torch.float64):
        return NotImplemented
    return (_uniform(x.shape, x.device, torch.float32) < p).to(x.dtype)


DECOMPOSITIONS = {
    torch.ops.aten.native_dropout.default: _dropout,
    torch.ops.aten.rand.default: _factory(_uniform),
    torch.ops.aten.rand_like.default: _like(_uniform),
    torch.ops.aten.randn.default: _factory(_normal),
    torch.ops.aten.randn_like.default: _like(_normal),
    torch.ops.aten.bernoulli.p: _bernoulli,
}


def share_seeds(graph: Graph) -> None:
    """Shares one seed per device: an op with a seed of its own uses another offset of the first seed. The seed is saved
    for the backward and never drawn again, whatever is recomputed."""
    first: dict[Any, torch.fx.Node] = {}
    streams: dict[torch.fx.Node, int] = {}
    for node in list(graph.nodes):
        if node.target is not SEED:
            continue
        seed = first.setdefault(node.args[0], node)
        stream = streams[seed] = streams.get(seed, -1) + 1
        for user in list(node.users):
            if user.target in NUMBERS:
                user.args = (seed, stream, *user.args[2:])
        if seed is not node:
            node.replace_all_uses_with(seed)
            graph.erase_node(node)
        else:
            seed.meta["recompute"] = CheckpointPolicy.MUST_SAVE
