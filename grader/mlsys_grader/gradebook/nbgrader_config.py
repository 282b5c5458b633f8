"""nbgrader's configuration in a course folder: folders, database, and the judge's marks in place of execution."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def configure(config: Any, root: Path | None = None) -> Any:
    """Fill a traitlets Config for the course at `root`, by default the current folder."""
    root = (root or Path.cwd()).absolute()
    config.CourseDirectory.root = str(root)
    config.CourseDirectory.db_url = f"sqlite:///{root / 'gradebook.db'}"
    config.CourseDirectory.source_directory = "released"
    config.CourseDirectory.release_directory = "released"
    config.CourseDirectory.submitted_directory = "sanitised"
    config.CourseDirectory.autograded_directory = "autograded"
    config.CourseDirectory.feedback_directory = "feedback"
    # The submission's code never runs under nbgrader: Execute is replaced by a step that copies verdicts from
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
    # No markup of a submission is live in formgrader or in nbgrader's own feedback.
    config.HTMLExporter.filters = {"markdown2html": "mlsys_grader.gradebook.safe_markdown.render_markdown"}
    config.HTMLExporter.sanitize_html = True
    return config
