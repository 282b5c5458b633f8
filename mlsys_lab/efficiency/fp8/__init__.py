"""Training in 8 bits: operands of matrix products in FP8, weights and optimizer in fp32.

scaling    CurrentScaling, DelayedScaling, BlockScaling: cast a tensor to 8 bits with scales, powers of two
recipes    Recipe, RECIPES: formats and scaling of inputs, weights and gradients
linear     Fp8Linear(linear, recipe): a layer whose three products have 8-bit operands
convert    convert(model, recipe) -> a copy of a model that trains in 8 bits; what stays in high precision
counters   count_lost(model): numbers that underflow or saturate, by tensor
costs      savings(config, recipe, tokens): FLOPs and bytes that 8 bits save
"""

from mlsys_lab.efficiency.fp8.convert import convert, high_precision_parameters
from mlsys_lab.efficiency.fp8.costs import Savings, savings
from mlsys_lab.efficiency.fp8.counters import Lost, count_lost
from mlsys_lab.efficiency.fp8.linear import Fp8Linear
from mlsys_lab.efficiency.fp8.recipes import RECIPES, Recipe
from mlsys_lab.efficiency.fp8.scaling import BlockScaling, CurrentScaling, DelayedScaling, ScaledTensor

__all__ = [
    "RECIPES",
    "BlockScaling",
    "CurrentScaling",
    "DelayedScaling",
    "Fp8Linear",
    "Lost",
    "Recipe",
    "Savings",
    "ScaledTensor",
    "convert",
    "count_lost",
    "high_precision_parameters",
    "savings",
]
