"""The learner's command, `mlsys-lab`: list, start, check, progress, estimate, doctor."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import NoReturn

from mlsys_lab.cli import check, doctor, estimate, listing, progress, start
from mlsys_lab.errors import CourseError, InputError, did_you_mean

COMMANDS = {
    "list": listing,
    "start": start,
    "check": check,
    "progress": progress,
    "estimate": estimate,
    "doctor": doctor,
}
DESCRIPTION = """\
Do the labs of the course on machine-learning systems.

A lab is a notebook. You start one, fill in its tasks, and every task has a check that tells you at once whether
it works. What you build in one lab is what the next lab runs on.
"""
EXAMPLES = """\
a first hour:
  mlsys-lab doctor             what this machine can run, and the fix for what is missing
  mlsys-lab list               the labs, their minutes and points
  mlsys-lab start autograd     put the notebook into ./01-autograd/, and make this folder your workspace
  jupyter lab 01-autograd      open it; fill in a task; run its check("…") cell
  mlsys-lab check autograd     run all checks on the saved notebook; when all pass, later labs use your code
  mlsys-lab progress           your points so far

what a model needs:
  mlsys-lab estimate llama3-8b --device H100 --data 8 --zero 3

exit codes: 0 done and passed, 1 a mistake or a check that did not pass, 2 a command line that is not understood
"""


class _Parser(argparse.ArgumentParser):
    """Argument parser that reports a wrong command line as a one-line InputError."""

    def error(self, message: str) -> NoReturn:
        raise InputError(message, help=f"see `{self.prog} --help`")


def build_parser() -> argparse.ArgumentParser:
    """The parser of the `mlsys-lab` command line, with one sub-parser for each command."""
    style = argparse.RawDescriptionHelpFormatter
    parser = _Parser(prog="mlsys-lab", description=DESCRIPTION, epilog=EXAMPLES, formatter_class=style)
    parser.add_argument("--version", action="version", version=f"mlsys-lab {version('mlsys-lab')}")
    commands = parser.add_subparsers(metavar="COMMAND", title="commands", parser_class=_Parser)
    for name, module in COMMANDS.items():
        summary, _, more = (module.__doc__ or "").partition("\n")
        sub = commands.add_parser(name, help=summary, description=summary + more, formatter_class=style)
        module.add_arguments(sub)
        sub.set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one `mlsys-lab` command and return its exit code; a user's mistake is printed as one line on stderr."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = build_parser()
    if not arguments:
        parser.print_help()
        return 0
    try:
        if not arguments[0].startswith("-") and arguments[0] not in COMMANDS:
            near = did_you_mean(arguments[0], COMMANDS)
            raise InputError("unknown command", got=arguments[0], expected=f"one of {', '.join(COMMANDS)}", help=near)
        args = parser.parse_args(arguments)
        if not hasattr(args, "run"):
            raise InputError("no command given", expected=f"one of {', '.join(COMMANDS)}")
    except InputError as error:
        print(f"mlsys-lab: {error}", file=sys.stderr)
        return 2
    try:
        code: int = args.run(args)
    except CourseError as error:
        print(f"mlsys-lab: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("mlsys-lab: stopped", file=sys.stderr)
        return 130
    return code
