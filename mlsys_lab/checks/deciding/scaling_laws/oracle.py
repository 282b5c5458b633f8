"""What the oracles of lab 06 share: a law, its optimum by bisection, and Huber's fit by reweighted least squares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, dataclass

import numpy as np
from scipy.optimize import minimize

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

    def flops_for(self, loss: float) -> float:
        """The least budget that reaches a loss above the floor."""
        return bisect(lambda flops: loss - self.least_loss(flops), 1e12, 1e32)

    def arrays(self) -> dict[str, np.ndarray]:
        """The constants by name."""
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
    return Truth(*(float(arrays[f"{prefix}{name}"]) for name in ("E", "A", "B", "alpha", "beta")))


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


def refit(start: Truth, n_params: np.ndarray, tokens: np.ndarray, loss: np.ndarray, steps: int = 200) -> Truth:
    """The law of least Huber loss near `start`: Levenberg–Marquardt on residuals reweighted in each step, then BFGS.

    A residual beyond delta has weight delta/|r|, which makes the weighted square's slope that of Huber's line. Where
    most are beyond it, the reweighting creeps along a valley; BFGS walks to its end.
    """
    log_n, log_d = np.log(n_params), np.log(tokens)

    def law_at(x: np.ndarray) -> Truth:
        """Terms at the middle of the data instead of A and B, which hardly depend on the exponents."""
        e, a, b, alpha, beta = x
        return Truth(np.exp(e), np.exp(a + alpha * log_n.mean()), np.exp(b + beta * log_d.mean()), alpha, beta)

    def slopes_and_weights(x: np.ndarray, r: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Slopes of each residual (5, R), and its weight (R,)."""
        law = law_at(x)
        of_n, of_d = law.A * n_params**-law.alpha, law.B * tokens**-law.beta
        slopes = np.stack(
            [np.full_like(of_n, law.E), of_n, of_d, -of_n * (log_n - log_n.mean()), -of_d * (log_d - log_d.mean())]
        )
        return slopes / law.loss(n_params, tokens), np.minimum(1, DELTA / np.maximum(np.abs(r), 1e-300))

    def scaled(x: np.ndarray) -> tuple[float, np.ndarray]:
        with np.errstate(over="ignore", invalid="ignore"):
            r = residuals(law_at(x), n_params, tokens, loss)
            slopes, weights = slopes_and_weights(x, r)
            return huber(r) / DELTA, (slopes * weights) @ r / DELTA

    x = np.log([start.E, start.A, start.B])
    x = np.append(x - [0, start.alpha * log_n.mean(), start.beta * log_d.mean()], [start.alpha, start.beta])
    r = residuals(law_at(x), n_params, tokens, loss)
    lowest, damping = huber(r), 1e-3
    for _ in range(steps):
        slopes, weights = slopes_and_weights(x, r)
        square = (slopes * weights) @ slopes.T
        step = np.linalg.solve(square + damping * np.diag(np.diag(square) + 1e-30), -(slopes * weights) @ r)
        tried = residuals(law_at(x + np.clip(step, -1, 1)), n_params, tokens, loss)
        if np.all(np.isfinite(tried)) and huber(tried) < lowest:
            gain, lowest = lowest - huber(tried), huber(tried)
            x, r, damping = x + np.clip(step, -1, 1), tried, max(damping / 5, 1e-12)
            if gain <= 1e-9 * lowest:
                break
        else:
            damping *= 4
            if damping > 1e12:
                break
    for _ in range(3):  # a fresh guess of the curvature each time
        found = minimize(scaled, x, jac=True, method="BFGS", options={"gtol": 1e-9})
        x = found.x if found.fun < scaled(x)[0] else x
    return law_at(x)


def constants(law: Truth) -> np.ndarray:
    """E, A, B, alpha, beta as (5,)."""
    return np.array(astuple(law))
