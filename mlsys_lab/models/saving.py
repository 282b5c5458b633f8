"""Save a checkpoint in Hugging Face's format, for `load` and `transformers`."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from mlsys_lab.configs import TransformerConfig
from mlsys_lab.configs.huggingface import read_config
from mlsys_lab.errors import InputError
from mlsys_lab.models.layouts import LLAMA, locate
from mlsys_lab.models.loading import SINGLE
from mlsys_lab.models.transformer import Transformer


def save(model: Transformer, folder: Path, *, dtype: torch.dtype = torch.bfloat16) -> None:
    """Write config.json and the weights of a LLaMA-like model in `dtype` to a folder, created if needed.

    With experts the model is written as a Mixtral. InputError for any other model: it takes rotary positions, RMS
    norms, SwiGLU, no biases and no window; and if the weights do not match the configuration because they were
    quantized, sharded or given adapters.
    """
    config = model.config
    fields = _fields(config) | {"torch_dtype": str(dtype).removeprefix("torch.")}
    if model.window is not None or read_config(fields | {"_name_or_path": config.name}) != config:
        raise InputError("only models built like LLaMA are saved", got=config.name, help="the config says what differs")
    with torch.device("meta"):
        expected = {name: weight.shape for name, weight in Transformer(config).named_parameters()}
    found = {name: weight.shape for name, weight in model.named_parameters()}
    if found != expected:
        got = f"{len(found.items() & expected.items())} of {len(expected)} weights as its config has them"
        raise InputError("the model is not whole", got=got, help="save it before it is quantized, sharded or adapted")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(fields, indent=1) + "\n", encoding="utf-8")
    weights = {
        locate(name, LLAMA).name: weight.detach().to("cpu", dtype).contiguous()
        for name, weight in model.named_parameters()
    }
    save_file(weights, folder / SINGLE, metadata={"format": "pt"})


def _fields(c: TransformerConfig) -> dict[str, object]:
    own: dict[str, object] = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
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
