"""Closed forms against counting on the real model, to the FLOP and byte: torch's counter, and what autograd saves."""

from __future__ import annotations

import dataclasses
import math
from functools import partial

import pytest
import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop
from torch.utils.flop_counter import FlopCounterMode

from mlsys_lab.configs.huggingface import read_config
from mlsys_lab.configs.transformer import Experts, TransformerConfig
from mlsys_lab.flops import activations, cache, compute
from mlsys_lab.flops.parameters import parameters
from mlsys_lab.models import Transformer, fused_attention

B, T, V = 2, 16, 50
ROWS = B * T
LLAMA = TransformerConfig("llama", 3, d_model=32, n_heads=4, d_ff=48, vocab_size=V, context=T, n_kv_heads=2)
GPT = TransformerConfig(
    "gpt", 3, 32, 4, 128, V, T, position="learned", norm="layer", activation="gelu_tanh", qkv_bias=True, out_bias=True,
    mlp_bias=True, norm_bias=True, tied=True,
)  # fmt: skip
PALM = dataclasses.replace(LLAMA, name="palm", n_kv_heads=1, parallel_blocks=True, norm="layer", tied=True)
MIXTRAL = dataclasses.replace(LLAMA, name="mixtral", experts=Experts(count=4, active=2, d_ff=24))
SHARED = dataclasses.replace(LLAMA, name="shared", experts=Experts(4, 2, d_ff=24, shared=1, dense_layers=1))
GEMMA = dataclasses.replace(LLAMA, name="gemma", head_dim=16, activation="geglu", post_norms=True, tied=True)
OLMO = dataclasses.replace(LLAMA, name="olmo", pre_norms=False, post_norms=True)
LATENT = {
    "model_type": "deepseek_v3", "hidden_size": 32, "intermediate_size": 48, "moe_intermediate_size": 24,
    "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": V, "n_shared_experts": 1,
    "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
    "q_lora_rank": 12, "kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 6,
    "max_position_embeddings": T,
}  # fmt: skip
FAMILIES = pytest.mark.parametrize(
    "config", [LLAMA, GPT, PALM, MIXTRAL, SHARED, GEMMA, OLMO], ids=lambda config: config.name
)


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Models this small spend all their time waiting for threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def plain_attention(q, k, v, bias):
    """Attention as two multiplications over all pairs, with keys and values repeated for every query head."""
    group = q.shape[1] // k.shape[1]
    if group > 1:
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    if bias is None:
        bias = torch.full((q.shape[2], q.shape[2]), -math.inf).triu(1)
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    return (scores + bias).softmax(-1) @ v


def attention_again(q, k, v, bias):
    """The same, computed again in the backward pass."""
    return checkpoint(plain_attention, q, k, v, bias, use_reentrant=False)


def step(config, attention=plain_attention, *, wrap=None):
    """A model, and a function that gives its loss on one batch."""
    torch.manual_seed(0)
    model = Transformer(config, attention)
    for block in model.blocks:
        if wrap:
            block.forward = wrap(block.forward)
    tokens = torch.randint(0, V, (B, T))
    return model, lambda: F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())


def counted(loss, *, backward):
    with FlopCounterMode(display=False) as counter:
        value = loss()
        if backward:
            value.backward()
    return counter.get_total_flops()


def saved_bytes(model, loss):
    """Bytes of all storages that autograd saves, each once; those of parameters are there anyway."""
    kept = {parameter.untyped_storage().data_ptr(): parameter for parameter in model.parameters()}
    sizes = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in kept:
            kept[storage.data_ptr()], sizes[storage.data_ptr()] = tensor, storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss()
    return sum(sizes.values())


@FAMILIES
def test_forward_and_backward_flops_are_the_counter_s(config):
    _, loss = step(config)
    assert counted(loss, backward=False) == compute.forward(config, T, B).total
    assert counted(loss, backward=True) == compute.training(config, T, B).model


@FAMILIES
def test_the_counter_does_not_know_the_fused_kernel_of_cpus(config):
    _, loss = step(config, fused_attention)
    once = compute.forward(config, T, B)
    assert counted(loss, backward=True) == 3 * (once.total - once.attention)


@pytest.mark.parametrize("early_stop", [False, True])
@FAMILIES
def test_full_recomputation(config, early_stop):
    # torch stops recomputing once all that was saved is there again: then the last multiplication of a layer, whose
    # result nothing needs, is left out. A mixture of experts ends with additions that need all results; a post-norm
    # needs what it is given.
    _, loss = step(config, wrap=lambda forward: partial(checkpoint, forward, use_reentrant=False))
    steps = compute.training(config, T, B, recomputation="full")
    spared = 0.0
    if early_stop and not config.post_norms:
        routed = config.n_layers - config.experts.dense_layers if config.experts else 0
        spared = 2 * ROWS * config.d_model * config.d_ff * (config.n_layers - routed)
        if config.experts and config.experts.shared:
            spared += 2 * ROWS * config.d_model * config.experts.d_ff * routed
    with set_checkpoint_early_stop(early_stop):
        assert counted(loss, backward=True) == steps.hardware - spared


