"""Lab 16: a mistake costs its own checks, what is lent fails its own check, and what the judge counts and evaluates."""

from __future__ import annotations

import numpy as np
import pytest

from mlsys_checks.runner import run_check
from mlsys_checks.sandboxed import capstone as calls
from mlsys_checks.sandboxed.attempt import attempt
from mlsys_checks.sandboxed.ranks import join_ranks, run_on_threads, split_ranks
from mlsys_checks.sandboxed.spec import Arrays, Case
from mlsys_checks.sandboxed.values import decode_value
from mlsys_checks.trusted.capstone import generators, predictions
from mlsys_checks.trusted.verdict import draw_inputs, public_inputs
from mlsys_lab.configs import TransformerConfig
from mlsys_lab.flops.parameters import parameters
from mlsys_lab.models import Transformer
from tests.labs.slips import double, lab_of, leave_unwritten, load_reference

LAB = lab_of("capstone")
PREDICTIONS = [name for name in vars(calls) if name.startswith("predict_")]
COSTS = {name: {name} for name in (*PREDICTIONS, "waterfall")} | {
    "causal_softmax": {"operations"},
    "rms_norm": {"operations"},
    "silu_mul": {"operations"},
    "GPT": {"decoder", "gradients"},
    "train_rank": {"train_steps", "resume"},
    "BlockCache": {"block_cache", "serve"},
}
"""The checks that a function costs, next to `train_budget`, which trains the learner's own decoder."""
LENDING = [check for check in LAB.checks.checks if check.name != "train_budget"]
TINY = Case("tiny", {"p": 2, "batch": 3, "tokens": 8, "steps": 2})


@pytest.mark.parametrize("name", COSTS)
def test_a_missing_function_costs_its_own_checks_only(name: str) -> None:
    module = load_reference(LAB)
    leave_unwritten(module, name)
    assert {check.name for check in LENDING if not run_check(check, module).passed} == COSTS[name]


@pytest.mark.parametrize("name", PREDICTIONS)
def test_a_wrong_prediction_costs_its_own_check_only(name: str) -> None:
    module = load_reference(LAB)
    double(module, name)
    for check in LAB.checks.checks:
        if check.name in PREDICTIONS:
            assert run_check(check, module).passed == (check.name != name)


def test_what_is_lent_fails_the_check_of_its_own_name() -> None:
    for name, right in {**calls._OPERATIONS, "GPT": calls._Bigram}.items():
        module = load_reference(LAB)
        setattr(module, name, right)
        assert not run_check(LAB.checks["decoder" if name == "GPT" else "operations"], module).passed


def test_a_decoder_of_torchs_modules_is_refused() -> None:
    module = load_reference(LAB)
    module.GPT.__call__ = lambda self, tokens: Transformer(self.config)(tokens).flatten(0, 1)
    report = run_check(LAB.checks["decoder"], module)
    assert report.mismatch is not None and "calls a module of torch" in report.mismatch.what


@pytest.mark.parametrize("large", [0, 1])
def test_the_oracle_counts_the_parameters_of_the_package(large: int) -> None:
    sizes = predictions.draw_sizes(np.random.default_rng(large), Case("drawn", {"large": large}))
    total = parameters(TransformerConfig("drawn", **sizes)).total
    assert predictions.Model(sizes).parameters == total and (total > 1e10) == bool(large)


def test_a_case_of_serve_preempts_and_shares_prefixes() -> None:
    check, seen = LAB.checks["serve"], []
    scheduler = calls.load_stack().scheduler

    class Recorded(scheduler.PreemptiveScheduler):  # type: ignore[misc,name-defined]
        def finish(self, seq: object) -> None:
            seen.append((seq.num_preemptions, seq.num_cached_tokens))  # type: ignore[attr-defined]
            super().finish(seq)

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(scheduler.build.__globals__, "PreemptiveScheduler", Recorded)
        assert run_check(check, load_reference(LAB), hidden=True).passed
    assert any(preemptions for preemptions, _ in seen) and any(cached for _, cached in seen)


def test_no_rank_has_the_text_of_another() -> None:
    arrays = draw_inputs(
        LAB.checks["train_steps"], Case("three ranks", {"p": 3, "batch": 1, "tokens": 9, "steps": 3}), 1
    )
    texts = np.stack([part["ids"] for part in split_ranks(arrays)])
    right = texts == arrays["_ids"]
    train = decode_value(split_ranks(arrays)[0]["case"])["train"]
    assert train["batch_size"] == 4
    assert (right.mean(1) < 0.75).all() and right.any(0).mean() > 0.8


@pytest.fixture(scope="module")
def trained() -> tuple[Arrays, Arrays]:
    """What the reference returns for a small budget, and what it is judged by."""
    check = LAB.checks["train_budget"]
    inputs = draw_inputs(check, TINY, 1)
    return run_on_threads(attempt, check, load_reference(LAB), public_inputs(inputs)), check.expect(inputs)


def test_a_budget_is_refused_for_its_form_its_loss_and_its_messages(trained: tuple[Arrays, Arrays]) -> None:
    got, expected = trained
    compare = generators.compare_budget
    assert compare(got, expected) is None
    name = "0\N{SYMBOL FOR UNIT SEPARATOR}norm.weight"
    weight = got[name]
    logs = {key: one for key, one in got.items() if key.startswith("logs")}
    few = join_ranks(split_ranks(got)) | {key: one[:0] for key, one in logs.items()}
    for wrong, what in (
        (got | {name: weight[1:]}, "another form"),
        (got | {name: weight.astype(np.float64)}, "another form"),
        (got | {name: -weight}, "out of range"),
        (got | {name: weight * np.float32(np.nan)}, "out of range"),
        (few, "too few bytes"),
    ):
        mismatch = compare(wrong, expected)
        assert mismatch is not None and what in mismatch.what


def test_a_loss_below_the_entropy_is_refused(trained: tuple[Arrays, Arrays]) -> None:
    got, expected = trained
    (least,) = (name for name in expected if name.endswith("least") and "bytes" not in name)
    mismatch = generators.compare_budget(got, expected | {least: np.array(9.0)})
    assert mismatch is not None and "out of range" in mismatch.what
