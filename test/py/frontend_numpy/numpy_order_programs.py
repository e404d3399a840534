"""Random programs that show how arrays lie in memory: results of arguments in other orders than row-major, ``order=``,
views and copies, equal copies, views of what is written, real and imaginary parts. Values, the order of the results'
dimensions in memory, and which results and arguments share memory, are NumPy's.

By hand, thousands: ``python test/py/fuzz.py COUNT FIRST numpy_order_programs``.
"""

from __future__ import annotations

import random

import numpy as np
from beside_numpy import Case, main

_VIEWS = [
    "{x}.T", "{x}[::-1]", "{x}[1:]", "{x}[:, ::2]", "{x}[..., :-1]", "np.swapaxes({x}, 0, 1)", "np.moveaxis({x}, 0, -1)",
    "{x}[:, None]", "np.flip({x}, -1)", "np.expand_dims({x}, 0)", "{x}.ravel()", "{x}.reshape(-1)", "{x}.T.ravel()",
    "{x}.ravel('K')", "{x}.ravel('F')", "np.ravel({x}, 'A')", "{x}.reshape(-1, order='A')", "{x}.reshape(2, -1)",
    "{x}.reshape(-1, order='F')", "{x}.real", "np.diagonal({x})", "np.diagonal({x}, 1)", "{x}[::-1].diagonal()",
    "np.rot90({x})", "np.squeeze({x})", "{x}.view()", "np.asarray({x})", "np.asarray({x}, order='F')", "{x}[0]",
    "np.asarray({x}, order='C')", "np.ascontiguousarray({x})", "np.asfortranarray({x})", "np.broadcast_to({x}, (2, *{x}.shape))",
    "np.atleast_3d({x})", "{x}.transpose()", "{x}[k]", "{x}[:, k]", "{x}.astype({x}.dtype, copy=False)",
]  # fmt: skip
_COPIES = [
    "{x} * 2", "-{x}", "{x} + {y}", "{x} * {x}[:1]", "{x}.copy()", "{x}.copy('K')", "{x}.copy('F')", "{x}.copy('A')",
    "np.copy({x})", "np.copy({x}, 'C')", "np.array({x})", "np.array({x}, order='F')", "{x}.flatten()", "{x}.flatten('F')",
    "{x}.flatten('K')", "{x}.flatten('A')", "{x}.astype('f8')", "{x}.astype('c16')", "{x}.astype('f4', order='C')", "{x}.astype('i4', order='F')",
    "np.zeros_like({x})", "np.ones_like({x}, order='C')", "np.full_like({x}, 3, order='F')", "np.zeros_like({x}, shape=(2, 3))",
    "np.where({x} == 3, {x}, {y})", "{x}.sum(0)", "{x}.mean(-1)", "{x}.max(0, keepdims=True)", "np.cumsum({x}, 0)",
    "np.sort({x}, 0)", "np.concatenate([{x}, {y}])", "np.stack([{x}, {y}])", "np.stack([{x}, {x}], -1)", "np.roll({x}, 1, 0)",
    "np.repeat({x}, 2, 0)", "np.tile({x}, 2)", "np.diff({x}, axis=0)", "np.abs({x})", "{x} == {y}", "{x}[i]", "{x}[:, i]",
    "np.take({x}, i, 0)", "np.zeros({x}.shape, order='F') + {x}", "np.maximum({x}.real, 2)", "{x}.conj()", "np.clip({x}.real, 1, 4)",
    "np.exp({x})", "np.tril({x})", "np.round({x}, 1)", "{x}.argsort(0)", "np.argmax({x}, 0)", "np.isnan({x})", "{x}.imag",
    "np.float64(2) * {x}", "np.outer({x}[0].ravel(), {x}[0].ravel())", "{x}.var(0)", "{x}.any(0)", "np.nan_to_num({x})",
    "{x}.reshape(-1).copy()", "np.pad({x}, 1)", "np.angle({x})", "np.real({x}) + 1",
]  # fmt: skip


class _Program:
    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self.dtype = self.pick("f8", "f8", "f4", "i8", "c16")
        self.shape = self.pick((3, 4), (4, 4), (3, 4, 5), (4, 4, 3), (40, 50), (2, 3, 4, 5), (1, 6), (6, 1))
        self.layout = self.pick("C", "F", "F", "permuted", "strided", "strided F", "reversed", "broadcast")
        self.seed = seed

    def pick(self, *choices):
        return self.random.choice(choices)

    def text(self) -> str:
        lines, names = [], ["a", "b"]
        for n in range(self.random.randrange(1, 4)):
            x, y = self.pick(*names[-3:]), self.pick(*names)
            lines.append(f"v{n} = " + self.pick(*_VIEWS, *_COPIES).format(x=x, y=y))
            if self.random.randrange(4) == 0:
                lines.append(lines[-1].replace(f"v{n} = ", f"w{n} = "))
                names.append(f"w{n}")
            names.append(f"v{n}")
        if self.random.randrange(4) == 0:
            lines.insert(self.random.randrange(len(lines) + 1), self.pick("a += 1", "a[0] = 7", "a[:] = a[::-1]"))
        if self.random.randrange(4) == 0:
            lines.insert(self.random.randrange(len(lines) + 1), "if a.sum() == 12345: return a")
        returned = [name for name in names if name != "b"]
        self.random.shuffle(returned)
        lines.append(f"return {', '.join(returned[: self.random.randrange(1, 5)])},")
        return "def f(a, b, k, i):\n" + "".join(f"    {line}\n" for line in lines)

    def make(self) -> tuple:
        rng = np.random.default_rng(self.seed)
        return self.array(rng), self.array(rng), int(1 not in self.shape), np.array([1 not in self.shape, 0, 0], int)

    def array(self, rng) -> np.ndarray:
        shape, rank = self.shape, len(self.shape)

        def filled(extents) -> np.ndarray:
            created = rng.integers(0, 9, extents)
            return (created + 1j * rng.integers(0, 9, extents) if self.dtype == "c16" else created).astype(self.dtype)

        if self.layout == "F":
            return np.asfortranarray(filled(shape))
        if self.layout == "permuted":
            order = [*range(1, rank), 0] if rank > 2 else [1, 0]
            created = filled([shape[d] for d in order])
            return created.transpose(np.argsort(order))
        if self.layout == "strided":
            return filled([n * 2 for n in shape])[tuple(slice(None, None, 2) for _ in shape)]
        if self.layout == "strided F":
            return filled([n * 2 for n in shape[::-1]])[tuple(slice(None, None, 2) for _ in shape)].T
        if self.layout == "reversed":
            return filled(shape)[::-1]
        if self.layout == "broadcast":
            return filled([1, *shape[1:]]).repeat(shape[0], 0)
        return filled(shape)


def generate(seed: int) -> Case:
    """The program of a seed."""
    program = _Program(seed)
    return Case(program.text(), program.make, ulps=8)


if __name__ == "__main__":
    main(generate)
