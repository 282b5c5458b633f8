"""Pruning on five grammars: what each method costs in loss, and the density at which each sparse layout pays.

    python -m tests.bench.pruning [--rounds N] [--record]

Prints tables, goals and measurements, and exits with 1 if a goal is missed. One thread; about 7 minutes.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Iterator
from statistics import mean
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from mlsys_lab.benchmark import new_record
from mlsys_lab.efficiency.pruning.convert import METHODS, prune
from mlsys_lab.efficiency.pruning.schedules import cubic_schedule, masks_of, prune_while_training, train_with_masks
from mlsys_lab.efficiency.pruning.structured import (
    channel_importance,
    head_importance,
    layer_importance,
    prune_channels,
    prune_heads,
    prune_layers,
)
from mlsys_lab.hardware import measure_cpu
from mlsys_lab.models import Transformer, training
from tests.bench.goals import BOOK_RECORDS, HELP, Goal, conclude
from tests.bench.grammar_models import (
    BATCH,
    CALIBRATION,
    CONFIG,
    CONTEXT,
    HELD_OUT,
    SEEDS,
    TRAINING,
    Trained,
    load_trained,
    loss,
)
from tests.bench.sparse_products import break_even_table, gpu_lines

STEPS, PEAK_LR = 30, 1e-3
"""Of the fine-tuning, less than 1/25 of the training."""
SPARSEGPT, MAGNITUDE, WANDA = (f"2:4 {method}" for method in ("sparsegpt", "magnitude", "wanda"))
GOALS = {"SparseGPT 2:4, loss increase over magnitude's": Goal("<=", 0.6)}
TUNED = (SPARSEGPT, MAGNITUDE, "0.3 magnitude")
"""Of the prunings with masks, those that are fine-tuned with the masks kept."""
Losses = dict[str, float]
"""Increase of the held-out loss in nats, by what was done."""


def increases(trained: Trained) -> Losses:
    """Loss increase of one seed's model by each kind of pruning."""
    calibration, held_out = trained.windows(CALIBRATION)[:, :-1], trained.windows(HELD_OUT)
    base = loss(trained.model, held_out)
    found: Losses = {"held-out loss": base}

    def add(name: str, model: Transformer, *, tuned: bool = False) -> None:
        found[name] = loss(model, held_out) - base
        if tuned:
            for _ in train_with_masks(model, fine_tuning(model, trained), masks_of(model)):
                pass
            found[f"{name}, fine-tuned"] = loss(model, held_out) - base

    for density in ("2:4", 0.5, 0.3):
        for method in METHODS:
            pruned = prune(trained.model, method, density, calibration)  # type: ignore[arg-type]
            add(f"{density} {method}", pruned, tuned=f"{density} {method}" in TUNED)
    gradual = copy.deepcopy(trained.model)
    for _ in prune_while_training(gradual, fine_tuning(gradual, trained), cubic, every=5):
        pass
    add(f"{cubic(STEPS)} magnitude, on a cubic schedule", gradual)
    layers = layer_importance(trained.model, calibration)
    for name, smaller in {
        "none": prune_layers(trained.model, layers, CONFIG.n_layers),
        "1 of 4 heads": prune_heads(trained.model, head_importance(trained.model, calibration), 3),
        "1/2 of channels": prune_channels(trained.model, channel_importance(trained.model, calibration), 128),
        "1 of 4 layers": prune_layers(trained.model, layers, 3),
    }.items():
        add(name, smaller, tuned=True)
    found["1 of 4 layers, the best by trial"] = min(
        loss(prune_layers(trained.model, 1 - torch.eye(4)[layer], 3), held_out) - base for layer in range(4)
    )
    return found


def fine_tuning(model: Transformer, trained: Trained) -> Iterator[tuple[int, float]]:
    """Train a model in place on `STEPS` batches of its grammar's training text."""
    tokens = trained.grammar.sample(STEPS * BATCH * CONTEXT + 2 * CONTEXT, seed=TRAINING)
    return training.train(model, tokens, batch_size=BATCH, seq_len=CONTEXT, steps=STEPS, lr=PEAK_LR, seed=0)


def cubic(step: int) -> float:
    """Density of pruning during the fine-tuning: 0.3 after half of it."""
    return cubic_schedule(step, start=0, end=STEPS // 2, density=0.3)


def ratio(losses: Losses) -> Losses:
    """What `GOALS` asks of one seed's increases."""
    (name,) = GOALS
    return {name: losses[SPARSEGPT] / losses[MAGNITUDE]}


def loss_table(columns: list[Losses]) -> Table:
    """Mean and spread of each increase over the seeds."""
    table = Table("", "mean", "smallest", "largest", title=f"loss increase in nats over {len(columns)} seeds")
    for name in columns[0]:
        values = [column[name] for column in columns]
        table.add_row(name, *(f"{value:.4f}" for value in (mean(values), min(values), max(values))))
    return table


def main() -> int:
    """Exit status: 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("--rounds", type=int, default=5, help="timings of each sparse product")
    parser.add_argument("--record", action="store_true", help=HELP)
    args = parser.parse_args()
    torch.set_num_threads(1)
    console = Console(width=140)
    products, break_even = break_even_table(measure_cpu(), args.rounds)
    console.print(products, gpu_lines())
    columns = [increases(load_trained(seed)) for seed in SEEDS]
    console.print(loss_table(columns))
    if args.record:
        save_tables(columns, break_even)
    average = {name: mean(column[name] for column in columns) for name in columns[0]}
    judged = {f"seed {seed}": ratio(column) for seed, column in zip(SEEDS, columns, strict=True)}
    title = f"pruning; Wanda 2:4 has {average[WANDA] / average[MAGNITUDE]:.2f} of magnitude's loss increase"
    return conclude("pruning", title, GOALS, judged | {"mean": ratio(average)}, record=args.record)


def save_tables(columns: list[Losses], break_even: dict[str, dict[str, float]]) -> None:
    """Record the figures of both tables; the samples are SparseGPT's 2:4 increases, one for each seed."""
    losses: dict[str, Any] = {name: [round(column[name], 4) for column in columns] for name in columns[0]}
    new_record(
        "pruning-losses",
        "loss increase of SparseGPT 2:4 on five grammars; of all methods, and break-even densities, in the parameters",
        [column[SPARSEGPT] for column in columns],
        unit="nats",
        better="lower",
        command="python -m tests.bench.pruning --record",
        seed=0,
        parameters={"losses": losses, "break-even densities": break_even},
    ).save(BOOK_RECORDS)


if __name__ == "__main__":
    sys.exit(main())
