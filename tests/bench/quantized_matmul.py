"""Quantized weights on a CPU: products with one row of activations, and decoding of a model of 100 M parameters.

    python -m tests.bench.quantized_matmul [--rounds N] [--record]

Prints goals and measurements, and exits with 1 if a goal is missed. One thread, and the processor's time rather than
the clock's. A round measures all alternatives one after the other, and a ratio is the median of those of the rounds.
Weights come from memory: there are copies of them, larger together than the CPU's caches.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from statistics import median

import torch
from torch.nn import functional as F

from mlsys_lab.efficiency.quantization import quantize
from mlsys_lab.flops.parameters import parameters
from mlsys_lab.inference.engine import Engine, Request, SamplingParams
from mlsys_lab.kernels.quantized_matmul import int4_matmul, int8_matmul
from mlsys_lab.kernels.quantized_matmul.cost import Weights, forward
from mlsys_lab.models import Transformer
from tests.bench.decode import LARGE, processor_s
from tests.bench.goals import HELP, Goal, conclude

SIZE, GROUP, COPIES_BYTES = 4096, 32, 2**27
"""Inputs and outputs of a product, inputs of a group of 4-bit weights, bytes of all copies of the weights."""
WEIGHTS = {
    "fp32": Weights(SIZE, SIZE, 32, scale_itemsize=4),
    "int8": Weights(SIZE, SIZE, 8, scale_itemsize=2),
    "int4": Weights(SIZE, SIZE, 4, group=GROUP, scale_itemsize=2, has_zero_points=True),
}
GOALS = {
    "one row at 4096 × 4096: fp32 over int8": Goal(">=", 3.0),
    "one row at 4096 × 4096: int8 over int4 in groups of 32": Goal(">=", 1.0),
    "one row, int8: fraction of the memory bound": Goal(">=", 0.6),
    "one row, int4: fraction of the memory bound": Goal(">=", 0.6),
    "64 rows: dequantizing int4 over reading codes": Goal(">=", 1.0),
    "decoding 100 M parameters: fp32 over int8 blocks": Goal(">=", 2.0),
    "decoding 100 M parameters: fp32 over int4 blocks": Goal(">=", 2.0),
}
Products = Mapping[str, list[Callable[[torch.Tensor], torch.Tensor]]]
"""Products with copies of the same weights, by kind."""


def copies(kind: str) -> range:
    return range(-(-COPIES_BYTES // WEIGHTS[kind].size_bytes))


def make_products() -> Products:
    """Products with copies of random weights, by kind; the row of activations is their argument."""

    def fp32() -> Callable[[torch.Tensor], torch.Tensor]:
        weight = torch.randn(SIZE, SIZE)
        return lambda x: F.linear(x, weight)

    def int8() -> Callable[[torch.Tensor], torch.Tensor]:
        codes, scale = torch.randint(-127, 128, (SIZE, SIZE), dtype=torch.int8), torch.rand(SIZE).half()
        return lambda x: int8_matmul(x, codes, scale, step="compiled")

    def int4() -> Callable[[torch.Tensor], torch.Tensor]:
        packed = torch.randint(0, 256, (SIZE, SIZE // 2), dtype=torch.uint8)
        scale = torch.rand(SIZE, SIZE // GROUP).half()
        zero_point = torch.randint(0, 16, scale.shape, dtype=torch.uint8)
        return lambda x: int4_matmul(x, packed, scale, zero_point, step="compiled")

    return {make.__name__: [make() for _ in copies(make.__name__)] for make in (fp32, int8, int4)}


def measure_products(rounds: int) -> list[dict[str, float]]:
    """Seconds of a product of one row by kind, and of a copied byte ("copy"), in each round."""
    products, x, source = make_products(), torch.randn(1, SIZE), torch.ones(COPIES_BYTES // 4)
    target = torch.empty_like(source)

    def measure() -> dict[str, float]:
        seconds = {
            kind: processor_s(lambda: [multiply(x) for multiply in products[kind]]) / len(products[kind])  # noqa: B023
            for kind in products
        }
        return seconds | {"copy": processor_s(lambda: target.copy_(source)) / (2 * COPIES_BYTES)}

    measure()  # compiles
    return [measure() for _ in range(rounds)]


def many_rows_ratio(rounds: int) -> float:
    """Time of a product of 64 rows with dequantized int4 weights over that with their codes."""
    packed, scale = torch.randint(0, 256, (SIZE, SIZE // 2), dtype=torch.uint8), torch.rand(SIZE, SIZE // GROUP)
    x = torch.randn(64, SIZE)
    ratios = []
    for _ in range(rounds):
        dequantized_s, compiled_s = (
            processor_s(lambda: int4_matmul(x, packed, scale, step=step))  # noqa: B023
            for step in ("reference", "compiled")
        )
        ratios.append(dequantized_s / compiled_s)
    return median(ratios)


def measure_decoding(rounds: int, num_cached: int = 128) -> list[dict[str, float]]:
    """Seconds of an engine's step that generates one token, by the weights of the model's blocks, in each round.

    Embedding and head stay in fp32, as `quantize` leaves them.
    """
    model, engines = Transformer(LARGE), dict[str, Engine]()
    for kind in WEIGHTS:
        weights = model if kind == "fp32" else quantize(model, kind)
        engines[kind] = Engine(weights, num_blocks=16, compiled=True)
        engines[kind].add_request(Request([1] * num_cached, rounds + 2, SamplingParams(temperature=0)))
        engines[kind].step()
        engines[kind].step()
    return [{kind: processor_s(engine.step) for kind, engine in engines.items()} for _ in range(rounds)]


def ratio(measured: list[dict[str, float]], slow: str, fast: str) -> float:
    return median(seconds[slow] / seconds[fast] for seconds in measured)


def bound_fraction(measured: list[dict[str, float]], kind: str) -> float:
    """Time to move a product's bytes at the copy bandwidth, over the time of the product."""
    _, size_bytes = forward(1, WEIGHTS[kind], itemsize=4)
    return median(size_bytes * seconds["copy"] / seconds[kind] for seconds in measured)


def main() -> int:
    """Exit status: 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("--rounds", type=int, default=15, help="measurements of each ratio")
    parser.add_argument("--record", action="store_true", help=HELP)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    products = measure_products(args.rounds)
    many_rows = many_rows_ratio(max(1, args.rounds // 5))
    decoding = measure_decoding(args.rounds)
    ratios = (
        ratio(products, "fp32", "int8"),
        ratio(products, "int8", "int4"),
        bound_fraction(products, "int8"),
        bound_fraction(products, "int4"),
        many_rows,
        ratio(decoding, "fp32", "int8"),
        ratio(decoding, "fp32", "int4"),
    )
    title = f"quantized weights on one thread; the model has {parameters(LARGE).total / 1e6:.0f} M parameters"
    measured = {"measured": dict(zip(GOALS, ratios, strict=True))}
    return conclude("quantized_matmul", title, GOALS, measured, record=args.record)


if __name__ == "__main__":
    sys.exit(main())
