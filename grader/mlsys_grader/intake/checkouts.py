"""Notebooks out of git checkouts, one folder per student: what counts is the last commit, not the working tree.

A checkout is a student's, its configuration included: no command of Git runs in it (`intake.repository`).
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from functools import partial
from pathlib import Path, PurePosixPath

from mlsys_grader.intake.bounded import run_bounded
from mlsys_grader.intake.hand_in import HandIn, HandIns, compose
from mlsys_lab.errors import InputError


def look_in_checkouts(checkouts: Iterable[Path]) -> HandIns:
    """Notebooks at HEAD with the time that their last commit claims; checkouts without one, or that cannot be read."""
    from mlsys_grader.intake import repository  # dulwich comes with an extra

    found = HandIns()
    for checkout in (path.absolute() for path in checkouts):
        student = _name_student(checkout)
        found.students.add(student)
        try:
            listed = run_bounded(repository.list_notebooks, checkout)
        except InputError as error:
            found.left_out.append((student, str(error)))
            continue
        found.notebooks += [
            HandIn(
                student,
                PurePosixPath(path).name,
                partial(run_bounded, repository.read_notebook, checkout, blob),
                path,
                in_checkout=True,
                find_commit_time=partial(_find_commit_time, checkout, path),
            )
            for path, blob in listed
        ]
    return found


def _name_student(checkout: Path) -> str:
    """The student's name: in a folder LAB-submissions, as GitHub Classroom clones them, what follows `LAB-`."""
    folder = checkout.parent.resolve().name
    assignment = f"{folder.removesuffix('-submissions')}-"
    is_classroom = folder.endswith("-submissions") and checkout.name.startswith(assignment)
    return compose(checkout.name.removeprefix(assignment) or checkout.name if is_classroom else checkout.name)


def _find_commit_time(checkout: Path, path: str) -> datetime | None:
    """When the notebook was last committed, as the student's git has it; None where it is not known."""
    from mlsys_grader.intake import repository

    try:
        time = run_bounded(repository.find_commit_time, checkout, path)
    except InputError:
        return None
    return datetime.fromisoformat(time) if time else None
