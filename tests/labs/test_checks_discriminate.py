"""Reference and alternatives pass every check, the blank release earns nothing, every mutant is caught."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from grader.variants import Variant
from mlsys_lab.checks.runner import run_check
from mlsys_lab.checks.sides import DECIDING, LEARNER, files_of
from tests.labs.harness import (
    LabUnderTest,
    artifact_of,
    labs,
    module_of,
    released_notebook,
    told,
    tried,
)

LABS = labs()
SEEDS, QUICK_S = 200, 0.05
"""Draws of secret inputs to try, on the checks that take no longer than this."""
FEWER_SEEDS = {"transformer-arithmetic": 100}
"""Where a draw costs a model that is built and run, 0.4 s over all checks. A fault that costs one draw in 33 a point
shows with 95 % certainty; with 200 draws, one in 67."""
TRACED_SEEDS = 3
"""The same for traced checks, whose kernels are interpreted."""
NO_ANSWER = "did not come to an end"


def over(what: str) -> pytest.MarkDecorator:
    """Parametrise a test over the variants of all labs."""
    pairs = [(lab, variant) for lab in LABS for variant in getattr(lab, what)]
    return pytest.mark.parametrize(("lab", "variant"), pairs, ids=[f"{lab.info.topic}: {v.name}" for lab, v in pairs])


OWN = re.compile(r"mlsys_lab\.checks\.(learner|deciding)\.autograd")
each_lab = pytest.mark.parametrize("lab", LABS, ids=[lab.info.topic for lab in LABS])


@each_lab
def test_the_reference_passes_everything(lab: LabUnderTest) -> None:
    module = module_of(lab.reference, "reference.ipynb")
    assert [told(r) for check in lab.checks.checks if not (r := tried(check, module)).passed] == []


@each_lab
def test_no_draw_of_secret_inputs_costs_a_right_solution_a_point(lab: LabUnderTest) -> None:
    module = module_of(lab.reference, "reference.ipynb")
    plain = [check for check in lab.checks.checks if not check.traced]
    quick = [check for check in plain if tried(check, module).time_s < QUICK_S]
    assert len(quick) >= len(plain) / 2
    seeds = FEWER_SEEDS.get(lab.info.topic, SEEDS)
    draws = [(check, seeds) for check in quick] + [(c, TRACED_SEEDS) for c in lab.checks.checks if c.traced]
    lost = [
        (seed, told(report))
        for check, seeds in draws
        for seed in range(seeds)
        if not (report := run_check(check, module, seed=seed, hidden=True)).passed
    ]
    assert lost == []


@each_lab
def test_the_blank_release_earns_nothing_and_every_check_says_that_the_task_is_still_to_do(lab: LabUnderTest) -> None:
    module = module_of(artifact_of(released_notebook(lab), "blank.ipynb").source, "blank.ipynb")
    reports = [tried(check, module) for check in lab.checks.checks]
    assert sum(report.points for report in reports) == 0
    assert [told(report) for report in reports if not report.unfinished] == []


ALTERNATIVES = [(lab, path) for lab in LABS for path in lab.alternatives]


@pytest.mark.parametrize(("lab", "path"), ALTERNATIVES, ids=[f"{lab.info.topic}: {p.stem}" for lab, p in ALTERNATIVES])
def test_an_alternative_passes_everything(lab: LabUnderTest, path: Path) -> None:
    module = module_of(lab.with_definitions(path), path.name)
    assert [told(r) for check in lab.checks.checks if not (r := tried(check, module)).passed] == []


# A test tool's callback of the garbage collector swallows the alarm if it rings there; the next one, 0.2 s on, counts.
alarm_may_be_swallowed = pytest.mark.filterwarnings(
    "ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning"
)


@over("mutants")
@alarm_may_be_swallowed
def test_a_mutant_fails_the_checks_that_are_to_catch_it(lab: LabUnderTest, variant: Variant) -> None:
    module = module_of(lab.substituted(variant), "mutant.ipynb")
    for name in variant.fails:
        report = tried(lab.checks[name], module, limit_s=1.0 if variant.hangs else None)
        assert not report.passed, f"{name} does not notice: {variant.name}"
        assert not report.unfinished
        assert (NO_ANSWER in told(report)) == variant.hangs, told(report)


@over("mishaps")
@alarm_may_be_swallowed
def test_a_mishap_gets_one_clear_message(lab: LabUnderTest, variant: Variant) -> None:
    module = module_of(lab.substituted(variant), "mishap.ipynb")
    for name in variant.fails:
        report = tried(lab.checks[name], module, limit_s=1.0 if variant.hangs else None)
        message = told(report)
        assert not report.passed
        assert variant.says in message
        assert "Traceback" not in message
        assert len(message) < 600


@each_lab
def test_every_check_is_failed_by_a_mutant_of_its_own_tasks(lab: LabUnderTest) -> None:
    caught = {name for mutant in lab.mutants for name in mutant.fails}
    assert caught == {check.name for check in lab.checks.checks}


@each_lab
def test_there_are_enough_variants(lab: LabUnderTest) -> None:
    assert len({mutant.name for mutant in lab.mutants}) == len(lab.mutants) >= 12
    assert len(lab.alternatives) >= 3
    assert len(lab.mishaps) >= 6


@each_lab
def test_neither_artifact_nor_checks_lean_on_what_the_lab_withholds(lab: LabUnderTest) -> None:
    shared = {file for side in (LEARNER, DECIDING) for file in files_of(side, "")}
    files = {file for side in (LEARNER, DECIDING) for file in files_of(side, lab.info.checks_module)} - shared
    assert len(files) >= 2
    for text in [lab.reference, *(f.read_text(encoding="utf-8") for f in files)]:
        for module in lab.info.withheld:
            assert not re.search(rf"\b{re.escape(module)}\b(?!\w)", OWN.sub("", text))
