"""Kernels out of a learner's module: what is none, the names of parameters, and where a launch stops."""

from __future__ import annotations

import re
import sys

import pytest

from mlsys_lab.errors import InputError
from mlsys_lab.kernels.numba_language import cuda
from mlsys_lab.kernels.numba_record import parameters_of, record_launch
from tests.kernels.trace.numba_kernels import add, floats  # noqa: F401

HERE = sys.modules[__name__]


@cuda.jit
def divides(x, y):
    i = cuda.grid(1)
    y[i] = x[i % (i - i)]


def plain(x, y):
    """Nobody made a kernel of this."""


def test_parameters_are_those_of_the_definition():
    assert parameters_of(HERE, "add") == ["x", "y", "out"]


def test_a_plain_function_is_refused():
    with pytest.raises(InputError, match="`plain` is no kernel: got a plain function"):
        parameters_of(HERE, "plain")


def test_a_launch_is_recorded_and_changes_its_arrays():
    out = floats(0, 0)
    trace = record_launch(HERE, "add", 1, 2, floats(1, 2), floats(3, 4), out, outputs=("out",))
    assert (out.tolist(), trace.kernel, trace.threads) == ([4, 6], "add", 2)


def test_what_stops_a_launch_is_told_with_its_line():
    with pytest.raises(
        InputError, match=re.escape("`y[i] = x[i % (i - i)]`: divides stops in thread (0, 0, 0)")
    ) as told:
        record_launch(HERE, "divides", 1, 1, floats(1), floats(0), outputs=("y",))
    assert __file__ not in str(told.value)
