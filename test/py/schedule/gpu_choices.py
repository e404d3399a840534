"""What the models of GPU schedulers choose, in one file: ``golden/gpu_choices.txt``.

An aid to review, not a test: after a change of heuristics, write the file anew and read the difference. What has to
hold of choices is asserted in ``test_gpu_choice.py`` and ``test_tuning.py``.

    PYTHONPATH=. python test/py/schedule/gpu_choices.py --update
"""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Iterator

import ml_dtypes
import numpy as np

import mlirfuse
import mlirfuse.numpy as mnp
from mlirfuse.runtime.program import Program
from mlirfuse.schedule import targets
from mlirfuse.schedule.serialize import text

FILE = pathlib.Path(__file__).parent / "golden" / "gpu_choices.txt"


def standardized(x):
    return (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5)


def softmax_of_columns(x):
    e = np.exp(x - x.max(0))
    return e / e.sum(0)


def norm_backward(g, x, w):
    """Gradients of a layer norm without its bias."""
    mean = x.mean(-1, keepdims=True)
    r = 1 / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    h = (x - mean) * r
    d = g * w
    return (d - d.mean(-1, keepdims=True) - h * (d * h).mean(-1, keepdims=True)) * r, (g * h).sum(0), g.sum(0)


WORK = {  # a function, and how many rows it takes as arguments beside its first
    "relu(x + b)": (lambda x, b: np.maximum(x + b, 0), 1),
    "x.T + 1": (lambda x: np.ascontiguousarray((x + 1).T), 0),
    "differences of rows": (lambda x: x[1:] - x[:-1], 0),
    "differences of columns": (lambda x: x[:, 1:] - x[:, :-1], 0),
    "rows joined": (lambda x: np.concatenate([x, 2 * x, x], -1), 0),
    "sum of rows": (lambda x: x.sum(-1), 0),
    "sum of columns": (lambda x: x.sum(0), 0),
    "sum of all": (lambda x: x.sum(), 0),
    "softmax": (mnp.softmax, 0),
    "layer norm": (lambda x, w, b: mnp.layer_norm(x, w, b, eps=1e-5), 2),
    "softmax of columns": (softmax_of_columns, 0),
    "columns standardized": (standardized, 0),
    "cumsum": (lambda x: np.cumsum(x, -1), 0),
    "cumsum of columns": (lambda x: np.cumsum(x, 0), 0),
    "norm backward": (lambda x, w: norm_backward(x, x, w), 1),
}
SHAPES = [(16, 8192), (64, 1001), (256, 257), (256, 50_257), (1024, 131_072), (4096, 8191), (16_384, 4096), (131_072, 33), (262_144, 256)]  # fmt: skip
DTYPES = [np.float32, ml_dtypes.bfloat16]


def choices(target: targets.GpuTarget, shapes=SHAPES, dtypes=DTYPES) -> Iterator[tuple[str, Program, dict, tuple]]:
    """The name of each function with type and shape, its program, sizes, and the parameters that a GPU chooses."""
    for name, (fn, rows) in WORK.items():
        for dtype in dtypes:
            for shape in shapes:
                args = [np.empty(shape, dtype)] + [np.empty(shape[1:], dtype)] * rows
                lowered = mlirfuse.jit(fn, target=f"cuda:{target.properties.chip}").lower(*args)
                program = Program(lowered.segmented(), target, lowered.env)
                of = f"{name}, {'×'.join(map(str, shape))} {np.dtype(dtype).name}"
                yield of, program, lowered.env, program.parameters(lowered.env, {})


def chosen() -> str:
    """A line for each function, type and shape: the schedules of its segments on an H100."""
    target = targets.of("cuda:sm_90")
    lines = [
        f"{of}: {text(schedule)}"
        for of, program, _, params in choices(target)
        for schedule in target.schedules(program, params)
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    if sys.argv[1:] != ["--update"]:
        raise SystemExit(__doc__)
    FILE.write_text(chosen())
