"""Rejection sampling of draft tokens: the output distribution is that of the target model.

Dimension letters: ... any leading axes, k draft tokens, c candidates for one position, V vocabulary.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F

from mlsys_lab.inference.engine.sampler import draw


def accept(
    drafts: torch.Tensor, proposed: torch.Tensor, wanted: torch.Tensor, uniforms: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Accept a prefix of the draft tokens, and sample the token that follows it.

    Leviathan et al. 2023 (arXiv:2211.17192), algorithm 1; Chen et al. 2023 (arXiv:2302.01318), theorem 1. `drafts`
    (..., k) were sampled from `proposed` (..., k, V); `wanted` (..., k + 1, V) is the model's distribution at each of
    their positions and after the last; `uniforms` (..., k + 1) are numbers in [0, 1). A draft is accepted with
    probability min(1, wanted/proposed), up to the first rejection. The rejected draft is replaced by a sample of the
    residual max(0, wanted - proposed); if all are accepted, the last distribution gives a bonus token. Returns the
    number of accepted drafts, (...), and the token after them, (...), both int64.
    """
    k = drafts.shape[-1]
    index = drafts[..., None]
    target = wanted[..., :k, :].gather(-1, index)[..., 0]  # (..., k)
    is_accepted = uniforms[..., :k] * proposed.gather(-1, index)[..., 0] < target
    accepted = is_accepted.long().cumprod(-1).sum(-1)  # (...)
    # After the last draft nothing was proposed, so that the residual is all of `wanted`.
    residuals = (wanted - F.pad(proposed, (0, 0, 0, 1))).clamp(min=0)  # (..., k + 1, V)
    position = accepted[..., None, None].expand(*accepted.shape, 1, wanted.shape[-1])
    residual = residuals.gather(-2, position)[..., 0, :]  # (..., V)
    # Two distributions that differ only by rounding can have a rejection and an empty residual.
    residual = torch.where(residual.sum(-1, keepdim=True) > 0, residual, wanted.gather(-2, position)[..., 0, :])
    return accepted, draw(residual, uniforms[..., k])


def accept_among(
    candidates: torch.Tensor, proposed: torch.Tensor, wanted: torch.Tensor, uniforms: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Accept one of several candidates for one position, or none, and return the token at that position.

    SpecInfer (Miao et al. 2023, arXiv:2305.09781), §4.3. `candidates` (..., c) were sampled one after the other from
    `proposed` (..., c, V), each independently given its own distribution (which may exclude earlier candidates);
    `wanted` (..., V) is the model's distribution; `uniforms` (..., c + 1) are numbers in [0, 1). A candidate is
    accepted like a single draft; after a rejection the next candidate is compared with the residual of `wanted`, and
    after the last one the token is sampled from the residual. So the token is distributed as `wanted`, whatever was
    proposed. Returns the index of the accepted candidate, c for none, and the token, both (...) and int64.
    """
    c, residual = candidates.shape[-1], wanted
    which = torch.full(candidates.shape[:-1], c, device=wanted.device)
    for i in range(c):
        token, p_draft = candidates[..., i, None], proposed[..., i, :]
        is_accepted = uniforms[..., i] * p_draft.gather(-1, token)[..., 0] < residual.gather(-1, token)[..., 0]
        which = torch.where(is_accepted & (which == c), i, which)
        unnormalised = (residual - p_draft).clamp(min=0)
        total = unnormalised.sum(-1, keepdim=True)
        residual = torch.where(total > 0, unnormalised / total.clamp(min=torch.finfo(total.dtype).tiny), residual)
    drawn = draw(residual, uniforms[..., c])
    picked = candidates.gather(-1, which.clamp(max=c - 1)[..., None])[..., 0] if c else drawn
    return which, torch.where(which < c, picked, drawn)
