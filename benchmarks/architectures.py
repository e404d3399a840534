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


def qwen3moe(small, dropout):
    """Top 4 of 16 experts by normalized weights."""
    sizes = {"hidden_size": 768, "intermediate_size": 2048, "moe_intermediate_size": 768, "num_experts": 16,
             "num_experts_per_tok": 4, "norm_topk_prob": True, "num_hidden_layers": 2 if small else 8, "head_dim": 64,
             "num_attention_heads": 12, "num_key_value_heads": 4, "vocab_size": 32000, "use_cache": False}  # fmt: skip
    model = _transformers("Qwen3MoeForCausalLM", "Qwen3MoeConfig", dropout, **sizes)
    return _words(model, *((1, 64) if small else (8, 1024)))


def deepseek3(small, dropout):
    """Latent attention; a dense layer, then experts of which a word takes the best of the best groups, and one that
    all take."""
    sizes = {"hidden_size": 768, "intermediate_size": 2048, "moe_intermediate_size": 768, "n_routed_experts": 16,
             "num_experts_per_tok": 4, "n_group": 4, "topk_group": 2, "n_shared_experts": 1, "first_k_dense_replace": 1,
             "num_hidden_layers": 3 if small else 8, "num_attention_heads": 12, "num_key_value_heads": 12,
             "q_lora_rank": 256, "kv_lora_rank": 128, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64,
             "vocab_size": 32000, "use_cache": False}  # fmt: skip
    model = _transformers("DeepseekV3ForCausalLM", "DeepseekV3Config", dropout, **sizes)
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


def bart(small, dropout):
    layers = 2 if small else 6
    sizes = {"d_model": 768, "encoder_layers": layers, "decoder_layers": layers, "vocab_size": 32000,
             "encoder_attention_heads": 12, "decoder_attention_heads": 12, "encoder_ffn_dim": 3072,
             "decoder_ffn_dim": 3072, "use_cache": False}  # fmt: skip
    model = _transformers("BartForConditionalGeneration", "BartConfig", dropout, **sizes)
    return _words(model, *((1, 64) if small else (16, 512)))


def electra(small, dropout):
    sizes = {"embedding_size": 768, "hidden_size": 768, "num_hidden_layers": 2 if small else 8,
             "num_attention_heads": 12, "intermediate_size": 3072, "vocab_size": 32000}  # fmt: skip
    return _words(
        _transformers("ElectraForMaskedLM", "ElectraConfig", dropout, **sizes), *((1, 64) if small else (32, 512))
    )


def gemma2(small, dropout):
    """Softcapped logits and attention scores, alternating windows, norms before and after each block."""
    sizes = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 2 if small else 8,
             "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 32000,
             "sliding_window": 512, "use_cache": False}  # fmt: skip
    model = _transformers("Gemma2ForCausalLM", "Gemma2Config", dropout, **sizes)
    return _words(model, *((1, 64) if small else (4, 1024)))


def phi3(small, dropout):
    sizes = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 2 if small else 8,
             "num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": 32000, "pad_token_id": 0, "eos_token_id": 2,
             "use_cache": False}  # fmt: skip
    return _words(_transformers("Phi3ForCausalLM", "Phi3Config", dropout, **sizes), *((1, 64) if small else (8, 1024)))


def mamba(small, dropout):
    """A state-space model whose recurrence is written in plain torch, step by step over a short text."""
    sizes = {"hidden_size": 512, "num_hidden_layers": 1 if small else 2, "vocab_size": 32000, "use_cache": False}
    return _words(_transformers("MambaForCausalLM", "MambaConfig", dropout, **sizes), *((1, 8) if small else (32, 64)))


def wav2vec2(small, dropout):
    sizes = {"num_hidden_layers": 2 if small else 8, "num_labels": 32, "layerdrop": 0.0, "apply_spec_augment": False}
    model = _transformers("Wav2Vec2ForSequenceClassification", "Wav2Vec2Config", dropout, **sizes)
    batch, samples = (1, 4000) if small else (16, 80000)
    return model, {"input_values": torch.randn(batch, samples), "labels": torch.randint(0, 32, (batch,))}


def dinov2(small, dropout):
    sizes = {"hidden_size": 384, "num_hidden_layers": 2 if small else 12, "num_attention_heads": 6, "num_labels": 1000}
    model = _transformers("Dinov2ForImageClassification", "Dinov2Config", dropout, **sizes, image_size=224)
    return _classified(model, 2 if small else 96, 224)


def regnet(small, dropout):
    import torchvision

    return _classified(torchvision.models.regnet_y_1_6gf(weights=None), 4 if small else 128, 224)


def shufflenet(small, dropout):
    import torchvision

    return _classified(torchvision.models.shufflenet_v2_x1_0(weights=None), 4 if small else 256, 224)


