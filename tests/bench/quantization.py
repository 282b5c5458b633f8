"""What quantization costs: the rise of the loss on hidden text of five grammars, for formats and methods.

    python -m tests.bench.quantization [--record]

Prints the mean over the five models of `grammar_models` and the range, then the goals; exits with 1 if one is missed.
Outliers are planted without changing the function, so that methods that handle them can be distinguished.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import mean
from typing import NamedTuple

import torch
from rich.console import Console
from rich.table import Table
from torch.nn import functional as F

from mlsys_lab.benchmark import new_record
from mlsys_lab.efficiency.formats import E2M1, INT4, INT8, NF4, UINT3, UINT4
from mlsys_lab.efficiency.quantization import Recipe, Scheme, plant_outliers, quantize
from mlsys_lab.models import Transformer
from tests.bench.goals import HELP, Goal, conclude
from tests.bench.grammar_models import CALIBRATION, HELD_OUT, SEEDS, load_trained

BOOK = Path(__file__).parents[2] / "book" / "data" / "measurements"
CALIBRATION_WINDOWS, HELD_OUT_WINDOWS = 32, 128
OUTLIERS, EXPONENT = (3, 77), 6
INT4_GROUPS, INT3_GROUPS = Scheme(UINT4, "group", 32), Scheme(UINT3, "group", 32)
MXFP4 = Scheme(E2M1, "group", 32, torch.float8_e8m0fnu)
STATIC, BY_TOKEN = (Scheme(INT8, strategy, scale_dtype=torch.float32) for strategy in ("tensor", "channel"))
FOUR_BITS_BY_TOKEN = Scheme(INT4, scale_dtype=torch.float32)
WEIGHTS = {
    "int8 by channel": Recipe(Scheme(INT8)),
    "int4, groups of 32": Recipe(INT4_GROUPS),
    "int4, scales of least squares": Recipe(INT4_GROUPS, clipping="mse"),
    "int4, AWQ": Recipe(INT4_GROUPS, "awq"),
    "int4, GPTQ": Recipe(INT4_GROUPS, "gptq"),
    "int4, GPTQ in order of activations": Recipe(INT4_GROUPS, "gptq", act_order=True),
    "int4 without zero points": Recipe(Scheme(INT4, "group", 32)),
    "int4 without zero points, GPTQ": Recipe(Scheme(INT4, "group", 32), "gptq"),
    "NF4, groups of 32": Recipe(Scheme(NF4, "group", 32)),
    "MXFP4": Recipe(MXFP4),
    "MXFP4, GPTQ": Recipe(MXFP4, "gptq"),
    "NVFP4": Recipe(Scheme(E2M1, "group", 16, torch.float8_e4m3fn)),
    "int3, groups of 32": Recipe(INT3_GROUPS),
    "int3, GPTQ": Recipe(INT3_GROUPS, "gptq"),
}
ACTIVATIONS = {
    "W8A8": Recipe(Scheme(INT8), activations=STATIC),
    "W8A8, percentile": Recipe(Scheme(INT8), activations=STATIC, clipping="percentile"),
    "W8A8, SmoothQuant": Recipe(Scheme(INT8), activations=STATIC, transform="smooth"),
    "W8A8, rotated": Recipe(Scheme(INT8), activations=STATIC, transform="rotate"),
    "W8A8 by token": Recipe(Scheme(INT8), activations=BY_TOKEN),
    "W8A8 by token, SmoothQuant": Recipe(Scheme(INT8), activations=BY_TOKEN, transform="smooth"),
    "W8A8 by token, rotated": Recipe(Scheme(INT8), activations=BY_TOKEN, transform="rotate"),
    "W4A4 by token": Recipe(INT4_GROUPS, activations=FOUR_BITS_BY_TOKEN),
    "W4A4 by token, rotated": Recipe(INT4_GROUPS, activations=FOUR_BITS_BY_TOKEN, transform="rotate"),
}
PLANTED = " with outliers"
GOALS = {
    "int8 by channel: rise of the perplexity, %": Goal("<=", 0.1),
    "int4, GPTQ over rounding to nearest": Goal("<=", 0.5),
    "W8A8, with outliers over without": Goal(">=", 10.0),
    "W8A8, SmoothQuant with outliers over W8A8 without": Goal("<=", 2.0),
    "W8A8, rotated with outliers over W8A8 without": Goal("<=", 2.0),
}


class Cost(NamedTuple):
    """Rise of the loss, and Kullback-Leibler divergence from the original model's predictions, in nats per token."""

    loss: float
    divergence: float


