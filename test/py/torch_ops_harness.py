"""Compares ops of torch's own ``op_db``, compiled without Dynamo, with eager: values, types, strides, aliasing,
gradients."""

from __future__ import annotations

import functools

import torch
from functorch.compile import nop
from torch._functorch.aot_autograd import aot_function
from torch.utils import _pytree as pytree

from mlirfuse.frontend.torch import decompositions
from mlirfuse.frontend.torch.backend import Options, compile_graph
from mlirfuse.frontend.torch.partition import partition

OPTIONS = Options(fallback=False, eager_random=True)
TOLERANCES = {torch.float32: (1e-4, 2e-5), torch.bfloat16: (3e-2, 3e-2), torch.float16: (4e-3, 4e-3)}


def compiled(function):
    """``function`` through AOTAutograd and our compilers."""
    compilers = [
        functools.partial(compile_graph, options=OPTIONS, which=w) for w in ("forward", "backward", "inference")
    ]
    return aot_function(
        function,
        fw_compiler=compilers[0],
        bw_compiler=compilers[1],
        inference_compiler=compilers[2],
        partition_fn=partition,
        decompositions=decompositions.without_random(),
        keep_inference_input_mutations=True,
    )


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
        rtol, atol = TOLERANCES.get(b.dtype, (None, None))
        torch.testing.assert_close(a, b, rtol=rtol, atol=atol, equal_nan=True, msg=lambda m, k=k: f"{what} {k}: {m}")


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

    def fresh():
        return [leaves[k].detach().requires_grad_(gradients and leaves[k].requires_grad) for k in places]

    results = []
    run = compiled(function)
    for f in (function, run):
        torch.manual_seed(7)
        given = fresh()
        out = f(*given)
        tensors = _tensors(out)
        grads = []
        smooth = [y for y in tensors if y.requires_grad]
        if smooth:
            torch.manual_seed(8)
            cotangents = [torch.randn_like(y) for y in smooth]
            wanted = [x for x in given if x.requires_grad]
            grads = list(torch.autograd.grad(smooth, wanted, cotangents, allow_unused=True))
        results.append((out, tensors, grads, _aliases(tensors, given)))
    (eager, wanted, wanted_grads, alias), (ours, found, grads, our_alias) = results
    plain = [x for x in pytree.tree_leaves(eager) if not isinstance(x, torch.Tensor)]
    assert plain == [x for x in pytree.tree_leaves(ours) if not isinstance(x, torch.Tensor)]
    _close(found, wanted, "result")
    for k, (a, b) in enumerate(zip(found, wanted)):
        assert a.stride() == b.stride(), f"result {k} has strides {a.stride()}, eager's has {b.stride()}"
    assert our_alias == alias, f"results lie in the memory of inputs {our_alias}, eager's in {alias}"
    _close(grads, wanted_grads, "gradient")
