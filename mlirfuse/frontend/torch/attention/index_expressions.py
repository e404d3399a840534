"""Tensors of Dynamo's graph as expressions of their indices, to analyse masks.

``arange(n)[:, None] >= arange(n)`` has at ``d0, d1`` the value ``d0 - d1 >= 0``. Integers and booleans are sympy
expressions; floats are constants selected by conditions. A tensor without a rule is an uninterpreted function of its
indices, named after its node. No rule reads the value of a symbolic size, so none adds a guard.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch.fx import GraphModule, Node

from mlirfuse.frontend.torch.attention.index_cases import (
    Unknown,
    cases,
    cast,
    chosen,
    compare,
    each,
    is_condition,
    number,
    rounded,
)
from mlirfuse.frontend.torch.fx import layouts, purity
from mlirfuse.frontend.torch.torch_private import OpOverload, nn_functions

INPUT = "input "  # begins the name of a function that stands for a graph's input


class MutatedTensor(Exception):
    """The graph writes to the tensor's memory, and one name has several values."""


@dataclass(frozen=True)
class Indexed:
    """A tensor of ``shape`` whose element at ``dim(0), dim(1), …`` is ``body``."""

    shape: tuple[sympy.Expr, ...]
    body: Any
    dtype: torch.dtype


@functools.cache
def dim(k: int) -> sympy.Symbol:
    """The index along dimension ``k``."""
    return sympy.Symbol(f"index{k}", integer=True, nonnegative=True)


@functools.cache
def _vmap_level(k: int) -> sympy.Symbol:
    """The index along the dimension that vmap level ``k`` hides."""
    return sympy.Symbol(f"level{k}", integer=True, nonnegative=True)


def size_of(n: Any) -> sympy.Expr:
    """A size as a sympy expression. Raises :class:`Unknown`."""
    if isinstance(n, torch.SymInt) and hasattr(n.node, "expr"):  # excludes nested tensors' sizes
        return n.node.expr
    if isinstance(n, int):
        return sympy.Integer(n)
    raise Unknown(f"{n} is not a size")


def same(a: sympy.Expr, b: sympy.Expr) -> bool:
    """Whether two sizes are equal for all values of their symbols."""
    return bool(sympy.expand(a - b) == 0)


class Expressions:
    """The expressions of the tensors of ``module``; ``given``: those of its placeholders, for a called subgraph."""

    def __init__(self, module: GraphModule, given: dict[Node, Indexed] | None = None):
        self.module, self.known = module, dict(given or {})
        self.mutated = purity.ambiguous_storages(module)

    def of(self, node: Node) -> Indexed:
        """The expression of a tensor. Raises :class:`MutatedTensor`, and :class:`Unknown` for non-tensors."""
        found = self.known.get(node)
        if found is not None:
            return found
        for source in self._unexpressed(node):
            self.known[source] = self._computed(source)
        return self.known[node]

    def called(self, node: Node) -> Expressions | None:
        """The expressions of the subgraph that ``node`` calls once, if it does."""
        inner = purity.subgraph(node, self.module)
        if inner is None:
            return None
        module, args = inner
        given = {}
        for place, source in zip(module.graph.find_nodes(op="placeholder"), args):
            if isinstance(source, Node) and _is_tensor(source):
                try:
                    given[place] = self.of(source)
                except (Unknown, MutatedTensor):
                    continue
        return Expressions(module, given)

    def _unexpressed(self, node: Node) -> list[Node]:
        """``node`` and the not yet expressed tensors it depends on, operands first."""
        order: list[Node] = []
        seen: set[Node] = set()
        left = [(node, False)]
        while left:
            n, expanded = left.pop()
            if expanded:
                order.append(n)
            elif n not in seen and n not in self.known and _is_tensor(n):
                seen.add(n)
                left.append((n, True))
                left += [(source, False) for source in n.all_input_nodes] if _rule(n) is not None else []
        return order or [node]

    def _computed(self, node: Node) -> Indexed:
        value = node.meta.get("example_value")
        if not isinstance(value, torch.Tensor):
            raise Unknown(f"{node.name} is not a tensor")
        if layouts.storage(value) in self.mutated:
            raise MutatedTensor(f"{node.name} is written in the graph")
        shape = tuple(map(size_of, value.shape))
        rule = _rule(node)
        try:
            if rule is None:
                raise Unknown(node.name)
            body = rule(_Call(self, node, shape, value.dtype))
        except (Unknown, TypeError, ValueError, LookupError):  # the latter: unexpected arguments
            body = self._function(node, shape, value.dtype)
        ones = {dim(k): sympy.Integer(0) for k, n in enumerate(shape) if n == 1}
        return Indexed(shape, body.xreplace(ones), value.dtype)

    def _function(self, node: Node, shape: Sequence[sympy.Expr], dtype: torch.dtype) -> Any:
        """An uninterpreted function named after the node."""
        bodies = [self.known[n].body for n in node.all_input_nodes if n in self.known]
        hidden = {s for body in bodies for s in body.free_symbols if s.name.startswith("level")}
        args = [*map(dim, range(len(shape))), *sorted(hidden, key=str)]
        whole = not dtype.is_floating_point and not dtype.is_complex
        name = f"{INPUT if node.op == 'placeholder' else ''}{node.name}@{id(self.module)}"
        created = sympy.Function(name, integer=True)(*args) if whole else sympy.Function(name)(*args)
        return sympy.Ne(created, 0) if dtype is torch.bool else created


