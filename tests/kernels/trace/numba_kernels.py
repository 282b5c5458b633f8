"""What tests of the simulator share: a kernel of one line, arrays for it, and columns of a trace."""

from __future__ import annotations

import numpy as np

from mlsys_lab.kernels.numba_language import cuda


def floats(*values):
    return np.asarray(values, np.float32)


def columns(trace, *names):
    return [tuple(int(row[name]) for name in names) for row in trace.accesses]


@cuda.jit
def add(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] + y[i]
