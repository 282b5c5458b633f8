"""Every kernel of Numba compiles for an H100, in a process of its own where Numba does not simulate.

The simulator takes what Python takes, Numba takes less: a shared array's shape has to be a constant, not a sum of two.
Nothing is run: what comes out is PTX, in which loads, multiply-adds and precision can be looked up.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from mlsys_checks.sandboxed.kernels.definitions import kernels_of

PROGRAM = """
import importlib, json, sys
from types import SimpleNamespace
from numba import cuda, float32, void
from numba.cuda import dispatcher

# Kernels that others call are compiled for the current device, of which there is none.
dispatcher.get_current_device = lambda: SimpleNamespace(compute_capability=(9, 0))
ranks = {1: float32[::1], 2: float32[:, ::1], 3: float32[:, :, ::1]}
found = {}
for module, kernels in json.loads(sys.argv[1]).items():
    steps = importlib.import_module(f"mlsys_lab.kernels.{module}.numba_steps")
    for name, given in kernels.items():
        signature = void(*(ranks[rank] for rank in given))
        ptx, _ = cuda.compile(getattr(steps, name).py_func, signature, cc=(9, 0), device=False, abi="numba")
        found[f"{module}.{name}"] = ptx
print(json.dumps(found))
"""

KERNELS: dict[str, dict[str, tuple[int, ...]]] = {
    "vector_add": dict.fromkeys(["naive", "grid_stride"], (1, 1, 1)),
    "grey": dict.fromkeys(["interleaved", "planar"], (3, 2)),
    "transpose": dict.fromkeys(["naive", "tiled", "padded"], (2, 2)),
    "reduction": dict.fromkeys(
        ["interleaved", "strided", "sequential", "first_add", "warp_shuffle", "grid_stride"], (1, 1)
    ),
    "matmul": dict.fromkeys(["naive", "coalesced", "shared_tile", "register_tile_1d", "register_tile_2d"], (2, 2, 2)),
    "puzzles": {
        **dict.fromkeys(["each", "guard", "blocks", "shared", "pooling"], (1, 1)),
        **dict.fromkeys(["both", "dot", "convolution"], (1, 1, 1)),
        **{"plane": (2, 2), "broadcast": (1, 1, 2), "axis_sum": (2, 1)},
    },
}
"""By module and kernel, the dimensions of each parameter."""


@pytest.fixture(scope="module")
def ptx() -> Mapping[str, str]:
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "0", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, json.dumps(KERNELS)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, str] = json.loads(done.stdout)
    return found


def test_all_compile(ptx):
    assert list(ptx) == [f"{module}.{name}" for module, kernels in KERNELS.items() for name in kernels]
    assert all(".target sm_90" in text for text in ptx.values())


def test_none_computes_in_double_precision(ptx):
    assert not [name for name, text in ptx.items() if ".f64" in text]


def test_local_arrays_end_in_registers(ptx):
    assert not [name for name, text in ptx.items() if "ld.local" in text or "st.local" in text]


def test_shuffles_and_shared_memory_are_what_they_are_called(ptx):
    assert "shfl.sync.down" in ptx["reduction.warp_shuffle"]
    assert "ld.shared" not in ptx["matmul.coalesced"] and "ld.shared" in ptx["matmul.shared_tile"]


def test_a_register_tile_multiplies_all_pairs_at_once(ptx):
    assert ptx["matmul.register_tile_2d"].count("fma.rn.f32") % 16 == 0


@pytest.mark.parametrize("module", ["vector_add", "transpose", "reduction", "matmul"])
def test_the_ladders_are_written_in_the_language_of_traced_kernels(module):
    steps = importlib.import_module(f"mlsys_lab.kernels.{module}.numba_steps")
    assert set(kernels_of(inspect.getsource(steps)).kernels) >= set(KERNELS[module])


def test_no_kernel_is_left_out():
    for module, kernels in KERNELS.items():
        steps = importlib.import_module(f"mlsys_lab.kernels.{module}.numba_steps")
        called = {"warp_sum", "block_sum", "fetch"}  # by other kernels, and compiled with them
        own = {name for name, value in vars(steps).items() if hasattr(value, "py_func")} - called
        assert own == set(kernels)
