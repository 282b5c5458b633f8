"""The instructor's command, `mlsys-grader`: release, collect, grade, feedback, export, status, …"""

from __future__ import annotations

from mlsys_lab.cli.shell import run

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

COMMANDS = {
    "Grade a class": ("collect", "grade", "status", "export", "feedback", "report", "regrade", "audit"),
    "Use several machines": ("capacity", "shard", "merge", "doctor"),
    "Author labs": ("new-lab", "release", "prove"),
    "Rank the capstone": ("leaderboard",),
}
"""The commands, by the headings of the help; each is a module of `mlsys_grader.commands`."""
EXTRAS = {"nbgrader": "grader", "jupytext": "grader", "dulwich": "grader", "filelock": "grader"}
"""Packages that only an extra brings."""

DESCRIPTION = """\
Release labs, take in what students hand in, grade it, and give them feedback.

Submissions run in a sandbox (bubblewrap) without network and without your files. The marks are decided outside it,
against inputs drawn at that moment. nbgrader's gradebook, formgrader and exports work on the result.
"""
EXAMPLES = """\
a class, from its hand-ins to its marks:
  mlsys-grader collect hand-ins.zip --lab autograd   a Moodle or Canvas export, a folder, a folder of git checkouts
  mlsys-grader grade autograd                        judge what is new; stop it whenever you like and start it again
  mlsys-grader status autograd                       who is graded, who is waiting, who handed in something odd
  mlsys-grader export autograd --csv marks.csv       a row per student, a column per check
  mlsys-grader feedback autograd --to pages          the page for each student, ready to be sent or uploaded
  mlsys-grader regrade autograd --student jane       a complaint: judge again with the same secret inputs, and compare
  mlsys-grader audit autograd --student jane         who graded what, when, with which version and sandbox
  mlsys-grader doctor                                what this machine lacks to grade; --gpu for points for speed

all of it lies in ./course (elsewhere with --course DIR):
  submitted/STUDENT/LAB/LAB.ipynb    as handed in
  records/LAB/STUDENT.json           every verdict, reason and seed
  feedback/STUDENT/LAB/LAB.html      for the student
  gradebook.db, nbgrader_config.py   for `nbgrader` run in that folder
  backups/gradebook-NUMBER-TIME.db   the gradebook before each batch of marks, the newest 20; to go back to one:
                                     rm -f gradebook.db-journal && cp backups/gradebook-NUMBER-TIME.db gradebook.db
                                     and `mlsys-grader grade LAB` enters from the records what it lacks
  audit.jsonl                        the log that `audit` shows

exit codes: 0 done, 1 something needs you (one line says what), 2 a command line that is not understood
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code, and prints a person's mistake as one line on stderr."""
    return run("mlsys-grader", _command, argv, stopped="stopped; run the same command again to go on", extras=EXTRAS)


def _command(arguments: Sequence[str]) -> int:
    from mlsys_grader.commands import CourseOptions
    from mlsys_lab.cli.app import App

    commands = {
        heading: {name: f"mlsys_grader.commands.{name.replace('-', '_')}" for name in names}
        for heading, names in COMMANDS.items()
    }
    return App("mlsys-grader", DESCRIPTION, EXAMPLES, commands, CourseOptions).run(arguments)
