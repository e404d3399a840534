"""Exports groups as executable Python programs: NumPy code, which ``jit`` compiles again."""

from __future__ import annotations

import numpy as np

from mlirfuse.inspect import listing
from mlirfuse.ir import dtypes as dt
from mlirfuse.ir import ops
from mlirfuse.ir import sizes as sz
from mlirfuse.ir.graph import Graph, Group, Layout, Op, Value

_INFIX = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
}
# Elementwise functions that NumPy lacks: :mod:`mlirfuse.numpy` has them by the op's name.
OWN_FUNCTIONS = frozenset({"rsqrt", "erf", "erfc", "erfinv", "erfcinv", "lgamma", "sigmoid", "silu", "relu", "cast"})
_SPLIT = {"frac": "{0} - np.trunc({0})", "segment_set": "np.copy({0})"}


def groups(graph: Graph, env: dict[str, int]) -> dict[int, str]:
    """Return the source of a program for each group of ``graph``, by number; its inputs have the sizes ``env``."""
    members: dict[Group, list[Op]] = {}
    for op in graph.ops:
        if op.group is not None:
            members.setdefault(op.group, []).append(op)
    return {group.number: _Program(graph, ops, group.number, env).text() for group, ops in members.items()}


class _Program:
    def __init__(self, graph: Graph, members: list[Op], number: int, env: dict[str, int]):
        self.graph, self.ops, self.env = graph, members, env
        self.name = f"group{number}"
        self.names = listing.Names(graph)
        inside = set(members)
        created = {v for op in members for v in op.results}
        users = graph.body.users()
        self.inputs = list(dict.fromkeys(v for op in members for v in op.operands if v not in created))
        self.outputs = [
            v
            for op in members
            for v in op.results
            if v in graph.returns or any(u not in inside for u in users.get(v, ()))
        ]
        self.by_reference = False

    # ---- the function

    def text(self) -> str:
        body = [f"    {line}\n" for line in self.sizes()]
        last = None
        for op in self.ops:
            if listing.is_literal(op) and op.result not in self.outputs:
                continue
            comment = f"  # {listing.place(op.loc)}: {listing.source(op.loc)}" if op.loc and op.loc != last else ""
            last = op.loc
            body.append(f"    {', '.join(self.names.of(v) for v in op.results)} = {self.expression(op)}{comment}\n")
        outputs = ", ".join(self.value(v) for v in self.outputs)
        body.append(f"    return {outputs}{',' if len(self.outputs) == 1 else ''}\n")
        arguments = ", ".join(self.names.of(v) for v in self.inputs)
        imports = "import numpy as np\n\nimport mlirfuse\nimport mlirfuse.numpy as mnp\n"
        imports += (
            "from mlirfuse.ir.ops import TABLE  # for ops that NumPy has no name for\n" if self.by_reference else ""
        )
        title = f'"""{self.name} of {self.graph.name}, as it was compiled."""'
        return f"{title}\n\n{imports}\n\ndef {self.name}({arguments}):\n{''.join(body)}\n\n{self.main()}"

    def sizes(self) -> list[str]:
        """Return lines that assign the symbols their values."""
        used = {s for op in self.ops for v in [*op.operands, *op.results] for n in v.shape for s in sz.symbols(n)}
        for op in self.ops:
            for value in op.attrs.values():
                for n in value if isinstance(value, (tuple, list)) else [value]:
                    used |= sz.symbols(n) if isinstance(n, sz.Expr) else set()
        lines: list[str] = []
        found: set[str] = set()
        for v in self.inputs:
            names = [name if (name := sz.reported_by(n)) in used - found else "_" for n in v.shape]
            names = [n if n not in names[:k] else "_" for k, n in enumerate(names)]
            if set(names) - {"_"}:
                lines.append(f"{', '.join(names)}{',' if len(names) == 1 else ''} = {self.names.of(v)}.shape")
                found |= set(names)
        return lines + [
            f"{s} = {self.env[s]}  # no input of the group has it" for s in sorted(used - found) if s in self.env
        ]

    def value(self, v: Value) -> str:
        """Return an expression for a used value: its name, or a number with its type."""
        op = v.op
        if op is None or not listing.is_literal(op) or (v in self.outputs and op in self.ops):
            return self.names.of(v)
        return self.number(op)

    def number(self, op: Op) -> str:
        if op.name == "size":
            return f"mnp.cast({op.attrs['value']}, np.int64)"
        if op.name == "cast":
            inner = op.operands[0].op
            assert inner is not None  # a literal's operands are literals
            number = inner.attrs["value"] if inner.name == "size" else self.number(inner)
            return f"mnp.cast({number}, {dtype(op.result.dtype)})"
        number = op.attrs["value"].item() if isinstance(op.attrs["value"], np.generic) else op.attrs["value"]
        serialized = repr(float(number)) if op.result.dtype.is_float else repr(number)
        if serialized.strip("-") in ("inf", "nan"):
            serialized = f"float('{serialized}')"
        return f"{dtype(op.result.dtype)}({serialized})"

    def expression(self, op: Op) -> str:
        if listing.is_literal(op):
            return self.number(op)
        row, given, attrs = ops.TABLE[op.name], [self.value(v) for v in op.operands], op.attrs
        special = getattr(self, f"_{op.name}", None)
        if special is not None:
            found = special(op, *given)
        elif op.name in _INFIX:
            found = f"{given[0]} {_INFIX[op.name]} {given[1]}"
        elif op.name in _SPLIT:
            found = _SPLIT[op.name].format(*given)
        elif row.kind == "reduce":
            found = self.reduction(op, given[0])
        else:
            name = next(
                (f"np.{n}" for n in row.numpy if hasattr(np, n)), f"mnp.{op.name}" if op.name in OWN_FUNCTIONS else None
            )
            found = (
                f"{name}({', '.join(given)})"
                if name and row.kind == "elementwise" and not attrs.keys() - {"note"}
                else None
            )
        return found or self.reference(op, given)

    def reference(self, op: Op, given: list[str]) -> str:
        self.by_reference = True
        attrs = [f"{k}={self.attribute(op.attrs[k])}" for k in ops.TABLE[op.name].attrs]
        return f"TABLE[{op.name!r}].ref({', '.join([*given, *attrs])})"

    def attribute(self, value) -> str:
        if isinstance(value, (tuple, list)):
            return f"({', '.join(map(self.attribute, value))}{',' if len(value) == 1 else ''})"
        if isinstance(value, dt.DType):
            return f"mlirfuse.ir.dtypes.{'bool_' if value is dt.bool_ else value}"
        return str(value) if isinstance(value, sz.Expr) else repr(value)

    def reduction(self, op: Op, x: str) -> str | None:
        row, attrs = ops.TABLE[op.name], op.attrs
        axes = attrs["axes"]
        words = [x]
        if axes is not None:
            words.append(
                f"axis={axes[0]}"
                if op.row.accumulator == "position" and len(axes) == 1
                else f"axis={self.attribute(tuple(axes))}"
            )
        if op.row.accumulator == "position" and axes is not None and len(axes) > 1:
            return None
        if op.name in ("sum", "prod"):
            words.append(f"dtype={dtype(op.result.dtype)}")
        if attrs.get("correction"):
            words.append(f"ddof={attrs['correction']}")
        if attrs["keepdims"]:
            words.append("keepdims=True")
        if op.row.accumulator == "moments":
            inner = ", ".join([x, *words[1:2], "keepdims=True"])
            return f"np.sum(np.square({x} - np.mean({inner})), {', '.join(words[1:])})"
        name = next((n for n in row.numpy if hasattr(np, n)), None)
        return name and f"np.{name}({', '.join(words)})"

    # ---- ops with special syntax

    def _cast(self, op, x) -> str:
        return f"mnp.cast({x}, {dtype(op.result.dtype)})"

    def _reshape(self, op, x) -> str:
        return f"np.reshape({x}, {self.attribute(tuple(op.attrs['shape']))})"

    def _permute(self, op, x) -> str:
        return f"np.transpose({x}, {tuple(op.attrs['dims'])})"

    def _squeeze(self, op, x) -> str:
        return f"np.squeeze({x}, {tuple(op.attrs['axes'])})"

    def _expand_dims(self, op, x) -> str:
        return f"np.expand_dims({x}, {tuple(op.attrs['axes'])})"

    def _broadcast_in_dim(self, op, x) -> str:
        return f"mnp.broadcast_in_dim({x}, {self.attribute(tuple(op.attrs['shape']))}, {tuple(op.attrs['dims'])})"

    def _slice(self, op, x) -> str | None:
        subscripts = []
        for n, start, size, step in zip(op.operands[0].shape, op.attrs["start"], op.attrs["size"], op.attrs["step"]):
            if start == 0 and size == n and step == 1:
                subscripts.append(":")
            elif step > 0:
                stop = start + sz.mul(size - 1, step) + 1
                subscripts.append(f"{start}:{stop}" + (f":{step}" if step != 1 else ""))
            elif start == n - 1 and step == -1 and size == n:
                subscripts.append("::-1")
            else:
                return None
        return f"{x}[{', '.join(subscripts)}]"

    def _concatenate(self, op, *xs) -> str:
        return f"np.concatenate([{', '.join(xs)}], {op.attrs['axis']})"

    def _pad(self, op, x, value) -> str | None:
        low, high = op.attrs["low"], op.attrs["high"]
        if any(isinstance(n, int) and n < 0 for n in (*low, *high)):
            return None
        widths = ", ".join(f"({a}, {b})" for a, b in zip(low, high))
        return f"np.pad({x}, [{widths}], constant_values={value})"

    def _split(self, op, x) -> str:
        ends, at = [], 0
        for n in op.attrs["sizes"][:-1]:
            at = at + n
            ends.append(str(at))
        return f"np.split({x}, [{', '.join(ends)}], {op.attrs['axis']})"

    def _take(self, op, x, indices) -> str:
        return f"np.take({x}, {indices}, {op.attrs['axis']})"

    def _take_along_axis(self, op, x, indices) -> str:
        return f"np.take_along_axis({x}, {indices}, {op.attrs['axis']})"

    def _full(self, op, value) -> str:
        return f"mnp.full({self.attribute(tuple(op.attrs['shape']))}, {value}, {dtype(op.result.dtype)})"

    def _iota(self, op) -> str:
        shape, axis = op.attrs["shape"], op.attrs["axis"]
        counted = f"mnp.arange({shape[axis]}, dtype={dtype(op.result.dtype)})"
        return (
            counted
            if len(shape) == 1
            else f"mnp.broadcast_in_dim({counted}, {self.attribute(tuple(shape))}, ({axis},))"
        )

    def _random(self, op, seed, offset) -> str:
        return f"mnp.{op.name}({self.attribute(tuple(op.attrs['shape']))}, {seed}, {offset}, {dtype(op.result.dtype)})"

    _uniform = _normal = _random

    # ---- running it

    def main(self) -> str:
        lines = ["rng = np.random.default_rng(0)"]
        layouts = {v: layout for v, layout in zip(self.graph.args, self.graph.layouts) if layout is not None}
        lines += [f"{self.names.of(v)} = {self.example(v, layouts.get(v))}" for v in self.inputs]
        arguments = ", ".join(self.names.of(v) for v in self.inputs)
        lines += ["with np.errstate(all='ignore'):", f"    expected = {self.name}({arguments})"]
        if self.by_reference:
            lines.append("results = expected  # jit cannot trace the references of ops")
        else:
            lines.append(f"results = mlirfuse.jit({self.name}, fallback=False)({arguments})")
        lines += [
            "for result, wanted in zip(results, expected):",
            "    difference = np.abs(np.asarray(result, np.complex128) - wanted).max(initial=0)",
        ]
        lines.append("    print(np.shape(result), result.dtype, 'differs from NumPy by at most', difference)")
        return 'if __name__ == "__main__":\n' + "".join(f"    {line}\n" for line in lines)

    def example(self, v: Value, layout: Layout | None) -> str:
        """Return an expression for an example input of this type."""
        shape = tuple(sz.substitute(n, self.env) for n in v.shape)
        type_ = dtype(v.dtype)
        if not v.shape and v in self.graph.args and self.graph.args.index(v) in self.graph.scalars:
            return f"{type_}(2)"
        order = list(range(len(shape)))
        if layout is not None:
            steps = [sz.substitute(s, self.env) for s in layout.strides]
            order.sort(key=lambda d: (-abs(steps[d]), d))
        inner = tuple(shape[d] for d in order)
        text = {
            "b": f"rng.random({inner}) < 0.5",
            "i": f"rng.integers(0, 2, {inner}).astype({type_})",
            "u": f"rng.integers(0, 2, {inner}).astype({type_})",
        }.get(v.dtype.kind, f"(rng.random({inner}) + 0.5).astype({type_})")
        if v.dtype.kind == "b" and not inner:
            text = "np.asarray(True)"
        elif not inner:
            text = f"np.asarray(1, {type_})"
        return (
            text
            if order == sorted(order)
            else f"({text}).transpose({tuple(order.index(d) for d in range(len(shape)))})"
        )


def dtype(d: dt.DType) -> str:
    """Return a dtype in NumPy's syntax."""
    return "mnp.bfloat16" if d is dt.bf16 else f"np.{np.dtype(d.numpy).name}" + ("_" if d is dt.bool_ else "")
