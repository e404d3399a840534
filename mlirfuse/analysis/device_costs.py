"""Coefficients of predicted times of kernels, per device. GPUs' are fitted: ``python -m mlirfuse.tools.fit_costs`` on
records of ``benchmarks/kernel_costs.py``."""

from __future__ import annotations

import dataclasses

from mlirfuse.analysis.cost import Coefficients
from mlirfuse.core.device_properties import DeviceProperties

_BANDWIDTHS = {"h200": 4.8e12, "h100": 3.35e12}  # nominal, of memory

# Fitted on 687 kernels of 98 op mixes at 4 sizes, in float32 and bfloat16 (2026-11-28): off by a factor of 1.17 in the
# median, of 1.7 at most for nine of ten; of kernels of 20 µs to 100 µs 1.10 in the median. Coefficients of 0 are those
# that the fit made negligible. ``shifted`` is not of the fit: a third of what the sums over a max pool's gradient of
# row-major images took beyond their prediction (a DenseNet's, 77 million elements of 8 loads: 2.2 ms for 0.3,
# 2026-11-29).
H200 = Coefficients(
    launch=1.07e-06,
    byte=2.30e-13,
    cached_byte=2.73e-13,
    again=7.49e-14,
    strided=0.0,
    gathered=0.0,
    shifted=1e-12,
    instruction=3.95e-14,
    reduced=8.73e-14,
    columns=3.81e-13,
    phase=5.52e-07,
    scanned=0.0,
    added=1.90e-12,
    code=4.69e-09,
)
H100 = dataclasses.replace(H200, byte=H200.byte * _BANDWIDTHS["h200"] / _BANDWIDTHS["h100"])
DEVICES = {"h100": H100, "h200": H200}  # GPUs

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
    shifted=0.0,
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


def nearest(properties: DeviceProperties) -> str:
    """The name of the device in :data:`DEVICES` whose memory is about as fast for each multiprocessor: what it computes
    in the time of a byte decides, not either of both."""
    per_sm = properties.memory_bandwidth / properties.sm_count
    return min(DEVICES, key=lambda name: abs(_BANDWIDTHS[name] / 132 - per_sm))
