"""An adapter beside the weights, merged into them, and gathered with others: one and the same function."""

from __future__ import annotations

from random import Random

import pytest
import torch

from mlsys_lab.errors import InputError
from mlsys_lab.inference.adapters import Adapter, AdapterBank, apply_adapter, merge, new_adapter
from tests.inference.adapters.making import EVERY, strong
from tests.inference.making import build, draw

MODEL = build()
GATED = EVERY if MODEL.config.gated else tuple(name for name in EVERY if name != "gate")
NAMES = [None, "a", "b", "c"]
ADAPTERS = {
    "a": strong(MODEL, 3, 1, GATED),
    "b": strong(MODEL, 1, 2, ("query", "value"), alpha=1.0),
    "c": strong(MODEL, 5, 3, ("down",)),
}


@torch.no_grad()
def logits(tokens, adapter=None):
    if adapter is None:
        return MODEL(tokens)
    with apply_adapter(MODEL, adapter):
        return MODEL(tokens)


@pytest.mark.parametrize("name", ADAPTERS)
def test_beside_the_weights_is_as_merged_into_them(name):
    tokens = torch.tensor(draw(2, 9))
    beside, merged = logits(tokens, ADAPTERS[name]), merge(MODEL, ADAPTERS[name])
    assert torch.allclose(beside, merged(tokens), rtol=0, atol=1e-12)
    assert not torch.allclose(beside, logits(tokens), rtol=0, atol=0.1)
    assert all(not module._forward_hooks for module in MODEL.modules())


@pytest.mark.parametrize("seed", range(8))
def test_tokens_of_one_pass_are_each_under_their_own_adapter(seed):
    # Without attention between them, the tokens of a pass are as many passes of one token.
    random, bank = Random(seed), AdapterBank(MODEL, ADAPTERS)
    names = [random.choice(NAMES) for _ in range(random.randint(1, 13))]
    tokens, places = torch.tensor([draw(len(names), seed=seed)]), torch.zeros(1, len(names), dtype=torch.int64)

    def alone(layer, q, k, v):
        return v.repeat_interleave(q.shape[1] // v.shape[1], 1)

    with torch.no_grad(), bank.apply(names):
        together = MODEL(tokens, positions=places, attend=alone)[0]
    for name, token, row in zip(names, tokens[0], together, strict=True):
        one = merge(MODEL, ADAPTERS[name]) if name else MODEL
        with torch.no_grad():
            expected = one(token.view(1, 1), positions=places[:, :1], attend=alone)[0, 0]
        assert torch.allclose(row, expected, rtol=0, atol=1e-12)
        assert name or torch.equal(row, together[names.index(None)]) or token != tokens[0, names.index(None)]


def test_a_bank_says_its_bytes_filled_up_to_the_largest_rank():
    bank = AdapterBank(MODEL, ADAPTERS)
    sides = sum(
        weight for stack in (bank.down, bank.up) for one in stack.values() for weight in one.shape[1:] if weight != 5
    )
    assert bank.size_bytes == 3 * 5 * sides * 8
    assert bank.size_bytes > sum(adapter.size_bytes for adapter in ADAPTERS.values())
    assert AdapterBank(MODEL, {}).size_bytes == 0


def test_a_new_adapter_changes_nothing():
    adapter = new_adapter(MODEL, 4, lora_alpha=4, seed=0)
    tokens = torch.tensor(draw(1, 5))
    assert torch.equal(logits(tokens, adapter), logits(tokens))
    assert {name.rpartition(".")[2] for name in adapter.matrices} == {"query", "value"}


def test_what_does_not_fit_is_said_in_one_line():
    a, b = ADAPTERS["b"].matrices["blocks.0.attention.query"]
    with pytest.raises(InputError, match="rank must be at least 1: got 0"):
        Adapter(0, 1.0, {"x": (a, b)})
    with pytest.raises(InputError, match="an adapter without matrices"):
        Adapter(1, 1.0, {})
    with pytest.raises(InputError, match=r"adapter x: no layer of the model that takes an adapter: got head, expected"):
        AdapterBank(MODEL, {"x": Adapter(1, 1.0, {"head": (a, b)})})
    with pytest.raises(
        InputError, match=r"other shapes: got \(1, 16\) and \(16, 1\), expected \(2, 16\) and \(16, 2\)"
    ):
        merge(MODEL, Adapter(2, 1.0, {"blocks.0.attention.query": (a, b)}))
    with pytest.raises(InputError, match="no layer takes an adapter under this name: got quary"):
        new_adapter(MODEL, 2, lora_alpha=1, targets=("quary",), seed=0)
    with pytest.raises(InputError, match="unknown adapter: got bb, expected one of a, b, c; help: did you mean 'b'"):
        AdapterBank(MODEL, ADAPTERS).require("bb")


@pytest.mark.parametrize("kind", [{"kv_heads": "latent"}, {"experts": True}])
def test_layers_that_see_other_rows_of_a_batch_take_no_adapter(kind):
    model = build(**kind)
    with pytest.raises(InputError, match="no layer takes an adapter"):
        new_adapter(model, 2, lora_alpha=1, targets=("up",) if "experts" in kind else ("query",), seed=0)
