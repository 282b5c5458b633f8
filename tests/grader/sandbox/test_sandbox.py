import contextlib
import os
import shutil
import sys
import sysconfig
import time
from dataclasses import replace
from pathlib import Path

import pytest

from mlsys_checks.sides import SANDBOXED, find_files
from mlsys_grader.course.lab import GradedLab
from mlsys_grader.judging.options import Options
from mlsys_grader.sandbox import contents
from mlsys_grader.sandbox.bubblewrap import bubblewrap
from mlsys_grader.sandbox.inside import jail, wire
from mlsys_grader.sandbox.sandbox import Sandbox
from mlsys_lab.errors import InputError, MissingToolError
from mlsys_lab.stack.labinfo import find_lab
from tests.grader.inside import MEBIBYTE, answer, ask, begin, named, nobody_is_left

pytestmark = pytest.mark.sandbox


def test_the_code_runs_as_nobody_without_capabilities(sandbox):
    user, group, pid, groups = answer(sandbox, "[os.getuid(), os.getgid(), os.getpid(), os.getgroups()]")
    own = range(jail.FIRST_UID, jail.FIRST_UID + jail.UIDS)
    assert user == group and pid == 1
    assert user in own and groups == [] if os.geteuid() == 0 else user == jail.NOBODY
    source = (
        "import ctypes\nlibc = ctypes.CDLL(None)\nraise ValueError(str([libc.mount(b'none', b'/', b'tmpfs', 0, None),"
    )
    source += " libc.prctl(23, 21, 0, 0, 0), libc.prctl(39, 0, 0, 0, 0)]))"
    assert "[-1, 0, 1]" in ask(sandbox, source).meta["got"]


def test_only_what_the_code_needs_is_there(sandbox):
    seen = answer(
        sandbox,
        "[os.listdir('/proc'), os.path.exists('/etc/passwd'), os.listdir('/home') if os.path.exists('/home') else []]",
    )
    assert seen == [[], False, []]
    here = Path(__file__)
    hidden = [
        str(here),
        str(here.parents[3] / "solutions"),
        str(here.parents[3] / "grader" / "mlsys_grader" / "judging" / "judge.py"),
        str(Path.home() / ".bashrc"),
    ]
    assert answer(sandbox, f"[os.path.exists(p) for p in {hidden}]") == [False] * 4
    assert set(answer(sandbox, "list(os.environ)")) - {"PWD"} == set(contents.make_environment(""))


def test_withheld_modules_are_not_there(sandbox):
    assert "No module named 'mlsys_lab.autograd'" in ask(sandbox, "import mlsys_lab.autograd").meta["got"]


def test_of_the_checks_only_the_sandboxed_side_is_there(sandbox):
    assert answer(sandbox, "os.listdir('/course/mlsys_checks')") == ["sandboxed"]
    here = "/course/mlsys_checks/sandboxed/"
    walk = f"sorted(os.path.join(at, f)[{len(here)}:] for at, _, fs in os.walk('{here}') for f in fs)"
    found = [name for part in ("[:10]", "[10:]") for name in answer(sandbox, walk + part)]  # a message is short
    assert found == [str(path.relative_to(SANDBOXED)) for path in find_files(SANDBOXED, "")]
    assert answer(sandbox, "sorted(os.listdir('/course'))") == [
        "mlsys_checks",
        "mlsys_grader",
        "mlsys_lab",
        "tiny_calls.py",
    ]
    assert answer(sandbox, "os.listdir('/course/mlsys_grader') + os.listdir('/course/mlsys_grader/sandbox')") == [
        "sandbox",
        "inside",
    ]


