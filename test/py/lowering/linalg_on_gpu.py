"""The op-by-op tests and the random programs by linalg and MLIR's own passes on a GPU, which CI does not have:

    PYTHONPATH=. python test/py/lowering/linalg_on_gpu.py [pytest's options]

It is a pytest plugin too (``-p linalg_on_gpu`` with ``PYTHONPATH=.:test/py``). What is tested on the CPU by
``jit(…, lowering="linalg")`` is called with copies of its arrays in device memory instead, contiguous ones, and its
results and the arrays that it wrote into are copied back.
"""

from __future__ import annotations

import itertools
import pathlib
import sys

import numpy as np
import pytest

from mlirfuse.core.errors import TraceError

# What fails on a GPU for a reason, and the reason.
LEFT_OUT = {
    "test_complex_moves": "device memory of our own holds no complex numbers",
    "test_library": "library ops run through the arrays' framework, and NumPy has none on a GPU",
}

NOT_ON_A_GPU = {  # by what the error says
    "from outside the function": "the program has an array of the host around it",
    "'DeviceArray' object does not support item assignment": LEFT_OUT["test_library"],
}


def pytest_collection_modifyitems(config, items):
    """Keeps the tests that go by linalg."""
    by_linalg = [item for item in items if "linalg" in item.nodeid.rpartition("::")[2]]
    for item in by_linalg:
        reason = LEFT_OUT.get(item.originalname)
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))
    config.hook.pytest_deselected(items=[item for item in items if item not in by_linalg])
    items[:] = by_linalg


@pytest.fixture(autouse=True, scope="session")
def _arrays_on_the_gpu():
    import mlirfuse
    from mlirfuse import _native

    if not _native.cuda_available():
        pytest.exit(f"no CUDA device: {_native.cuda_error()}", 1)
    jit = mlirfuse.jit
    mlirfuse.jit = lambda fn, **options: _on_gpu(jit(fn, **options)) if options.get("lowering") else jit(fn, **options)
    yield
    mlirfuse.jit = jit


def _on_gpu(compiled):
    """``compiled`` for arrays of the host."""
    from mlirfuse.runtime.device_array import DeviceArray

    def call(*args):
        there: dict[int, DeviceArray] = {}
        given: dict[int, np.ndarray] = {}

        def move(x):
            if isinstance(x, (list, tuple)):
                return type(x)(map(move, x))
            if isinstance(x, np.ndarray):
                if id(x) not in there:
                    given[id(x)], there[id(x)] = x, DeviceArray.from_numpy(x)
                return there[id(x)]
            return x

        try:
            results = compiled(*move(args))
        except (TraceError, TypeError) as error:
            for text, reason in NOT_ON_A_GPU.items():
                if text in str(error):
                    pytest.skip(reason)
            raise
        if any(np.shares_memory(a, b) for a, b in itertools.combinations(given.values(), 2)):
            pytest.skip("arguments overlap in the host's memory, and their copies do not")
        for key, x in given.items():
            now = there[key].numpy()
            if x.flags.writeable and now.tobytes() != x.tobytes():
                x[...] = now
        return _to_host(results)

    return call


def _to_host(x):
    if isinstance(x, (list, tuple)):
        return type(x)(map(_to_host, x))
    return x.numpy() if type(x).__name__ == "DeviceArray" else x


if __name__ == "__main__":
    here = pathlib.Path(__file__).parent
    sys.path.insert(0, str(here))
    tests = [str(here.parent / "ops/test_ops_numeric.py"), str(here.parent / "frontend_numpy/test_random_programs.py")]
    raise SystemExit(pytest.main(["-p", "linalg_on_gpu", "-q", "-rs", *tests, *sys.argv[1:]]))