@pytest.mark.parametrize("early_stop", [False, True])
@FAMILIES
def test_selective_recomputation(config, early_stop):
    # With the early stop the weighted sum is spared, half of what is recomputed: nothing needs its result.
    _, loss = step(config, attention_again)
    steps = compute.training(config, T, B, recomputation="selective")
    with set_checkpoint_early_stop(early_stop):
        spared = steps.recomputed / 2 if early_stop else 0
        assert counted(loss, backward=True) == steps.hardware - spared


def more_in_a_layer(config, attention):
    """Bytes that a layer of our model saves in fp32 on a CPU beyond the closed form, averaged over dense and routed.

    A norm's statistics; the normed input that torch's RMS norm on CPUs keeps beside its input and result; keys and
    values repeated for every query head in plain attention; a second copy of the fused kernel's result, rearranged,
    where rotated queries are laid out head by head; and what routing keeps: tokens' numbers, choices and weights, and
    the weighted results that are added up.
    """
    D, N, K, H = config.d_model, config.n_heads, config.n_kv_heads, config.head_dim
    size = config.block_norms * ROWS * (4 + 4 * D if config.norm == "rms" else 8)
    if attention is attention_again:
        pass  # it keeps queries, keys and values as they came
    elif attention is plain_attention:
        size += 2 * ROWS * (N - K) * H * 4
    elif config.position == "rotary":
        size += ROWS * N * H * 4
    if experts := config.experts:
        sent = ROWS * experts.active
        routing = sent * (8 + 4) + sent * (16 + 4 + 4 * D)
        size += routing * (config.n_layers - experts.dense_layers) / config.n_layers
    return size


def more_in_all(config):
    """The same outside layers: the last norm's, the tokens' numbers, the loss's count of tokens, the angles."""
    size = ROWS * (4 + 4 * config.d_model if config.norm == "rms" else 8)
    size += ROWS * 8 + 4
    return size + (2 * T * config.head_dim // 2 * 4 if config.position == "rotary" else 0)


@pytest.mark.parametrize("attention", [plain_attention, fused_attention, attention_again])
@FAMILIES
def test_saved_activations_to_the_byte(config, attention):
    kind = "selective" if attention is attention_again else "none"
    fused = attention is fused_attention
    layer = activations.layer(config, T, B, element_bytes=4, fused_attention=fused, recomputation=kind).total
    head = activations.head_bytes(config, T, B, element_bytes=4)
    expected = config.n_layers * (layer + more_in_a_layer(config, attention)) + head + more_in_all(config)
    assert saved_bytes(*step(config, attention)) == pytest.approx(expected, rel=1e-12)


@FAMILIES
def test_full_recomputation_saves_each_layer_s_input(config):
    model, loss = step(config, wrap=lambda forward: partial(checkpoint, forward, use_reentrant=False))
    layer = activations.layer(config, T, B, element_bytes=4, recomputation="full").total
    head = activations.head_bytes(config, T, B, element_bytes=4)
    assert saved_bytes(model, loss) == config.n_layers * layer + head + more_in_all(config)


@FAMILIES
def test_parameters_are_those_of_the_model(config):
    assert sum(p.numel() for p in Transformer(config).parameters()) == parameters(config).total


def test_latent_attention_is_counted_as_transformers_computes_it():
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    model = DeepseekV3ForCausalLM(DeepseekV3Config(**LATENT, attn_implementation="eager"))
    model.set_experts_implementation("eager")  # torch's counter does not know the grouped multiplication
    config = read_config(LATENT)
    tokens = torch.randint(0, V, (B, T))
    with FlopCounterMode(display=False) as counter:
        model(tokens, use_cache=False)
    assert counter.get_total_flops() == compute.forward(config, T, B).total
    assert sum(p.numel() for p in model.parameters()) == parameters(config).total


def test_prefill_decoding_and_cache_of_transformers_llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4}
    sizes |= {"num_key_value_heads": 2, "vocab_size": V, "max_position_embeddings": 64}
    model = LlamaForCausalLM(LlamaConfig(**sizes, attn_implementation="eager"))
    config = read_config({"model_type": "llama", **sizes})
    tokens = torch.randint(0, V, (B, T))
    with torch.no_grad():
        with FlopCounterMode(display=False) as counter:
            out = model(tokens, use_cache=True, logits_to_keep=1)
        assert counter.get_total_flops() == compute.forward(config, T, B, head_tokens=1).total
        with FlopCounterMode(display=False) as counter:
            out = model(tokens[:, :1], past_key_values=out.past_key_values)
        assert counter.get_total_flops() == compute.decode(config, T + 1, B).total
    kept = sum(layer.keys.nbytes + layer.values.nbytes for layer in out.past_key_values.layers)
    assert kept == cache.kv_cache_bytes(config, T + 1, B, element_bytes=4)
