"""Extra points of lab 03 for its kernels in CUDA C++ on a GPU, as ratios to torch's in the same run.

Targets follow from bounds, and none has been measured on a GPU yet. A transpose can be as fast as memory, and so can
torch's; but with each round of 16 come inputs to draw and an output to add up, together some 5 passes over a matrix
beside 32, and these count against the learner (`Performance` says why): 0.85 is the most for one as fast as torch's.
Shared memory without padding takes a warp 32 passes for a column, which leaves it about half the speed. Of the product,
threads that make 4 × 4 elements ask shared memory 8 times for 16 multiply-adds, number by number, and so reach half of
the fp32 peak, where the library reaches about three quarters; with one element each it is an eighth.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlsys_checks.sandboxed.cuda import timed
from mlsys_checks.sandboxed.performance import Performance, Work

if TYPE_CHECKING:
    from torch import Tensor


def library_transpose(x: Tensor) -> Tensor:
    """torch's copy of a transpose, as often as the learner's."""
    for _ in range(timed.TURNS):
        x = x.T.contiguous().view(x.shape)
    return x


def library_matmul(a: Tensor, b: Tensor) -> Tensor:
    """cuBLAS, through torch; in full fp32, since torch uses TF32 only where it is told to."""
    return a.mm(b)


TRANSPOSE = Performance(
    points=2,
    make=timed.make_transpose,
    call=timed.transpose,
    library=library_transpose,
    start=0.4,
    target=0.7,
    work=Work(size_bytes=timed.TURNS * 2 * 4 * timed.TURNED[0] * timed.TURNED[1]),
)

MATMUL = Performance(
    points=4,
    make=timed.make_matmul,
    call=timed.matmul,
    library=library_matmul,
    start=0.15,
    target=0.4,
    work=Work(size_bytes=3 * 4 * timed.EDGE**2, flops=2 * timed.EDGE**3, precision="fp32"),
)
