"""Notebooks out of git checkouts, one folder per student: what counts is the last commit, not the working tree.

A checkout is a student's: its configuration must not make git run or fetch anything.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

from mlsys_grader.intake.hand_in import HandIn, HandIns, compose
from mlsys_grader.intake.platforms import NOTEBOOK, is_aside
from mlsys_grader.intake.submission import FILE_BYTES
from mlsys_lab.errors import InputError, MissingToolError

SAFE = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "safe.directory=*", "--no-pager")
LIMIT_S = 60


def look_in_checkouts(checkouts: Iterable[Path]) -> HandIns:
    """Notebooks at HEAD with the time that their last commit claims; checkouts without one, or that git cannot read."""
    if shutil.which("git") is None:
        raise MissingToolError("git is not installed", help="`apt install git`")
    found = HandIns()
    for checkout in checkouts:
        student = _name_student(checkout)
        found.students.add(student)
        if not _holds_its_own(checkout / ".git"):
            found.left_out.append((student, "its repository is not its own"))
            continue
        try:
            listed = _git(checkout, "ls-tree", "-r", "-z", "--format=%(objectmode) %(objectsize) %(path)", "HEAD")
            notebooks = [
                HandIn(
                    student,
                    PurePosixPath(path).name,
                    lambda checkout=checkout, path=path: _blob(checkout, path),  # type: ignore[misc]
                    path,
                    in_checkout=True,
                    committed=_committed(checkout, path),
                )
                for path in _notebooks(listed)
            ]
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            found.left_out.append((student, _why(error)))
            continue
        found.notebooks += notebooks
    return found


def _name_student(checkout: Path) -> str:
    """The student's name: in a folder LAB-submissions, as GitHub Classroom clones them, what follows `LAB-`."""
    folder = checkout.parent.resolve().name
    assignment = f"{folder.removesuffix('-submissions')}-"
    is_classroom = folder.endswith("-submissions") and checkout.name.startswith(assignment)
    return compose(checkout.name.removeprefix(assignment) or checkout.name if is_classroom else checkout.name)


def _holds_its_own(repository: Path) -> bool:
    """Whether a repository holds what it shows: a pointer or a link could show another student's work."""
    if repository.is_symlink() or not repository.is_dir():
        return False
    if (repository / "commondir").exists() or (repository / "objects" / "info" / "alternates").exists():
        return False
    walk = os.walk(repository)
    return not any(Path(folder, name).is_symlink() for folder, names, files in walk for name in (*names, *files))


def _notebooks(listed: bytes) -> list[str]:
    """Paths of plain files in what `ls-tree` lists, without those that are too large to be read."""
    paths = []
    for line in listed.decode(errors="replace").split("\0"):
        mode, _, rest = line.partition(" ")
        size, _, path = rest.partition(" ")
        if mode not in ("100644", "100755") or NOTEBOOK.search(path) is None or is_aside(PurePosixPath(path)):
            continue
        if int(size) <= FILE_BYTES:
            paths.append(path)
    return paths


def _blob(checkout: Path, path: str) -> bytes:
    try:
        return _git(checkout, "cat-file", "blob", f"HEAD:{path}")
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        raise InputError("git cannot read the notebook", got=_why(error)) from None


def _committed(checkout: Path, path: str) -> datetime | None:
    """When the notebook was last committed, as the student's git has it; None for a time that no calendar has."""
    said = _git(checkout, "log", "-1", "--format=%ct", "HEAD", "--", f":(literal){path}").decode().strip()
    try:
        return datetime.fromtimestamp(int(said), UTC)
    except (ValueError, OverflowError, OSError):
        return None


def _git(checkout: Path, *arguments: str) -> bytes:
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "GIT_ALLOW_PROTOCOL": "none",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_TERMINAL_PROMPT": "0",
    }
    command = ["git", *SAFE, "-C", str(checkout), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, check=True, timeout=LIMIT_S).stdout


def _why(error: subprocess.CalledProcessError | subprocess.TimeoutExpired) -> str:
    if isinstance(error, subprocess.TimeoutExpired):
        return f"git gave no answer in {LIMIT_S} s"
    said = error.stderr.decode(errors="replace").strip().splitlines()
    return said[0] if said else f"git failed with status {error.returncode}"
