"""The oracle of lab 05 at sizes that it does not run: what it says of them is what running them would give."""

from __future__ import annotations

import numpy as np
import pytest

from mlsys_checks.trusted.transformer_arithmetic import counts, einsum, memory
from mlsys_checks.trusted.transformer_arithmetic.given import sum_products
from mlsys_checks.trusted.transformer_arithmetic.oracle import draw_model, products_of


@pytest.fixture
def model() -> np.ndarray:
    return draw_model(np.random.default_rng(0), n_heads=6, n_kv_heads=2)


@pytest.mark.parametrize("size", [(5, 7), (1, 9), (4, 1)], ids=str)
def test_products_of_many_sequences_and_tokens(size: tuple[int, int], model: np.ndarray) -> None:
    assert counts.products_at(model, *size) == sum_products(products_of(model, *size))


def test_activations_of_long_sequences(model: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = memory.kept_bytes(model, 3, 40)
    monkeypatch.setattr(memory, "MOST_TOKENS", 0)
    assert memory.kept_at(model, 3, 40, 2) == ran


@pytest.mark.parametrize("spec", ["ij,jk->ik", "ij,ij->", "ab,bc,cd->ad", "ij->ji"])
def test_einsums_of_many_turns(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, shapes = einsum._drawn(np.random.default_rng(0), spec, {"": (2, 6)}, odd=False)
    ran = einsum.loop_nest(spec, shapes)
    monkeypatch.setattr(einsum, "MOST_LOOPS", 0)
    assert einsum.count_nest(spec, shapes) == ran
