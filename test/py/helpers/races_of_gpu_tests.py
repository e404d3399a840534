"""A pytest plugin: what test_gpu.py runs on a GPU runs in the emulator instead, which finds races in shared memory,
accesses out of bounds and barriers apart. It needs no GPU, and no result is compared: for what compute-sanitizer's
racecheck takes long over.

    PYTHONPATH=test/py/helpers:test/py/schedule python -m pytest -p races_of_gpu_tests test/py/schedule/test_gpu.py
    -k "rows_that_begin or columns_in_shared"

Kernels without shared memory, which race with nothing, are only compiled. Some tests need a GPU all the same (streams,
graphs, CuPy).
"""

import itertools

import ml_dtypes
import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from mlirfuse.schedule.scheduler import SizedCall


class _OnHost(TorchFunctionMode):
    """Tensors that are asked for on a GPU are made on the host."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "cpu"
        return func(*args, **kwargs)


def pytest_configure(config):
    torch.cuda.is_available = lambda: True  # test_gpu.py asks whether there is a GPU for it
    _OnHost().__enter__()


def pytest_collection_modifyitems(items):
    import test_gpu

    test_gpu.check, test_gpu.check_candidates = _check, _check_candidates


def _check(fn, *inputs, bound=None, scale=None):
    """The kernels that are chosen; gives the results that the CPU computes."""
    import mlirfuse

    _emulate(fn, inputs, lambda params: True, 1)
    return mlirfuse.jit(fn)(*inputs)


def _check_candidates(fn, *inputs, only=lambda params: True, fewest=2):
    assert _emulate(fn, inputs, only, None) >= fewest


def _emulate(fn, inputs, only, most) -> int:
    """Runs the first ``most`` candidates of each segment that are ``only`` such ones; gives how many those were."""
    from test_gpu_emulated import run

    import mlirfuse
    from mlirfuse.runtime.program import Program
    from mlirfuse.schedule import targets
    from mlirfuse.schedule.gpu.scheduler_list import SCHEDULERS

    given = [_array(x) for x in inputs]
    lowered = mlirfuse.jit(fn, target="cuda:sm_90").lower(*given)
    target, env = targets.of("cuda:sm_90"), lowered.env
    program = Program(lowered.segmented(), target, env)
    chosen = [SCHEDULERS.choose(step.analysis, SizedCall(env, {}, target.properties)) for step in program.steps]
    count = 0
    for at, step in enumerate(program.steps):
        found = dict.fromkeys(filter(only, SCHEDULERS.candidates(step.analysis, SizedCall(env, {}, target.properties))))
        for params in itertools.islice(found, most):
            everything = (*chosen[:at], params, *chosen[at + 1 :])
            kernels = target.write(program, everything, program.slots()).kernels
            shared = [k.static_shared + k.dynamic_shared for k in kernels]
            if max(shared, default=0) > target.properties.shared_per_block:
                continue  # more than the machine has
            if any(shared):
                run(program, env, everything, [x for x in given if isinstance(x, np.ndarray) and x.ndim])
            count += 1
    return count


def _array(x):
    if not isinstance(x, torch.Tensor):
        return x
    return x.view(torch.int16).numpy().view(ml_dtypes.bfloat16) if x.dtype is torch.bfloat16 else x.numpy()
