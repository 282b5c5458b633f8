"""Collect notebooks from git checkouts, one folder per student; the last commit counts, not the working tree.

A checkout and its configuration belong to a student: no Git command runs in it (`intake.repository`).
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from functools import partial
from pathlib import Path, PurePosixPath

from mlsys_grader.intake.bounded import run_bounded
from mlsys_grader.intake.found import FoundNotebook, FoundSubmissions, compose
from mlsys_lab.errors import InputError


def find_in_checkouts(checkouts: Iterable[Path]) -> FoundSubmissions:
    """Find notebooks at HEAD, with the time of their last commit; leave out unreadable checkouts."""
    from mlsys_grader.intake import repository  # dulwich is an extra

    found = FoundSubmissions()
    for checkout in (path.absolute() for path in checkouts):
        student = _name_student(checkout)
        found.students.add(student)
        try:
            listed = run_bounded(repository.list_notebooks, checkout)
        except InputError as error:
            found.left_out.append((student, str(error)))
            continue
        found.notebooks += [
            FoundNotebook(
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
    """The student's name: in LAB-submissions, as GitHub Classroom clones them, what follows `LAB-`."""
    folder = checkout.parent.resolve().name
    assignment = f"{folder.removesuffix('-submissions')}-"
    is_classroom = folder.endswith("-submissions") and checkout.name.startswith(assignment)
    return compose(checkout.name.removeprefix(assignment) or checkout.name if is_classroom else checkout.name)


def _find_commit_time(checkout: Path, path: str) -> datetime | None:
    """Time of the last commit of the notebook according to the student's git; None if unknown."""
    from mlsys_grader.intake import repository

    try:
        time = run_bounded(repository.find_commit_time, checkout, path)
    except InputError:
        return None
    return datetime.fromisoformat(time) if time else None
