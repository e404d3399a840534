"""Rows of random numbers: Philox with an element's linear index as counter, so that a seed and an offset give the same
numbers on every target."""

from __future__ import annotations

import math as pymath

import numpy as np

from mlirfuse.ir import dtypes as dt
from mlirfuse.ir.ops.registry import INT, given_shape, row

_M0, _M1, _W0, _W1 = 0xD2511F53, 0xCD9E8D57, 0x9E3779B9, 0xBB67AE85


def philox(counter: np.ndarray, key: int) -> np.ndarray:
    """Philox-4x32-10 (Salmon et al., SC'11): for counters [n, 4] of uint32 and a 64-bit key, [n, 4] random uint32."""
    c = [counter[:, k].astype(np.uint64) for k in range(4)]
    k0, k1 = key & 0xFFFFFFFF, (key >> 32) & 0xFFFFFFFF
    for _ in range(10):
        p0, p1 = c[0] * np.uint64(_M0), c[2] * np.uint64(_M1)
        c = [(p1 >> np.uint64(32)) ^ c[1] ^ np.uint64(k0), p1 & np.uint64(0xFFFFFFFF),
             (p0 >> np.uint64(32)) ^ c[3] ^ np.uint64(k1), p0 & np.uint64(0xFFFFFFFF)]  # fmt: skip
        k0, k1 = (k0 + _W0) & 0xFFFFFFFF, (k1 + _W1) & 0xFFFFFFFF
    return np.stack(c, 1).astype(np.uint32)


def random_words(seed, offset, numel: int, count: int) -> np.ndarray:
    """Return [numel, count] words (count 1, 2 or 4). A Philox block serves 4 / count consecutive elements; block b has
    counter (b low, b high, offset low, offset high) and key seed."""
    share = 4 // count
    b = np.arange(-(-numel // share), dtype=np.uint64)
    offset = int(offset) & 0xFFFFFFFFFFFFFFFF
    counter = np.stack(
        [
            b & np.uint64(0xFFFFFFFF),
            b >> np.uint64(32),
            np.full_like(b, offset & 0xFFFFFFFF),
            np.full_like(b, offset >> 32),
        ],
        1,
    )
    return philox(counter, int(seed) & 0xFFFFFFFFFFFFFFFF).reshape(-1, count)[:numel]


def _combine(low, high):
    return low.astype(np.uint64) | (high.astype(np.uint64) << np.uint64(32))


def _uniform_ref(seed, offset, shape, dtype):
    words = random_words(seed, offset, pymath.prod(shape), 2 if dtype is dt.f64 else 1)
    if dtype is dt.f64:
        value = (_combine(words[:, 0], words[:, 1]) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    else:
        value = (words[:, 0] >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)
    return value.reshape(shape).astype(dtype.numpy)


def _normal_ref(seed, offset, shape, dtype):
    words = random_words(seed, offset, pymath.prod(shape), 4 if dtype is dt.f64 else 2)
    if dtype is dt.f64:
        a, b, unit = _combine(words[:, 0], words[:, 1]), _combine(words[:, 2], words[:, 3]), 2.0**-64
    else:
        a, b, unit = words[:, 0], words[:, 1], 2.0**-32
    u, angle = (a.astype(np.float64) + 0.5) * unit, b.astype(np.float64) * unit
    return (np.sqrt(-2 * np.log(u)) * np.cos(2 * np.pi * angle)).reshape(shape).astype(dtype.numpy)


def _random_dtypes(dtypes, attrs):
    return None if set(dtypes) <= {dt.i64, dt.u64} else "seed and offset must be 64-bit integers"


row(
    "uniform",
    "random",
    "seed offset",
    "uniform in [0, 1), by Philox: the same numbers for a seed and an offset on every target",
    takes=INT,
    result="dtype",
    attrs={"shape": ..., "dtype": ...},
    infer=given_shape,
    ref=_uniform_ref,
    operand_dtypes=_random_dtypes,
    cost=60,
)
row(
    "normal",
    "random",
    "seed offset",
    "standard normal, by Box and Muller from Philox",
    takes=INT,
    result="dtype",
    attrs={"shape": ..., "dtype": ...},
    infer=given_shape,
    ref=_normal_ref,
    operand_dtypes=_random_dtypes,
    cost=100,
)