def test_a_lab_of_the_course_brings_its_calls_and_no_oracle():
    source = """
import importlib, os
here = "/course/mlsys_checks"
seen = sorted(os.path.relpath(at, here) for at, _, files in os.walk(here) if files and not at.endswith("__pycache__"))
decides = [f"trusted.{name}" for name in ("autograd", "autograd.engine", "autograd.training", "verdict", "compare")]
for module in (*decides, "trusted", "runner", "sides", "sandboxed.triton"):
    try:
        seen.append(importlib.import_module(f"mlsys_checks.{module}").__name__)
    except ModuleNotFoundError:
        pass
raise ValueError(seen)
Value = None
"""
    order = {"name": "t", "source": source, "time_limit_s": 20.0, "memory_bytes": 1 << 30, "cpu_s": 60}
    call = {"call": "mlsys_checks.sandboxed.autograd:operation", "uses": ["Value"], "memory_bytes": None}
    with Sandbox(GradedLab(find_lab("autograd"))) as running, running.job() as job:
        job.request("job", order, deadline=time.monotonic() + 60)
        told = job.request("case", {**call, "time_limit_s": 20.0, "random_seed": 1}, deadline=time.monotonic() + 60)
    assert "['sandboxed', 'sandboxed/kernels']" in str(told.meta), told


def test_it_loads_the_solved_labs_that_its_lab_runs_on_and_no_other(tiny):
    loaded = "[load_solved(topic) is not None for topic in ('scaling-laws', 'autograd')]"
    with Sandbox(GradedLab(replace(tiny.info, stack=("scaling-laws",)))) as sandbox:
        assert answer(sandbox, loaded, before="from mlsys_lab.stack.solved import load_solved") == [True, False]


def test_without_a_solved_lab_that_its_lab_runs_on_it_does_not_start(tiny):
    with pytest.raises(InputError, match="tiny runs on solved labs: got none here, expected those of no-such"):
        Sandbox(GradedLab(replace(tiny.info, stack=("no-such",))), unsafe=True).__enter__()


def test_of_the_system_it_sees_programs_and_libraries_by_name(sandbox):
    seen = answer(sandbox, "{at: sorted(os.listdir(at)) for at in ('/usr', sys.prefix, '/')}", before="import sys")
    assert set(seen["/usr"]) <= {"bin", "sbin", "lib", "lib32", "lib64", "libexec", "include", "local", "share"}
    assert set(seen[sys.prefix]) <= {"bin", "lib", "lib64", "include", "pyvenv.cfg"}
    assert answer(sandbox, "[os.listdir('/usr/share'), os.path.exists('/usr/src')]") in ([["zoneinfo"], False],)


EXTENSION = """\
#include <Python.h>
static struct PyModuleDef all = {PyModuleDef_HEAD_INIT, "built", "", -1, 0};
PyMODINIT_FUNC PyInit_built(void) { return PyModule_Create(&all); }
"""


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc")
def test_triton_can_build_what_it_launches_kernels_with(sandbox):
    """On a GPU it compiles its driver and a launcher for each kernel in the job that is timed."""
    build = pytest.importorskip("triton.runtime.build").__name__
    before = f"from {build} import compile_module_from_src as build\nbuilt = build({EXTENSION!r}, 'built').__name__\n"
    assert answer(sandbox, "built", before=before) == "built"


@pytest.mark.parametrize("inside", [sysconfig.get_path("purelib"), f"{sys.base_prefix}/lib", "/usr/lib"])
def test_a_course_that_submissions_could_read_is_refused_in_one_line(inside, monkeypatch, tiny):
    with pytest.raises(
        InputError, match=r"submissions could read this folder: got .*/spring, expected a folder outside"
    ):
        Options().settled(Path(inside, "spring"))
    monkeypatch.setattr(contents, "find_private", lambda: [Path(inside, "solutions")])
    with pytest.raises(InputError, match=r"submissions could read this folder: got .*/solutions"):
        bubblewrap(tiny)


def test_a_course_beside_an_environment_is_not_seen(tmp_path):
    contents.refuse_readable([tmp_path, Path(sys.prefix), Path(sys.prefix, "src", "course"), Path("/usr/share/course")])


