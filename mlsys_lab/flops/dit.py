"""Diffusion transformers (DiT): parameters, FLOPs and activations, from sizes alone (arXiv:2212.09748).

Blocks are those of a transformer without a mask, each shifted, scaled and gated by six vectors that one linear map
makes of the image's level and class (adaLN-Zero, §3.2). Only matrix products are counted, a multiply-add as two FLOPs;
what the paper's tables call Gflops are multiply-adds, half as many.

Letters: T tokens of an image, L layers, D d_model, F d_ff = 4·D, P patch, C channels.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from mlsys_lab.errors import InputError
from mlsys_lab.validation import require_at_least_one, require_positive

FREQUENCIES = 256
"""Length of the sines and cosines that tell a DiT the level."""


@dataclass(frozen=True)
class DiTConfig:
    """A DiT for square images (or latents) of `size`·`size` with `channels`, cut into patches of `patch`·`patch`.

    `classes` have an embedding each, and one more the null class; 0 is a network without classes. `out_channels` 0
    means as many as go in; DiT has twice as many, for the variance. InputError for sizes that do not divide.
    """

    name: str
    n_layers: int
    d_model: int
    n_heads: int
    size: int
    patch: int
    channels: int
    classes: int
    out_channels: int = 0

    def __post_init__(self) -> None:
        require_at_least_one(
            n_layers=self.n_layers, d_model=self.d_model, n_heads=self.n_heads, size=self.size, patch=self.patch
        )
        if self.size % self.patch:
            raise InputError("the image does not fit the patch", got=self.size, expected=f"a multiple of {self.patch}")
        if self.d_model % self.n_heads or self.d_model % 4:
            expected = f"a multiple of 4 and of {self.n_heads} heads"
            raise InputError("d_model does not divide", got=self.d_model, expected=expected)
        if not self.out_channels:
            object.__setattr__(self, "out_channels", self.channels)

    @property
    def tokens(self) -> int:
        """Tokens T of an image, one for each patch."""
        return (self.size // self.patch) ** 2

    @property
    def d_ff(self) -> int:
        """Width F inside the MLP, 4·D."""
        return 4 * self.d_model


def preset(name: str, size: int = 32) -> DiTConfig:
    """The paper's DiT by its name, "S/2" to "XL/8" (table 1), on latents of `size`: 32 for 256 pixels, 64 for 512.

    >>> preset("XL/2").tokens
    256
    """
    sizes = {"S": (12, 384, 6), "B": (12, 768, 12), "L": (24, 1024, 16), "XL": (28, 1152, 16)}
    kind, _, patch = name.partition("/")
    if kind not in sizes or patch not in ("2", "4", "8"):
        raise InputError("unknown DiT", got=repr(name), expected="S, B, L or XL, then /2, /4 or /8")
    return DiTConfig(f"DiT-{name}", *sizes[kind], size, int(patch), channels=4, classes=1000, out_channels=8)


@dataclass(frozen=True)
class DiTFlops:
    """FLOPs of a forward pass by kind of matrix product, each summed over all layers."""

    patches: float  # from pixels to tokens
    conditioning: float  # the level's embedding
    modulation: float  # six vectors a layer, two before the last map; once an image
    projections: float  # queries, keys, values, and attention's output
    attention: float  # scores and weighted sums of values
    mlp: float
    last: float  # from tokens to pixels

    @property
    def total(self) -> float:
        """FLOPs of all matrix products."""
        total: float = sum(getattr(self, field.name) for field in fields(self))
        return total


def forward(config: DiTConfig, batch: int = 1) -> DiTFlops:
    """FLOPs of a forward pass over `batch` images."""
    require_at_least_one(batch=batch)
    T, L, D, F = config.tokens, config.n_layers, config.d_model, config.d_ff
    pixels = config.patch**2
    multiply_adds = {
        "patches": T * pixels * config.channels * D,
        "conditioning": (FREQUENCIES + D) * D,
        "modulation": (6 * L + 2) * D * D,
        "projections": L * T * 4 * D * D,
        "attention": L * 2 * T * T * D,
        "mlp": L * T * 2 * D * F,
        "last": T * D * pixels * config.out_channels,
    }
    return DiTFlops(**{name: 2.0 * batch * count for name, count in multiply_adds.items()})


def multiply_adds(config: DiTConfig) -> float:
    """Multiply-adds of a forward pass over one image, in 10⁹: what the paper prints as Gflops (tables 1 and 4).

    >>> round(multiply_adds(preset("XL/2")), 1)
    118.6
    """
    return forward(config).total / 2 / 1e9


def parameters(config: DiTConfig) -> int:
    """Number of trained parameters; positions are fixed sines and are not among them."""
    L, D, F = config.n_layers, config.d_model, config.d_ff
    pixels = config.patch**2
    patches = pixels * config.channels * D + D
    conditioning = (FREQUENCIES + 1) * D + (D + 1) * D
    labels = (config.classes + 1) * D if config.classes else 0
    block = (D + 1) * 6 * D + 4 * (D + 1) * D + (D + 1) * F + (F + 1) * D
    last = (D + 1) * 2 * D + (D + 1) * pixels * config.out_channels
    return patches + conditioning + labels + L * block + last


def activation_bytes(config: DiTConfig, batch: int = 1, *, element_bytes: float = 2, fused: bool = False) -> float:
    """Bytes that the blocks keep for a backward pass: what a training step adds to weights and their states.

    For each token of a layer: the input, normed and modulated values of both norms (6·D), queries, keys, values and
    attention's result (4·D), what each gate multiplies (2·D), both sides of the activation (2·F), and the softmax, N·T
    numbers, or N in fp32 where attention is `fused`. Left out: the statistics of norms, and what is one vector an
    image.
    """
    require_at_least_one(batch=batch)
    require_positive(element_bytes=element_bytes)
    T, D, F, N = config.tokens, config.d_model, config.d_ff, config.n_heads
    scores = N * 4.0 if fused else N * T * element_bytes
    return batch * T * config.n_layers * ((12 * D + 2 * F) * element_bytes + scores)
