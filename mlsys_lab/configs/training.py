"""Hyperparameters of a training run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TrainConfig:
    """Hyperparameters of a run, as in `mlsys_lab.models.training.train`.

    `batch_size` sequences of `seq_len` tokens per step, `steps` steps, peak learning rate `lr`, `seed` of the data
    order.
    """

    batch_size: int
    seq_len: int
    steps: int
    lr: float
    seed: int = 0
