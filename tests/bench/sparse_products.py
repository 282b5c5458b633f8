"""Densities at which sparse products pay: the bound of their layout next to what libraries reach on one CPU thread.

The processor's time rather than the clock's; the dense product is timed in each round with the sparse one.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
import torch
from rich.table import Table

from mlsys_lab.efficiency.pruning.costs import LAYOUTS, break_even_density, speedup
from mlsys_lab.hardware import Device, device

DENSITIES = (0.02, 0.05, 0.1, 0.2, 0.4, 1.0)
GPU, GPU_PRECISION = "H100", "bf16"
LONG_PROMPT = 4096
"""Tokens at which a GPU's products are limited by compute; those of `CASES` are still limited by memory."""


class Case(NamedTuple):
    """A product of `tokens` tokens with a square weight: of a decoding step, or of a prompt."""

    size: int
    tokens: int


CASES = {"decode": Case(4096, 1), "prefill": Case(2048, 256)}
"""The weight of the decoding step, 64 MiB, is larger than a CPU's caches."""

Product = Callable[[Any], Any]


def _torch(weight: torch.Tensor) -> Product:
    return lambda x: weight @ torch.from_numpy(x)


LIBRARIES: Mapping[tuple[str, str], Callable[[torch.Tensor], Product]] = {
    ("csr", "scipy"): lambda w: scipy.sparse.csr_array(w.numpy()).__matmul__,
    ("csr", "torch"): lambda w: _torch(w.to_sparse_csr()),
    ("block 16", "scipy"): lambda w: scipy.sparse.bsr_array(w.numpy(), blocksize=(16, 16)).__matmul__,
    ("block 16", "torch"): lambda w: _torch(w.to_sparse_bsr((16, 16))),
}
"""A product of X with a weight of zeros, by layout and library."""


def prune_at_random(size: int, block: int, density: float, generator: torch.Generator) -> torch.Tensor:
    """A weight whose squares of `block` are kept with this probability: (size, size)."""
    kept = torch.rand(size // block, size // block, generator=generator) < density
    weight = torch.randn(size, size, generator=generator)
    return weight * kept.repeat_interleave(block, 0).repeat_interleave(block, 1)


def time_ratios(case: Case, layout: str, library: str, rounds: int) -> dict[float, float]:
    """Time of a library's product over the dense one, by density: the median of rounds."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(case.size, case.tokens, generator=generator).numpy()
    ratios = {}
    for density in DENSITIES:
        weight = prune_at_random(case.size, LAYOUTS[layout].block, density, generator)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that torch's sparse layouts may change
            dense, sparse = _torch(weight), LIBRARIES[layout, library](weight)
            np.testing.assert_allclose(sparse(x), dense(x), rtol=1e-3, atol=1e-3)
            ratios[density] = median(_time_s(sparse, x) / _time_s(dense, x) for _ in range(rounds))
    return ratios


def crossing(ratios: Mapping[float, float]) -> float:
    """Density at which the ratio is 1, between two measured ones on a line of logarithms; the last if none is above."""
    points = sorted(ratios.items())
    above = [index for index, (_, ratio) in enumerate(points) if ratio > 1]
    if not above or above[0] == 0:
        return points[0 if above else -1][0]
    (low, low_ratio), (high, high_ratio) = points[above[0] - 1 : above[0] + 1]
    return float(np.exp(np.interp(0, np.log([low_ratio, high_ratio]), np.log([low, high]))))


def break_even_table(cpu: Device, rounds: int) -> tuple[Table, dict[str, dict[str, float]]]:
    """Break-even densities by layout and library, as bound and measured on a CPU, and as bound on a GPU."""
    figures: dict[str, dict[str, float]] = {}
    for layout, library in LIBRARIES:
        row = figures[f"{layout}, {library}"] = {}
        for name, case in CASES.items():
            shape = (case.size, case.size)
            row[f"{name}, bound"] = break_even_density(cpu, "fp32", layout, shape, case.tokens)
            row[f"{name}, measured"] = crossing(time_ratios(case, layout, library, rounds))
            row[f"{name}, bound {GPU}"] = break_even_density(device(GPU), GPU_PRECISION, layout, shape, case.tokens)
    table = Table("layout", *next(iter(figures.values())), title="density below which a sparse product is faster")
    for row_name, row in figures.items():
        table.add_row(row_name, *(f"{value:.3f}" for value in row.values()))
    return table, figures


def gpu_lines() -> str:
    """What the roofline says of a GPU, where nothing was measured: 2:4, and break-even densities at a long prompt."""
    gpu, shape = device(GPU), (CASES["decode"].size,) * 2
    gains = [f"{speedup(gpu, GPU_PRECISION, '2:4', shape, 0.5, tokens):.2f}" for tokens in (1, LONG_PROMPT)]
    density = break_even_density(gpu, GPU_PRECISION, "csr", shape, LONG_PROMPT)
    return (
        f"{GPU}, {GPU_PRECISION}, 1 and {LONG_PROMPT:,} tokens: 2:4 at most {gains[0]} and {gains[1]} times as fast; "
        f"csr pays below a density of {density:.3f} at {LONG_PROMPT:,}. Not measured: it needs a GPU."
    )


def _time_s(product: Product, x: Any) -> float:
    start_s = time.process_time()
    product(x)
    return time.process_time() - start_s
