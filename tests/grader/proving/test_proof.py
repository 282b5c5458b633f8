"""`mlsys-grader prove`: the tiny lab's variants through the real judge, and proofs that cannot be made."""

import re
from pathlib import Path

import pytest

from mlsys_checks.trusted.artifact import Artifact
from mlsys_grader.cli import main
from mlsys_grader.course.lab import GradedLab
from mlsys_grader.engines import Result
from mlsys_grader.judging.verdict import Verdict
from mlsys_grader.proving.proof import count_caught, read_result
from mlsys_grader.proving.trials import Trial, list_trials
from mlsys_grader.proving.variants import Variant, VariantsOf
from mlsys_lab.errors import InputError
from mlsys_lab.stack.labinfo import read_lab

FIXTURES = Path(__file__).parents[1] / "fixtures"
SOLUTION = FIXTURES / "solutions" / "01-tiny"
VARIANTS = FIXTURES / "variants" / "tiny"


@pytest.fixture
def command(tiny_labs):
    return ["--labs", str(tiny_labs), "prove", "tiny", "--project", str(FIXTURES), "--time-factor", "3"]


def row(out, name):
    """The line of the output that tells of a variant or a check, cut at wide gaps."""
    line = next(line for line in out.splitlines() if re.search(rf"(^|\s){re.escape(name)}(\s|$)", line))
    return [part.strip() for part in re.split(r"\s{2,}", line.strip())]


@pytest.mark.sandbox
def test_the_tiny_lab_is_proved(command, capsys):
    assert main([*command, "--variants", str(VARIANTS)]) == 0
    out = capsys.readouterr().out
    assert row(out, "the course's solutions")[2] == "passes all"
    assert row(out, "the released notebook")[2:4] == ["caught", "all"]
    assert row(out, "by_hand")[2] == "passes all"
    assert row(out, "the mean of nothing is NaN")[2:4] == ["caught", "mean"]
    assert row(out, "the process ends")[2:4] == ["caught", "total"]
    counts = out.partition("mutants caught")[2]
    assert [row(counts, name)[-1] for name in ("double", "mean", "total")] == ["1", "2", "2"]
    assert "1 reference, 1 blank, 1 alternative, 5 mutants, 2 mishaps: " in out
    assert out.endswith("0 false passes, 0 false fails\n")


@pytest.mark.sandbox
def test_a_check_that_passes_a_mistake_and_one_that_fails_a_right_solution_are_named(command, capsys, tmp_path):
    (tmp_path / "alternatives").mkdir()
    (tmp_path / "alternatives" / "off.py").write_text("def mean(x):\n    return x.mean()\n")  # NaN for nothing
    change = "@@ double @@ no mistake\n-    doubled = 2 * x\n+    doubled = x + x\n"
    (tmp_path / "variants.diff").write_text(change)
    assert main([*command, "--variants", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert row(out, "no mistake")[2] == "FALSE PASS of double"
    assert row(out, "off")[2] == "FALSE FAIL of mean"
    assert re.search(r"^off: mean with seed \d+: a case that is not shown fails", out, re.MULTILINE)
    assert row(out.partition("mutants caught")[2], "total")[-1] == "none: nothing proves it"
    assert out.endswith("1 false passes, 1 false fails\n")


def test_without_solutions_it_says_where_to_run_it(tiny_labs, tmp_path, capsys):
    assert main(["--labs", str(tiny_labs), "prove", "tiny", "--project", str(tmp_path)]) == 1
    err = capsys.readouterr().err
    assert err == (
        f"mlsys-grader: no solutions of 01-tiny to prove: expected {tmp_path}/solutions/01-tiny; "
        "help: run it in a checkout of the course, or name one with --project\n"
    )


def test_without_variants_it_says_which_file_is_missing(command, tmp_path, capsys):
    assert main([*command, "--variants", str(tmp_path)]) == 1
    assert f"no variants of 01-tiny: expected {tmp_path}/variants.diff" in capsys.readouterr().err


def test_a_variant_whose_text_is_not_there_once_is_refused():
    variants = VariantsOf(read_lab(SOLUTION), VARIANTS)
    with pytest.raises(InputError, match=r"variant 'odd' is not in the reference exactly once: got 3 times"):
        variants.substituted(Variant("odd", "return", "yield", ("double",)))


def judged(*passed, fault="", unfinished=False):
    """A judge's answer for the tiny lab: the checks named are passed, the others wrong or not written."""
    lost = {"earned": 0, "what": "wrong", "fault": fault, "unfinished": unfinished}
    names = ("double", "mean", "total")
    return Result("0", tuple(Verdict(n, n, 1, **({"earned": 1} if n in passed else lost)) for n in names))


RIGHT = Trial("reference", "r", Artifact("r", ()))
WRONG = Trial("mutant", "m", Artifact("m", ()), frozenset(["mean", "total"]), unfinished=False)
BLANK = Trial("blank", "b", Artifact("b", ()), frozenset(["double", "mean", "total"]), unfinished=True)


def test_outcomes():
    assert read_result(RIGHT, judged("double", "mean", "total")).holds
    assert read_result(RIGHT, judged("double", "mean")).false_fails == ("total",)
    assert read_result(WRONG, judged("double")).holds
    assert read_result(WRONG, judged()).holds  # a mistake may show in more checks than it names
    assert read_result(WRONG, judged("double", "mean")).false_passes == ("mean",)
    assert not read_result(WRONG, judged("double", fault="the check itself failed")).holds
    assert read_result(WRONG, Result("0", error="no sandbox")).error == "no sandbox"


def test_a_mistake_is_not_an_unwritten_task_nor_the_other_way_round():
    assert read_result(BLANK, judged(unfinished=True)).holds
    assert read_result(BLANK, judged()).misread == ("double", "mean", "total")
    assert read_result(WRONG, judged("double", unfinished=True)).misread == ("mean", "total")
    assert not read_result(WRONG, judged("double", unfinished=True)).holds


def test_a_check_that_was_not_asked_has_caught_nothing():
    some = Result("0", tuple(verdict for verdict in judged("double").verdicts if verdict.check != "total"))
    assert read_result(WRONG, some).false_passes == ("total",)
    assert not read_result(WRONG, Result("0")).holds


def test_only_mutants_prove_a_check(tiny):
    proved = [read_result(RIGHT, judged("double", "mean")), read_result(WRONG, judged("double"))]
    assert count_caught(tiny, proved) == {"double": 0, "mean": 1, "total": 1}


def test_every_kind_of_variant_is_tried(tiny: GradedLab):
    tried = list_trials(tiny, VariantsOf(read_lab(SOLUTION), VARIANTS))
    kinds = ["reference", "blank", "alternative", *["mutant"] * 5, *["mishap"] * 2]
    assert [trial.kind for trial in tried] == kinds
    assert [trial.right for trial in tried[:3]] == [True, False, True]
    assert tried[1].fails == {"double", "mean", "total"}
