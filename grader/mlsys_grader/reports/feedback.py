"""The feedback page of one submission: marks per check, the reason for each lost point, a hint.

The page has no script and loads nothing; everything from the submission is escaped.
"""

from __future__ import annotations

from mlsys_grader.course.lab import GradedLab
from mlsys_grader.gradebook.manual_points import ManualPoints
from mlsys_grader.gradebook.record import Record
from mlsys_grader.judging.verdict import Verdict
from mlsys_grader.reports.webpage import render_webpage


def render_feedback(record: Record, lab: GradedLab, manual: ManualPoints | None = None) -> str:
    """HTML of a student's page; `manual` holds what was added by hand in formgrader."""
    return render_webpage(
        "feedback.html",
        title=lab.info.title,
        record=record,
        total=manual or record,
        manual=manual,
        common_reason=find_common_reason(record),
        checks=[(verdict, list_remarks(verdict)) for verdict in record.verdicts],
    )


def find_common_reason(record: Record) -> str:
    """The one reason for which every check failed; "" if there is none."""
    reasons = {verdict.reason for verdict in record.verdicts}
    return reasons.pop() if len(reasons) == 1 and not record.earned else ""


def list_remarks(verdict: Verdict) -> list[tuple[str, str]]:
    """What a student reads about a check, as pairs (heading, text): why points were lost, the result for speed."""
    remarks = []
    if not verdict.passed:
        remarks = [
            ("what", verdict.what),
            ("got", verdict.got),
            ("expected", verdict.expected),
            ("case", f"{verdict.case} (not shown)" if verdict.hidden else verdict.case),
            ("hint", verdict.hint),
        ]
    if verdict.performance is not None:
        remarks.append(("for speed", verdict.performance.line))
    return [(heading, text) for heading, text in remarks if text]
