"""A Typer app whose commands are modules, each imported when it is run.

A command's module has its help as docstring, its arguments and options as the fields of a dataclass `Arguments`, which
are annotated for Typer, and its work as `run(arguments)`, which returns an exit code. Indented paragraphs of the
docstring are examples: the help prints them below the options. A module that has `COMMANDS` in place of `Arguments`, as
those of `App`, is a command with commands of its own.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from itertools import pairwise
from typing import Annotated, Any, get_type_hints

import typer
from pydantic import ValidationError
from rich.markup import escape
from typer.core import TyperCommand, TyperGroup

from mlsys_lab.errors import UsageError, did_you_mean

TYPES = {"int_parsing": "a whole number", "float_parsing": "a number"}
"""What a value of the wrong type should have been, by pydantic's type of error."""


def argument(help: str) -> Any:
    """A positional argument, for the annotation of a field."""
    return typer.Argument(help=help)


def option(help: str, metavar: str | None = None, panel: str | None = None, *, name: str | None = None) -> Any:
    """An option, for the annotation of a field: `--` and the field's name, unless it has another `name`.

    An option whose metavar ends in an ellipsis takes several values, as in `--rate 8 16`.
    """
    return typer.Option(*([name] if name else []), help=help, metavar=metavar, rich_help_panel=panel)


def flag(name: str, help: str, panel: str | None = None) -> Any:
    """An option that takes no value, without the `--no-` form that Typer adds otherwise."""
    return typer.Option(name, help=help, rich_help_panel=panel, metavar="")


@dataclass(frozen=True)
class App:
    """A program with commands.

    Args:
        name: the program's name.
        help: what the program is for, at the top of its help.
        examples: what is printed at the end of its help.
        commands: the module of each command by the command's name, grouped under the headings of the help.
        options: a dataclass of options that every command inherits, which may also stand before the command.
    """

    name: str
    help: str
    examples: str
    commands: Mapping[str, Mapping[str, str]]
    options: type | None = None

    def run(self, arguments: Sequence[str]) -> int:
        """Run the command that the arguments name and return its exit code; without arguments, print the help.

        Raises:
            UsageError: the arguments are not understood.
        """
        group = self._group()
        group._main_shell_completion({}, self.name)  # of a shell that asks for completions: prints them and exits
        try:
            with group.make_context(self.name, list(arguments) or ["--help"]) as context:
                code: int = group.invoke(context)
                return code
        except typer.Exit as end:  # after --help and --version
            return end.exit_code

    def _group(self, *, is_nested: bool = False) -> TyperGroup:
        app = typer.Typer(
            cls=_Commands,
            invoke_without_command=True,
            help=_unwrap(self.help),
            epilog=escape(self.examples),
            add_completion=not is_nested,
        )
        names = [name for modules in self.commands.values() for name in modules]

        def start(context: typer.Context, **values: Any) -> None:
            if values.pop("version", False):
                print(self.name, version("mlsys-lab"), file=sys.stdout or sys.stderr)
                raise typer.Exit
            if context.invoked_subcommand is None:
                raise UsageError("no command given", expected=f"one of {', '.join(names)}")
            context.default_map = dict.fromkeys(names, values)

        app.callback()(
            _with_parameters(start, *([] if is_nested else [_Version]), *([self.options] if self.options else []))
        )
        group = typer.main.get_command(app)
        assert isinstance(group, _Commands)
        group.modules = {name: module for modules in self.commands.values() for name, module in modules.items()}
        group.headings = {name: heading for heading, modules in self.commands.items() for name in modules}
        return group


@dataclass
class _Version:
    version: Annotated[bool, flag("--version", "print the version")] = False


