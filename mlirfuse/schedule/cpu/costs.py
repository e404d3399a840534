"""Coefficients of predicted times of kernels on a CPU."""

from __future__ import annotations

from mlirfuse.analysis.cost import Coefficients

# Roughly those of a core with vectors of 32 bytes, and of its share of the memory; a row or column that is longer than
# ``row`` or ``column`` is not kept between passes. Measured on op mixes of one size, not fitted: good for decisions by
# a wide margin.
CPU = Coefficients(
    launch=5e-6,
    byte=9e-11,
    cached_byte=3e-11,
    again=1e-11,
    strided=2e-11,
    gathered=5e-10,
    instruction=3e-11,
    reduced=2e-11,
    columns=3e-11,
    phase=0.0,
    scanned=1e-10,
    added=1e-9,
    code=0.0,
    cache=1 << 20,
    row=1 << 14,
    column=16,
    vector=1 << 16,
)
