"""Bytes of training states by recipe and ZeRO stage."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlsys_lab.errors import InputError
from mlsys_lab.flops.memory import RECIPES, ZERO_STAGES, Recipe, recipe, states


def test_bytes_a_parameter() -> None:
    assert {name: one.bytes_per_parameter for name, one in RECIPES.items()} == {
        "mixed16": 16, "mixed18": 18, "mixed20": 20, "fp32": 16, "adam8bit": 10, "bf16": 8, "fp8": 13,
    }  # fmt: skip


def test_figure_1_of_zero() -> None:
    psi, ranks = 7.5e9, 64
    gb = [states(psi, RECIPES["mixed16"], data=ranks, zero_stage=stage).total / 1e9 for stage in ZERO_STAGES]
    assert gb == pytest.approx([120, 31.4, 16.6, 1.875], abs=0.05)


@given(
    parameters=st.integers(0, 10**12),
    name=st.sampled_from(sorted(RECIPES)),
    data=st.integers(1, 4096),
    stage=st.sampled_from(ZERO_STAGES),
)
def test_what_is_divided_adds_up_and_a_higher_stage_never_keeps_more(
    parameters: int, name: str, data: int, stage: int
) -> None:
    whole, part = states(parameters, RECIPES[name]), states(parameters, RECIPES[name], data=data, zero_stage=stage)
    assert whole.total == pytest.approx(RECIPES[name].bytes_per_parameter * parameters)
    for kind, divided_from in {"master": 1, "moments": 1, "gradients": 2, "weights": 3}.items():
        ranks = data if stage >= divided_from else 1
        assert getattr(part, kind) * ranks == pytest.approx(getattr(whole, kind))
    higher = states(parameters, RECIPES[name], data=data, zero_stage=min(stage + 1, 3))
    assert higher.total <= part.total


def test_a_wrong_recipe_stage_or_size_is_one_line() -> None:
    with pytest.raises(InputError, match=r"unknown precision recipe: got 'mixed', expected one of mixed16, .* did you"):
        recipe("mixed")
    with pytest.raises(InputError, match="weights must not be negative: got -1"):
        Recipe("odd", -1, 0, 0, 0)
    with pytest.raises(InputError, match=r"unknown format: got 'bf17', expected one of fp32, .* did you mean 'bf16'"):
        Recipe("odd", 1, 0, 0, 0, compute="bf17")
    with pytest.raises(InputError, match="unknown ZeRO stage: got 4, expected 0, 1, 2 or 3"):
        states(1, RECIPES["fp32"], zero_stage=4)
