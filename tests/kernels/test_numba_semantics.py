"""A simulated kernel computes what compiled Numba computes; `python -m tests.kernels.numba_semantics` has it all."""

from __future__ import annotations

import math
import subprocess
import sys
import warnings

import numpy as np
import pytest

from mlsys_lab.errors import InputError
from mlsys_lab.kernels.numba_language import cuda
from mlsys_lab.kernels.trace.numba_simulator import record, run
from tests.kernels.numba_semantics import compare, operations
from tests.kernels.trace.numba_kernels import floats
from tests.sampling import sample


@pytest.mark.parametrize("operation", sample(operations(), 9), ids=str)
def test_an_operation_gives_the_type_and_value_of_compiled_numba(operation):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases, _, wrong = compare(*operation)
    assert cases > 0
    assert wrong == []


def test_numbers_out_of_range_stop_no_kernel():
    @cuda.jit
    def edges(x, y):
        y[0] = 1 / (1 + math.exp(1000))
        y[1] = math.log(0)
        y[2] = math.exp(x[0]) * 0
        y[3] = math.sqrt(-1)
        y[4] = x[0] / 0.0

    y = np.zeros(5)
    run(edges, 1, 1, floats(100), y)
    assert y[0] == 0 and y[1] == -math.inf and np.isnan(y[2]) and np.isnan(y[3]) and y[4] == math.inf


def test_integers_are_promoted_before_they_overflow():
    from numba import int32, int64

    @cuda.jit
    def add(x, y):
        y[0] = int32(2147483647) + int32(1)
        y[1] = x[0] + x[1]
        y[2] = int32(int64(2147483647) + 1)

    y = np.zeros(3, np.int64)
    run(add, 1, 1, np.array([2147483647, 1], np.int32), y)
    assert y.tolist() == [2147483648, 2147483648, -2147483648]


def test_a_float32_is_widened_by_a_float64_as_in_compiled_code():
    @cuda.jit
    def accumulate(x, y):
        total = 0.0
        for i in range(3):
            total += x[i]
        y[0] = total

    y = np.zeros(1)
    run(accumulate, 1, 1, floats(1, 2**-30, 2**-30), y)
    assert y[0] == 1 + 2**-29


LOWERED = """
import importlib, sys
from mlsys_lab.kernels import numba_compile
from mlsys_lab.kernels.runtime import load_numba

load_numba()

def both(x, y):
    y[0] = max(x[0], x[1])
    y[1] = min(x[0], x[1])

numba = importlib.import_module("numba")
with numba_compile._compiler():
    types = (numba.types.float32[::1],) * 2
    compiled = sys.modules["numba.cuda.compiler"].compile_cuda(both, numba.types.void, types, cc=(9, 0))
    print(compiled.library.get_llvm_str())
"""


def test_max_of_floats_passes_over_nan_as_libdevice_does():
    """`numba.cuda` calls fmaxf and fminf, unlike Numba for a processor: LLVM's text shows it."""

    def both(x, y):
        y[0] = max(x[0], x[1])
        y[1] = min(x[0], x[1])

    done = subprocess.run([sys.executable, "-W", "ignore", "-c", LOWERED], capture_output=True, text=True, check=True)
    assert "__nv_fmaxf" in done.stdout and "__nv_fminf" in done.stdout
    for pair in ((math.nan, 2), (2, math.nan)):
        y = floats(0, 0)
        run(cuda.jit(both), 1, 1, floats(*pair), y)
        assert y.tolist() == [2, 2]


def test_an_integer_divided_by_zero_stops_with_its_line():
    @cuda.jit
    def divide(n, y):
        y[0] = 7 // n

    with pytest.raises(InputError, match="ZeroDivisionError"):
        record(divide, 1, 1, 0, np.zeros(1))
