"""The instructor's command, `mlsys-grader`: release, collect, grade, feedback, export, status."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import NoReturn

from grader import commands
from mlsys_lab.errors import CourseError, InputError, MissingToolError, did_you_mean

EXTRA = ("nbgrader", "jupytext")
"""Packages that only the extra `grader` brings."""

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

all of it lies in ./course (elsewhere with --course DIR):
  submitted/STUDENT/LAB/LAB.ipynb    as handed in
  records/LAB/STUDENT.json           every verdict, reason and seed
  feedback/STUDENT/LAB/LAB.html      for the student
  gradebook.db, nbgrader_config.py   for `nbgrader` run in that folder

exit codes: 0 done, 1 something needs you (one line says what), 2 a command line that is not understood
"""


class _Parser(argparse.ArgumentParser):
    """Says what is wrong with a command line in one line."""

    def error(self, message: str) -> NoReturn:
        raise InputError(message, help=f"see `{self.prog} --help`")


def build_parser() -> argparse.ArgumentParser:
    """The command line's grammar."""
    style = argparse.RawDescriptionHelpFormatter
    parser = _Parser(prog="mlsys-grader", description=DESCRIPTION, epilog=EXAMPLES, formatter_class=style)
    parser.add_argument("--version", action="version", version=f"mlsys-grader {version('mlsys-lab')}")
    parser.add_argument(
        "--course", type=Path, default=Path("course"), metavar="DIR", help="course folder (default: ./course)"
    )
    parser.add_argument(
        "--labs", type=Path, metavar="DIR", help="released labs (default: those of the installed course)"
    )
    subparsers = parser.add_subparsers(metavar="COMMAND", title="commands", parser_class=_Parser)

    def command(
        name: str, run: Callable[[argparse.Namespace], int], summary: str, examples: str
    ) -> argparse.ArgumentParser:
        sub = subparsers.add_parser(name, help=summary, description=summary, epilog=examples, formatter_class=style)
        sub.set_defaults(run=run)
        assert isinstance(sub, argparse.ArgumentParser)
        return sub

    sub = command("release", commands.release, "Build labs/ from solutions/.", RELEASE)
    sub.add_argument("--check", action="store_true", help="write nothing; exit 1 when labs/ is not up to date")
    sub.add_argument(
        "--project", type=Path, default=Path(), metavar="DIR", help="the checkout (default: the current folder)"
    )

    sub = command("collect", commands.collect, "Take in what students handed in.", COLLECT)
    sub.add_argument("source", type=Path, help="a folder, a zip, or a folder of git checkouts")
    sub.add_argument("--lab", required=True, help="what it was handed in for")

    sub = command("grade", commands.grade, "Judge submissions, fill the gradebook, write feedback.", GRADE)
    sub.add_argument("lab")
    sub.add_argument("--student", action="append", metavar="ID", help="only this one; may be given several times")
    sub.add_argument(
        "--workers", type=int, default=0, metavar="N", help="submissions at a time (default: one per core)"
    )
    sub.add_argument(
        "--time-factor", type=float, default=1.0, metavar="X", help="stretch every time limit, on a slow machine"
    )
    sub.add_argument("--again", action="store_true", help="judge also what has been judged, with new secret inputs")
    sub.add_argument(
        "--unsafe", action="store_true", help="no sandbox: submissions may read your files and use your network"
    )

    sub = command("feedback", commands.feedback, "Write the feedback pages, or copy them out.", FEEDBACK)
    sub.add_argument("lab")
    sub.add_argument("--to", type=Path, metavar="DIR", help="also copy each page to DIR/STUDENT.html")

    sub = command("export", commands.export, "Marks as CSV, every verdict as JSON.", EXPORT)
    sub.add_argument("lab")
    sub.add_argument("--csv", type=Path, metavar="FILE", help="a row per student (default: to standard output)")
    sub.add_argument("--json", type=Path, metavar="FILE", help="every check, reason and seed; not for students")

    sub = command("status", commands.status, "Where each submission stands.", STATUS)
    sub.add_argument("lab", nargs="?", help="one lab (default: all that anything was handed in for)")
    return parser


RELEASE = """\
examples:
  mlsys-grader release            solutions/NN-topic/NN-topic.py -> labs/NN-topic/NN-topic.ipynb
  mlsys-grader release --check    in CI: has somebody forgotten to release?
"""
COLLECT = """\
understood are:
  STUDENT/LAB/LAB.ipynb, STUDENT/any.ipynb, STUDENT.ipynb     a folder, or a zip of one
  Jane Doe_4711_assignsubmission_file_/01-autograd.ipynb      Moodle: "Download all submissions"
  doejane_LATE_4711_88_01-autograd-1.ipynb                    Canvas: "Download Submissions"
  STUDENT/.git                                                the last commit of each checkout, with its time

examples:
  mlsys-grader collect ~/Downloads/submissions.zip --lab autograd
  mlsys-grader --course spring collect checkouts/ --lab 01-autograd
"""
GRADE = """\
examples:
  mlsys-grader grade autograd                      all that has not been judged yet
  mlsys-grader grade autograd --student jane       one student
  mlsys-grader grade autograd --again              everybody anew
  mlsys-grader grade autograd --time-factor 3      a slow machine: limits three times as long

A submission is judged once for its content and this version of the lab. Kill the command at any moment and start it
again: nothing is lost and nothing is judged twice. A submission that cannot be read gets no points and a reason; it
never stops the others.
"""
FEEDBACK = """\
examples:
  mlsys-grader feedback autograd                 write feedback/STUDENT/LAB/LAB.html anew from the records
  mlsys-grader feedback autograd --to pages      and copy them to pages/STUDENT.html
"""
EXPORT = """\
examples:
  mlsys-grader export autograd --csv marks.csv --json verdicts.json
  mlsys-grader export autograd | column -ts,
"""
STATUS = """\
examples:
  mlsys-grader status
  mlsys-grader status autograd
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code, and prints a person's mistake as one line on stderr."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = build_parser()
    names = ("release", "collect", "grade", "feedback", "export", "status")
    try:
        args = parser.parse_args(arguments)
        if not hasattr(args, "run"):
            if arguments:
                raise InputError("no command given", expected=f"one of {', '.join(names)}")
            parser.print_help()
            return 0
    except InputError as error:
        if wrong := re.search(r"COMMAND: invalid choice: '([^']*)'", error.what):
            near = did_you_mean(wrong[1], names)
            error = InputError("unknown command", got=wrong[1], expected=f"one of {', '.join(names)}", help=near)
        print(f"mlsys-grader: {error}", file=sys.stderr)
        return 2
    try:
        code: int = args.run(args)
    except CourseError as error:
        print(f"mlsys-grader: {error}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        if error.name not in EXTRA:
            raise
        missing = MissingToolError(f"{error.name} is not installed", help="pip install 'mlsys-lab[grader]'")
        print(f"mlsys-grader: {missing}", file=sys.stderr)
        return 1
    except OSError as error:
        if error.filename is None:
            raise
        print(f"mlsys-grader: cannot use {error.filename}: {error.strerror}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("mlsys-grader: stopped; run the same command again to go on", file=sys.stderr)
        return 130
    return code
