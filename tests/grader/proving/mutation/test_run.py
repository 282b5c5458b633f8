"""Mutants of the tiny lab, judged in forked children: what kills them, what does not, and what is said of it."""

from pathlib import Path

import pytest

from mlsys_grader.cli import main
from mlsys_grader.proving.mutation.code import Code, read_solved_code
from mlsys_grader.proving.mutation.equivalent import Reasons, read_equivalent
from mlsys_grader.proving.mutation.mutants import Mutant, find_mutants, mutate
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
    wrong = [one for one in find_mutants(VARIANTS, checks) if one.operator == "shift_constant"]
    found = list(judge_mutants(checks, wrong))
    assert all(one.killed_by for one in found)
    assert Tally(tuple(found), Reasons(), 1.0).holds
    assert (
        Tally(tuple(found), Reasons(), 1.0).summary
        == f"{len(wrong)} killed, 0 equivalent, 0 survived of {len(wrong)} mutants: 1 s"
    )
    refuted = Tally(tuple(found), Reasons({found[0].mutant.name: "it is right"}), 1.0)
    assert not refuted.holds
    assert refuted.lines == [f"NOT EQUIVALENT, {found[0].killed_by} fails it: {found[0].mutant.name}"]


def test_a_family_excuses_what_survives_and_is_refused_where_half_is_killed(checks):
    some = sample_mutants(list(find_mutants(VARIANTS, checks)), 4, seed=1)
    family = Reasons(families={"<any>": "right for one reason"})
    survived, killed = ([Outcome(one, survived_seed=1) for one in some], [Outcome(one, "relu") for one in some])
    assert not Tally(tuple(survived), Reasons(), 1.0).holds
    assert Tally((*survived[:3], killed[3]), family, 1.0).holds
    assert Tally((*survived[:3], killed[3]), family, 1.0).summary.startswith("1 killed, 3 equivalent, 0 survived of 4")
    half = Tally((*survived[:2], *killed[2:]), family, 1.0)
    assert not half.holds and half.lines == ["NO FAMILY, half of it is killed: <any>"]
    assert Tally(tuple(killed[:2]), family, 1.0).holds  # of a sample too few are known
    named = Reasons({some[0].name: "it is right"}, family.families)
    assert [named.family_of(one) for one in some] == [None, "<any>", "<any>", "<any>"]
    assert Tally((killed[0], *survived[1:]), named, 1.0).refuted


def _named(name, change):
    return Mutant(name, change, "shift_constant", "f", "", Code("", frozenset()))


def test_reasons_and_what_is_wrong_with_them(tmp_path):
    assert read_equivalent(tmp_path) == Reasons()
    file = tmp_path / "equivalent.toml"
    file.write_text('[[equivalent]]\nreason = "0 is added"\nmutants = ["a", "b"]\nfamilies = ["f: x[0] * <any>"]\n')
    reasons = read_equivalent(tmp_path)
    assert reasons == Reasons({"a": "0 is added", "b": "0 is added"}, {"f: x[0] * <any>": "0 is added"})
    turns = [_named(f"f: …] * {number}…", f"f: x[0] * {number}") for number in range(4)]
    named = [_named(name, name) for name in ("a", "b", "c")]
    reasons.refuse_stale([*named, *turns])
    assert [reasons.excuse(one) for one in (*named, *turns)] == [True, True, False, *[True] * 4]
    assert not reasons.excuse(_named("f: x[0] *", "g f: x[0] * 1"))
    with pytest.raises(InputError, match="names no mutant: got b"):
        reasons.refuse_stale([named[0], *turns])
    with pytest.raises(InputError, match=r"fewer than 3 mutants .* got 2 of f: x\[0\] \* <any>"):
        reasons.refuse_stale([*named, *turns[2:]])
    file.write_text('[[equivalent]]\nreason = " "\nmutants = ["a"]\n')
    with pytest.raises(InputError, match="a group has no reason: got a"):
        read_equivalent(tmp_path)
    for kind in ("mutants", "families"):
        file.write_text(f'[[equivalent]]\nreason = "x"\n{kind} = ["a", "a"]\n')
        with pytest.raises(InputError, match="named twice: got a"):
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
