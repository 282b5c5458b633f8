"""The diffusion transformer (DiT) with adaLN-Zero (Peebles and Xie, arXiv:2212.09748, §3.2).

Dimension letters: B images of a batch, C channels, P patch, T tokens of an image, D d_model, N heads, H = D / N.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from mlsys_lab.diffusion.networks.conditioning import Condition, require_images
from mlsys_lab.flops.dit import FREQUENCIES, DiTConfig

LABEL_DEVIATION = 0.5
"""Standard deviation of new class embeddings. DiT has 0.02, and 400,000 steps to grow them; in 150 steps on two classes
of 4 × 4 pixels the loss falls to 0.43 with 0.02, to 0.08 with 0.5.
"""


class DiTBlock(nn.Module):
    """Attention and an MLP, each with adaptive shift, scale and gate from the conditioning."""

    def __init__(self, config: DiTConfig) -> None:
        super().__init__()
        D = config.d_model
        self.n_heads = config.n_heads
        self.modulation = nn.Linear(D, 6 * D)
        self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.up, self.down = nn.Linear(D, config.d_ff), nn.Linear(config.d_ff, D)

    def forward(self, x: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        """Tokens x (B, T, D) -> (B, T, D), modulated by the condition (B, D) after its SiLU."""
        shift_a, scale_a, gate_a, shift_m, scale_m, gate_m = self.modulation(condition)[:, None].chunk(6, dim=-1)
        x = x + gate_a * self.attend(modulate(x, shift_a, scale_a))
        return x + gate_m * self.mlp(modulate(x, shift_m, scale_m))

    def attend(self, h: torch.Tensor) -> torch.Tensor:
        """Full attention among the tokens of an image: (B, T, D) -> (B, T, D)."""
        q, k, v = self.qkv(h).unflatten(-1, (3, self.n_heads, -1)).permute(2, 0, 3, 1, 4)  # (B, N, T, H) each
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    def mlp(self, h: torch.Tensor) -> torch.Tensor:
        return self.down(F.gelu(self.up(h), approximate="tanh"))


class DiT(nn.Module):
    """Diffusion transformer: noisy images (B, C, size, size), c_noise (B,), label (B,) -> predictions of that size.

    Label K, or no label, is the null class. Modulation and the last layer are zero at initialisation: a new network
    predicts 0, and each block is an identity. Raises InputError for images of another shape and unknown labels.
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
                module.weight.normal_(std=LABEL_DEVIATION)

    def forward(self, x: torch.Tensor, noise: torch.Tensor, label: torch.Tensor | None = None) -> torch.Tensor:
        """Prediction for noisy images x (B, C, size, size), c_noise `noise` (B,) and classes `label` (B,)."""
        condition = self.embed_condition(x, noise, label)
        tokens = self.embed(x)
        for block in self.blocks:
            tokens = block(tokens, condition)
        return self.unpatchify(tokens, condition)

    def embed_condition(self, x: torch.Tensor, noise: torch.Tensor, label: torch.Tensor | None) -> torch.Tensor:
        """Condition (B, D) for the blocks; InputError for images of another shape and unknown labels."""
        require_images(x, self.config.channels, self.config.size)
        return F.silu(self.condition(noise, label))

    def embed(self, x: torch.Tensor) -> torch.Tensor:
        """Patch tokens with positions: (B, C, size, size) -> (B, T, D)."""
        P = self.config.patch
        cut = F.unfold(x, P, stride=P).transpose(1, 2)  # (B, T, C·P·P)
        return self.patches(cut) + self.positions

    def unpatchify(self, tokens: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        """Last layer, and tokens (B, T, D) to images (B, C_out, size, size)."""
        shift, scale = self.last_modulation(condition)[:, None].chunk(2, dim=-1)
        cut = self.last(modulate(tokens, shift, scale)).transpose(1, 2)  # (B, C_out·P·P, T)
        return F.fold(cut, self.config.size, self.config.patch, stride=self.config.patch)


def modulate(x: torch.Tensor, shift: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Layer-normalise tokens (B, T, D) without weights, then scale by 1 + scale and shift, both (B, 1, D)."""
    return F.layer_norm(x, x.shape[-1:], eps=1e-6) * (1 + scale) + shift


def positions(config: DiTConfig) -> torch.Tensor:
    """Fixed sinusoidal embeddings of each token's row and column, (T, D)."""
    side = torch.arange(config.size // config.patch, dtype=torch.float32)
    frequencies = 10_000 ** -torch.linspace(0, 1, config.d_model // 4 + 1)[:-1]
    angles = side[:, None] * frequencies  # (side, D / 4)
    waves = torch.cat([angles.sin(), angles.cos()], dim=1)  # (side, D / 2)
    count = len(side)
    rows, columns = waves[:, None].expand(-1, count, -1), waves[None].expand(count, -1, -1)
    return torch.cat([rows, columns], dim=-1).flatten(0, 1)
