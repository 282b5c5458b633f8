"""Both commands in a shell: a reader that goes away, a full disk, an interrupt early, in the midst and late."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAMS = {"mlsys-lab": "mlsys_lab.cli", "mlsys-grader": "mlsys_grader.cli"}
STOPPED = {
    "mlsys-lab": "mlsys-lab: stopped\n",
    "mlsys-grader": "mlsys-grader: stopped; run the same command again to go on\n",
}
PRINTS = [
    ("mlsys-lab", "estimate llama3-8b --json"),
    ("mlsys-lab", "list"),
    ("mlsys-lab", "--help"),
    ("mlsys-grader", "--help"),
    ("mlsys-grader", "grade --help"),
]


def environment(unbuffered: bool = False) -> dict[str, str]:
    """Output is kept back until it is flushed, as where a person runs the command; `unbuffered`: as in containers."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return kept | {"PYTHONPATH": str(ROOT)} | ({"PYTHONUNBUFFERED": "1"} if unbuffered else {})


def command(program: str, before: str = "", after: str = "") -> str:
    """Python code that does what the installed command does, with more before and after its import."""
    return f"{before}\nimport sys\nfrom {PROGRAMS[program]} import main\n{after}\nsys.exit(main())"


def run(code: str, arguments: str, redirected: str = "", unbuffered: bool = False) -> tuple[int, str, str]:
    """Exit code of the command (not of what reads it), stdout, stderr."""
    line = f'"{sys.executable}" -c "$CODE" {arguments} {redirected}; exit "${{PIPESTATUS[0]}}"'
    done = subprocess.run(
        ["bash", "-c", line], env=environment(unbuffered) | {"CODE": code}, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(("program", "arguments"), PRINTS)
def test_a_reader_that_has_seen_enough(program: str, arguments: str) -> None:
    assert run(command(program), arguments, "| true") == (141, "", "")


@pytest.mark.parametrize("unbuffered", [False, True])
@pytest.mark.parametrize(("program", "arguments"), [*PRINTS, ("mlsys-lab", "--version"), ("mlsys-lab", "")])
def test_a_full_disk_is_one_line(program: str, arguments: str, unbuffered: bool) -> None:
    said = f"{program}: cannot write all of it: No space left on device\n"
    assert run(command(program), arguments, "> /dev/full", unbuffered) == (1, "", said)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_closed_standard_output_is_no_mistake(program: str) -> None:
    said = f"{program} {version('mlsys-lab')}\n"
    assert run(command(program), "--version", ">&-") == (0, "", said)


INTERRUPT_AT_IMPORT = """
import os, signal
seen = 0
def interrupt(event, _):
    global seen
    if event == "import":
        seen += 1
        if seen == {number}:
            os.kill(os.getpid(), signal.SIGINT)
sys.addaudithook(interrupt)
"""


@pytest.mark.parametrize("number", [1, 5, 21, 55])
@pytest.mark.parametrize(("program", "arguments"), [("mlsys-lab", "list"), ("mlsys-grader", "--help")])
def test_an_interrupt_while_modules_are_imported_is_one_line(program: str, arguments: str, number: int) -> None:
    code = command(program, after=INTERRUPT_AT_IMPORT.format(number=number))
    assert run(code, arguments) == (130, "", STOPPED[program])


SLOW = {"dataclasses", "importlib.metadata", "rich", "typer", "typing"}
LOADED = "print(*sorted(set(sys.modules) - bare)); exit()"


@pytest.mark.parametrize("program", PROGRAMS)
def test_what_is_imported_before_an_interrupt_would_be_caught_takes_no_time(program: str) -> None:
    loaded = run(command(program, before="import sys; bare = set(sys.modules)", after=LOADED), "")[1].split()
    package = PROGRAMS[program].split(".")[0]
    expected = {package, PROGRAMS[program], "mlsys_lab", "mlsys_lab.cli", "mlsys_lab.cli.shell"}
    assert {name for name in loaded if name.startswith(("mlsys_lab", package))} == expected
    assert not SLOW & set(loaded)


STUCK = """
import os, signal, threading
from mlsys_lab.cli.shell import run

def command(arguments):
    try:
        os.kill(os.getpid(), signal.SIGINT)
    finally:  # it clears up, for ever
        threading.Timer({later}, os.kill, (os.getpid(), signal.SIGINT)).start()
        threading.Event().wait()

run("stuck", command, None)
"""


@pytest.mark.parametrize("later", [0.0, 0.5])
def test_a_second_interrupt_does_not_wait_for_the_clearing_up(later: float) -> None:
    assert run(STUCK.format(later=later), "") == (130, "", "")


SWALLOWED = """
import os, signal
from mlsys_lab.cli.shell import run

def command(arguments):
    try:
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:  # as torch does where it looks for NumPy
        pass
    raise AttributeError("module 'numpy' has no attribute 'matrix'")

run("mlsys-lab", command, None)
"""


def test_an_interrupt_that_a_library_takes_for_an_error_is_one_line() -> None:
    assert run(SWALLOWED, "")[2] == STOPPED["mlsys-lab"]


AT_THE_END = "import atexit, os, signal\natexit.register(os.kill, os.getpid(), signal.SIGINT)"


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize(("arguments", "code"), [("--version", 0), ("no-such", 2)])
def test_an_interrupt_after_the_last_word_changes_nothing(program: str, arguments: str, code: int) -> None:
    quiet = run(command(program), arguments)
    assert quiet[0] == code
    assert run(command(program, before=AT_THE_END), arguments) == quiet
