"""The judge's own simulated cluster: a hidden law, noise, failures, and a learning rate that matters.

Its truth never enters the process of a submission: a case holds it in arrays whose names begin with an underscore, and
only what an experimenter would see, the losses of runs, is sent. It behaves like `ExperimentService`, which notebooks
talk to, and draws its worlds so that no fixed rule, such as 20 tokens a parameter, is right in all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mlsys_lab.checks.deciding.scaling_laws.oracle import Truth, truth_of
from mlsys_lab.checks.learner.spec import Arrays

NOISE = 0.005
"""Standard deviation of the log of a run's loss above the floor."""
FAILURES = 0.05
"""The chance that a run is lost."""
LARGE, LONG = (4.0, 9.0), (45.0, 100.0)
"""Tokens a parameter that are optimal at 1e20 FLOPs: worlds that want large models, and worlds that want long runs."""


@dataclass(frozen=True)
class Cluster:
    """A law; the best learning rate, a power law of N; and what it costs to miss that."""

    law: Truth
    rate: float
    rate_exponent: float
    sensitivity: float
    divergence: float

    @classmethod
    def draw(cls, rng: np.random.Generator, tokens_per_param: tuple[float, float]) -> Cluster:
        """A world by chance. `rate` is the best one at 100 million parameters."""
        law = Truth.draw(rng, tokens_per_param=tokens_per_param)
        rate, exponent = rng.uniform(6e-4, 1.6e-3), -rng.uniform(0.15, 0.35)
        return cls(law, rate, exponent, sensitivity=rng.uniform(0.03, 0.06), divergence=rng.uniform(5, 10))

    def best_rate(self, n_params: np.ndarray) -> np.ndarray:
        """The best learning rate of each size."""
        return np.asarray(self.rate * (n_params / 1e8) ** self.rate_exponent)

    def losses(self, requests: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """What runs end with, (R,), NaN where they failed or diverged. `requests` (3, R): N, D, learning rate."""
        n_params, tokens, rate = requests
        off = np.log(rate / self.best_rate(n_params))
        above = (self.law.loss(n_params, tokens) - self.law.E) * (1 + self.sensitivity * off**2)
        loss = self.law.E + above * np.exp(NOISE * rng.standard_normal(len(tokens)))
        lost = (rng.uniform(size=len(tokens)) < FAILURES) | (off > np.log(self.divergence))
        return np.where(lost, np.nan, loss)

    def secret(self) -> Arrays:
        """The cluster's constants as arrays that stay with the judge."""
        names = ("rate", "rate_exponent", "sensitivity", "divergence")
        found = self.law.arrays() | {name: np.array(getattr(self, name)) for name in names}
        return {f"_{name}": constant for name, constant in found.items()}


def cluster_of(arrays: Arrays) -> Cluster:
    """The cluster whose secret is among some arrays."""
    rest = (float(arrays[f"_{name}"]) for name in ("rate", "rate_exponent", "sensitivity", "divergence"))
    return Cluster(truth_of(arrays, "_"), *rest)


def scouting(budget_flops: float) -> np.ndarray:
    """The judge's first round, (3, 36): four sizes, nine learning rates each, an eighth of the budget.

    With seven of each, losing three of the largest size's runs misled right solutions once in a thousand draws.
    """
    flops = budget_flops / 8 / 9 * np.array([1, 3, 9, 27]) / 40
    n_params, rate = np.meshgrid(np.sqrt(flops / (6 * 30)), np.geomspace(1e-4, 1e-2, 9), indexing="ij")
    return np.stack([n_params, 30 * n_params, rate]).reshape(3, -1)


def sweeping(cluster: Cluster, left_flops: float, rng: np.random.Generator) -> np.ndarray:
    """The judge's second round, (3, 40): five budgets, eight sizes each, learning rates within a tenth of the best."""
    flops = np.repeat(left_flops / 8 * 3.0 ** np.arange(5) / 121, 8)
    ratio = np.tile(np.geomspace(1.5, 400, 8), 5) * rng.uniform(0.8, 1.25, 40)
    n_params = np.sqrt(flops / (6 * ratio))
    rate = cluster.best_rate(n_params) * np.exp(rng.uniform(-0.1, 0.1, 40))
    return np.stack([n_params, flops / (6 * n_params), rate])
