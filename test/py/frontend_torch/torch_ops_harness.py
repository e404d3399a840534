"""Compares ops of torch's own ``op_db``, compiled without Dynamo, with eager: values, types, strides, aliasing,
gradients."""

from __future__ import annotations

import torch
from functorch.compile import nop
from torch._functorch.aot_autograd import aot_function
from torch.utils import _pytree as pytree

from mlirfuse.torch import memory_efficient_fusion

TOLERANCES = {torch.float32: (1e-4, 2e-5)}
HALVES = (torch.bfloat16, torch.float16)


def compiled(function):
    """``function`` through AOTAutograd and our compilers, with eager's random numbers."""
    return memory_efficient_fusion(function, fallback=False, eager_random=True)


def uncompiled(function):
    """``function`` through AOTAutograd alone: what this changes is not ours."""
    return aot_function(function, fw_compiler=nop, keep_inference_input_mutations=True)


def _aliases(outputs, inputs) -> list[list[int]]:
    """For each output the inputs in whose storage it lies."""
    storage = [x.untyped_storage().data_ptr() for x in inputs]
    return [[k for k, s in enumerate(storage) if s and s == y.untyped_storage().data_ptr()] for y in outputs]


def _tensors(tree) -> list[torch.Tensor]:
    return [x for x in pytree.tree_leaves(tree) if isinstance(x, torch.Tensor)]


def _close(found, wanted, what: str) -> None:
    assert len(found) == len(wanted), f"{what}: {len(found)} of {len(wanted)}"
    for k, (a, b) in enumerate(zip(found, wanted)):
        assert (a is None) == (b is None), f"{what} {k}: {a} of {b}"
        if a is None:
            continue
        assert a.dtype is b.dtype, f"{what} {k}: {a.dtype} of {b.dtype}"
        assert a.shape == b.shape, f"{what} {k}: {a.shape} of {b.shape}"
        if b.dtype in HALVES:  # see _near
            continue
        rtol, atol = TOLERANCES.get(b.dtype, (None, None))
        torch.testing.assert_close(a, b, rtol=rtol, atol=atol, equal_nan=True, msg=lambda m, k=k: f"{what} {k}: {m}")


def _near(found, wanted, exact, what: str) -> None:
    """Half types: not further from float64 than twice eager, and four roundings of the largest element."""
    for k, (a, b, c) in enumerate(zip(found, wanted, exact)):
        if a is None or b.dtype not in HALVES:
            continue
        assert torch.equal(a.isnan(), b.isnan()), f"{what} {k}: NaN elsewhere than eager"
        finite = b.isfinite() & a.isfinite() & c.isfinite()
        ours, theirs = [(x.double() - c.double()).abs()[finite] for x in (a, b)]
        if ours.numel():
            bound = 2 * theirs.max() + 4 * torch.finfo(b.dtype).eps * c[finite].abs().max()
            assert ours.max() <= bound, f"{what} {k}: {float(ours.max())} from float64, eager {float(theirs.max())}"


def check(op, sample, gradients: bool, compiled=compiled) -> None:
    """One sample of an op. Raises AssertionError where the compiled function differs from eager."""
    leaves, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    places = [k for k, x in enumerate(leaves) if isinstance(x, torch.Tensor)]

    def function(*tensors):
        given = list(leaves)
        for k, x in zip(places, tensors):
            given[k] = x
        value, args, kwargs = pytree.tree_unflatten(given, spec)
        out = op(value, *args, **kwargs)
        return sample.output_process_fn_grad(out) if gradients else out

    def run(f, widen=False):
        torch.manual_seed(7)
        given = []
        for k in places:
            x = leaves[k].detach()
            x = x.double() if widen and x.dtype in HALVES else x
            given.append(x.requires_grad_(gradients and leaves[k].requires_grad))
        out = f(*given)
        tensors = _tensors(out)
        smooth = [y for y in tensors if y.requires_grad]
        grads = []
        if smooth:
            torch.manual_seed(8)
            cotangents = [torch.randn(y.shape, dtype=torch.float64).to(y.dtype) for y in smooth]
            wanted = [x for x in given if x.requires_grad]
            grads = list(torch.autograd.grad(smooth, wanted, cotangents, allow_unused=True))
        return out, tensors, grads, _aliases(tensors, given)

    eager, wanted, wanted_grads, alias = run(function)
    ours, found, grads, our_alias = run(compiled(function))
    plain = [x for x in pytree.tree_leaves(eager) if not isinstance(x, torch.Tensor)]
    assert plain == [x for x in pytree.tree_leaves(ours) if not isinstance(x, torch.Tensor)]
    _close(found, wanted, "result")
    for k, (a, b) in enumerate(zip(found, wanted)):
        assert a.stride() == b.stride(), f"result {k} has strides {a.stride()}, eager's has {b.stride()}"
    assert our_alias == alias, f"results lie in the memory of inputs {our_alias}, eager's in {alias}"
    _close(grads, wanted_grads, "gradient")
    if any(y is not None and y.dtype in HALVES for y in (*wanted, *wanted_grads)):
        try:
            _, exact, exact_grads, _ = run(function, widen=True)
        except RuntimeError:  # the op takes the types as they are: nothing to be exact in
            exact, exact_grads = wanted, wanted_grads
        _near(found, wanted, exact, "result")
        _near(grads, wanted_grads, exact_grads, "gradient")
