import json
import os
import shutil
import sys
from pathlib import Path

import pytest

FIXTURES = Path(__file__).parent / "fixtures"
CHECKS = FIXTURES / "checks"
sys.path.insert(0, str(CHECKS))

from mlsys_checks.fresh import ONE_THREAD  # noqa: E402
from mlsys_grader.cli import main  # noqa: E402
from mlsys_grader.course.folder import Course  # noqa: E402
from mlsys_grader.course.lab import GradedLab  # noqa: E402
from mlsys_grader.gradebook import writer  # noqa: E402
from mlsys_grader.judging import oracle  # noqa: E402
from mlsys_grader.paths import IMPORT_PATH  # noqa: E402
from mlsys_grader.release.build import Released, release  # noqa: E402
from mlsys_grader.sandbox import backend  # noqa: E402
from mlsys_grader.sandbox import sandbox as sandbox_module  # noqa: E402
from mlsys_grader.sandbox.sandbox import Sandbox  # noqa: E402
from mlsys_lab.stack.labinfo import find_lab  # noqa: E402
from tests.grader.command_line import LAB  # noqa: E402
from tests.grader.warm.launchers import Launchers  # noqa: E402
from tests.warm.forks import ForkServer  # noqa: E402

PROJECT = Path(__file__).parents[2]


def pytest_collection_modifyitems(items):
    """Without bubblewrap the sandbox's tests are skipped, and say so; in CI they fail instead."""
    if shutil.which("bwrap") is None and not os.environ.get("CI"):
        for item in items:
            if item.get_closest_marker("sandbox"):
                item.add_marker(pytest.mark.skip(reason="NOT RUN: bubblewrap is missing (apt install bubblewrap)"))


@pytest.fixture(scope="session", autouse=True)
def warm_launchers():
    """Sandboxes of this process hand their launchers on."""
    launchers = Launchers()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sandbox_module, "launch", launchers.launch)
        yield
    launchers.close()


@pytest.fixture
def cold(monkeypatch):
    """For tests of the launchers themselves: each is started for its sandbox and ends with it."""
    monkeypatch.setattr(sandbox_module, "launch", backend.launch)


@pytest.fixture(scope="session", autouse=True)
def warm_bookkeepers():
    """Gradebooks that this process fills are written by forks of one process with nbgrader in it."""
    path = f"import sys; sys.path[:0] = {IMPORT_PATH!r}"
    server = ForkServer(f"{path}; import mlsys_grader.course.notebooks, mlsys_grader.gradebook.bookkeeper")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "subprocess", server)
        yield
    server.close()


@pytest.fixture(scope="session", autouse=True)
def warm_oracles():
    """What decides in runs of this process is forked from one process with torch in it."""
    path = f"import sys; sys.path[:0] = {IMPORT_PATH!r}"
    server = ForkServer(f"{path}; import torch, mlsys_grader.judging.trusted", ONE_THREAD)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(oracle, "subprocess", server)
        yield
    server.close()


@pytest.fixture(scope="session")
def tiny_release() -> Released:
    return release(FIXTURES / "solutions" / "01-tiny", PROJECT / "pyproject.toml")


@pytest.fixture(scope="session")
def tiny_labs(tiny_release, tmp_path_factory) -> Path:
    """A folder of released labs with the tiny one in it."""
    labs = tmp_path_factory.mktemp("labs")
    tiny_release.write(labs)
    return labs


@pytest.fixture(scope="session")
def tiny(tiny_labs) -> GradedLab:
    return GradedLab(find_lab("tiny", tiny_labs))


@pytest.fixture(scope="session")
def sandbox(tiny):
    """One running sandbox for the tiny lab; every job in it stands alone."""
    with Sandbox(tiny) as running:
        yield running


@pytest.fixture(scope="session")
def oracles(tiny):
    """What decides on the tiny lab."""
    with oracle.OracleServer(tiny) as running:
        yield running


SOLUTION = {
    "task-double": "#| export\nimport numpy as np\n\n\ndef double(x):\n    return 2 * x\n",
    "task-mean": "#| export\ndef mean(x):\n    return x.sum() / len(x) if len(x) else 0.0\n",
    "task-total": "#| export\ndef total(x):\n    return (x * x).sum()\n",
}


@pytest.fixture(scope="session")
def hand_in(tiny_release):
    """Builds a submission of the tiny lab: `hand_in(double="def double(x): …")`; one left out is right, None blank."""

    def build(**tasks: str | None) -> dict:
        notebook = json.loads(tiny_release.files["01-tiny.ipynb"])
        for cell in notebook["cells"]:
            grade_id = cell["metadata"].get("nbgrader", {}).get("grade_id", "")
            task = grade_id.removeprefix("task-")
            if grade_id in SOLUTION and tasks.get(task, "") is not None:
                cell["source"] = f"#| export\n{tasks[task]}" if task in tasks else SOLUTION[grade_id]
        return notebook

    return build


@pytest.fixture(scope="session")
def graded_once(tiny_labs, hand_in, tmp_path_factory):
    """A course folder with three graded: ada 6 of 6, with the time of handing in; bob 3; cy 0, for a damaged file."""
    home = tmp_path_factory.mktemp("graded")
    files = {
        "ada": json.dumps(hand_in()),
        "bob": json.dumps(hand_in(total="def total(x):\n    return x.sum()\n")),
        "cy": "{",
    }
    for student, content in files.items():
        (home / "hand-ins" / student).mkdir(parents=True)
        (home / "hand-ins" / student / "01-tiny.ipynb").write_text(content)
    (home / "hand-ins" / "ada" / "timestamp.txt").write_text("2026-03-04 05:06:07 +0100")
    command = ["--course", str(home / "course"), "--labs", str(tiny_labs)]
    assert main([*command, "collect", str(home / "hand-ins"), "--lab", "tiny"]) == 0
    assert main([*command, "grade", "tiny", "--time-factor", "3"]) == 0
    return home / "course"


@pytest.fixture
def graded(graded_once, tmp_path) -> Course:
    """A copy of that course to change at will."""
    shutil.copytree(graded_once, tmp_path / "course")
    return Course.open(tmp_path / "course")


@pytest.fixture
def call(capsys, monkeypatch, tiny_labs, tmp_path):
    """Run `mlsys-grader --course COURSE ARGUMENTS`: exit code, stdout, stderr. COURSE is `tmp_path/course`."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)

    def run(*arguments, course=tmp_path / "course"):
        capsys.readouterr()
        code = main(["--course", str(course), "--labs", str(tiny_labs), *map(str, arguments)])
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.fixture
def submitted_at(call, hand_in, tmp_path):
    """ada and bob have handed in; nothing is graded."""
    for student in ("ada", "bob"):
        folder = tmp_path / "hand-ins" / student
        folder.mkdir(parents=True)
        (folder / f"{LAB}.ipynb").write_text(json.dumps(hand_in()))
    code, out, err = call("collect", tmp_path / "hand-ins", "--lab", "tiny")
    assert (code, err) == (0, "") and out.startswith("2 new\nno time known of 2")
    return tmp_path / "course"
