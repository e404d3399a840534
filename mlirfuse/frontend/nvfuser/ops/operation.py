"""Decorators that make a method of ``fd.ops`` an operation: check the call, record it for printing and replay, and run
it."""

from __future__ import annotations

import functools
import inspect

from mlirfuse.frontend.nvfuser.values import (
    DefinitionError,
    DefinitionTypeError,
    Tensor,
    Val,
    at_line,
    definition_error,
    user_line,
)

# Names of arguments in other versions of nvFuser's API.
_SYNONYMS = {"axes": "dims", "keep_dim": "keepdim", "dim": "dims", "dims": "dim"}


def operation(function):
    """Decorator: makes a method of :class:`Operators` an operation."""
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())[1:]
    names = [p.name for p in parameters]

    @functools.wraps(function)
    def call(self, *args, **kwargs):
        fd = self._fd
        if fd._depth:
            fd._depth += 1
            try:
                return function(self, *args, **kwargs)
            finally:
                fd._depth -= 1
        fd.check_open()
        for key in list(kwargs):
            if key not in names and _SYNONYMS.get(key) in names:
                kwargs[_SYNONYMS[key]] = kwargs.pop(key)
        try:
            bound = signature.bind(self, *args, **kwargs)
        except TypeError as error:
            raise DefinitionTypeError(
                f"{at_line(user_line())}fd.ops.{function.__name__}: {error}; its arguments are ({', '.join(names)})"
            ) from error
        given = dict(list(bound.arguments.items())[1:])
        fd._depth += 1
        fd.operation, fd._shown, fd._extras = function.__name__, {}, []
        try:
            given = {key: self._operand(value) for key, value in given.items()}
            returned = function(self, **given)
        except DefinitionError:
            raise
        except Exception as error:
            described = ", ".join(f"{key}: {_described(value)}" for key, value in given.items())
            raise definition_error(f"fd.ops.{function.__name__}", error, described) from error
        finally:
            fd._depth -= 1
        fd.record_op(function.__name__, _shown(parameters, {**given, **fd._shown}), given, returned)
        return returned

    call.operation = True  # type: ignore[attr-defined]  # the mark by which FusionDefinition finds operations
    return call


def query(function):
    """Decorator: a method of :class:`Operators` that is not an operation itself, but raises errors like one."""

    @functools.wraps(function)
    def call(self, *args, **kwargs):
        try:
            return function(self, *args, **kwargs)
        except DefinitionError:
            raise
        except Exception as error:
            raise definition_error(f"fd.ops.{function.__name__}", error) from error

    return call


def _described(value) -> str:
    """An argument's description in a message."""
    if isinstance(value, Tensor):
        return f"a tensor of rank {value.ndim}"
    return "a scalar" if isinstance(value, Val) else type(value).__name__


def _shown(parameters, given) -> list:
    """The arguments as printed: leading tensors and scalars by position, others by name unless they have default
    values."""
    out, positional = [], True
    for k, p in enumerate(parameters):
        value = given.get(p.name, p.default)
        is_operand = isinstance(value, Val) or (
            k == 0 and isinstance(value, (list, tuple)) and any(isinstance(v, Tensor) for v in value)
        )
        if positional and is_operand:
            out.append((None, value))
            continue
        positional = False
        if value is not inspect.Parameter.empty and not (
            p.default is not inspect.Parameter.empty and _same(value, p.default)
        ):
            out.append((p.name, value))
    return out


def _same(a, b) -> bool:
    return a is b or (type(a) is type(b) and not isinstance(a, Val) and a == b)
