"""Checks on the code of learners who did all that learners do."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mlsys_checks.runner import Report, run_check
from mlsys_checks.sandboxed.attempt import attempt
from mlsys_checks.sandboxed.spec import Call, Case, Check, Lab, Mismatch, call_name, find_call
from mlsys_checks.trusted.verdict import draw_inputs, judge_case, public_inputs
from mlsys_lab.errors import InputError, UnfinishedError
from mlsys_lab.stack.artifact import Artifact, Cell
from mlsys_lab.stack.loading import load


def _run(fakes: ModuleType, source: str, **options: Any) -> Report:
    artifact = load(Artifact("n.ipynb", (Cell(5, f"#| export\nimport numpy as np\n{source}"),)))
    return run_check(fakes.ADD_ONE, artifact, **options)


def test_right_code_passes_all_public_cases(fakes: ModuleType) -> None:
    report = _run(fakes, "def add_one(x): return x + 1")
    assert (report.passed, report.points, report.cases, report.mismatch, report.case) == (True, 3.0, 2, None, None)
    assert report.line == "passed: Add one"


WRONG = {
    "x + 2": "`y` is wrong in 1 of 1 entry, worst at [0]",
    "x[:0]": "`y` has the wrong shape",
    "(x + 1).astype('float32')": "`y` has the wrong dtype",
    "x * np.nan": "`y` has 1 NaN in 1 entry",
    "None": "`y` does not hold numbers",
    "'text'": "`y` does not hold numbers",
    "1 / 0": "your code stopped with an exception",
    "exit()": "your code stopped with an exception",
    "[][0]": "your code stopped with an exception",
    "[0 for _ in iter(int, 1)]": "it did not come to an end",
}


@pytest.mark.parametrize("body", WRONG)
def test_wrong_code_gets_a_reason_and_no_points(fakes: ModuleType, body: str) -> None:
    report = _run(fakes, f"def add_one(x): return {body}")
    assert not report.passed and not report.unfinished and report.points == 0
    assert report.mismatch is not None and report.mismatch.what == WRONG[body]
    assert report.case is not None and report.case.name == "single"


def test_an_exception_is_placed_in_the_learners_cell(fakes: ModuleType) -> None:
    report = _run(fakes, "def add_one(x):\n    return helper(x)\ndef helper(x):\n    return x.no_such_thing")
    assert report.mismatch is not None
    assert "AttributeError" in report.mismatch.got and "cell 5" in report.mismatch.got
    assert "line 6: `return x.no_such_thing`" in report.mismatch.got


@pytest.mark.parametrize(
    "source", ["def add_one(x): raise NotImplementedError", "def add_one(x): raise NotImplementedError('later')", ""]
)
def test_unfinished_is_not_wrong(fakes: ModuleType, source: str) -> None:
    report = _run(fakes, source)
    assert not report.passed and report.unfinished
    assert report.line.startswith("still to do: Add one")


def test_a_released_stub_names_its_task(fakes: ModuleType) -> None:
    report = _run(fakes, "def add_one(x):\n    raise NotImplementedError('Task 1, `add_one`')")
    assert report.mismatch is not None
    assert report.mismatch.what == "not written yet: Task 1, `add_one` (cell 5, line 4)"


def test_unfinished_from_an_earlier_topic_counts_too(fakes: ModuleType) -> None:
    def add_one(x: np.ndarray) -> np.ndarray:
        raise UnfinishedError("the tensor engine is not accepted yet")

    assert run_check(fakes.ADD_ONE, SimpleNamespace(add_one=add_one)).unfinished


def test_hidden_cases_run_only_when_asked_and_show_no_values(fakes: ModuleType) -> None:
    source = "def add_one(x): return x + 1 if x.size else np.zeros(1)"
    assert _run(fakes, source).passed
    report = _run(fakes, source, hidden=True)
    assert not report.passed and report.case is not None and report.case.name == "empty"
    assert report.mismatch == Mismatch("a case that is not shown fails") and report.given == ""


def test_a_public_case_that_fails_shows_its_inputs_but_for_private_ones(fakes: ModuleType) -> None:
    report = _run(fakes, "def add_one(x): return x + 1 if x.size == 1 else x")
    inputs = draw_inputs(fakes.ADD_ONE, fakes.ADD_ONE.cases[1], 0)
    assert report.given == f"x = {inputs['x'].round(2).tolist()}, x"
    assert _run(fakes, "def add_one(x): return x + 1").given == ""


def test_private_inputs_do_not_reach_the_learner(fakes: ModuleType) -> None:
    seen: list[str] = []
    answer = lambda arrays: seen.extend(arrays) or {"y": arrays["x"] + 1}  # noqa: E731
    assert run_check(_hands_all_over(fakes), SimpleNamespace(answer=answer)).passed
    assert set(seen) == {"x"}


@pytest.mark.parametrize("body", ["x += 1\n    return x", "y = x + 1\n    x[:] = 0\n    return y"])
def test_changing_the_inputs_in_place_is_told(fakes: ModuleType, body: str) -> None:
    report = _run(fakes, f"def add_one(x):\n    {body}")
    assert report.mismatch is not None
    assert report.mismatch.what == "your code changes its input `x`"


def test_public_cases_draw_the_same_numbers_every_time_and_seeds_differ(fakes: ModuleType) -> None:
    case = fakes.ADD_ONE.cases[1]
    first, again, other = (draw_inputs(fakes.ADD_ONE, case, seed)["x"] for seed in (0, 0, 1))
    assert np.array_equal(first, again) and not np.array_equal(first, other)
    assert not np.array_equal(draw_inputs(fakes.TWICE, Case("many", {"n": 7}), 0)["x"], first)


def test_judging_needs_no_artifact(fakes: ModuleType) -> None:
    case = fakes.ADD_ONE.cases[1]
    inputs = draw_inputs(fakes.ADD_ONE, case, 7)
    assert set(public_inputs(inputs)) == {"x"}
    assert judge_case(fakes.ADD_ONE, case, inputs, {"y": inputs["x"] + 1}) is None
    assert judge_case(fakes.ADD_ONE, case, inputs, {"y": inputs["x"]}) is not None


def test_a_check_may_say_itself_what_is_wrong_with_an_answer() -> None:
    def run(artifact: Any, arrays: Any) -> Any:
        raise InputError("add_one gave a list", got="list", expected="an array")

    outcome = attempt(Call(run), SimpleNamespace(), {})
    assert outcome.problem is not None
    assert (outcome.problem.what, outcome.problem.got, outcome.problem.expected) == (
        "add_one gave a list",
        "list",
        "an array",
    )


@pytest.mark.parametrize(
    ("notes", "expected"),
    [
        (["ValueError,", "nothing else"], "ValueError, nothing else"),
        ([], "an answer to `answer()`"),
        ([1], "an answer to `answer()`"),
        (2, "an answer to `answer()`"),
    ],
)
def test_a_call_may_note_on_an_exception_what_it_had_asked_for(notes: Any, expected: str) -> None:
    def run(artifact: Any, arrays: Any) -> Any:
        try:
            return artifact.answer()
        except KeyError as error:
            error.__notes__ = notes
            raise

    artifact = load(Artifact("n.ipynb", (Cell(1, "#| export\ndef answer(): raise KeyError('k')"),)))
    outcome = attempt(Call(run), artifact, {})
    assert outcome.problem is not None and "KeyError: 'k', at cell 1" in outcome.problem.got
    assert outcome.problem.expected == expected


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        (None, "the answer is not a set of named arrays"),
        ({"y": 1.0}, "`y` is not an array"),
        ({"y": np.zeros(2, complex)}, "`y` does not hold numbers"),
        ({"y": np.ma.zeros(2)}, "`y` is not an array"),
        ({f"y{i}": np.zeros(1) for i in range(257)}, "the answer has too many parts"),
    ],
)
def test_only_plain_arrays_of_numbers_come_back(answer: Any, what: str) -> None:
    outcome = attempt(Call(lambda *_: answer), SimpleNamespace(), {})
    assert outcome.arrays is None and outcome.problem is not None and outcome.problem.what == what


def test_an_interrupt_by_the_person_passes_through() -> None:
    def run(artifact: Any, arrays: Any) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        attempt(Call(run), SimpleNamespace(), {})


@pytest.mark.parametrize(("limit", "passes"), [(2**12, True), (2**11, False)])
def test_a_memory_budget_is_held_to_the_byte(fakes: ModuleType, limit: int, passes: bool) -> None:
    import torch

    def answer(arrays: Any) -> Any:
        held = torch.zeros(2**10 - 2, dtype=torch.float32) + 0  # two of 4 · (2^10 − 2) bytes while adding
        return {"y": held[:1].double().numpy() * 0 + arrays["x"] + 1}

    report = run_check(_hands_all_over(fakes, memory_bytes=2 * limit), SimpleNamespace(answer=answer))
    assert report.passed is passes
    if not passes:
        assert report.mismatch is not None and report.mismatch.what == "it holds too much memory"
        assert report.mismatch.expected == f"at most {2 * limit:,} bytes"


def _hands_all_over(fakes: ModuleType, **changes: Any) -> Check:
    """ADD_ONE, but the artifact's `answer` is given all arrays at once."""
    return replace(fakes.ADD_ONE, run=fakes.fake_calls.all_of_it, uses=("answer",), **changes)


