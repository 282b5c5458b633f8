"""The digits' network in int8 on an emulated Cortex-M4: `python -m tests.bench.embedded [--record]`.

Five seeds, a network each: accuracy in fp32 and int8 on 360 held-out digits, bytes, and instructions for an image, at
three levels of optimization. Exit status 1 if a logit differs from the simulation's, or a goal is missed. Instructions
are those that QEMU executes, not cycles.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from mlsys_lab.benchmark import new_record
from mlsys_lab.efficiency.embedded import generate_c, plan_arena, quantize_network, run_on_board, simulate
from mlsys_lab.efficiency.embedded.digits import Digits, load_digits, train_classifier
from tests.bench.goals import BOOK_RECORDS

SEEDS = range(5)
LEVELS = ("-Os", "-O2", "-O3")
ACCURACY, ARENA_BYTES, FLASH_BYTES = 0.95, 64 * 1024, 128 * 1024
"""Goals: the lowest accuracy in int8, the largest arena and flash."""


def measure(training: Digits, held_out: Digits, seed: int, table: Table) -> tuple[bool, dict[str, Any]]:
    """Add a seed's rows to the table; whether all goals are met, and the figures of the first level."""
    model = train_classifier(training, seed=seed)
    network = quantize_network(model, training.images)
    codes = network.encode(held_out.images.numpy())
    logits, labels = simulate(network, codes), held_out.labels.numpy()
    exact = float((model(held_out.images).argmax(1) == held_out.labels).float().mean())
    accuracy, arena = (logits.argmax(1) == labels).mean(), plan_arena(network).size_bytes
    source, met, first = generate_c(network, codes), True, {}
    for level in LEVELS:
        run = run_on_board(source, level)
        equal = bool((run.logits == logits).all())
        met &= equal and accuracy >= ACCURACY and arena <= ARENA_BYTES and run.flash_bytes <= FLASH_BYTES
        sizes = f"{run.flash_bytes:,}", f"{run.flash_bytes - codes.nbytes:,}", f"{arena:,}", f"{run.stack_bytes}"
        work = f"{network.macs:,}", f"{run.instructions:,.0f}", f"{run.instructions / network.macs:.1f}"
        first = first or {
            "fp32_accuracy": round(exact, 4),
            "int8_accuracy": round(float(accuracy), 4),
            "macs": network.macs,
            "flash_bytes": run.flash_bytes,
            "arena_bytes": arena,
            "instructions": round(run.instructions),
        }
        table.add_row(str(seed), level, f"{exact:.2%}", f"{accuracy:.2%}", "yes" if equal else "NO", *sizes, *work)
    return met, first


def main() -> int:
    """Print the table; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("--record", action="store_true", help="write the figures of the first level to the book")
    args = parser.parse_args()
    torch.set_num_threads(1)
    heads = "seed", "level", "fp32", "int8", "equal", "flash B", "without digits", "arena B", "stack B"
    table = Table(*heads, "MACs", "instructions", "per MAC", title="digits on a Cortex-M4 emulated by QEMU")
    training, held_out = load_digits()
    met, figures = zip(*(measure(training, held_out, seed, table) for seed in SEEDS), strict=True)
    Console(width=140).print(table)
    if args.record:
        record(figures)
    return 0 if all(met) else 1


def record(figures: tuple[dict[str, Any], ...]) -> None:
    """Write each seed's figures for the book."""
    new_record(
        "embedded-digits",
        f"accuracy of the digits' network in int8 on an emulated Cortex-M4, {LEVELS[0]}; all figures in the parameters",
        [one["int8_accuracy"] for one in figures],
        unit="fraction of held-out digits",
        better="higher",
        command="python -m tests.bench.embedded --record",
        seed=0,
        parameters={name: [one[name] for one in figures] for name in figures[0]},
    ).save(BOOK_RECORDS)


if __name__ == "__main__":
    sys.exit(main())
