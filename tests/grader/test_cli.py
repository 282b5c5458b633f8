"""The instructor's command line: help, and one line for each command or folder that a person can get wrong."""

import os
import re
import subprocess
import sys
from importlib.metadata import version

import pytest

import mlsys_grader.cli
from mlsys_grader.cli import main
from tests.grader.command_line import expect_one_line, read_tree
from tests.grader.conftest import PROJECT

COMMANDS = [name for names in mlsys_grader.cli.COMMANDS.values() for name in names]


@pytest.fixture
def call_alone(capsys, monkeypatch):
    """Run `mlsys-grader ARGUMENTS`, without the folders of a course: exit code and stdout."""
    monkeypatch.setenv("COLUMNS", "200")
    return lambda *arguments: (main(arguments), capsys.readouterr().out)


def test_help_shows_every_command_on_a_line_of_its_own(call_alone):
    code, said = call_alone("--help")
    assert code == 0
    for command in COMMANDS:
        assert re.search(rf"^│ {command} +\S", said, re.MULTILINE), command
    for command in ("collect", "grade", "status", "export", "feedback", "regrade", "audit"):
        assert re.search(rf"^ +mlsys-grader {command}\b", said, re.MULTILINE), command
    assert "bubblewrap" in said and "exit codes" in said


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_each_command_has_an_example(command, call_alone):
    code, said = call_alone(command, "--help")
    assert code == 0
    assert re.search(rf"^ +mlsys-grader (--course \w+ )?{command}\b", said, re.MULTILINE)
    assert not re.search(
        r"\S.*\bmlsys-grader \w+ (--|autograd)", said.split("examples:")[1].replace(" mlsys", "\nmlsys")
    )


def test_version(call_alone):
    assert call_alone("--version") == (0, f"mlsys-grader {version('mlsys-lab')}\n")


def test_no_arguments_shows_the_help(capsys):
    assert main([]) == 0
    assert "from its hand-ins to its marks" in capsys.readouterr().out


def test_options_in_front_of_a_command_import_no_other_command(tmp_path):
    code = (
        "import sys; from mlsys_grader.cli import main\n"
        "code = main(['--course', 'nowhere', 'status'])\n"
        "print(code, *sorted(name for name in sys.modules if name.startswith('mlsys_grader.commands.')))"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(PROJECT), str(PROJECT / "grader")))}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "1 mlsys_grader.commands.status\n", done.stderr


def test_help_in_front_of_a_command_names_all(call_alone):
    _, said = call_alone("--help", "status")
    assert all(f"\n│ {name} " in said for name in COMMANDS)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("grad", "tiny"), f"unknown command: got grad, expected one of {', '.join(COMMANDS)}; help: did you "),
        (("zzz",), f"unknown command: got zzz, expected one of {', '.join(COMMANDS)}\n"),
        ((), "no command given: expected one of collect, grade, status"),
        (("grade",), "missing argument 'lab'; help: see `mlsys-grader grade --help`"),
        (("collect", "x"), "missing option '--lab'"),
        (("grade", "tiny", "--sandbox", "chroot"), "invalid value for '--sandbox': 'chroot' is not one of 'bub"),
        (("grade", "tiny", "--engine", "slurm"), "invalid value for '--engine': 'slurm' is not one of 'local', "),
        (("grade", "tiny", "--workers", "many"), "invalid value for '--workers': got 'many', expected a whole number"),
        (("grade", "tiny", "--time-factor", "slow"), "invalid value for '--time-factor': got 'slow', expected a "),
        (("export", "tiny", "--xml", "x"), "no such option: --xml; help: see `mlsys-grader export --help`"),
        (("export", "tiny", "--csv"), "option '--csv' requires an argument"),
    ],
)  # fmt: skip
def test_a_mistyped_command_line_is_one_line_and_exit_code_2(call, tmp_path, arguments, said):
    expect_one_line(call(*arguments), said, code=2)
    assert not (tmp_path / "course").exists()


@pytest.mark.parametrize(
    "command",
    [("collect", "hand-ins", "--lab"), *((name,) for name in ("grade", "feedback", "export", "status", "audit"))],
)
def test_a_misspelt_lab_gets_a_suggestion(submitted_at, call, command):
    before = read_tree(submitted_at)
    expect_one_line(
        call(*command, "tinny"), "unknown lab: got 'tinny', expected one of 01-tiny; help: did you mean 'tiny'?"
    )
    assert read_tree(submitted_at) == before


def test_a_folder_of_labs_that_is_none(tmp_path, capsys):
    assert main(["--labs", str(tmp_path / "nowhere"), "export", "tiny"]) == 1
    assert capsys.readouterr().err.startswith("mlsys-grader: no released labs: expected notebooks in ")


@pytest.mark.parametrize("command", ["grade", "feedback", "export", "status"])
@pytest.mark.parametrize("there", ["nothing", "a file", "an empty folder"])
def test_a_course_folder_that_is_none(call, tmp_path, command, there):
    course = tmp_path / "course"
    if there == "a file":
        course.write_text("mine")
    elif there == "an empty folder":
        course.mkdir()
    before = read_tree(tmp_path)
    expect_one_line(call(command, "tiny"), f"no course folder: got {course}; help: mlsys-grader collect makes one")
    assert read_tree(tmp_path) == before


@pytest.mark.sandbox
def test_the_course_may_be_named_before_the_command_or_after_it(graded, tiny_labs, capsys):
    places = ["--course", str(graded.root), "--labs", str(tiny_labs)]
    assert main([*places, "export", "tiny"]) == 0
    before = capsys.readouterr().out
    assert main(["export", "tiny", *places]) == 0
    assert capsys.readouterr().out == before
    assert main(["--course", "elsewhere", "export", *places, "tiny"]) == 0, "the last one counts"
