"""Embeddings of noise level and class.

Dimension letters: B images of a batch, E width of the embedding, K classes.
"""

from __future__ import annotations

import torch
from torch import nn

from mlsys_lab.errors import InputError

LOWEST, HIGHEST = -2, 6
"""Frequencies of the level's sinusoids, as powers of 2 in radians: c_noise, ln(σ)/4, ranges from about -1.6 to 1.1."""


def sinusoids(values: torch.Tensor, width: int) -> torch.Tensor:
    """Cosines and sines of values (B,) at width/2 frequencies each, (B, width)."""
    frequencies = torch.logspace(LOWEST, HIGHEST, width // 2, base=2, device=values.device, dtype=values.dtype)
    angles = values[:, None] * frequencies  # (B, width / 2)
    return torch.cat([angles.cos(), angles.sin()], dim=1)


class Condition(nn.Module):
    """Embedding (B, E) of each image's noise level (an MLP of sinusoids) plus its class embedding.

    `labels` is the number of class embeddings, null class included; 0 for an unconditional network.
    """

    def __init__(self, frequencies: int, width: int, labels: int) -> None:
        super().__init__()
        self.frequencies, self.labels = frequencies, labels
        self.level = nn.Sequential(nn.Linear(frequencies, width), nn.SiLU(), nn.Linear(width, width))
        self.label = nn.Embedding(labels, width) if labels else None

    def forward(self, noise: torch.Tensor, label: torch.Tensor | None) -> torch.Tensor:
        """Embedding (B, E) of c_noise (B,) and label (B,); without labels, the null class. InputError for an unknown
        label.
        """
        condition: torch.Tensor = self.level(sinusoids(noise, self.frequencies))
        if self.label is None:
            if label is not None:
                raise InputError("the network knows no classes", got="labels", expected="none")
            return condition
        if label is None:
            label = torch.full(noise.shape, self.labels - 1, device=noise.device)
        try:
            return condition + self.label(label)
        except IndexError:
            got = f"{int(label.min())} to {int(label.max())}"
            raise InputError("no such class", got=got, expected=f"0 to {self.labels - 1}") from None


def require_images(x: torch.Tensor, channels: int, size: int) -> None:
    """Raise InputError unless x is (B, channels, size, size)."""
    if x.ndim != 4 or x.shape[1:] != (channels, size, size):
        raise InputError("images of another shape", got=tuple(x.shape), expected=f"(B, {channels}, {size}, {size})")
