"""Commands that take seconds show on a terminal that they are at work, and write nothing of it elsewhere."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from mlsys_lab.cli.spinner import spinner

SLOW = {
    "bench-collectives --ranks 2 --max-bytes 1024": "measuring all_reduce on 2 ranks, 1 size",
    "plan-serving llama3-8b --rate 4 --prompt 300 --answer 20 --node 1": "with tensor parallelism 1",
    "generate --prompt A --max-tokens 1": "loading the model",
    "compress mlsys-lab-draft {folder} --method rtn": "loading the model",
}


def test_it_is_shown_on_a_terminal_alone() -> None:
    for is_terminal in (True, False):
        shown = StringIO()
        with spinner("at [work]", console=Console(file=shown, force_terminal=is_terminal, width=80)) as say:
            say("nearly [done]")
        assert ("nearly [done]" in shown.getvalue()) == is_terminal


@pytest.mark.parametrize("command", SLOW)
def test_slow_commands_have_one(command: str, tmp_path: Path) -> None:
    terminal, error = pty.openpty()
    try:
        program = [sys.executable, "-c", "from mlsys_lab.cli import main; main()"]
        program += command.format(folder=tmp_path).split()
        run = subprocess.run(program, stdout=subprocess.PIPE, stderr=error, check=True, text=True)
        shown = os.read(terminal, 1 << 16).decode()
    finally:
        os.close(error)
        os.close(terminal)
    assert SLOW[command] in shown and SLOW[command] not in run.stdout
