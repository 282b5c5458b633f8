"""Weights between the GPT of `mlsys_lab.autograd` and `Transformer`, which then compute the same logits.

So a GPT that was trained on the course's own engine can be saved as a GPT-2 (`mlsys_lab.models.saving`), and a GPT-2
checkpoint that `load` has read runs, and trains, on that engine.
"""

from __future__ import annotations

from mlsys_lab.autograd.gpt import GPT, GPTConfig
from mlsys_lab.configs import TransformerConfig
from mlsys_lab.errors import InputError
from mlsys_lab.models.transformer import Transformer

NAMES = (
    ("tokens.", "embedding."),
    ("norm1.", "attention_norm."),
    ("norm2.", "mlp_norm."),
    ("feed_forward.0.", "mlp.up."),
    ("feed_forward.2.", "mlp.down."),
)
"""Parts of the names of weights, in `GPT` and in `Transformer`; all other parts are the same."""
HEAD, EMBEDDING = "head.weight", "embedding.weight"


def gpt_to_transformer(gpt: GPT) -> Transformer:
    """A `Transformer` with copies of a GPT's weights, in their dtype; dropout is left out."""
    weights = {_rename(name, to_gpt=False): weight for name, weight in gpt.state_dict().items()}
    model = Transformer(_transformer_config(gpt.config)).to(weights[HEAD].dtype)
    model.load_state_dict(weights)
    return model


def transformer_to_gpt(model: Transformer) -> GPT:
    """A `GPT` with copies of a Transformer's weights, in their dtype; a tied head becomes a matrix of its own.

    Raises InputError unless the model is built like GPT-2 with the exact GELU, without a window.
    """
    c = model.config
    config = GPTConfig(c.vocab_size, c.context, c.n_layers, c.n_heads, c.d_model)
    wanted = vars(_transformer_config(config)) | {"name": c.name, "tied": c.tied, "window": None}
    found = vars(c) | {"window": model.window}
    if differing := [name for name, value in wanted.items() if found[name] != value]:
        got, expected = (", ".join(f"{name}={one[name]}" for name in differing) for one in (found, wanted))
        raise InputError("autograd's GPT does not compute this model", got=got, expected=expected)
    weights = {name: weight.detach() for name, weight in model.named_parameters()}
    weights.setdefault(HEAD, weights[EMBEDDING])
    gpt = GPT(config)
    gpt.to(weights[HEAD].dtype)
    gpt.load_state_dict({_rename(name, to_gpt=True): weight for name, weight in weights.items()})
    return gpt


def _transformer_config(config: GPTConfig) -> TransformerConfig:
    return TransformerConfig(
        "gpt",
        n_layers=config.layers,
        d_model=config.channels,
        n_heads=config.heads,
        d_ff=4 * config.channels,
        vocab_size=config.vocabulary,
        context=config.context,
        position="learned",
        norm="layer",
        activation="gelu",
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        norm_bias=True,
    )


def _rename(name: str, *, to_gpt: bool) -> str:
    for theirs, ours in NAMES:
        name = name.replace(ours, theirs) if to_gpt else name.replace(theirs, ours)
    return name
