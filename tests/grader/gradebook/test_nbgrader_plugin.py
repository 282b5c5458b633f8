"""nbgrader reads marks out of the outputs of grade cells: each must hold one trusted number and nothing else."""

import json
import math
from dataclasses import replace

import nbformat
import pytest
from nbgrader.utils import determine_grade

from mlsys_grader.course.folder import Course
from mlsys_grader.course.notebooks import new_output
from mlsys_grader.gradebook.nbgrader_plugin import TrustedMarks
from mlsys_grader.gradebook.record import Record
from mlsys_grader.judging.verdict import Verdict
from mlsys_lab.errors import InputError

LAB = "01-tiny"
VERDICTS = (
    Verdict("double", "double", 1, 1),
    Verdict("mean", "mean", 2, 0, what="wrong", got="1", expected="2", case="no numbers", hint="nothing?"),
    Verdict("total", "sum of squares", 3, 3),
)


@pytest.fixture
def trust(tmp_path, hand_in):
    """Runs the step over a notebook whose every cell claims full marks, by the record given: its cells by grade_id."""
    course = Course.open(tmp_path, create=True)

    def run(record):
        if record is not None:
            record.write(course.record("ada", LAB))
        notebook = nbformat.from_dict(hand_in())
        for cell in notebook.cells:
            if cell.cell_type == "code":
                cell.outputs = [
                    new_output("execute_result", data={"text/plain": "6.0"}, execution_count=1),
                    new_output("display_data", data={"text/html": "<script>alert(1)</script>"}),
                ]
                cell.execution_count = 1
        place = {"db_url": f"sqlite:///{course.gradebook}", "student": "ada", "assignment": LAB, "notebook": LAB}
        notebook, _ = TrustedMarks().preprocess(notebook, {"nbgrader": place})
        return {cell.metadata.get("nbgrader", {}).get("grade_id", cell.id): cell for cell in notebook.cells}

    return run


@pytest.fixture
def record():
    return Record("ada", LAB, "d" * 64, "v1", VERDICTS)


def test_each_grade_cell_holds_its_one_number_and_nbgrader_reads_it(trust, record):
    cells = trust(record)
    for verdict in VERDICTS:
        cell = cells[verdict.check]
        results = [output for output in cell.outputs if output.output_type != "stream"]
        assert [result.output_type for result in results] == ["execute_result"]
        assert results[0].data == {"text/plain": repr(float(verdict.earned))}
        assert determine_grade(cell) == (verdict.earned, verdict.points)
    others = [
        cell for name, cell in cells.items() if cell.cell_type == "code" and name not in {"double", "mean", "total"}
    ]
    assert others and all(cell.outputs == [] for cell in others)


def test_a_lost_check_has_its_reason_beside_the_number(trust, record):
    cells = trust(record)
    assert cells["mean"].outputs[1].text == "wrong: got 1, expected 2\ncase: no numbers\nnothing?\n"
    assert len(cells["double"].outputs) == len(cells["total"].outputs) == 1


@pytest.mark.parametrize("earned", [-1.0, 7.0, math.inf])
def test_no_record_gives_marks_beyond_the_points(trust, record, earned):
    """nbgrader takes a number out of range for no number, and no number for full marks: such a record is none."""
    with pytest.raises(InputError, match="no verdict on this submission: got ada"):
        trust(replace(record, verdicts=(*VERDICTS[:2], replace(VERDICTS[2], earned=earned))))


@pytest.mark.parametrize("state", ["none", "damaged", "fault"])
def test_without_a_verdict_there_is_no_mark(trust, record, tmp_path, state):
    if state == "fault":
        record = replace(record, verdicts=(*VERDICTS[:2], replace(VERDICTS[2], fault="the check itself failed")))
    with pytest.raises(InputError, match="no verdict on this submission: got ada"):
        trust(record if state == "fault" else None)
    if state == "damaged":
        path = Course(tmp_path).record("ada", LAB)
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps({"student": "ada"}))
        with pytest.raises(InputError, match="no verdict"):
            trust(None)
