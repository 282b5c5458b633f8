"""Adapters' parameters against the paper's figures, and against adapters that are built."""

from __future__ import annotations

import pytest

from mlsys_lab.configs.presets import preset
from mlsys_lab.errors import InputError
from mlsys_lab.flops.adapters import ATTENTION, EVERY, adapter_bytes, adapter_flops, adapter_parameters
from mlsys_lab.inference.adapters import new_adapter
from mlsys_lab.inference.pretrained import load_pair


@pytest.mark.parametrize("rank, millions", [(1, 4.7), (8, 37.7)])  # LoRA, arXiv:2106.09685, table 4
def test_published_numbers_of_parameters(rank: int, millions: float) -> None:
    assert adapter_parameters(preset("gpt3-175b"), rank) / 1e6 == pytest.approx(millions, abs=0.05)


def test_a_checkpoint_of_350_gb_becomes_roughly_a_ten_thousandth() -> None:
    # LoRA, §4.2: with rank 4, beside query and value.
    assert 350e9 / adapter_bytes(preset("gpt3-175b"), 4) == pytest.approx(10_000, rel=0.1)


@pytest.mark.parametrize("targets", [("query", "value"), ATTENTION, EVERY])
def test_adapters_that_are_built_have_as_many(targets: tuple[str, ...]) -> None:
    model = load_pair().target
    adapter = new_adapter(model, 5, lora_alpha=5, targets=targets, seed=0)
    built = sum(matrix.numel() for pair in adapter.matrices.values() for matrix in pair)
    assert adapter_parameters(model.config, 5, targets) == built
    assert adapter_bytes(model.config, 5, targets, weight_bytes=4) == adapter.size_bytes
    assert adapter_flops(model.config, 5, targets) == 2 * built


def test_what_is_not_counted_is_said_in_one_line() -> None:
    with pytest.raises(
        InputError, match="no matrix of a block: got gate, expected of query, key, value, out, up, down"
    ):
        adapter_parameters(preset("gpt3-175b"), 4, ("gate",))
    with pytest.raises(InputError, match="experts"):
        adapter_parameters(preset("mixtral-8x7b"), 4)
    with pytest.raises(InputError, match="rank must be at least 1: got 0"):
        adapter_parameters(preset("gpt3-175b"), 0)
