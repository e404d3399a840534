"""Measures kernels of all schedulers beside their features, for ``python -m mlirfuse.tools.fit_costs``::

    python benchmarks/kernel_costs.py --json out.json                      # op mixes at three sizes, on a GPU if any
    python benchmarks/kernel_costs.py --models bert swin --json more.json  # steps of models of torch_models.py

Each mix is a function of tensors of its own; all mixes of a family are one graph, whose kernels the audit times one by
one (``mlirfuse.torch.audit``). A family that fails is named, and the others go on.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections.abc import Callable

import torch
import torch.nn.functional as F
from audit_models import audited

import mlirfuse.torch

Make = Callable[..., torch.Tensor]


def _times(x: torch.Tensor, count: int) -> torch.Tensor:
    for k in range(count):
        x = torch.sin(x * (k + 0.5)) + 1
    return x


POINTWISE = {
    "copy": lambda x: -x,
    "add": lambda x, y: x + 2 * y,
    "gelu": lambda x: F.gelu(x),
    "swiglu": lambda x, y: F.silu(x) * y,
    "bias": lambda x: F.relu(x + x[0].clone()),
    "sines": lambda x: _times(x, 4),
    "many sines": lambda x: _times(x, 16),
    "three": lambda x, y, z: torch.tanh(x) * y + z,
    "to half": lambda x: (x * 2).half(),
    "wide": lambda x: (x.double() * 2).float(),
    "power": lambda x: x.abs() ** 1.7,
    "divide": lambda x, y: x / (y.abs() + 1),
    "compare": lambda x, y: torch.where(x > y, x, 0.5 * y),
    "integers": lambda x: (x * 100).int() // 7 % 5,
    "erfinv": lambda x: torch.erfinv(torch.tanh(x)),
    "dropout": lambda x: F.dropout(x, 0.3),
    "normal": lambda x: x + torch.randn_like(x),
}
REDUCTIONS = {
    "sum 1": lambda x: x.sum(1),
    "sum 0": lambda x: x.sum(0),
    "sum": lambda x: x.sum(),
    "max 1": lambda x: x.amax(1),
    "argmax 1": lambda x: x.argmax(1),
    "argmax 0": lambda x: x.argmax(0),
    "variance 1": lambda x: x.var(1),
    "variance 0": lambda x: x.var(0),
    "sum of gelu 1": lambda x: F.gelu(x).sum(1),
    "sum of gelu 0": lambda x: F.gelu(x).sum(0),
    "norm": lambda x: x.float().square().sum().sqrt(),
    "mean of product": lambda x, y: (x * y).mean(1),
    "mse": lambda x, y: F.mse_loss(x, y),
    "bce": lambda x, y: F.binary_cross_entropy_with_logits(x, torch.sigmoid(y)),
    "two": lambda x: (x.sum(1), x.square().sum(1)),
    "any": lambda x: (x > 3).any(1),
    "sum of sines 1": lambda x: _times(x, 8).sum(1),
    "sum and value": lambda x, y: (F.gelu(x) * y, (F.gelu(x) * y).sum(0)),
}
NORMALIZATIONS = {
    "softmax 1": lambda x: torch.softmax(x, 1),
    "softmax 0": lambda x: torch.softmax(x, 0),
    "log softmax": lambda x: torch.log_softmax(x, 1),
    "layer norm": lambda x: F.layer_norm(x, x.shape[1:]),
    "layer norm of gelu": lambda x: F.layer_norm(F.gelu(x), x.shape[1:]),
    "add and layer norm": lambda x, y: F.layer_norm(x + y, x.shape[1:]),
    "rms norm": lambda x: F.rms_norm(x, x.shape[1:]),
    "batch norm": lambda x: F.batch_norm(x, None, None, training=True),
    "softmax of sines": lambda x: torch.softmax(_times(x, 8), 1),
    "softmax of sines 0": lambda x: torch.softmax(_times(x, 8), 0),
    "masked softmax": lambda x, y: torch.softmax(x.masked_fill(y > 0, -1e4), 1),
    "standardized": lambda x: (x - x.mean()) / x.std(),
    "normalize": lambda x: F.normalize(x, dim=1),
    "softmax backward": lambda x, y: y * (x - (x * y).sum(1, keepdim=True)),
    "layer norm backward": lambda x, y: torch.ops.aten.native_layer_norm_backward(
        y,
        x,
        x.shape[1:],
        x.mean(1, keepdim=True).float(),
        x.var(1, keepdim=True).float(),
        x[0].clone(),
        x[1].clone(),
        [True, True, True],
    ),
}
MOVES = {
    "transpose": lambda x: x.t().contiguous(),
    "gelu and transpose": lambda x: F.gelu(x).t().contiguous(),
    "add transposed": lambda x, y: x + y.view(x.shape[1], x.shape[0]).t(),
    "heads": lambda x: x.view(x.shape[0] // 16, 16, x.shape[1] // 32, 32).transpose(1, 2).contiguous(),
    "concatenate 1": lambda x, y: torch.cat([x, y], 1),
    "concatenate 0": lambda x, y: torch.cat([x, F.relu(y)], 0),
    "odd parts": lambda x, y: torch.cat([x[:, :77], y[:, :130], x[:, 77:90]], 1),
    "pad": lambda x: F.pad(x, (1, 2, 3, 4)),
    "roll": lambda x: torch.roll(x, (3, 5), (0, 1)),
    "flip": lambda x: x.flip(1),
    "slice": lambda x: x[:, ::2] * 2,
    "repeat": lambda x: x.repeat(2, 2),
    "split and gate": lambda x: torch.sigmoid(x[:, : x.shape[1] // 2]) * x[:, x.shape[1] // 2 :],
    "rotary": lambda x: torch.cat([-x[:, x.shape[1] // 2 :], x[:, : x.shape[1] // 2]], 1) * x,
    "stencil": lambda x: x[1:-1] + x[2:] - 2 * x[:-2],
    "stencil of sines": lambda x: (lambda y: y[:, 1:-1] + y[:, 2:] + y[:, :-2])(_times(x, 3)),
}
INDEXED = {
    "rows": lambda x, i: x[i % x.shape[0]],
    "rows and gelu": lambda x, i: F.gelu(x[i % x.shape[0]]),
    "elements": lambda x, i: torch.gather(x, 1, (i[: x.shape[0], None] % x.shape[1]).expand(-1, 64).contiguous()),
    "add rows": lambda x, i: torch.zeros_like(x).index_add(0, i[: x.shape[0]] % x.shape[0], 2 * x),
    "embedding gradient": lambda x, i: torch.ops.aten.embedding_dense_backward(x, i[: x.shape[0]] % 512, 512, -1, False),
    "cumulative sum 1": lambda x: x.cumsum(1),
    "cumulative sum 0": lambda x: x.cumsum(0),
    "cumulative sum of gelu": lambda x: F.gelu(x).cumsum(1),
    "cumulative maximum": lambda x: x.cummax(1).values,
    "one hot": lambda x, i: F.one_hot(i[: x.shape[0]] % 64, 64),
    "cross entropy": lambda x, i: F.cross_entropy(x, i[: x.shape[0]] % x.shape[1]),
    "cross entropy of each": lambda x, i: F.cross_entropy(x, i[: x.shape[0]] % x.shape[1], reduction="none"),
    "gather of sines": lambda x, i: _times(x, 4)[i % x.shape[0]],
    "triangle": lambda x: x.tril(),
    "lookup": lambda x, i: x[0][(i[: x.shape[0]] % x.shape[1])] + x[1][: x.shape[0]] if x.shape[0] <= x.shape[1]
    else x[:, 0][i[: x.shape[1]] % x.shape[0]],
}  # fmt: skip


def _image(x):
    """Of the elements of ``x``: 16 channels, and as many square pixels."""
    side = int((x.numel() / 16) ** 0.5) // 16 * 16
    return x.reshape(-1)[: 16 * side * side].view(1, 16, side, side)


IMAGES = {
    "max pool": lambda x: F.max_pool2d(_image(x), 3, 2, 1),
    "average pool": lambda x: F.avg_pool2d(_image(x), 2),
    "average pool of 5": lambda x: F.avg_pool2d(_image(x), 5, 1, 2),
    "pool of gelu": lambda x: F.avg_pool2d(F.gelu(_image(x)), 3, 1, 1),
    "adaptive pool": lambda x: F.adaptive_avg_pool2d(_image(x), 7),
    "bilinear": lambda x: F.interpolate(_image(x), scale_factor=2, mode="bilinear"),
    "nearest": lambda x: F.interpolate(_image(x), scale_factor=2),
    "bicubic": lambda x: F.interpolate(_image(x), scale_factor=2, mode="bicubic"),
    "smaller": lambda x: F.interpolate(_image(x), scale_factor=0.5, mode="bilinear", antialias=False),
    "group norm": lambda x: F.group_norm(_image(x), 4),
    "instance norm": lambda x: F.instance_norm(_image(x)),
    "batch norm of an image": lambda x: F.relu(F.batch_norm(_image(x), None, None, training=True)),
    "channels last": lambda x: _image(x).contiguous(memory_format=torch.channels_last),
    "channel softmax": lambda x: torch.softmax(_image(x), 1),
    "pixels": lambda x: F.pixel_shuffle(_image(x), 4),
    "windows": lambda x: (lambda y: y.view(16, y.shape[2] // 8, 8, y.shape[3] // 8, 8).transpose(2, 3).contiguous())(
        _image(x)
    ),
    "segmentation loss": lambda x: F.cross_entropy(
        F.interpolate(_image(x), scale_factor=2, mode="bilinear"),
        torch.zeros((1, 2 * _image(x).shape[2], 2 * _image(x).shape[3]), dtype=torch.long, device=x.device),
    ),
}  # fmt: skip
FAMILIES = {"pointwise": POINTWISE, "reductions": REDUCTIONS, "normalizations": NORMALIZATIONS, "moves": MOVES,
            "indexed": INDEXED, "images": IMAGES}  # fmt: skip
SHAPES = ((256, 1024), (8192, 4096), (32768, 128), (2048, 2048), (512, 16384))


def _function(mixes: list[Callable], inputs: list[tuple]) -> Callable:
    def run(*flat):
        given, found = iter(flat), []
        for mix, some in zip(mixes, inputs):
            found.append(mix(*(next(given) for _ in some)))
        return found

    return run


def _inputs(mix: Callable, shape: tuple[int, int], dtype: torch.dtype, device: str) -> tuple:
    names = mix.__code__.co_varnames[: mix.__code__.co_argcount]
    return tuple(
        torch.randint(0, 1 << 20, (max(shape),), device=device) if name == "i"
        else torch.randn(shape, device=device).to(dtype)
        for name in names
    )  # fmt: skip


def family(name: str, shape: tuple[int, int], dtype: torch.dtype, device: str) -> list[dict]:
    """The records of a family's kernels."""
    mixes = list(FAMILIES[name].values())
    inputs = [_inputs(mix, shape, dtype, device) for mix in mixes]
    flat = [x for some in inputs for x in some]
    torch._dynamo.reset()
    return records(mlirfuse.torch.audit(_function(mixes, inputs), *flat))


