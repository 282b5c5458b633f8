"""U-Nets of diffusion: plan, parameters, FLOPs and activations, block by block (ADM, arXiv:2105.05233, §3).

A residual block is two 3·3 convolutions, the second of them scaled and shifted by what a linear map makes of the
image's level and class; between sizes a block halves or doubles its image before the first of them. On some sizes a
block ends with attention over all pixels. A multiply-add is two FLOPs; what papers on diffusion call Gflops are
multiply-adds, half as many. Norms, activations, pooling and sums are not counted.

Letters: W width of the first level, E = 4·W the condition's width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from mlsys_lab.errors import InputError
from mlsys_lab.validation import require_at_least_one, require_positive


class Block(NamedTuple):
    """A residual block: channels in and out, the size of its result, whether it resamples, attends, takes a skip."""

    into: int
    out: int
    size: int
    resample: Literal["none", "down", "up"] = "none"
    attention: bool = False

    @property
    def size_into(self) -> float:
        """Size of the image that the block is given."""
        return self.size * {"none": 1, "down": 2, "up": 0.5}[self.resample]


@dataclass(frozen=True)
class UNetConfig:
    """A U-Net for square images of `size`·`size` with `channels`: each level is half the size of the one before.

    Level i is `width`·`multipliers[i]` wide and has `blocks` residual blocks going down, one more going up; blocks
    of a size in `attention_sizes` attend, with heads of `head_dim`. `classes` have an embedding each, and with `null`
    one more stands for none. InputError for sizes that do not divide.
    """

    name: str
    size: int
    channels: int
    width: int
    multipliers: tuple[int, ...]
    blocks: int
    attention_sizes: tuple[int, ...] = ()
    head_dim: int = 64
    classes: int = 0
    null: bool = True
    out_channels: int = 0

    def __post_init__(self) -> None:
        require_at_least_one(width=self.width, levels=len(self.multipliers), blocks=self.blocks, head_dim=self.head_dim)
        if self.multipliers[0] != 1:
            raise InputError("the first multiplier", got=self.multipliers[0], expected="1: width is the first level's")
        if self.size % 2 ** (len(self.multipliers) - 1):
            expected = f"a multiple of {2 ** (len(self.multipliers) - 1)}"
            raise InputError("the image cannot be halved at every level", got=self.size, expected=expected)
        uneven = [block.out for part in plan(self) for block in part if block.attention and block.out % self.head_dim]
        if uneven:
            raise InputError("heads do not divide a level's width", got=uneven[0], expected=f"of {self.head_dim} each")
        if not self.out_channels:
            object.__setattr__(self, "out_channels", self.channels)


class Plan(NamedTuple):
    """Blocks in the order of a forward pass; each of those going up takes what one of those going down has left."""

    down: list[Block]
    middle: list[Block]
    up: list[Block]


def plan(config: UNetConfig) -> Plan:
    """All residual blocks of a U-Net; `into` of those going up includes the channels of what they take."""
    widths = [config.width * multiplier for multiplier in config.multipliers]
    down: list[Block] = []
    left, width, size, last = [config.width], config.width, config.size, len(widths) - 1
    for level, out in enumerate(widths):
        for _ in range(config.blocks):
            down.append(Block(width, out, size, attention=size in config.attention_sizes))
            left.append(width := out)
        if level < last:
            size //= 2
            down.append(Block(width, width, size, "down"))
            left.append(width)
    middle = [Block(width, width, size, attention=True), Block(width, width, size)]
    up: list[Block] = []
    for level in range(last, -1, -1):
        for _ in range(config.blocks + 1):
            up.append(Block(width + left.pop(), widths[level], size, attention=size in config.attention_sizes))
            width = widths[level]
        if level:
            size *= 2
            up.append(Block(width, width, size, "up"))
    return Plan(down, middle, up)


ADM = UNetConfig("ADM", 256, 3, 256, (1, 1, 2, 2, 4, 4), 2, (32, 16, 8), classes=1000, null=False, out_channels=6)
"""ADM for ImageNet at 256 pixels (arXiv:2105.05233, table 4 and its released configuration)."""


def _all_blocks(config: UNetConfig) -> list[Block]:
    return [block for part in plan(config) for block in part]


def convolution(into: int, out: int, size: int, kernel: int = 3) -> float:
    """FLOPs of a convolution whose result is `size`·`size`: 2·k²·C_in·C_out a pixel.

    >>> convolution(3, 64, 8)
    221184.0
    """
    return 2.0 * kernel**2 * into * out * size**2


def forward(config: UNetConfig, batch: int = 1) -> float:
    """FLOPs of a forward pass over `batch` images."""
    require_at_least_one(batch=batch)
    W, E = config.width, 4 * config.width
    flops = 2.0 * (W * E + E * E)
    flops += convolution(config.channels, W, config.size) + convolution(W, config.out_channels, config.size)
    for block in _all_blocks(config):
        C, pixels = block.out, block.size**2
        flops += convolution(block.into, C, block.size) + convolution(C, C, block.size) + 2.0 * E * 2 * C
        if block.into != C:
            flops += convolution(block.into, C, block.size, kernel=1)
        if block.attention:
            flops += convolution(C, 4 * C, block.size, kernel=1) + 2 * 2.0 * pixels**2 * C
    return batch * flops


def multiply_adds(config: UNetConfig) -> float:
    """Multiply-adds of a forward pass over one image, in 10⁹: what papers on diffusion print as Gflops."""
    return forward(config) / 2 / 1e9


def parameters(config: UNetConfig) -> int:
    """Number of trained parameters, biases and norms included."""
    W, E = config.width, 4 * config.width
    labels = (config.classes + config.null) * E if config.classes else 0
    count = (W + 1) * E + (E + 1) * E + labels
    count += (9 * config.channels + 1) * W + 2 * W + (9 * W + 1) * config.out_channels
    for block in _all_blocks(config):
        C = block.out
        count += 2 * block.into + (9 * block.into + 1) * C + (E + 1) * 2 * C + 2 * C + (9 * C + 1) * C
        if block.into != C:
            count += (block.into + 1) * C
        if block.attention:
            count += 2 * C + (C + 1) * 4 * C
    return count


def activation_bytes(config: UNetConfig, batch: int = 1, *, element_bytes: float = 2, fused: bool = False) -> float:
    """Bytes that a U-Net keeps for a backward pass: what a training step adds to weights and their states.

    Of what a residual block is given: the input and the normed values, where it halves them the activated ones too, and
    at its own size what goes into the first convolution. Of what it makes: the first convolution's result, and that
    normed, modulated and activated (4·C a pixel). Attention keeps its input, normed values, queries, keys, values and
    result (6·C), and the softmax, N numbers for every pair of pixels, or N in fp32 for each pixel where it is `fused`.
    Then the images themselves, and the last norm's input and result, activated (3·W). What skips over to the other side
    is the input of some block already. Left out: the statistics of norms, and what is one vector an image.
    """
    require_at_least_one(batch=batch)
    require_positive(element_bytes=element_bytes)
    elements = (config.channels + 3 * config.width) * float(config.size**2)
    scores = 0.0
    for block in _all_blocks(config):
        C, pixels, given = block.out, block.size**2, block.into * block.size_into**2
        elements += (3 if block.resample == "down" else 2) * given + (block.into + 4 * C) * pixels
        if block.attention:
            elements += 6 * C * pixels
            scores += C // config.head_dim * pixels * (4.0 if fused else pixels * element_bytes)
    return batch * (elements * element_bytes + scores)
