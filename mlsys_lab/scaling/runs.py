"""Real training runs, small enough for a CPU: our transformer on the book's own text, from which a law can be fitted.

Letters: N parameters with embeddings, D tokens trained on, T tokens of a sequence, B sequences of a batch. The text is
short, so the longer runs read it several times (`epochs`), and the loss they reach is above what fresh text would give.
C is 6ND as everywhere here; with attention over 64 tokens these sizes really take a tenth to a third more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from mlsys_lab.configs import TransformerConfig
from mlsys_lab.errors import InputError
from mlsys_lab.flops import parameters
from mlsys_lab.scaling.curves import Curve
from mlsys_lab.scaling.laws import FLOPS_PER_PARAMETER_TOKEN, positive_array
from mlsys_lab.scaling.text import Corpus, read_corpus

Progress = Callable[[int, int], object]
SEQUENCE = 64
BATCH_GROWTH = 4000
"""Growth of the batch with the run, B = √(D / 4000): 3 sequences for 40,000 tokens, 16 for a million."""
LEARNING_RATE_TIMES_WIDTH = 0.64
"""Peak learning rate times width: the best of 0.32, 0.64, 1.28 at widths 16 and 32 (Yang et al., arXiv:2203.03466)."""
POINTS = (0.25, 0.5, 1.0)
"""Shares of a run after which the validation loss is taken."""
STEPS_PER_PROGRESS = 20


@dataclass(frozen=True)
class Size:
    """Layers, width and heads of a run's transformer; InputError for sizes that cannot be built."""

    layers: int
    width: int
    heads: int

    def config(self, vocabulary_size: int) -> TransformerConfig:
        """Configuration of the transformer: rotary positions, RMS norms, GELU, tied embeddings.

        Every parameter but the norms' takes part in a matmul.
        """
        return TransformerConfig(
            name=f"{self.layers} layers of {self.width}",
            n_layers=self.layers,
            d_model=self.width,
            n_heads=self.heads,
            d_ff=4 * self.width,
            vocab_size=vocabulary_size,
            context=SEQUENCE,
            activation="gelu",
            tied=True,
        )

    def n_params(self, vocabulary_size: int) -> int:
        """Number of parameters N, embeddings included."""
        return parameters(self.config(vocabulary_size)).total


XS, S, M, L, XL, XXL, XXXL = (Size(2, width, max(1, width // 16)) for width in (8, 12, 16, 24, 32, 48, 64))
PLAN: Mapping[float, tuple[Size, ...]] = {
    4e9: (XS, S, M, L),
    1.2e10: (S, M, L, XL),
    3.6e10: (M, L, XL, XXL),
    1.08e11: (L, XL, XXL, XXXL),
}
"""FLOPs of each budget, and the sizes that are trained with it: four IsoFLOP profiles, a factor of 3 apart.

Measured for three seeds on one core of a busy machine: 55, 55 and 59 s. The exponent a came out 0.59, 0.54 and 0.52 by
approach 2 and 0.64, 0.68 and 0.52 by approach 3, whose law fits the sixteen losses to 1 % (root mean square).
"""
HELD_OUT = (XXL, 3.24e11)
"""A run with three times the FLOPs of the largest budget, to hold the fitted law against: it takes 13 s, and its loss
came out 5.1 to 6.1 % below what approach 3 predicts. At this scale losses still fall faster than a power law.
"""


def tokens_for(size: Size, flops: float, corpus: Corpus) -> int:
    """Training tokens D = C / 6N of a size with a budget of `flops`."""
    return round(
        float(positive_array("FLOPs", flops)) / (FLOPS_PER_PARAMETER_TOKEN * size.n_params(len(corpus.vocabulary)))
    )


def epochs(tokens: float, corpus: Corpus) -> float:
    """How many times a run of D tokens reads the training text."""
    return tokens / len(corpus.train)


def train_all(
    plan: Mapping[float, tuple[Size, ...]] = PLAN,
    *,
    corpus: Corpus | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> list[Curve]:
    """Train every size of every budget of the plan and return the curves; each run has its own seed, drawn from `seed`.

    `progress` is called with the FLOPs done and the FLOPs of the whole plan, every few steps.
    """
    text = read_corpus() if corpus is None else corpus
    wanted = [(size, tokens_for(size, flops, text)) for flops, sizes in plan.items() for size in sizes]
    costs = [_Schedule.of(tokens).tokens * size.n_params(len(text.vocabulary)) for size, tokens in wanted]
    total, done, curves = FLOPS_PER_PARAMETER_TOKEN * sum(costs), 0, []
    for i, ((size, tokens), cost) in enumerate(zip(wanted, costs, strict=True)):
        base = done

        def report(flops: int, _: int, base: int = base) -> None:
            if progress is not None:
                progress(base + flops, total)

        own_seed = int(np.random.SeedSequence([seed, i]).generate_state(1)[0])
        curves.append(train(size, tokens, corpus=text, seed=own_seed, progress=report))
        done += FLOPS_PER_PARAMETER_TOKEN * cost
    return curves


def train(
    size: Size,
    tokens: float,
    *,
    corpus: Corpus,
    seed: int = 0,
    learning_rate: float | None = None,
    progress: Progress | None = None,
) -> Curve:
    """Train one transformer on about D tokens and take its validation loss, in nats a token, at POINTS of the run.

    AdamW with a warm-up and a decay to zero that end with the run; one thread, since products this small gain nothing
    from more. The same seed gives the same curve on the same machine; the caller's random state is left as it was.
    """
    from mlsys_lab.models import training

    plan = _Schedule.of(tokens)
    peak = (
        LEARNING_RATE_TIMES_WIDTH / size.width
        if learning_rate is None
        else float(positive_array("rate", learning_rate))
    )
    with training.one_thread():
        model = training.new_model(size.config(len(corpus.vocabulary)), seed)
        n_params = size.n_params(len(corpus.vocabulary))
        marks = {max(1, round(plan.steps * point)) for point in POINTS}
        seen, losses = [], []
        for step, _ in training.train(
            model, corpus.train, batch_size=plan.batch, seq_len=SEQUENCE, steps=plan.steps, lr=peak, seed=seed
        ):
            done = step * plan.batch * SEQUENCE
            if step in marks:
                losses.append(training.mean_loss(model, corpus.validation, SEQUENCE))
                seen.append(done)
            if progress is not None and (step % STEPS_PER_PROGRESS == 0 or step == plan.steps):
                charge = FLOPS_PER_PARAMETER_TOKEN * n_params
                progress(charge * done, charge * plan.tokens)
    return Curve(n_params, np.array(seen, dtype=np.float64), np.array(losses))


@dataclass(frozen=True)
class _Schedule:
    batch: int
    steps: int

    @classmethod
    def of(cls, tokens: float) -> _Schedule:
        wanted = float(positive_array("tokens", tokens))
        if wanted < 10 * SEQUENCE:
            raise InputError("too few tokens for a run", got=f"{wanted:g}", expected=f"at least {10 * SEQUENCE}")
        batch = max(1, round(math.sqrt(wanted / BATCH_GROWTH)))
        return cls(batch, max(1, round(wanted / (batch * SEQUENCE))))

    @property
    def tokens(self) -> int:
        return self.batch * self.steps * SEQUENCE
