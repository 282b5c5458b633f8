"""The U-Net of diffusion models as in ADM (Dhariwal and Nichol, arXiv:2105.05233, §3 and its code).

Dimension letters: B images of a batch, C channels, S size of an image, E width of the embedding, N heads of H each.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from mlsys_lab.diffusion.networks.conditioning import Condition, require_images
from mlsys_lab.flops.unet import Block, UNetConfig, plan


class ResidualBlock(nn.Module):
    """Two convolutions with a skip connection, and attention over all pixels where the configuration says so."""

    def __init__(self, block: Block, condition: int, head_dim: int) -> None:
        super().__init__()
        self.resample = block.resample
        self.first_norm, self.first = norm(block.into), nn.Conv2d(block.into, block.out, 3, padding=1)
        self.modulation = nn.Linear(condition, 2 * block.out)
        self.second_norm, self.second = norm(block.out), nn.Conv2d(block.out, block.out, 3, padding=1)
        self.around = nn.Identity() if block.into == block.out else nn.Conv2d(block.into, block.out, 1)
        self.attention = PixelAttention(block.out, head_dim) if block.attention else nn.Identity()

    def forward(self, x: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        """Images x (B, C, S, S), modulated by the condition (B, E) after its SiLU; S may be halved or doubled."""
        h = self.first(self.resize(F.silu(self.first_norm(x))))
        scale, shift = self.modulation(condition)[:, :, None, None].chunk(2, dim=1)  # (B, C, 1, 1) each
        h = self.second(F.silu(self.second_norm(h) * (1 + scale) + shift))
        return self.attention(self.around(self.resize(x)) + h)

    def resize(self, x: torch.Tensor) -> torch.Tensor:
        """Downsample by the mean of 2 × 2 pixels, upsample by repetition, or neither."""
        if self.resample == "down":
            return F.avg_pool2d(x, 2)
        return F.interpolate(x, scale_factor=2, mode="nearest") if self.resample == "up" else x


class PixelAttention(nn.Module):
    """Attention among all pixels of an image, with a residual connection."""

    def __init__(self, channels: int, head_dim: int) -> None:
        super().__init__()
        self.heads = channels // head_dim
        self.norm, self.qkv, self.out = (
            norm(channels),
            nn.Conv2d(channels, 3 * channels, 1),
            nn.Conv2d(channels, channels, 1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        B, C, S, _ = x.shape
        heads = self.qkv(self.norm(x)).reshape(B, 3, self.heads, C // self.heads, S * S)
        q, k, v = heads.transpose(-1, -2).unbind(1)  # (B, N, S·S, H) each
        attended = F.scaled_dot_product_attention(q, k, v)  # (B, N, S·S, H)
        return x + self.out(attended.transpose(-1, -2).reshape(x.shape))


class UNet(nn.Module):
    """U-Net: noisy images (B, C, size, size), c_noise (B,), label (B,) -> predictions of that size.

    Label K, or no label, is the null class. The last convolution of every block, of attention and of the network is
    zero at initialisation: a new network predicts 0. Raises InputError for images of another shape and unknown labels.
    """

    def __init__(self, config: UNetConfig) -> None:
        super().__init__()
        self.config = config
        W, blocks = config.width, plan(config)
        self.condition = Condition(W, 4 * W, config.classes + config.null if config.classes else 0)
        self.first = nn.Conv2d(config.channels, W, 3, padding=1)
        self.down, self.middle, self.up = (
            nn.ModuleList(ResidualBlock(block, 4 * W, config.head_dim) for block in part) for part in blocks
        )
        self.takes = [block.resample != "up" for block in blocks.up]
        self.last_norm, self.last = norm(W), nn.Conv2d(W, config.out_channels, 3, padding=1)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Zero the weights of the last layer and of every layer that is added to a skip connection."""
        for name, module in self.named_modules():
            if name.endswith(("second", "attention.out")) or name == "last":
                module.weight.zero_()
                module.bias.zero_()

    def forward(self, x: torch.Tensor, noise: torch.Tensor, label: torch.Tensor | None = None) -> torch.Tensor:
        """Prediction for noisy images x (B, C, size, size), c_noise `noise` (B,) and classes `label` (B,)."""
        require_images(x, self.config.channels, self.config.size)
        condition = F.silu(self.condition(noise, label))
        x = self.first(x)
        left = [x]
        for block in self.down:
            left.append(x := block(x, condition))
        for block in self.middle:
            x = block(x, condition)
        for block, takes in zip(self.up, self.takes, strict=True):
            x = block(torch.cat([x, left.pop()], dim=1) if takes else x, condition)
        return self.last(F.silu(self.last_norm(x)))


def norm(channels: int) -> nn.GroupNorm:
    """Group norm: 32 groups as in ADM, or fewer, so that each has at least 4 channels."""
    fitting = [count for count in (32, 16, 8, 4, 2) if channels % count == 0 and channels // count >= 4]
    return nn.GroupNorm(fitting[0] if fitting else 1, channels)
