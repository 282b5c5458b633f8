"""Distil a draft model from the target of `mlsys_lab.inference.pretrained`: `python book/distil_draft.py FOLDER`.

The draft has the size of the package's, and serves with the target: `mlsys-lab serve --draft FOLDER`. It needs no text
but the target's own, which is also what it will be asked to draft. It takes four minutes of one core;
`python -m tests.bench.distilled_draft` compares it with the package's draft, which learned from the book.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch

from book.pretrain import CONTEXT, RUNS, Run
from mlsys_lab.efficiency.distillation import distil, generate_text
from mlsys_lab.inference.pretrained import Pair, load_pair
from mlsys_lab.inference.text.chat import END
from mlsys_lab.models import Transformer, training
from mlsys_lab.models.saving import save

RUN = RUNS[1]
"""The package's draft: the same initial weights, and as many training tokens."""
EPOCHS = 2
"""How often the draft sees each text of the target."""


def main() -> None:
    """Distil a draft and save it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="where the draft model goes")
    folder = parser.parse_args().folder
    with training.one_thread():
        save(distil_draft(load_pair(), RUN), folder)
    print(f"mlsys-lab serve --draft {folder}")


def distil_draft(pair: Pair, run: Run) -> Transformer:
    """A model of the run's sizes, trained on text of the pair's target and on the target's logits there."""
    start = torch.full((run.steps * run.batch // EPOCHS, 1), pair.tokenizer.special_id(END))
    text = np.asarray(generate_text(pair.target, start, CONTEXT - 1, seed=run.seed).flatten())
    draft = training.new_model(run.config, run.seed)
    for step, loss in distil(
        draft,
        pair.target,
        text,
        batch_size=run.batch,
        seq_len=CONTEXT,
        steps=run.steps,
        lr=run.rate,
        seed=run.seed,
    ):
        if step % (run.steps // 10) == 0:
            print(f"{run.name} step {step}: divergence {loss:.3f} nats", flush=True)
    return draft.eval()


if __name__ == "__main__":
    main()
