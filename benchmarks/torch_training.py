#!/usr/bin/env python3
"""500 steps of training a small GPT on real text: our loss curves beside eager's with the same seeds and with others.

    python benchmarks/torch_training.py --json benchmarks/results/torch-training-cpu.json --plot docs/images/torch-training.png

Characters of the language reference that comes with Python (``pydoc_data``), 451 thousand weights, AdamW. A seed decides
weights, batches and dropout. Held-out loss is of the same batches for all. At steps 1 and 100 the gradients from our
weights are held against eager's and float64's; with dropout by eager's own random numbers, and float64's without.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import json
import os
import platform
import statistics
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import torch
from torch import nn
from torch.nn import functional as F

BATCH, LENGTH, WIDTH, LAYERS, HEADS = 16, 64, 96, 4, 4
RUNS = (*(("mlirfuse", seed) for seed in range(3)), *(("eager", seed) for seed in range(8)))


class Block(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down, self.p = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH), p

    def forward(self, x):
        q, k, v = self.qkv(self.first(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + F.dropout(self.out(mixed), self.p, self.training)
        return x + F.dropout(self.down(F.gelu(self.up(self.second(x)))), self.p, self.training)


class GPT(nn.Module):
    def __init__(self, characters, p):
        super().__init__()
        self.words, self.places = nn.Embedding(characters, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block(p) for _ in range(LAYERS))
        self.norm, self.head, self.p = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, characters, bias=False), p

    def forward(self, given, wanted):
        x = self.words(given) + self.places(torch.arange(given.shape[1]))
        x = F.dropout(x, self.p, self.training)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), wanted.flatten())


def text() -> str:
    from pydoc_data.topics import topics

    return "\n".join(topics[name] for name in sorted(topics))


class Data:
    """The text as numbers; its last tenth is held out."""

    def __init__(self):
        whole = text()
        self.hash = hashlib.sha256(whole.encode()).hexdigest()[:16]
        known = {c: k for k, c in enumerate(sorted(set(whole)))}
        numbers = torch.tensor([known[c] for c in whole])
        self.characters, cut = len(known), len(numbers) * 9 // 10
        self.training, self.held_out = numbers[:cut], numbers[cut:]

    @staticmethod
    def batch(numbers, generator):
        starts = torch.randint(0, len(numbers) - LENGTH - 1, (BATCH,), generator=generator)
        rows = numbers[starts[:, None] + torch.arange(LENGTH + 1)]
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def gradients(model, run, batch):
    model.zero_grad()
    torch.manual_seed(5)
    run(*batch).backward()
    found = [p.grad.double() for p in model.parameters()]
    model.zero_grad()
    return found


def distance(found, wanted):
    return max(float((a - b).abs().max()) for a, b in zip(found, wanted)) / max(float(b.abs().max()) for b in wanted)


def compare(model, batch):
    """How far gradients are from eager's: relative to their largest element."""
    options = {"fallback": False, "eager_random": True}
    mine, eager = copy.deepcopy(model), copy.deepcopy(model)
    found = gradients(mine, torch.compile(mine, backend="mlirfuse", options=options), batch)
    theirs = gradients(eager, eager, batch)
    out = {"from_eager": distance(found, theirs)}
    if model.p == 0:
        exact = copy.deepcopy(model).double()
        wanted = gradients(exact, exact, batch)
        out |= {"from_float64": distance(found, wanted), "eager_from_float64": distance(theirs, wanted)}
    return out


