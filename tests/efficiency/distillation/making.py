"""Small random models of several architectures."""

import torch

from mlsys_lab.configs import TransformerConfig
from mlsys_lab.models import Transformer

VOCAB_SIZE, CONTEXT = 11, 8


def build(*, window=None, seed=0, **changes):
    sizes = {"n_layers": 2, "d_model": 16, "n_heads": 4, "n_kv_heads": 2, "d_ff": 24, "norm": "rms"} | changes
    config = TransformerConfig("random", vocab_size=VOCAB_SIZE, context=CONTEXT, **sizes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Transformer(config, window=window).eval()
        for weight in model.parameters():
            if weight.ndim == 2:
                weight.data.normal_(std=weight.shape[1] ** -0.5)
    return model
