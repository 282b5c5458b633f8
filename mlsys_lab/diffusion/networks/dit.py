"""The diffusion transformer with adaLN-Zero (Peebles and Xie, arXiv:2212.09748, §3.2).

Dimension letters: B images of a batch, C channels, P patch, T tokens of an image, D d_model, N heads, H = D / N.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from mlsys_lab.diffusion.networks.conditioning import Condition, require_images
from mlsys_lab.flops.dit import FREQUENCIES, DiTConfig


class DiTBlock(nn.Module):
    """Attention and an MLP, each normed, shifted and scaled before and gated after by what the condition says."""

    def __init__(self, config: DiTConfig) -> None:
        super().__init__()
        D = config.d_model
        self.n_heads = config.n_heads
        self.modulation = nn.Linear(D, 6 * D)
        self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.up, self.down = nn.Linear(D, config.d_ff), nn.Linear(config.d_ff, D)

    def forward(self, x: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        """Change tokens x (B, T, D) as the condition (B, D), after its SiLU, says: (B, T, D)."""
        shift_a, scale_a, gate_a, shift_m, scale_m, gate_m = self.modulation(condition)[:, None].chunk(6, dim=-1)
        x = x + gate_a * self.attend(modulate(x, shift_a, scale_a))
        return x + gate_m * self.mlp(modulate(x, shift_m, scale_m))

    def attend(self, h: torch.Tensor) -> torch.Tensor:
        """Attention among all tokens of an image: (B, T, D) -> (B, T, D)."""
        q, k, v = self.qkv(h).unflatten(-1, (3, self.n_heads, -1)).permute(2, 0, 3, 1, 4)  # (B, N, T, H) each
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    def mlp(self, h: torch.Tensor) -> torch.Tensor:
        """Two linear maps with a GELU between them: (B, T, D) -> (B, T, D)."""
        return self.down(F.gelu(self.up(h), approximate="tanh"))


class DiT(nn.Module):
    """Diffusion transformer: noisy images (B, C, size, size), c_noise (B,), label (B,) -> answers of that size.

    Label K, or no label, is the null class. Modulation and the last map begin at zero: a new network answers 0, and
    each block begins as an identity. Raises InputError for images of another shape and unknown labels.
    """

    def __init__(self, config: DiTConfig) -> None:
        super().__init__()
        self.config = config
        D, P = config.d_model, config.patch
        self.patches = nn.Linear(P * P * config.channels, D)
        self.condition = Condition(FREQUENCIES, D, config.classes + 1 if config.classes else 0)
        self.blocks = nn.ModuleList(DiTBlock(config) for _ in range(config.n_layers))
        self.last_modulation = nn.Linear(D, 2 * D)
        self.last = nn.Linear(D, P * P * config.out_channels)
        self.register_buffer("positions", positions(config), persistent=False)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw all weights again from the initial distribution, in place."""
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
                if name.endswith(("modulation", "last")):
                    module.weight.zero_()
            elif isinstance(module, nn.Embedding):
                module.weight.normal_(std=0.02)

    def forward(self, x: torch.Tensor, noise: torch.Tensor, label: torch.Tensor | None = None) -> torch.Tensor:
        """Answer to noisy images x (B, C, size, size), of which noise (B,) says the level and label (B,) the class."""
        condition = self.begin(x, noise, label)
        tokens = self.embed(x)
        for block in self.blocks:
            tokens = block(tokens, condition)
        return self.end(tokens, condition)

    def begin(self, x: torch.Tensor, noise: torch.Tensor, label: torch.Tensor | None) -> torch.Tensor:
        """Condition (B, D) that blocks are given; InputError for images of another shape and unknown labels."""
        require_images(x, self.config.channels, self.config.size)
        return F.silu(self.condition(noise, label))

    def embed(self, x: torch.Tensor) -> torch.Tensor:
        """Tokens of images, with their positions: (B, C, size, size) -> (B, T, D)."""
        P = self.config.patch
        cut = F.unfold(x, P, stride=P).transpose(1, 2)  # (B, T, C·P·P)
        return self.patches(cut) + self.positions

    def end(self, tokens: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        """Images of tokens (B, T, D): (B, C_out, size, size)."""
        shift, scale = self.last_modulation(condition)[:, None].chunk(2, dim=-1)
        cut = self.last(modulate(tokens, shift, scale)).transpose(1, 2)  # (B, C_out·P·P, T)
        return F.fold(cut, self.config.size, self.config.patch, stride=self.config.patch)


def modulate(x: torch.Tensor, shift: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Tokens (B, T, D) normed without weights, then scaled by 1 + scale and shifted, both (B, 1, D)."""
    return F.layer_norm(x, x.shape[-1:], eps=1e-6) * (1 + scale) + shift


def positions(config: DiTConfig) -> torch.Tensor:
    """Fixed sines of each token's row and column, (T, D): a quarter each of sines and cosines of row and column."""
    side = torch.arange(config.size // config.patch, dtype=torch.float32)
    frequencies = 10_000 ** -torch.linspace(0, 1, config.d_model // 4 + 1)[:-1]
    angles = side[:, None] * frequencies  # (side, D / 4)
    waves = torch.cat([angles.sin(), angles.cos()], dim=1)  # (side, D / 2)
    count = len(side)
    rows, columns = waves[:, None].expand(-1, count, -1), waves[None].expand(count, -1, -1)
    return torch.cat([rows, columns], dim=-1).flatten(0, 1)
