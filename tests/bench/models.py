"""Models of realistic sizes with random weights, for what does not depend on the weights: speed."""

from __future__ import annotations

from pathlib import Path

import torch

from mlsys_lab.inference.pretrained import FOLDER


def save_llama(folder: Path, *, layers: int = 8, hidden_size: int = 512, heads: int = 8) -> Path:
    """A LLaMA of about 30 M parameters, or of another size, in Hugging Face's format with the bundled tokenizer."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=1024,
        max_position_embeddings=512,
        hidden_size=hidden_size,
        intermediate_size=3 * hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=heads,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes((FOLDER / "tokenizer.json").read_bytes())
    return folder
