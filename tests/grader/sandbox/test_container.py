import json
import sys

import pytest

from mlsys_checks.sides import SANDBOXED, find_files
from mlsys_grader.intake.submission import read_submission
from mlsys_grader.judging.judge import judge
from mlsys_grader.sandbox import backend, container, contents
from mlsys_grader.sandbox.inside import seccomp, wire
from mlsys_grader.sandbox.sandbox import Sandbox
from mlsys_lab.errors import InputError, MissingToolError
from tests.grader.conftest import FIXTURES
from tests.grader.inside import answer, ask, named, nobody_is_left
from tests.sampling import keep
from tests.warm.forks import ForkServer


@pytest.fixture(scope="module")
def forks():
    """Where the stand-in has its Pythons from."""
    server = ForkServer("import torch", contents.ONE_THREAD)
    yield server.address
    server.close()


@pytest.fixture
def state(tmp_path, monkeypatch, forks):
    """The folder in which the stand-in writes what it was ordered, and which holds its image."""
    folder = tmp_path / "state"
    folder.mkdir()
    (folder / "image").touch()
    monkeypatch.setenv("CONTAINER_STATE", str(folder))
    monkeypatch.setenv("CONTAINER_FORKS", forks)
    return folder


@pytest.fixture(params=keep(["podman", "docker"], ["docker"]))
def program(request, state, tmp_path, monkeypatch):
    """A stand-in for a container program, alone on the PATH."""
    path = tmp_path / "bin" / request.param
    path.parent.mkdir()
    path.write_text(f'#!/bin/sh\nexec {sys.executable} {FIXTURES}/programs/container_program.py "$@"\n')
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(path.parent))
    return request.param


def test_a_class_is_judged_in_containers(program, tiny, oracles, hand_in, tmp_path):
    path = tmp_path / "01-tiny.ipynb"
    path.write_text(json.dumps(hand_in(total="def total(x):\n    return x.sum()\n")))
    with Sandbox(tiny) as sandbox:
        assert sandbox.backend == program
        verdicts = judge(read_submission(path, tiny).artifact, sandbox, oracles, time_factor=10.0)
    assert [verdict.passed for verdict in verdicts] == [True, True, False]


def test_the_container_holds_no_oracle(program, tiny):
    ours = "f.endswith('.py') and ('mlsys_checks' in at or 'tiny' in f)"
    expected = {*(path.name for path in find_files(SANDBOXED, "")), "tiny_calls.py"}
    found = f"{{f for at, _, files in os.walk(root) for f in files if {ours}}}"
    with Sandbox(tiny) as sandbox:
        before = "import sys\nroot = next(p for p in sys.path if p.endswith('/course'))"
        assert answer(sandbox, f"sorted({found} ^ {expected})", before=before) == []
        assert "No module named" in ask(sandbox, "import mlsys_lab.autograd").meta["got"]


@pytest.mark.weekly
def test_a_container_that_never_ends_is_removed(program, state, tiny):
    with Sandbox(tiny) as sandbox:
        body = named("endless") + "signal.signal(signal.SIGALRM, signal.SIG_IGN)\nwhile True: pass"
        with pytest.raises(wire.DeadlineError):
            ask(sandbox, body, deadline_s=10.0)
        assert nobody_is_left("endless")
    orders = (state / "orders").read_text()
    assert "kill mlsys-lab-" in orders and "rm --force" in orders
    assert not list(state.glob("mlsys-lab-*"))  # those that nobody used are gone as well


@pytest.mark.parametrize(
    ("body", "ending"),
    [
        ("import os; os._exit(3)", "ended itself with status 3"),
        ("import ctypes; ctypes.string_at(1)", "killed by signal 11"),
    ],
)
def test_how_a_container_ended_is_told(program, tiny, body, ending):
    with Sandbox(tiny) as sandbox:
        assert ending in ask(sandbox, body)


def test_a_container_out_of_memory_is_told(program, state, tiny):
    (state / "out-of-memory").touch()
    with Sandbox(tiny) as sandbox:
        assert "too much memory" in ask(sandbox, "import os; os._exit(1)")


