"""Kernels of labs 02 and 03 that pass in the simulator are kernels on a GPU too: Numba compiles them for an H100."""

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
found = {}
for which, source, kernels in json.load(sys.stdin):
    names = {}
    exec(compile(source, which, "exec"), names)
    for name, given in kernels.items():
        ptx, _ = cuda.compile_ptx(names[name].py_func, tuple(ranks[rank] for rank in given), cc=(9, 0))
        found[f"{which}: {name}"] = ptx
print(json.dumps(found))
"""
KERNELS = {
    "gpu-model": {"mixed": (1, 1, 1), "scale_rows": (2, 1, 2)},
    "cuda": {
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
    },
}
"""By lab: the dimensions of each parameter."""
RIGHT = [
    (f"{lab.info.topic} {which}", source, KERNELS[lab.info.topic])
    for lab in labs()
    if lab.info.topic in KERNELS
    for which, source in [("reference", lab.reference), *((p.stem, lab.with_definitions(p)) for p in lab.alternatives)]
]


@pytest.fixture(scope="module")
def ptx() -> dict[str, str]:
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "0", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM]
    given = json.dumps(RIGHT)
    done = subprocess.run(command, input=given, env=environment, capture_output=True, text=True, cwd=PROJECT)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, str] = json.loads(done.stdout)
    return found


def test_all_compile(ptx: dict[str, str]) -> None:
    assert list(ptx) == [f"{which}: {name}" for which, _, kernels in RIGHT for name in kernels]
    assert all(".target sm_90" in text for text in ptx.values())


def test_the_reference_computes_in_fp32_alone(ptx: dict[str, str]) -> None:
    assert [name for name, text in ptx.items() if " reference:" in name and ".f64" in text] == []
