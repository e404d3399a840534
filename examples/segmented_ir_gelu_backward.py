"""GELU's backward with a bias gradient, its segments in place: `python examples/segmented_ir_gelu_backward.py
[page.html]`.

The second program of the nvFuser issue that asks for segments to be shown in the fusion itself (see
docs/internals/levels.md).
"""

import sys

import numpy as np

from mlirfuse.nvfuser import DataType, FusionDefinition


def define(fd: FusionDefinition) -> None:
    S0 = fd.define_scalar(None, dtype=DataType.Double)
    S1 = fd.define_scalar(None, dtype=DataType.Double)
    S2 = fd.define_scalar(None, dtype=DataType.Double)
    S3 = fd.define_scalar(None, dtype=DataType.Double)
    T4 = fd.define_tensor(shape=[-1, -1, -1], contiguity=[True, True, True], dtype=DataType.Float, is_cpu=False)
    T5 = fd.define_tensor(shape=[-1, -1, -1], contiguity=[True, True, True], dtype=DataType.Float, is_cpu=False)
    T6 = fd.define_tensor(shape=[-1, -1, -1], contiguity=[True, True, True], dtype=DataType.Float, is_cpu=False)
    S7 = fd.define_scalar(0.500000, dtype=DataType.Double)
    T8 = fd.ops.mul(S7, T6)
    S9 = fd.define_scalar(3.00000, dtype=DataType.Double)
    T10 = fd.ops.pow(T6, S9)
    S11 = fd.define_scalar(0.0447150, dtype=DataType.Double)
    T12 = fd.ops.mul(S11, T10)
    T13 = fd.ops.add(T6, T12)
    S14 = fd.define_scalar(0.797885, dtype=DataType.Double)
    T15 = fd.ops.mul(S14, T13)
    T16 = fd.ops.tanh(T15)
    S17 = fd.define_scalar(1.00000, dtype=DataType.Double)
    T18 = fd.ops.add(S17, T16)
    T19 = fd.ops.sum(T4, axes=[0, 1], keepdim=False, dtype=DataType.Null)
    T20 = fd.ops.mul(T5, T18)
    T21 = fd.ops.mul(T5, T8)
    S22 = fd.define_scalar(1.00000, dtype=DataType.Double)
    T23 = fd.ops.mul(S22, T21)
    T24 = fd.ops.mul(T16, T16)
    S25 = fd.define_scalar(1.00000, dtype=DataType.Double)
    T26 = fd.ops.sub(S25, T24)
    T27 = fd.ops.mul(T23, T26)
    T28 = fd.ops.mul(T27, S3)
    S29 = fd.define_scalar(1.00000, dtype=DataType.Double)
    T30 = fd.ops.mul(S29, T28)
    T31 = fd.ops.mul(T30, S2)
    T32 = fd.ops.mul(T31, S1)
    S33 = fd.define_scalar(2.00000, dtype=DataType.Double)
    T34 = fd.ops.pow(T6, S33)
    T35 = fd.ops.mul(T32, T34)
    T36 = fd.ops.add(T30, T35)
    T37 = fd.ops.mul(T20, S0)
    T38 = fd.ops.add(T36, T37)
    fd.add_output(T19)
    fd.add_output(T38)


def reference(s0, s1, s2, s3, t4, t5, t6):
    """The same in NumPy."""
    t16 = np.tanh(0.797885 * (t6 + 0.044715 * t6**3))
    t30 = t5 * (0.5 * t6) * (1 - t16 * t16) * s3
    return t4.sum((0, 1)), t30 + t30 * s2 * s1 * t6**2 + t5 * (1 + t16) * s0


def main() -> None:
    with FusionDefinition() as fd:
        define(fd)

    # Memory that is never touched: this only looks at what would run, for a GPU that need not be here.
    inputs = [1.0, 2.0, 3.0, 4.0, *(np.empty((16, 512, 4096), np.float32) for _ in range(3))]
    print(fd.lower(inputs, target="cuda:sm_90").as_text("segmented", locations=True))
    explanation = fd.explain(inputs, target="cuda:sm_90")
    print(explanation)
    if len(sys.argv) > 1:
        explanation.save(sys.argv[1])

    tensors = [np.random.default_rng(k).standard_normal((4, 8, 64), np.float32) for k in range(3)]
    results = fd.execute([0.5, 0.75, 1.25, 1.5, *tensors])
    for result, wanted in zip(results, reference(0.5, 0.75, 1.25, 1.5, *(t.astype(np.float64) for t in tensors))):
        np.testing.assert_allclose(result, wanted, rtol=1e-4, atol=1e-4)


if __name__ == "__main__":
    main()
