"""Small transformers trained on texts of random grammars, for what a bench or a test says of losses.

Trained once a checkout, and kept in build/; each seed has a grammar of its own: `python -m tests.bench.grammar_models`
trains the five.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from mlsys_lab.configs import TransformerConfig
from mlsys_lab.efficiency.grammar import Grammar
from mlsys_lab.models import Transformer, training

FOLDER = Path(__file__).parents[2] / "build" / "grammar-models"
SEEDS = range(5)
TRAINING, CALIBRATION, HELD_OUT = 0, 1, 2
"""Seeds of the three texts of a grammar."""
STEPS, BATCH, CONTEXT, PEAK_LR = 800, 16, 128, 3e-3
CONFIG = TransformerConfig(
    "grammar", n_layers=4, d_model=128, n_heads=4, d_ff=256, vocab_size=64, context=CONTEXT, norm="rms"
)


class Trained(NamedTuple):
    """A grammar, and a model of `CONFIG` that was trained on its text."""

    grammar: Grammar
    model: Transformer

    def windows(self, text: int, count: int = 64) -> torch.Tensor:
        """Sequences of the text with this seed: (count, CONTEXT + 1) token ids."""
        tokens = self.grammar.sample(count * CONTEXT + 1, seed=text)
        return training.windows(tokens, np.arange(count) * CONTEXT, CONTEXT)


def load_trained(seed: int) -> Trained:
    """The model of a seed in fp32, trained now if it is not in build/."""
    grammar, path = Grammar.random(seed), FOLDER / f"{seed}.safetensors"
    if not path.exists():
        model = train(grammar, CONFIG, seed=seed)
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(model.state_dict(), path)
    model = Transformer(CONFIG).eval()
    model.load_state_dict(load_file(path))
    return Trained(grammar, model)


def train(grammar: Grammar, config: TransformerConfig, *, seed: int, steps: int = STEPS) -> Transformer:
    """A model trained on one pass over a grammar's text, on one thread: about 2 minutes."""
    tokens = grammar.sample(steps * BATCH * CONTEXT + 2 * CONTEXT, seed=TRAINING)
    with training.one_thread():
        model = training.new_model(config, seed)
        for _ in training.train(model, tokens, batch_size=BATCH, seq_len=CONTEXT, steps=steps, lr=PEAK_LR, seed=seed):
            pass
    return model


@torch.no_grad()
def loss(model: torch.nn.Module, windows: torch.Tensor) -> float:
    """Mean next-token loss in nats."""
    return training.loss(model, windows).item()


def main() -> None:
    """Train the models that are missing; print the loss of each next to its grammar's entropy."""
    for seed in SEEDS:
        trained = load_trained(seed)
        held_out = loss(trained.model, trained.windows(HELD_OUT))
        print(f"seed {seed}: held-out loss {held_out:.3f}, entropy {trained.grammar.entropy:.3f} nats", flush=True)


if __name__ == "__main__":
    main()
