"""A pytest plugin: what test_gpu_emulated.py and test_matmul.py run in the emulator is run on a GPU instead. Small cases
of every kind of kernel, for compute-sanitizer's racecheck, which takes long over those of test_gpu.py:

    PYTHONPATH=test/py/helpers:test/py/schedule compute-sanitizer --tool racecheck python -m pytest -p emulated_on_gpu
    test/py/schedule/test_gpu_emulated.py -k "not emulator"
"""

import ml_dtypes
import numpy as np
import pytest


def pytest_collection_modifyitems(items):
    for module in {item.module for item in items}:
        if module.__name__ == "test_gpu_emulated":
            module.check = _check_on_gpu
        if module.__name__ == "test_matmul":
            module.computed = _computed_on_gpu


def _computed_on_gpu(graph, inputs, only=lambda params: True, alignments=(), changed=lambda params: params):
    """As test_matmul.computed; ``alignments`` are those of the tensors' addresses."""
    import torch
    from test_matmul import chosen

    from mlirfuse import _native
    from mlirfuse.frontend.torch.execution.execute import target_of
    from mlirfuse.passes import pipelines
    from mlirfuse.runtime.executor import Executor

    target, given = target_of(torch.device("cuda")), dict(alignments)
    if not target.properties.tensor_cores:
        pytest.skip("kernels for another GPU")
    executor = Executor(pipelines.lower_to_segments(graph, target.properties), target, {})
    tensors = [_aligned(_on_gpu(np.ascontiguousarray(x)), given.get(k, 16)) for k, x in enumerate(inputs)]
    places, program = list(range(len(tensors))), executor.program
    aligned = executor.alignments(tensors, places)
    program.tuned[program.call_key({}, program.aligned(aligned))] = chosen(program, aligned, only, changed)
    record = executor.record(tensors, places, {}, list)
    results = _native.Dispatcher(lambda _: record)(*tensors)
    return [_bits_on_host(x) for x in results]


def _aligned(tensor, nbytes: int):
    """``tensor`` at an address that is a multiple of no more than ``nbytes``."""
    if nbytes >= 16:
        return tensor
    moved = tensor.new_empty(tensor.numel() + nbytes // tensor.itemsize)[nbytes // tensor.itemsize :].view(tensor.shape)
    return moved.copy_(tensor)


def _bits_on_host(tensor):
    """A tensor as an array of its own type."""
    import torch

    if tensor.dtype is torch.bfloat16:
        return tensor.view(torch.int16).cpu().numpy().view(ml_dtypes.bfloat16)
    return tensor.cpu().numpy()


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
