"""Right answers of earlier functions, as inputs of the checks of later ones."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from mlsys_checks.sandboxed.spec import Arrays
from mlsys_checks.sandboxed.transformer_arithmetic.given import GIVEN, Answers, write_answers
from mlsys_checks.trusted.transformer_arithmetic.oracle import products_of, weights_of

Product = tuple[str, int, int, int, int]


def give(*answers: Answers) -> Arrays:
    """The array that hands answers to the learner's code."""
    return {GIVEN: write_answers({name: calls for some in answers for name, calls in some.items()})}


def answer_parameters(model: np.ndarray) -> Answers:
    """What `parameter_table` gives for a model."""
    return {"parameter_table": {(): weights_of(model).by_kind()}}


def answer_products(model: np.ndarray, *sizes: tuple[int, int]) -> Answers:
    """What `forward_products` gives for each batch and number of tokens."""
    return {"forward_products": {size: sum_products(products_of(model, *size)) for size in sizes}}


def sum_products(rows: Iterable[Product]) -> list[Product]:
    """Products (name, times, m, k, n), those of one name and shape added up."""
    times: dict[tuple[str, int, int, int], int] = {}
    for name, count, m, k, n in rows:
        times[name, m, k, n] = times.get((name, m, k, n), 0) + count
    return [(name, count, m, k, n) for (name, m, k, n), count in times.items()]
