"""Speculative decoding (2023): tokens that a step of the learner's `speculative_step` gains, against equation 1.

Dimension letters: V vocabulary, γ draft tokens of a step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch

from mlsys_lab.capstone.milestones.milestone import Figure, Milestone
from mlsys_lab.capstone.stack import Stack
from mlsys_lab.configs import TransformerConfig
from mlsys_lab.models import Transformer

CASES = ((0.2, 3, 1.25), (0.8, 5, 3.69))
"""Acceptance rate α, γ, and tokens a step: section 3.6 (a bigram drafter), and Table 1 (drafts at no cost)."""
STEPS, LENGTH = 400, 24
ROUNDING = 0.005
BOS, NEVER = 1, 0
"""The first token of every sequence, and a token that the model never generates."""


class Target(Transformer):
    """A small random model in float64 that never generates the token NEVER."""

    def __init__(self, seed: int) -> None:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(seed)
            super().__init__(
                TransformerConfig(
                    "target",
                    n_layers=1,
                    d_model=16,
                    n_heads=2,
                    head_dim=8,
                    d_ff=16,
                    vocab_size=12,
                    context=2 * LENGTH,
                )
            )
            self.double().eval()
            for weight in self.parameters():
                if weight.ndim == 2:
                    weight.normal_(std=0.5)

    def forward(self, tokens: torch.Tensor, **how: Any) -> torch.Tensor:
        """Logits as in `Transformer.forward`, minus infinity for NEVER."""
        logits = super().forward(tokens, **how)
        logits[..., NEVER] = -math.inf
        return logits


def draft(
    model: Transformer, token_ids: list[int], alpha: float, gamma: int, rng: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw γ drafts from q = α·p + (1 - α)·δ, p the model's own and δ all on NEVER; drafts (γ,) and rows q (γ, V).

    Σ min(p, q) = α at every position: each draft is accepted with probability α, whatever came before.
    """
    tokens, rows = list(token_ids), []
    for _ in range(gamma):
        if tokens[-1] != NEVER:  # no draft after NEVER is reached: the last q will do
            q = alpha * model(torch.tensor([tokens]))[0, -1].softmax(-1)
            q[NEVER] += 1 - alpha
        rows.append(q)
        tokens.append(int(torch.multinomial(q, 1, generator=rng)))
        if NEVER in tokens:
            tokens[-1] = NEVER
    return torch.tensor(tokens[len(token_ids) :]), torch.stack(rows)


def count_tokens(cache_layer: Any, alpha: float, gamma: int, steps: int, seed: int) -> tuple[float, int]:
    """Mean tokens of a step, and how often the output has the token that the model never generates."""
    model, rng = Target(seed), torch.Generator().manual_seed(seed)
    cache = cache_layer.Contiguous(model, sequences=1, capacity=2 * LENGTH)
    sequence, token_ids, num_tokens, impossible = cache.start(), [BOS], 0, 0
    with torch.no_grad():
        for _ in range(steps):
            if len(token_ids) > LENGTH:
                cache.drop(sequence)
                sequence, token_ids = cache.start(), [BOS]
            drafts, proposed = draft(model, token_ids, alpha, gamma, rng)
            uniforms = torch.rand(gamma + 1, dtype=torch.float64, generator=rng)
            new = cache_layer.speculative_step(model, cache, sequence, token_ids, drafts, proposed, uniforms)
            token_ids = [*token_ids, *new]
            num_tokens += len(new)
            impossible += new.count(NEVER)
    return num_tokens / steps, impossible


def deviation(alpha: float, gamma: int) -> float:
    """Standard deviation of a step's tokens: a geometric variable with success probability 1 - α, capped at γ + 1."""
    chances = [alpha**k * (1 - alpha) for k in range(gamma)] + [alpha**gamma]
    mean = sum(chance * (k + 1) for k, chance in enumerate(chances))
    return math.sqrt(sum(chance * (k + 1 - mean) ** 2 for k, chance in enumerate(chances)))


def _figures(stack: Stack) -> Iterator[Figure]:
    for alpha, gamma, published in CASES:
        mean, impossible = count_tokens(stack.cache, alpha, gamma, STEPS, seed=gamma)
        error = 4 * deviation(alpha, gamma) / math.sqrt(STEPS) + ROUNDING
        reason = f"4 standard errors of {STEPS} steps, and the rounding of the printed number"
        case = f"α = {alpha}, γ = {gamma}"
        yield from (
            Figure(f"{case}: tokens a step", published, mean, error, reason),
            Figure.check(f"{case}: tokens that the model never generates", 0, impossible, "their probability is 0"),
        )


SPECULATIVE_DECODING = Milestone(
    "speculative-decoding",
    2023,
    "A step gains (1 - α^(γ+1)) / (1 - α) tokens: 1.25 for α = 0.2 and γ = 3, 3.69 for α = 0.8 and γ = 5",
    "Leviathan, Kalman & Matias, arXiv:2211.17192, equation 1, section 3.6 and Table 1",
    {"cache": ("Contiguous", "speculative_step")},
    "The experiment on tokens a step, with drafts that are accepted with probability α by construction. The paper's "
    "speed-ups on T5-XXL are not reproduced; at no cost of drafting (c = 0) the speed-up is this number.",
    _figures,
)
