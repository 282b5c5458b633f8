"""Bytes of weights, gradients and optimizer states, by precision recipe and ZeRO stage.

Adam keeps two moments a parameter. With 16-bit weights it updates an fp32 master copy (Micikevicius et al.,
arXiv:1710.03740). ZeRO divides among the data-parallel ranks the optimizer's states (stage 1), gradients too (stage 2),
weights too (stage 3) (Rajbhandari et al., arXiv:1910.02054, §5).
"""

from __future__ import annotations

from dataclasses import dataclass

from mlsys_lab.errors import InputError, did_you_mean
from mlsys_lab.validation import require_at_least_one, require_non_negative

BYTES = {"fp32": 4.0, "tf32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0, "fp4": 0.5, "int4": 0.5}
"""Bytes of one element by format; the scales of quantised formats are not counted."""

ZERO_STAGES = (0, 1, 2, 3)


def element_bytes(name: str) -> float:
    """Bytes of one element of the format `name`; InputError with a suggestion for an unknown one."""
    if name not in BYTES:
        near = did_you_mean(str(name), BYTES)
        raise InputError("unknown format", got=repr(name), expected=f"one of {', '.join(BYTES)}", help=near)
    return BYTES[name]


@dataclass(frozen=True)
class Recipe:
    """Bytes that training keeps for each parameter, and the format in which it multiplies.

    `weights` are those that the forward pass reads, `gradients` all copies of gradients, `master` the optimizer's own
    copy of the weights, `moments` Adam's two together. Activations are kept in the format `compute`, and sent in it to
    experts; all else is sent in 16 bits at least.
    """

    name: str
    weights: float
    gradients: float
    master: float
    moments: float
    compute: str = "bf16"

    def __post_init__(self) -> None:
        for kind in ("weights", "gradients", "master", "moments"):
            if not getattr(self, kind) >= 0:
                raise InputError(f"recipe {self.name!r}: {kind} must not be negative", got=getattr(self, kind))
        element_bytes(self.compute)

    @property
    def sent_bytes(self) -> float:
        """Bytes of an activation that is sent: those of `compute`, or 2 where that is narrower."""
        return max(BYTES[self.compute], 2.0)

    @property
    def bytes_per_parameter(self) -> float:
        """Bytes for each parameter of weights, gradients, master copy and moments together."""
        return self.weights + self.gradients + self.master + self.moments


RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe("mixed16", 2, 2, 4, 8),  # ZeRO §3.1: gradients in 16 bits
        Recipe("mixed18", 2, 4, 4, 8),  # gradients accumulated in fp32
        Recipe("mixed20", 2, 2 + 4, 4, 8),  # 16-bit gradients and their fp32 sum
        Recipe("fp32", 4, 4, 0, 8, compute="fp32"),
        Recipe("adam8bit", 2, 2, 4, 2),  # moments of one byte each (Dettmers et al., arXiv:2110.02861)
        Recipe("bf16", 2, 2, 0, 4),  # nothing in fp32
        Recipe("fp8", 1, 4, 4, 4, compute="fp8"),  # moments in bf16 (DeepSeek-V3, arXiv:2412.19437, §3.3)
    )
}


def recipe(name: str) -> Recipe:
    """Look up the precision recipe `name`; InputError with a suggestion for an unknown one."""
    if name not in RECIPES:
        raise InputError(
            "unknown precision recipe",
            got=repr(name),
            expected=f"one of {', '.join(RECIPES)}",
            help=did_you_mean(name, RECIPES),
        )
    return RECIPES[name]


def check_zero_stage(stage: int) -> None:
    """Raise InputError unless `stage` is a stage of ZeRO, 0 to 3."""
    if stage not in ZERO_STAGES:
        raise InputError("unknown ZeRO stage", got=stage, expected="0, 1, 2 or 3")


@dataclass(frozen=True)
class States:
    """Bytes of weights, gradients and optimizer states on one device."""

    weights: float
    gradients: float
    master: float
    moments: float

    @property
    def total(self) -> float:
        """Bytes of all training states together."""
        return self.weights + self.gradients + self.master + self.moments


def states(parameters: float, recipe: Recipe, *, data: int = 1, zero_stage: int = 0) -> States:
    """Bytes of training states on a device that holds `parameters` together with `data` ranks that share them.

    Stage 3 must gather a layer's weights before it uses them; that layer's bytes are not counted here.

    >>> psi = 7.5e9  # ZeRO, figure 1: 120, 31.4, 16.6 and 1.9 GB on 64 ranks
    >>> [round(states(psi, RECIPES["mixed16"], data=64, zero_stage=stage).total / 1e9, 1) for stage in ZERO_STAGES]
    [120.0, 31.4, 16.6, 1.9]
    """
    require_non_negative(parameters=parameters)
    require_at_least_one(data=data)
    check_zero_stage(zero_stage)
    optimizer = parameters / (data if zero_stage >= 1 else 1)
    return States(
        weights=recipe.weights * parameters / (data if zero_stage >= 3 else 1),
        gradients=recipe.gradients * parameters / (data if zero_stage >= 2 else 1),
        master=recipe.master * optimizer,
        moments=recipe.moments * optimizer,
    )