def _is_tensor(node: Node) -> bool:
    return isinstance(node.meta.get("example_value"), torch.Tensor)


@dataclass
class _Call:
    """A call for a rule: its arguments, and the shape and dtype of its result."""

    expressions: Expressions
    node: Node
    shape: tuple[sympy.Expr, ...]
    dtype: torch.dtype

    def arg(self, place: int, name: str = "", default: Any = None) -> Any:
        """An argument: a tensor as :class:`Indexed`, a size as a sympy expression, others unchanged. Raises
        :class:`Unknown`."""
        args, kwargs = self.node.args, self.node.kwargs
        return self.value(args[place] if place < len(args) else kwargs.get(name, default))

    def value(self, x: Any) -> Any:
        if not isinstance(x, Node):
            return x
        if _is_tensor(x):
            return self.expressions.of(x)
        value = x.meta.get("example_value")
        if isinstance(value, (torch.SymInt, int)) and not isinstance(value, bool):
            return size_of(value)
        raise Unknown(x.name)

    def tensor(self, place: int = 0, name: str = "input") -> Indexed:
        found = self.arg(place, name)
        if not isinstance(found, Indexed):
            raise Unknown(f"{self.node.name}: not a tensor")
        return found

    def body(self, x: Any, dtype: torch.dtype | None = None) -> Any:
        """A tensor's or number's value at the result's indices; ``dtype``: cast to that."""
        if isinstance(x, Indexed):
            at, kind = _aligned(x, self.shape), x.dtype
        else:
            at, kind = number(x)
        return at if dtype is None else cast(at, kind, dtype)

    @property
    def name(self) -> str:
        """The function's name in the rules."""
        name = _name(self.node)
        return _IN_PLACE.get(name, name)

    def axis(self, value: Any, rank: int) -> int:
        if not isinstance(value, int):
            raise Unknown("an axis that is not a number")
        return value % rank if rank else 0


def _aligned(x: Indexed, shape: Sequence[sympy.Expr]) -> Any:
    """The value of ``x`` broadcast to ``shape``."""
    leading = len(shape) - len(x.shape)
    return x.body.xreplace({dim(k): sympy.Integer(0) if n == 1 else dim(k + leading) for k, n in enumerate(x.shape)})


def _at(x: Indexed, indices: Sequence[Any]) -> Any:
    return x.body.xreplace({dim(k): sympy.sympify(i) for k, i in enumerate(indices)})


# ---- rules


def _pointwise(function: Callable[..., Any], count: int) -> Callable[[_Call], Any]:
    def rule(call: _Call) -> Any:
        return function(call, *(call.arg(k, ("input", "other")[k]) for k in range(count)))

    return rule


def _logical(join: Callable[..., Any]) -> Callable[..., Any]:
    def function(call: _Call, *args: Any) -> Any:
        if call.dtype is not torch.bool:
            raise Unknown("bits")
        return join(*(call.body(x, torch.bool) for x in args))

    return function


