"""Build the notebook that nbgrader may see: the submission's text in the frame of the released notebook."""

from __future__ import annotations

import json
from typing import Any

from mlsys_grader.course import notebooks
from mlsys_grader.course.lab import GradedLab
from mlsys_grader.intake.escaping import defuse_markdown, escape_controls
from mlsys_grader.intake.submission import Submission, find_released_cells


def sanitise(submission: Submission, lab: GradedLab) -> Any:
    """Put the submission's text into the released notebook's frame.

    Metadata, outputs, ids and check cells come from the release. The first appearance of a cell keeps its position,
    repeats lose their id, missing cells are appended. Text is defused, since formgrader renders it.
    """
    released = find_released_cells(lab)
    notebook = notebooks.new_notebook(json.loads(lab.info.notebook.read_bytes())["metadata"])
    left = dict(released)
    for number, (kind, source, grade_id) in enumerate(submission.cells):
        frame = left.pop(grade_id, None)
        is_code = (frame["cell_type"] if frame is not None else kind) == "code"
        source = escape_controls(source) if is_code else defuse_markdown(source)
        if frame is not None:
            cell = notebooks.copy_node(frame)
            cell.source = source if frame["metadata"]["nbgrader"]["solution"] else "".join(frame["source"])
        else:
            cell = notebooks.new_cell(kind, source, f"cell-{number}")
        notebook.cells.append(cell)
    for frame in left.values():
        cell = notebooks.copy_node(frame)
        cell.source = "".join(frame["source"])
        notebook.cells.append(cell)
    return notebook
