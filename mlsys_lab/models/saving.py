"""Save a checkpoint in Hugging Face's format, for `load` and `transformers`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from mlsys_lab.configs import TransformerConfig
from mlsys_lab.configs.huggingface import read_config
from mlsys_lab.errors import InputError
from mlsys_lab.models.layouts import LAYOUTS, Layout, StoredWeight, locate
from mlsys_lab.models.loading import SINGLE
from mlsys_lab.models.transformer import Transformer

CONFIG = "config.json"


def save(
    model: Transformer, folder: Path, *, dtype: torch.dtype = torch.bfloat16, fields: Mapping[str, Any] | None = None
) -> None:
    """Write config.json and the weights of a model in `dtype` to a folder, created if needed.

    A LLaMA-like model is written as a LLaMA, with experts as a Mixtral, and one with learned positions as a GPT-2.
    fields: the config.json that a model was loaded with, whose architecture it is then written in. InputError for any
    other model: without `fields` it takes what GPT-2 has, or rotary positions, RMS norms, SwiGLU, no biases and no
    window; and if the weights do not match the configuration because they were quantized, sharded or given adapters.
    """
    fields = architecture_fields(model) if fields is None else fields
    with torch.device("meta"):
        expected = {name: weight.shape for name, weight in Transformer(model.config).named_parameters()}
    found = {name: weight.shape for name, weight in model.named_parameters()}
    if found != expected:
        got = f"{len(found.items() & expected.items())} of {len(expected)} weights as its config has them"
        raise InputError("the model is not whole", got=got, help="save it before it is quantized, sharded or adapted")
    write_checkpoint(folder, fields, stored_weights(model, LAYOUTS[fields["model_type"]], dtype), dtype)


def architecture_fields(model: Transformer) -> dict[str, Any]:
    """A config.json for a model built like GPT-2, LLaMA or Mixtral; InputError for any other."""
    config = model.config
    fields = _gpt2_fields(config) if config.position == "learned" else _llama_fields(config)
    if model.window is not None or read_config(fields | {"_name_or_path": config.name}) != config:
        help_ = "the config says what differs"
        raise InputError("only models built like LLaMA or GPT-2 are saved", got=config.name, help=help_)
    return fields


def write_checkpoint(
    folder: Path, fields: Mapping[str, Any], tensors: Mapping[str, torch.Tensor], dtype: torch.dtype
) -> None:
    """Write config.json, with `dtype` as that of the weights, and the tensors to a folder, created if needed."""
    folder.mkdir(parents=True, exist_ok=True)
    written = {name: value for name, value in fields.items() if name != "dtype"}  # the name since transformers 5
    written["torch_dtype"] = str(dtype).removeprefix("torch.")
    (folder / CONFIG).write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    save_file(dict(tensors), folder / SINGLE, metadata={"format": "pt"})
    (folder / SINGLE).chmod((folder / CONFIG).stat().st_mode)  # the library lets only the owner read


def stored_weights(model: Transformer, layout: Layout, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """A model's parameters in `dtype` by their names in a checkpoint; those that it stacks are put together."""
    parts: dict[str, dict[int, tuple[StoredWeight, torch.Tensor]]] = {}
    for name, weight in model.named_parameters():
        stored = locate(name, layout)
        parts.setdefault(stored.name, {})[stored.part] = stored, (weight.detach() - stored.plus).to("cpu", dtype)
    return {
        name: found[0][0].join([found[part][1] for part in sorted(found)], model.config).contiguous()
        for name, found in parts.items()
    }


def _gpt2_fields(c: TransformerConfig) -> dict[str, Any]:
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "activation_function": "gelu_new" if c.activation == "gelu_tanh" else c.activation,
        "n_layer": c.n_layers,
        "n_embd": c.d_model,
        "n_inner": c.d_ff,
        "n_head": c.n_heads,
        "vocab_size": c.vocab_size,
        "n_positions": c.context,
        "layer_norm_epsilon": c.norm_eps,
        "tie_word_embeddings": c.tied,
    }


def _llama_fields(c: TransformerConfig) -> dict[str, Any]:
    own: dict[str, Any] = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    if c.experts:
        own = {
            "architectures": ["MixtralForCausalLM"],
            "model_type": "mixtral",
            "num_local_experts": c.experts.count,
            "num_experts_per_tok": c.experts.active,
            "sliding_window": None,
        }
    return own | {
        "hidden_act": "silu",
        "num_hidden_layers": c.n_layers,
        "hidden_size": c.d_model,
        "intermediate_size": c.d_ff,
        "num_attention_heads": c.n_heads,
        "num_key_value_heads": c.n_kv_heads,
        "head_dim": c.head_dim,
        "vocab_size": c.vocab_size,
        "max_position_embeddings": c.context,
        "rope_theta": c.rope_theta,
        "rms_norm_eps": c.norm_eps,
        "tie_word_embeddings": c.tied,
    }
