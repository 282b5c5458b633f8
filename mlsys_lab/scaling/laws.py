"""How the loss of a language model falls with parameters and tokens, as published, and what each law implies.

Letters: N parameters, D tokens trained on, C = 6ND training FLOPs (a multiply-add is two), L loss in nats a token.
Every form here is a sum of two power laws under a transformation of the loss, `terms(L) = A/N^alpha + B/D^beta`, so one
derivation of the compute-optimal split serves all of them. What 6ND leaves out (attention, embeddings looked up) is in
`mlsys_lab.flops`. Every function takes numbers or arrays and works elementwise.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mlsys_lab.errors import InputError

FloatArray = NDArray[np.float64]
FLOPS_PER_PARAMETER_TOKEN = 6
"""FLOPs a parameter and token: 2 for the forward pass's multiply-add, 4 for both gradients (Kaplan et al. 2.1)."""
PF_DAY = 1e15 * 86_400
"""FLOPs in a petaflop/s-day, Kaplan's unit of compute."""
GOPHER_FLOPS = 5.76e23
"""Training FLOPs of Gopher and Chinchilla (Hoffmann et al. 2022, table 3)."""


def training_flops(n_params: ArrayLike, tokens: ArrayLike) -> FloatArray:
    """C = 6ND, the FLOPs of training N parameters on D tokens."""
    return FLOPS_PER_PARAMETER_TOKEN * positive_array("parameters", n_params) * positive_array("tokens", tokens)


