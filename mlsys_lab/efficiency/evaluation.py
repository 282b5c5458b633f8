"""What compression costs a language model: its loss, and how far its predictions are from the original's.

Dimension letters: W windows, T tokens of a window, V vocabulary.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch.nn import functional as F

from mlsys_lab.errors import InputError
from mlsys_lab.models import Transformer


class Comparison(NamedTuple):
    """Two models on one text: mean losses, and the mean divergence of the second from the first, in nats per token.

    The divergence of a token is KL(p ‖ q) = Σ p (log p - log q) over the vocabulary, p being the original's
    probabilities and q those of the compressed model.
    """

    original_loss: float
    compressed_loss: float
    divergence: float

    @property
    def perplexities(self) -> tuple[float, float]:
        """Perplexity of the original and of the compressed model."""
        return math.exp(self.original_loss), math.exp(self.compressed_loss)


@torch.no_grad()
def compare_models(original: Transformer, compressed: Transformer, windows: torch.Tensor) -> Comparison:
    """Compare models on windows (W, T + 1) of token ids, each without the text before it.

    One window is computed at a time, so that the logits of both need 2 · T · V numbers. InputError without a window.
    """
    if windows.ndim != 2 or not windows.numel():
        raise InputError("nothing to compare models on", got=f"shape {tuple(windows.shape)}", expected="(W, T + 1)")
    sums = torch.zeros(3, dtype=torch.float64)
    for window in windows:
        inputs, targets = window[None, :-1], window[1:]
        log_p, log_q = (model(inputs)[0].float().log_softmax(-1) for model in (original, compressed))  # (T, V)
        divergence = F.kl_div(log_q, log_p, reduction="sum", log_target=True)
        losses = [F.nll_loss(one, targets, reduction="sum") for one in (log_p, log_q)]
        sums += torch.stack([*losses, divergence]).double().cpu()
    return Comparison(*(sums / windows[:, 1:].numel()).tolist())
