"""The user's source line of a node in a traced graph."""

from __future__ import annotations

import functools
import os
import re
from typing import Any

import torch
from torch.fx import Node

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
_ROOT = re.compile(r"^[LG]\['\w+'\]|^self\b")
_TORCHS = os.path.dirname(torch.__file__) + os.sep
_FAR = 8  # how many nodes back to search for a source line


def user_line(node: Node | None) -> tuple[str, int] | None:
    """File and line of the innermost frame of a node's stack trace outside torch. If there is none, as in a model of
    torch's own modules, the module's name and line 0."""
    for _ in range(_FAR):
        if node is None:
            return None
        trace = node.meta.get("stack_trace")
        found = (_line(trace) if trace else None) or _module(node)
        if found is not None:
            return found
        node = next((other for other in node.all_input_nodes if other.op != "placeholder"), None)
    return None


@functools.lru_cache(maxsize=4096)
def _line(trace: str) -> tuple[str, int] | None:
    found = [frame for frame in _FRAME.finditer(trace) if not frame["file"].startswith(_TORCHS)]
    return (found[-1]["file"], int(found[-1]["line"])) if found else None


def _module(node: Node) -> tuple[str, int] | None:
    """The innermost module that called the op, or whose op this is the gradient of: ``layers.0 (Linear)``."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    if not stack:
        return None
    path, kind = list(stack.values())[-1]
    return module_name(path, kind), 0


@functools.lru_cache(maxsize=4096)
def module_name(path: str, kind: Any) -> str:
    """A readable module name from Dynamo's path, such as ``L['self'].layers[0]``, and its class."""
    path = re.sub(r"\._modules\['([^']*)'\]", r".\1", path)
    path = re.sub(r"\[['\"]?([^'\"\]]*)['\"]?\]", r".\1", _ROOT.sub("", path)).strip(".")
    name = getattr(kind, "__name__", None) or str(kind).rpartition(".")[2]
    return f"{path} ({name})" if path else name
