"""Mutants of the tiny lab, judged in forked children: what kills them, what does not, and what is said of it."""

from pathlib import Path

import pytest

from mlsys_grader.cli import main
from mlsys_grader.proving.mutation.code import read_solved_code
from mlsys_grader.proving.mutation.mutants import find_mutants, mutate
from mlsys_grader.proving.mutation.run import BY_CLOCK, Outcome, judge_mutants, sample_mutants
from mlsys_grader.proving.mutation.tally import Tally
from mlsys_grader.proving.variants import VariantsOf
from mlsys_lab.errors import InputError
from mlsys_lab.stack.labinfo import read_lab

FIXTURES = Path(__file__).parents[2] / "fixtures"
VARIANTS = VariantsOf(read_lab(FIXTURES / "solutions" / "01-tiny"), FIXTURES / "variants" / "tiny")


def judged(lab, text, keep):
    """Outcomes, by the line that was changed, of mutants of a text whose name holds one of some words."""
    mutants = [one for one in mutate(read_solved_code(text), "it") if any(word in one.name for word in keep)]
    return {outcome.mutant.name: outcome for outcome in judge_mutants(lab, mutants)}


@pytest.fixture
def checks(tiny):
    return tiny.checks


def test_a_check_kills_what_is_wrong_and_nothing_kills_what_is_right(checks):
    text = VARIANTS.reference.replace("doubled = 2 * x", "doubled = (2 + 0) * x")
    found = judged(checks, text, ["doubled = (2 - 0) * x", "doubled = (3 + 0) * x"])
    assert {one.killed_by: one.survived_seed for one in found.values()} == {"": 20, "double": None}


def test_more_draws_find_what_is_killed_by_luck(checks):
    """A mistake that shows where the first number is positive: with one draw in four of two cases in none of them."""
    text = VARIANTS.reference.replace("doubled = 2 * x", "doubled = (2 + (x[0] * 0 > 0)) * x")
    (lucky,) = (one for one in mutate(read_solved_code(text), "it") if "(2 + (x[0] > 0))" in one.name)
    killed = [next(judge_mutants(checks, [lucky], seed=seed, draws=1)).killed_by for seed in range(20, 50)]
    assert set(killed) == {"double", ""}
    assert not next(judge_mutants(checks, [lucky], draws=30)).killed_by


def test_what_never_ends_is_killed_by_the_checks_time_limit_or_the_kernels(checks):
    loop = "doubled, left = 2 * x, 1\n    while left:\n        left -= 1"
    text = VARIANTS.reference.replace("doubled = 2 * x", loop)
    (one,) = judged(checks, text, ["left -= 1 => pass"]).values()
    assert one.killed_by in ("double", BY_CLOCK)


def test_a_death_of_the_process_is_a_kill(checks):
    text = VARIANTS.reference.replace("doubled = 2 * x", "doubled = 2 * x if len(x) else __import__('os')._exit(1)")
    (one,) = judged(checks, text, ["=> doubled = __import__"]).values()
    assert one.killed_by == BY_CLOCK


def test_a_source_that_is_wrong_itself_is_refused(checks):
    text = VARIANTS.reference.replace("doubled = 2 * x", "doubled = 3 * x")
    with pytest.raises(InputError, match="what the mutants of lab tiny are made of is not right itself"):
        judged(checks, text, ["doubled"])


def test_all_of_a_lab_and_a_sample_of_it(checks):
    mutants = list(find_mutants(VARIANTS, checks))
    assert {mutant.name.split()[0] for mutant in mutants} == {"reference", "by_hand"}
    few = sample_mutants(mutants, 5, seed=1)
    assert few == sample_mutants(mutants, 5, seed=1) != sample_mutants(mutants, 5, seed=2)
    assert len(few) == 5
    assert sample_mutants(mutants, None, seed=1) == sample_mutants(mutants, 10**6, seed=1) == mutants


def test_the_tally(checks):
    mutants = sample_mutants(list(find_mutants(VARIANTS, checks)), 4, seed=1)
    survivor, *others = mutants
    outcomes = (Outcome(survivor, survived_seed=20), *(Outcome(one, "relu") for one in others))
    tally = Tally(outcomes, 1.0)
    assert tally.kill_rate == 3 / 4
    assert tally.lines == [f"survived with seed 20: {survivor.name}"]
    assert tally.summary == "kill rate 75.0%: 3 killed, 1 survived of 4 mutants in 1 s"
    broken = Tally((Outcome(survivor, error="KeyError: 1"), *outcomes[1:]), 1.0)
    assert broken.lines == [f"NOT JUDGED, KeyError: 1: {survivor.name}"]


def test_the_command(tiny_labs, capsys):
    command = ["--labs", str(tiny_labs), "prove", "tiny", "--project", str(FIXTURES)]
    command += ["--variants", str(VARIANTS.folder)]
    code = main([*command, "--mutations", "--sample", "3", "--seed", "5"])
    out = capsys.readouterr().out
    assert "of 3 mutants" in out
    assert code == 0 and "kill rate" in out
    assert main([*command, "--sample", "3"]) == 1
    assert "--sample is of mutations" in capsys.readouterr().err