def _comparison(kind: str) -> Callable[..., Any]:
    return lambda call, a, b: compare(kind, *(_integers(call.body(x)) for x in (a, b)))


def _integers(body: Any) -> Any:
    return cast(body, torch.bool, torch.int64) if is_condition(body) else body


def _arithmetic(function: Callable[..., Any]) -> Callable[..., Any]:
    def leaf(*values: Any) -> Any:
        if not all(v.is_integer or v.is_number for v in values):
            raise Unknown("floats")
        found = function(*values)
        if found is sympy.nan or found.has(sympy.zoo):
            raise Unknown("not a number")
        return sympy.expand(found) if not found.is_number else found

    def rule(call: _Call, *args: Any) -> Any:
        if call.dtype is torch.bool:
            raise Unknown("bits")
        if call.node.kwargs.get("alpha", 1) != 1 or call.node.kwargs.get("rounding_mode", None) is not None:
            raise Unknown("a factor")
        found = each(leaf, *(_integers(call.body(x)) for x in args))
        if not call.dtype.is_floating_point:
            return found
        return chosen([(rounded(v, call.dtype) if v.is_number else v, c) for v, c in cases(found)])

    return rule


def _same_elements(call: _Call) -> Any:
    x = call.tensor()
    return call.body(x, call.dtype)


def _filled(place: int, name: str, default: Any = None) -> Callable[[_Call], Any]:
    def rule(call: _Call) -> Any:
        body, kind = number(call.arg(place, name, default))
        return cast(body, kind, call.dtype)

    return rule


def _constant(value: int) -> Callable[[_Call], Any]:
    return lambda call: cast(sympy.Integer(value), torch.int64, call.dtype)


def _arange(call: _Call) -> Any:
    given = [call.value(x) for x in call.node.args]
    if call.dtype.is_floating_point or not 1 <= len(given) <= 3 or "out" in call.node.kwargs:
        raise Unknown("floats")
    start, step = (given[0] if len(given) > 1 else call.arg(9, "start", 0)), (given[2] if len(given) > 2 else 1)
    step = call.arg(9, "step", step)
    if not all(isinstance(x, (int, sympy.Expr)) for x in (start, step)):
        raise Unknown("not integers")
    return sympy.expand(start + step * dim(0))


def _unsqueezed(call: _Call) -> Any:
    x = call.tensor()
    at = call.axis(call.arg(1, "dim"), len(x.shape) + 1)
    return _at(x, [dim(k if k < at else k + 1) for k in range(len(x.shape))])


def _reshaped(call: _Call) -> Any:
    """Reshapes that only add or remove dimensions of extent 1."""
    x = call.tensor()
    if x.dtype is not call.dtype:
        raise Unknown("other bits")
    before = [k for k, n in enumerate(x.shape) if n != 1]
    after = [k for k, n in enumerate(call.shape) if n != 1]
    if len(before) != len(after) or not all(same(x.shape[a], call.shape[b]) for a, b in zip(before, after)):
        raise Unknown("another shape")
    places = dict(zip(before, after))
    return _at(x, [dim(places[k]) if k in places else 0 for k in range(len(x.shape))])


def _permuted(call: _Call) -> Any:
    x = call.tensor()
    rank = len(x.shape)
    name = call.name
    if name == "permute":
        rest = call.node.args[1:] or (call.node.kwargs["dims"],)
        order = [call.axis(d, rank) for d in (rest[0] if isinstance(rest[0], (list, tuple)) else rest)]
    else:
        a, b = (0, 1) if name == "t" else (call.arg(1, "dim0"), call.arg(2, "dim1"))
        order = list(range(rank))
        if rank:
            a, b = call.axis(a, rank), call.axis(b, rank)
            order[a], order[b] = b, a
    return _at(x, [dim(order.index(k)) for k in range(rank)])


def _indexed(call: _Call) -> Any:
    """``aten.index``: a tensor, or None, for each of the first dimensions."""
    return _selected(call, [slice(None) if i is None else i for i in call.node.args[1]])


