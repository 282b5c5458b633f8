"""`mlsys-grader prove --draws`: variants with many inputs, and what is said of those that lose or pass by luck."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from mlsys_grader.cli import main
from mlsys_grader.proving.draws import MUTANT_DRAWS, Draws, MutantDraws, try_draws, try_mutants
from mlsys_grader.proving.trials import list_trials
from mlsys_grader.proving.variants import VariantsOf
from mlsys_lab.stack.labinfo import read_lab

FIXTURES = Path(__file__).parents[1] / "fixtures"
VARIANTS = FIXTURES / "variants" / "tiny"


@pytest.fixture
def trials(tiny):
    return list_trials(tiny, VariantsOf(read_lab(FIXTURES / "solutions" / "01-tiny"), VARIANTS))


@pytest.fixture
def right(trials):
    return [one for one in trials if one.right]


def test_a_right_solution_that_loses_by_luck_is_found(tiny, right):
    """A check whose oracle is wrong where the first number drawn is above 1."""
    double = tiny.checks["double"]
    unlucky = replace(double, expect=lambda arrays: {"y": arrays["x"] * (2 + (arrays["x"][0] > 1))})
    kept, lost = (next(try_draws([check], right[:1], 60, seed=0, limit_s=60.0)) for check in (double, unlucky))
    assert (kept.tried, kept.lost, kept.holds) == (60, (), True)
    assert lost.tried == 60 and 5 < len(lost.lost) < 50 and not lost.holds
    assert lost.lost[0].startswith("seed ")


def test_a_slow_check_is_asked_less_often(tiny, right):
    assert [one.tried for one in try_draws(tiny.checks.checks, right[:1], 1000, seed=0, limit_s=0.0)] == [1, 1, 1]


def test_one_loss_in_a_thousand_may_be():
    assert Draws("it", "double", 1000, ("seed 3: unlucky",), 0.0).holds
    assert not Draws("it", "double", 999, ("seed 3: unlucky",), 0.0).holds


def test_how_near_a_tolerance_came_is_told(tiny, right):
    """An oracle that is off by a quarter of what float64 allows."""
    double = tiny.checks["double"]
    off = replace(double, expect=lambda arrays: {"y": 2 * arrays["x"] * (1 + 5e-10)})
    exact, near = (next(try_draws([check], right[:1], 20, seed=0, limit_s=60.0)) for check in (double, off))
    assert exact.tolerance_used == 0
    assert near.lost == () and 0.2 < near.tolerance_used < 0.5


def test_a_mutant_that_passes_by_luck_is_found(tiny, trials):
    """A check whose oracle makes the same mistake where the first number drawn is below 1."""
    double = tiny.checks["double"]
    mutants = [one for one in trials if one.name == "the square instead of the double"]
    lucky = replace(double, expect=lambda arrays: {"y": arrays["x"] * (arrays["x"] if arrays["x"][0] < 1 else 2)})
    caught, passed = (next(try_mutants([check], mutants, 1000, seed=5, limit_s=60.0)) for check in (double, lucky))
    assert (caught.tried, caught.passed, caught.holds) == (MUTANT_DRAWS, (), True)
    assert passed.tried == MUTANT_DRAWS and 10 < len(passed.passed) < 98 and not passed.holds
    assert min(passed.passed) >= 5, "seeds, not numbers of draws"


def test_a_mutant_is_judged_by_the_checks_alone_that_have_to_fail_it(tiny, trials):
    mutants = [one for one in trials if one.kind == "mutant"]
    asked = [(one.mutant, one.check) for one in try_mutants(tiny.checks.checks, mutants, 1, seed=0, limit_s=60.0)]
    assert sorted(asked) == sorted((one.name, check) for one in mutants for check in one.fails)


def test_one_pass_in_a_hundred_may_be():
    assert MutantDraws("it", "double", 100, (3,)).holds
    assert not MutantDraws("it", "double", 99, (3,)).holds


def test_the_command(tiny_labs, capsys):
    command = ["--labs", str(tiny_labs), "prove", "tiny", "--project", str(FIXTURES), "--variants", str(VARIANTS)]
    assert main([*command, "--draws", "5"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[-3] == "01-tiny: 2 right solutions, 30 draws, at least 5 each: 0 cost a point"
    assert out[-2].startswith("01-tiny: at most ") and out[-2].endswith("% of a tolerance in use")
    assert re.fullmatch(r"01-tiny: (\d+) mutants, \d+ draws, at least 5 each: 0 pass by luck", out[-1])
    assert len(out) == 3 + 2 * 3
    for wrong in (["--draws", "0"], ["--draws", "0", "--mutations"]):
        assert main([*command, *wrong]) == 1
        assert capsys.readouterr().err == "mlsys-grader: --draws must be at least 1: got 0\n"