def train(data, p, seed, steps, compiled):
    """One run: the loss of each step, the held-out loss at times, seconds a step, and how gradients compare."""
    torch.manual_seed(seed)
    model = GPT(data.characters, p)
    run = torch.compile(model, backend="mlirfuse", options={"fallback": False}) if compiled else model
    batches, optimizer = torch.Generator().manual_seed(seed), torch.optim.AdamW(model.parameters(), lr=1e-3)
    held = torch.Generator().manual_seed(99)
    held_out = [data.batch(data.held_out, held) for _ in range(8)]
    out: dict = {
        "name": "mlirfuse" if compiled else "eager",
        "seed": seed,
        "losses": [],
        "held_out": {},
        "gradients": {},
    }
    taken = []
    for step in range(1, steps + 1):
        batch = data.batch(data.training, batches)
        if compiled and step in (1, 100):
            out["gradients"][step] = compare(model, batch)
            torch.manual_seed(seed + step)
        start = time.perf_counter()
        optimizer.zero_grad()
        loss = run(*batch)
        loss.backward()
        optimizer.step()
        taken.append(time.perf_counter() - start)
        out["losses"].append(round(loss.item(), 5))
        if step % 50 == 0:
            model.eval()
            with torch.no_grad():
                out["held_out"][step] = round(statistics.mean(model(*batch).item() for batch in held_out), 5)
            model.train()
    out["first_step_s"], out["step_ms"] = round(taken[0], 2), round(statistics.median(taken) * 1e3, 1)
    return out


def plot(result, path):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    looks = {
        "mlirfuse": {"color": "tab:red", "zorder": 4},
        "eager, the same seeds": {"color": "black", "ls": ":", "zorder": 5},
        "eager, other seeds": {"color": "0.7"},
    }
    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4), sharey=True)
    for axis, (p, runs) in zip(axes, result["runs"].items()):
        ours = {run["seed"] for run in runs if run["name"] == "mlirfuse"}
        for run in runs:
            means = [statistics.mean(run["losses"][max(0, n - 9) : n + 1]) for n in range(len(run["losses"]))]
            kind = "eager, the same seeds" if run["seed"] in ours else "eager, other seeds"
            kind = "mlirfuse" if run["name"] == "mlirfuse" else kind
            label = kind if kind not in axis.get_legend_handles_labels()[1] else None
            axis.plot(range(1, len(means) + 1), means, label=label, linewidth=1, **looks[kind])
        axis.set(title=f"dropout {p}", xlabel="step", yscale="log")
        axis.legend()
    axes[0].set_ylabel("training loss, mean of ten steps")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def spread(runs):
    """Held-out loss at the end of each of our runs, of eager's with its seed, and the least and largest of eager's with
    others."""
    ends = {(run["name"], run["seed"]): list(run["held_out"].values())[-1] for run in runs}
    for (name, seed), end in ends.items():
        if name == "mlirfuse":
            others = [x for (which, other), x in ends.items() if which == "eager" and other != seed]
            yield seed, end, ends["eager", seed], min(others), max(others)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json")
    parser.add_argument("--plot")
    parser.add_argument("--from", dest="old", help="draw a run that was kept")
    args = parser.parse_args(argv)
    if args.old:
        with open(args.old) as file:
            plot(json.load(file), args.plot)
        return 0
    import mlirfuse.torch  # noqa: F401

    torch.set_num_threads(args.threads)
    data = Data()
    result = {"text": data.hash, "characters": len(data.training) + len(data.held_out), "python": platform.python_version(),
              "torch": torch.__version__, "steps": args.steps, "runs": {}}  # fmt: skip
    for p in (0.0, 0.1):
        runs = result["runs"][str(p)] = []
        for name, seed in RUNS:
            runs.append(train(data, p, seed, args.steps, compiled=name == "mlirfuse"))
            last = runs[-1]
            end = statistics.mean(last["losses"][-50:])
            print(f"dropout {p} seed {seed} {name}: last 50 {end:.4f}, held out "
                  f"{list(last['held_out'].values())[-1:]}, {last['step_ms']} ms, {last['gradients']}", flush=True)  # fmt: skip
        for seed, end, same, least, largest in spread(runs):
            print(f"dropout {p} seed {seed}: held out {end}, eager {same}, other seeds {least} to {largest}")
        if args.json:
            with open(args.json, "w") as file:
                json.dump(result, file)
    if args.plot:
        plot(result, args.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
