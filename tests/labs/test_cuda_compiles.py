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
source, kernels = json.load(sys.stdin)
names = {}
exec(compile(source, "artifact", "exec"), names)
print(json.dumps({
    name: cuda.compile_ptx(names[name].py_func, tuple(ranks[rank] for rank in given), cc=(9, 0))[0]
    for name, given in kernels.items()
}))
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


@pytest.mark.parametrize("source", RIGHT.values(), ids=RIGHT.keys())
def test_all_kernels_compile_and_the_reference_computes_in_fp32_alone(source: str) -> None:
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "0", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM]
    given = json.dumps([source, KERNELS])
    done = subprocess.run(command, input=given, env=environment, capture_output=True, text=True, cwd=PROJECT)
    assert done.returncode == 0, done.stderr[-2000:]
    ptx: dict[str, str] = json.loads(done.stdout)
    assert list(ptx) == list(KERNELS)
    assert all(".target sm_90" in text for text in ptx.values())
    if source == LAB.reference:
        assert [name for name, text in ptx.items() if ".f64" in text] == []
