"""Translates TorchScript to Python: the graph of a ``ScriptModule`` or ``ScriptFunction`` becomes a Python function
over ATen ops, which Dynamo and AOTAutograd trace like any other. ``prim::If`` is an ``if``, ``prim::Loop`` a ``for``.
"""

from __future__ import annotations

import keyword
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from mlirfuse.core.errors import UnsupportedError
from mlirfuse.frontend.torch.torch_private import jit_inline, jit_inline_fork_wait, parse_schema, set_grad_enabled
from mlirfuse.frontend.torch.torchscript.script_functions import as_dtype, as_format, as_layout, python_of

_CONVERSIONS: dict[str, Callable[[Any], Any]] = {"ScalarType": as_dtype, "MemoryFormat": as_format, "Layout": as_layout}


def _named_tuple(kind: str) -> Any:
    """The class of a script's named tuple, if this process has it."""
    module, _, name = kind.removeprefix("__torch__.").rpartition(".")
    found = getattr(sys.modules.get(module), name, None) if kind.startswith("__torch__.") else None
    return found if hasattr(found, "_fields") else None


class FromScript(nn.Module):
    """A ``ScriptModule`` as a Python module with the same parameters, buffers, names and storage; its ``forward`` is
    the translated graph, which reads ``training`` as the script does."""

    def __init__(self, script: torch.jit.ScriptModule):
        super().__init__()
        for name, child in script.named_children():
            self.add_module(name, FromScript(child))
        for name, value in script.named_parameters(recurse=False):
            kept = value if isinstance(value, nn.Parameter) else nn.Parameter(value, value.requires_grad)
            self.register_parameter(name, kept)
        for name, value in script.named_buffers(recurse=False):
            self.register_buffer(name, value)
        self.training = getattr(script, "training", False)  # a frozen module has no training mode


def from_torchscript(script: Any) -> Any:
    """Converts a ``ScriptModule``, also a loaded one, to an ``nn.Module``; a ``ScriptFunction`` to a function.

    Raises :class:`UnsupportedError` for unsupported TorchScript ops.
    """
    if isinstance(script, torch.jit.ScriptFunction):
        return _Source(script.graph, script.schema, None, None).function(script.name)
    module = FromScript(script)
    methods = {}
    for name in script._c._method_names():
        method = script._c._get_method(name)
        methods[name] = _Source(method.graph, method.schema, script, module).function(name)
    module.__class__ = type(type(module).__name__, (FromScript,), methods)
    return module


