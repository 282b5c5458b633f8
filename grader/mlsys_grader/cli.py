"""The instructor's command, `mlsys-grader`: release, collect, grade, feedback, export, status, …"""

from __future__ import annotations

import argparse
import errno
import os
import re
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import NoReturn

from mlsys_grader.commands import (
    audit,
    capacity,
    collect,
    export,
    feedback,
    grade,
    merge,
    new_lab,
    prove,
    regrade,
    release,
    report,
    shard,
    status,
)
from mlsys_lab.errors import CourseError, InputError, MissingToolError, did_you_mean

COMMANDS = {
    "release": release,
    "new-lab": new_lab,
    "collect": collect,
    "grade": grade,
    "feedback": feedback,
    "export": export,
    "status": status,
    "capacity": capacity,
    "report": report,
    "regrade": regrade,
    "audit": audit,
    "prove": prove,
    "shard": shard,
    "merge": merge,
}
EXTRA = ("nbgrader", "jupytext")
"""Packages that only the extra `grader` brings."""
BROKEN_PIPE = 141
"""Exit code when standard output was closed by its reader: what a shell reports for a program that SIGPIPE ends."""

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


class _Parser(argparse.ArgumentParser):
    """Says what is wrong with a command line in one line."""

    def error(self, message: str) -> NoReturn:
        raise InputError(message, help=f"see `{self.prog} --help`")


def build_parser() -> argparse.ArgumentParser:
    """The command line's grammar."""
    style = argparse.RawDescriptionHelpFormatter
    parser = _Parser(prog="mlsys-grader", description=DESCRIPTION, epilog=EXAMPLES, formatter_class=style)
    parser.add_argument("--version", action="version", version=f"mlsys-grader {version('mlsys-lab')}")
    _add_places(parser, course=Path("course"), labs=None)
    subparsers = parser.add_subparsers(metavar="COMMAND", title="commands", parser_class=_Parser)

    for name, module in COMMANDS.items():
        summary, _, more = (module.__doc__ or "").partition("\n")
        sub = subparsers.add_parser(
            name, help=summary, description=summary, epilog=more.lstrip(), formatter_class=style
        )
        module.add_arguments(sub)
        _add_places(sub, course=argparse.SUPPRESS, labs=argparse.SUPPRESS)  # before the command or after it
        sub.set_defaults(run=module.run)
    return parser


def _add_places(parser: argparse.ArgumentParser, *, course: Path | str, labs: str | None) -> None:
    parser.add_argument("--course", type=Path, default=course, metavar="DIR", help="course folder (default: ./course)")
    parser.add_argument(
        "--labs", type=Path, default=labs, metavar="DIR", help="released labs (default: those of the installed course)"
    )


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
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read our output has seen enough, as in `export | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes once more at its end
        return BROKEN_PIPE
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
        if error.filename is None and error.errno != errno.ENOSPC:
            raise
        what = f"cannot use {error.filename}" if error.filename is not None else "cannot write all of it"
        print(f"mlsys-grader: {what}: {error.strerror}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("mlsys-grader: stopped; run the same command again to go on", file=sys.stderr)
        return 130
    return code
