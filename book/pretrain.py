"""Train the tokenizer, target and draft of `mlsys_lab.inference.pretrained`: `python book/pretrain.py`.

It takes four minutes of one core. Weights and texts go into the package, and for each model a
record with its loss curve to book/data/measurements. The text is that of the checkout, so that a run on a later one
gives other models; run book/measure_pair.py after it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from math import exp

import numpy as np

from book.corpus import questions, sections
from book.project import BOOK
from mlsys_lab.benchmark import new_record
from mlsys_lab.configs import TransformerConfig
from mlsys_lab.flops import parameters
from mlsys_lab.inference.pretrained import DRAFT, FOLDER, TARGET, TOKENIZER
from mlsys_lab.inference.text import Tokenizer, learn
from mlsys_lab.inference.text.chat import END, SPECIAL, encode_turn
from mlsys_lab.models import training
from mlsys_lab.models.saving import save
from mlsys_lab.models.training import Tokens

RECORDS = BOOK / "data" / "measurements"
COMMAND = "python book/pretrain.py"
VOCAB_SIZE, CONTEXT = 1024, 512
HELD_OUT = 10
"""Every tenth section of prose is held out."""
CALIBRATION_CHARACTERS = 24_000
POINTS = 15
"""How often the held-out loss is taken in a run."""


@dataclass(frozen=True)
class Run:
    """How a model is trained: its sizes, then steps of `batch` sequences of the context's length."""

    name: str
    n_layers: int
    d_model: int
    steps: int
    batch: int
    rate: float
    seed: int

    @property
    def config(self) -> TransformerConfig:
        """Configuration of the model: heads of 32, half as many for keys and values, a tied head."""
        return TransformerConfig(
            self.name,
            n_layers=self.n_layers,
            d_model=self.d_model,
            n_heads=self.d_model // 32,
            n_kv_heads=max(1, self.d_model // 64),
            d_ff=3 * self.d_model,
            vocab_size=VOCAB_SIZE,
            context=CONTEXT,
            tied=True,
        )


RUNS = (
    Run(TARGET, n_layers=4, d_model=128, steps=800, batch=2, rate=4e-3, seed=0),
    Run(DRAFT, n_layers=1, d_model=64, steps=800, batch=2, rate=8e-3, seed=1),
)


def main() -> None:
    """Write the tokenizer, the two texts, both models and their records."""
    prose = sections()
    held_out = "\n\n".join(prose[HELD_OUT // 2 :: HELD_OUT])
    read = [section for i, section in enumerate(prose) if i % HELD_OUT != HELD_OUT // 2]
    (FOLDER / "held-out.txt").write_text(held_out, encoding="utf-8")
    (FOLDER / "calibration.txt").write_text("\n\n".join(read)[:CALIBRATION_CHARACTERS], encoding="utf-8")
    answers = [turn.content for question in questions() for turn in question]
    tokenizer = learn("\n".join([*read, *answers]), VOCAB_SIZE, SPECIAL)
    tokenizer.save(FOLDER / TOKENIZER)
    tokens, unseen = encode(tokenizer, read), np.array(tokenizer.encode(held_out), dtype=np.int64)
    print(
        f"{len(tokens)} tokens to train on, {len(unseen)} held out, {len(held_out) / len(unseen):.2f} characters each"
    )
    for run in RUNS:
        train(run, tokens, unseen)


def encode(tokenizer: Tokenizer, prose: list[str]) -> Tokens:
    """Token ids of all that is trained on, each text with its end, in an order drawn once."""
    end = [tokenizer.special_id(END)]
    texts = [tokenizer.encode(section) + end for section in prose]
    texts += [[token for turn in pair for token in encode_turn(tokenizer, turn)] for pair in questions()]
    order = np.random.default_rng(0).permutation(len(texts))
    return np.concatenate([np.array(texts[i], dtype=np.int64) for i in order])


def train(run: Run, tokens: Tokens, unseen: Tokens) -> None:
    """Train one model, save it, and keep its losses as a record."""
    model = training.new_model(run.config, run.seed)
    curve: list[tuple[int, float, float]] = []
    started, seen = time.process_time(), []
    with training.one_thread():
        for step, loss in training.train(
            model, tokens, batch_size=run.batch, seq_len=CONTEXT, steps=run.steps, lr=run.rate, seed=run.seed
        ):
            seen.append(loss)
            if step * POINTS % run.steps < POINTS:
                curve.append((step, float(np.mean(seen)), training.mean_loss(model, unseen, CONTEXT)))
                seen.clear()
                print(f"{run.name} step {step}: loss {curve[-1][1]:.3f}, held out {curve[-1][2]:.3f}", flush=True)
        seconds = time.process_time() - started
        model = model.bfloat16().float()
        perplexity = exp(training.mean_loss(model, unseen, CONTEXT))
    save(model, FOLDER / run.name)
    new_record(
        f"pretrained-{run.name}",
        f"perplexity of the {run.name} model on the book's held-out sections, weights in bf16",
        [perplexity],
        unit="perplexity",
        better="lower",
        command=COMMAND,
        seed=run.seed,
        notes="curve: step, mean training loss since the point before, held-out loss, in nats a token",
        parameters={
            "parameters": parameters(run.config).total,
            "steps": run.steps,
            "tokens_a_step": run.batch * CONTEXT,
            "epochs": run.steps * run.batch * CONTEXT / len(tokens),
            "training_tokens": len(tokens),
            "held_out_tokens": len(unseen),
            "learning_rate": run.rate,
            "cpu_s": seconds,
            "curve": curve,
        },
    ).save(RECORDS)
    print(f"{run.name}: perplexity {perplexity:.2f}, {seconds:.0f} CPU s", flush=True)


if __name__ == "__main__":
    main()
