"""Quantised weights and drafts, held against the records; outliers that change nothing but what 8 bits make of them."""

import pytest
import torch

from book.measure_pair import GROWN, NAMES, RECORDS, acceptance, grow_outliers, perplexities
from mlsys_lab.benchmark import load_all
from mlsys_lab.inference.pretrained import load_pair
from tests.sampling import sample


@pytest.fixture(scope="module")
def pair():
    return load_pair()


@pytest.fixture(scope="module")
def records():
    return load_all(RECORDS)


@pytest.mark.parametrize("names", sample([("int8",), NAMES], 2), ids=" and ".join)
def test_perplexities_are_those_on_record(pair, records, names, monkeypatch):
    monkeypatch.setattr("book.measure_pair.NAMES", names)
    for measured in perplexities(pair):
        kept = records[measured.name]
        assert measured.p50 == pytest.approx(kept.p50, rel=2e-3), kept.name
        assert measured.bound.value == pytest.approx(kept.bound.value, rel=2e-3)
        assert measured.parameters == kept.parameters


def test_what_is_kept_in_more_bits_or_rounded_with_more_care_is_nearer(records):
    loss = {name.removeprefix("quantized-"): record.p50 for name, record in records.items()}
    exact = records["quantized-int8"].bound.value
    assert abs(loss["int8"] - exact) < 0.002 * exact < loss["int4"] - exact < 0.03 * exact
    assert exact < loss["int4-gptq"] < loss["int4"]
    assert loss["llm-int8-grown"] - exact < 0.2 * (loss["int8-activations-grown"] - exact)
    bits = {name: records[f"quantized-{name}"].parameters["bits_a_weight"] for name in NAMES}
    assert bits["int4"] == bits["int4-gptq"] == 4.75 and 8 < bits["int8"] < 8.5


def test_a_few_prompts_are_accepted_about_as_often_as_on_record(pair, records, monkeypatch):
    monkeypatch.setattr("book.measure_pair.PROMPTS", 3)
    for name, temperature in (("greedy", 0.0), ("sampled", 1.0)):
        kept = records[f"pretrained-acceptance-{name}"]
        share = kept.parameters["accepted"] / kept.parameters["drafted"]
        few = acceptance(pair, name, temperature).parameters
        assert few["accepted"] / few["drafted"] == pytest.approx(share, abs=0.2)
        assert kept.parameters["tokens_a_step"] > 1.4
        # Real texts have easy and hard stretches, and the formula has none.
        assert kept.parameters["tokens_a_step"] == pytest.approx(kept.parameters["expected_tokens_a_step"], rel=0.1)


@torch.no_grad()
def test_grown_outliers_change_activations_and_not_the_model(pair):
    grown, tokens = grow_outliers(pair.target), torch.arange(100)[None]
    torch.testing.assert_close(grown(tokens), pair.target(tokens), rtol=1e-3, atol=1e-3)
    seen = grown.blocks[0].attention_norm(grown.embedding(tokens)).abs().amax((0, 1))
    assert set(seen.topk(len(GROWN)).indices.tolist()) == set(GROWN) and seen.max() > 6
