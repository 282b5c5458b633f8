"""How nbgrader works in a course folder: its folders, its database, the judge's marks in place of its own execution."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def configure(config: Any, root: Path | None = None) -> Any:
    """Fill a traitlets Config for the course at `root` (the current folder when left out) and return it."""
    root = (root or Path.cwd()).absolute()
    config.CourseDirectory.root = str(root)
    config.CourseDirectory.db_url = f"sqlite:///{root / 'gradebook.db'}"
    config.CourseDirectory.source_directory = "released"
    config.CourseDirectory.release_directory = "released"
    config.CourseDirectory.submitted_directory = "sanitised"
    config.CourseDirectory.autograded_directory = "autograded"
    config.CourseDirectory.feedback_directory = "feedback"
    # The submission's code never runs under nbgrader: in Execute's place stands a step that copies verdicts out of
    # the records.
    config.Autograde.sanitize_preprocessors = [
        "nbgrader.preprocessors.ClearOutput",
        "nbgrader.preprocessors.OverwriteCells",
        "nbgrader.preprocessors.CheckCellMetadata",
    ]
    config.Autograde.autograde_preprocessors = [
        "mlsys_grader.gradebook.nbgrader_plugin.TrustedMarks",
        "nbgrader.preprocessors.SaveAutoGrades",
        "mlsys_grader.gradebook.nbgrader_plugin.ExtraCredit",
        "nbgrader.preprocessors.AssignLatePenalties",
        "nbgrader.preprocessors.CheckCellMetadata",
    ]
    config.OverwriteCells.add_missing_cells = True
    # Nothing of a submission is live in formgrader or in nbgrader's own feedback.
    config.HTMLExporter.filters = {"markdown2html": "mlsys_grader.gradebook.safe_markdown.render_markdown"}
    config.HTMLExporter.sanitize_html = True
    return config
