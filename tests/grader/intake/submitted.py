"""Hand-ins for `collect`, as folders, archives and checkouts, and what became of them."""

import os
import subprocess
import zipfile

from mlsys_grader.intake.collect import collect

LAB = "01-tiny"


def put(folder, name, content="{}"):
    """A file in a folder, with the folders above it; its path."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


def archive(path, entries):
    """A zip archive of entries: name -> content."""
    with zipfile.ZipFile(path, "w") as file:
        for name, content in entries.items():
            file.writestr(name, content)
    return path


def unpacked(folder, entries):
    """A folder of files: name -> content."""
    for name, content in entries.items():
        put(folder, name, content)
    return folder


def git(folder, *arguments, **environment):
    """What a command of Git prints, run in a folder by somebody of no importance."""
    command = ["git", "-c", "user.name=x", "-c", "user.email=x@example.org", "-C", str(folder), *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ | environment)
    return done.stdout.strip()


def taken(course):
    """Student -> text of the notebook in the course folder."""
    return {student: course.submission(student, LAB).read_text() for student in course.students(LAB)}


def said(course, source, **options):
    """Student -> what `collect` says of the hand-in; '' is for what belongs to nobody."""
    return {result.student: result for result in collect(course, LAB, source, **options)}


def statuses(course, source, **options):
    """Student -> status of the hand-in."""
    return {student: result.status for student, result in said(course, source, **options).items()}
