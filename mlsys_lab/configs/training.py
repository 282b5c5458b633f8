"""Hyperparameters of a training run."""

from __future__ import annotations

from dataclasses import dataclass

from mlsys_lab.validation import require_integer, require_positive_number


@dataclass(frozen=True)
class TrainConfig:
    """Hyperparameters of a run, as in `mlsys_lab.models.training.train`.

    `batch_size` sequences of `seq_len` tokens per step, `steps` steps, peak learning rate `lr`, `seed` of the data
    order. Raises InputError for sizes below one, a rate that is not positive, and a negative seed.
    """

    batch_size: int
    seq_len: int
    steps: int
    lr: float
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("batch_size", "seq_len", "steps"):
            require_integer(name, getattr(self, name))
        require_positive_number("lr", self.lr)
        require_integer("seed", self.seed, at_least=0)
