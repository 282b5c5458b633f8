"""Small models of different architectures, all of whose weights are far from their initial values."""

import torch

from mlsys_lab.configs import Experts, LatentAttention, TransformerConfig
from mlsys_lab.models import Transformer

VOCABULARY = 31
TOKENS = torch.randint(VOCABULARY, (4, 16), generator=torch.Generator().manual_seed(0))
ARCHITECTURES = {
    "llama": {},
    "tied": {"tied": True},
    "grouped heads and biases": {"n_kv_heads": 2, "qkv_bias": True, "out_bias": True, "mlp_bias": True},
    "learned positions": {"position": "learned", "activation": "gelu"},
    "parallel blocks": {"parallel_blocks": True, "activation": "relu"},
    "experts": {"experts": Experts(4, 2, 24, shared=1)},
    "latent attention": {"latent": LatentAttention(16, 8, 8, 8, q_rank=24)},
}
LAYER_NORMS = {"norm": "layer", "norm_bias": True}


def make_model(**changes):
    """A random model with norms and biases that do something."""
    config = TransformerConfig(
        "small", n_layers=2, d_model=24, n_heads=4, d_ff=40, vocab_size=VOCABULARY, context=16, **changes
    )
    model, generator = Transformer(config).eval(), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            weight.copy_(noise * weight.shape[1] ** -0.5 if weight.ndim == 2 else ("norm" in name) + noise / 4)
    return model
