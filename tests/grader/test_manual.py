"""grader/README.md: its commands are run in a small class, and must print what stands there."""

import copy
import os
import pty
import re
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from mlsys_grader.cli import main
from tests.grader.classroom import CLASS, LAB, solved_notebook

ROOT = Path(__file__).parents[2]
MANUAL = ROOT / "grader" / "README.md"
SMALL_CLASS = ("corrupt", "nan", "partial", "perfect", "shown-cases-only", "syntax-error")
EXAMPLES = re.findall(r"^```console\n(.*?)^```", MANUAL.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
ENVIRONMENT = os.environ | {
    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    "COLUMNS": "80",
    "PYTHONPATH": str(ROOT),
}


def commands():
    """Every command of the manual with the output that is promised, in their order."""
    for block in EXAMPLES:
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            yield command, output


def pattern(promised):
    """The promise as a pattern: … stands for anything."""
    parts = [re.escape(part) for part in promised.strip().split("…")]
    return re.compile(".*".join(parts), re.DOTALL)


def lines_of(output):
    return "\n".join(line.rstrip() for line in output.strip().splitlines())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the manual's commands are run: hand-ins.zip is there."""
    folder = tmp_path_factory.mktemp("manual")
    solved = solved_notebook()
    with zipfile.ZipFile(folder / "hand-ins.zip", "w") as archive:
        for student in CLASS:
            if student.name in SMALL_CLASS:
                archive.writestr(f"{student.name}/{LAB}.ipynb", student.make(copy.deepcopy(solved)))
    return folder


@pytest.fixture
def typed(folder, monkeypatch, capsys):
    """Runs a line that is typed into a shell: its exit code, and what it printed.

    Only the first of the grader's commands starts the program; the others are called here, with what is warm.
    """
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", ENVIRONMENT["COLUMNS"])
    started = []

    def run(line):
        program, *arguments = shlex.split(line)
        if program == "mlsys-grader" and started:
            code, told = main(arguments), capsys.readouterr()
            return code, told.out + told.err
        started.append(program)
        done = subprocess.run(line, shell=True, env=ENVIRONMENT, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    return run


@pytest.mark.sandbox
@pytest.mark.weekly
def test_its_commands_print_what_it_says(typed):
    ran = 0
    for command, promised in commands():
        if command.startswith("mlsys-grader") and re.search(r"\b(grade|regrade)\b", command):
            command += " --time-factor 3"  # a machine on which other tests run
        code, said = typed(command)
        said = lines_of(said)
        assert code == 0, f"{command}\n{said}"
        if "were up to date" in promised:  # submissions come as they are ready
            said, promised = ("\n".join(sorted(text.splitlines())) for text in (said, promised))
        assert pattern(promised).fullmatch(said), f"$ {command}\n{said}\n\npromised:\n{promised}"
        ran += 1
    assert ran >= 12


@pytest.mark.sandbox
@pytest.mark.weekly  # after the commands above, which make its course
def test_in_a_terminal_a_bar_shows_number_time_gone_and_time_left(folder):
    command = ["mlsys-grader", "grade", "autograd", "--again", "--student", "corrupt", "--student", "partial"]
    ours, theirs = pty.openpty()
    with subprocess.Popen(command, cwd=folder, env=ENVIRONMENT | {"TERM": "xterm"}, stdout=theirs, stderr=theirs):
        os.close(theirs)
        said = b""
        while True:
            try:
                said += os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
    os.close(ours)
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", said.decode())
    assert re.search(rf"{LAB} .*[012]/2 \d:\d\d:\d\d (-:--:--|\d:\d\d:\d\d)", shown), shown


def test_its_links_lead_somewhere():
    text = MANUAL.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)]+)\)", text):
        if target.startswith("#"):
            titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
            assert target[1:] in {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}, target
        elif not target.startswith("http"):
            assert (MANUAL.parent / target).exists(), target
