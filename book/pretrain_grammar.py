"""Train the model of `mlsys_lab.efficiency.pretrained`, for lab 13: `python book/pretrain_grammar.py`.

It takes half a minute of one core, writes the weights into the package, and prints the held-out loss.
"""

from __future__ import annotations

from safetensors.torch import save_file

from mlsys_lab.efficiency.grammar import Grammar
from mlsys_lab.efficiency.pretrained import CONFIG, CONTEXT, FILE, GRAMMAR_SEED, load_grammar_model, sample_windows
from mlsys_lab.models import training

STEPS, BATCH, PEAK_LR = 1500, 16, 4e-3
TRAINING, HELD_OUT = 0, 2
"""Seeds of the texts."""


def main(steps: int = STEPS) -> None:
    """Train on one pass over a text, save in fp16, and print the loss on another text."""
    grammar = Grammar.random(GRAMMAR_SEED)
    tokens = grammar.sample((steps * BATCH + 2) * CONTEXT, seed=TRAINING)
    with training.one_thread():
        model = training.new_model(CONFIG, 0)
        for _ in training.train(model, tokens, batch_size=BATCH, seq_len=CONTEXT, steps=steps, lr=PEAK_LR, seed=0):
            pass
        save_file({name: weight.half() for name, weight in model.state_dict().items()}, FILE)
        FILE.chmod(0o644)  # the library lets only the owner read
        held_out = training.loss(load_grammar_model(), sample_windows(256, seed=HELD_OUT)).item()
    print(f"held-out loss {held_out:.3f} nats per token, entropy of the grammar {grammar.entropy:.3f}")


if __name__ == "__main__":
    main()
