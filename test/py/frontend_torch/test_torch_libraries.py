"""Libraries on top of torch, as docs/torch/libraries.md says to write them: small models with random weights, on a CPU.
Each test needs its library, and skips without it."""

from __future__ import annotations

import os
import warnings
from unittest import mock

import pytest

torch = pytest.importorskip("torch")

from torch import nn

import mlirfuse.torch  # noqa: F401  (registers the back end)
from mlirfuse.core import config
from mlirfuse.runtime import counters

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
SIZES = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}


@pytest.fixture(autouse=True)
def fresh():
    """Nothing falls back; what the Trainer puts into the environment goes."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    before = counters.snapshot()
    with config.override(fallback=False), warnings.catch_warnings(), mock.patch.dict(os.environ):
        yield
    now = counters.snapshot()
    assert now["fallbacks"] == before["fallbacks"]


@pytest.fixture
def compiles():
    before = counters.snapshot()["compiled_programs"]
    yield
    assert counters.snapshot()["compiled_programs"] > before


def classifier():
    transformers = pytest.importorskip("transformers")
    return transformers.BertForSequenceClassification(transformers.BertConfig(**SIZES))


def close(found, wanted):
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return {"input_ids": torch.arange(10) + index, "labels": index % 2}


def trained(model, folder, **more) -> float:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    given = {"max_steps": 2, "per_device_train_batch_size": 4, "report_to": [], "save_strategy": "no", "use_cpu": True}
    arguments = transformers.TrainingArguments(str(folder), disable_tqdm=True, **given, **more)
    return transformers.Trainer(model, arguments, train_dataset=Rows()).train().training_loss


def test_transformers(compiles):
    model, words = classifier().eval(), torch.randint(0, 50, (2, 12))
    wanted = model(words).logits
    model.compile(backend="mlirfuse")
    found = model(words, labels=torch.tensor([0, 1]))
    close(found.logits, wanted)
    found.loss.backward()


def test_transformers_generate(compiles):
    transformers = pytest.importorskip("transformers")
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(num_key_value_heads=2, **SIZES)).eval()
    words, given = torch.randint(3, 50, (2, 6)), {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    wanted = model.generate(words, **given)
    model.forward = torch.compile(model.forward, backend="mlirfuse")
    assert torch.equal(model.generate(words, **given), wanted)


def test_the_trainer(compiles, tmp_path):
    model = classifier()
    model.compile(backend="mlirfuse")
    assert trained(model, tmp_path) > 0


def test_names_that_the_trainer_and_accelerate_take(tmp_path):
    """From a list of accelerate's own: once it takes ours, the page says so."""
    accelerate = pytest.importorskip("accelerate")
    with pytest.raises(ValueError, match="not a valid DynamoBackend"):
        trained(classifier(), tmp_path, torch_compile=True, torch_compile_backend="mlirfuse")
    accelerate.state.AcceleratorState._reset_state(True)
    with pytest.raises(ValueError, match="not a valid DynamoBackend"):
        accelerate.Accelerator(cpu=True, dynamo_backend="mlirfuse")


def test_accelerate(compiles):
    accelerate = pytest.importorskip("accelerate")
    accelerate.state.AcceleratorState._reset_state(True)
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 2))
    model.compile(backend="mlirfuse")
    accelerator = accelerate.Accelerator(cpu=True)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
    accelerator.backward(model(torch.randn(4, 8)).square().sum())
    optimizer.step()


def test_lightning(compiles):
    lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 2))
            self.net.compile(backend="mlirfuse")

        def training_step(self, batch, index):
            return self.net(batch[0]).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(16, 8)), 4)
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    lightning.Trainer(max_steps=3, accelerator="cpu", **quiet).fit(Module(), loader)


def test_diffusers(compiles):
    diffusers = pytest.importorskip("diffusers")
    blocks = {"down_block_types": ("DownBlock2D", "AttnDownBlock2D"), "up_block_types": ("AttnUpBlock2D", "UpBlock2D")}
    model = diffusers.UNet2DModel(
        16, 3, 3, layers_per_block=1, block_out_channels=(32, 32), norm_num_groups=8, **blocks
    ).eval()
    image = torch.randn(1, 3, 16, 16)
    wanted = model(image, 10).sample
    model.compile(backend="mlirfuse")
    close(model(image, 10).sample, wanted)


def test_timm(compiles):
    timm = pytest.importorskip("timm")
    model, image = timm.create_model("resnet18", num_classes=10).eval(), torch.randn(1, 3, 64, 64)
    wanted = model(image)
    found = torch.compile(model, backend="mlirfuse")(image)
    close(found, wanted)
    found.sum().backward()


def test_peft(compiles):
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(classifier(), peft.LoraConfig(r=4, target_modules=["query", "value"])).eval()
    words = torch.randint(0, 50, (2, 12))
    wanted = model(words).logits
    model.compile(backend="mlirfuse")
    found = model(words).logits
    close(found, wanted)
    found.sum().backward()


@pytest.mark.parametrize("kind", ["GCN", "GAT"])
def test_pytorch_geometric(compiles, kind):
    models = pytest.importorskip("torch_geometric.nn")
    model = getattr(models, kind)(8, 16, 2, 4).eval()
    compiled = torch.compile(model, backend="mlirfuse", dynamic=True)
    for nodes, edges in ((20, 60), (25, 90)):
        graph = torch.randn(nodes, 8), torch.randint(0, nodes, (2, edges))
        close(compiled(*graph), model(*graph))
    compiled(*graph).sum().backward()


def test_torchao(compiles):
    """Weights of 8 bits."""
    quantization = pytest.importorskip("torchao.quantization")
    model, x = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 8)).eval(), torch.randn(4, 64)
    quantization.quantize_(model, quantization.Int8WeightOnlyConfig())
    with torch.no_grad():
        close(torch.compile(model, backend="mlirfuse")(x), model(x))
