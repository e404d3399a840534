"""A generator of malformed definitions: each op of ``fd.ops`` with arguments of wrong types, ranks, axes, counts and
definitions, and calls of a definition with inputs that do not fit.

Each program must run, or raise a RuntimeError of ours (nvFuser's exceptions are RuntimeErrors) whose message is for
users: no error of Python's about our own code. ``python test/py/frontend_definition/malformed_definitions.py FIRST LAST`` runs programs by
number and prints those that do neither.
"""

from __future__ import annotations

import inspect
import random
import re
import sys
import traceback
import warnings

import torch

from mlirfuse.core.errors import MlirfuseError
from mlirfuse.frontend.nvfuser.ops.operators import Operators
from mlirfuse.nvfuser import DataType, FusionDefinition

OPERATIONS = [name for name, method in inspect.getmembers(Operators) if getattr(method, "operation", False)]
OPERATIONS += ["shape", "at"]
# What an error of Python's about our own code says.
INTERNAL = re.compile(
    r"object (has no attribute|is not|does not|of type)|unhashable|subscriptable|'NoneType' object|"
    r"argument must be|not supported between|unsupported operand|unpack|KeyError|AttributeError|AssertionError|"
    r"(tuple|list) index|^\s*$|nanobind|internal"
)
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.bool,
          torch.complex64]  # fmt: skip
SHAPES = [(), (1,), (4,), (0,), (3, 4), (4, 3), (3, 1), (2, 3, 4), (2, 4, 3, 3)]


def array(r: random.Random) -> torch.Tensor:
    """A tensor of a random type and shape."""
    shape, dtype = r.choice(SHAPES), r.choice(DTYPES[:1] * 5 + DTYPES)
    created = torch.arange(max(1, torch.Size(shape).numel())).remainder(3)[: torch.Size(shape).numel()].view(shape)
    return created.to(dtype)


