"""Task 5: allocation. Oracle: bisection on the slopes of the loss and of the cost."""

from __future__ import annotations

from functools import partial

import numpy as np

from mlsys_lab.checks.deciding.compare import close
from mlsys_lab.checks.deciding.scaling_laws.oracle import Truth, bisect, truth_of
from mlsys_lab.checks.deciding.scaling_laws.words import describe_calls
from mlsys_lab.checks.learner import scaling_laws as calls
from mlsys_lab.checks.learner.spec import Arrays, Case, Check


def _budgets(rng: np.random.Generator, case: Case) -> Arrays:
    law = Truth.draw(rng, tokens_per_param=case.params["ratio"])
    low, high = case.params["decades"]
    return law.arrays() | {"flops": 10 ** rng.uniform(low, high, 4)}


def _compute_expect(arrays: Arrays) -> Arrays:
    law = truth_of(arrays)
    n_params = np.array([law.best_size(flops) for flops in arrays["flops"].tolist()])
    return {"n_params": n_params, "tokens": arrays["flops"] / (6 * n_params)}


def _losses(rng: np.random.Generator, case: Case) -> Arrays:
    law, served = Truth.draw(rng), np.array(case.params["served"])
    loss = [law.least_loss(10 ** rng.uniform(21, 25)) for _ in served]
    return law.arrays() | {"loss": np.array(loss), "served": served * rng.uniform(0.5, 2, len(served))}


def cheapest(law: Truth, loss: float, served: float) -> tuple[float, float]:
    """N and D of least 6ND + 2N·served at a loss: where the cost stops falling with N."""
    least = (law.A / (loss - law.E)) ** (1 / law.alpha)

    def tokens(n: float) -> float:
        return float((law.B / (loss - law.E - law.A * n**-law.alpha)) ** (1 / law.beta))

    def slope(n: float) -> float:
        """d cost / dN. D falls with N: dD/dN = −D/β · αA N^(−α−1) / (loss − E − A N^−α)."""
        left = loss - law.E - law.A * n**-law.alpha
        if left <= 0:
            return -np.inf
        return float(6 * tokens(n) * (1 - law.alpha * law.A * n**-law.alpha / (law.beta * left)) + 2 * served)

    n = bisect(slope, least, least * 1e6)
    return n, tokens(n)


def _serving_expect(arrays: Arrays) -> Arrays:
    law = truth_of(arrays)
    pairs = zip(arrays["loss"].tolist(), arrays["served"].tolist(), strict=True)
    n_params, tokens = np.array([cheapest(law, loss, served) for loss, served in pairs]).T
    return {"n_params": n_params, "tokens": tokens}


CHECKS = (
    Check(
        name="compute_optimal",
        title="The best model for a budget",
        points=6,
        cases=(
            Case("around Chinchilla's budget", {"decades": (22, 25), "ratio": (10, 40)}),
            Case("a law that wants large models", {"decades": (18, 26), "ratio": (1, 5)}),
            Case("a law that wants many tokens", {"decades": (16, 28), "ratio": (100, 1000)}, hidden=True),
        ),
        inputs=_budgets,
        run=calls.compute_optimal,
        expect=_compute_expect,
        compare=partial(close, scale=1e3),  # a minimum found by search is known to half of the digits
        hint="Put D = C/(6N) into the law and set the derivative by N to zero: αA/Nᵅ = βB/Dᵝ. At the optimum 6ND is "
        "the whole budget.",
        uses=("Law", "compute_optimal"),
        describe=describe_calls("for one in flops: compute_optimal(law, one)"),
    ),
    Check(
        name="serving_optimal",
        title="The cheapest model that reaches a loss and serves",
        points=7,
        cases=(
            Case("nothing to serve", {"served": (0.0, 0.0)}),
            Case("as much as it was trained on, and more", {"served": (1e11, 1e13, 1e15)}),
            # Not beyond: D is then so near to endless that a search's default tolerance in ln N shows in it.
            Case("hardly anything, and very much", {"served": (1e6, 3e15)}, hidden=True),
        ),
        inputs=_losses,
        run=calls.serving_optimal,
        expect=_serving_expect,
        compare=partial(close, scale=1e5),  # likewise, and D follows from N near where it becomes endless
        hint="For each N the loss fixes D: D = (B / (loss − E − A/Nᵅ))^(1/β). Search ln N for the least 6ND + "
        "2N·served, above the smallest N that reaches the loss at all, (A/(loss − E))^(1/α): below it the bracket is "
        "negative and its power a complex number.",
        uses=("Law", "serving_optimal"),
        describe=describe_calls("for one, tokens in zip(loss, served): serving_optimal(law, one, tokens)"),
    ),
)
