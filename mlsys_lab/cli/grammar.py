"""The grammar of a program whose commands are modules: docstring = help, `add_arguments` = grammar, `run` = work."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from itertools import takewhile
from typing import TYPE_CHECKING, NoReturn

from mlsys_lab.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from _typeshed import SupportsWrite


class _UnknownCommandError(Exception):
    """The name of a command that there is not."""


class _Parser(argparse.ArgumentParser):
    """Says what is wrong with a command line in one line, and lets no failure to print its help pass."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, help=f"see `{self.prog} --help`")

    def _check_value(self, action: argparse.Action, value: str) -> None:
        if isinstance(action.choices, dict) and value not in action.choices:  # of its kinds, only commands have parsers
            raise _UnknownCommandError(value)
        super()._check_value(action, value)

    def _print_message(self, message: str, file: SupportsWrite[str] | None = None) -> None:
        (file or sys.stderr).write(message)  # argparse's own drops the error of a full disk or a reader that has gone


@dataclass(frozen=True)
class Grammar:
    """A program with commands.

    Args:
        program: its name.
        description: what it is for, at the top of its help.
        examples: what stands at the end of its help.
        modules: each command's module, by the command's name; a module is imported once it is asked for.
        add_options: adds the options that every command takes, which may stand before the command or after it. It is
            given a parser, and whether that is the parser of a command, where an option must have no default.
    """

    program: str
    description: str
    examples: str
    modules: Mapping[str, str]
    add_options: Callable[[argparse.ArgumentParser, bool], None] = lambda parser, after: None

    def run(self, arguments: Sequence[str]) -> int:
        """Run the command that the arguments name and return its exit code; without arguments, print the help.

        Raises:
            UsageError: the arguments are not understood.
        """
        parser = self.parser(arguments)
        if not arguments:
            parser.print_help()
            return 0
        try:
            args, unknown = parser.parse_known_args(arguments)
        except _UnknownCommandError as error:
            raise self._not_a_command("unknown command", str(error)) from None
        if unknown:
            asked = f"{self.program} {args.command}" if hasattr(args, "command") else self.program
            raise UsageError(f"unrecognized arguments: {' '.join(unknown)}", help=f"see `{asked} --help`")
        if not hasattr(args, "run"):
            raise self._not_a_command("no command given")
        code: int = args.run(args)
        return code

    def parser(self, arguments: Sequence[str] = ()) -> argparse.ArgumentParser:
        """The parser of all commands, or of those alone that the arguments name, unless they ask for help on all."""
        style = argparse.RawDescriptionHelpFormatter
        parser = _Parser(prog=self.program, description=self.description, epilog=self.examples, formatter_class=style)
        parser.add_argument("--version", action="version", version=f"{self.program} {version('mlsys-lab')}")
        self.add_options(parser, False)
        commands = parser.add_subparsers(metavar="COMMAND", title="commands", parser_class=_Parser)
        before = {*takewhile(lambda argument: argument not in self.modules, arguments)}
        named = [] if {"-h", "--help"} & before else [name for name in self.modules if name in arguments]
        for name in named or self.modules:
            module = import_module(self.modules[name])
            summary, _, more = (module.__doc__ or "").partition("\n")
            sub = commands.add_parser(
                name, help=summary, description=summary, epilog=more.lstrip(), formatter_class=style
            )
            module.add_arguments(sub)
            self.add_options(sub, True)
            sub.set_defaults(run=module.run, command=name)
        return parser

    def _not_a_command(self, what: str, got: str | None = None) -> UsageError:
        near = did_you_mean(got, self.modules) if got else ""
        return UsageError(what, got=got, expected=f"one of {', '.join(self.modules)}", help=near)