class Reference:
    """A model's own predictions on windows (B, T + 1), for costs of models made from it."""

    def __init__(self, model: Transformer, windows: torch.Tensor) -> None:
        self.inputs, self.targets = windows[:, :-1], windows[:, 1:].flatten()
        self.log_p = self._predict(model)  # (B · T, V)

    @torch.no_grad()
    def cost(self, model: Transformer) -> Cost:
        log_q = self._predict(model)
        rise = F.nll_loss(log_q, self.targets) - F.nll_loss(self.log_p, self.targets)
        return Cost(rise.item(), F.kl_div(log_q, self.log_p, reduction="batchmean", log_target=True).item())

    @torch.no_grad()
    def _predict(self, model: Transformer) -> torch.Tensor:
        return model(self.inputs).flatten(0, 1).log_softmax(-1)


def measure(seed: int) -> dict[str, Cost]:
    """Costs of all recipes on the model of a seed."""
    trained = load_trained(seed)
    model, calibration = trained.model, trained.windows(CALIBRATION, CALIBRATION_WINDOWS)[:, :-1]
    reference = Reference(model, trained.windows(HELD_OUT, HELD_OUT_WINDOWS))
    planted = plant_outliers(model, OUTLIERS, EXPONENT)
    models = {name: (model, recipe) for name, recipe in (WEIGHTS | ACTIVATIONS).items()}
    models |= {name + PLANTED: (planted, recipe) for name, recipe in ACTIVATIONS.items()}
    return {name: reference.cost(quantize(one, recipe, calibration)) for name, (one, recipe) in models.items()}


def ratios(costs: Mapping[str, list[Cost]]) -> dict[str, float]:
    """What the goals are about, from the means over the seeds."""
    loss = {name: mean(cost.loss for cost in of_seeds) for name, of_seeds in costs.items()}
    perplexity = 100 * (torch.tensor(loss["int8 by channel"]).exp().item() - 1)
    over_clean = [loss[f"W8A8{how}{PLANTED}"] / loss["W8A8"] for how in ("", ", SmoothQuant", ", rotated")]
    values = (perplexity, loss["int4, GPTQ"] / loss["int4, groups of 32"], *over_clean)
    return dict(zip(GOALS, values, strict=True))


def describe(costs: Mapping[str, list[Cost]]) -> Table:
    """Mean and range over the seeds of each recipe."""
    table = Table("", "bits per weight", "rise of the loss, 10⁻³ nats", "from … to", "KL, 10⁻³ nats")
    for name, of_seeds in costs.items():
        losses = [1000 * cost.loss for cost in of_seeds]
        divergence = 1000 * mean(cost.divergence for cost in of_seeds)
        spread = f"{min(losses):.2f} … {max(losses):.2f}"
        table.add_row(name, f"{bits(name):.3g}", f"{mean(losses):.2f}", spread, f"{divergence:.2f}")
    return table


def bits(name: str) -> float:
    """Bits per weight of a recipe, for a layer of 128 by 128."""
    return (WEIGHTS | ACTIVATIONS)[name.removesuffix(PLANTED)].weights.bits_per_weight((128, 128))


def main() -> int:
    """Exit status: 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("--record", action="store_true", help=f"{HELP}, and all losses to the book")
    args = parser.parse_args()
    torch.set_num_threads(1)
    by_seed = [measure(seed) for seed in SEEDS]
    costs = {name: [one[name] for one in by_seed] for name in by_seed[0]}
    Console(width=120).print(describe(costs))
    if args.record:
        record(costs)
    title = f"losses of quantized models, means over {len(SEEDS)} grammars"
    return conclude("quantization", title, GOALS, {"measured": ratios(costs)}, record=args.record)


def record(costs: Mapping[str, list[Cost]]) -> None:
    """Write what quantization costs on each seed for the book."""
    new_record(
        "quantization-losses",
        "rise of the loss on hidden text by int4 weights in groups of 32 with GPTQ, one sample a grammar",
        [cost.loss for cost in costs["int4, GPTQ"]],
        unit="nats per token",
        better="lower",
        command="python -m tests.bench.quantization --record",
        seed=0,
        notes=f"outliers: channels {OUTLIERS} of every norm's output times 2^{EXPONENT}, which the next weights undo",
        parameters={
            name: {
                "bits_per_weight": bits(name),
                "loss": [round(cost.loss, 6) for cost in of_seeds],
                "divergence": [round(cost.divergence, 6) for cost in of_seeds],
            }
            for name, of_seeds in costs.items()
        },
    ).save(BOOK)


if __name__ == "__main__":
    sys.exit(main())
