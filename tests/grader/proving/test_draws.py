"""`mlsys-grader prove --draws`: right solutions with many inputs, and what is said of those that lose by luck."""

from dataclasses import replace
from pathlib import Path

import pytest

from mlsys_grader.cli import main
from mlsys_grader.proving.draws import Draws, try_draws
from mlsys_grader.proving.trials import list_trials
from mlsys_grader.proving.variants import VariantsOf
from mlsys_lab.checks.labinfo import read_lab

FIXTURES = Path(__file__).parents[1] / "fixtures"
VARIANTS = FIXTURES / "variants" / "tiny"


@pytest.fixture
def right(tiny):
    return [
        one
        for one in list_trials(tiny, VariantsOf(read_lab(FIXTURES / "solutions" / "01-tiny"), VARIANTS))
        if one.right
    ]


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
    assert exact.share == 0
    assert near.lost == () and 0.2 < near.share < 0.5


def test_the_command(tiny_labs, capsys):
    command = ["--labs", str(tiny_labs), "prove", "tiny", "--project", str(FIXTURES), "--variants", str(VARIANTS)]
    assert main([*command, "--draws", "5"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[-2] == "01-tiny: 2 right solutions, 30 draws, at least 5 each: 0 cost a point"
    assert out[-1].startswith("01-tiny: at most ") and out[-1].endswith("% of a tolerance in use")
    assert len(out) == 2 + 2 * 3
    for wrong, said in (
        (["--draws", "0"], "--draws must be at least 1: got 0"),
        (["--draws", "5", "--mutations"], "--draws are of right solutions; help: leave --mutations and --sample out"),
    ):
        assert main([*command, *wrong]) == 1
        assert capsys.readouterr().err == f"mlsys-grader: {said}\n"
