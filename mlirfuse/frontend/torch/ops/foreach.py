"""``torch._foreach_*``: elementwise ops on lists of tensors, as optimizers call them.

Each lowers to the op on single tensors; `fusion-foreach` launches them together.
"""

from __future__ import annotations

from typing import Any

from mlirfuse.frontend.torch.ops import pointwise  # noqa: F401  (its rules are looked up here)
from mlirfuse.frontend.torch.ops.rules import RULES, Context, Unsupported
from mlirfuse.frontend.torch.torch_private import pytree

_OF_ONE = (
    "abs", "ceil", "cos", "erf", "exp", "expm1", "floor", "log", "log1p", "log2", "neg", "reciprocal", "round", "rsqrt",
    "sigmoid", "sign", "sin", "sqrt", "tan", "tanh", "trunc",
)  # fmt: skip
_OF_TWO = ("add", "sub", "mul", "div", "maximum", "minimum")
_BASES = {f"{name}.default": f"{name}.default" for name in _OF_ONE}
for _name in _OF_TWO:
    _base = f"{_name}.default" if _name in ("maximum", "minimum") else f"{_name}.Tensor"
    _BASES |= {f"{_name}.{overload}": _base for overload in ("List", "Scalar", "ScalarList", "Tensor")}
for _name in ("addcmul", "addcdiv"):
    _BASES |= {f"{_name}.{overload}": f"{_name}.default" for overload in ("Scalar", "ScalarList")}
_BASES |= {f"pow.{overload}": "pow.Tensor_Tensor" for overload in ("List", "ScalarAndTensor")}
_BASES |= {f"pow.{overload}": "pow.Tensor_Scalar" for overload in ("Scalar", "ScalarList")}


def _of_each(base: str) -> Any:
    """The rule of a list op, from the rule of the tensor op."""

    def lower(c: Context, *args: Any, **kwargs: Any) -> list[Any]:
        fakes, _ = pytree.tree_unflatten(c.fakes, pytree.tree_structure((args, kwargs)))

        def of(given: Any, k: int) -> Any:
            return given[k] if isinstance(given, (list, tuple)) else given

        created = []
        for k, out in enumerate(c.outs):
            one = Context(c.b, out, [x for x in (of(x, k) for x in fakes) if x is not None], c.rounds)
            value = RULES[base](one, *(of(x, k) for x in args), **kwargs)
            if isinstance(value, list):
                raise Unsupported(f"{base} has several results")
            created.append(value)
        return created

    return lower


for _overload, _base in _BASES.items():
    if f"aten.{_base}" in RULES:
        RULES[f"aten._foreach_{_overload}"] = _of_each(f"aten.{_base}")
