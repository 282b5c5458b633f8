"""The law that the oracles of lab 06 know, its fit to runs, and what it allocates to size and tokens (task 5).

Oracles: bisection on the slopes of loss and cost; for a fit BFGS from the truth.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy.optimize import minimize

from mlsys_checks.sandboxed import scaling_laws as calls
from mlsys_checks.sandboxed.spec import Arrays, Case, Check
from mlsys_checks.trusted.compare import close
from mlsys_checks.trusted.describe import describe_calls, write_columns, write_exact

DELTA = 1e-3
"""Where Huber's loss turns from a square into a line, in the log of the loss."""


@dataclass(frozen=True)
class Truth:
    """L = E + A/N^alpha + B/D^beta."""

    E: float
    A: float
    B: float
    alpha: float
    beta: float

    def loss(self, n_params: np.ndarray | float, tokens: np.ndarray | float) -> np.ndarray:
        """Loss in nats a token, elementwise."""
        return self.E + self.A / np.power(n_params, self.alpha) + self.B / np.power(tokens, self.beta)

    def best_size(self, flops: float) -> float:
        """The N of least loss at 6ND = flops: where the loss stops falling with ln N."""
        return bisect(
            lambda n: self.beta * self.B * (6 * n / flops) ** self.beta - self.alpha * self.A * n**-self.alpha,
            1.0,
            flops / 6,
        )

    def least_loss(self, flops: float) -> float:
        """The loss of the best model for a budget."""
        n = self.best_size(flops)
        return float(self.loss(n, flops / 6 / n))

    def arrays(self) -> dict[str, np.ndarray]:
        """The law's constants as arrays without axes, by name."""
        return {name: np.array(constant) for name, constant in vars(self).items()}

    @classmethod
    def draw(cls, rng: np.random.Generator, *, tokens_per_param: tuple[float, float] = (5, 80)) -> Truth:
        """A law by chance, with so many tokens a parameter optimal at 1e20 FLOPs, the two exponents apart."""
        alpha = rng.uniform(0.28, 0.42)
        beta = alpha * np.exp(rng.choice((-1, 1)) * rng.uniform(0.1, 0.4))
        ratio = np.exp(rng.uniform(*np.log(tokens_per_param)))
        n = (1e20 / (6 * ratio)) ** 0.5
        by_size = rng.uniform(0.35, 0.6)
        return cls(
            E=float(rng.uniform(1.5, 2.0)),
            A=float(by_size * n**alpha),
            B=float(by_size * alpha / beta * (n * ratio) ** beta),
            alpha=float(alpha),
            beta=float(beta),
        )


def truth_of(arrays: dict[str, np.ndarray], prefix: str = "") -> Truth:
    """The law whose constants are among some arrays."""
    return Truth(*(float(arrays[f"{prefix}{name}"]) for name in calls.LAW))


def bisect(rises: Callable[[float], float], low: float, high: float) -> float:
    """The positive place where a rising function passes zero, to the last bits, by halving ln x."""
    for _ in range(200):
        middle = (low * high) ** 0.5
        if not low < middle < high:
            break
        low, high = (low, middle) if rises(middle) > 0 else (middle, high)
    return low


def residuals(law: Truth, n_params: np.ndarray, tokens: np.ndarray, loss: np.ndarray) -> np.ndarray:
    """ln(law's loss / loss) of each run, (R,)."""
    return np.asarray(np.log(law.loss(n_params, tokens) / loss))


def huber(r: np.ndarray, delta: float = DELTA) -> float:
    """The sum of Huber's losses of some residuals."""
    size = np.abs(r)
    return float(np.where(size <= delta, r**2 / 2, delta * (size - delta / 2)).sum())


def refit(start: Truth, n_params: np.ndarray, tokens: np.ndarray, loss: np.ndarray) -> Truth:
    """The law of least Huber loss near `start`, by BFGS over E, both terms at the middle of the data, and exponents.

    Those terms, in place of A and B, hardly depend on the exponents.
    """
    (mean_n, off_n), (mean_d, off_d) = ((x.mean(), x - x.mean()) for x in (np.log(n_params), np.log(tokens)))

    def law_at(x: np.ndarray) -> Truth:
        e, a, b, alpha, beta = x
        return Truth(np.exp(e), np.exp(a + alpha * mean_n), np.exp(b + beta * mean_d), alpha, beta)

    def scaled(x: np.ndarray) -> tuple[float, np.ndarray]:
        """The objective over delta, and its slopes (5,)."""
        with np.errstate(over="ignore", invalid="ignore"):
            law = law_at(x)
            r = residuals(law, n_params, tokens, loss)
            of_n, of_d = law.A * n_params**-law.alpha, law.B * tokens**-law.beta
            slopes = np.stack([np.full_like(of_n, law.E), of_n, of_d, -of_n * off_n, -of_d * off_d])  # (5, R)
            return huber(r) / DELTA, slopes / law.loss(n_params, tokens) @ np.clip(r / DELTA, -1, 1)

    terms = np.log([start.E, start.A, start.B]) - [0, start.alpha * mean_n, start.beta * mean_d]
    x = np.append(terms, [start.alpha, start.beta])
    for _ in range(3):  # a fresh guess of the curvature each time
        found = minimize(scaled, x, jac=True, method="BFGS", options={"gtol": 1e-9})
        x = found.x if found.fun < scaled(x)[0] else x
    return law_at(x)


