#!/usr/bin/env python3
"""Steps of real models: torch.compile(backend="mlirfuse") beside eager and Inductor, a model a command.

    python benchmarks/torch_models.py bert --json benchmarks/results/torch-bert-h200.json
    python benchmarks/torch_models.py bert --inference --json benchmarks/results/torch-bert-inference-h200.json
    python benchmarks/torch_models.py --plot docs/images/torch-models.png --from benchmarks/results/torch-*-h200.json
    python benchmarks/torch_models.py --list

Training: random weights from one seed, one batch, bfloat16 autocast, fused AdamW (``--dtype float32`` and ``--device
cpu`` for a dry run). Each implementation first takes its first step, cold (the compile caches of Inductor and of
mlirfuse lie in a new folder; Dynamo and AOTAutograd are imported before), and some more; then all take steps in turns,
and the medians are of these. GPU time is of the profiler, by kind of kernel. Peak memory is of an implementation's own
steps, beside what the others hold. Losses after equal numbers of steps are printed: the same weights and the same
batch, dropout off unless ``--dropout``. ``--warm N``: then first steps of N new processes for each implementation that
compiles, with the caches that the cold one has left. ``--cold N``: first steps of N new processes, each with empty
caches, in turns, and nothing else.

``--inference``: a call at batch 1 is the step, in evaluation, without gradients, weights and inputs in the type. Each
call is waited for. Instead of losses there is the error, ||out - reference|| / ||reference|| beside eager in float32.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
os.environ["MLIRFUSE_CACHE_DIR"] = tempfile.mkdtemp()
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import torch

from benchmarks.architectures import ARCHITECTURES
from benchmarks.turns import Turns

torch._dynamo.config.recompile_limit = 64  # one count for all back ends: the second one would end in eager (Whisper)
CACHES = ("TORCHINDUCTOR_CACHE_DIR", "MLIRFUSE_CACHE_DIR")
KINDS = {  # the first pattern that is found in a kernel's name says its kind; Triton's names tell what is fused
    "mlirfuse": r"mlirfuse",
    "triton": r"triton",
    "attention": r"flash|fmha|attention|sdpa",
    "optimizer": r"multi_tensor|[aA]dam",
    "convolution": r"conv|fprop|dgrad|wgrad|winograd|nchwToNhwc|nhwcToNchw",
    "product": r"gemm|cutlass|nvjet|cublas|xmma|splitK",
}


def words(config, batch, length):
    """Random words, and the labels of a language model."""
    ids = torch.randint(0, config.vocab_size, (batch, length))
    return {"input_ids": ids, "labels": ids.clone()}


def language(name, batch, length, small, dropout, **sizes):
    """A language model of transformers and its batch."""
    import transformers

    config = getattr(transformers, name + "Config")(**sizes)
    for field in ("hidden_dropout_prob", "attention_probs_dropout_prob", "resid_pdrop", "embd_pdrop", "attn_pdrop",
                  "dropout_rate", "attention_dropout"):  # fmt: skip
        if hasattr(config, field) and not dropout:
            setattr(config, field, 0.0)
    classes = {"Bert": "BertForMaskedLM", "GPT2": "GPT2LMHeadModel", "Llama": "LlamaForCausalLM",
               "ModernBert": "ModernBertForMaskedLM", "T5": "T5ForConditionalGeneration"}  # fmt: skip
    model = getattr(transformers, classes[name])(config)
    batch, length = (2, 64) if small else (batch, length)
    return model, words(config, batch, length)


def images(make, batch, small):
    """A vision model and its batch."""
    batch = 4 if small else batch
    return make(), {"images": torch.randn(batch, 3, 224, 224), "labels": torch.randint(0, 1000, (batch,))}


def vit(dropout):
    import transformers

    config = transformers.ViTConfig(num_labels=1000)
    if not dropout:
        config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0
    return transformers.ViTForImageClassification(config)


def torchvision_model(name, **given):
    import torchvision

    return getattr(torchvision.models, name)(weights=None, **given)


def efficientnet(dropout):
    return torchvision_model("efficientnet_b0", **({} if dropout else {"dropout": 0.0, "stochastic_depth_prob": 0.0}))


LLAMA = {
    "hidden_size": 1536, "intermediate_size": 4096, "num_hidden_layers": 16, "num_attention_heads": 12,
    "num_key_value_heads": 4, "vocab_size": 32000,
}  # fmt: skip
T5 = {"d_model": 512, "num_layers": 6, "decoder_start_token_id": 0}

MODELS = {
    "bert": lambda small, dropout: language("Bert", 32, 512, small, dropout),
    "gpt2": lambda small, dropout: language("GPT2", 16, 1024, small, dropout),
    "llama": lambda small, dropout: language("Llama", 8, 2048, small, dropout, **LLAMA),
    "t5": lambda small, dropout: language("T5", 32, 512, small, dropout, **T5),
    "vit": lambda small, dropout: images(lambda: vit(dropout), 128, small),
    "convnext": lambda small, dropout: images(lambda: torchvision_model("convnext_tiny"), 128, small),
    "resnet50": lambda small, dropout: images(lambda: torchvision_model("resnet50"), 128, small),
    # Chosen before their first run, and nothing was tuned for them:
    "modernbert": lambda small, dropout: language("ModernBert", 32, 512, small, dropout),
    "efficientnet": lambda small, dropout: images(lambda: efficientnet(dropout), 128, small),
    **ARCHITECTURES,
}


class Decoding(torch.nn.Module):
    """A layer of Llama (by default of the sizes of its third version's 8B) that decodes a word behind others, whose
    keys and values lie in a cache."""

    def __init__(self, length, hidden_size=4096, intermediate_size=14336, heads=32, key_value_heads=8):
        super().__init__()
        import transformers
        from transformers.models.llama import modeling_llama

        config = transformers.LlamaConfig(
            hidden_size=hidden_size, intermediate_size=intermediate_size, num_attention_heads=heads,
            num_key_value_heads=key_value_heads, attn_implementation="sdpa",
        )  # fmt: skip
        self.layer = modeling_llama.LlamaDecoderLayer(config, 0)
        for name in ("keys", "values"):
            self.register_buffer(name, torch.randn(1, key_value_heads, length, hidden_size // heads))
        self.rotary = modeling_llama.LlamaRotaryEmbedding(config)

    def update(self, keys, values, layer, *_, **__):
        """What attention asks of a cache of transformers."""
        self.keys.index_copy_(2, self.position, keys)
        self.values.index_copy_(2, self.position, values)
        return self.keys, self.values

    def forward(self, word, position, cosine, sine):
        self.position = position
        mask = torch.arange(self.keys.shape[2], device=word.device) <= position
        return self.layer(
            word, mask[None, None, None], past_key_values=self, use_cache=True, position_embeddings=(cosine, sine)
        )


def decoding(small):
    """The layer and the 1024th word of 2048, with the angles that a model gives to all of its layers."""
    length = 32 if small else 2048
    model = Decoding(length, *((64, 128, 4, 2) if small else ()))
    word, position = torch.randn(1, 1, model.layer.hidden_size), torch.tensor([length // 2 - 1])
    cosine, sine = model.rotary(word, position[None])
    return model, {"word": word, "position": position, "cosine": cosine, "sine": sine}


def bert_once(small):
    model, batch = language("Bert", 1, 128, False, False, **({"num_hidden_layers": 2} if small else {}))
    return model, {"input_ids": batch["input_ids"]}


INFERENCE = {  # a model, and the arguments of a call
    "bert": bert_once,
    "llama": decoding,
    "resnet50": lambda small: (torchvision_model("resnet50"), {"x": torch.randn(1, 3, 224, 224)}),
}

COMPILED = {  # what torch.compile is told
    "eager": None,
    "inductor": {},
    "reduce-overhead": {"mode": "reduce-overhead"},
    "mlirfuse": {"backend": "mlirfuse"},
    "mlirfuse-reduce-overhead": {"backend": "mlirfuse", "mode": "reduce-overhead"},
    **{
        f"epilogues-{when}": {"backend": "mlirfuse", "options": {"matmul_epilogues": when}}
        for when in ("never", "auto", "always")
    },
    "channels-last": {"backend": "mlirfuse", "options": {"channels_last": None}},
    "aot_eager": {"backend": "aot_eager"},
}


def compiled(model, implementation: str):
    options = COMPILED[implementation]
    if options and options.get("backend") == "mlirfuse":
        import mlirfuse.torch  # noqa: F401 known to torch without an installation, too
    return model if options is None else torch.compile(model, **options)


class Trainer:
    """One implementation: a model of its own, its optimizer, and its step."""

    usual = "eager,inductor,reduce-overhead,mlirfuse"

    def __init__(self, args, implementation: str):
        self.args, self.name = args, implementation
        torch.manual_seed(0)
        model, batch = MODELS[args.model](args.small, args.dropout)
        self.model = model.to(args.device).train()
        self.batch = {name: value.to(args.device) for name, value in batch.items()}
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=args.device == "cuda")
        self.compile()

    def compile(self):
        """Wraps the model; Inductor is imported here, other compilers in the first step."""
        start = time.perf_counter()
        self.run = compiled(self.model, self.name)
        self.wrapping = time.perf_counter() - start

    def loss(self):
        if "images" not in self.batch:
            return self.run(**self.batch).loss
        out = result(self.run(self.batch["images"]))
        return torch.nn.functional.cross_entropy(out, self.batch["labels"])

    def step(self):
        dtype = getattr(torch, self.args.dtype)
        with torch.autocast(self.args.device, dtype=dtype, enabled=dtype != torch.float32):
            loss = self.loss()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach().clone()  # reduce-overhead writes the next one over it

    def timed(self) -> float:
        """Milliseconds of a step, the GPU's work included."""
        synchronize(self.args)
        start = time.perf_counter()
        self.step()
        synchronize(self.args)
        return (time.perf_counter() - start) * 1e3

    def sample(self) -> float:
        """What one round measures."""
        return min(self.timed(), self.timed())

    def outcome(self, losses) -> dict:
        """What tells that the steps were right."""
        return {"losses": [round(float(loss), 5) for loss in losses]}


class Predictor(Trainer):
    """One implementation of inference: its step is a call."""

    usual = "eager,reduce-overhead,mlirfuse,mlirfuse-reduce-overhead"
    calls = 20  # a round

    def __init__(self, args, implementation: str):
        self.args, self.name = args, implementation
        torch.manual_seed(0)
        model, batch = INFERENCE[args.model](args.small)
        self.model = model.to(args.device).eval()
        batch = {name: value.to(args.device) for name, value in batch.items()}
        with torch.no_grad():
            self.reference = result(self.model(**batch)).clone()
        dtype = getattr(torch, args.dtype)
        self.model.to(dtype)
        self.batch = {name: value.to(dtype) if value.is_floating_point() else value for name, value in batch.items()}
        self.compile()

    @torch.no_grad()
    def step(self):
        return result(self.run(**self.batch))

    def sample(self) -> float:
        return statistics.median(self.timed() for _ in range(self.calls))

    def outcome(self, losses) -> dict:
        out, reference = self.step().double(), self.reference.double()
        return {"error": float(f"{float((out - reference).norm() / reference.norm()):.2e}")}


def result(out):
    """The tensor that a model gives."""
    return getattr(out, "logits", out)


def synchronize(args):
    if args.device == "cuda":
        torch.cuda.synchronize()


def peak(args, trainer) -> float:
    """GB that two steps reach above what was held before the implementation was made."""
    if args.device != "cuda":
        return 0.0
    torch.cuda.reset_peak_memory_stats()
    trainer.step(), trainer.step()
    synchronize(args)
    return (torch.cuda.max_memory_allocated() - trainer.before) / 1e9


def gpu_time(args, trainer, steps=3) -> dict[str, float]:
    """Milliseconds of GPU time a step, by kind of kernel. Of kernels that run at the same time, such as one that starts
    while that before it ends, each has the time from the end of those before it: the kinds' sum is the time in which
    the GPU works."""
    if args.device != "cuda":
        return {}
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(steps):
            trainer.step()
        synchronize(args)
    kernels: dict[str, list[float]] = {}
    end = 0
    for event in sorted(_on_gpu(profile), key=lambda event: event.start_ns()):
        after = event.start_ns() + event.duration_ns()
        kernels.setdefault(event.name(), []).append(max(0, after - max(end, event.start_ns())) / 1e6 / steps)
        end = max(end, after)
    out: dict[str, float] = {}
    for name, times in kernels.items():
        kind, ms = next((kind for kind, pattern in KINDS.items() if re.search(pattern, name)), "other"), sum(times)
        out[kind] = out.get(kind, 0.0) + ms
        if args.kernels and ms > args.kernels:
            print(f"    {trainer.name} {kind:11} {ms:8.3f} ms  {len(times) // steps:4} {name[:99]}")
    return {kind: round(ms, 3) for kind, ms in out.items()}


def _on_gpu(profile):
    """The kernels, copies and fills that a profile saw."""
    events = profile.profiler.kineto_results.events()
    return (event for event in events if event.device_type() == torch.autograd.DeviceType.CUDA)


def first_step(args, trainer) -> tuple[float, object]:
    """Seconds that ``torch.compile`` and a trainer's first step take, and what the step gives."""
    synchronize(args)
    start = time.perf_counter()
    loss = trainer.step()
    synchronize(args)
    return trainer.wrapping + time.perf_counter() - start, loss


def import_what_all_share():
    """Dynamo and AOTAutograd, which the first implementation would import for those behind it."""
    torch.compile(lambda x: x + 1, backend="aot_eager")(torch.ones(1))


def new_first_step(args, implementation: str, warm: bool) -> float:
    """Seconds of the first step of a new process: with this one's caches, or with empty ones."""
    options = [args.model, "--device", args.device, "--dtype", args.dtype, "--only", implementation, "--first-step"]
    options += ["--" + name for name in ("small", "dropout", "inference") if getattr(args, name)]
    options += ["--caches", *(os.environ[name] for name in CACHES)] if warm else []
    done = subprocess.run([sys.executable, __file__, *options], stdout=subprocess.PIPE, text=True, check=True)
    return float(done.stdout.splitlines()[-1])


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", nargs="?", choices=sorted(MODELS))
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--inference", action="store_true", help=f"calls at batch 1: {', '.join(INFERENCE)}")
    parser.add_argument("--only", help=f"implementations, by commas, of {', '.join(COMPILED)}")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--dropout", action="store_true")
    parser.add_argument("--small", action="store_true", help="a small batch: to try the script, not to quote")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--kernels", type=float, default=0.0, help="print kernels that take more milliseconds a step")
    parser.add_argument("--lock", help="a file to lock: several such commands compile at once, and measure one by one")
    parser.add_argument("--patience", type=float, default=float("inf"), help="seconds to wait for others that compile")
    parser.add_argument(
        "--warm", type=int, nargs="?", const=1, default=0, metavar="N",
        help="also the median of N (1) first steps of new processes with warm caches, in turns",
    )  # fmt: skip
    parser.add_argument("--cold", type=int, metavar="N", help="the median of N first steps of new processes, in turns")
    parser.add_argument("--first-step", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--caches", nargs=len(CACHES), help=argparse.SUPPRESS)
    parser.add_argument("--json")
    parser.add_argument("--plot", help="with --from: draw those runs into this PNG file")
    parser.add_argument("--from", dest="sources", nargs="+", default=[], help="run nothing: JSON files of runs")
    args = parser.parse_args(argv)
    if args.plot:
        plot(args.sources, args.plot)
        return 0
    if args.list or not args.model:
        print(" ".join(sorted(MODELS)))
        return 0
    if args.inference and args.model not in INFERENCE:
        parser.error(f"--inference: one of {', '.join(INFERENCE)}")
    kind = Predictor if args.inference else Trainer
    if args.caches:
        os.environ |= dict(zip(CACHES, args.caches))
    else:
        import_what_all_share()
    if args.first_step:
        print(first_step(args, kind(args, args.only))[0])
        return 0
    names = (args.only or kind.usual).split(",")
    if args.cold:
        figures = {"model": args.model, "device": device_name(args), "torch": torch.__version__}
        write(args.json, figures | new_first_steps(args, names, "cold", args.cold))
        return 0
    turns = Turns(args.lock, args.patience)
    trainers, figures_of = [], {"model": args.model, "device": device_name(args), "torch": torch.__version__}
    figures_of |= {"inference": True} if args.inference else {}
    for name in names:
        before = torch.cuda.memory_allocated() if args.device == "cuda" else 0
        trainer = kind(args, name)
        trainer.before = before
        first, loss = first_step(args, trainer)
        losses = [loss, *(trainer.step() for _ in range(3))]
        figures = {"first_step_s": round(first, 2), "peak_gb": round(peak(args, trainer), 2)}
        figures_of[name] = figures | trainer.outcome(losses)
        trainers.append(trainer)
        if args.lock and args.device == "cuda":
            torch.cuda.empty_cache()  # the others need memory, too
        print(name, figures_of[name], flush=True)
    times = {trainer.name: [] for trainer in trainers}
    with turns.alone():
        for trainer in trainers:
            figures_of[trainer.name]["gpu_ms"] = gpu_time(args, trainer)
            print(trainer.name, figures_of[trainer.name]["gpu_ms"], flush=True)
        for _ in range(args.rounds):
            for trainer in trainers:
                times[trainer.name].append(trainer.sample())
    digits = 4 if args.inference else 2
    for name, measured in times.items():
        figures_of[name]["step_ms"] = round(statistics.median(measured), digits)
        figures_of[name]["steps_ms"] = [round(t, digits) for t in measured]
    print({name: figures_of[name]["step_ms"] for name in times}, flush=True)
    for name, seconds in new_first_steps(args, names, "warm", args.warm).items():
        figures_of[name] |= seconds
    write(args.json, figures_of)
    return 0


def new_first_steps(args, names: list[str], how: str, turns: int) -> dict[str, dict]:
    """Of each implementation that compiles, its first steps in new processes, ``how``: "cold" or "warm"."""
    found: dict[str, list[float]] = {name: [] for name in names if COMPILED[name] is not None}
    for name in [*found] * turns:
        found[name].append(round(new_first_step(args, name, how == "warm"), 2))
        print(name, how, found[name][-1], flush=True)
    return {
        name: {f"{how}_first_step_s": statistics.median(seconds), f"{how}_first_steps_s": seconds}
        for name, seconds in found.items()
        if seconds
    }


def write(path: str | None, figures: dict):
    if path:
        with open(path, "w") as file:
            json.dump(figures, file, indent=1)


def plot(paths: list[str], path: str):
    """Bars of the steps' times over eager's, from the training runs among the JSON files ``paths``."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    runs = {}
    for source in paths:
        with open(source) as file:
            found = json.load(file)
        if found.get("model") in MODELS and "eager" in found and not found.get("inference"):
            runs[found["model"]] = found
    models = [model for model in MODELS if model in runs]
    figure, axis = pyplot.subplots(figsize=(11, 4))
    for place, (name, color) in enumerate({"inductor": "0.6", "mlirfuse": "tab:red"}.items()):
        shares = [runs[model][name]["step_ms"] / runs[model]["eager"]["step_ms"] for model in models]
        at = [k + 0.38 * (place - 0.5) for k in range(len(models))]
        bars = axis.bar(at, shares, 0.36, label=name, color=color)
        axis.bar_label(bars, [f"{runs[model][name]['step_ms']:.1f}" for model in models], fontsize=8)
    axis.axhline(1, color="black", linewidth=0.8)
    axis.set_xticks(range(len(models)), models)
    axis.set(ylabel="time of a training step over eager's; above: ms")
    axis.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def device_name(args) -> str:
    return torch.cuda.get_device_name() if args.device == "cuda" else "cpu"


if __name__ == "__main__":
    sys.exit(main())
