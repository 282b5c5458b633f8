"""Distillation at equal tokens: what fraction of the gap between a small student and its teacher each method closes.

    python -m tests.bench.distillation [--record]

The students have a quarter of the teacher's parameters, the same initial weights, and as many training tokens; without
a teacher they learn the next tokens alone. Either the data is small, so that they see each token several times, or
fresh at every step. Prints goals and measurements, and exits with 1 if a goal is missed. All runs together take about
eight minutes on one thread.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, stdev
from typing import NamedTuple

import numpy as np
import torch

from mlsys_lab.benchmark import new_record
from mlsys_lab.efficiency.distillation import distil, generate_text
from mlsys_lab.efficiency.grammar import END
from mlsys_lab.flops.parameters import parameters
from mlsys_lab.models import Transformer, training
from mlsys_lab.models.training import Tokens
from tests.bench.goals import HELP, Goal, conclude
from tests.bench.grammar_models import CONFIG, CONTEXT, HELD_OUT, SEEDS, TRAINING, Trained, load_trained, loss

MEASUREMENTS = Path(__file__).parents[2] / "book" / "data" / "measurements"
STUDENT = dataclasses.replace(CONFIG, name="student", d_model=64, head_dim=16, d_ff=120)
STEPS, BATCH, PEAK_LR = 170, 8, 6e-3
EPOCHS = 8
"""How often a student sees small data."""
TEXTS = 256
"""Texts that the teacher generates for a student, in one batch."""
OPTIONS = {
    "logits, T = 1": {},
    "logits, T = 2": {"temperature": 2.0},
    "logits, T = 4": {"temperature": 4.0},
    "logits and layers": {"layer_weight": 1.0},
}
"""Arguments of `distil` for each method."""
SMALL, FRESH = "small data", "fresh data"
RUNS = (
    *((SMALL, method) for method in ("scratch", *OPTIONS, "sequences")),
    *((FRESH, method) for method in ("scratch", "logits and layers")),
)
GOALS = {f"{SMALL}, logits and layers": Goal(">=", 0.4)}
"""Mean fraction of the gap that is closed; with 100 steps it is 0.39, with 200 it is 0.53."""


class Result(NamedTuple):
    """Held-out losses of the students of one grammar by data and method, of their teacher, and the entropy, in nats."""

    students: dict[tuple[str, str], float]
    teacher: float
    entropy: float

    def closed(self, run: tuple[str, str]) -> float:
        """Fraction of the gap between the student from scratch and the teacher that a student closes."""
        scratch = self.students[run[0], "scratch"]
        return (scratch - self.students[run]) / (scratch - self.teacher)


def train(trained: Trained, data: str, method: str, seed: int) -> Transformer:
    """Train a student on the text of a teacher's grammar, or on the teacher's own."""
    student = training.new_model(STUDENT, seed)
    num_tokens = STEPS * BATCH * CONTEXT
    run: Iterator[tuple[int, float]]
    how = {"batch_size": BATCH, "seq_len": CONTEXT, "steps": STEPS, "lr": PEAK_LR, "seed": seed}
    if method == "sequences":
        run = training.train(student, generate(trained.model, num_tokens, seed), **how)
    else:
        text = trained.grammar.sample(num_tokens // (EPOCHS if data == SMALL else 1) + CONTEXT, seed=TRAINING)
        if method == "scratch":
            run = training.train(student, text, **how)
        else:
            run = distil(student, trained.model, text, **how, **OPTIONS[method])
    for _ in run:
        pass
    return student.eval()


def generate(teacher: Transformer, num_tokens: int, seed: int) -> Tokens:
    """Text of the teacher (num_tokens + CONTEXT or more,), as a student needs for one pass."""
    start = torch.full((TEXTS, 1), END)
    text = generate_text(teacher, start, (num_tokens + CONTEXT) // TEXTS + 1, seed=seed)
    return np.asarray(text.flatten())


def measure(seed: int) -> Result:
    """Train all students of a seed's grammar."""
    trained = load_trained(seed)
    held_out = trained.windows(HELD_OUT)
    students = {run: loss(train(trained, *run, seed), held_out) for run in RUNS}
    return Result(students, loss(trained.model, held_out), trained.grammar.entropy)


def save_record(run: tuple[str, str], results: list[Result]) -> None:
    """Write what a method reaches for the chapter."""
    data, method = run
    name = f"{method} {data}".replace("=", "").replace(",", "").replace("  ", "").replace(" ", "-").lower()
    new_record(
        f"distillation-{name}",
        f"fraction of the gap between student and teacher closed by distillation, {method}, {data}, on five grammars",
        [result.closed(run) for result in results],
        unit="fraction of the gap",
        better="higher",
        command="python -m tests.bench.distillation --record",
        seed=0,
        parameters={
            "student_parameters": parameters(STUDENT).total,
            "teacher_parameters": parameters(CONFIG).total,
            "training_tokens": STEPS * BATCH * CONTEXT,
            "epochs": 1 if data == FRESH or method == "sequences" else EPOCHS,
            "student_loss": [round(result.students[run], 4) for result in results],
            "scratch_loss": [round(result.students[data, "scratch"], 4) for result in results],
            "teacher_loss": [round(result.teacher, 4) for result in results],
            "entropy": [round(result.entropy, 4) for result in results],
        },
    ).save(MEASUREMENTS)


def main() -> int:
    """Exit status: 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("--record", action="store_true", help=HELP)
    args = parser.parse_args()
    torch.set_num_threads(1)
    started, results = time.process_time(), []
    for seed in SEEDS:
        results.append(measure(seed))
        print(f"seed {seed}: {time.process_time() - started:.0f} CPU s", file=sys.stderr, flush=True)
    print(
        f"teachers: held-out loss {mean(result.teacher for result in results):.4f} nats, "
        f"entropy {mean(result.entropy for result in results):.4f}"
    )
    measured = {}
    for run in RUNS:
        losses, closed = [result.students[run] for result in results], [result.closed(run) for result in results]
        measured[", ".join(run)] = mean(closed)
        print(
            f"{', '.join(run):30} held-out loss {mean(losses):.4f} nats; gap closed {mean(closed):.3f} ±"
            f" {stdev(closed):.3f} (by grammar {', '.join(f'{fraction:.3f}' for fraction in closed)})"
        )
        if args.record and run[1] != "scratch":
            save_record(run, results)
    ratio = parameters(STUDENT).total / parameters(CONFIG).total
    title = f"fraction of the gap closed by students of {ratio:.2f} of the teacher's parameters, means of five grammars"
    return conclude("distillation", title, GOALS, {"measured": measured}, record=args.record)


if __name__ == "__main__":
    sys.exit(main())
