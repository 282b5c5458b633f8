"""Small random checkpoints of every family, written by `transformers` itself, without network."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch.overrides import TorchFunctionMode

COMMON = {"vocab_size": 61, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": None}
LLAMA = COMMON | {
    "num_hidden_layers": 3,
    "hidden_size": 24,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "intermediate_size": 40,
    "max_position_embeddings": 32,
}
# Of the five pairs of a head, llama3 keeps one, blends one and slows three.
STRETCHED = LLAMA | {"head_dim": 10, "max_position_embeddings": 96, "rope_theta": 100.0}
LLAMA31 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
GPT2 = COMMON | {"n_layer": 3, "n_embd": 24, "n_head": 4, "n_positions": 32}
ROUTED = {"num_experts": 5, "num_experts_per_tok": 2, "norm_topk_prob": True}
OPT = LLAMA | {"ffn_dim": 40}

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2", GPT2),
    "gpt2 untied": ("GPT2", GPT2 | {"tie_word_embeddings": False, "n_inner": 30, "activation_function": "gelu"}),
    "bloom": ("Bloom", COMMON | {"n_layer": 3, "hidden_size": 24, "n_head": 6}),
    "llama": ("Llama", LLAMA),
    "llama with biases": (
        "Llama",
        LLAMA | {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True, "head_dim": 10},
    ),
    "llama3": ("Llama", STRETCHED | {"rope_scaling": LLAMA31}),
    "llama linear": ("Llama", STRETCHED | {"rope_scaling": {"type": "linear", "factor": 4.0}}),
    "mistral": ("Mistral", LLAMA | {"sliding_window": None, "num_key_value_heads": 1}),
    "mixtral": ("Mixtral", LLAMA | {"num_local_experts": 5, "num_experts_per_tok": 2}),
    "qwen2": ("Qwen2", LLAMA | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}),
    "qwen2 tied": ("Qwen2", LLAMA | {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3", LLAMA | {"head_dim": 10}),
    "qwen3_moe": ("Qwen3Moe", LLAMA | {"head_dim": 10, "moe_intermediate_size": 16, **ROUTED}),
    "gemma": ("Gemma", LLAMA | {"head_dim": 10}),
    "olmo": ("Olmo", LLAMA),
    "olmo2": ("Olmo2", LLAMA),
    "phi": ("Phi", LLAMA | {"partial_rotary_factor": 0.5}),
    "phi3": ("Phi3", LLAMA | {"partial_rotary_factor": 0.5, "sliding_window": 10}),
    "opt": ("OPT", OPT),
}


class Widened(TorchFunctionMode):
    """Whatever asks for fp32 gets fp64: `transformers` narrows norms, angles and routing in models of any dtype."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def wide(value: Any) -> Any:
            return torch.float64 if value is torch.float32 else value

        func = torch.Tensor.double if func is torch.Tensor.float else func
        return func(*map(wide, args), **{name: wide(value) for name, value in (kwargs or {}).items()})


def build(family: str, **changes: Any) -> Any:
    """A model of `transformers` with random weights, norms and biases too, so that none of them hides a mistake."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    import transformers

    kind, fields = FAMILIES[family]
    config = getattr(transformers, f"{kind}Config")(**(fields | changes))
    torch.manual_seed(0)
    how = {"attn_implementation": "eager", "experts_implementation": "eager"}
    model = transformers.AutoModelForCausalLM.from_config(config, **how).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def rewrite(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    """Change the tensors of a checkpoint of one file in place."""
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors")


def configure(folder: Path, **changes: object) -> None:
    """Put other fields into a checkpoint's config.json."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
