"""nbgrader preprocessors that copy the judge's verdicts into the grade cells."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nbgrader.api import Gradebook
from nbgrader.preprocessors import NbGraderPreprocessor

from mlsys_grader.course.folder import Course
from mlsys_grader.course.notebooks import new_output
from mlsys_grader.gradebook.record import read_record
from mlsys_lab.errors import InputError


class TrustedMarks(NbGraderPreprocessor):  # type: ignore[misc]
    """Replacement of nbgrader's Execute.

    nbgrader takes a grade cell's only output as its marks if it is a number in [0, points], and gives FULL marks
    otherwise. So every grade cell gets exactly one such number, and a submission without a record is an error, never a
    mark.
    """

    def preprocess(self, nb: Any, resources: Any) -> Any:
        """Write the recorded marks into the grade cells; `InputError` if the submission was not judged."""
        place = resources["nbgrader"]
        root = Path(place["db_url"].removeprefix("sqlite:///")).parent
        record = read_record(Course(root).record(place["student"], place["assignment"]))
        if record is None or record.faults:
            raise InputError(
                "no verdict on this submission", got=place["student"], help="run `mlsys-grader grade` first"
            )
        verdicts = {verdict.check: verdict for verdict in record.verdicts}
        for cell in nb.cells:
            fields = cell.metadata.get("nbgrader", {})
            if cell.cell_type == "code":
                cell.outputs, cell.execution_count = [], None
            if fields.get("grade") and not fields.get("solution"):
                verdict = verdicts[fields["grade_id"]]
                marks = min(max(verdict.earned, 0.0), float(fields["points"]))
                data = {"text/plain": repr(float(marks))}
                cell.outputs = [new_output("execute_result", data=data, execution_count=1)]
                cell.execution_count = 1
                if not verdict.passed:
                    case = f"case: {verdict.case}" if verdict.case else ""
                    text = "\n".join(line for line in (verdict.reason, case, verdict.hint) if line)
                    cell.outputs.append(new_output("stream", name="stdout", text=f"{text}\n"))
        return nb, resources


class ExtraCredit(NbGraderPreprocessor):  # type: ignore[misc]
    """Enter measured performance points as extra credit of the check's grade cell.

    Runs after SaveAutoGrades. Unmeasured points enter nothing, and higher extra credit that is already there, manual or
    from a better measurement, stays.
    """

    def preprocess(self, nb: Any, resources: Any) -> Any:
        """Set `extra_credit` in the gradebook from the record."""
        place = resources["nbgrader"]
        lab, student = place["assignment"], place["student"]
        record = read_record(Course(Path(place["db_url"].removeprefix("sqlite:///")).parent).record(student, lab))
        verdicts = record.verdicts if record is not None else ()
        earned = {v.check: v.performance.earned for v in verdicts if v.performance is not None and v.performance.earned}
        if earned:
            with Gradebook(place["db_url"]) as gradebook:
                for check, points in earned.items():
                    grade = gradebook.find_grade(check, place["notebook"], lab, student)
                    grade.extra_credit = max(points, grade.extra_credit or 0.0)
                gradebook.db.commit()
        return nb, resources
