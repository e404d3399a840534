"""The Trainer of ``transformers`` and its ``generate()`` with the back end: losses and tokens are eager's, nothing is
compiled for a token, and no cache is copied."""

from __future__ import annotations

import copy
import warnings

import pytest

torch = pytest.importorskip("torch")

from torch_models import published

import mlirfuse.torch  # noqa: F401
from mlirfuse.runtime import counters

pytestmark = pytest.mark.slow
SIZES = {
    "vocab_size": 99,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    torch._dynamo.reset()
    torch.manual_seed(0)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def llama():
    transformers = published("transformers")
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES))


def compiled_so_far():
    return torch._dynamo.utils.counters["stats"]["unique_graphs"], counters.snapshot()


def test_trainer(tmp_path):
    """``torch_compile_backend`` takes the names of accelerate's own list alone; a model that is compiled in place trains."""
    transformers = published("transformers")
    pytest.importorskip("accelerate")
    rows = [{"input_ids": row, "labels": row} for row in torch.randint(3, 99, (24, 16))]
    losses = []
    for ours in (False, True):
        model = llama()
        if ours:
            model.compile(backend="mlirfuse", options={"fallback": False})
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path), max_steps=6, per_device_train_batch_size=4, logging_steps=1, save_strategy="no",
            report_to=[], use_cpu=True, disable_tqdm=True, learning_rate=1e-3, gradient_accumulation_steps=2,
        )  # fmt: skip
        trainer = transformers.Trainer(model=model, args=arguments, train_dataset=rows)
        before = compiled_so_far()
        trainer.train()
        losses.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
        assert (compiled_so_far() != before) == ours
    assert len(losses[0]) == 6
    torch.testing.assert_close(torch.tensor(losses[1]), torch.tensor(losses[0]), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_generate(cache):
    """Greedy tokens are eager's. Prompts of two lengths make sizes symbols; behind them no token compiles anything."""
    model = llama().eval()
    eager = copy.deepcopy(model)
    config = dict(max_new_tokens=24, do_sample=False, cache_implementation=cache if cache == "static" else None)
    prompts = [torch.randint(3, 99, (2, n)) for n in (9, 13, 11)]
    model.forward = torch.compile(model.forward, backend="mlirfuse", options={"fallback": False})
    seen = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for prompt in prompts:
            before = compiled_so_far()
            found = model.generate(prompt, attention_mask=torch.ones_like(prompt), disable_compile=True, **config)
            wanted = eager.generate(prompt, attention_mask=torch.ones_like(prompt), disable_compile=True, **config)
            assert torch.equal(found, wanted)
            seen.append((before, compiled_so_far()))
    assert seen[0][0] != seen[0][1]
    assert seen[2][0] == seen[2][1]


def test_generate_compiles_a_static_cache_by_itself():
    """``generate`` compiles the step of a static cache where it is asked to, by its configuration."""
    transformers = published("transformers")
    model = llama().eval()
    wanted = copy.deepcopy(model).generate(torch.arange(3, 12)[None], max_new_tokens=12, do_sample=False)
    compile_config = transformers.CompileConfig(backend="mlirfuse", mode=None, fullgraph=False)
    compile_config._compile_all_devices = True
    before = compiled_so_far()
    found = model.generate(
        torch.arange(3, 12)[None], max_new_tokens=12, do_sample=False, cache_implementation="static",
        compile_config=compile_config,
    )  # fmt: skip
    assert torch.equal(found, wanted)
    assert compiled_so_far() != before


def test_a_static_cache_is_written_where_it_lies():
    """A token's step writes its keys and values into the cache: the tensors stay, no kernel reads or writes all of them
    beside attention."""
    transformers = published("transformers")
    model = llama().eval()
    eager, prompt = copy.deepcopy(model), torch.randint(3, 99, (1, 7))
    caches = [transformers.StaticCache(config=m.config, max_cache_len=64) for m in (model, eager)]
    run = torch.compile(model, backend="mlirfuse", options={"fallback": False})
    tokens, places = [prompt, prompt], None
    with torch.no_grad():
        for _ in range(6):
            out = [m(t, past_key_values=c, use_cache=True).logits for m, t, c in zip((run, eager), tokens, caches)]
            torch.testing.assert_close(*out, rtol=1e-4, atol=1e-5)
            tokens = [logits[:, -1:].argmax(-1) for logits in out]
            now = [t.data_ptr() for layer in caches[0].layers for t in (layer.keys, layer.values)]
            assert places in (None, now)
            places = now
    for ours, theirs in zip(caches[0].layers, caches[1].layers):
        torch.testing.assert_close(ours.keys, theirs.keys, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(ours.values, theirs.values, rtol=1e-4, atol=1e-5)