def dit(small, dropout):
    """A diffusion transformer: layer norms scaled and shifted by what a step of noise says."""

    class Block(torch.nn.Module):
        def __init__(self, width, heads):
            super().__init__()
            self.heads = heads
            self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(width, elementwise_affine=False) for _ in range(2))
            self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
            self.mlp = torch.nn.Sequential(
                torch.nn.Linear(width, 4 * width), torch.nn.GELU("tanh"), torch.nn.Linear(4 * width, width)
            )
            self.modulation = torch.nn.Sequential(torch.nn.SiLU(), torch.nn.Linear(width, 6 * width))

        def forward(self, x, condition):
            b, n, c = x.shape
            shift, scale, gate, shift2, scale2, gate2 = self.modulation(condition)[:, None].chunk(6, -1)
            q, k, v = self.qkv(self.norms[0](x) * (1 + scale) + shift).view(b, n, 3, self.heads, -1).unbind(2)
            q, k, v = (t.transpose(1, 2) for t in (q, k, v))
            a = torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, c)
            x = x + gate * self.out(a)
            return x + gate2 * self.mlp(self.norms[1](x) * (1 + scale2) + shift2)

    class DiT(torch.nn.Module):
        def __init__(self, width=384, depth=2 if small else 12, heads=6, classes=1000):
            super().__init__()
            self.patches = torch.nn.Conv2d(3, width, 8, 8)
            self.blocks = torch.nn.ModuleList(Block(width, heads) for _ in range(depth))
            self.norm, self.head = torch.nn.LayerNorm(width), torch.nn.Linear(width, classes)

        def forward(self, x):
            x = self.patches(x).flatten(2).transpose(1, 2)
            time = torch.arange(x.shape[-1] // 2, device=x.device) * x.mean((1, 2))[:, None].float()
            condition = torch.cat([time.sin(), time.cos()], -1)
            for block in self.blocks:
                x = block(x, condition)
            return self.head(self.norm(x).mean(1))

    return _classified(DiT(), 2 if small else 64, 224)


def graphnet(small, dropout):
    """Messages along the edges of a random graph: gathers, sums by index, a softmax over the edges of a node."""

    class Layer(torch.nn.Module):
        def __init__(self, width):
            super().__init__()
            self.source, self.target = torch.nn.Linear(width, width), torch.nn.Linear(width, width)
            self.score, self.norm = torch.nn.Linear(width, 1), torch.nn.LayerNorm(width)

        def forward(self, x, edges):
            source, target = edges
            message = torch.nn.functional.silu(self.source(x)[source] + self.target(x)[target])
            weight = self.score(message).exp()
            total = torch.zeros_like(x).index_add(0, target, (weight * message).to(x.dtype))
            whole = x.new_zeros(len(x), 1).index_add(0, target, weight.to(x.dtype))
            return self.norm(x + total / (whole + 1e-6))

    class Net(torch.nn.Module):
        def __init__(self, nodes, width=256):
            super().__init__()
            torch.manual_seed(1)
            self.register_buffer("edges", torch.randint(0, nodes, (2, 8 * nodes)))
            self.inputs, self.head = torch.nn.Linear(64, width), torch.nn.Linear(width, 40)
            self.layers = torch.nn.ModuleList(Layer(width) for _ in range(4))

        def forward(self, x):
            x = self.inputs(x)
            for layer in self.layers:
                x = layer(x, self.edges)
            return self.head(x)

    nodes = 256 if small else 32768
    return Net(nodes), {"images": torch.randn(nodes, 64), "labels": torch.randint(0, 40, (nodes,))}


def narrow(small, dropout):
    """Six transformer layers of width 32, so small that a step is what the host takes for it."""

    class Block(torch.nn.Module):
        def __init__(self, width=32):
            super().__init__()
            self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(width) for _ in range(2))
            self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
            self.mlp = torch.nn.Sequential(
                torch.nn.Linear(width, 4 * width), torch.nn.GELU(), torch.nn.Linear(4 * width, width)
            )

        def forward(self, x):
            b, n, c = x.shape
            q, k, v = (t.view(b, n, 2, -1).transpose(1, 2) for t in self.qkv(self.norms[0](x)).chunk(3, -1))
            a = torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, c)
            x = x + self.out(a)
            return x + self.mlp(self.norms[1](x))

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = torch.nn.Sequential(*(Block() for _ in range(6)))

        def forward(self, x):
            return self.blocks(x).mean(1)

    return Net(), {"images": torch.randn(2, 8, 32), "labels": torch.randint(0, 32, (2,))}


def narrow_convolutions(small, dropout):
    """Eight convolutions of 8 channels with batch norms, so small that a step is what the host takes for it."""

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.convolution, self.norm = torch.nn.Conv2d(8, 8, 3, padding=1), torch.nn.BatchNorm2d(8)

        def forward(self, x):
            return x + torch.relu(self.norm(self.convolution(x)))

    net = torch.nn.Sequential(*(Block() for _ in range(8)), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
    return net, {"images": torch.randn(2, 8, 6, 6), "labels": torch.randint(0, 8, (2,))}


ARCHITECTURES = {
    make.__name__: make
    for make in (
        qwen3, qwen3moe, deepseek3, deberta, mixtral, whisper, segformer, swin, densenet, mobilenet, unet, videonet, bart, electra, gemma2,
        phi3, mamba, wav2vec2, dinov2, regnet, shufflenet, dit, graphnet,
        narrow, narrow_convolutions,
    )
}  # fmt: skip
