"""LoRA adapter: W x becomes W x + (α/r) B A x, with low-rank matrices A and B.

Dimension letters: I inputs and O outputs of a linear layer, r rank.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from mlsys_lab.errors import InputError
from mlsys_lab.models import Transformer
from mlsys_lab.models.attention import SelfAttention
from mlsys_lab.models.experts import MLP
from mlsys_lab.validation import require_at_least_one, require_positive

LowRankPair = tuple[torch.Tensor, torch.Tensor]
"""A (r, I) and B (O, r) of one layer."""
Change = Callable[[str, torch.Tensor, torch.Tensor], torch.Tensor]
"""Type of a function from a layer's name, inputs (..., I) and outputs (..., O) to new outputs."""

OTHER_MODEL = "it may be an adapter of another model"
"""Help for layers or shapes that are not those of the model."""


@dataclass(frozen=True)
class Adapter:
    """LoRA adapter of some linear layers of a model (arXiv:2106.09685, §4.1): A (r, I) and B (O, r) by layer.

    Layers are named as the model's modules, "blocks.0.attention.query". InputError for a rank below 1, a `lora_alpha`
    that is not positive, and no layer.
    """

    lora_rank: int
    lora_alpha: float
    matrices: Mapping[str, LowRankPair]

    def __post_init__(self) -> None:
        require_at_least_one(lora_rank=self.lora_rank)
        require_positive(lora_alpha=self.lora_alpha)
        if not self.matrices:
            raise InputError("an adapter without matrices", expected="A and B of one layer or more")

    @property
    def scale(self) -> float:
        """Factor α/r of B·A."""
        return self.lora_alpha / self.lora_rank

    @property
    def size_bytes(self) -> int:
        """Bytes of all its matrices."""
        return sum(a.nbytes + b.nbytes for a, b in self.matrices.values())

    def check(self, model: Transformer) -> None:
        """Raise InputError unless every layer is a layer of the model that can have an adapter, with its shape."""
        layers = find_layers(model)
        for name, (a, b) in self.matrices.items():
            if name not in layers:
                known = sorted({layer.rpartition(".")[2] for layer in layers})
                expected = f"one of {', '.join(known)} in blocks 0 to {model.config.n_layers - 1}"
                raise InputError(
                    "no layer of the model that takes an adapter", got=name, expected=expected, help=OTHER_MODEL
                )
            outputs, inputs = layers[name].weight.shape
            found, expected_shapes = (
                (tuple(a.shape), tuple(b.shape)),
                ((self.lora_rank, inputs), (outputs, self.lora_rank)),
            )
            if found != expected_shapes:
                shapes = [" and ".join(map(str, pair)) for pair in (found, expected_shapes)]
                what = f"A and B of {name} have other shapes"
                raise InputError(what, got=shapes[0], expected=shapes[1], help=OTHER_MODEL)


def find_layers(model: Transformer) -> dict[str, nn.Linear]:
    """Linear layers of a model that can have an adapter, by name: those of attention and dense MLPs.

    Experts and latent attention are excluded, because their inputs are not the rows of the batch.
    """
    kinds = [module for module in model.named_modules() if isinstance(module[1], SelfAttention | MLP)]
    routed = [name for name, _ in model.named_modules() if ".experts." in name or ".shared." in name]
    return {
        f"{name}.{child}": linear
        for name, module in kinds
        if name not in routed
        for child, linear in module.named_children()
        if isinstance(linear, nn.Linear)
    }


def new_adapter(
    model: Transformer, lora_rank: int, *, lora_alpha: float, targets: Sequence[str] = ("query", "value"), seed: int
) -> Adapter:
    """New adapter of the `targets` in every block, in the model's dtype: A normal of deviation 1/√I, B zero.

    It does not change the outputs yet. InputError for a name that no layer has.
    """
    layers = find_layers(model)
    known = sorted({name.rpartition(".")[2] for name in layers})
    for target in targets:
        if target not in known:
            raise InputError("no layer takes an adapter under this name", got=target, expected=f"of {', '.join(known)}")
    require_at_least_one(lora_rank=lora_rank)
    generator = torch.Generator().manual_seed(seed)
    matrices: dict[str, LowRankPair] = {}
    for name, linear in layers.items():
        if name.rpartition(".")[2] in targets:
            outputs, inputs = linear.weight.shape
            a = torch.randn(lora_rank, inputs, generator=generator, dtype=torch.float64) * inputs**-0.5
            matrices[name] = a.to(linear.weight), linear.weight.new_zeros(outputs, lora_rank)
    return Adapter(lora_rank, lora_alpha, matrices)


@torch.no_grad()
def merge(model: Transformer, adapter: Adapter) -> Transformer:
    """Copy of the model with every W replaced by W + (α/r) B A, computed in float64 and rounded once."""
    adapter.check(model)
    merged = copy.deepcopy(model)
    for name, (a, b) in adapter.matrices.items():
        weight = find_layers(merged)[name].weight
        weight.copy_(weight.double() + adapter.scale * (b.double() @ a.double()))
    return merged


@contextmanager
def apply_adapter(model: Transformer, adapter: Adapter) -> Iterator[None]:
    """Apply one adapter to all forward passes of the model within this block; its weights do not change."""
    adapter.check(model)

    def change(name: str, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        a, b = adapter.matrices[name]
        return y + adapter.scale * (x @ a.mT @ b.mT)  # (..., O)

    with change_outputs(model, adapter.matrices, change):
        yield


@contextmanager
def change_outputs(model: Transformer, names: Iterable[str], change: Change) -> Iterator[None]:
    """Change the outputs of these layers of a model within this block."""
    layers = find_layers(model)
    hooks = [layers[name].register_forward_hook(_make_hook(name, change)) for name in names]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _make_hook(
    name: str, change: Change
) -> Callable[[nn.Module, tuple[torch.Tensor, ...], torch.Tensor], torch.Tensor]:
    return lambda _, inputs, output: change(name, inputs[0], output)