@pytest.fixture
def environment(tmp_path, monkeypatch):
    """An environment that has the course installed as a package, with `lib64` a second name of `lib`."""
    packages = tmp_path / "venv" / "lib" / "python3.11" / "site-packages"
    (packages / "mlsys_lab").mkdir(parents=True)
    (packages / "mlsys_checks").mkdir()
    (packages / "mlsys_grader" / "sandbox" / "inside").mkdir(parents=True)
    (packages / "torch").mkdir()
    (tmp_path / "venv" / "lib64").symlink_to("lib")
    binds = [(f"{tmp_path}/venv/{name}", f"{tmp_path}/venv/{name}") for name in ("lib", "lib64")]
    monkeypatch.setattr(contents, "bind_system", lambda: binds)
    monkeypatch.setattr(contents, "PACKAGE", packages / "mlsys_lab")
    monkeypatch.setattr(contents, "CHECKS", packages / "mlsys_checks")
    monkeypatch.setattr(contents, "INSIDE", packages / "mlsys_grader" / "sandbox" / "inside")
    return packages


def test_an_installed_course_is_hidden_under_every_name_of_its_folder(environment, tmp_path):
    both = (tmp_path / "venv" / "lib", tmp_path / "venv" / "lib64")
    expected = [str(at / "python3.11" / "site-packages" / name) for at in both for name in sorted(contents.PARTS)]
    assert sorted(expected) == contents.find_hidden()
    contents.refuse_readable(contents.find_private())


def test_solutions_beside_an_installed_course_are_refused(environment):
    (environment / "solutions").mkdir()
    with pytest.raises(InputError, match=r"submissions could read this folder: got .*/solutions"):
        contents.refuse_readable(contents.find_private())


def test_a_second_copy_in_another_environment_is_hidden_too(environment, tmp_path, monkeypatch):
    other = tmp_path / "usr" / "lib" / "python3" / "dist-packages" / "mlsys_lab"
    other.mkdir(parents=True)
    monkeypatch.setattr(contents, "bind_system", lambda: [(f"{tmp_path}/usr/lib", f"{tmp_path}/usr/lib")])
    assert contents.find_hidden() == [str(other)]


def test_there_is_no_network(sandbox):
    assert "unreachable" in ask(sandbox, "import socket\nsocket.create_connection(('192.0.2.1', 80), 3)").meta["got"]
    assert answer(sandbox, "[name for _, name in __import__('socket').if_nameindex()]") == ["lo"]


def test_nothing_can_be_written_but_in_the_own_scratch_folder(sandbox):
    for path in ("/x", "/course/mlsys_lab/x", "/usr/x"):
        assert "Read-only file system" in ask(sandbox, f"open({path!r}, 'w')").meta["got"] or "Permission" in path
    assert ask(sandbox, "open('/scratch/x', 'w').write('1'); return 2 * x").kind == "answer"
    assert answer(sandbox, "os.listdir('/scratch')") == []


def test_writing_ends_at_the_quota(sandbox):
    full = ask(sandbox, "for i in range(100):\n    open(f'f{i}', 'wb').write(bytes(10 << 20))")
    assert "No space left" in full.meta["got"]
    assert "File too large" in ask(sandbox, "open('f', 'wb').write(bytes(20 << 20))").meta["got"]


STAYS_ALIVE = """\
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(600)
return 2 * x"""


def test_nothing_is_left_running_after_a_job(sandbox):
    body = named("left") + STAYS_ALIVE
    assert ask(sandbox, body).kind == "answer"
    assert nobody_is_left("left")


def test_what_a_job_has_used_is_told_while_it_works(sandbox):
    with sandbox.job() as job:
        deadline = begin(job, "import os\nos.fork()\nwhile True:\n    pass", deadline_s=120.0)
        while job.time_used().cpu_s < 0.5:
            assert time.monotonic() < deadline
        before = job.time_used()
        assert job.time_used().cpu_s >= before.cpu_s >= 0.5 and before.waited_s >= 0


def test_an_endless_loop_is_killed_when_the_judge_lets_go(sandbox):
    body = named("endless") + (
        "import mlsys_lab.stack.limits as limits\nsignal.signal(signal.SIGALRM, signal.SIG_IGN)\nwhile True:\n    pass"
    )
    with pytest.raises(wire.DeadlineError):
        ask(sandbox, body, deadline_s=3.0)
    assert nobody_is_left("endless")


