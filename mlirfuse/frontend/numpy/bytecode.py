"""What the code of a function may read and write, by its bytecode, the functions within it included."""

from __future__ import annotations

import builtins
import collections
import dis
import functools
import inspect
import sys
import types
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

# Names of functions, methods and arguments that write into an array; this includes np.sort and np.partition, which do
# not.
WRITING = {
    "at", "byteswap", "copyto", "fill", "fill_diagonal", "itemset", "out", "partition", "place", "put",
    "put_along_axis", "putmask", "resize", "setfield", "setflags", "setitem", "shuffle", "sort",
}  # fmt: skip
_UPDATES = {"add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "pow", "lshift", "rshift", "and", "xor", "or"}
_BY_NAME = WRITING | {"__setitem__"} | {f"__i{name}__" for name in _UPDATES} | {f"i{name}" for name in _UPDATES}
_STORES = {"STORE_SUBSCR", "STORE_SLICE", "DELETE_SUBSCR"}
_OF_ARRAYS = {"real", "imag", "flat", "shape", "strides", "dtype"}  # attributes that can be assigned


def within(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code, and that of the functions within it (lambdas, generators …)."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from within(constant)


@functools.lru_cache(1024)
def words_of(code: types.CodeType) -> frozenset[str]:
    """The names and strings in a function's code."""
    strings = (constant for inner in within(code) for constant in inner.co_consts if isinstance(constant, str))
    return frozenset((*names_of(code), *strings))


def names_of(code: types.CodeType) -> dict[str, None]:
    """The names of globals and attributes in a function's code, in order."""
    return dict.fromkeys(name for inner in within(code) for name in inner.co_names)


@functools.lru_cache(1024)
def writes(code: types.CodeType) -> bool:
    """Whether code stores into elements or attributes of an array or updates in place; calls may do so too."""
    return any(map(_writes, within(code)))


def _writes(code: types.CodeType) -> bool:
    texts = {text for constant in code.co_consts for text in (constant if isinstance(constant, tuple) else [constant])}
    if not _BY_NAME.isdisjoint({*code.co_names, *(text for text in texts if isinstance(text, str))}):
        return True
    steps = _steps(code)
    for step in steps:
        if step.opname in _STORES or (step.opname == "STORE_ATTR" and step.argval in _OF_ARRAYS):
            return True
        if step.opname == "BINARY_OP" and step.arg in _IN_PLACE:
            return True
    most = max((step.arg for step in steps if step.opname in _CALLS), default=0)
    called = {step.argval for step in steps if step.opname in _CALLABLES}
    if all(_arguments_with_out(name, True) > most and _arguments_with_out(name, False) > most for name in called):
        return False
    places = [
        ((line or 0, column or 0), (end_line or 0, end_column or 0))  # where an expression begins and ends
        for line, end_line, column, end_column in code.co_positions()
    ]
    loads: dict[tuple, list[int]] = collections.defaultdict(list)  # by where their expressions begin
    for k, step in enumerate(steps):
        if step.opname in _CALLABLES:
            loads[places[step.unit][0]].append(k)
        elif step.opname in _CALLS and _gives_out(code, steps, k, places, loads[places[step.unit][0]]):
            return True
    return False


def _gives_out(code: types.CodeType, steps: tuple[Step, ...], at: int, places: list, loads: list[int]) -> bool:
    """Whether a call of NumPy's function or method has so many arguments by position that ``out`` is one of them.
    ``loads``: the steps that begin where the call does, its callable among them."""
    call, before = steps[at], steps[at - 1]
    loads = [k for k in loads if places[steps[k].unit][1] < places[call.unit][1]]
    if not loads:
        return False
    keywords = code.co_consts[before.arg] if before.opname == "KW_NAMES" or call.opname == "CALL_KW" else ()
    of = max(loads, key=lambda k: places[steps[k].unit][1])  # of a.b.c in a.b.c(), the load of c
    method = steps[of].opname in ("LOAD_ATTR", "LOAD_METHOD") and steps[of - 1].argval not in ("np", "numpy")
    return call.arg - len(keywords) >= _arguments_with_out(steps[of].argval, method)


_CALLS = {"CALL", "CALL_KW"}
_CALLABLES = {"LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_ATTR", "LOAD_METHOD"}


@functools.lru_cache(4096)
def _arguments_with_out(name: str, method: bool) -> int:
    """The least number of arguments by position with which NumPy's function, or method, of this name writes."""
    found = getattr(np, name, None)
    if name == "nan_to_num":
        return 2  # its copy
    if isinstance(found, np.ufunc):
        return found.nin + 1 - (method and hasattr(np.ndarray, name))
    try:
        parameters = list(inspect.signature(found).parameters.values()) if inspect.isroutine(found) else []
    except ValueError:  # of C code
        return _NEVER
    names = [parameter.name for parameter in parameters if parameter.kind is not parameter.KEYWORD_ONLY]
    if "out" not in names:
        return _NEVER
    return names.index("out") + 1 - (method and hasattr(np.ndarray, name))


_NEVER = 1 << 30
_SKIPPED = {"CACHE", "EXTENDED_ARG", "NOP", "PRECALL", "PUSH_NULL", "RESUME"}


class Step(NamedTuple):
    """An instruction. ``argval``: the name or the constant that it loads or stores; None for others. ``unit``: its
    index in the code."""

    opname: str
    arg: int
    argval: Any
    unit: int


def _args_of(source: str) -> frozenset[int]:
    """The arguments of the binary operations in Python code."""
    code = compile(source, "", "exec")
    return frozenset(step.arg or 0 for step in dis.get_instructions(code) if step.opname == "BINARY_OP")


_IN_PLACE = _args_of("a+=a; a-=a; a*=a; a/=a; a//=a; a%=a; a@=a; a**=a; a<<=a; a>>=a; a&=a; a|=a; a^=a")
_SUBSCRIPT = _args_of("a[a]")  # of Python 3.14
_NAME_SHIFTS = {"LOAD_GLOBAL": 1, "LOAD_SUPER_ATTR": 2, "LOAD_ATTR": int(sys.version_info >= (3, 12))}
_NAME_OPS = {op: _NAME_SHIFTS.get(dis.opname[op], 0) for op in dis.hasname}
_CONSTANT_OPS = frozenset(dis.hasconst)
_LOCAL_OPS = frozenset(op for op in (*dis.haslocal, *dis.hasfree) if dis.opname[op].count("_FAST") < 2)


@functools.lru_cache(1024)
def _steps(code: types.CodeType) -> tuple[Step, ...]:
    """The instructions of code that say what it does. (dis takes ten times as long for what these lack.)"""
    names, constants, read = code.co_names, code.co_consts, code.co_code
    variables = (*code.co_varnames, *(n for n in code.co_cellvars if n not in code.co_varnames), *code.co_freevars)
    found, extended = [], 0
    for at in range(0, len(read), 2):
        op, arg = read[at], read[at + 1] | extended
        name = dis.opname[op]
        extended = arg << 8 if name == "EXTENDED_ARG" else 0
        if name in _SKIPPED:
            continue
        value: Any = None
        if op in _NAME_OPS:
            value = names[arg >> _NAME_OPS[op]]
        elif op in _LOCAL_OPS:
            value = variables[arg]
        elif op in _CONSTANT_OPS and name != "KW_NAMES":
            value = constants[arg]
        found.append(Step(name, arg, value, at // 2))
    return tuple(found)


# Names by which code reads attributes that it does not name.
READ_ALL = {"__dict__", "vars", "dir", "__getattribute__", "attrgetter", "asdict", "astuple", "getmembers"}
_ASK = READ_ALL | {"hasattr", "getattr"}
_OF_DICTS = frozenset(dir(dict))
_BY_ATTRIBUTE = ("getattr", "hasattr")


@functools.lru_cache(1024)
def asks(code: types.CodeType) -> bool:
    """Whether code may go on where a variable or attribute that it reads is not there: it handles such errors, runs in
    context managers other than ``np.errstate``, or asks."""
    return any(map(_handles_what_is_missing, within(code))) or not _ASK.isdisjoint(words_of(code))


def _handles_what_is_missing(code: types.CodeType) -> bool:
    managers, steps = 0, _steps(code)
    for k, step in enumerate(steps):
        managers += (step.opname == "WITH_EXCEPT_START") - (step.argval == "errstate")
        if step.opname == "PUSH_EXC_INFO" and not steps[k + 1].opname.startswith(("LOAD_", "WITH_EXCEPT_START")):
            return True  # handles all
        if step.opname == "CHECK_EXC_MATCH":
            several = steps[k - 1].opname == "BUILD_TUPLE"
            named = steps[k - 1 - steps[k - 1].arg : k - 1] if several else steps[k - 1 : k]
            kinds = [getattr(builtins, str(load.argval), None) for load in named]
            if not all(isinstance(kind, type) and not _is_of_missing(kind) for kind in kinds):
                return True
    return managers > 0


def _is_of_missing(kind: type) -> bool:
    """Whether handlers of these exceptions get errors of what is not there."""
    return any(issubclass(error, kind) or issubclass(kind, error) for error in (NameError, AttributeError))


def globals_of(code: types.CodeType) -> dict[str, None]:
    """The names of the globals and builtins that a function's code reads, in order."""
    steps = (step for inner in within(code) for step in _steps(inner))
    return dict.fromkeys(step.argval for step in steps if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"))


@functools.lru_cache(1024)
def read_openly(code: types.CodeType) -> frozenset[str]:
    """The names of variables and attributes, and the constant keys, whose values the code uses for more than to read
    items at constant keys: it has computed keys, iterates, or passes them on. ``getattr`` is one of them where the
    attribute's name is computed."""
    return frozenset(name for inner in within(code) for name in _read_openly(inner))


def _read_openly(code: types.CodeType) -> Iterator[str]:
    steps = _steps(code)
    names = [step.opname for step in steps] + [""] * 3
    for k, step in enumerate(steps):
        if not names[k].startswith("LOAD_") or not isinstance(step.argval, str):
            continue
        after = k + 1
        if step.argval in _BY_ATTRIBUTE:
            while names[after].startswith("LOAD_") and not _is_text(steps, after):
                after += 1
            constant = _is_first_argument(steps, after)
        elif names[after] in ("LOAD_ATTR", "LOAD_METHOD"):
            method = steps[after].argval  # or an attribute of an object
            constant = method not in _OF_DICTS or (method == "get" and _is_first_argument(steps, after + 1))
        elif names[after] == "CONTAINS_OP":
            constant = k > 0 and _is_text(steps, k - 1)
        else:
            after += names[k].startswith("LOAD_CONST") and _subscribes(steps, after)
            constant = _is_text(steps, after) and _subscribes(steps, after + 1)
        if not constant:
            yield step.argval


def _is_text(steps: tuple[Step, ...], at: int) -> bool:
    """Whether a step loads a constant string."""
    return at < len(steps) and steps[at].opname.startswith("LOAD_CONST") and isinstance(steps[at].argval, str)


def _is_first_argument(steps: tuple[Step, ...], at: int) -> bool:
    """Whether a step loads a constant string, and those up to the next call load the other arguments."""
    after = at
    while after < len(steps) and steps[after].opname.startswith(("LOAD_", "KW_NAMES")):
        after += 1
    return _is_text(steps, at) and after < len(steps) and steps[after].opname.startswith("CALL")


def _subscribes(steps: tuple[Step, ...], at: int) -> bool:
    """Whether a step reads or writes an item."""
    if at >= len(steps):
        return False
    return steps[at].opname.endswith("_SUBSCR") or (steps[at].opname == "BINARY_OP" and steps[at].arg in _SUBSCRIPT)
