"""What public cases show of a text: plain values, rounds of loops and calls, and mutants that know no others."""

from dataclasses import replace
from pathlib import Path

import pytest

from mlsys_grader.proving.mutation.code import read_solved_code
from mlsys_grader.proving.mutation.mutants import mutate
from mlsys_grader.proving.mutation.run import judge_mutants
from mlsys_grader.proving.mutation.shown import find_shown
from mlsys_grader.proving.mutation.statements import know_only
from mlsys_grader.proving.variants import VariantsOf
from mlsys_lab.stack.labinfo import read_lab

FIXTURES = Path(__file__).parents[2] / "fixtures"
TEXT = VariantsOf(read_lab(FIXTURES / "solutions" / "01-tiny"), FIXTURES / "variants" / "tiny").reference


def code_with(*lines):
    return read_solved_code(TEXT.replace("doubled = 2 * x", "\n    ".join(lines)))


@pytest.fixture
def checks(tiny):
    """The tiny lab, whose first check shows one number and hides seven."""
    first, *others = tiny.checks.checks
    seven, one = first.cases
    cases = (one, replace(seven, hidden=True))
    return replace(tiny.checks, checks=(replace(first, cases=cases), *others))


def mutants_of(code, checks, operator):
    shown = know_only(find_shown(code, checks))
    return [mutant for mutant in mutate(code, "it", shown) if mutant.operator == operator]


def test_rounds_and_calls_are_those_of_public_cases(checks):
    code = code_with("doubled = 2 * x", "for _ in [y for y in (*x, 1)]:", "    pass")
    shown = find_shown(code, checks)
    assert sorted(shown.rounds.values()) == [2, 2]
    assert len(shown.calls["double"]) == 1


def test_a_loop_that_only_hidden_cases_prolong_is_found_out(checks):
    loop = ("for i in range(len(x)):", "    for _ in range(2):", "        doubled[i] += x[i]")
    mutants = mutants_of(code_with("doubled = 0 * x", *loop), checks, "cut_loop")
    assert len(mutants) == 2
    killed = [one.killed_by for one in judge_mutants(checks, mutants)]
    assert killed == ["double", ""]  # two rounds for each number are two rounds whatever comes


def test_who_answers_only_the_calls_shown_is_found_out(checks):
    mutants = mutants_of(code_with("doubled = 2 * x"), checks, "answer_shown")
    assert {one.killed_by for one in judge_mutants(checks, mutants)} == {"double", "mean", "total"}
