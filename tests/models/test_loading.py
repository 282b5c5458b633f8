"""Checkpoints that `transformers` writes give its logits here."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest
import torch

from mlsys_lab.configs.architectures import DEFAULTS
from mlsys_lab.configs.huggingface import read_config
from mlsys_lab.errors import InputError
from mlsys_lab.flops import parameters
from mlsys_lab.models import load
from tests.models.families import FAMILIES, Widened, build, rewrite

# Greatest difference of two logits, which are up to 4 in size: a few times what was seen, 5.6e-6 in fp32 and 8e-15 in
# fp64; BLOOM's GELU in `transformers` has √(2/π) to 8 digits only, which makes 1e-9.
FP32, FP64, FP64_BLOOM = 2e-5, 5e-14, 5e-9


@pytest.fixture
def tokens() -> torch.Tensor:
    return torch.randint(61, (2, 32), generator=torch.Generator().manual_seed(1))


@pytest.fixture
def in_fp64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_logits_are_those_of_transformers(family, theirs, saved, tokens):
    ours = load(saved(family))
    assert (ours(tokens) - theirs[family](tokens).logits).abs().max() < FP32
    assert parameters(ours.config).total == sum(p.numel() for p in ours.parameters())
    unused = 2 * ours.config.d_model if family == "opt" else 0  # its first two positions are those of no token
    assert parameters(ours.config).total + unused == sum(p.numel() for p in theirs[family].parameters())


@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_logits_in_double_precision(family, tmp_path, tokens, in_fp64):
    with Widened():
        model = build(family)
        expected = model(tokens).logits
    model.save_pretrained(tmp_path)
    ours = load(tmp_path)
    assert ours.embedding.weight.dtype == torch.float64
    assert (ours(tokens) - expected).abs().max() < (FP64_BLOOM if family == "bloom" else FP64)


@pytest.mark.parametrize("family", ["gpt2", "mixtral", "qwen2 tied"])
@torch.no_grad()
def test_shards_hold_the_same_model(family, theirs, saved, tokens):
    folder = saved(family, shard="10KB")
    assert len(list(folder.glob("model-*.safetensors"))) > 3
    assert (load(folder)(tokens) - theirs[family](tokens).logits).abs().max() < FP32


@pytest.mark.parametrize("family", ["gpt2", "bloom", "mixtral", "qwen3", "opt"])
@torch.no_grad()
def test_weights_keep_their_dtype_unless_told(family, theirs, saved, tokens):
    folder = saved(family)
    rewrite(folder, lambda weights: weights.update({name: w.bfloat16() for name, w in weights.items()}))
    ours = load(folder)
    assert {p.dtype for p in ours.parameters()} == {ours(tokens).dtype} == {torch.bfloat16}
    wide = load(folder, dtype=torch.float32)
    assert {p.dtype for p in wide.parameters()} == {torch.float32}
    # bf16 keeps 8 bits: about 0.4 % of logits that are up to 4, some times over on the way through three layers.
    assert (ours(tokens) - wide(tokens)).abs().mean() < 0.03


@torch.no_grad()
def test_a_checkpoint_as_old_ones_are(theirs, saved, tokens):
    """GPT-2's own: names without "transformer.", masks kept as buffers; and a config.json with few fields."""
    folder = saved("gpt2")

    def age(weights: dict[str, torch.Tensor]) -> None:
        for name in list(weights):
            weights[name.removeprefix("transformer.")] = weights.pop(name)
        weights["h.0.attn.bias"] = torch.ones(1, 1, 32, 32).tril()
        weights["h.0.attn.masked_bias"] = torch.tensor(-1e4)

    rewrite(folder, age)
    sizes = {"n_ctx": 32, "n_embd": 24, "n_head": 4, "n_layer": 3, "n_positions": 32, "vocab_size": 61}
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2"} | sizes))
    assert (load(folder)(tokens) - theirs["gpt2"](tokens).logits).abs().max() < FP32


KINDS = [
    *("GPT2", "Bloom", "Llama", "Mistral", "Mixtral", "Qwen2", "Qwen3", "Qwen3Moe", "GptOss", "Phi3", "Gemma2"),
    *("Gemma3Text", "Llama4Text", "DeepseekV3", "OPT", "Gemma", "Olmo", "Olmo2", "Phi"),
]


@pytest.mark.parametrize("kind", KINDS)
def test_fields_that_a_config_leaves_out_are_those_of_transformers(kind):
    import transformers

    full = getattr(transformers, f"{kind}Config")().to_dict()
    sizes = (
        *("vocab_size", "n_layer", "n_embd", "n_head", "n_positions"),
        *("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "intermediate_size"),
        *("max_position_embeddings", "num_local_experts", "num_experts_per_tok", "n_routed_experts"),
        *("ffn_dim", "moe_intermediate_size", "intermediate_size_mlp", "first_k_dense_replace", "n_shared_experts"),
        *("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"),
    )
    few = {name: full[name] for name in ("model_type", *sizes) if name in full}
    assert read_config(few) == read_config(full)


@pytest.mark.parametrize("kind", DEFAULTS)
def test_what_an_architecture_has_where_nothing_is_said_is_what_transformers_has(kind):
    import transformers

    theirs = transformers.AutoConfig.for_model(kind).to_dict()
    rope = theirs["rope_parameters"]
    theirs["rope_theta"] = rope.get("full_attention", rope)["rope_theta"]
    assert DEFAULTS[kind] == {field: theirs[field] for field in DEFAULTS[kind]}


def test_a_tied_head_may_be_stored_if_it_is_the_embedding(saved):
    folder = saved("qwen2 tied")
    rewrite(folder, lambda w: w.update({"lm_head.weight": w["model.embed_tokens.weight"].clone()}))
    assert load(folder).head is None
    rewrite(folder, lambda w: w["lm_head.weight"].add_(1))
    with pytest.raises(InputError, match=r"ties the head to the embedding, but lm_head\.weight is another matrix"):
        load(folder)


@torch.no_grad()
def test_a_window_in_some_layers_shortens_the_context(tmp_path, tokens):
    model = build("qwen2", use_sliding_window=True, sliding_window=10, max_window_layers=1)
    model.save_pretrained(tmp_path)
    ours = load(tmp_path)
    assert (ours(tokens[:, :10]) - model(tokens[:, :10]).logits).abs().max() < FP32
    with pytest.raises(InputError, match="T up to 10"):
        ours(tokens[:, :11])


@torch.no_grad()
def test_attention_is_an_argument(theirs, saved, tokens):
    seen = []

    def plain(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        seen.append((tuple(q.shape), tuple(k.shape), tuple(v.shape), bias))
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
        scores = q @ k.mT / q.shape[-1] ** 0.5
        future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        return scores.masked_fill(future, -torch.inf).softmax(-1) @ v

    logits = load(saved("llama"), attention=plain)(tokens)
    assert (logits - theirs["llama"](tokens).logits).abs().max() < FP32
    assert seen == 3 * [((2, 6, 32, 4), (2, 2, 32, 4), (2, 2, 32, 4), None)]


@pytest.mark.skipif(os.name != "posix", reason="files on Windows cannot be removed while they are open")
@torch.no_grad()
def test_nothing_of_the_files_is_needed_afterwards(theirs, saved, tokens):
    folder = saved("mixtral")
    ours = load(folder)
    file = folder / "model.safetensors"
    file.write_bytes(b"\0" * file.stat().st_size)
    assert (ours(tokens) - theirs["mixtral"](tokens).logits).abs().max() < FP32
