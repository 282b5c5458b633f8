"""The instructor's command, `mlsys-grader`: release, collect, grade, feedback, export, status."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import NoReturn

from grader.commands import audit, collect, export, feedback, grade, regrade, release, status
from mlsys_lab.errors import CourseError, InputError, MissingToolError, did_you_mean

COMMANDS = {
    "release": release,
    "collect": collect,
    "grade": grade,
    "feedback": feedback,
    "export": export,
    "status": status,
    "regrade": regrade,
    "audit": audit,
}
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

    for name, module in COMMANDS.items():
        summary, _, more = (module.__doc__ or "").partition("\n")
        sub = subparsers.add_parser(
            name, help=summary, description=summary, epilog=more.lstrip(), formatter_class=style
        )
        module.add_arguments(sub)
        sub.set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code, and prints a person's mistake as one line on stderr."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = build_parser()
    try:
        args = parser.parse_args(arguments)
        if not hasattr(args, "run"):
            if arguments:
                raise InputError("no command given", expected=f"one of {', '.join(COMMANDS)}")
            parser.print_help()
            return 0
    except InputError as error:
        if wrong := re.search(r"COMMAND: invalid choice: '([^']*)'", error.what):
            near = did_you_mean(wrong[1], COMMANDS)
            error = InputError("unknown command", got=wrong[1], expected=f"one of {', '.join(COMMANDS)}", help=near)
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
