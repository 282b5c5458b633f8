"""The microscope: record and analyse every load and store of a kernel on a machine without a GPU.

It takes your own kernels unchanged. For Numba, `record` takes the kernel, the number of blocks, the threads of a block,
and the arguments, which should be small arrays; `outputs` names those that the kernel fills. For Triton, `record` in
`triton_interpreter` takes the grid and then the arguments of a launch.

>>> import numpy as np
>>> from numba import cuda
>>> from mlsys_lab.kernels.trace.numba_simulator import record
>>> from mlsys_lab.kernels.trace.report import report
>>> @cuda.jit
... def every_third(x, y):
...     i = cuda.grid(1)
...     y[i] = x[3 * i]
>>> found = report(record(every_third, 2, 32, np.ones(189), np.zeros(64), outputs="y"))
>>> for line in (*found.problems, *found.costs):
...     print(line)
line 4 `y[i] = x[3 * i]`: 1 of 64 threads read beyond the end of x (first: block 1 thread 31, element 189 of 189)
line 4 `y[i] = x[3 * i]`: warps read x in up to 24 sectors a request where 8 would do (first: block 0 warp 0)

`print(report(…))` shows the figures too, and in a notebook `Accesses.from_trace(record(…))`, of
`mlsys_lab.widgets.accesses`, shows which thread accesses which element, request by request.
"""
