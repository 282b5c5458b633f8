"""One real Ray on this machine for all of these tests: verdicts, deaths, refusals and GPUs of the cluster engine."""

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from mlsys_checks.trusted.artifact import Artifact, Cell, export_cells, parse_notebook
from mlsys_grader.course.folder import Course
from mlsys_grader.course.lab import GradedLab
from mlsys_grader.engines import Task, cluster
from mlsys_grader.engines.local import LocalEngine
from mlsys_grader.engines.ray import MAX_TRIES, RayEngine
from mlsys_grader.grading.grade import grade
from mlsys_grader.intake.collect import collect
from mlsys_grader.judging.options import Options
from mlsys_grader.judging.performance import NOT_MEASURED
from mlsys_lab.errors import CourseError, InputError, MissingToolError
from mlsys_lab.stack.labinfo import find_lab
from tests.grader.processes import descendants

pytestmark = pytest.mark.sandbox
SLOW = "import time\ndef double(x):\n    time.sleep(1.5)\n    return 2 * x\n"
WRONG = "def total(x):\n    return x.sum()\n"
JUDGING = b"ray::Judge.judge"
"""What Ray calls a worker's process while it judges."""
MARKS = """
select student_id, base_cell.name, auto_score, manual_score, extra_credit
, needs_manual_grade from grade
join submitted_notebook on grade.notebook_id = submitted_notebook.id
join submitted_assignment on submitted_notebook.assignment_id = submitted_assignment.id
join base_cell on grade.cell_id = base_cell.id order by student_id, base_cell.name
"""


@pytest.fixture(scope="module")
def ray():
    """Ray on this machine, with room for two workers and one GPU that it only believes in."""
    module = cluster.import_ray(own=True)
    cluster.start_ray(module, 2, gpus=1)
    yield module
    module.shutdown()


@pytest.fixture
def task(hand_in):
    """Builds a task from a submission of the tiny lab, with seeds that are the same every time."""

    def build(student, **tasks):
        artifact = export_cells(parse_notebook(hand_in(**tasks), f"{student}.ipynb"))
        return Task(student, artifact, {"double": 11, "mean": 12, "total": 13})

    return build


def decided(results):
    """What was decided, without the times it took."""
    results = list(results)
    assert not [result.error for result in results if result.error]
    return {
        result.student: [replace(verdict, time_s=0.0, call_s=0.0) for verdict in result.verdicts] for result in results
    }


class Killer(threading.Thread):
    """Kills workers of this process's cluster with SIGKILL as soon as they judge, `times` in all."""

    def __init__(self, times):
        super().__init__(daemon=True)
        self.times, self.killed = times, set()

    def run(self):
        while len(self.killed) < self.times:
            for pid in descendants(os.getpid()) - self.killed:
                try:
                    judging = Path(f"/proc/{pid}/cmdline").read_bytes().startswith(JUDGING)
                except OSError:
                    continue
                if judging and len(self.killed) < self.times:
                    self.killed.add(pid)
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)


@pytest.mark.weekly
def test_the_same_seeds_give_the_same_verdicts_as_on_this_machine(ray, tiny, sandbox, task):
    tasks = [task("ada"), task("bob", total=WRONG), task("cy", mean=None), task("dan", double="1 / 0")]
    taken = []

    def as_wanted():
        for one in tasks:
            taken.append(one.student)
            yield one

    with LocalEngine(sandbox, time_factor=3.0) as here:
        local = decided(here.judge_all(tasks))
    with RayEngine(tiny, workers=1, time_factor=3.0) as engine:
        assert ray.available_resources()["GPU"] == 1, "a lab that times nothing takes no GPU"
        results = engine.judge_all(as_wanted())
        first = next(results)
        assert len(taken) <= 2, "tasks are taken as workers become free"
        there = decided([first, *results])
        assert list(engine.judge_all([])) == []
    assert there == local
    assert [verdict.passed for verdict in there["bob"]] == [True, True, False]
    assert [verdict.seed for verdict in there["ada"]] == [11, 12, 13]


@pytest.mark.weekly
def test_a_submission_that_ends_workers_is_an_error_for_itself_only(ray, tiny, task, capfd):
    with RayEngine(tiny, workers=1, time_factor=3.0) as engine:
        killer = Killer(MAX_TRIES)
        killer.start()
        (always,) = engine.judge_all([task("always", double=SLOW)])
        assert len(killer.killed) == MAX_TRIES
        assert always.error.startswith(f"{MAX_TRIES} workers ended while they judged it: ")
        (after,) = engine.judge_all([task("after")])
        assert not after.error
        assert all(verdict.passed for verdict in after.verdicts)
    assert capfd.readouterr() == ("", ""), "what Ray says of a death is not said among the grader's lines"


@pytest.mark.weekly
def test_serial_pool_and_ray_fill_the_same_gradebook_though_a_worker_is_killed(ray, tiny, hand_in, tmp_path):
    students = {
        "ada": {},
        "bob": {"total": WRONG},
        "cy": {"double": None},
        "eve": {"mean": "1 / 0"},
        "slow": {"double": SLOW},
    }
    for student, tasks in students.items():
        (tmp_path / "hand-ins" / student).mkdir(parents=True)
        (tmp_path / "hand-ins" / student / "01-tiny.ipynb").write_text(json.dumps(hand_in(**tasks)))
    (tmp_path / "hand-ins" / "damaged").mkdir()
    (tmp_path / "hand-ins" / "damaged" / "01-tiny.ipynb").write_text("{")
    found = {}
    for name, options in {
        "serial": Options(workers=1, time_factor=3.0),
        "pool": Options(workers=2, time_factor=3.0),
        "ray": Options(workers=2, time_factor=3.0, engine="ray"),
    }.items():
        course = Course.open(tmp_path / name, create=True)
        collect(course, tiny.name, tmp_path / "hand-ins")
        killer = Killer(1)
        if name == "ray":
            killer.start()
        assert not [outcome.error for outcome in grade(course, tiny, options) if outcome.error]
        database = sqlite3.connect(course.gradebook)
        found[name] = database.execute(MARKS).fetchall()
        database.close()
    assert len(killer.killed) == 1
    assert len(found["serial"]) == 3 * (len(students) + 1)
    assert found["serial"] == found["pool"] == found["ray"]