def _selected(call: _Call, index: Any = None) -> Any:
    """``x[…]`` with None, slices, numbers, ``...`` and integer tensors."""
    x, index = call.tensor(0, "self"), call.node.args[1] if index is None else index
    index = list(index) if isinstance(index, (tuple, list)) else [index]
    dense = sum(1 for i in index if i is not None and i is not Ellipsis)
    fill = [slice(None)] * (len(x.shape) - dense)
    at = next((k for k, i in enumerate(index) if i is Ellipsis), len(index))
    index = [*index[:at], *fill, *index[at + 1 :]]
    plan: list[Any] = []  # per dimension of x a function of its index in the result, or a tensor
    source = 0
    created: list[Any] = []  # per dimension left after numbers and slices: x's index as a function
    for i in index:
        if i is None:
            created.append(None)
            continue
        n = x.shape[source]
        value = call.value(i) if not isinstance(i, slice) else i
        if isinstance(value, slice):
            created.append((source, _window(call, value, n)))
        elif isinstance(value, Indexed):
            if value.dtype in (torch.bool, torch.uint8):
                raise Unknown("a selection by values")
            created.append((source, value))
        elif isinstance(value, (int, sympy.Expr)) and not isinstance(value, bool):
            plan.append((source, _wrapped(sympy.sympify(value), n)))
        else:
            raise Unknown("an index")
        source += 1
    return _at(x, _indices(call, len(x.shape), plan, created))


def _indices(call: _Call, rank: int, numbers: list[Any], created: list[Any]) -> list[Any]:
    """The index of each dimension of the operand."""
    out: list[Any] = [None] * rank
    for source, value in numbers:
        out[source] = value
    tensors = [k for k, entry in enumerate(created) if entry is not None and isinstance(entry[1], Indexed)]
    width = max((len(created[k][1].shape) for k in tensors), default=0)
    together = bool(tensors) and tensors == list(range(tensors[0], tensors[-1] + 1))
    first = tensors[0] if together else 0
    place = 0 if together or not tensors else width
    for k, entry in enumerate(created):
        if k in tensors:
            if together and k == tensors[0]:
                place += width
            continue
        if entry is not None:
            start, step = entry[1]
            out[entry[0]] = sympy.expand(start + step * dim(place))
        place += 1
    for k in tensors:
        source, value = created[k]
        within = {dim(j): 0 if n == 1 else dim(first + width - len(value.shape) + j) for j, n in enumerate(value.shape)}
        body = value.body.xreplace({a: sympy.sympify(b) for a, b in within.items()})
        if not _is_nonnegative(body):
            raise Unknown("a possibly negative index")
        out[source] = body
    return out


def _is_nonnegative(body: Any) -> bool:
    return not is_condition(body) and all(bool(value.is_nonnegative) for value, _ in cases(body))


def _wrapped(index: sympy.Expr, n: sympy.Expr) -> sympy.Expr:
    if index.is_nonnegative:
        return index
    if index.is_negative:
        return sympy.expand(n + index)
    raise Unknown("an index of unknown sign")


def _window(call: _Call, index: slice, n: sympy.Expr) -> tuple[Any, Any]:
    """Start and step of a slice; the result's shape has the count."""
    start, step = call.value(index.start), call.value(index.step)
    step = 1 if step is None else step
    start = sympy.sympify(0 if start is None else start)
    if not isinstance(step, int) or step < 1:
        raise Unknown("a step")
    if start.is_nonnegative:
        return start, step
    if n.is_number and start.is_number:
        return sympy.Max(0, n + start), step
    raise Unknown("a start of unknown sign")


def _cat_of_two(first: Callable[[], Any], second: Callable[[Any], Any], axis: int, length: sympy.Expr) -> Any:
    """``first()`` for the first ``length`` indices along ``axis``, ``second(index)`` after."""
    k = dim(axis)
    if length == 1:
        return chosen([(v, sympy.And(sympy.Eq(k, 0), c)) for v, c in cases(first().xreplace({k: sympy.Integer(0)}))]
                       + cases(second(k - 1)))  # fmt: skip
    return chosen([*((v, sympy.And(sympy.Ge(length - 1 - k, 0), c)) for v, c in cases(first())),
                    *cases(second(k - length))])  # fmt: skip


