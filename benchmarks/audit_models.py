"""Audits a training step of each model of ``torch_models.py``, and lists the kernels that lose most over all::

    python benchmarks/audit_models.py                          # all models, on a GPU if there is one
    python benchmarks/audit_models.py unet swin --json out     # some, with out/unet.json and out/unet.html
    python benchmarks/audit_models.py --from out/*.json        # the list of earlier runs, and nothing is run

A kernel loses what it takes beyond the largest of: a copy of as many bytes, as many operations, a launch, each measured
on the device (``mlirfuse.torch.audit``). A model that fails is named, and the others go on.
"""

from __future__ import annotations

import argparse
import gc
import json
import pathlib
import sys
import traceback

import torch
from torch_models import MODELS

import mlirfuse.torch
from mlirfuse.inspect.audit import AuditedKernel
from mlirfuse.inspect.shown import Table


class Loss(torch.nn.Module):
    """A model's loss, under autocast as a training loop has it."""

    def __init__(self, model, device: str, dtype: torch.dtype):
        super().__init__()
        self.model, self.device, self.dtype = model, device, dtype

    def forward(self, batch):
        with torch.autocast(self.device, dtype=self.dtype, enabled=self.dtype != torch.float32):
            if "images" not in batch:
                return self.model(**batch).loss
            out = self.model(batch["images"])
            out = out if isinstance(out, torch.Tensor) else out.logits
            return torch.nn.functional.cross_entropy(out, batch["labels"])


def audited(name: str, args) -> mlirfuse.torch.Audit:
    torch.manual_seed(0)
    model, batch = MODELS[name](args.small, False)
    batch = {key: value.to(args.device) for key, value in batch.items()}
    loss = Loss(model.to(args.device).train(), args.device, getattr(torch, args.dtype))
    return mlirfuse.torch.audit(loss, batch, tune=args.tune)


def overall(found: dict[str, list[AuditedKernel]], count: int) -> Table:
    """The kernels of all models that lose most."""
    rows = sorted(((k, name) for name, kernels in found.items() for k in kernels), key=lambda row: -row[0].lost_ms)
    lost = sum(k.lost_ms for k, _ in rows)
    cells = [
        (f"{k.lost_ms:.4f}", f"{100 * k.lost_ms / lost:.1f}%", f"{k.ms:.4f}", f"{100 * k.of_bound:.0f}%", k.limit,
         k.times, name, k.where, k.scheduler, k.ops, k.lines)
        for k, name in rows[:count]
        if k.lost_ms
    ]  # fmt: skip
    headings = ("lost ms", "share", "ms", "of bound", "limit", "times", "model", "graph", "scheduler", "ops", "lines")
    return Table(headings, cells, f"all {len(found)} models lose {lost:.3f} ms in {len(rows)} kernels; most in:")


def read(path: pathlib.Path) -> list[AuditedKernel]:
    rows = json.loads(path.read_text())["kernels"]
    return [AuditedKernel(**{key: value for key, value in row.items() if key != "lost_ms"}) for row in rows]


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "models", nargs="*", metavar="MODEL", help=f"of {', '.join(sorted(MODELS))}; the default is all"
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="bfloat16", help="of autocast; float32: none")
    parser.add_argument("--small", action="store_true", help="a small batch: to try the script, not to quote")
    parser.add_argument("--tune", action="store_true", help="also measure other schedules of each kernel")
    parser.add_argument("--json", metavar="FOLDER", type=pathlib.Path, help="a JSON file and a page of each model")
    parser.add_argument("--from", dest="sources", nargs="+", type=pathlib.Path, default=[], help="audits of before")
    parser.add_argument("--top", type=int, default=40, help="how many kernels the list has")
    args = parser.parse_args(argv)
    if unknown := [name for name in args.models if name not in MODELS]:
        parser.error(f"no model {unknown[0]}: there are {', '.join(sorted(MODELS))}")
    found = {path.stem: read(path) for path in args.sources}
    failed = []
    for name in [] if args.sources else args.models or sorted(MODELS):
        try:
            audit = audited(name, args)
        except Exception:
            failed.append(name)
            print(f"{name} failed:\n{traceback.format_exc()}", flush=True)
            continue
        found[name] = audit.kernels
        print(f"---- {name}\n{audit}", flush=True)
        if args.json:
            args.json.mkdir(parents=True, exist_ok=True)
            audit.save(args.json / f"{name}.json")
            audit.save(args.json / f"{name}.html")
        del audit
        gc.collect()
        if args.device == "cuda":
            torch.cuda.empty_cache()
    print(overall(found, args.top))
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