class _Commands(TyperGroup):
    """A group that imports the module of the command that is run, and of the others reads the docstring."""

    modules: Mapping[str, str]
    headings: Mapping[str, str]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        with _one_line(ctx):
            return super().parse_args(ctx, args)

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.modules)

    def get_command(self, ctx: Any, cmd_name: str) -> TyperCommand:
        """A command with its heading and summary alone, for the help and for completion."""
        spec = find_spec(self.modules[cmd_name])
        source = spec.loader.get_source(spec.name) if spec and spec.loader else ""  # type: ignore[attr-defined]
        summary = (ast.get_docstring(ast.parse(source)) or "").partition("\n")[0]
        return TyperCommand(cmd_name, help=escape(summary), rich_help_panel=self.headings[cmd_name])

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name = args[0]
        if name not in self.modules:
            if ctx.resilient_parsing:
                return None, None, args[1:]
            near = did_you_mean(name, self.modules)
            raise UsageError("unknown command", got=name, expected=f"one of {', '.join(self.modules)}", help=near)
        module = import_module(self.modules[name])
        if hasattr(module, "COMMANDS"):
            nested = App(name, *_split_docstring(module), module.COMMANDS)
            return name, nested._group(is_nested=True), args[1:] or ["--help"]
        return name, _make_command(name, module), args[1:]


class _Command(TyperCommand):
    """A command whose options may take several values."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        several = {opt for param in self.params if (param.metavar or "").endswith("...") for opt in param.opts}
        with _one_line(ctx):
            return super().parse_args(ctx, list(_repeat(several, args)))


@contextmanager
def _one_line(ctx: Any) -> Iterator[None]:
    """Turn Typer's exceptions for a command line that it does not understand into a `UsageError`."""
    help = f"see `{ctx.command_path} --help`"
    try:
        yield
    except typer.TyperException as error:
        said = error.format_message().replace("Value error, ", "").rstrip(".")
        said, got, expected = said[:1].lower() + said[1:], None, None
        if isinstance(error.__cause__, ValidationError) and (wrong := error.__cause__.errors()[0])["type"] in TYPES:
            said, got, expected = said.partition(": ")[0], repr(wrong["input"]), TYPES[wrong["type"]]
        raise UsageError(said, got=got, expected=expected, help=help) from None


def _repeat(options: Iterable[str], words: Sequence[str]) -> Iterator[str]:
    """Turn `--rate 8 16` into `--rate 8 --rate 16`."""
    option = ""
    for before, word in pairwise(["", *words]):
        if word.startswith("-"):
            option = word if word in options else ""
        elif option and before != option:
            yield option
        yield word


def _make_command(name: str, module: Any) -> Any:
    def run(**values: Any) -> int:
        code: int = module.run(module.Arguments(**values))
        return code

    prose, examples = _split_docstring(module)
    app = typer.Typer(add_completion=False)
    app.command(name, cls=_Command, help=_unwrap(prose), epilog=escape(examples))(
        _with_parameters(run, module.Arguments)
    )
    return typer.main.get_command(app)


def _split_docstring(module: Any) -> tuple[str, str]:
    """Prose and examples of a module's docstring."""
    paragraphs = inspect.cleandoc(module.__doc__).split("\n\n")
    examples = [paragraph for paragraph in paragraphs if "\n  " in paragraph]
    prose = [paragraph for paragraph in paragraphs if paragraph not in examples]
    return "\n\n".join(prose), "\n\n".join(examples)


def _unwrap(text: str) -> str:
    """Put each paragraph on a line of its own, as wide as the terminal will have it."""
    return escape("\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n")))


def _with_parameters(function: Callable[..., Any], *classes: type) -> Callable[..., Any]:
    """Give a function that takes `**values` the fields of dataclasses as parameters, where Typer looks for them."""
    parameters = [one for one in inspect.signature(function).parameters.values() if one.kind != one.VAR_KEYWORD]
    hints = get_type_hints(function, include_extras=True)
    for each in classes:
        hints |= get_type_hints(each, include_extras=True)
        parameters += inspect.signature(each).parameters.values()
    named = [one.replace(kind=one.KEYWORD_ONLY, annotation=hints[one.name]) for one in parameters]
    function.__signature__ = inspect.Signature(named)  # type: ignore[attr-defined]
    function.__annotations__ = hints
    return function