def records(audit: mlirfuse.torch.Audit) -> list[dict]:
    """What the fit reads of an audit: milliseconds of one launch, and its features."""
    return [
        {"scheduler": k.scheduler, "ms": k.ms / k.times, "ops": k.ops, "where": k.where, "schedule": k.schedule,
         "features": k.features}
        for k in audit.kernels
        if k.features
    ]  # fmt: skip


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", metavar="FAMILY", help=f"of {', '.join(FAMILIES)}; the default is all")
    parser.add_argument("--models", nargs="*", default=[], help="models of torch_models.py instead of op mixes")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="bfloat16", help="of models' autocast")
    parser.add_argument("--small", action="store_true", help="the smallest size alone")
    parser.add_argument("--seconds", type=float, default=1e9, help="nothing is begun after so long")
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args(argv)
    args.tune, found, start = False, [], time.monotonic()
    shapes = SHAPES[:1] if args.small else SHAPES
    mixes = [(name, shape, dtype) for shape in shapes for dtype in (torch.float32, torch.bfloat16)
             for name in args.families or FAMILIES]  # fmt: skip
    work = [(name, lambda name=name: records(audited(name, args))) for name in args.models] or [
        (f"{name} {shape} {dtype}", lambda given=(name, shape, dtype): family(*given, args.device))
        for name, shape, dtype in mixes
    ]
    for name, run in work:
        if time.monotonic() - start > args.seconds:
            break
        try:
            more = run()
        except Exception:
            print(f"{name} failed: {traceback.format_exc(limit=-3)}", flush=True)
            continue
        found += [record | {"from": name} for record in more]
        print(f"{time.monotonic() - start:.0f} s: {name}: {len(more)} kernels", flush=True)
        if args.json:
            with open(args.json, "w", encoding="utf-8") as file:
                json.dump(found, file, separators=(",", ":"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
