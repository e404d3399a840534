"""Architectures that nothing was tuned for, by their config classes: what ``torch_models.py`` trains beside its own."""

from __future__ import annotations

import torch


def _transformers(model: str, config: str, dropout: bool, **sizes):
    """A model of transformers, without dropout unless that is asked for."""
    import transformers

    made = getattr(transformers, config)(**sizes)
    if not dropout:
        for name in vars(made):
            if ("dropout" in name or name.endswith("_pdrop")) and isinstance(getattr(made, name), float):
                setattr(made, name, 0.0)
    return getattr(transformers, model)(made)


def _words(model, batch: int, length: int):
    ids = torch.randint(0, model.config.vocab_size, (batch, length))
    return model, {"input_ids": ids, "labels": ids.clone()}


def _classified(model, batch: int, size: int, classes: int = 1000):
    images = torch.randn(batch, 3, size, size)
    return model, {"images": images, "labels": torch.randint(0, classes, (batch,))}


def qwen3(small, dropout):
    sizes = {
        "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 14, "num_attention_heads": 16,
        "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 32000, "use_cache": False,
    }  # fmt: skip
    sizes |= {"num_hidden_layers": 2} if small else {}
    model = _transformers("Qwen3ForCausalLM", "Qwen3Config", dropout, **sizes)
    return _words(model, *((1, 64) if small else (6, 2048)))


def deberta(small, dropout):
    sizes = {"num_hidden_layers": 2 if small else 8, "relative_attention": True, "pos_att_type": ["p2c", "c2p"],
             "vocab_size": 32000}  # fmt: skip
    model = _transformers("DebertaV2ForMaskedLM", "DebertaV2Config", dropout, hidden_size=768, num_attention_heads=12,
                          intermediate_size=3072, **sizes)  # fmt: skip
    return _words(model, *((1, 64) if small else (24, 384)))


def mixtral(small, dropout):
    sizes = {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 2 if small else 8,
             "num_attention_heads": 12, "num_key_value_heads": 4, "num_local_experts": 8, "vocab_size": 32000,
             "use_cache": False}  # fmt: skip
    model = _transformers("MixtralForCausalLM", "MixtralConfig", dropout, **sizes)
    return _words(model, *((1, 64) if small else (8, 1024)))


def whisper(small, dropout):
    layers = 2 if small else 8
    sizes = {"d_model": 768, "encoder_layers": layers, "decoder_layers": layers, "encoder_attention_heads": 12,
             "decoder_attention_heads": 12, "encoder_ffn_dim": 3072, "decoder_ffn_dim": 3072}  # fmt: skip
    model = _transformers("WhisperForConditionalGeneration", "WhisperConfig", dropout, **sizes)
    batch = 1 if small else 12
    features = torch.randn(batch, model.config.num_mel_bins, 3000)
    return model, {"input_features": features, "labels": torch.randint(0, model.config.vocab_size, (batch, 200))}


def segformer(small, dropout):
    model = _transformers("SegformerForSemanticSegmentation", "SegformerConfig", dropout, num_labels=150,
                          **({} if dropout else {"drop_path_rate": 0.0}))  # fmt: skip
    batch, size = (1, 64) if small else (24, 384)
    labels = torch.randint(0, 150, (batch, size, size))
    return model, {"pixel_values": torch.randn(batch, 3, size, size), "labels": labels}


def swin(small, dropout):
    given = {} if dropout else {"drop_path_rate": 0.0}
    model = _transformers("SwinForImageClassification", "SwinConfig", dropout, num_labels=1000, **given)
    return _classified(model, 2 if small else 96, 224)


def densenet(small, dropout):
    import torchvision

    return _classified(torchvision.models.densenet121(weights=None), 2 if small else 96, 224)


def mobilenet(small, dropout):
    import torchvision

    return _classified(torchvision.models.mobilenet_v3_large(weights=None, dropout=0.0), 4 if small else 128, 224)


def unet(small, dropout):
    """A U-Net of plain layers, as segmentation of images uses it: transposed convolutions, joined halves."""

    class Block(torch.nn.Sequential):
        def __init__(self, inputs, outputs):
            super().__init__(
                torch.nn.Conv2d(inputs, outputs, 3, padding=1), torch.nn.GroupNorm(8, outputs), torch.nn.Mish(),
                torch.nn.Conv2d(outputs, outputs, 3, padding=1), torch.nn.GroupNorm(8, outputs), torch.nn.Mish(),
            )  # fmt: skip

    class UNet(torch.nn.Module):
        def __init__(self, width=32, depth=4, classes=1000):
            super().__init__()
            widths = [width << k for k in range(depth)]
            self.down = torch.nn.ModuleList(Block(i, o) for i, o in zip([3, *widths], widths))
            self.up = torch.nn.ModuleList(torch.nn.ConvTranspose2d(2 * w, w, 2, 2) for w in widths[-2::-1])
            self.blocks = torch.nn.ModuleList(Block(2 * w, w) for w in widths[-2::-1])
            self.head = torch.nn.Conv2d(width, classes, 1)

        def forward(self, x):
            kept = []
            for block in self.down:
                x = block(torch.nn.functional.avg_pool2d(x, 2) if kept else x)
                kept.append(x)
            for up, block, side in zip(self.up, self.blocks, kept[-2::-1]):
                x = block(torch.cat([up(x), side], 1))
            return self.head(x).mean((2, 3))

    return _classified(UNet(), 1 if small else 32, 64 if small else 224)


def videonet(small, dropout):
    import torchvision

    model = torchvision.models.video.r3d_18(weights=None)
    video = torch.randn(1 if small else 8, 3, 8, 112, 112)
    return model, {"images": video, "labels": torch.randint(0, 400, (len(video),))}


ARCHITECTURES = {
    make.__name__: make
    for make in (qwen3, deberta, mixtral, whisper, segformer, swin, densenet, mobilenet, unet, videonet)
}