def positive_array(what: str, amount: ArrayLike, *, endless: bool = False) -> FloatArray:
    """The amount as float64; InputError naming `what` unless all elements are positive and finite (or `endless`)."""
    try:
        array = np.asarray(amount, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{what} must be numbers", got=repr(amount)) from None
    if array.size == 0:
        raise InputError(f"{what} are empty", expected="at least one number")
    wrong = array[~((array > 0) & (endless | np.isfinite(array)))]
    if wrong.size:
        raise InputError(f"{what} must be positive" + " and finite" * (not endless), got=f"{wrong.flat[0]:g}")
    return array


@dataclass(frozen=True)
class PowerLaw:
    """Power law y = coefficient · x^exponent, for x > 0."""

    coefficient: float
    exponent: float

    def __call__(self, x: ArrayLike) -> FloatArray:
        """Value of the law at x > 0; elementwise."""
        return self.coefficient * positive_array("x of a power law", x) ** self.exponent

    def inverse(self, y: ArrayLike) -> FloatArray:
        """The x at which the law has the value y > 0; elementwise."""
        return (positive_array("y of a power law", y) / self.coefficient) ** (1 / self.exponent)

    @classmethod
    def fit(cls, x: ArrayLike, y: ArrayLike) -> PowerLaw:
        """Fit a power law by least squares of log y on log x: arrays (K,), at least two different x.

        >>> PowerLaw.fit([1, 4, 16], [3, 6, 12]).exponent
        0.5
        """
        log_x, log_y = np.log(positive_array("x of a power law", x)), np.log(positive_array("y of a power law", y))
        if log_x.shape != log_y.shape or log_x.ndim != 1:
            raise InputError("x and y of a power law differ in shape", got=f"{log_x.shape} and {log_y.shape}")
        centred = log_x - log_x.mean()
        spread = float(centred @ centred)
        if not spread > 0:
            raise InputError("a power law needs two different x", got=f"{log_x.size} of one value")
        slope = float(centred @ log_y) / spread
        return cls(float(np.exp(log_y.mean() - slope * log_x.mean())), slope)


@dataclass(frozen=True)
class Frontier:
    """Compute-optimal split as two power laws in C: N_opt = k·C^a parameters, D_opt = k'·C^b tokens."""

    params: PowerLaw
    tokens: PowerLaw

    @property
    def a(self) -> float:
        """Exponent of the compute-optimal number of parameters in C."""
        return self.params.exponent

    @property
    def b(self) -> float:
        """Exponent of the compute-optimal number of tokens in C."""
        return self.tokens.exponent

    def tokens_per_param(self, flops: ArrayLike) -> FloatArray:
        """Compute-optimal tokens for each parameter, D_opt / N_opt, at training FLOPs `flops`."""
        return self.tokens(flops) / self.params(flops)

    @classmethod
    def from_params(cls, params: PowerLaw) -> Frontier:
        """Frontier with this power law of parameters, and the tokens that 6ND = C leaves: a + b = 1."""
        return cls(params, PowerLaw(1 / (FLOPS_PER_PARAMETER_TOKEN * params.coefficient), 1 - params.exponent))


@dataclass(frozen=True)
class Law(ABC):
    """A loss law L(N, D) with `terms(L) = A/N^alpha + B/D^beta`; `terms` is increasing and is 0 at the floor."""

    @property
    @abstractmethod
    def coefficients(self) -> tuple[float, float, float, float]:
        """Coefficients and exponents (A, B, alpha, beta) of the two terms, all positive."""

    @property
    @abstractmethod
    def floor(self) -> float:
        """Loss in nats a token with infinitely many parameters and tokens."""

    @abstractmethod
    def _to_terms(self, loss: FloatArray) -> FloatArray: ...

    @abstractmethod
    def _from_terms(self, terms: FloatArray) -> FloatArray: ...

    def terms(self, loss: ArrayLike) -> FloatArray:
        """Sum A/N^alpha + B/D^beta at which the law has this loss; InputError at or below the floor."""
        array = positive_array("loss", loss)
        if not np.all(array > self.floor):
            raise InputError("no model reaches this loss", got=f"{array.min():g}", expected=f"above {self.floor:g}")
        return self._to_terms(array)

    def loss(self, n_params: ArrayLike, tokens: ArrayLike) -> FloatArray:
        """Loss L(N, D) in nats a token; elementwise."""
        A, B, alpha, beta = self.coefficients
        return self._from_terms(
            A * positive_array("parameters", n_params) ** -alpha + B * positive_array("tokens", tokens) ** -beta
        )

    def params_for_loss(self, loss: ArrayLike, tokens: ArrayLike = np.inf) -> FloatArray:
        """Parameters N that reach the loss with D tokens (infinitely many by default); nan where no N does."""
        A, B, alpha, beta = self.coefficients
        left = self.terms(loss) - B * positive_array("tokens", tokens, endless=True) ** -beta
        return (A / np.where(left > 0, left, np.nan)) ** (1 / alpha)

    def tokens_for_loss(self, loss: ArrayLike, n_params: ArrayLike = np.inf) -> FloatArray:
        """Tokens D that bring N parameters (infinitely many by default) to the loss; nan where no D does."""
        A, B, alpha, beta = self.coefficients
        left = self.terms(loss) - A * positive_array("parameters", n_params, endless=True) ** -alpha
        return (B / np.where(left > 0, left, np.nan)) ** (1 / beta)

    def frontier(self) -> Frontier:
        """Compute-optimal split of C = 6ND (Hoffmann et al. 2022, equation 4).

        N_opt = G (C/6)^a and D_opt = (C/6)^b / G, with a = beta/(alpha+beta), b = 1 - a, G = (alpha·A /
        beta·B)^(1/(alpha+beta)).
        """
        A, B, alpha, beta = self.coefficients
        G = (alpha * A / (beta * B)) ** (1 / (alpha + beta))
        a = beta / (alpha + beta)
        return Frontier.from_params(PowerLaw(G * FLOPS_PER_PARAMETER_TOKEN**-a, a))

    def least_flops(self, loss: ArrayLike) -> FloatArray:
        """Least training FLOPs C = 6ND that reach the loss. At the optimum A/N^alpha is the share a of both terms."""
        A, B, alpha, beta = self.coefficients
        terms, a = self.terms(loss), beta / (alpha + beta)
        return training_flops((A / (a * terms)) ** (1 / alpha), (B / ((1 - a) * terms)) ** (1 / beta))


@dataclass(frozen=True)
class ChinchillaLaw(Law):
    """Law L = E + A/N^alpha + B/D^beta, N with embeddings (Hoffmann et al. 2022, arXiv:2203.15556, equation 2)."""

    E: float
    A: float
    B: float
    alpha: float
    beta: float

    def __post_init__(self) -> None:
        _check(self)

    @property
    def coefficients(self) -> tuple[float, float, float, float]:
        """Coefficients and exponents (A, B, alpha, beta) of the two terms."""
        return self.A, self.B, self.alpha, self.beta

    @property
    def floor(self) -> float:
        """The irreducible loss E, the entropy of text, in nats a token."""
        return self.E

    def _to_terms(self, loss: FloatArray) -> FloatArray:
        return loss - self.E

    def _from_terms(self, terms: FloatArray) -> FloatArray:
        return self.E + terms


@dataclass(frozen=True)
class KaplanLaw(Law):
    """Law L = [(N_c/N)^(alpha_N/alpha_D) + D_c/D]^alpha_D, N without embeddings (Kaplan et al. 2020, equation 1.5).

    D is the size of the data set, trained on until the test loss stops falling: the `frontier` of this form answers
    another question than Kaplan's own frontier (`KAPLAN_FRONTIER`), which comes from training curves (section 6).
    """

    N_c: float
    D_c: float
    alpha_N: float
    alpha_D: float

    def __post_init__(self) -> None:
        _check(self)

    @property
    def coefficients(self) -> tuple[float, float, float, float]:
        """Coefficients and exponents of the two terms: (N_c^(alpha_N/alpha_D), D_c, alpha_N/alpha_D, 1)."""
        ratio = self.alpha_N / self.alpha_D
        return self.N_c**ratio, self.D_c, ratio, 1.0

    @property
    def floor(self) -> float:
        """Always 0: Kaplan's form has no irreducible loss."""
        return 0.0

    def _to_terms(self, loss: FloatArray) -> FloatArray:
        return loss ** (1 / self.alpha_D)

    def _from_terms(self, terms: FloatArray) -> FloatArray:
        return terms**self.alpha_D


def _check(law: ChinchillaLaw | KaplanLaw) -> None:
    for name, amount in vars(law).items():
        if not (np.isfinite(amount) and (amount > 0 or (name == "E" and amount == 0))):
            raise InputError(f"{type(law).__name__}.{name} must be positive", got=amount)


HOFFMANN_2022 = ChinchillaLaw(E=1.69, A=406.4, B=410.7, alpha=0.34, beta=0.28)
"""Chinchilla's approach 3 as its equation 10 prints it, rounded: its optimum is not the one that the paper reports."""
BESIROGLU_2024 = ChinchillaLaw(E=1.8172, A=482.01, B=2085.43, alpha=0.3478, beta=0.3658)
"""The refit of Chinchilla's data as read off its figure 4 (Besiroglu et al. 2024, arXiv:2404.10102, table 1)."""
KAPLAN_2020 = KaplanLaw(N_c=6.4e13, D_c=1.8e13, alpha_N=0.076, alpha_D=0.103)
"""Law L(N, D) of Kaplan et al. 2020, arXiv:2001.08361, table 2."""

KAPLAN_PARAMS = PowerLaw(8.8e13**0.076, -0.076)
"""Loss of N non-embedding parameters trained to convergence on enough data (Kaplan et al. 2020, equation 1.1)."""
KAPLAN_TOKENS = PowerLaw(5.4e13**0.095, -0.095)
"""Loss of a large model on a data set of D tokens, stopped early (Kaplan et al. 2020, equation 1.2)."""
KAPLAN_COMPUTE = PowerLaw(3.1e8**0.050, -0.050)
"""Loss by C_min in petaflop/s-days, the compute at a batch far below critical (Kaplan et al. 2020, equation 1.3)."""
KAPLAN_FRONTIER = Frontier(PowerLaw(1.3e9, 0.73), PowerLaw(2e10, 0.27))
"""Optimal N (without embeddings) and D by C_min in petaflop/s-days (Kaplan et al. 2020, appendix A)."""