class Definition:
    """One malformed definition, made from a number; ``lines`` say what it does."""

    def __init__(self, seed: int):
        self.r = random.Random(seed)
        self.lines: list[str] = []
        self.inputs: list = []

    def declare(self, fd) -> None:
        r = self.r
        self.tensors, self.scalars = [], []
        for _ in range(r.randint(1, 3)):
            x = array(r)
            self.inputs.append(x)
            self.tensors.append(fd.from_pytorch(x))
            self.lines.append(f"from_pytorch({tuple(x.shape)}, {x.dtype})")
        for _ in range(r.randint(0, 2)):
            dtype, value = r.choice([(DataType.Int, r.choice([-5, -1, 0, 1, 2, 7, 2**40])), (DataType.Double, 1.5),
                                     (DataType.Bool, True), (DataType.ComplexDouble, 1j)])  # fmt: skip
            self.inputs.append(value)
            self.scalars.append(fd.define_scalar(None, dtype))
            self.lines.append(f"define_scalar(None, {dtype}) = {value}")
        with FusionDefinition() as other:
            self.foreign = other.from_pytorch(torch.ones(3, 4))
            self.foreign_scalar = other.define_scalar(None, DataType.Int)

    def number(self):
        return self.r.choice([0, 1, 2, 3, -1, -2, 5, 4, 2**31, 2**63, 2**70, -(2**70), 1.5, True, 1j, float("nan")])

    def listed(self, fd):
        r = self.r
        return [r.choice([0, 1, 2, 3, 4, -1, -2, 1, 2.5, None, True, *self.scalars]) for _ in range(r.randint(0, 4))]

    def wrong(self, fd):
        """Something that most parameters do not take."""
        r = self.r
        return r.choice([
            lambda: None, list, lambda: "x", dict, lambda: self.foreign, lambda: self.foreign_scalar,
            lambda: self.number(), lambda: self.listed(fd), lambda: r.choice(self.tensors), lambda: DataType.Float,
            lambda: DataType.Null, lambda: DataType.Float4_e2m1fn, lambda: torch.ones(3), lambda: object(),
            lambda: [r.choice(self.tensors)], lambda: (1, (2, 3)), lambda: fd.ops, lambda: fd, lambda: int,
            lambda: fd.ops.shape(r.choice(self.tensors)), lambda: {1, 2}, lambda: b"x", lambda: slice(1, 2),
            lambda: torch.float32,
        ])()  # fmt: skip

    def fitting(self, fd, name: str):
        """Something for a parameter of this name."""
        r = self.r
        if name in ("dim", "dims", "axis", "k", "chunks", "index", "num_groups", "padding_idx", "length", "diagonal"):
            kinds = [
                lambda: r.randint(-3, 3),
                lambda: [r.randint(-3, 3) for _ in range(r.randint(0, 3))],
                lambda: r.choice(self.tensors),
                lambda: r.choice([0, 1, -1]),
                lambda: r.choice([0, *self.scalars]),
            ]
            return r.choice(kinds)()
        if name in ("shape", "new_shape", "norm_shape", "original_shape", "sizes", "start_indices", "end_indices",
                    "strides", "pad_widths", "broadcast_dims", "is_broadcast_dim", "output_mask"):  # fmt: skip
            return self.listed(fd) if r.random() < 0.5 else [r.randint(0, 4) for _ in range(r.randint(0, 4))]
        if name == "tensors":
            return [r.choice(self.tensors) for _ in range(r.randint(0, 3))]
        if name in ("dtype",):
            return r.choice(list(DataType))
        if name in ("eps", "momentum", "scale", "prob", "rng_seed", "rng_offset", "dropout_p", "correction"):
            return r.choice([1e-5, 1, None, 0.5, *self.scalars])
        if name in ("training", "keepdim", "is_causal", "largest", "sorted", "descending", "use_input_stats"):
            return r.choice([True, False])
        return r.choice([*self.tensors, *self.tensors, *self.scalars, 2.0, 1])

    def statement(self, fd):
        """One op on random arguments; what it returns."""
        r = self.r
        name = r.choice(OPERATIONS)
        parameters = list(inspect.signature(getattr(Operators, name)).parameters.values())[1:]
        arguments = {}
        for p in parameters:
            if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) or (p.default is not p.empty and r.random() < 0.6):
                continue
            arguments[p.name] = self.wrong(fd) if r.random() < 0.2 else self.fitting(fd, p.name)
        if r.random() < 0.03 and arguments:
            arguments.pop(r.choice(list(arguments)))
        if r.random() < 0.02:
            arguments["unknown"] = 1
        self.lines.append(f"fd.ops.{name}({', '.join(f'{k}={v!r}' for k, v in arguments.items())})")
        return getattr(fd.ops, name)(**arguments)

    def call(self) -> list:
        """The inputs of a call, some of which may not fit."""
        r, given = self.r, list(self.inputs)
        if r.random() < 0.4:
            k = r.randrange(len(given))
            x = given[k]
            changes = [lambda: None, lambda: "x", lambda: 2**70, lambda: [1], lambda: -1, lambda: 1.5, lambda: object()]
            if isinstance(x, torch.Tensor):
                changes += [lambda: x.to(r.choice(DTYPES)), lambda: x[None], lambda: x.to("meta"), lambda: x.numpy(),
                            lambda: x.to_sparse() if x.dim() else x, lambda: x.expand(2, *x.shape),
                            lambda: x.repeat_interleave(2, 0) if x.dim() else x,
                            lambda: x.T if x.dim() == 2 else x, lambda: x.to(torch.int8)]  # fmt: skip
            try:
                given[k] = r.choice(changes)()
            except Exception:  # what torch does not make is not given
                return given
            self.lines.append(f"input {k} = {given[k]!r}")
        elif r.random() < 0.1:
            given = given[:-1] if r.random() < 0.5 else [*given, 1]
        return given

    def run(self) -> None:
        r = self.r
        with FusionDefinition() as fd:
            self.declare(fd)
            created = []
            for _ in range(r.randint(1, 3)):
                out = self.statement(fd)
                flat = list(out) if isinstance(out, (tuple, list)) else [out]
                created += flat
                self.tensors += [t for t in flat if hasattr(t, "is_tensor") and t.is_tensor()]
            for t in created:
                if t is not None:
                    fd.add_output(
                        t if not hasattr(t, "is_tensor") or t.is_tensor() else fd.ops.full([], t, t.data_type)
                    )
        self.lines.append("execute")
        fd.execute(self.call())


def problem(seed: int) -> str | None:
    """What is wrong with what definition ``seed`` raises, with the program; None where all is well."""
    one = Definition(seed)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            one.run()
    except RuntimeError as error:
        ours = isinstance(error, MlirfuseError | NotImplementedError)  # else the library's that ran an op
        said = str(error).partition(": ")[2] or str(error)  # without our file's name
        if not INTERNAL.search(said if ours else str(error)):
            return None
        found = error
    except Exception as error:
        found = error
    else:
        return None
    where = traceback.extract_tb(found.__traceback__)[-1]
    return "\n  ".join([f"{seed}: {type(found).__name__}: {found} ({where.filename}:{where.lineno})", *one.lines])


if __name__ == "__main__":
    first, last = map(int, sys.argv[1:])
    problems = [p for seed in range(first, last) if (p := problem(seed))]
    print("\n".join(problems))
    print(f"{len(problems)} of {last - first} raise something else")
    sys.exit(bool(problems))