def test_a_fork_bomb_ends(sandbox):
    body = named("bomb") + "while True:\n    try:\n        os.fork()\n    except OSError:\n        break\nreturn 2 * x"
    with contextlib.suppress(wire.WireError):  # what matters is what comes after
        ask(sandbox, body, deadline_s=10.0)
    assert nobody_is_left("bomb")
    assert ask(sandbox, "return 2 * x").kind == "answer"


@pytest.mark.parametrize(
    ("body", "ending"),
    [
        ("import os; os._exit(3)", "ended itself with status 3"),
        ("import ctypes; ctypes.string_at(1)", "killed by signal 11"),
    ],
)
def test_how_a_process_ended_is_told(sandbox, body, ending):
    assert ending in ask(sandbox, body)


@pytest.mark.parametrize(
    "body",
    [
        "np.ones(40 << 20, np.uint8); return 2 * x",
        "import torch; torch.ones(40 << 20, dtype=torch.uint8); return 2 * x",
        "for _ in range(20):\n    np.ones(30 << 20, np.uint8)\nreturn 2 * x",
    ],
)
def test_memory_within_the_budget_is_given(sandbox, body):
    assert ask(sandbox, body, memory_bytes=100 * MEBIBYTE).kind == "answer"


@pytest.mark.parametrize(
    "body",
    [
        "np.ones(120 << 20, np.uint8)",
        "import torch; torch.ones(120 << 20, dtype=torch.uint8)",
        "keep = [np.ones(1 << 20, np.uint8) for _ in range(120)]",
    ],
)
def test_memory_beyond_the_budget_is_refused(sandbox, body):
    assert ask(sandbox, body, memory_bytes=100 * MEBIBYTE).meta["what"] == "it needs too much memory"


def test_jobs_do_not_see_each_other(sandbox):
    ask(
        sandbox,
        "import mlsys_lab, sys\nsys.modules['mlsys_lab'].left = 1\nnp.left = 1\nopen('note', 'w')\nreturn 2 * x",
    )
    assert answer(sandbox, "[hasattr(np, 'left'), hasattr(__import__('mlsys_lab'), 'left'), os.listdir('.')]") == [
        False,
        False,
        [],
    ]


def test_without_bubblewrap_it_refuses_in_one_line(tiny, monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(MissingToolError, match=r"bubblewrap is not installed.*--unsafe"):
        Sandbox(tiny)


def test_bubblewrap_that_may_not_work_is_told_in_one_line(tiny, monkeypatch, tmp_path):
    program = tmp_path / "bwrap"
    program.write_text("#!/bin/sh\necho 'bwrap: setting up uid map: Permission denied' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(MissingToolError, match=r"may not build a sandbox here .bwrap: setting up uid map"):
        Sandbox(tiny)


def test_a_withheld_module_that_does_not_exist_is_refused(tiny_labs, tmp_path):
    import shutil

    from mlsys_lab.stack.labinfo import read_lab

    shutil.copytree(tiny_labs / "01-tiny", tmp_path / "01-tiny")
    toml = tmp_path / "01-tiny" / "lab.toml"
    toml.write_text(toml.read_text().replace("mlsys_lab.autograd", "mlsys_lab.autogard"))
    with pytest.raises(InputError, match=r"names a module that there is not: got mlsys_lab\.autogard"):
        Sandbox(GradedLab(read_lab(tmp_path / "01-tiny")))


def test_unsafe_runs_without_a_sandbox_and_still_ends_what_it_started(tiny):
    with Sandbox(tiny, unsafe=True) as plain:
        assert ask(plain, "return 2 * x").kind == "answer"
        body = named("unsafe") + "signal.signal(signal.SIGALRM, signal.SIG_IGN)\nwhile True:\n    pass"
        with pytest.raises(wire.DeadlineError):
            ask(plain, body, deadline_s=3.0)
        assert nobody_is_left("unsafe")
