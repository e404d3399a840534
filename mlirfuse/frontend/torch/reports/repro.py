"""Repro scripts of graphs that do not compile, and the op that an error is about."""

from __future__ import annotations

import os
import tempfile
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.package import sys_importer

from mlirfuse.core.errors import located
from mlirfuse.frontend.torch.fx.source_lines import user_line
from mlirfuse.frontend.torch.torch_private import format_imports
from mlirfuse.ir.graph import Op
from mlirfuse.runtime.failures import innermost

_SCRIPT = '''"""A {which} graph that mlirfuse did not compile, with random inputs. Run it to see the error."""

import torch

import mlirfuse.torch  # its ops
from mlirfuse.frontend.torch.backend import compile_graph
from mlirfuse.frontend.torch.options import Options
from mlirfuse.frontend.torch.torch_private import make_fx, rand_strided
{imports}

{classes}
inputs = [
{inputs}]
module = make_fx(Graph(), tracing_mode="{mode}")(*inputs)
compile_graph(module, inputs, options=Options(fallback=False), which="{which}")(list(inputs))
'''
_UNBACKED = 2  # the extent used for an unbacked size


def write(module: GraphModule, which: str, folder: str | None) -> str:
    """Writes a script that compiles and runs ``module`` alone on random inputs of the same shapes, strides and dtypes
    (symbolic sizes as traced; integers are 0) to ``folder``; None: the folder for temporary files. Returns the path.
    Raises OSError where it cannot write."""
    if folder is not None:
        os.makedirs(folder, exist_ok=True)
    handle, path = tempfile.mkstemp(prefix=f"mlirfuse_{which}_", suffix=".py", dir=folder)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(script(module, which))
    return path


def script(module: GraphModule, which: str) -> str:
    """The script's text."""
    given = [node.meta.get("val") for node in module.graph.nodes if node.op == "placeholder"]
    imports: dict[str, Any] = {}
    classes = _classes("Graph", module, imports)
    symbolic = any(isinstance(x, torch.SymInt) for x in given)
    return _SCRIPT.format(
        which=which,
        imports=format_imports(imports, sys_importer),
        classes="\n\n".join(classes),
        inputs="".join(f"    {_serialized(x)},\n" for x in given),
        mode="symbolic" if symbolic else "fake",
    )


def _classes(name: str, module: GraphModule, imports: dict[str, Any]) -> list[str]:
    """The class of ``module``, after those of its higher-order ops' bodies."""
    code = module.graph.python_code("self")
    imports.update(code.globals)
    inner, created = [], []
    for target in dict.fromkeys(str(node.target) for node in module.graph.nodes if node.op == "get_attr"):
        what = getattr(module, target)
        if isinstance(what, GraphModule):
            inner += _classes(f"{name}_{target}", what, imports)
            created.append(f"        self.{target} = {name}_{target}()\n")
        else:
            created.append(f"        self.{target} = {_serialized(what)}\n")
    body = "".join(f"    {line}\n" if line else "\n" for line in code.src.strip().splitlines())
    start = f"    def __init__(self):\n        super().__init__()\n{''.join(created)}\n"
    return [*inner, f"class {name}(torch.nn.Module):\n{start}{body}"]


def _serialized(x: Any) -> str:
    if not isinstance(x, torch.Tensor):
        return repr(_hint(x))
    size, stride = (tuple(map(_hint, numbers)) for numbers in (x.shape, x.stride()))
    return f'rand_strided({size}, {stride}, {x.dtype}, "{x.device}")'


def _hint(n: Any) -> Any:
    if not isinstance(n, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return n
    return n.node.hint if n.node.has_hint() else _UNBACKED


def about(error: BaseException) -> str:
    """The error's message with the op in progress and its line in the user's program: the op that the error names, else
    the one that the innermost frame holds."""
    message = f"{type(error).__name__}: {error}"
    place = getattr(error, "loc", None)
    if place is not None:
        return located(message, place)
    found = innermost(error, {"op": Op, "node": Node})
    if found is None:
        return message
    name, place = (found.name, found.loc) if isinstance(found, Op) else (str(found.target), user_line(found))
    return located(f"{message}\n  in {name}", place)
