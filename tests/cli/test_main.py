"""The command line as a whole: help that teaches, one line for a mistake, exit codes."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version

import pytest

from mlsys_lab import cli
from mlsys_lab.cli import COMMANDS

Call = Callable[..., tuple[int, str, str]]


def test_help_teaches_with_every_command_in_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--help"])
    said = capsys.readouterr().out
    assert ended.value.code == 0
    for command in COMMANDS:
        assert re.search(rf"^  mlsys-lab {command}\b", said, re.MULTILINE), command


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_each_command_has_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main([command, "--help"])
    assert ended.value.code == 0
    assert f"  mlsys-lab {command}" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--version"])
    assert capsys.readouterr().out == f"mlsys-lab {version('mlsys-lab')}\n"


def test_no_arguments_shows_the_help(call: Call) -> None:
    code, out, err = call()
    assert code == 0 and "a first hour" in out and not err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("strat",),
            "unknown command: got strat, expected one of list, start, check, progress, estimate, plan, plan-serv",
        ),
        (("start",), "the following arguments are required: LAB; help: see `mlsys-lab start --help`"),
        (("list", "--jsno"), "unrecognized arguments: --jsno; help: see `mlsys-lab list --help`"),
        (("--jsno",), "unrecognized arguments: --jsno; help: see `mlsys-lab --help`"),
        (("check", "a", "b"), "unrecognized arguments: b"),
    ],
)
def test_a_mistyped_command_line_is_one_line_and_exit_code_2(call: Call, arguments: tuple[str, ...], said: str) -> None:
    code, out, err = call(*arguments)
    assert code == 2 and not out
    assert err.startswith(f"mlsys-lab: {said}") and err.count("\n") == 1


def test_an_interrupt_is_one_line(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(args: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("mlsys_lab.cli.listing.run", interrupted)
    assert call("list") == (130, "", "mlsys-lab: stopped\n")


def test_the_installed_command_exits_with_its_code() -> None:
    command = [sys.executable, "-c", "import sys; from mlsys_lab.cli import main; sys.exit(main())", "no-such"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "") and done.stderr.startswith("mlsys-lab: unknown command")
