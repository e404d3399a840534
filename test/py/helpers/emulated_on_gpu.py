"""A pytest plugin: what test_gpu_emulated.py runs in the emulator is run on a GPU instead. Small cases of every kind of
kernel, for compute-sanitizer's racecheck, which takes long over those of test_gpu.py:

    PYTHONPATH=test/py/helpers:test/py/schedule compute-sanitizer --tool racecheck python -m pytest -p emulated_on_gpu
    test/py/schedule/test_gpu_emulated.py -k "not emulator"
"""

import numpy as np
import pytest


def pytest_collection_modifyitems(items):
    for module in {item.module for item in items}:
        if module.__name__ == "test_gpu_emulated":
            module.check = _check_on_gpu


def _check_on_gpu(fn, *inputs, candidates=4, chip="sm_90", only=lambda params: True):
    """As test_gpu_emulated.check, but that all candidates are for the GPU that there is."""
    import test_gpu
    from test_gpu_emulated import BOUND, compare

    if chip != "sm_90":
        pytest.skip("kernels for another GPU")
    expected = fn(*[x.astype(np.float64) if x.dtype.name in BOUND else x for x in inputs])
    expected = expected if isinstance(expected, tuple) else (expected,)
    tried = 0
    for params, got in test_gpu.candidates_of(fn, *map(_on_gpu, inputs), only=only, most=candidates):
        tried += 1
        for tensor, want in zip(got, expected, strict=True):
            compare(_on_host(tensor), np.asarray(want), BOUND.get(inputs[0].dtype.name, 0), str(params))
    assert tried, "no such candidate"


def _on_gpu(array):
    """A tensor with the strides of ``array``; NumPy has bfloat16 as a type that torch does not know."""
    import torch

    bits = array.view(np.int16) if array.dtype.name == "bfloat16" else array
    there = torch.empty_strided(
        array.shape, [n // array.itemsize for n in array.strides], dtype=torch.from_numpy(bits[:0]).dtype, device="cuda"
    )
    there.copy_(torch.from_numpy(bits))
    return there if bits is array else there.view(torch.bfloat16)


def _on_host(tensor):
    """An array of the tensor's numbers, those of bfloat16 as float32."""
    return (tensor.float() if tensor.is_floating_point() and tensor.itemsize == 2 else tensor).cpu().numpy()