def _concatenated(call: _Call) -> Any:
    parts = [call.value(x) for x in call.node.args[0]]
    axis = call.axis(call.arg(1, "dim", 0), len(call.shape))
    if len(parts) != 2 or not all(isinstance(p, Indexed) and len(p.shape) == len(call.shape) for p in parts):
        raise Unknown("parts")
    bodies = [_integers(cast(p.body, p.dtype, call.dtype)) for p in parts]
    found = _cat_of_two(lambda: bodies[0], lambda k: bodies[1].xreplace({dim(axis): sympy.expand(k)}), axis,
                        parts[0].shape[axis])  # fmt: skip
    return cast(found, torch.int64, torch.bool) if call.dtype is torch.bool else found


def _difference(call: _Call) -> Any:
    x, before = call.tensor(), call.arg(3, "prepend")
    axis = call.axis(call.arg(2, "dim", -1), len(x.shape))
    if call.arg(1, "n", 1) != 1 or call.arg(4, "append") is not None or not _is_integer(x):
        raise Unknown("a difference")
    k = dim(axis)
    here = x.body
    if before is None:
        return each(operator.sub, here.xreplace({k: k + 1}), here)
    if not isinstance(before, Indexed) or before.shape[axis] != 1 or not _is_integer(before):
        raise Unknown("a prepended value")
    first = each(operator.sub, here.xreplace({k: sympy.Integer(0)}), before.body.xreplace({k: sympy.Integer(0)}))
    rest = each(lambda a, b: sympy.expand(a - b), here, here.xreplace({k: k - 1}))
    return chosen([(sympy.expand(v), sympy.And(sympy.Eq(k, 0), c)) for v, c in cases(first)] + cases(rest))


def _is_integer(x: Indexed) -> bool:
    return x.dtype in (torch.int64, torch.int32) and not is_condition(x.body)


def _running_sum(call: _Call) -> Any:
    x = call.tensor()
    body = _integers(x.body)
    if call.dtype.is_floating_point or not body.is_number:
        raise Unknown("a running sum of values")
    return body * (dim(call.axis(call.arg(1, "dim"), len(x.shape))) + 1)


def _triangle(upper: bool) -> Callable[[_Call], Any]:
    def rule(call: _Call) -> Any:
        x, diagonal = call.tensor(), call.arg(1, "diagonal", 0)
        rank = len(x.shape)
        row, column = dim(rank - 2), dim(rank - 1)
        inside = column - row - diagonal if upper else row + diagonal - column
        kept = sympy.Ge(inside, 0)
        if call.dtype is torch.bool:
            return sympy.And(kept, x.body)
        return chosen([*((v, sympy.And(kept, c)) for v, c in cases(x.body)), (sympy.Integer(0), sympy.true)])

    return rule


def _where(call: _Call) -> Any:
    condition, a, b = (call.arg(k, n) for k, n in enumerate(("condition", "input", "other")))
    if call.name == "masked_fill":
        condition, a, b = call.arg(1, "mask"), call.arg(2, "value"), call.tensor()
    elif call.node.op == "call_method":  # x.where(condition, other)
        condition, a = a, condition
    return _choice(call.body(condition, torch.bool), call.body(a, call.dtype), call.body(b, call.dtype))


def _choice(condition: Any, a: Any, b: Any) -> Any:
    if is_condition(a):
        return sympy.Or(sympy.And(condition, a), sympy.And(sympy.Not(condition), b))
    return chosen([*((v, sympy.And(condition, c)) for v, c in cases(a)), *cases(b)])


def _add_batch_dim(call: _Call) -> Any:
    """Hides a dimension, for vmap."""
    x, axis, level = call.tensor(), call.arg(1), call.arg(2)
    axis = call.axis(axis, len(x.shape))
    rest = [dim(k if k < axis else k - 1) for k in range(len(x.shape))]
    rest[axis] = _vmap_level(level)
    return _at(x, rest)


def _remove_batch_dim(call: _Call) -> Any:
    """Makes a vmap-hidden dimension one of the result."""
    x, level, axis = call.tensor(), call.arg(1), call.axis(call.arg(3), len(call.shape))
    moved = {dim(k): dim(k if k < axis else k + 1) for k in range(len(x.shape))}
    return x.body.xreplace({**moved, _vmap_level(level): dim(axis)})


