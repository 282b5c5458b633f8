"""A kernel's Python function in the simulator: what its text may name, and who calls whom."""

from __future__ import annotations

from types import FunctionType

import numpy as np
import pytest

from mlsys_lab.errors import InputError
from mlsys_lab.kernels.numba_language import cuda, float32
from mlsys_lab.kernels.trace.numba_simulator import record, run
from tests.kernels.trace.numba_kernels import add, columns, floats

HALF = 2


def test_a_shape_that_numba_would_not_take():
    @cuda.jit
    def padded(out):
        tile = cuda.shared.array((HALF, HALF + 1), float32)
        out[0] = tile[0, 0]

    @cuda.jit(device=True)
    def as_wide_as_the_block():
        return cuda.local.array(shape=cuda.blockDim.x, dtype=float32)[0]

    @cuda.jit
    def calls(out):
        out[0] = as_wide_as_the_block()

    @cuda.jit
    def by_a_variable(out):
        wide = out.size
        tile = cuda.shared.array((HALF, wide), float32)
        out[0] = tile[0, 0]

    for kernel, inner, below in ((padded, padded, 2), (calls, as_wide_as_the_block, 2), (by_a_variable,) * 2 + (3,)):
        line = inner.py_func.__code__.co_firstlineno + below
        with pytest.raises(InputError) as error:
            run(kernel, 1, 1, floats(0))
        assert str(error.value) == (
            f"{__file__}:{line}: the shape of a shared or local array has to be a constant; "
            "help: a number of the module, such as PITCH = TILE + 1 outside of the kernel"
        )


def test_shapes_that_numba_takes():
    @cuda.jit
    def constants(x, out):
        rows = HALF
        first = cuda.shared.array((rows, 2 * 4), float32)
        second = cuda.local.array(shape=HALF, dtype=x.dtype)
        first[1, 7] = second[0] = x[0 + 1]
        out[0] = first[1, 7] + second[0]

    out = floats(0)
    run(constants, 1, 1, floats(1, 2), out)
    assert out[0] == 4


def test_a_device_function_is_told_apart_by_who_calls_it():
    @cuda.jit(device=True)
    def first_of(x):
        return x[0]

    @cuda.jit
    def caller(x, y, out):
        out[0] = first_of(x) + HALF * first_of(y)

    out = floats(0)
    trace = record(caller, 1, 2, floats(1), floats(2), out)
    assert out[0] == 5
    assert columns(trace, "request", "buffer") == [(0, 0), (0, 0), (1, 1), (1, 1), (2, 2), (2, 2)]
    assert [site.text for site in trace.sites] == ["return x[0]", "out[0] = first_of(x) + HALF * first_of(y)"]


def test_an_array_from_outside_is_refused():
    table = floats(1, 2)

    @cuda.jit
    def looks_up(out):
        out[0] = table[1]

    with pytest.raises(InputError, match="looks_up reads the array table from outside; help: pass it as an argument"):
        run(looks_up, 1, 1, floats(0))


def test_numba_still_has_what_the_simulator_takes_from_it():
    """Where this fails, a new Numba has moved what `numba_functions` and `numba_grid` lean on: mend it there."""
    import numba
    from numba.np.numpy_support import as_dtype

    assert isinstance(add.py_func, FunctionType), "a kernel's Python function was under `py_func`"
    assert add.py_func.__globals__["cuda"].__name__ == "numba.cuda"
    assert isinstance(float32, numba.types.Type) and as_dtype(float32) == np.float32, (
        "as_dtype gave a type's NumPy dtype"
    )
