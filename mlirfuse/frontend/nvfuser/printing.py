"""nvFuser's printed form of a definition, and the canonical key that equal definitions share.

It prints what the outputs need: inputs in order, then each op after its operands, constants as ``define_scalar`` just
before their first use. Executing the text gives the same fusion.
"""

from __future__ import annotations

import math

from mlirfuse.frontend.nvfuser.promotion import DataType


def number(value) -> str:
    """A constant as nvFuser prints it, six digits for floats, or more where six do not read back as the same number."""
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, complex):
        # Python reads a+bj exactly only where both parts are finite.
        if math.isfinite(value.real) and math.isfinite(value.imag):
            sign = "-" if math.copysign(1, value.imag) < 0 else "+"
            text = f"{number(value.real)}{sign}{number(abs(value.imag))}j"
            if complex(text.replace(" ", "")) == value and "e" not in text:
                return text
        return f"complex({number(value.real)}, {number(value.imag)})"
    if isinstance(value, float):
        if math.isinf(value):
            return 'float("-inf")' if value < 0 else 'float("inf")'
        if math.isnan(value):
            return 'float("nan")'
        text = f"{value:#.6g}"
        return text if float(text) == value else repr(value)
    return repr(value)


def live_records(records, outputs) -> list:
    """The op records that ``outputs`` need, in topological order: depth first, operands in order."""
    ordered, seen = [], set()
    stack = [(record, False) for record in (value.record for value in reversed(outputs)) if record is not None]
    while stack:
        record, done = stack.pop()
        if done:
            ordered.append(record)
        elif id(record) not in seen:
            seen.add(id(record))
            stack.append((record, True))
            stack.extend(
                (v.record, False)
                for v in reversed(record.operands())
                if v.record is not None and id(v.record) not in seen
            )
    return ordered


class Printer:
    """Prints a definition. Names values by creation (``names="created"``) or by order of printing
    (``names="printed"``)."""

    def __init__(self, definition, names="created"):
        self.definition = definition
        self.canonical = names == "printed"
        self.names: dict[int, str] = {}
        self.lines: list[str] = []
        self.constants: set[int] = set()
        self.counts = {"tv": 0, "c": 0}

    def name(self, value) -> str:
        found = self.names.get(id(value))
        if found is None:
            prefix = "tv" if value.is_tensor() else "c"
            if self.canonical:
                found = f"{prefix}{self.counts[prefix]}"
                self.counts[prefix] += 1
            else:
                found = f"{prefix}{value.number}"
            self.names[id(value)] = found
        return found

    def operand(self, value, inline: bool) -> str:
        """An operand; a constant is written in place (``inline``, or always for the key), else defined first."""
        if not value.is_tensor() and value.record is None and not value.is_symbolic():
            if self.canonical:
                return f"{number(value.constant)}:{value.data_type.name}"
            if inline and isinstance(value.constant, int) and not isinstance(value.constant, bool):
                return number(value.constant)
            if id(value) not in self.constants:
                self.constants.add(id(value))
                self.lines.append(
                    f"{self.name(value)} = fd.define_scalar({number(value.constant)}, dtype={value.data_type})"
                )
        return self.name(value)

    def argument(self, value, inline=False) -> str:
        if hasattr(value, "record"):
            return self.operand(value, inline)
        if isinstance(value, (list, tuple)):
            return "[" + ", ".join(self.argument(v, True) for v in value) + "]"
        if isinstance(value, DataType):
            return str(value)
        if isinstance(value, (float, complex)):
            return number(value)
        return repr(value)

    def input(self, value) -> None:
        if not value.is_tensor():
            self.lines.append(f"{self.name(value)} = fd.define_scalar(None, dtype={value.data_type})")
            return
        d = value.declaration
        text = f"shape={list(d.shape)}, contiguity={list(d.contiguity)}, dtype={d.dtype}, is_cpu={d.is_cpu}"
        rank = len(d.shape)
        if list(d.stride_order) != list(range(rank - 1, -1, -1)):
            text += f", stride_order={list(d.stride_order)}"
        self.lines.append(f"{self.name(value)} = fd.define_tensor({text})")

    def op(self, record) -> None:
        arguments = []
        for key, value in record.arguments:
            text = self.argument(value)
            arguments.append(text if key is None else f"{key}={text}")
        if self.canonical:
            for value in record.results:
                self.name(value)
        returned = record.returned if isinstance(record.returned, (list, tuple)) else [record.returned]
        left = ", ".join("_" if v is None else self.name(v) for v in returned)
        if len(returned) == 1 and returned[0] is not record.returned:
            left += ","
        self.lines.append(f"{left} = fd.ops.{record.name}({', '.join(arguments)})")

    def program(self) -> list[str]:
        definition = self.definition
        for value in definition.inputs:
            self.input(value)
        for record in live_records(definition.records, [o.value for o in definition.outputs]):
            self.op(record)
        for output in definition.outputs:
            if output.hidden:
                continue
            text = self.name(output.value)
            if output.alias is not None:
                text += f", {self.name(output.alias)}"
            if output.stride_order is not None:
                text += f", stride_order={list(output.stride_order)}"
            self.lines.append(f"fd.add_output({text})")
        return self.lines