@pytest.mark.weekly
def test_a_node_with_another_version_of_the_lab_is_refused_in_one_line(ray, tiny, tiny_labs, tmp_path):
    there = tmp_path / "labs" / tiny.name
    there.mkdir(parents=True)
    for path in tiny.info.folder.iterdir():
        (there / path.name).write_bytes(path.read_bytes())
    lab = GradedLab(find_lab("tiny", tmp_path / "labs"))
    expected = lab.version  # the head's; from here on the files are those of a node that was not brought up to date
    (there / "lab.toml").write_text((there / "lab.toml").read_text() + "\n# an older text\n")
    with (
        pytest.raises(CourseError, match="may not judge: its checkout is not the head's") as refusal,
        RayEngine(lab, workers=1),
    ):
        pass
    assert expected in str(refusal.value)
    assert GradedLab(lab.info).version in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.weekly
def test_what_is_timed_goes_to_a_worker_with_a_gpu(ray, tmp_path, monkeypatch):
    folder = tmp_path / "02-timed"
    folder.mkdir()
    (folder / "lab.toml").write_text('title = "t"\nsummary = "s"\nminutes = 1\npoints = 3\nchecks = "timed_checks"\n')
    (folder / "02-timed.ipynb").write_text("{}")
    lab = GradedLab(find_lab("timed", tmp_path))
    timed = [check.name for check in lab.checks.checks if check.performance is not None]
    assert 0 < len(timed) < len(lab.checks.checks)
    right = "import torch\ndef mix(x):\n    return torch.softmax(x @ x.T, dim=-1) @ x\n"
    right += "def total(x):\n    return (x * x).sum()\n"
    tasks = [Task(student, Artifact(f"{student}.ipynb", (Cell(1, right),))) for student in ("ada",)]
    with RayEngine(lab, workers=1, time_factor=3.0) as engine:
        results = list(engine.judge_all(tasks))
        assert ray.available_resources().get("GPU", 0) == 0, "one worker holds the GPU"
    for result in results:
        assert not result.error
        assert [verdict.check for verdict in result.verdicts] == [check.name for check in lab.checks.checks]
        assert all(verdict.passed for verdict in result.verdicts), result
        (speed,) = (verdict.performance for verdict in result.verdicts if verdict.performance is not None)
        assert speed.why != NOT_MEASURED, "who holds the GPU also measures"
    assert [result.student for result in results] == ["ada"]
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 2.0})
    with RayEngine(lab, workers=1, time_factor=3.0) as engine:
        (alone,) = engine.judge_all(tasks)
    assert all(verdict.passed for verdict in alone.verdicts)
    assert [verdict.performance.why for verdict in alone.verdicts if verdict.performance is not None] == [NOT_MEASURED]


JOINED = """
import sys
from mlsys_grader.engines import Task
from mlsys_grader.engines.ray import RayEngine
from mlsys_grader.course.lab import GradedLab
from mlsys_checks.trusted.artifact import Artifact, Cell
from mlsys_lab.stack.labinfo import find_lab
from pathlib import Path
address, labs, checks = sys.argv[1:]
sys.path.append(checks)
lab = GradedLab(find_lab("tiny", Path(labs)))
with RayEngine(lab, workers=1, time_factor=3.0, address=address) as engine:
    for result in engine.judge_all([Task("ada", Artifact("ada.ipynb", (Cell(1, "def double(x): return 2 * x"),)))]):
        print(result.student, [verdict.earned for verdict in result.verdicts], result.error)
"""


@pytest.mark.weekly
def test_a_second_process_grades_on_a_cluster_that_is_running(ray, tiny_labs):
    address = ray.get_runtime_context().gcs_address
    checks = str(Path(__file__).parents[1] / "fixtures" / "checks")
    command = [sys.executable, "-W", "error", "-c", JOINED, address, str(tiny_labs), checks]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=500)
    assert (done.stdout, done.stderr) == ("ada [1, 0.0, 0.0] \n", "")


@pytest.mark.weekly
def test_an_address_that_answers_nothing_is_one_line_soon(ray, monkeypatch):
    monkeypatch.setattr(cluster, "JOIN_S", 3.0)
    with socket.socket() as mute, socket.socket() as closed:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        closed.bind(("127.0.0.1", 0))
        for address, got in (
            (f"127.0.0.1:{mute.getsockname()[1]}", "nothing in 3 s"),
            (f"127.0.0.1:{closed.getsockname()[1]}", "Connection refused"),
        ):
            with pytest.raises(InputError, match=f"no Ray cluster answers at {address}: got {got}; help"):
                cluster.join_cluster(ray, address)
    for address in ("ray://head:10001", "auto", "head:", ":6379"):
        with pytest.raises(InputError, match="not the address of a cluster"):
            cluster.join_cluster(ray, address)


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingToolError, match=r"Ray is not installed; help: pip install 'mlsys-lab\[cluster\]'"):
        cluster.import_ray(own=True)
