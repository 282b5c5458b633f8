"""Quantization-aware training: what a short fine-tuning regains of the loss that rounding to few bits costs.

    python -m tests.bench.quantized_training [--record]

Prints goals and measurements, and exits with 1 if a goal is missed. The models of `tests.bench.grammar_models` are
tuned on new text of their grammars, once in fp32 and once with rounded weights for each number of bits. Both see the
same tokens, so that a gain from more training is not counted. Takes about four minutes on one thread.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Mapping
from statistics import mean, stdev

import torch
from torch import nn

from mlsys_lab.efficiency.formats import UINT2, UINT3, UINT4
from mlsys_lab.efficiency.quantization import Recipe, Scheme, quantize
from mlsys_lab.efficiency.quantization.qat import prepare_qat
from mlsys_lab.models import Transformer, training
from tests.bench.goals import HELP, Goal, conclude
from tests.bench.grammar_models import BATCH, CONTEXT, HELD_OUT, SEEDS, Trained, load_trained, loss

FINE_TUNING = 3
"""Seed of the text that models are tuned on."""
STEPS, LR = 50, 1e-3
RECIPES = {f"int{format.bits}": Recipe(Scheme(format, "group", 32)) for format in (UINT4, UINT3, UINT2)}
GOALS = {name: Goal("<=", 0.5) for name in RECIPES}
"""Increase of the loss by rounding after training with rounded weights, over the increase without.

Losses of two trainings differ by about 0.001 nats whatever the rounding, as much as int4 loses."""


def tune(trained: Trained, model: Transformer, seed: int) -> Transformer:
    """Train a model in place on new text of its grammar."""
    tokens = trained.grammar.sample(STEPS * BATCH * CONTEXT + 2 * CONTEXT, seed=FINE_TUNING)
    run = training.train(model, tokens, batch_size=BATCH, seq_len=CONTEXT, steps=STEPS, lr=LR, seed=seed)
    for _ in run:
        pass
    return model.eval()


def losses(seed: int) -> dict[str, tuple[float, float, float]]:
    """Held-out loss by bits: of the model tuned in fp32, of that model rounded, and of the one tuned with rounding."""
    trained = load_trained(seed)
    held_out = trained.windows(HELD_OUT)
    exact = tune(trained, copy.deepcopy(trained.model), seed)
    found = {}
    for name, recipe in RECIPES.items():
        aware = tune(trained, prepare_qat(trained.model, recipe), seed)
        models: tuple[nn.Module, ...] = (exact, quantize(exact, recipe), quantize(aware, recipe))
        first, rounded, tuned = (loss(model, held_out) for model in models)
        found[name] = first, rounded, tuned
    return found


def report(runs: list[Mapping[str, tuple[float, float, float]]]) -> dict[str, float]:
    """Print the increase of the loss by bits, with its spread; return what is left of it after training."""
    measured = {}
    for name in RECIPES:
        nearest = [run[name][1] - run[name][0] for run in runs]
        aware = [run[name][2] - run[name][0] for run in runs]
        measured[name] = mean(aware) / mean(nearest)
        print(
            f"{name}: loss {mean(run[name][0] for run in runs):.4f} nats;"
            f" rounded to nearest {mean(nearest):+.4f} ± {stdev(nearest):.4f},"
            f" trained with rounding {mean(aware):+.4f} ± {stdev(aware):.4f}"
        )
    return measured


def main() -> int:
    """Exit status: 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--record", action="store_true", help=HELP)
    args = parser.parse_args()
    torch.set_num_threads(1)
    measured = report([losses(seed) for seed in SEEDS])
    title = f"increase of the held-out loss after {STEPS} steps with rounded weights, over that of rounding to nearest"
    return conclude("quantized_training", title, GOALS, {"measured": measured}, record=args.record)


if __name__ == "__main__":
    sys.exit(main())
