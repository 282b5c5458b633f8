"""Small models of every kind of attention, and caches of every layout for them."""

from __future__ import annotations

import torch

from mlsys_lab.configs import Experts, LatentAttention, TransformerConfig
from mlsys_lab.inference.cache import Contiguous, Paged, SlidingWindow
from mlsys_lab.models import Transformer

V, CONTEXT = 13, 24


LATENT = LatentAttention(q_rank=7, kv_rank=6, nope_dim=5, rope_dim=4, v_dim=3)


def build(position="rotary", kv_heads=2, window=None, dtype=torch.float64, experts=None, seed=0):
    """A model of 2 layers and 4 query heads, with weights ten times GPT-2's so that tokens tell in the logits.

    `kv_heads` "latent" makes latent attention, which has rotary positions.
    """
    latent = LATENT if kv_heads == "latent" else None
    config = TransformerConfig(
        f"{position} {kv_heads}",
        n_layers=2,
        d_model=16,
        n_heads=4,
        d_ff=20,
        vocab_size=V,
        context=CONTEXT,
        n_kv_heads=0 if latent else kv_heads,
        latent=latent,
        position=position,
        experts=Experts(3, 2, d_ff=8) if experts else None,
    )
    torch.manual_seed(seed)
    model = Transformer(config, window=window).to(dtype)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 2:
                weight.mul_(10)
    return model


def caches(model, sequences=4, chunk=CONTEXT, **options):
    """A cache of each layout that the model can have, with room for so many sequences of its context."""
    made = {
        "contiguous": Contiguous(model, sequences=sequences, capacity=CONTEXT, **options),
        "paged 1": Paged(model, num_blocks=sequences * CONTEXT, block_size=1, **options),
        "paged 5": Paged(model, num_blocks=sequences * 5, block_size=5, **options),
        "paged 64": Paged(model, num_blocks=sequences, block_size=64, **options),
    }
    if model.window is not None:
        made["sliding"] = SlidingWindow(model, sequences=sequences, chunk=chunk, **options)
    return made


def draw(*shape, seed=1):
    """Tokens of the models above, drawn evenly, as nested lists."""
    return torch.randint(V, shape, generator=torch.Generator().manual_seed(seed)).tolist()


@torch.no_grad()
def uncached(model, tokens):
    """Logits after each token of one sequence, without a cache: (T, V)."""
    return model(torch.tensor([tokens]))[0]