class _Source:
    """The Python source of a graph. ``script`` and ``module``: the script module it belongs to, and its translation."""

    def __init__(self, graph: Any, schema: Any, script: Any, module: nn.Module | None):
        graph = graph.copy()
        jit_inline(graph)
        jit_inline_fork_wait(graph)
        self.graph = graph
        self.names: dict[str, str] = {}
        self.scope: dict[str, Any] = {}
        self.objects: dict[str, tuple[Any, Any]] = {}  # modules: (the script's, its translation)
        self.numbers: set[str] = set()  # numbers that tracing turned into tensors
        self.no_grads: set[str] = set()  # names that hold the mode around a ``with torch.no_grad()``
        inputs = list(graph.inputs())
        if module is not None:
            self.objects[inputs[0].debugName()] = (script, module)
        self.head = ", ".join(map(self.argument, inputs, schema.arguments))
        self.lines = self.block(graph, "    ")
        outputs = list(map(self.name, graph.outputs()))
        self.lines.append(f"    return {outputs[0] if len(outputs) == 1 else '(' + ', '.join(outputs) + ',)'}")

    def function(self, name: str) -> Callable[..., Any]:
        source = "\n".join([f"def {name}({self.head}):", *self.lines])
        exec(compile(source, "<TorchScript>", "exec"), self.scope)
        return self.scope[name]

    # ---- names

    def argument(self, value: Any, declared: Any) -> str:
        """A parameter declaration with its default."""
        name = declared.name
        if name.isidentifier() and not keyword.iskeyword(name) and name not in self.names.values():
            self.names[value.debugName()] = name
        default = f"={self.bound(declared.default_value)}" if declared.has_default_value() else ""
        return f"{self.name(value)}{default}"

    def name(self, value: Any) -> str:
        return self.names.setdefault(value.debugName(), f"_v{len(self.names)}")

    def bound(self, value: Any) -> str:
        name = f"_c{len(self.scope)}"
        self.scope[name] = value
        return name

    # ---- statements

    def block(self, block: Any, indent: str) -> list[str]:
        return [indent + line for node in block.nodes() for line in self.node(node)]

    def node(self, node: Any) -> list[str]:
        kind = node.kind()
        given = list(map(self.name, node.inputs()))
        created = list(map(self.name, node.outputs()))
        special = getattr(self, "_" + kind.split("::")[1].lower(), None) if kind.startswith("prim::") else None
        if special is not None:
            return special(node, given, created)
        target = ", ".join(created)
        return [f"{target} = {self.call(node, kind, given)}" if created else self.call(node, kind, given)]

    def call(self, node: Any, kind: str, given: list[str]) -> str:
        inputs = list(node.inputs())
        tensors = [v for v in inputs if v.debugName() not in self.numbers and "Tensor" in str(v.type())]
        function = python_of(
            kind, ["" if v.debugName() in self.numbers else v.type().kind() for v in inputs], bool(tensors)
        )
        if function is not None:
            if kind == "prim::NumToTensor" or (not tensors and any(v.debugName() in self.numbers for v in inputs)):
                self.numbers.update(v.debugName() for v in node.outputs())
            whole = kind == "aten::pow" and node.output().type().kind() == "FloatType"  # also of ints
            text = f"{self.bound(function)}({', '.join(given)})"
            return f"float({text})" if whole else text
        space, short = kind.split("::")
        if node.schema() == "(no schema)" or space not in ("aten", "torchvision", "prims"):
            raise UnsupportedError(f"TorchScript's {kind} is not supported: {str(node).strip()}")
        schema = parse_schema(node.schema())
        packet = getattr(getattr(torch.ops, space), short)
        function = getattr(packet, schema.overload_name or "default")
        serialized = []
        for argument, name in zip(schema.arguments, given):
            convert = next((f for key, f in _CONVERSIONS.items() if key in str(argument.real_type)), None)
            text = name if convert is None else f"{self.bound(convert)}({name})"
            serialized.append(f"{argument.name}={text}" if argument.kwarg_only else text)
        return f"{self.bound(function)}({', '.join(serialized)})"

    # ---- prim::

    def _constant(self, node: Any, given: list[str], created: list[str]) -> list[str]:
        value = node.output().toIValue() if node.output().type().kind() != "NoneType" else None
        plain = value is None or type(value) in (bool, int, str)
        if plain and node.output().type().kind() == "TensorType":
            self.numbers.add(node.output().debugName())
        return [f"{created[0]} = {value!r}" if plain else f"{created[0]} = {self.bound(value)}"]

    def _getattr(self, node: Any, given: list[str], created: list[str]) -> list[str]:
        attribute, owner = node.s("name"), node.input().debugName()
        script, module = self.objects.get(owner, (None, None))
        if script is not None and module is not None and attribute != "training":
            found = getattr(script, attribute)
            if isinstance(found, torch.nn.Module):
                self.objects[node.output().debugName()] = (found, getattr(module, attribute))
            elif not hasattr(module, attribute):
                setattr(module, attribute, found)
        return [f"{created[0]} = getattr({given[0]}, {attribute!r})"]

    def _createobject(self, node: Any, given: list[str], created: list[str]) -> list[str]:
        if not str(node.output().type()).endswith(".grad_mode.no_grad"):
            raise UnsupportedError(f"TorchScript's own classes are not supported: {str(node).strip()}")
        self.no_grads.add(created[0])
        return []

    def _enter(self, node: Any, given: list[str], created: list[str]) -> list[str]:
        switch, state = self.bound(set_grad_enabled), self.bound(torch.is_grad_enabled)
        return [f"{given[0]} = {state}()", f"{switch}(False)"]

    def _exit(self, node: Any, given: list[str], created: list[str]) -> list[str]:
        return [f"{self.bound(set_grad_enabled)}({given[0]})"]

    def _setattr(self, node: Any, given: list[str], created: list[str]) -> list[str]:
        return [] if given[0] in self.no_grads else [f"{given[0]}.{node.s('name')} = {given[1]}"]

    def _listconstruct(self, node: Any, given: list[str], created: list[str]) -> list[str]:
        return [f"{created[0]} = [{', '.join(given)}]"]

    def _tupleconstruct(self, node: Any, given: list[str], created: list[str]) -> list[str]:
        known = _named_tuple(str(node.output().type()))
        values = "".join(name + ", " for name in given)
        return [f"{created[0]} = {self.bound(known)}({values})" if known is not None else f"{created[0]} = ({values})"]

    def _dictconstruct(self, node: Any, given: list[str], created: list[str]) -> list[str]:
        pairs = ", ".join(f"{k}: {v}" for k, v in zip(given[::2], given[1::2]))
        return [f"{created[0]} = {{{pairs}}}"]

    def _listunpack(self, node: Any, given: list[str], created: list[str]) -> list[str]:
        return [f"{''.join(name + ', ' for name in created)} = {given[0]}"]

    _tupleunpack = _listunpack

    def _raiseexception(self, node: Any, given: list[str], created: list[str]) -> list[str]:
        return [f"raise RuntimeError({given[0]})"]

    def _if(self, node: Any, given: list[str], created: list[str]) -> list[str]:
        out = []
        for word, block in zip((f"if {given[0]}:", "else:"), node.blocks()):
            out += [word, *self.block(block, "    ")]
            out += [f"    {a} = {self.name(b)}" for a, b in zip(created, block.outputs())] or ["    pass"]
        return out

    def _loop(self, node: Any, given: list[str], created: list[str]) -> list[str]:
        (block,) = node.blocks()
        counter, *carried = map(self.name, block.inputs())
        out = [f"{a} = {b}" for a, b in zip(carried, given[2:])]
        go = f"_go{len(self.names)}_{len(self.scope)}"
        out += [f"{go} = {given[1]}", f"for {counter} in range({given[0]}):", f"    if not {go}:", "        break"]
        out += self.block(block, "    ")
        again, *following = map(self.name, block.outputs())
        if carried:
            out.append(f"    {', '.join(carried)}, = {', '.join(following)},")
        out.append(f"    {go} = {again}")
        return out + [f"{a} = {b}" for a, b in zip(created, carried)]
