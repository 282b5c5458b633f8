"""Mutants of the tiny lab, judged in forked children: what kills them, what does not, and what is said of it."""

from pathlib import Path

import pytest

from mlsys_grader.cli import main
from mlsys_grader.proving.mutation.code import read_solved_code
from mlsys_grader.proving.mutation.equivalent import read_equivalent, refuse_stale
from mlsys_grader.proving.mutation.mutants import find_mutants, mutate
from mlsys_grader.proving.mutation.run import BY_CLOCK, judge_mutants, sample_mutants
from mlsys_grader.proving.mutation.tally import Tally
from mlsys_grader.proving.variants import VariantsOf
from mlsys_lab.checks.labinfo import read_lab
from mlsys_lab.errors import InputError

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
    wrong = [one for one in find_mutants(VARIANTS, checks) if one.operator == "shift_constant"]
    found = list(judge_mutants(checks, wrong))
    assert all(one.killed_by for one in found)
    assert Tally(tuple(found), {}, 1.0).holds
    assert (
        Tally(tuple(found), {}, 1.0).summary
        == f"{len(wrong)} killed, 0 equivalent, 0 survived of {len(wrong)} mutants: 1 s"
    )
    refuted = Tally(tuple(found), {found[0].mutant.name: "it is right"}, 1.0)
    assert not refuted.holds
    assert refuted.lines == [f"NOT EQUIVALENT, {found[0].killed_by} fails it: {found[0].mutant.name}"]


def test_reasons_and_what_is_wrong_with_them(tmp_path):
    assert read_equivalent(tmp_path) == {}
    file = tmp_path / "equivalent.toml"
    file.write_text('[[equivalent]]\nreason = "0 is added"\nmutants = ["a", "b"]\n')
    assert read_equivalent(tmp_path) == {"a": "0 is added", "b": "0 is added"}
    refuse_stale(["a"], ["a", "c"])
    with pytest.raises(InputError, match="names no mutant: got b"):
        refuse_stale(["a", "b"], ["a", "c"])
    file.write_text('[[equivalent]]\nreason = " "\nmutants = ["a"]\n')
    with pytest.raises(InputError, match="a group has no reason: got a"):
        read_equivalent(tmp_path)
    file.write_text('[[equivalent]]\nreason = "x"\nmutants = ["a", "a"]\n')
    with pytest.raises(InputError, match="a mutant is named twice: got a"):
        read_equivalent(tmp_path)
    file.write_text("[[")
    with pytest.raises(InputError, match="is not TOML"):
        read_equivalent(tmp_path)


def test_the_command(tiny_labs, capsys):
    command = ["--labs", str(tiny_labs), "prove", "tiny", "--project", str(FIXTURES)]
    command += ["--variants", str(VARIANTS.folder)]
    code = main([*command, "--mutations", "--sample", "3", "--seed", "5"])
    out = capsys.readouterr().out
    assert "of 3 mutants" in out
    assert code == (" 0 survived" not in out)
    assert main([*command, "--sample", "3"]) == 1
    assert "--sample is of mutations" in capsys.readouterr().err
