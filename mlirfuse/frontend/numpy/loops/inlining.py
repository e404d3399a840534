"""Inlines calls of the user's functions in a loop."""

from __future__ import annotations

import ast
import types
from typing import Any

from mlirfuse.frontend.numpy.loops.expressions import Expressions
from mlirfuse.frontend.numpy.loops.live_ranges import split_body
from mlirfuse.frontend.numpy.loops.values import Static, require
from mlirfuse.frontend.numpy.loops.variables import Names
from mlirfuse.frontend.numpy.syntax import assigned_names

_DEEPEST = 16  # calls in calls
_DEFAULTS = (bool, int, float, complex, str, type(None), type)  # types of supported defaults


class Inlining(Expressions):
    """Inlines functions."""

    def _of_closure(self, names: Names, name: str) -> Any:
        """A closure variable of an inlined function, with its value at the loop's start."""
        changed = name in assigned_names(self.loop)
        require(not changed, f"the variable {name} of a called function, which the loop changes")
        full = next((f"{f}.{name}" for f, value in self.names.items() if value is names.function), "")
        if full in self.variables:
            return self.get(full, self.variables[full])
        require(full in self.names, f"the variable {name} has no known type yet")
        return self.outside(self.names[full])

    def inlined(
        self, function: types.FunctionType, node: ast.Call, args: list, keywords: dict, returns: bool = True
    ) -> Any:
        """Inlines a call; its value, or None where the result is unused (``returns`` is False)."""
        require(function not in self.inline and len(self.inline) <= _DEEPEST, "a function that calls itself")
        definition = split_body(function)
        spec = definition.args
        usual = not (spec.vararg or spec.kwarg or spec.kwonlyargs or spec.posonlyargs)
        require(usual, f"the function {function.__name__}, which has unsupported kinds of parameters")
        names = [arg.arg for arg in spec.args]
        defaults = function.__defaults__ or ()
        known = {n: d for n, d in zip(names[len(names) - len(defaults) :], defaults) if type(d) in _DEFAULTS}
        given = {n: self.outside(d) for n, d in known.items()} | dict(zip(names, args)) | keywords
        require(set(given) == set(names) and len(args) <= len(names), f"the arguments of {function.__name__}")
        e = self.code
        saved = self.prefix, self.result, self.jumps, self.unchecked, self.nesting
        self.prefix = f"{self.prefix}{function.__name__}@{node.lineno}.{node.col_offset}."
        self.nesting = 0
        for name, value in given.items():
            if isinstance(value, Static):
                self.statics[self.prefix + name] = value
            else:
                self.statics.pop(self.prefix + name, None)
                self.assign(name, value)
        end = e.block()
        before = set(self.definite or ())
        self.result, self.jumps, self.unchecked = ("return" if returns else "", end), [], frozenset()
        self.inline.append(function)
        self.scopes.append(Names(function, self.depends))
        where = e.where
        self.body(definition.body)
        require(self.definite is None or not returns, f"{function.__name__} may return nothing")
        if self.definite is not None:
            e.go(end)
        e.place(end)
        self.scopes.pop()
        self.inline.pop()
        e.where = where
        self.definite = before | ({self.prefix + "return"} if returns else set())
        result = self.read("return") if returns else None
        self.prefix, self.result, self.jumps, self.unchecked, self.nesting = saved
        self.definite = before
        return result
