"""Reference and alternatives pass every check, the blank release earns nothing, every mutant is caught."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache

import pytest

from mlsys_checks.runner import PUBLIC_SEED
from mlsys_checks.sandboxed.spec import Check
from mlsys_checks.sides import SANDBOXED, TRUSTED, find_files
from mlsys_grader.judging.verdict import Verdict
from mlsys_grader.proving.draws import try_draws
from mlsys_grader.proving.in_process import InProcess
from mlsys_grader.proving.proof import Proved, prove
from mlsys_grader.proving.trials import Trial, try_alternative, try_blank, try_mishap, try_mutant, try_reference
from mlsys_grader.proving.variants import Variant
from tests.labs.harness import LabUnderTest, artifact_of, labs, released_notebook
from tests.sampling import sample

pytestmark = pytest.mark.slow
LABS = labs()
SEEDS, DRAWING_S = 40, 0.1
"""Draws of secret inputs to try on each check, as far as they go in so much processor time.

A fault that costs one draw in 14 a point shows with 95 % certainty in 40; `mlsys-grader prove --draws` tries a thousand
once a week, of the alternatives too.
"""
NO_ANSWER = "did not come to an end"
EVERY = 24
HANG_S, ELSEWHERE_S = 1.0, 0.25
"""Time limit of checks that a variant hangs in, and of those that wait twenty times as long for another process."""


def over(what: str) -> pytest.MarkDecorator:
    """Parametrise a test over variants: each `EVERY`-th of a lab runs always, the others once a week."""
    cases = []
    for lab in LABS:
        for number, variant in enumerate(getattr(lab, what)):
            marks = [pytest.mark.weekly] if number % EVERY else []
            cases.append(pytest.param(lab, variant, id=f"{lab.info.topic}: {variant.name}", marks=marks))
    return pytest.mark.parametrize(("lab", "variant"), cases)


OWN = re.compile(r"mlsys_checks\.(sandboxed|trusted)\.autograd")
each_lab = pytest.mark.parametrize("lab", LABS, ids=[lab.info.topic for lab in LABS])
CHECKS = [(lab, check) for lab in LABS for check in lab.checks.checks]
each_check = pytest.mark.parametrize(("lab", "check"), CHECKS, ids=[f"{lab.info.topic}: {c.name}" for lab, c in CHECKS])


def proved(checks: Iterable[Check], trial: Trial) -> Proved:
    """What the checks make of a trial, in this process."""
    (one,) = prove(InProcess(checks), [trial])
    return one


def told(verdicts: Sequence[Verdict]) -> list[str]:
    """All that verdicts say about what is wrong."""
    return [f"{v.check} ({v.case}): {v.what} | {v.got} | {v.expected}" for v in verdicts if not v.passed]


@cache
def reference_of(lab: LabUnderTest) -> Trial:
    return try_reference(lab)


@pytest.mark.weekly  # every run judges it in the sandbox: tests/grader/judging/test_references.py
@each_lab
def test_the_reference_passes_everything(lab: LabUnderTest) -> None:
    found = proved(lab.checks.checks, reference_of(lab))
    assert told(found.verdicts) == []
    assert found.holds


@each_check
def test_no_draw_of_secret_inputs_costs_a_right_solution_a_point(lab: LabUnderTest, check: Check) -> None:
    (draws,) = try_draws([check], [reference_of(lab)], SEEDS, seed=0, limit_s=DRAWING_S)
    assert draws.lost == ()


@each_lab
def test_the_blank_release_earns_nothing_and_every_check_says_that_the_task_is_still_to_do(lab: LabUnderTest) -> None:
    blank = try_blank(artifact_of(released_notebook(lab), "blank.ipynb"), (check.name for check in lab.checks.checks))
    found = proved(lab.checks.checks, blank)
    assert found.false_passes == ()
    assert [
        line for line, v in zip(told(found.verdicts), found.verdicts, strict=True) if v.check in found.misread
    ] == []
    assert found.holds


@each_lab
def test_every_variant_changes_what_the_reference_holds(lab: LabUnderTest) -> None:
    assert all(lab.substituted(variant) != lab.reference for variant in lab.variants)


ALTERNATIVES = {f"{lab.info.topic}: {path.stem}": (lab, path) for lab in LABS for path in lab.alternatives}


@pytest.mark.parametrize("name", sample([*ALTERNATIVES], 12))
def test_an_alternative_passes_everything(name: str) -> None:
    lab, path = ALTERNATIVES[name]
    found = proved(lab.checks.checks, try_alternative(lab, path))
    assert told(found.verdicts) == []
    assert found.holds


def named(lab: LabUnderTest, variant: Variant) -> list[Check]:
    """The checks that a variant fails, with a short limit where it hangs."""
    checks = [lab.checks[name] for name in variant.fails]
    limit_s = ELSEWHERE_S if lab.info.topic == "cuda" else HANG_S
    return [replace(check, time_limit_s=limit_s) for check in checks] if variant.hangs else checks


@pytest.fixture
def no_collection() -> Iterator[None]:
    """Without the garbage collector, whose callbacks in test tools swallow the alarm if it rings there, or break."""
    gc.disable()
    yield
    gc.enable()


def hold_to_caught(found: Proved, variant: Variant) -> None:
    """The checks that are to catch a mutant do, take it for no unwritten task, and say that it hangs if it does."""
    assert found.false_passes == (), f"{found.false_passes} do not notice: {variant.name}"
    assert found.holds, told(found.verdicts)
    for message in told(found.verdicts):
        assert (NO_ANSWER in message) == variant.hangs, message


@over("mutants")
@pytest.mark.usefixtures("no_collection")
def test_a_mutant_can_be_found_before_handing_in(lab: LabUnderTest, variant: Variant) -> None:
    checks = named(lab, variant)
    public = [replace(check, cases=tuple(case for case in check.cases if not case.hidden)) for check in checks]
    found = proved(public, replace(try_mutant(lab, variant), seeds=dict.fromkeys(variant.fails, PUBLIC_SEED)))
    hold_to_caught(found, variant)


@pytest.mark.weekly
@over("mutants")
@pytest.mark.usefixtures("no_collection")
def test_a_mutant_is_found_with_other_inputs_too(lab: LabUnderTest, variant: Variant) -> None:
    hold_to_caught(proved(named(lab, variant), try_mutant(lab, variant)), variant)


@over("mishaps")
@pytest.mark.usefixtures("no_collection")
def test_a_mishap_gets_one_clear_message(lab: LabUnderTest, variant: Variant) -> None:
    found = proved(named(lab, variant), try_mishap(lab, variant))
    assert found.holds, found.false_passes
    for message in told(found.verdicts):
        assert variant.says in message
        assert "Traceback" not in message
        assert len(message) < 600


@each_lab
def test_every_check_is_failed_by_a_mutant_of_its_own_tasks(lab: LabUnderTest) -> None:
    caught = {name for mutant in lab.mutants for name in mutant.fails}
    assert caught == {check.name for check in lab.checks.checks}


@each_lab
def test_neither_artifact_nor_checks_lean_on_what_the_lab_withholds(lab: LabUnderTest) -> None:
    shared = {file for side in (SANDBOXED, TRUSTED) for file in find_files(side, "")}
    files = {file for side in (SANDBOXED, TRUSTED) for file in find_files(side, lab.info.checks_module)} - shared
    assert len(files) >= 2
    for text in [lab.reference, *(f.read_text(encoding="utf-8") for f in files)]:
        for module in lab.info.withheld:
            assert not re.search(rf"\b{re.escape(module)}\b(?!\w)", OWN.sub("", text))
