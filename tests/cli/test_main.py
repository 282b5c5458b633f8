"""The command line as a whole: help that teaches, one line for a mistake, exit codes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version

import pytest

from mlsys_lab.cli import COMMANDS

Call = Callable[..., tuple[int, str, str]]


NAMES = [name for modules in COMMANDS.values() for name in modules]


def test_help_has_every_command_under_a_heading_and_in_an_example(call: Call) -> None:
    code, said, _ = call("--help")
    assert code == 0
    for heading, modules in COMMANDS.items():
        panel = said.split(f"─ {heading} ─")[1].split("╰")[0]
        for name in modules:
            assert re.search(rf"^│ {name} +\S", panel, re.MULTILINE), name
            assert re.search(rf"^ +mlsys-lab {name}\b", said, re.MULTILINE), name


@pytest.mark.parametrize("command", NAMES)
def test_help_of_each_command_has_an_example(command: str, call: Call) -> None:
    code, said, _ = call(command, "--help")
    assert code == 0 and re.search(rf"^ +mlsys-lab {command}\b", said, re.MULTILINE)


def test_help_imports_no_command() -> None:
    code = "import sys; from mlsys_lab.cli import main; main(['--help']); sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize(("words", "said"), [("mlsys-lab st", "start"), ("mlsys-lab estimate --rec", "--recompute")])
def test_bash_completes_commands_and_options(words: str, said: str) -> None:
    asked = {"_MLSYS_LAB_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    command = [sys.executable, "-c", "from mlsys_lab.cli import main; main()"]
    done = subprocess.run(command, env=os.environ | asked, capture_output=True, text=True, check=False)
    assert said in done.stdout.split(), done.stderr


def test_version(call: Call) -> None:
    assert call("--version") == (0, f"mlsys-lab {version('mlsys-lab')}\n", "")


def test_no_arguments_shows_the_help(call: Call) -> None:
    code, out, err = call()
    assert code == 0 and "a first hour" in out and not err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("strat",),
            "unknown command: got strat, expected one of list, start, check, progress, doctor, estimate, plan",
        ),
        (("start",), "missing argument 'lab'; help: see `mlsys-lab start --help`"),
        (("list", "--jsno"), "no such option: --jsno; help: see `mlsys-lab list --help`"),
        (("--jsno",), "no such option: --jsno; help: see `mlsys-lab --help`"),
        (
            ("plan", "gpt2", "--batch", "x"),
            "invalid value for '--batch': got 'x', expected a whole number; help: ",
        ),
        (("plan", "gpt2", "--batch"), "option '--batch' requires an argument; help: see `mlsys-lab plan --help`"),
        (("check", "a", "b"), "got unexpected extra argument(s) (b); help: see `mlsys-lab check --help`"),
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