def test_a_check_is_validated_when_it_is_made(fakes: ModuleType) -> None:
    for changes, said in [
        ({"cases": (Case("a", hidden=True),)}, "no public case"),
        ({"cases": (Case("a"), Case("a"))}, "names a case twice"),
        ({"cases": (Case("a"), Case("b", hidden=True), Case("c"))}, "has a public case after a hidden one; help: put"),
        ({"points": 0}, "positive points"),
        ({"time_limit_s": 0}, "positive points and time limit"),
        ({"run": lambda *_: {}}, "`run` cannot be found by its name: got .*<lambda>"),
        ({"run": partial(fakes.fake_calls.add_one)}, "`run` cannot be found by its name: got functools.partial"),
        ({"run": fakes.fake_calls.add_one, "expect": fakes.fake_calls.twice}, "`run` and `expect` are in one module"),
    ]:
        with pytest.raises(InputError, match=said):
            replace(fakes.ADD_ONE, **changes)


def test_a_lab_adds_up_and_suggests(fakes: ModuleType) -> None:
    lab: Lab = fakes.LAB
    assert lab.points == 5.0 and lab["twice"].title == "Twice"
    with pytest.raises(InputError, match=r"expected one of add_one, twice; help: did you mean 'add_one'\?"):
        lab["add_won"]


def test_a_run_is_found_again_by_its_name(fakes: ModuleType) -> None:
    assert call_name(fakes.ADD_ONE.run) == "fake_calls:add_one"
    assert find_call("fake_calls:add_one") is fakes.ADD_ONE.run
    assert fakes.LAB.call_modules == ("fake_calls",)
    assert fakes.ADD_ONE.call == Call(fakes.ADD_ONE.run, ("add_one",), 0.5, None)


def test_a_module_of_calls_that_imports_a_decider_is_refused(
    fakes: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fakes.fake_calls, "close", fakes.close, raising=False)
    with pytest.raises(InputError, match=r"`run` and `compare` are in one module: got fake_calls; help: move `run`"):
        replace(fakes.ADD_ONE)
