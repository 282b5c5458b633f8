"""Recipes of training in 8 bits: a format and a kind of scaling for inputs, weights and gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mlsys_lab.efficiency.formats import E4M3, E5M2, FloatFormat
from mlsys_lab.efficiency.fp8.scaling import (
    BF16,
    BlockScaling,
    CurrentScaling,
    DelayedScaling,
    NoScaling,
    Scaling,
)
from mlsys_lab.errors import InputError, did_you_mean
from mlsys_lab.validation import require_integer, require_one_of

Role = Literal["input", "weight", "gradient"]
"""A tensor that is cast: a layer's inputs, its weights, or the gradient of its outputs."""
SCALINGS = ("none", "current", "delayed", "block")


@dataclass(frozen=True)
class Recipe:
    """How `Fp8Linear` casts: inputs and weights to the format `forward`, gradients of outputs to `backward`.

    Gradients spread over more powers of two than activations, which is why E5M2 gives them an exponent bit more
    (arXiv:2209.05433, §3). `scaling` is "none", "current", "delayed" (over `history_length` steps) or "block" (in tiles
    of 1 × `block_size`, weights in squares). InputError for another scaling.
    """

    forward: FloatFormat = E4M3
    backward: FloatFormat = E5M2
    scaling: str = "current"
    history_length: int = 16
    block_size: int = 128

    def __post_init__(self) -> None:
        require_one_of("scaling", self.scaling, SCALINGS)
        require_integer("history_length", self.history_length)
        require_integer("block_size", self.block_size)

    def make_scaling(self, role: Role) -> Scaling:
        """A new scaling for a tensor of a layer."""
        format = self.backward if role == "gradient" else self.forward
        if self.scaling == "block":
            return BlockScaling(format, (self.block_size if role == "weight" else 1, self.block_size))
        if self.scaling == "delayed":
            return DelayedScaling(format, history_length=self.history_length)
        return CurrentScaling(format) if self.scaling == "current" else NoScaling(format)


RECIPES = {
    "bf16": Recipe(BF16, BF16, "none"),
    "current": Recipe(),
    "delayed": Recipe(scaling="delayed"),
    "block": Recipe(backward=E4M3, scaling="block"),
    "unscaled": Recipe(backward=E4M3, scaling="none"),
}
"""Recipes by name: bf16 for comparison; E4M3 and E5M2 with a scale of each tensor; DeepSeek-V3's E4M3 in tiles; and, to
see what scales are for, E4M3 without them."""


def find_recipe(name: str) -> Recipe:
    """Look up a recipe; InputError with a suggestion for an unknown name."""
    if name not in RECIPES:
        expected = f"one of {', '.join(RECIPES)}"
        raise InputError("unknown fp8 recipe", got=repr(name), expected=expected, help=did_you_mean(name, RECIPES))
    return RECIPES[name]
