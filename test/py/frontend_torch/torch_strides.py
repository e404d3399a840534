"""Strides of compiled functions beside eager's, for every op of torch's ``op_db`` with inputs that lie otherwise than
row-major. By hand, all of it: ``python test/py/frontend_torch/torch_strides.py [op ...]`` prints what differs, and what differs with
AOTAutograd alone."""

from __future__ import annotations

import sys
import warnings

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

import mlirfuse.torch  # noqa: F401 (registers the backend, also where mlirfuse is not installed)

LEFT_OUT = ("linalg", "sparse", "torch.ops.aten", "fft.", "svd", "jiterator", "empty", "new_empty", "rand", "normal",
            "bernoulli", "multinomial", "uniform", "geometric", "exponential", "cauchy", "log_normal", "to_sparse")  # fmt: skip


def _permuted(x: torch.Tensor) -> torch.Tensor:
    return x.permute(*reversed(range(x.dim()))).contiguous().permute(*reversed(range(x.dim())))


def _channels_last(x: torch.Tensor) -> torch.Tensor:
    return x.movedim(1, -1).contiguous().movedim(-1, 1)


def _sliced(x: torch.Tensor) -> torch.Tensor:
    wide = x.new_zeros((*x.shape[:-1], 2 * x.shape[-1]))
    wide[..., ::2] = x
    return wide[..., ::2]


def _expanded(x: torch.Tensor) -> torch.Tensor:
    return x[:1].expand(x.shape)


LAYOUTS = {"permuted": _permuted, "channels last": _channels_last, "sliced": _sliced, "expanded": _expanded}


def laid(tree, how: str):
    """The tensors in ``tree`` of two dimensions and more, with their elements, lying as ``how`` says."""

    def lay(x):
        fits = isinstance(x, torch.Tensor) and x.layout is torch.strided and x.dim() > 1 and x.numel()
        return LAYOUTS[how](x) if fits and (how != "channels last" or x.dim() > 2) else x

    return pytree.tree_map(lay, tree)


def strides(created) -> list:
    """Shapes and strides; those of extents of 1 decide no address, nor what ``is_contiguous`` says: eager's own are what
    its last view left there."""
    found = [x for x in pytree.tree_leaves(created) if isinstance(x, torch.Tensor)]
    return [(tuple(x.shape), tuple(s for n, s in zip(x.shape, x.stride()) if n != 1)) for x in found]


def compiled_strides(function, given, backend: str):
    torch._dynamo.reset()
    return strides(torch.compile(function, backend=backend)(*given))


def samples_of(op) -> list:
    return list(op.sample_inputs("cpu", torch.float32))


def differences(op, samples: list, layouts=tuple(LAYOUTS)):
    """Pairs of (layout, sample, eager's, ours, AOTAutograd's) where eager's and ours are not one."""
    for k, sample in enumerate(samples):
        for how in layouts:
            value, args, kwargs = laid((sample.input, sample.args, sample.kwargs), how)

            def function(value, *args, kwargs=kwargs):
                return op.op(value, *args, **kwargs)

            try:
                eager = strides(function(value, *args))
            except Exception:  # no op of such inputs
                continue
            try:
                ours = compiled_strides(function, (value, *args), "mlirfuse")
            except Exception as error:
                ours = f"{type(error).__name__}: {str(error)[:200]}"
            if ours != eager:
                try:
                    theirs = compiled_strides(function, (value, *args), "aot_eager")
                except Exception as error:
                    theirs = type(error).__name__
                yield how, k, eager, ours, theirs


def ops():
    return [op for op in op_db if not op.name.startswith(LEFT_OUT) and torch.float32 in op.supported_dtypes("cpu")]


def main(names: list[str]) -> None:
    count = 0
    for op in ops():
        if names and op.name not in names:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for how, k, eager, ours, theirs in differences(op, samples_of(op)[:3]):
                whose = "torch's too" if theirs == ours else ""
                print(
                    op.name,
                    op.variant_test_name,
                    how,
                    f"sample {k}",
                    "eager",
                    eager,
                    "compiled",
                    ours,
                    whose,
                    flush=True,
                )
        count += 1
    print(count, "ops")


if __name__ == "__main__":
    main(sys.argv[1:])
