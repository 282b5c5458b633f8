"""Measure the capstone on the solved labs: `python book/measure_stack.py`, about a minute and a half on one core.

A record of a training step goes to book/data/measurements, with what the sheet predicted next to what was measured.
"""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path
from statistics import median

import numpy as np

from book.pretrain import RECORDS
from mlsys_lab.benchmark import Bound, Record, new_record
from mlsys_lab.capstone import Stack, load_stack
from mlsys_lab.capstone.calibration import calibrate
from mlsys_lab.capstone.job import Serving
from mlsys_lab.capstone.measurement import measure
from mlsys_lab.capstone.settings import MODELS
from mlsys_lab.capstone.sheet import COSTS, predict
from mlsys_lab.configs import TrainConfig
from mlsys_lab.models.training import new_model
from mlsys_lab.stack.workspace import Workspace

COMMAND = "python book/measure_stack.py"
MODEL = MODELS["standard"]
TRAIN, RANKS, SERVING = TrainConfig(batch_size=16, seq_len=128, steps=300, lr=3e-3), 4, Serving(128, 65)
SAMPLES = 5


def main() -> None:
    """Write the record, and print what it says."""
    with tempfile.TemporaryDirectory() as folder:
        record = measure_step(load_stack(Workspace.create(Path(folder))))
    record.save(RECORDS)
    print(f"{record.name}: {record.p50:.4g} {record.unit}, {record.parameters}")


def measure_step(stack: Stack) -> Record:
    """Seconds of a training step, and each number of the sheet but the counts: predicted, and median measured."""
    calibration = calibrate(stack, MODEL, TRAIN, RANKS)
    sheet = predict(stack, MODEL, TRAIN, RANKS, calibration, serving=SERVING)
    weights = {name: weight.detach() for name, weight in new_model(MODEL, seed=0).named_parameters()}
    ids = np.random.default_rng(0).integers(0, MODEL.vocab_size, 20_000)
    runs = [measure(stack, MODEL, weights, ids, TRAIN, RANKS, serving=SERVING) for _ in range(SAMPLES)]
    rates = asdict(calibration)
    by_shape = rates.pop("rates").values()
    keys = [key for key, cost in COSTS.items() if cost.kind != "count"]
    bound_s = sheet["training_flops"] / calibration.peak_flops_per_s
    return new_record(
        "capstone-step",
        "training step of the capstone on four ranks that take turns on one core",
        [run["training_step_s"] for run in runs],
        unit="s",
        better="lower",
        command=COMMAND,
        seed=0,
        bound=Bound(bound_s, "its products at the fastest rate of a product"),
        parameters={
            "predicted": {key: sheet[key] for key in keys},
            "measured": {key: median(run[key] for run in runs) for key in keys},
            "calibration": rates | {"slowest_product": min(by_shape), "fastest_product": max(by_shape)},
        },
    )


if __name__ == "__main__":
    main()
