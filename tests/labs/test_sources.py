"""What a lab's source notebook must hold (design: what makes a lab done)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import yaml

from tests.labs.harness import PROJECT, LabUnderTest, labs, released_notebook

LABS = labs()
each_lab = pytest.mark.parametrize("lab", LABS, ids=[lab.info.topic for lab in LABS])

REGION = re.compile(r"About (\d+) lines?\.(?:(?!About \d).)*?### BEGIN SOLUTION\n(.*?)### END SOLUTION", re.DOTALL)


def markdown(notebook: dict[str, Any]) -> list[str]:
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "markdown"]


def tasks(lab: LabUnderTest) -> list[str]:
    """The prose of each task: from its heading to the next heading of that level."""
    prose = "\n\n".join(markdown(lab.reference_notebook))
    return re.findall(r"^(## Task \d+ · .*?)(?=^## |\Z)", prose, re.MULTILINE | re.DOTALL)


@each_lab
def test_every_solution_region_keeps_to_its_size_hint(lab: LabUnderTest) -> None:
    source = lab.source.read_text(encoding="utf-8")
    regions = REGION.findall(source)
    assert len(regions) == source.count("### BEGIN SOLUTION"), "a task has no size hint: About … lines."
    for hint, region in regions:
        lines = [line for line in region.splitlines() if line.strip() and not line.strip().startswith("#")]
        assert int(hint) / 2 - 1 <= len(lines) <= int(hint) * 1.25 + 1, f"hint {hint}, {len(lines)} lines:\n{region}"


CODE_WIDTH = 88
"""Characters of a line of code that a lab's page shows at 1280 pixels (book/_static/theme.css)."""


@each_lab
def test_code_fits_the_lab_s_page(lab: LabUnderTest) -> None:
    cells = [*lab.reference_notebook["cells"], *released_notebook(lab)["cells"]]
    code = [cell["source"] for cell in cells if cell["cell_type"] == "code"]
    lines = [line for source in code for line in "".join(source).splitlines()]
    assert [line for line in lines if len(line) > CODE_WIDTH] == []


LEAST: dict[str, tuple[int, Callable[[LabUnderTest], Sequence[Any]]]] = {
    "tasks": (4, tasks),
    "mutants": (12, lambda lab: lab.mutants),
    "mishaps": (6, lambda lab: lab.mishaps),
    "alternatives": (3, lambda lab: lab.alternatives),
}
"""How many of what a lab has before it is done, and where they are found."""


@pytest.mark.parametrize("what", LEAST)
@each_lab
def test_a_lab_has_enough(lab: LabUnderTest, what: str) -> None:
    least, find = LEAST[what]
    count = len(find(lab))
    assert count >= least, f"{lab.info.topic}: {count} of at least {least} {what}"


@each_lab
def test_no_two_mutants_have_one_name(lab: LabUnderTest) -> None:
    assert len({mutant.name for mutant in lab.mutants}) == len(lab.mutants)


@each_lab
def test_at_most_eight_tasks_with_size_cost_minutes_and_a_check(lab: LabUnderTest) -> None:
    texts = tasks(lab)
    assert len(texts) <= 8
    assert [int(number) for text in texts for number in re.findall(r"^## Task (\d+)", text)] == list(
        range(1, len(texts) + 1)
    )
    assert all("**Size:**" in text for text in texts)
    minutes = [int(m) for text in texts for m in re.findall(r"\*About (\d+) minutes\.\*", text)]
    assert len(minutes) == len(texts)
    assert sum(minutes) == lab.info.minutes


@each_lab
def test_a_number_is_predicted_before_it_is_measured(lab: LabUnderTest) -> None:
    predicted = any("predict" in text.lower() and "measure" in text.lower() for text in tasks(lab))
    assert predicted, f"{lab.info.topic}: no task asks to predict a number and then to measure it"


@each_lab
def test_the_opening_says_what_why_how_long_and_what_to_read(lab: LabUnderTest) -> None:
    first = lab.reference_notebook["cells"][0]
    assert first["cell_type"] == "markdown", "a lab's page begins with its title"
    opening = "".join(first["source"])
    for words in (
        "You will build",
        "you can answer",
        f"{lab.info.minutes} minutes",
        f"{lab.info.points:g}",
        "You need",
    ):
        assert words in opening
    known = {entry["id"]: entry for entry in entries()}
    for reading in lab.info.readings:
        assert reading in known
        assert f"`{reading}`" in opening
        assert known[reading]["title"] in " ".join(opening.split())


def entries() -> list[dict[str, Any]]:
    loaded = yaml.safe_load((PROJECT / "book/data/readings.yml").read_text(encoding="utf-8"))
    return loaded if isinstance(loaded, list) else next(v for v in loaded.values() if isinstance(v, list))


def test_labs_in_their_order_ask_for_earlier_labs_only() -> None:
    """The README says: do the labs in order."""
    names = [lab.source.stem for lab in LABS]
    for lab in LABS:
        assert [one for one in lab.info.prerequisite_labs if one >= lab.source.stem or one not in names] == []


@each_lab
def test_each_check_is_called_in_a_cell_below_a_solution_cell(lab: LabUnderTest) -> None:
    seen_solution = False
    called = []
    for cell in lab.reference_notebook["cells"]:
        role = cell["metadata"].get("nbgrader", {})
        seen_solution |= bool(role.get("solution"))
        if role.get("grade"):
            assert seen_solution
            assert "".join(cell["source"]).strip() == f'check("{role["grade_id"]}")'
            called.append(role["grade_id"])
    assert called == [check.name for check in lab.checks.checks]


@each_lab
def test_the_release_keeps_every_export_marker(lab: LabUnderTest) -> None:
    def exports(notebook: dict[str, Any]) -> int:
        return sum("".join(cell["source"]).startswith("#| export") for cell in notebook["cells"])

    assert exports(released_notebook(lab)) == exports(lab.reference_notebook) > 0


@each_lab
def test_what_is_timed_is_traced_so_that_nothing_else_of_a_submission_runs_beside_it(lab: LabUnderTest) -> None:
    """grader/THREATS.md, "Marks for speed": a check that is not traced would time whatever the submission calls."""
    assert [check.name for check in lab.checks.checks if check.performance and not check.traced] == []
