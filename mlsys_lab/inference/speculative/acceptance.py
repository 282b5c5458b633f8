"""Which drafted tokens may stay, so that texts are distributed as if the model had written each token alone.

Dimension letters: ... any leading axes, k drafted tokens, c candidates for one place, V vocabulary.
"""

from __future__ import annotations

import torch
from torch.nn import functional as F

from mlsys_lab.inference.engine.sampler import draw


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


def accept_among(
    candidates: torch.Tensor, proposed: torch.Tensor, wanted: torch.Tensor, uniforms: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Accept one of several candidates for one place, or none, and choose the token that stands there.

    SpecInfer (Miao et al. 2023, arXiv:2305.09781), §4.3. `candidates` (..., c) were drawn one after the other from
    `proposed` (..., c, V), each independently of the others but for what is said in its own distribution (without
    replacement, say); `wanted` (..., V) is the model's own; `uniforms` (..., c + 1) are numbers in [0, 1). A candidate
    is accepted as a single draft would be; if it is not, the next is held against what `wanted` has beyond it, and
    after the last comes a draw from what is left. So the token is distributed as `wanted`, whatever was proposed.
    Returns the number of the accepted candidate, c for none, and the token, both (...) and int64.
    """
    c, residual = candidates.shape[-1], wanted
    which = torch.full(candidates.shape[:-1], c, device=wanted.device)
    for i in range(c):
        token, chance = candidates[..., i, None], proposed[..., i, :]
        stays = uniforms[..., i] * chance.gather(-1, token)[..., 0] < residual.gather(-1, token)[..., 0]
        which = torch.where(stays & (which == c), i, which)
        beyond = (residual - chance).clamp(min=0)
        total = beyond.sum(-1, keepdim=True)
        residual = torch.where(total > 0, beyond / total.clamp(min=torch.finfo(total.dtype).tiny), residual)
    drawn = draw(residual, uniforms[..., c])
    picked = candidates.gather(-1, which.clamp(max=c - 1)[..., None])[..., 0] if c else drawn
    return which, torch.where(which < c, picked, drawn)