def text(definition) -> str:
    """nvFuser's printed form."""
    lines = Printer(definition).program()
    return "def nvfuser_fusion(fd : FusionDefinition) -> None :\n" + "".join(
        f"    {line}\n" for line in lines or ["pass"]
    )


def key(definition) -> str:
    """A key that is equal for definitions with the same computation and inputs, whatever their values' names."""
    return "\n".join(Printer(definition, names="printed").program())


def input_text(value) -> str:
    """A Python expression that creates an input like ``value``."""
    if isinstance(value, (bool, int, float, complex)):
        return number(value)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(input_text, value)) + "]"
    if type(value).__module__.split(".")[0] == "torch":
        low, high = ", low=0", ", high=2"
        limits = (
            low + high
            if not (value.dtype.is_floating_point or value.dtype.is_complex) and value.dtype is not _bool(value)
            else ""
        )
        shape, device = tuple(value.shape), str(value.device)
        if value.is_contiguous():
            return f"torch.testing.make_tensor({shape}, dtype={value.dtype}, device='{device}'{limits})"
        extent = 1 + sum((n - 1) * s for n, s in zip(value.shape, value.stride())) if value.numel() else 0
        return (
            f"torch.testing.make_tensor(({extent},), dtype={value.dtype}, "
            f"device='{device}'{limits}).as_strided({shape}, {tuple(value.stride())})"
        )
    shape, dtype = tuple(value.shape), value.dtype
    return f"np.ones({shape}, dtype='{dtype}')"


def _bool(value):
    import torch

    return torch.bool


def repro(definition, inputs=None) -> str:
    """A script that defines the fusion and, given inputs, runs it on inputs like them."""
    import sys

    out = ""
    torch = sys.modules.get("torch")
    if torch is not None:
        out += "# CUDA devices:\n"
        if torch.cuda.is_available():
            out += "".join(f"#  {k}: {torch.cuda.get_device_name(k)}\n" for k in range(torch.cuda.device_count()))
        out += f"# torch version: {torch.__version__}\n# cuda version: {torch.version.cuda}\nimport torch\n"
    if inputs is not None and any(type(v).__module__.split(".")[0] == "numpy" for v in inputs):
        out += "import numpy as np\n"
    out += "from mlirfuse import FusionDefinition, DataType\n" + text(definition)
    out += "with FusionDefinition() as fd:\n    nvfuser_fusion(fd)\n"
    if inputs is not None:
        out += (
            "\ninputs = [\n"
            + "".join(f"    {v if isinstance(v, str) else input_text(v)},\n" for v in inputs)
            + "]\nfd.execute(inputs)\n"
        )
    return out
