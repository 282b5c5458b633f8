"""A transformer of 86,336 weights, trained on text of `Grammar.random(13)`: small enough to compress in a second.

`book/pretrain_grammar.py` trained it in half a minute on one core. Its weights are stored in fp16, 173 kB.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from mlsys_lab.configs import TransformerConfig
from mlsys_lab.efficiency.grammar import Grammar
from mlsys_lab.errors import InputError, MissingToolError
from mlsys_lab.models import Transformer, training

FILE = Path(__file__).parent / "grammar.safetensors"
CONTEXT = 64
CONFIG = TransformerConfig(
    "grammar", n_layers=2, d_model=64, n_heads=4, d_ff=128, vocab_size=64, context=CONTEXT, norm="rms", tied=True
)
GRAMMAR_SEED = 13


def load_grammar_model() -> Transformer:
    """The trained model, in fp32. MissingToolError without its file, InputError for a damaged one."""
    model = Transformer(CONFIG)
    try:
        model.load_state_dict({name: weight.float() for name, weight in load_file(FILE).items()})
    except FileNotFoundError:
        raise MissingToolError(f"{FILE.name} is missing", help="python book/pretrain_grammar.py trains it") from None
    except (SafetensorError, RuntimeError) as error:
        raise InputError(f"{FILE.name} is damaged", got=str(error).splitlines()[0]) from None
    return model.eval().requires_grad_(False)


def sample_windows(count: int, *, seed: int) -> torch.Tensor:
    """Consecutive sequences of the text with this seed, each with its next token: (count, CONTEXT + 1) token ids."""
    tokens = Grammar.random(GRAMMAR_SEED).sample(count * CONTEXT + 1, seed=seed)
    return training.windows(tokens, np.arange(count) * CONTEXT, CONTEXT)
