"""The integration points: where the layers of a stack meet, each held against an independent result.

Dimension letters: T tokens of a sequence, V vocabulary.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from mlsys_lab.capstone.job import Calibration, Rates, Serving, Shape
from mlsys_lab.capstone.logits import logit_errors
from mlsys_lab.capstone.measurement import compare, measure
from mlsys_lab.capstone.serving import build_engine, generate_greedy
from mlsys_lab.capstone.sheet import predict
from mlsys_lab.capstone.stack import Stack
from mlsys_lab.capstone.training import TrainResult, train
from mlsys_lab.configs import TrainConfig, TransformerConfig
from mlsys_lab.errors import CourseError
from mlsys_lab.inference.engine import SchedulerConfig
from mlsys_lab.models import Transformer, load
from mlsys_lab.models.saving import save
from mlsys_lab.models.training import one_thread

TOLERANCE = 1e-10
CONFIG = TransformerConfig(
    "integration", n_layers=2, d_model=20, n_heads=4, n_kv_heads=2, head_dim=6, d_ff=28, vocab_size=53, context=64
)
"""A small model of odd sizes, with two query heads for each key head."""
TRAIN = TrainConfig(batch_size=6, seq_len=11, steps=4, lr=1e-2)
IDS = np.random.default_rng(0).integers(0, CONFIG.vocab_size, 1500)
RANKS, STOP, SEQUENCE_TOKENS = 4, 2, 24
NUM_REQUESTS, MAX_TOKENS, NUM_BLOCKS, BLOCK_SIZE = 32, 8, 48, 4


class Point(NamedTuple):
    """An integration point: what was checked, whether it holds, and the figure that says so."""

    name: str
    holds: bool
    figure: str

    def __str__(self) -> str:
        return f"{'ok' if self.holds else 'FAILS':5}  {self.name}: {self.figure}"


def check_points(stack: Stack, model: Path | None = None) -> Iterator[Point]:
    """Check each point, on the weights of a folder where there is one, else on random ones.

    A layer that raises makes a point that does not hold, with the layer's error as its figure.
    """
    with tempfile.TemporaryDirectory() as temporary, one_thread():
        folder = model or Path(temporary)
        if model is None:
            save(_random_model(), folder, dtype=torch.float64)
        checks: dict[str, Callable[[], Point]] = {
            "logits": lambda: check_logits(stack, folder),
            "ranks": lambda: check_ranks(stack),
            "resume": lambda: check_resume(stack),
            "serving": lambda: check_serving(stack, folder),
            "sheet": lambda: check_counts(stack),
        }
        for name, check in checks.items():
            try:
                yield check()
            except Exception as error:
                said = str(error) if isinstance(error, CourseError) else f"{type(error).__name__}: {error}"
                yield Point(name, False, " ".join(said.split()))


def check_logits(stack: Stack, folder: Path) -> Point:
    """One file of weights gives the same logits on the engine and through the KV cache as in `models.Transformer`."""
    vocab_size = load(folder, dtype=torch.float64).config.vocab_size
    errors = logit_errors(stack, folder, (IDS[:SEQUENCE_TOKENS] % vocab_size).tolist())
    figure = f"engine {errors.engine:.1e}, KV cache {errors.cache:.1e} from models.Transformer, in float64"
    return Point("logits", max(errors) < TOLERANCE, figure)


def check_ranks(stack: Stack) -> Point:
    """Several ranks train the weights that one rank trains."""
    difference = _largest_difference(_train(stack, RANKS), _train(stack, 1))
    return Point("ranks", difference < TOLERANCE, f"{RANKS} ranks differ from one by {difference:.1e} in their weights")


def check_resume(stack: Stack) -> Point:
    """A run that stops in the middle and resumes trains the weights of a run that does not stop."""
    first = _train(stack, RANKS, until=STOP)
    difference = _largest_difference(_train(stack, RANKS, first), _train(stack, RANKS))
    return Point("resume", difference < TOLERANCE, f"a run that stopped differs by {difference:.1e} in its weights")


def check_serving(stack: Stack, folder: Path) -> Point:
    """Requests that are served together, in few blocks, get the tokens of greedy decoding without a cache."""
    model = load(folder, dtype=torch.float64).eval()
    ids = (IDS % model.config.vocab_size).tolist()
    shared = ids[:13]
    prompts = [
        shared[: number % 14] + ids[40 * number : 40 * number + 1 + number % 20] for number in range(NUM_REQUESTS)
    ]
    limits = SchedulerConfig(max_num_seqs=NUM_REQUESTS, max_num_batched_tokens=NUM_REQUESTS)
    engine = build_engine(stack, model, num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, config=limits)
    served = generate_greedy(engine, prompts, MAX_TOKENS)
    equal = sum(got == decode_uncached(model, prompt) for got, prompt in zip(served, prompts, strict=True))
    figure = f"{equal} of {NUM_REQUESTS} requests, served together, got the tokens of uncached greedy decoding"
    return Point("serving", equal == NUM_REQUESTS, figure)


def check_counts(stack: Stack) -> Point:
    """The counts of a prediction sheet are those of the run."""
    serving, weights = Serving(prompt_tokens=9, new_tokens=6), {name: one.float() for name, one in _weights().items()}
    sheet = predict(stack, CONFIG, TRAIN, RANKS, _any_calibration(), serving=serving)
    rows = compare(sheet, measure(stack, CONFIG, weights, IDS, TRAIN, RANKS, serving=serving))
    counts = [row for row in rows if row.is_equal is not None]
    wrong = [row for row in counts if not row.is_equal]
    figure = f"{len(counts) - len(wrong)} of {len(counts)} counts are as predicted"
    if wrong:
        one = wrong[0]
        figure += f"; {one.cost.name}: predicted {one.predicted:,g}, counted {one.measured:,g}"
    return Point("sheet", not wrong, figure)


def decode_uncached(model: Transformer, prompt: list[int]) -> list[int]:
    """The likeliest tokens, each from a forward pass over all tokens before it."""
    tokens = list(prompt)
    for _ in range(MAX_TOKENS):
        with torch.no_grad():
            tokens.append(int(model(torch.tensor([tokens]))[0, -1].argmax()))
    return tokens[len(prompt) :]


def _random_model() -> Transformer:
    """A model in float64 whose weights are far from their initial values, so that no block is close to an identity."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(5)
        model = Transformer(CONFIG).double().eval()
        for weight in model.parameters():
            weight.normal_(std=0.3) if weight.ndim == 2 else weight.normal_(1, 0.3)
    return model


def _weights() -> dict[str, torch.Tensor]:
    return {name: one.detach() for name, one in _random_model().named_parameters()}


def _train(stack: Stack, ranks: int, stopped: TrainResult | None = None, *, until: int | None = None) -> TrainResult:
    return train(stack, CONFIG, _weights(), IDS, TRAIN, ranks, states=stopped.states if stopped else (), until=until)


def _largest_difference(one: TrainResult, other: TrainResult) -> float:
    return max((one.weights[name] - weight).abs().max().item() for name, weight in other.weights.items())


class _SameRates(Rates):
    """The same rate for every shape: counts do not depend on it."""

    def __missing__(self, shape: Shape) -> float:
        return 1e9


def _any_calibration() -> Calibration:
    return Calibration(_SameRates(), 1e-9, 1e-4, 1e8, 1e10, 1e9)
