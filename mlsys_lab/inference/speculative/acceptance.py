"""Which drafted tokens may stay, so that texts are distributed as if the model had written each token alone.

Dimension letters: ... any leading axes, k drafted tokens, V vocabulary.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F

from mlsys_lab.inference.generate import draw


def accept(
    drafts: torch.Tensor, proposed: torch.Tensor, wanted: torch.Tensor, uniforms: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Accept drafted tokens, as far as they may stay, and choose the one that follows them.

    Leviathan et al. 2023 (arXiv:2211.17192), algorithm 1; Chen et al. 2023 (arXiv:2302.01318), theorem 1. `drafts`
    (..., k) were drawn from `proposed` (..., k, V); `wanted` (..., k + 1, V) is the model's own distribution at each of
    their places and after the last; `uniforms` (..., k + 1) are numbers in [0, 1). A draft stays with probability
    min(1, wanted/proposed), and the first that does not ends them. In its place comes a draw from what `wanted` has
    beyond `proposed`; where all stay, a draw from the last distribution: the bonus token. Returns how many stay, (...),
    and the token after them, (...), both int64.
    """
    k = drafts.shape[-1]
    of_draft = drafts[..., None]
    chance = wanted[..., :k, :].gather(-1, of_draft)[..., 0]  # (..., k)
    stays = uniforms[..., :k] * proposed.gather(-1, of_draft)[..., 0] < chance
    accepted = stays.long().cumprod(-1).sum(-1)  # (...)
    # After the last draft nothing was proposed, so that all of `wanted` is beyond it.
    beyond = (wanted - F.pad(proposed, (0, 0, 0, 1))).clamp(min=0)  # (..., k + 1, V)
    place = accepted[..., None, None].expand(*accepted.shape, 1, wanted.shape[-1])
    residual = beyond.gather(-2, place)[..., 0, :]  # (..., V)
    # Two distributions that differ by rounding alone can have a rejection and nothing beyond.
    residual = torch.where(residual.sum(-1, keepdim=True) > 0, residual, wanted.gather(-2, place)[..., 0, :])
    return accepted, draw(residual, uniforms[..., k])
