"""The kernels of lab 03 that pass in the simulator are kernels on a GPU as well: Numba compiles them for an H100."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.labs.harness import PROJECT, labs

PROGRAM = """
import json, sys
from types import SimpleNamespace
from numba import cuda, float32
from numba.cuda import dispatcher

# Kernels that others call are compiled for the current device, of which there is none.
dispatcher.get_current_device = lambda: SimpleNamespace(compute_capability=(9, 0))
ranks = [float32, float32[::1], float32[:, ::1]]
sources, kernels = json.load(sys.stdin)
found = {}
for which, source in sources.items():
    names = {}
    exec(compile(source, which, "exec"), names)
    for name, given in kernels.items():
        ptx, _ = cuda.compile_ptx(names[name].py_func, tuple(ranks[rank] for rank in given), cc=(9, 0))
        found[f"{which}: {name}"] = ptx
print(json.dumps(found))
"""
KERNELS = {
    "relu": (1, 1),
    "sgd_step": (1, 1, 0),
    "causal_mask": (2, 2),
    "outer": (1, 1, 2),
    "axpy": (0, 1, 1),
    "smooth": (1, 1),
    "dot": (1, 1, 1),
    "block_sum": (1, 1),
    "transpose": (2, 2),
    "matmul": (2, 2, 2),
}
"""The dimensions of each parameter."""
LAB = next(lab for lab in labs() if lab.info.topic == "cuda")
RIGHT = {"reference": LAB.reference} | {path.stem: LAB.with_definitions(path) for path in LAB.alternatives}


@pytest.fixture(scope="module")
def ptx() -> dict[str, str]:
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "0", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM]
    given = json.dumps([RIGHT, KERNELS])
    done = subprocess.run(command, input=given, env=environment, capture_output=True, text=True, cwd=PROJECT)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, str] = json.loads(done.stdout)
    return found


def test_all_compile(ptx: dict[str, str]) -> None:
    assert list(ptx) == [f"{which}: {name}" for which in RIGHT for name in KERNELS]
    assert all(".target sm_90" in text for text in ptx.values())


def test_the_reference_computes_in_fp32_alone(ptx: dict[str, str]) -> None:
    assert [name for name, text in ptx.items() if name.startswith("reference") and ".f64" in text] == []
