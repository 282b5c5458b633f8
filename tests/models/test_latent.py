"""Latent attention is that of `transformers`, absorbed or not, and has the parameters and FLOPs that are counted."""

from __future__ import annotations

import dataclasses
import os

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from mlsys_lab.configs import LatentAttention, TransformerConfig
from mlsys_lab.flops import compute, parameters
from mlsys_lab.models import Transformer
from tests.models.families import Widened

LATENT = LatentAttention(q_rank=7, kv_rank=10, nope_dim=5, rope_dim=4, v_dim=3)
CONFIG = TransformerConfig(
    "latent", n_layers=2, d_model=16, n_heads=4, d_ff=20, vocab_size=13, context=24, latent=LATENT
)
DIRECT = dataclasses.replace(CONFIG, head_dim=0, latent=dataclasses.replace(LATENT, q_rank=None))
NAMES = {
    "embedding": "model.embed_tokens",
    "norm": "model.norm",
    "head": "lm_head",
    "attention_norm": "input_layernorm",
    "mlp_norm": "post_attention_layernorm",
    "mlp.gate": "mlp.gate_proj",
    "mlp.up": "mlp.up_proj",
    "mlp.down": "mlp.down_proj",
    "attention.query_down": "self_attn.q_a_proj",
    "attention.query_norm": "self_attn.q_a_layernorm",
    "attention.latent_down": "self_attn.kv_a_proj_with_mqa",
    "attention.latent_norm": "self_attn.kv_a_layernorm",
    "attention.latent_up": "self_attn.kv_b_proj",
    "attention.out": "self_attn.o_proj",
}


def make(config, seed=0):
    torch.manual_seed(seed)
    model = Transformer(config).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def deepseek(config):
    """DeepSeek-V3 of `transformers` without experts, its rotary pairs those of Hugging Face."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    import transformers

    latent = config.latent
    theirs = transformers.DeepseekV3Config(
        vocab_size=config.vocab_size,
        hidden_size=config.d_model,
        intermediate_size=config.d_ff,
        num_hidden_layers=config.n_layers,
        num_attention_heads=config.n_heads,
        num_key_value_heads=config.n_heads,
        q_lora_rank=latent.q_rank,
        kv_lora_rank=latent.kv_rank,
        qk_nope_head_dim=latent.nope_dim,
        qk_rope_head_dim=latent.rope_dim,
        v_head_dim=latent.v_dim,
        first_k_dense_replace=config.n_layers,
        rope_interleave=False,
        rms_norm_eps=config.norm_eps,
        max_position_embeddings=config.context,
    )
    with Widened():
        return transformers.AutoModelForCausalLM.from_config(theirs, attn_implementation="eager").eval().double()


def their_name(ours, query):
    *block, name, kind = ours.split(".") if ours.count(".") == 1 else (*ours.split(".")[:2], *ours.rsplit(".", 1))
    if not block:
        return f"{NAMES[name]}.{kind}"
    inner = name.split(".", 2)[2]
    return f"model.layers.{block[1]}.{NAMES.get(inner, query)}.{kind}"


@pytest.mark.parametrize("config", [CONFIG, DIRECT], ids=["queries of a rank", "queries straight"])
@torch.no_grad()
def test_logits_are_those_of_transformers(config):
    """With one eps for all norms: those of latent vectors have 1e-6 in `transformers` whatever the others have."""
    config = dataclasses.replace(config, norm_eps=1e-6)
    ours, theirs = make(config), deepseek(config)
    query = "self_attn.q_b_proj" if config.latent.q_rank else "self_attn.q_proj"
    state = {their_name(name, query): weight for name, weight in ours.state_dict().items()}
    theirs.load_state_dict(state)
    tokens = torch.randint(13, (2, 19), generator=torch.Generator().manual_seed(1))
    with Widened():
        expected = theirs(tokens).logits
    torch.testing.assert_close(ours(tokens), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("config", [CONFIG, DIRECT], ids=["queries of a rank", "queries straight"])
@torch.no_grad()
def test_absorbed_matrices_change_nothing(config):
    """One key and value head for all, of the vectors that a cache would keep, with the scale of the narrower heads."""
    model, tokens, seen = make(config), torch.arange(12)[None], []

    def attend(layer, q, k, v):
        seen.append((k.shape, v.shape))
        assert torch.equal(k[..., : LATENT.kv_rank], v)
        return torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=config.head_dim**-0.5, enable_gqa=True
        )

    torch.testing.assert_close(model(tokens, attend=attend), model(tokens), rtol=0, atol=1e-13)
    assert seen == [((1, 1, 12, 14), (1, 1, 12, 10))] * 2


def test_parameters_and_flops_are_those_counted():
    for config in (CONFIG, DIRECT):
        model = make(config)
        assert sum(p.numel() for p in model.parameters()) == parameters(config).total
        with (
            FlopCounterMode(display=False) as counter,
            torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
        ):
            model(torch.zeros(3, 11, dtype=torch.int64))
        assert counter.get_total_flops() == compute.forward(config, 11, 3).total


def test_every_parameter_gets_a_gradient():
    model = make(CONFIG)
    model(torch.arange(12)[None]).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in model.parameters())