# --- compute_optimal and serving_optimal ----------------------------------------------------------------------------


def _budgets(rng: np.random.Generator, case: Case) -> Arrays:
    law = Truth.draw(rng, tokens_per_param=case.params["ratio"])
    low, high = case.params["decades"]  # among the budgets, and two more between them
    return law.arrays() | {"flops": 10 ** np.array([low, *rng.uniform(low, high, 2), high])}


def _compute_expect(arrays: Arrays) -> Arrays:
    law = truth_of(arrays)
    n_params = np.array([law.best_size(flops) for flops in arrays["flops"].tolist()])
    return {"n_params": n_params, "tokens": arrays["flops"] / (6 * n_params)}


def _losses(rng: np.random.Generator, case: Case) -> Arrays:
    law, served = Truth.draw(rng), np.array(case.params["served"])
    decades = case.params.get("decades", rng.uniform(21, 25, len(served)))
    loss = [law.least_loss(10**decade) for decade in decades]
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


def write_inputs(arrays: Arrays) -> list[str]:
    """Lines of code that make a case's law and its columns."""
    constants = ", ".join(f"{name}={write_exact(arrays[name].item())}" for name in calls.LAW)
    return [f"law = ChinchillaLaw({constants})", *write_columns(arrays)]


CHECKS = (
    Check(
        name="compute_optimal",
        title="The best model for a budget",
        points=6,
        cases=(
            Case("around Chinchilla's budget", {"decades": (22, 25), "ratio": (10, 40)}),
            Case("a law that wants large models", {"decades": (12, 28), "ratio": (0.2, 0.7)}),
            Case("a law that wants many tokens", {"decades": (16, 28), "ratio": (2000, 6000)}, hidden=True),
        ),
        inputs=_budgets,
        run=calls.compute_optimal,
        expect=_compute_expect,
        compare=partial(close, scale=1e3),  # a minimum found by search is known to half of the digits
        first_hint="With C fixed, D follows from N: how does each of the two terms change as N grows?",
        hint="Put D = C/(6N) into the law and set the derivative by N to zero: two terms are left, which balance, and "
        "N is all that they hold. At the optimum 6ND is the whole budget.",
        uses=("ChinchillaLaw", "compute_optimal"),
        describe=describe_calls("[compute_optimal(law, one) for one in flops]", given=write_inputs),
    ),
    Check(
        name="serving_optimal",
        title="The cheapest model that reaches a loss and serves",
        points=7,
        cases=(
            Case("nothing to serve", {"served": (0.0, 0.0)}),
            Case("as much as it was trained on, and more", {"served": (1e11, 1e13, 1e15), "decades": (24, 23, 21)}),
            Case("a loss of tiny models, one of gigantic ones", {"served": (1e9, 1e14), "decades": (14, 29)}),
            # Not beyond: D is then so near to endless that a search's default tolerance in ln N shows in it.
            Case("hardly anything, and very much", {"served": (1e6, 3e15)}, hidden=True),
        ),
        inputs=_losses,
        run=calls.inference_optimal,
        expect=_serving_expect,
        compare=partial(close, scale=1e5),  # likewise, and D follows from N near where it becomes endless
        first_hint="Fix a size: how many tokens does the loss take then, and what do training and serving cost "
        "together?",
        hint="For each N the loss fixes D: solve the law for it. Then search ln N for the least 6ND + 2N·served. Below "
        "some N no D reaches the loss, and what you solved for is the power of a negative number: search above it.",
        uses=("ChinchillaLaw", "inference_optimal"),
        describe=describe_calls(
            "[inference_optimal(law, one, tokens) for one, tokens in zip(loss, served)]", given=write_inputs
        ),
    ),
)