def test_the_profile_refuses_what_the_filter_refuses():
    rules = json.loads(container.make_profile())["syscalls"]
    plain = {name for rule in rules if "args" not in rule for name in rule["names"]}
    assert plain == {*seccomp.REFUSED, *seccomp.IDLE, "clone3"} - {"seccomp"}  # inside, the filter is laid on as well
    with_gpu = json.loads(container.make_profile(gpu=True))["syscalls"]
    assert plain - {name for rule in with_gpu if "args" not in rule for name in rule["names"]} == {*seccomp.FOR_CUDA}

    def refused(name, *arguments):
        asked = [*arguments, 0, 0, 0]

        def holds(how):
            if how["op"] == "SCMP_CMP_NE":
                return asked[how["index"]] != how["value"]
            assert how["op"] == "SCMP_CMP_MASKED_EQ"
            return asked[how["index"]] & how["value"] == how["valueTwo"]

        return any(name in rule["names"] and all(map(holds, rule["args"])) for rule in rules if "args" in rule)

    assert not refused("clone", 0x1200011) and not refused("clone", 0x3D0F00)
    assert all(refused("clone", 0x11 | 1 << bit) for bit in (17, 25, 26, 27, 28, 29, 30))
    assert [refused("mmap", 0, 0, 0, flags) for flags in (0x22, 0x02, 0x01, 0x21, 0x23, 0x122)] == [
        False,
        False,
        False,
        True,
        True,
        True,
    ]
    assert [refused("socket", family) for family in (1, 2, 10, 16, 17, 38, 40)] == [False] * 4 + [True] * 3
    assert [refused("socket", 2, 1, protocol) for protocol in (0, 6, 17, 132, 262)] == [False] * 3 + [True] * 2
    assert [refused("socketpair", family) for family in (1, 2, 30)] == [False, True, True]
    assert [refused("prctl", option) for option in (15, 22, 38, 62, 78)] == [False, True, False, True, True]
    assert refused("setsockopt", 3, 1, 60) and not refused("setsockopt", 3, 6, 60)
    assert [refused("socket", 16, 3, protocol) for protocol in (0, 1, 9, 12)] == [False, True, True, True]
    assert [refused("fcntl", 3, command) for command in (1, 2, 3, 4, 6, 7, 37, 38, 1024, 1026, 1031)] == [
        *[False] * 4,
        *[True] * 6,
        False,
    ]
    assert [refused("socket", family | 1 << 32) for family in (1, 2, 17, 38, 40)] == [False] * 2 + [True] * 3
    assert [refused("setsockopt", 3, *which) for which in ((1, 7), (1, 8), (1, 2), (6, 7))] == [
        True,
        True,
        False,
        False,
    ]
    assert [rule["errnoRet"] for rule in rules if rule["names"] == ["setsockopt"]] == [0, 0, 1]  # as if it were done


def test_without_a_sandbox_it_refuses_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        MissingToolError, match=r"bubblewrap is not installed; podman: it is not installed.*--unsafe"
    ) as e:
        backend.choose_backend()
    assert "\n" not in str(e.value)
    with pytest.raises(MissingToolError, match=r"docker: it is not installed.*docker build"):
        backend.choose_backend("docker")


def test_without_the_image_it_says_how_to_build_it(program, state):
    (state / "image").unlink()
    with pytest.raises(MissingToolError, match=f"no such image.*{program} build --tag mlsys-lab-sandbox"):
        backend.choose_backend(program)


def test_a_sandbox_that_there_is_not_is_refused():
    with pytest.raises(
        InputError, match="no sandbox of this name: got dokcer, expected one of bubblewrap, podman, docker"
    ):
        backend.choose_backend("dokcer")


@pytest.mark.sandbox
def test_bubblewrap_comes_first(program, tmp_path):
    (tmp_path / "bin" / "bwrap").symlink_to("/usr/bin/bwrap")
    (tmp_path / "bin" / "true").symlink_to("/usr/bin/true")
    assert backend.choose_backend() == "bubblewrap"
