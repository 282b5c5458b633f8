"""How to spend FLOPs: on parameters or on tokens, and on training or on inference.

A token trained on costs 6N FLOPs, a token served 2N (a multiply-add is two).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mlsys_lab.errors import InputError
from mlsys_lab.scaling.laws import FLOPS_PER_PARAMETER_TOKEN, Law, positive_array

INFERENCE_FLOPS_PER_PARAMETER_TOKEN = 2


@dataclass(frozen=True)
class Allocation:
    """A model of N parameters trained on D tokens to a loss, and the tokens that it will serve in its life."""

    n_params: float
    tokens: float
    loss: float
    inference_tokens: float = 0.0

    @property
    def training_flops(self) -> float:
        """FLOPs of training, 6ND."""
        return FLOPS_PER_PARAMETER_TOKEN * self.n_params * self.tokens

    @property
    def inference_flops(self) -> float:
        """FLOPs of inference: 2N for each token served."""
        return INFERENCE_FLOPS_PER_PARAMETER_TOKEN * self.n_params * self.inference_tokens

    @property
    def total_flops(self) -> float:
        """FLOPs of training and inference together."""
        return self.training_flops + self.inference_flops

    @property
    def tokens_per_param(self) -> float:
        """Training tokens for each parameter, D / N."""
        return self.tokens / self.n_params


def compute_optimal(law: Law, flops: float) -> Allocation:
    """The split of C = 6ND training FLOPs with the least loss, in closed form (Hoffmann et al. 2022, equation 4)."""
    frontier = law.frontier()
    n_params, tokens = float(frontier.params(flops)), float(frontier.tokens(flops))
    return Allocation(n_params, tokens, float(law.loss(n_params, tokens)))


def reach_loss(law: Law, loss: float, n_params: float, inference_tokens: float = 0.0) -> Allocation:
    """Allocation of a model of `n_params` parameters trained until it reaches the loss; InputError if it never does."""
    size = float(positive_array("parameters", n_params))
    tokens = float(law.tokens_for_loss(loss, size))
    if not np.isfinite(tokens):
        least = float(law.params_for_loss(loss))
        raise InputError(
            f"{size:.3g} parameters never reach a loss of {loss:g}", expected=f"more than {least:.3g} parameters"
        )
    return Allocation(size, tokens, loss, _require_not_negative(inference_tokens))


def inference_optimal(law: Law, loss: float, inference_tokens: float, *, inference_price: float = 1.0) -> Allocation:
    """Cheapest allocation that reaches the loss, by 6ND + price · 2N·D_inf (Sardana et al. 2024, equation 2).

    arXiv:2401.00448. `inference_price` is what an inference FLOP costs over a training FLOP, for example the ratio of
    the two utilisations (their section 4). With no inference this is the compute-optimal model of that loss.

    Let u = A/N^alpha and r = terms(loss), so that B/D^beta = r - u. Where the total cost is least,
    6D·(alpha·u / (beta·(r - u)) - 1) = price · 2·D_inf: the left side rises with u from 0 at the compute-optimal
    share to endless at u = r, which is bisected in log scale to the last bit.
    """
    A, B, alpha, beta = law.coefficients
    served = _require_not_negative(inference_tokens)
    if not (inference_price >= 0 and np.isfinite(inference_price)):
        raise InputError("inference_price must not be negative", got=inference_price)
    terms = float(law.terms(loss))
    demand = inference_price * INFERENCE_FLOPS_PER_PARAMETER_TOKEN * served / FLOPS_PER_PARAMETER_TOKEN

    def surplus(data_share: float) -> float:
        """Left side of the equation less the right, which rises as the share (r - u)/r of the data term falls."""
        tokens: float = (B / (terms * data_share)) ** (1 / beta)
        return tokens * (alpha * (1 - data_share) / (beta * data_share) - 1) - demand

    high = alpha / (alpha + beta)
    low = high
    while surplus(low) < 0:
        low /= 2
    for _ in range(200):
        middle = float(np.sqrt(low * high))
        if not low < middle < high:
            break
        low, high = (middle, high) if surplus(middle) >= 0 else (low, middle)
    n_params = float((A / (terms * (1 - high))) ** (1 / alpha))
    return Allocation(n_params, float((B / (terms * high)) ** (1 / beta)), loss, served)


def _require_not_negative(inference_tokens: float) -> float:
    if not (inference_tokens >= 0 and np.isfinite(inference_tokens)):
        raise InputError("tokens served must not be negative", got=inference_tokens)
    return float(inference_tokens)
