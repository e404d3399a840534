"""TorchScript as Python: the graph of a ``ScriptModule`` or ``ScriptFunction`` written as a Python function over ATen
ops, which Dynamo and AOTAutograd trace like any other. ``prim::If`` is an ``if``, ``prim::Loop`` a ``for``.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from mlirfuse.core.errors import UnsupportedError

_DTYPES = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32,
           torch.float64, torch.complex32, torch.complex64, torch.complex128, torch.bool, None, None, None,
           torch.bfloat16)  # fmt: skip
_FORMATS = (torch.contiguous_format, torch.preserve_format, torch.channels_last, torch.channels_last_3d)
_NUMBERS = {  # of ATen's names on what is no tensor
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "floordiv": operator.floordiv,
    "floor_divide": operator.floordiv,
    "remainder": operator.mod,
    "pow": operator.pow,
    "neg": operator.neg,
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "__and__": lambda a, b: a and b,
    "__or__": lambda a, b: a or b,
    "__not__": operator.not_,
    "__is__": operator.is_,
    "__isnot__": operator.is_not,
    "__contains__": operator.contains,
    "__getitem__": operator.getitem,
    "len": len,
    "sqrt": math.sqrt,
    "ceil": math.ceil,
    "floor": math.floor,
    "format": lambda text, *values: text.format(*values),
    "list": list,
    "append": lambda values, x: values.append(x) or values,
}
_ANY = {  # on tensors and numbers alike
    "aten::Int": int,
    "aten::Float": float,
    "aten::Bool": bool,
    "aten::IntImplicit": int,
    "aten::FloatImplicit": float,
    "aten::ScalarImplicit": lambda x: x.item() if isinstance(x, torch.Tensor) else x,
    "aten::warn": lambda *_: None,
    "prim::NumToTensor": lambda x: x,
    "prim::unchecked_cast": lambda x: x,
    "prim::Uninitialized": lambda *_: None,
    "prim::device": lambda x: x.device,
    "prim::dtype": lambda x: x.dtype,
    "prim::is_cuda": lambda x: x.is_cuda,
    "prim::min": min,
    "prim::max": max,
    "prim::TupleIndex": operator.getitem,
    "prim::data": lambda x: x.data,
}


def as_dtype(x: Any) -> Any:
    """TorchScript numbers element types; so the type of a number, and anything else as it is."""
    return _DTYPES[x] if isinstance(x, int) else x


def as_format(x: Any) -> Any:
    """As :func:`as_dtype`, of memory formats."""
    return _FORMATS[x] if isinstance(x, int) else x


def as_layout(x: Any) -> Any:
    """As :func:`as_dtype`, of layouts."""
    return torch.strided if isinstance(x, int) else x


_CONVERSIONS: dict[str, Callable[[Any], Any]] = {"ScalarType": as_dtype, "MemoryFormat": as_format, "Layout": as_layout}


class FromScript(nn.Module):
    """A ``ScriptModule`` as a module of Python: the same parameters, buffers, names and storage; its ``forward`` is the
    graph, which asks ``training`` as the script does."""

    def __init__(self, script: torch.jit.ScriptModule):
        super().__init__()
        for name, child in script.named_children():
            self.add_module(name, FromScript(child))
        for name, value in script.named_parameters(recurse=False):
            kept = value if isinstance(value, nn.Parameter) else nn.Parameter(value, value.requires_grad)
            self.register_parameter(name, kept)
        for name, value in script.named_buffers(recurse=False):
            self.register_buffer(name, value)
        self.training = script.training


def from_torchscript(script: Any) -> Any:
    """An ``nn.Module`` of a ``ScriptModule``, also of a loaded one; a function of a ``ScriptFunction``.

    Raises :class:`UnsupportedError` for an op of TorchScript that has no counterpart here.
    """
    if isinstance(script, torch.jit.ScriptFunction):
        return _Source(script.graph, None, None).function("script")
    module = FromScript(script)
    forward = _Source(script.graph, script, module).function("forward")
    return _with_forward(module, forward)


def _with_forward(module: FromScript, forward: Callable[..., Any]) -> FromScript:
    kind = type(type(module).__name__, (FromScript,), {"forward": forward})
    module.__class__ = kind
    return module


class _Source:
    """The Python source of a graph. ``script`` and ``module``: the module it belongs to, and what stands for it."""

    def __init__(self, graph: Any, script: Any, module: nn.Module | None):
        graph = graph.copy()
        torch._C._jit_pass_inline(graph)
        self.graph = graph
        self.names: dict[str, str] = {}
        self.scope: dict[str, Any] = {}
        self.objects: dict[str, tuple[Any, Any]] = {}  # of values that are modules: the script's and ours
        self.numbers: set[str] = set()  # values that a trace made tensors of
        inputs = list(graph.inputs())
        if module is not None:
            self.objects[inputs[0].debugName()] = (script, module)
        self.head = ", ".join(map(self.name, inputs))
        self.lines = self.block(graph, "    ")
        outputs = list(map(self.name, graph.outputs()))
        self.lines.append(f"    return {outputs[0] if len(outputs) == 1 else '(' + ', '.join(outputs) + ',)'}")

    def function(self, name: str) -> Callable[..., Any]:
        source = "\n".join([f"def {name}({self.head}):", *self.lines])
        exec(compile(source, "<TorchScript>", "exec"), self.scope)
        return self.scope[name]

    # ---- names

    def name(self, value: Any) -> str:
        return self.names.setdefault(value.debugName(), f"v{len(self.names)}")

    def bound(self, value: Any) -> str:
        name = f"c{len(self.scope)}"
        self.scope[name] = value
        return name

    # ---- statements

    def block(self, block: Any, indent: str) -> list[str]:
        return [indent + line for node in block.nodes() for line in self.node(node)]

    def node(self, node: Any) -> list[str]:
        kind = node.kind()
        given = list(map(self.name, node.inputs()))
        made = list(map(self.name, node.outputs()))
        special = getattr(self, "_" + kind.split("::")[1].lower(), None) if kind.startswith("prim::") else None
        if special is not None:
            return special(node, given, made)
        target = ", ".join(made)
        return [f"{target} = {self.call(node, kind, given)}" if made else self.call(node, kind, given)]

    def call(self, node: Any, kind: str, given: list[str]) -> str:
        inputs = list(node.inputs())
        if kind in _ANY:
            if kind == "prim::NumToTensor":
                self.numbers.add(node.output().debugName())
            return f"{self.bound(_ANY[kind])}({', '.join(given)})"
        space, short = kind.split("::")
        tensors = [v for v in inputs if v.debugName() not in self.numbers and "Tensor" in str(v.type())]
        if short in _NUMBERS and (
            not tensors or short in ("__getitem__", "len", "__is__", "__isnot__", "append", "list")
        ):
            if len(inputs) != len(tensors) and any(v.debugName() in self.numbers for v in inputs):
                self.numbers.add(node.output().debugName())
            return f"{self.bound(_NUMBERS[short])}({', '.join(given[:2] if short != 'format' else given)})"
        if short == "size" and len(given) == 1:
            return f"list({given[0]}.shape)"
        if node.schema() == "(no schema)" or space not in ("aten", "torchvision", "prims"):
            raise UnsupportedError(f"TorchScript's {kind} is not taken: {str(node).strip()}")
        schema = torch._C.parse_schema(node.schema())
        packet = getattr(getattr(torch.ops, space), short)
        function = getattr(packet, schema.overload_name or "default")
        spelled = []
        for argument, name in zip(schema.arguments, given):
            convert = next((f for key, f in _CONVERSIONS.items() if key in str(argument.real_type)), None)
            text = name if convert is None else f"{self.bound(convert)}({name})"
            spelled.append(f"{argument.name}={text}" if argument.kwarg_only else text)
        return f"{self.bound(function)}({', '.join(spelled)})"

    # ---- prim::

    def _constant(self, node: Any, given: list[str], made: list[str]) -> list[str]:
        value = node.output().toIValue() if node.output().type().kind() != "NoneType" else None
        plain = value is None or type(value) in (bool, int, str)
        return [f"{made[0]} = {value!r}" if plain else f"{made[0]} = {self.bound(value)}"]

    def _getattr(self, node: Any, given: list[str], made: list[str]) -> list[str]:
        attribute, owner = node.s("name"), node.input().debugName()
        script, module = self.objects.get(owner, (None, None))
        if script is not None and module is not None and attribute != "training":
            found = getattr(script, attribute)
            if isinstance(found, torch.nn.Module):
                self.objects[node.output().debugName()] = (found, getattr(module, attribute))
            elif not hasattr(module, attribute):
                setattr(module, attribute, found)
        return [f"{made[0]} = getattr({given[0]}, {attribute!r})"]

    def _setattr(self, node: Any, given: list[str], made: list[str]) -> list[str]:
        return [f"{given[0]}.{node.s('name')} = {given[1]}"]

    def _listconstruct(self, node: Any, given: list[str], made: list[str]) -> list[str]:
        return [f"{made[0]} = [{', '.join(given)}]"]

    def _tupleconstruct(self, node: Any, given: list[str], made: list[str]) -> list[str]:
        return [f"{made[0]} = ({''.join(name + ', ' for name in given)})"]

    def _dictconstruct(self, node: Any, given: list[str], made: list[str]) -> list[str]:
        pairs = ", ".join(f"{k}: {v}" for k, v in zip(given[::2], given[1::2]))
        return [f"{made[0]} = {{{pairs}}}"]

    def _listunpack(self, node: Any, given: list[str], made: list[str]) -> list[str]:
        return [f"{''.join(name + ', ' for name in made)} = {given[0]}"]

    _tupleunpack = _listunpack

    def _raiseexception(self, node: Any, given: list[str], made: list[str]) -> list[str]:
        return [f"raise RuntimeError({given[0]})"]

    def _if(self, node: Any, given: list[str], made: list[str]) -> list[str]:
        out = []
        for word, block in zip((f"if {given[0]}:", "else:"), node.blocks()):
            out += [word, *self.block(block, "    ")]
            out += [f"    {a} = {self.name(b)}" for a, b in zip(made, block.outputs())] or ["    pass"]
        return out

    def _loop(self, node: Any, given: list[str], made: list[str]) -> list[str]:
        (block,) = node.blocks()
        counter, *carried = map(self.name, block.inputs())
        out = [f"{a} = {b}" for a, b in zip(carried, given[2:])]
        go = f"go{len(self.names)}_{len(self.scope)}"
        out += [f"{go} = {given[1]}", f"for {counter} in range({given[0]}):", f"    if not {go}:", "        break"]
        out += self.block(block, "    ")
        again, *following = map(self.name, block.outputs())
        if carried:
            out.append(f"    {', '.join(carried)}, = {', '.join(following)},")
        out.append(f"    {go} = {again}")
        return out + [f"{a} = {b}" for a, b in zip(made, carried)]
