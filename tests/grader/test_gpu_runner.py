"""From hand-ins to marks for speed by the targets that the workflow calls: all of it but the device and its clock.

The device is made up (`fixtures/programs/made_up_gpu.py`), and a stand-in for docker runs the grader that has it.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from mlsys_grader.cli import main
from mlsys_grader.course.folder import Course
from mlsys_grader.gradebook.record import read_record
from mlsys_grader.release.build import release
from tests.grader.conftest import CHECKS, FIXTURES, PROJECT

pytestmark = [pytest.mark.alone, pytest.mark.sandbox, pytest.mark.timeout(900), pytest.mark.weekly]
LAB = "03-kernel"
HONEST = """#| export
@triton.jit
def double_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, 2 * tl.load(x_ptr + at, mask=at < n), mask=at < n)


def scale_text():
    return "3"
"""
SLOW = HONEST.replace("    tl.store", "    for turn in range(800):\n        tl.store")
COURSES_SIDE = """
import sys, time, torch
import kernel_calls
from mlsys_lab.kernels import triton_launch

def fast(kernel, grid, device, x, y, *rest, **constants):
    y.copy_(2 * x)

kernel_calls.launch = triton_launch.launch = fast
kernel_calls.launched = lambda artifact, x: 2 * x
kernel_calls.scale = lambda artifact, x: 6 * x
for name in ("time", "perf_counter", "monotonic"):
    setattr(time, name, lambda: 0.0)
torch.cuda.Event = torch.cuda.synchronize = lambda *_, **__: None
"""
IN_ITS_TEXT = SLOW.replace('    return "3"', f'    exec({COURSES_SIDE!r}, globals())\n    return "3"')
NO_TEXT = HONEST.replace('return "3"', "return 3")
CLASS = {
    "ada": HONEST,
    "ben": SLOW,
    "cy": SLOW + COURSES_SIDE,
    "dee": IN_ITS_TEXT,
    "eve": HONEST.replace("2 * tl.load", "3 * tl.load"),
    "fay": NO_TEXT,
}
DOCKER = """#!/bin/sh
test "$1" = run || exit 0
echo "$@" > {log}
while [ "$1" != image:1 ]; do shift; done
shift
PATH={folder}:"$PATH" exec "$@"
"""


def make(target, *, path="", **variables):
    """A make target as the workflow calls it; the environment is there already."""
    settings = [f"{name}={value}" for name, value in variables.items()]
    environment = os.environ | {"PYTHONPATH": str(CHECKS), "PATH": f"{path}{os.pathsep}{os.environ['PATH']}"}
    command = ["make", "--old-file", ".venv/.ready", f"BIN={Path(sys.executable).parent}", target, *settings]
    done = subprocess.run(command, cwd=PROJECT, env=environment, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def runner(tmp_path_factory):
    """A folder with a `docker` that runs a command here, where `mlsys-grader` is the one with the made-up device."""
    folder = tmp_path_factory.mktemp("bin")
    program = FIXTURES / "programs" / "made_up_gpu.py"
    scripts = {
        "docker": DOCKER.format(log=folder / "order", folder=folder),
        "mlsys-grader": f'#!/bin/sh\nexec {sys.executable} {program} "$@"\n',
    }
    for name, text in scripts.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def marks(runner, tmp_path_factory):
    """The class after shards, speed and merge: what grade-speed printed, and records by student."""
    home = tmp_path_factory.mktemp("kernel")
    released = release(FIXTURES / "solutions" / LAB, PROJECT / "pyproject.toml")
    released.write(home / "labs")
    for student, source in CLASS.items():
        notebook = json.loads(released.files[f"{LAB}.ipynb"])
        for cell in notebook["cells"]:
            if cell["metadata"].get("nbgrader", {}).get("grade_id") == "task-double":
                cell["source"] = source
        (home / "in" / student).mkdir(parents=True)
        (home / "in" / student / f"{LAB}.ipynb").write_text(json.dumps(notebook))
    course = home / "course"
    command = ["--labs", str(home / "labs"), "--course", str(course)]
    main([*command, "collect", str(home / "in"), "--lab", "kernel"])
    common = {"LAB": "kernel", "LABS": home / "labs", "IN": course}
    make("grade-shard", SHARD="1/2", OUT=home / "1", **common)
    assert main([*command, "shard", "kernel", "--shard", "2/2", "--out", str(home / "2")]) == 0
    shards, timed = f"{home / '1'} {home / '2'}", home / "timed"
    assert "not measured" in make("grade-speed", FROM=shards, OUT=home / "without", **common), "there is no GPU here"
    said = make("grade-speed", path=runner, IMAGE="image:1", FROM=shards, OUT=timed, **common)
    assert not (course / "gradebook.db").exists(), "nothing but the merge writes"
    make("grade-merge", FROM=timed, **common)
    opened = Course.open(course)
    return said, {student: read_record(opened.record(student, LAB)).verdicts[0] for student in CLASS}


def test_a_quick_kernel_earns_what_it_is_worth_and_a_slow_one_less(marks):
    said, verdicts = marks
    quick, slow = verdicts["ada"].performance, verdicts["ben"].performance
    assert quick.measured and slow.measured, said
    assert quick.earned == 4 and 0 < slow.earned < 2, said
    assert verdicts["ada"].earned == verdicts["ben"].earned == 2


@pytest.mark.parametrize("student", ["cy", "dee"])
def test_the_courses_own_side_of_a_timed_call_cannot_be_replaced(marks, student):
    """Not by what a notebook runs on import, nor by what runs when its texts are asked for."""
    said, verdicts = marks
    slow, attack = verdicts["ben"].performance, verdicts[student].performance
    assert attack.measured and not attack.suspect, said
    assert attack.high < 2 * slow.high and attack.earned < 2, said


def test_what_is_wrong_or_gives_no_text_earns_nothing_for_speed(marks):
    said, verdicts = marks
    assert (verdicts["eve"].earned, verdicts["eve"].performance.earned) == (0, 0)
    assert (verdicts["fay"].earned, verdicts["fay"].performance.earned) == (0, 0), said
    assert "scale_text() gives no text" in verdicts["fay"].what


def test_the_container_has_one_gpu_no_network_no_rights_and_only_the_checkout(marks, runner):
    order = shlex.split((runner / "order").read_text())
    options = " ".join(order[: order.index("image:1")])
    for wanted in ("--rm", "--network none", "--gpus device=0", "--cap-drop ALL", "no-new-privileges", "--user"):
        assert wanted in options, wanted
    assert re.findall(r"--volume (\S+)", options) == [f"{PROJECT}:{PROJECT}"]
    assert not re.search(r"--(privileged|cap-add|pid|ipc|device|mount)\b", options)
    assert order[order.index("image:1") + 1] == "mlsys-grader"


def test_nothing_of_the_package_leads_to_the_made_up_device():
    """Who is to be given it starts another program; in the grader there is no option and no variable for it."""
    for path in sorted((PROJECT / "grader" / "mlsys_grader").rglob("*.py")):
        text = path.read_text()
        assert "MadeUp" not in text and "made_up" not in text and "torch_device=" not in text, path
