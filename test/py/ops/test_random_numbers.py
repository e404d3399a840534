"""Random numbers of definitions against Philox-4x32-10 written out in plain Python: of (seed, offset, position)."""

import math

import numpy as np
import pytest

from mlirfuse.core import config
from mlirfuse.nvfuser import DataType, FusionDefinition

WORDS = 2**32 - 1


def philox(counter, key):
    """Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3" (2011). Four words of 32 bits."""
    k0, k1 = key & WORDS, key >> 32
    a, b, c, d = counter
    for _ in range(10):
        first, second = a * 0xD2511F53, c * 0xCD9E8D57
        a, b, c, d = (second >> 32) ^ b ^ k0, second & WORDS, (first >> 32) ^ d ^ k1, first & WORDS
        k0, k1 = (k0 + 0x9E3779B9) & WORDS, (k1 + 0xBB67AE85) & WORDS
    return [a, b, c, d]


def words(seed, offset, position, count):
    """The ``count`` words that the element at a row-major position draws: a block of four serves 4 / count elements."""
    share = 4 // count
    block = position // share
    drawn = philox([block & WORDS, block >> 32, offset & WORDS, offset >> 32], seed)
    return drawn[position % share * count :][:count]


def uniform(seed, offset, position, double):
    if double:
        low, high = words(seed, offset, position, 2)
        return (low + (high << 32) >> 11) / 2**53
    return (words(seed, offset, position, 1)[0] >> 8) / 2**24


def normal(seed, offset, position, double):
    """Box and Muller: the first half of the words is a length, the second an angle."""
    drawn = words(seed, offset, position, 4 if double else 2)
    bits = 64 if double else 32
    first, second = (drawn[0] + (drawn[1] << 32), drawn[2] + (drawn[3] << 32)) if double else drawn
    return math.sqrt(-2 * math.log((first + 0.5) / 2**bits)) * math.cos(2 * math.pi * second / 2**bits)


@pytest.mark.parametrize("seed, offset", [(0, 0), (7, 3), (2**61 + 12345, 2**40 + 9)])
@pytest.mark.parametrize("double", [False, True])
def test_numbers_by_position(seed, offset, double):
    shape = (3, 7, 11)
    data_type = DataType.Double if double else DataType.Float
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape=[-1] * 3, contiguity=[True] * 3, dtype=data_type)
        given = [fd.define_scalar(dtype=DataType.Int) for _ in range(2)]
        for function in (fd.ops.uniform, fd.ops.normal):
            created = function(0.0, 1.0, shape=fd.ops.shape(x), dtype=data_type, rng_seed=given[0], rng_offset=given[1])
            fd.add_output(created)
    with config.override(fallback=False):
        u, n = fd.execute([np.zeros(shape, np.float64 if double else np.float32), seed, offset])
    positions = range(math.prod(shape))
    assert u.ravel().tolist() == [uniform(seed, offset, p, double) for p in positions]
    wanted = [normal(seed, offset, p, double) for p in positions]
    np.testing.assert_allclose(n.ravel(), wanted, rtol=1e-13 if double else 1e-6, atol=1e-15 if double else 1e-7)
