"""Bits per byte of a capstone on the solved labs against the reference at equal FLOPs, and its CPU minutes.

    python -m tests.bench.capstone [--steps N] [--record]

Five seeds. The reference is `mlsys_lab.models.training` on torch's autograd: the same model, data and number of steps.
CPU minutes are those of a whole run, in proportion to its steps. Exit status 1 if a goal is missed.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from statistics import mean

from mlsys_lab.capstone import Stack, load_stack
from mlsys_lab.capstone.settings import STEPS, BookData, Settings, bits_per_byte, make_settings
from mlsys_lab.capstone.training import train
from mlsys_lab.models import Transformer, training
from tests.bench.goals import HELP, Goal, conclude

SEEDS, MINUTES = 5, 10.0
BITS, COST = "bits per byte over the reference's", f"CPU minutes of a run over {MINUTES:g}"
GOALS = {BITS: Goal("+-", 0.02), COST: Goal("<=", 1.0)}


def train_stack(stack: Stack, settings: Settings, data: BookData) -> tuple[float, float]:
    """Bits per byte and CPU seconds of a run on the stack."""
    start_s = time.process_time()
    result = train(
        stack, settings.model, settings.new_weights(), data.train, settings.train, settings.ranks, limit_s=1e5
    )
    cpu_s = time.process_time() - start_s
    model = Transformer(settings.model).eval()
    model.load_state_dict(result.weights)
    return bits_per_byte(model, data), cpu_s


def train_reference(settings: Settings, data: BookData) -> float:
    """Bits per byte of the reference."""
    model = training.new_model(settings.model, settings.train.seed)
    for _ in training.train(model, data.train, **vars(settings.train)):
        pass
    return bits_per_byte(model.eval(), data)


def main() -> int:
    """Exit status: 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=60, help=f"of each run; a whole one has {STEPS}")
    parser.add_argument("--record", action="store_true", help=HELP)
    args = parser.parse_args()
    stack, settings = load_stack(), make_settings(steps=args.steps)
    data, judged = settings.read_data(), {}
    with training.one_thread():
        for seed in range(SEEDS):
            one = replace(settings, train=replace(settings.train, seed=seed))
            ours, cpu_s = train_stack(stack, one, data)
            theirs = train_reference(one, data)
            minutes = cpu_s / 60 * STEPS / args.steps
            judged[f"seed {seed}"] = {BITS: ours / theirs, COST: minutes / MINUTES}
            print(
                f"seed {seed}: {ours:.4f} bits per byte, the reference {theirs:.4f}; {minutes:.1f} CPU minutes",
                flush=True,
            )
    judged["mean"] = {name: mean(each[name] for each in judged.values()) for name in GOALS}
    title = f"a capstone of {args.steps} steps on the solved labs"
    return conclude("capstone", title, GOALS, judged, record=args.record)


if __name__ == "__main__":
    sys.exit(main())
