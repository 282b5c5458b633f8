"""Features kept from one step to the next: fewer FLOPs, for images that are no longer quite the same.

What the middle blocks of a transformer add changes slowly along a run, so it is worked out at every n-th evaluation and
added as it is at the others (Δ-DiT, arXiv:2406.01125; for U-Nets DeepCache, arXiv:2312.00858). How slowly is a property
of the trained network and of the steps' length. The digit model of this package, in 24 steps of DDIM: two of its four
blocks worked out at every second call change an image by 2.2 % of its deviation, at 75 % of the FLOPs; at every fourth
by 6.2 %, at 63 %; all four at every second call by 2.3 %, at 51 %.

Dimension letters: B images of a batch, T tokens of an image, D d_model, L layers.
"""

from __future__ import annotations

import torch
from torch import nn

from mlsys_lab.diffusion.networks.dit import DiT
from mlsys_lab.errors import InputError
from mlsys_lab.flops.dit import DiTConfig, forward
from mlsys_lab.validation import require_at_least_one


class CachedDiT(nn.Module):
    """A DiT that works out blocks `first` to `last` - 1 at every `every`-th call, and adds what they added at others.

    It belongs to one run: its calls must be of one batch, and `reset` comes before the next. With `every` 1 it is the
    network itself. InputError for blocks that there are not, and for a batch of another size within a run.
    """

    def __init__(self, network: DiT, first: int, last: int, every: int) -> None:
        super().__init__()
        layers = network.config.n_layers
        if not 0 <= first < last <= layers:
            raise InputError("no such blocks", got=f"{first} to {last}", expected=f"0 <= first < last <= {layers}")
        require_at_least_one(every=every)
        self.network, self.first, self.last, self.every = network, first, last, every
        self.reset()

    def reset(self) -> None:
        """Forget what is kept, so that the next call works out everything."""
        self.calls = 0
        self.added: torch.Tensor | None = None

    def forward(self, x: torch.Tensor, noise: torch.Tensor, label: torch.Tensor | None = None) -> torch.Tensor:
        """Answer to noisy images x (B, C, S, S), of which noise (B,) says the level and label (B,) the class."""
        condition = self.network.begin(x, noise, label)
        tokens = self.network.embed(x)  # (B, T, D)
        for block in self.network.blocks[: self.first]:
            tokens = block(tokens, condition)
        if self.calls % self.every == 0:
            before = tokens
            for block in self.network.blocks[self.first : self.last]:
                tokens = block(tokens, condition)
            self.added = tokens - before
        elif self.added is None or self.added.shape != tokens.shape:
            raise InputError("another batch within a run", got=len(x), help="call reset() before a new run")
        else:
            tokens = tokens + self.added
        self.calls += 1
        for block in self.network.blocks[self.last :]:
            tokens = block(tokens, condition)
        return self.network.end(tokens, condition)


def cached_flops(config: DiTConfig, blocks: int, every: int) -> float:
    """Mean FLOPs of a call for one image when `blocks` of the L blocks run at every `every`-th call only.

    >>> from mlsys_lab.flops.dit import preset
    >>> round(cached_flops(preset("XL/2"), 24, 2) / forward(preset("XL/2")).total, 2)
    0.57
    """
    require_at_least_one(every=every)
    if not 0 <= blocks <= config.n_layers:
        raise InputError("no such number of blocks", got=blocks, expected=f"0 to {config.n_layers}")
    whole = forward(config)
    block = (whole.projections + whole.attention + whole.mlp) / config.n_layers + 2.0 * 6 * config.d_model**2
    return whole.total - blocks * block * (1 - 1 / every)
