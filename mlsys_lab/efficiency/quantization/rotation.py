"""Rotate the residual stream by a Hadamard matrix, which spreads an outlier over all channels.

Ashkboos et al. 2024, QuaRot (arXiv:2404.00456), §4, stage 1a; R₁ of SpinQuant (Liu et al. 2024, arXiv:2405.16406).
Dimension letters: D d_model, O outputs, I inputs.
"""

from __future__ import annotations

import copy
import dataclasses
import math

import torch
from torch import nn

from mlsys_lab.efficiency.quantization.folding import norm_links, readers, writers
from mlsys_lab.errors import InputError
from mlsys_lab.models import Transformer
from mlsys_lab.models.transformer import Block
from mlsys_lab.validation import require_integer


def hadamard(n: int) -> torch.Tensor:
    """A Hadamard matrix of order n: entries ±1, orthogonal rows, (n, n) in float64.

    Sylvester's construction doubles a matrix: from 1 for powers of two, else from Paley's first construction for an
    order q + 1, with a prime q that leaves 3 when divided by 4 (12 and 20, so 12 · 2ᵏ and 20 · 2ᵏ). InputError for an
    order that neither reaches.
    """
    require_integer("order", n)
    core = n & -n  # the largest power of two that divides n
    if core == n:
        return _double(torch.ones(1, 1, dtype=torch.float64), n)
    for order in range(4 * (n // core), n + 1):
        if n % order == 0 and (n // order).bit_count() == 1 and order % 4 == 0 and _is_prime(order - 1):
            return _double(_paley(order - 1), n // order)
    raise InputError("no Hadamard matrix of this order here", got=n, expected="2ᵏ or (q + 1) · 2ᵏ, q prime, q % 4 = 3")


@torch.no_grad()
def rotate(model: Transformer) -> Transformer:
    """A copy of a model that computes the same function, up to rounding, with a rotated residual stream.

    Weights of RMS norms are folded into the linear layers after them; then x · RMS(x)⁻¹ commutes with any rotation Q =
    H/√D. Embeddings and the layers that add to the stream are multiplied by Q, and the layers that read it by Qᵀ. A
    tied head becomes one of its own, because only the head takes the weights of the last norm. InputError for other
    norms than pre-norms of type RMS.
    """
    config = model.config
    if config.norm != "rms" or not config.pre_norms or config.post_norms or config.embedding_norm:
        raise InputError("only RMS pre-norms commute with rotations", got=config.name)
    rotated = copy.deepcopy(model)
    if rotated.head is None:
        rotated.head = nn.Linear(config.d_model, config.vocab_size, bias=False).to(rotated.embedding.weight)
        rotated.head.weight.copy_(rotated.embedding.weight)
        rotated.config = dataclasses.replace(config, tied=False)
    q = hadamard(config.d_model).to(rotated.embedding.weight.device) / config.d_model**0.5  # (D, D)
    _fold_norm(rotated.norm, (rotated.head,))
    _multiply(rotated.head.weight, q)
    for embedding in (rotated.embedding, rotated.positions):
        if embedding is not None:
            _multiply(embedding.weight, q)
    for block in rotated.blocks:
        assert isinstance(block, Block)
        for norm, consumers in norm_links(block):
            _fold_norm(norm, consumers)
        for reader in readers(block):
            _multiply(reader.weight, q)
        for writer in writers(block):
            _multiply(writer.weight.T, q)
            if writer.bias is not None:
                _multiply(writer.bias, q)
    return rotated


def _fold_norm(norm: nn.Module, consumers: tuple[nn.Linear, ...]) -> None:
    """Move a norm's weights (D,) into the linear layers after it, in place."""
    weight = getattr(norm, "weight", None)
    if isinstance(weight, torch.Tensor):
        for consumer in consumers:
            consumer.weight *= weight.to(consumer.weight.dtype)
        weight.fill_(1)


def _multiply(x: torch.Tensor, q: torch.Tensor) -> None:
    """Replace x (..., D) by x · Q, computed in float64."""
    x.copy_(x.double() @ q)


def _double(matrix: torch.Tensor, times: int) -> torch.Tensor:
    """Sylvester's construction: [[H, H], [H, -H]] until the order has grown `times` times, a power of two."""
    while times > 1:
        matrix = torch.cat((torch.cat((matrix, matrix), -1), torch.cat((matrix, -matrix), -1)))
        times //= 2
    return matrix


def _paley(q: int) -> torch.Tensor:
    """Paley's first construction (1933) for a prime q with q % 4 = 3: (q + 1, q + 1) in float64.

    The identity plus a skew-symmetric matrix: a border of ones around χ(i - j), which is 1 for the squares modulo q, -1
    for all other numbers, and 0 on the diagonal.
    """
    character = torch.full((q,), -1.0, dtype=torch.float64)
    character[[number * number % q for number in range(1, q)]] = 1
    character[0] = 0
    numbers = torch.arange(q)
    matrix = torch.eye(q + 1, dtype=torch.float64)
    matrix[1:, 1:] += character[(numbers[:, None] - numbers) % q]
    matrix[0, 1:], matrix[1:, 0] = 1, -1
    return matrix


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % divisor for divisor in range(2, math.isqrt(number) + 1))
