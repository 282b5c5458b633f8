"""Runs whose law is known."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from mlsys_lab.scaling import ChinchillaLaw, Runs

BUDGETS = np.geomspace(6e18, 3e21, 9)
"""Those of Chinchilla's IsoFLOP profiles, in number and range (Hoffmann et al. 2022, section 3.2)."""
SPREAD = np.geomspace(1 / 8, 8, 11)
"""Sizes tried at each budget, over the best one."""

Experiment = Callable[..., Runs]


@pytest.fixture(scope="session")
def experiment() -> Experiment:
    """`experiment(law, noise, seed)`: 9 budgets of 11 sizes, noise of this deviation on the log of the loss."""

    def run(law: ChinchillaLaw, noise: float = 0.0, seed: int = 0, repeats: int = 1) -> Runs:
        rng = np.random.default_rng(seed)
        n_params = np.tile((law.frontier().params(BUDGETS)[:, None] * SPREAD).ravel(), repeats)  # (R,)
        tokens = np.tile(np.repeat(BUDGETS, len(SPREAD)), repeats) / (6 * n_params)
        return Runs(n_params, tokens, law.loss(n_params, tokens) * np.exp(rng.normal(0, noise, len(n_params))))

    return run