_RULES: dict[str, Callable[[_Call], Any]] = {
    "arange": _arange,
    "ones": _constant(1),
    "zeros": _constant(0),
    "ones_like": _constant(1),
    "zeros_like": _constant(0),
    "new_ones": _constant(1),
    "new_zeros": _constant(0),
    "full": _filled(1, "fill_value"),
    "full_like": _filled(1, "fill_value"),
    "new_full": _filled(2, "fill_value"),
    "tensor": _filled(0, "data"),
    "scalar_tensor": _filled(0, "s"),
    **dict.fromkeys(("to", "type", "type_as", "bool", "int", "long", "float", "half", "bfloat16", "double", "clone",
                     "contiguous", "detach", "expand", "expand_as", "broadcast_to", "cuda", "cpu", "alias"),
                    _same_elements),
    **dict.fromkeys(("view", "reshape", "squeeze", "_unsafe_view"), _reshaped),
    "unsqueeze": _unsqueezed,
    **dict.fromkeys(("permute", "transpose", "t", "swapaxes"), _permuted),
    "getitem": _selected,
    "index": _indexed,
    **dict.fromkeys(("and", "and_", "logical_and", "bitwise_and"), _pointwise(_logical(sympy.And), 2)),
    **dict.fromkeys(("or", "or_", "logical_or", "bitwise_or"), _pointwise(_logical(sympy.Or), 2)),
    **dict.fromkeys(("xor", "logical_xor", "bitwise_xor"), _pointwise(_logical(sympy.Xor), 2)),
    **dict.fromkeys(("invert", "inv", "logical_not", "bitwise_not"), _pointwise(_logical(sympy.Not), 1)),
    **{
        name: _pointwise(_comparison(kind), 2)
        for kind, names in {
            "lt": "lt less", "le": "le less_equal", "gt": "gt greater", "ge": "ge greater_equal", "eq": "eq",
            "ne": "ne not_equal",
        }.items()
        for name in names.split()
    },
    **dict.fromkeys(("add", "radd"), _pointwise(_arithmetic(operator.add), 2)),
    **dict.fromkeys(("sub", "subtract"), _pointwise(_arithmetic(operator.sub), 2)),
    **dict.fromkeys(("rsub",), _pointwise(_arithmetic(lambda a, b: b - a), 2)),
    **dict.fromkeys(("mul", "rmul", "multiply"), _pointwise(_arithmetic(operator.mul), 2)),
    "floordiv": _pointwise(_arithmetic(lambda a, b: sympy.floor(a / b)), 2),
    "floor_divide": _pointwise(_arithmetic(lambda a, b: sympy.floor(a / b)), 2),
    "neg": _pointwise(_arithmetic(operator.neg), 1),
    "cat": _concatenated,
    "diff": _difference,
    "cumsum": _running_sum,
    "triu": _triangle(True),
    "tril": _triangle(False),
    "where": _where,
    "masked_fill": _where,
    "_add_batch_dim": _add_batch_dim,
    "_remove_batch_dim": _remove_batch_dim,
}  # fmt: skip


_IN_PLACE = {
    **{name: name[1:] for name in ("iadd", "isub", "imul", "iand", "ior", "ixor")},
    **{f"{name}_": name for name in ("add", "sub", "mul", "logical_not", "logical_and", "logical_or", "masked_fill")},
}  # their results have the operand's type; names in dunders are without them here


def _name(node: Node) -> str:
    """The called function, with one name for a method, an operator, a torch function and an ATen op."""
    if node.op == "call_method":
        name = str(node.target)
        return name[2:-2] if name.startswith("__") and name.endswith("__") else name
    if node.op != "call_function":
        return ""
    if isinstance(node.target, OpOverload):
        return node.target._schema.name.rpartition("::")[2] if node.target.namespace == "aten" else ""
    name = getattr(node.target, "__name__", "")
    spaces = (operator, torch, nn_functions, torch.nn.functional, purity.vmap, torch.ops.aten)
    return name if any(getattr(space, name, None) is node.target for space in spaces) else ""


def _rule(node: Node) -> Callable[[_Call], Any] | None:
    name = _name(node)
    return None if "out" in node.kwargs else _RULES.get(_IN_PLACE.get(name, name))


def has_rule(node: Node) -> bool:
    """Whether the call is of a pure function with a rule."""
    return _rule(node) is not None and _name(node) not in _IN_PLACE
