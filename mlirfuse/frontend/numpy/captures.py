"""Arrays captured from a function's scope, and the access paths through which each call reads them again."""

from __future__ import annotations

import collections
from dataclasses import dataclass
from typing import Any

from mlirfuse.core.errors import UnsupportedError
from mlirfuse.frontend.numpy.objects import PLAIN_TYPES, data_of, namespace_of
from mlirfuse.frontend.numpy.source import OURS, fail, user_frame
from mlirfuse.frontend.numpy.traced_array import TracedArray
from mlirfuse.runtime import arrays


@dataclass(frozen=True, eq=False)
class Captured:
    """An array from outside the function. ``paths``: the access paths through which the function may have read it, each
    ``(root, ((how, key), …))`` with how "attr", "item" or "cell"; empty for an array computed during tracing, which is
    kept itself."""

    array: Any
    paths: tuple = ()

    def read(self) -> Any:
        """The current array. Raises LookupError or AttributeError where the paths no longer agree on one: the function
        must then be traced again."""
        if not self.paths:
            return self.array
        found = _follow(self.paths[0])
        for path in self.paths[1:]:
            if _follow(path) is not found:
                raise LookupError("the access paths of a captured array lead to different arrays now")
        return found


def _follow(path):
    at, steps = path
    for how, key in steps:
        at = at.cell_contents if how == "cell" else getattr(at, key) if how == "attr" else at[key]
    return at


def frame_roots() -> list:
    """Where the running user code may have read an array: (name, root, steps, value)."""
    out: list[tuple] = []
    frame = user_frame()
    while frame is not None and len(out) < 256:
        code, namespace = frame.f_code, getattr(frame.f_globals, "real", frame.f_globals)
        if not code.co_filename.startswith(OURS):
            out += [
                (name, namespace, (("item", name),), namespace[name]) for name in code.co_names if name in namespace
            ]
        elif code.co_name == "trace":
            break
        frame = frame.f_back
    return out


def access_paths(array, roots) -> tuple[str | None, tuple]:
    """A name for a captured array, and its access paths from the roots."""
    seen: set[int] = set()
    queue, first = collections.deque(roots), None
    found: dict[Any, Any] = {}
    budget = 2000
    while queue and budget and len(found) < 8:
        budget -= 1
        name, root, steps, value = queue.popleft()
        if value is array:
            found[id(root), steps] = (root, steps)
            first = first or name
            continue
        plain = isinstance(value, (*PLAIN_TYPES, TracedArray)) and not (
            isinstance(value, type) and namespace_of(value) is not None
        )
        if plain or id(value) in seen or len(steps) > 4:
            continue
        seen.add(id(value))
        if isinstance(value, dict):
            queue.extend((f"{name}[{k!r}]", root, (*steps, ("item", k)), v) for k, v in list(value.items())[:256])
        elif isinstance(value, (list, tuple)):
            queue.extend((f"{name}[{k}]", root, (*steps, ("item", k)), v) for k, v in enumerate(value[:256]))
        elif isinstance(value, type) or isinstance(getattr(value, "__dict__", None), dict):
            queue.extend((f"{name}.{k}", root, (*steps, ("attr", k)), v) for k, v in data_of(value)[:256])
    return first, tuple(found.values())


def spec_of(array):
    """The :class:`ArgSpec` of an array from outside the function. Raises UnsupportedError."""
    try:
        return arrays.describe(array)
    except (TypeError, UnsupportedError) as error:
        fail(UnsupportedError, str(error))
