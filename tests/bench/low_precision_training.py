"""Training in 8 bits: held-out losses of FP8 recipes next to bf16's, on texts of five grammars.

    python -m tests.bench.low_precision_training [--record]

Prints goals and measurements, and exits with 1 if a goal is missed. The runs of a grammar differ in their recipe
alone: initial weights, text and its order are the same. All runs together take about seven minutes on one thread.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import mean, stdev
from typing import NamedTuple

import torch

from mlsys_lab.benchmark import new_record
from mlsys_lab.configs import TransformerConfig
from mlsys_lab.efficiency.fp8 import RECIPES, convert, count_lost
from mlsys_lab.efficiency.grammar import Grammar
from mlsys_lab.models import training
from tests.bench.goals import HELP, Goal, conclude
from tests.bench.grammar_models import CONTEXT, HELD_OUT, PEAK_LR, SEEDS, TRAINING, Trained, loss

MEASUREMENTS = Path(__file__).parents[2] / "book" / "data" / "measurements"
STEPS, BATCH, CURVE = 200, 8, 10
"""Steps of a run, sequences of a step, and how many steps a point of the loss curve is the mean of."""
CONFIG = TransformerConfig(
    "grammar-fp8", n_layers=2, d_model=128, n_heads=4, d_ff=256, vocab_size=64, context=CONTEXT, norm="rms"
)
GOALS = {
    "current": Goal("+-", 0.005),
    "delayed": Goal("+-", 0.005),
    "block": Goal("+-", 0.005),
    "unscaled": Goal(">=", 1.1),
}
"""Mean held-out loss of each recipe over that of bf16."""


class Run(NamedTuple):
    """A training run: held-out loss in nats, training loss by step, and the gradients' underflow at the end."""

    held_out: float
    losses: list[float]
    underflow: float


def train(recipe: str, seed: int) -> Run:
    """Train a model on the text of a seed's grammar; the loss is that of the model in the recipe's own precision."""
    grammar = Grammar.random(seed)
    tokens = grammar.sample(STEPS * BATCH * CONTEXT + 2 * CONTEXT, seed=TRAINING)
    model = convert(training.new_model(CONFIG, seed), recipe)
    run = training.train(model, tokens, batch_size=BATCH, seq_len=CONTEXT, steps=STEPS, lr=PEAK_LR, seed=seed)
    losses = [step_loss for _, step_loss in run]
    held_out = Trained(grammar, model.eval()).windows(HELD_OUT)
    with count_lost(model) as lost:
        training.loss(model, held_out[:BATCH]).backward()  # type: ignore[no-untyped-call]
    gradients = [counts for name, counts in lost.items() if name.endswith("gradient_scaling")]
    underflow = sum(counts.underflowed for counts in gradients) / sum(counts.nonzero for counts in gradients)
    return Run(loss(model, held_out), losses, underflow)


def save_record(recipe: str, runs: list[Run], ratios: list[float]) -> None:
    """Write a recipe's losses and its mean loss curve for the chapter."""
    curve = torch.tensor([run.losses for run in runs]).mean(0).view(-1, CURVE).mean(-1)
    parameters = {
        "steps": STEPS,
        "tokens_per_step": BATCH * CONTEXT,
        "steps_per_point": CURVE,
        "curve": [round(value, 4) for value in curve.tolist()],
        "entropy": [round(Grammar.random(seed).entropy, 4) for seed in SEEDS],
        "loss_over_bf16": [round(ratio, 5) for ratio in ratios],
        "gradient_underflow": [round(run.underflow, 5) for run in runs],
    }
    new_record(
        f"training-{recipe}",
        f"held-out loss after training with the recipe {recipe!r} on five grammars",
        [run.held_out for run in runs],
        unit="nats per token",
        better="lower",
        command="python -m tests.bench.low_precision_training --record",
        seed=0,
        parameters=parameters,
    ).save(MEASUREMENTS)


def report(runs: Mapping[str, list[Run]], *, record: bool) -> dict[str, float]:
    """Print the losses of each recipe with their spread; return its mean loss over that of bf16."""
    measured = {}
    for recipe, its_runs in runs.items():
        losses = [run.held_out for run in its_runs]
        ratios = [loss / run.held_out for loss, run in zip(losses, runs["bf16"], strict=True)]
        measured[recipe] = mean(losses) / mean(run.held_out for run in runs["bf16"])
        print(
            f"{recipe:9} held-out loss {mean(losses):.4f} nats; over bf16 {mean(ratios):.4f} ± {stdev(ratios):.4f}"
            f" (by grammar {', '.join(f'{ratio:.4f}' for ratio in ratios)});"
            f" gradients that underflow {mean(run.underflow for run in its_runs):.2%}"
        )
        if record:
            save_record(recipe, its_runs, ratios)
    return measured


def main() -> int:
    """Exit status: 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--record", action="store_true", help=HELP)
    args = parser.parse_args()
    torch.set_num_threads(1)
    runs = {recipe: [train(recipe, seed) for seed in SEEDS] for recipe in RECIPES}
    measured = report(runs, record=args.record)
    title = f"held-out loss over bf16's after {STEPS} steps, means over five grammars"
    return conclude("low_precision_training", title, GOALS, {"measured": measured}, record=args.record)


if __name__ == "__main__":
    sys.exit(main())
