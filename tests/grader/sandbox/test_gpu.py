"""A GPU in the sandbox: what is bound, for a made-up machine. That CUDA is content with it was never tried."""

import time

import numpy as np
import pytest

from mlsys_checks.trusted.artifact import export_cells, parse_notebook
from mlsys_grader.sandbox.container import make_flags
from mlsys_grader.sandbox.gpu import Gpu, find_gpu
from mlsys_grader.sandbox.sandbox import Sandbox
from mlsys_lab.errors import InputError


@pytest.fixture
def machine(tmp_path):
    """A root with the files of two GPUs."""
    devices = [f"dev/{name}" for name in ("nvidiactl", "nvidia-uvm", "nvidia0", "nvidia1", "sda")]
    for name in (*devices, "run/opengl-driver/lib/libcuda.so"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "sys/bus/pci").mkdir(parents=True)
    return tmp_path


def test_one_gpu_and_what_its_driver_shares_are_bound(machine):
    command = Gpu(1, machine).bubblewrap_arguments()
    devices = [command[at + 2] for at, word in enumerate(command) if word == "--dev-bind"]
    assert devices == ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia1"], "and not the other GPU, nor a disk"
    read_only = [command[at + 2] for at, word in enumerate(command) if word == "--ro-bind"]
    assert read_only == ["/run/opengl-driver", "/sys/bus/pci"]
    assert len(command) == 3 * (len(devices) + len(read_only))


def test_without_a_driver_nothing_is_bound(tmp_path, machine):
    (tmp_path / "none" / "dev").mkdir(parents=True)
    bare = Gpu(0, tmp_path / "none")
    assert bare.nodes() == [] == bare.bubblewrap_arguments()
    assert Gpu(2, machine).bubblewrap_arguments() == [], "a GPU that there is not"
    (machine / "dev" / "nvidia0").unlink()
    assert Gpu(0, machine).nodes()[-1].name == "nvidia1", "a container may have been given the second GPU alone"
    (machine / "dev" / "dxg").touch()
    assert [path.name for path in Gpu(2, machine).nodes()] == ["dxg"], "WSL has one file for all"


def test_containers_get_one_gpu_by_the_vendors_runtime(tiny, tmp_path):
    assert Gpu(1).container_arguments("docker") == ["--gpus", "device=1"]
    assert Gpu(1).container_arguments("podman") == ["--device", "nvidia.com/gpu=1"]
    assert "--gpus" not in make_flags(tiny, "name", tmp_path / "profile")


def test_clean_processes_count_gpus_as_the_files_do():
    assert Gpu(1).environment == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "1"}


def test_the_gpu_is_the_first_that_the_process_may_see():
    assert find_gpu({}) == find_gpu({"CUDA_VISIBLE_DEVICES": ""}) == Gpu(0)
    assert find_gpu({"CUDA_VISIBLE_DEVICES": "3,1"}) == Gpu(3)
    with pytest.raises(InputError, match="GPU-1f4e"):
        find_gpu({"CUDA_VISIBLE_DEVICES": "GPU-1f4e"})


LOOK = """#| export
import os, re, resource

def double(x):
    import numpy as np
    own = os.listdir("/proc")
    maps = os.path.exists("/proc/self/maps")
    opened = os.open("/dev/nvidiactl", os.O_RDWR) >= 0
    processes = sum(name.isdigit() for name in own)
    limited = resource.getrlimit(resource.RLIMIT_DATA)[0] != resource.RLIM_INFINITY
    return np.array([maps, opened, processes == 1, limited], float)
"""


@pytest.mark.sandbox
@pytest.mark.parametrize("has", [True, False])
def test_a_job_with_a_gpu_has_its_files_a_process_table_of_its_own_and_no_cap_on_addresses(tiny, has, monkeypatch):
    """The device files stand for themselves here: /dev/null under their names."""
    made_up = [word for name in ("nvidiactl", "nvidia0") for word in ("--dev-bind", "/dev/null", f"/dev/{name}")]
    monkeypatch.setattr(Gpu, "bubblewrap_arguments", lambda self: made_up)
    look = (
        LOOK if has else LOOK.replace('os.open("/dev/nvidiactl", os.O_RDWR) >= 0', 'os.path.exists("/dev/nvidiactl")')
    )
    cell = {"cell_type": "code", "source": look, "metadata": {}}
    artifact = export_cells(parse_notebook({"cells": [cell]}, "n.ipynb"))
    order = {"name": "n", "source": artifact.source, "time_limit_s": 20.0, "memory_bytes": 1 << 30, "cpu_s": 60}
    with Sandbox(tiny, device=Gpu() if has else None) as sandbox, sandbox.job() as job:
        deadline = time.monotonic() + 240
        assert job.request("job", order, deadline=deadline).kind == "loaded"
        question = {"call": "tiny_calls:double", "uses": ["double"], "time_limit_s": 20.0}
        question |= {"memory_bytes": None, "random_seed": 0}
        answer = job.request("case", question, {"x": np.zeros(1)}, deadline=deadline)
    assert answer.kind == "answer", answer.meta
    assert answer.arrays["y"].tolist() == ([1, 1, 1, 0] if has else [0, 0, 0, 1])
