"""Two kernels that share nothing, printed as one program: `python examples/segmented_ir_small.py [page.html]`.

The first program of the nvFuser issue that asks for segments to be shown in the fusion itself (docs/internals/levels.md
quotes the output).
"""

import sys

import numpy as np

from mlirfuse.nvfuser import DataType, FusionDefinition


def define(fd: FusionDefinition) -> None:
    T4 = fd.define_tensor(shape=[-1, -1, -1], contiguity=[True, True, True], dtype=DataType.Float, is_cpu=False)
    T6 = fd.define_tensor(shape=[-1, -1, -1], contiguity=[True, True, True], dtype=DataType.Float, is_cpu=False)
    S7 = fd.define_scalar(0.500000, dtype=DataType.Double)
    T8 = fd.ops.mul(S7, T6)  # noqa: F841  (nobody uses it: it is in no kernel)
    S9 = fd.define_scalar(3.00000, dtype=DataType.Double)
    T10 = fd.ops.pow(T6, S9)
    T19 = fd.ops.sum(T4, axes=[0, 1], keepdim=False, dtype=DataType.Null)
    fd.add_output(T19)
    fd.add_output(T10)


def main() -> None:
    with FusionDefinition() as fd:
        define(fd)

    # Memory that is never touched: this only looks at what would run, for a GPU that need not be here.
    inputs = [np.empty((16, 512, 4096), np.float32), np.empty((16, 512, 4096), np.float32)]
    lowered = fd.lower(inputs, target="cuda:sm_90")
    print(lowered.as_text("segmented", locations=True))
    explanation = fd.explain(inputs, target="cuda:sm_90")
    print(explanation)
    if len(sys.argv) > 1:
        explanation.save(sys.argv[1])

    a, b = (np.random.default_rng(k).standard_normal((4, 8, 64), np.float32) for k in range(2))
    total, cube = fd.execute([a, b])
    np.testing.assert_allclose(total, a.sum((0, 1)), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(cube, b**3, rtol=1e-5)


if __name__ == "__main__":
    main()
