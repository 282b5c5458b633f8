"""`mlsys-grader doctor`: what a runner lacks, a line for each, and how to mend it."""

import json
import shutil
import sys
from types import SimpleNamespace

import pytest

from mlsys_grader.cli import main
from mlsys_grader.commands import doctor
from mlsys_grader.sandbox import gpu
from mlsys_grader.sandbox.gpu import Gpu

PASSES_THE_PROBE = """#!/bin/sh
case "$*" in *"--ro-bind / / true") exit 0;; esac
echo "bwrap: Can't mount proc on /newroot/proc: Operation not permitted" >&2
exit 1
"""
REFUSES = "#!/bin/sh\necho 'bwrap: setting up uid map: Permission denied' >&2\nexit 1\n"
JUDGING = ["released labs", "system call filter", "sandbox", "a process in it", "disk"]


@pytest.fixture
def examine(capsys, tiny_labs, tmp_path):
    """Run the command: its exit code, and findings by name."""

    def run(*options, labs=tiny_labs):
        code = main(["--course", str(tmp_path / "course"), "--labs", str(labs), "doctor", "--json", *options])
        return code, {one["name"]: one for one in json.loads(capsys.readouterr().out)}

    return run


@pytest.fixture
def no_job(monkeypatch):
    """For what is told of other things than the sandbox: no process is started."""
    monkeypatch.setattr(doctor, "_find_sandbox", lambda: "bubblewrap")
    monkeypatch.setattr(doctor, "_start_job", lambda labs: "stood ready")


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Put a program alone on the PATH."""

    def put(name, text):
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path / "bin"))

    return put


@pytest.mark.sandbox
def test_a_machine_that_judges(examine):
    code, found = examine()
    assert code == 0 and [name for name, one in found.items() if one["required"]] == JUDGING
    assert all(found[name]["ok"] for name in JUDGING), found
    assert found["sandbox"]["found"] == "bubblewrap" and "01-tiny" in found["released labs"]["found"]


@pytest.mark.parametrize(
    ("text", "name", "said"),
    [(REFUSES, "sandbox", "Permission denied"), (PASSES_THE_PROBE, "a process in it", "Can't mount proc")],
    ids=["refused at once", "refused when it counts"],
)
def test_a_bubblewrap_that_may_not_build_a_sandbox(cold, examine, program, text, name, said):
    program("bwrap", text)
    code, found = examine()
    assert code == 1 and not found[name]["ok"]
    assert said in found[name]["found"] and "user namespaces" in found[name]["fix"]


def test_without_any_sandbox(examine, program):
    program("true", "")
    code, found = examine()
    assert code == 1 and "bubblewrap is not installed" in found["sandbox"]["found"]
    assert "apt install bubblewrap" in found["sandbox"]["fix"]


def test_marks_for_speed_demand_a_gpu_and_correctness_does_not(examine, no_job, monkeypatch, tmp_path):
    monkeypatch.setattr(gpu, "find_gpu", lambda: Gpu(root=tmp_path))
    assert examine()[0] == 0
    code, found = examine("--gpu")
    assert code == 1 and not found["GPU's device files"]["ok"] and "driver" in found["GPU's device files"]["fix"]
    assert found["Triton"]["ok"] and all(one["required"] for one in found.values())
    (tmp_path / "dev").mkdir()
    for name in ("nvidiactl", "nvidia-uvm", "nvidia1"):
        (tmp_path / "dev" / name).touch()
    assert examine()[1]["GPU's device files"]["found"] == "nvidiactl, nvidia-uvm, nvidia1"
    assert "libnvvm" in examine()[1]["Numba's compiler"]["found"]
    with monkeypatch.context() as without:
        without.setattr(doctor.sysconfig, "get_path", lambda name: str(tmp_path))
        assert "apt install python3-dev" in examine("--gpu")[1]["C compiler"]["fix"]
        without.setitem(sys.modules, "cuda.pathfinder", None)
        assert "nvidia-nvvm" in examine("--gpu")[1]["Numba's compiler"]["fix"]
    monkeypatch.setattr(doctor.shutil, "which", lambda name, path: None)
    assert "apt install gcc" in examine("--gpu")[1]["C compiler"]["fix"]


def test_the_image_is_looked_for_where_one_is_named(examine, no_job, program, monkeypatch):
    assert "GPU_IMAGE" not in examine()[1]
    monkeypatch.setenv("GPU_IMAGE", "mlsys-lab-gpu:1a2b")
    says = '#!/bin/sh\ntest "$1" = info -o "$3" = mlsys-lab-gpu:0000 && exit 0\necho "No such image: $3" >&2\nexit 1\n'
    program("docker", says)
    missing = examine("--gpu")[1]["GPU_IMAGE"]
    assert not missing["ok"] and missing["found"] == "docker: No such image: mlsys-lab-gpu:1a2b"
    assert "make gpu-image" in missing["fix"]
    monkeypatch.setenv("GPU_IMAGE", "mlsys-lab-gpu:0000")
    assert examine("--gpu")[1]["GPU_IMAGE"]["ok"]
    program("docker", '#!/bin/sh\necho "Cannot connect" >&2\nexit 1\n')
    silent = examine("--gpu")[1]["GPU_IMAGE"]
    assert silent["found"] == "docker: Cannot connect" and "`docker info`" in silent["fix"]
    assert "pull" not in silent["fix"]


def test_a_full_disk_a_strange_machine_and_no_labs(examine, no_job, monkeypatch, tmp_path):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: usage._replace(free=100 << 20))
    monkeypatch.setattr(doctor.os, "uname", lambda: SimpleNamespace(machine="riscv64"))
    code, found = examine(labs=tmp_path / "none")
    assert code == 1 and [name for name in JUDGING if not found[name]["ok"]] == [JUDGING[0], JUDGING[1], JUDGING[4]]
    assert "0.1 GiB free" in found["disk"]["found"] and "riscv64" in found["system call filter"]["found"]
    assert "make labs" in found["released labs"]["fix"]
    assert all(one["ok"] or one["fix"] for one in found.values() if one["required"])


def test_the_table_has_a_line_for_each_and_the_fix(no_job, monkeypatch, tmp_path, capsys, tiny_labs):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(gpu, "find_gpu", lambda: Gpu(root=tmp_path))
    assert main(["--labs", str(tiny_labs), "doctor", "--gpu"]) == 1
    said = capsys.readouterr().out
    assert "✓  sandbox" in said and "✗  GPU's device files" in said and "\nGPU's device files: install" in said
