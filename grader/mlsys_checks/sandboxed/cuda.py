"""Calls of lab 03: kernels launched and recorded, predictions, kernels in CUDA C++ emulated and timed.

torch is imported where it is used: most calls need none. So is what counts accesses, which predictions may not see.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mlsys_checks.sandboxed.kernel_sources import source_of
from mlsys_checks.sandboxed.spec import Arrays
from mlsys_checks.sandboxed.trees import Tree, flatten
from mlsys_checks.sandboxed.values import count, decode_text, parts, whole
from mlsys_lab.errors import InputError
from mlsys_lab.kernels.trace.cells import locate_in_cells
from mlsys_lab.kernels.trace.events import LOAD, STORE, Trace
from mlsys_lab.kernels.trace.faults import UNWRITTEN
from mlsys_lab.kernels.trace.requests import busiest_block, busiest_thread, find_worst

if TYPE_CHECKING:
    from torch import Tensor

    from mlsys_lab.kernels.cuda_cpp import Launcher

Extent = int | tuple[int, int]

THREADS = 128
"""Threads of a block, in tasks with one dimension."""
WIDE, HIGH = 32, 4
"""Threads of a block along x and y, in Task 2."""
TILE, ROWS = 32, 8
"""Side of the square that a block transposes, and its rows of threads."""
SIDE = 16
"""Side of the matrix product's tiles and blocks."""


def blocks(elements: int, threads: int) -> int:
    """Blocks that have a thread for each element."""
    return -(-elements // threads)


def _over(shape: tuple[int, int], wide: int, high: int) -> tuple[int, int]:
    return blocks(shape[1], wide), blocks(shape[0], high)


class Launch(NamedTuple):
    """How a kernel is launched: the task's names of its arguments, and what depends on these.

    `shape` is that of a new array for the output; None: the output is among the arguments and changed in place.
    """

    names: tuple[str, ...]
    grid: Callable[[Arrays], Extent]
    block: Extent
    output: str
    shape: Callable[[Arrays], int | tuple[int, ...]] | None = None


LAUNCHES = {
    "relu": Launch(("x",), lambda a: a["x"].size // THREADS, THREADS, "y", lambda a: a["x"].shape),
    "sgd_step": Launch(("w", "g", "lr"), lambda a: blocks(a["w"].size, THREADS), THREADS, "w"),
    "causal_mask": Launch(
        ("scores",),
        lambda a: _over(a["scores"].shape, WIDE, HIGH),
        (WIDE, HIGH),
        "masked",
        lambda a: a["scores"].shape,
    ),
    "outer": Launch(
        ("u", "v"),
        lambda a: _over((a["u"].size, a["v"].size), WIDE, HIGH),
        (WIDE, HIGH),
        "out",
        lambda a: (a["u"].size, a["v"].size),
    ),
    "axpy": Launch(("a", "x", "y"), lambda a: int(a["blocks"]), THREADS, "y"),
    "smooth": Launch(("x",), lambda a: blocks(a["x"].size, THREADS), THREADS, "y", lambda a: a["x"].shape),
    "dot": Launch(("x", "y"), lambda a: 1, THREADS, "out", lambda a: 1),
    "block_sum": Launch(("x",), lambda a: int(a["blocks"]), THREADS, "sums", lambda a: int(a["blocks"])),
    "transpose": Launch(
        ("x",), lambda a: _over(a["x"].shape, TILE, TILE), (TILE, ROWS), "y", lambda a: a["x"].shape[::-1]
    ),
    "matmul": Launch(
        ("a", "b"),
        lambda a: _over((len(a["a"]), a["b"].shape[1]), SIDE, SIDE),
        (SIDE, SIDE),
        "c",
        lambda a: (len(a["a"]), a["b"].shape[1]),
    ),
}
"""By kernel, in the order of the tasks."""
TOTAL = "sums.sum()"


def launch(artifact: Any, arrays: Arrays) -> Arrays:
    """What one launch left in its output, under that name, and all that was counted.

    Of `block_sum` it is the total: which block adds which element is the learner's choice.
    """
    from mlsys_lab.kernels.numba_record import parameters_of, record_launch

    kernel = decode_text(arrays["kernel"])
    plan = LAUNCHES[kernel]
    given: dict[str, Any] = {name: arrays[name].copy()[()] for name in plan.names}
    if plan.shape is not None:
        given[plan.output] = np.empty(plan.shape(arrays), np.float32)
    parameters = parameters_of(artifact, kernel)
    if len(parameters) != len(given):
        raise InputError(f"`{kernel}` has the wrong parameters", got=", ".join(parameters), expected=", ".join(given))
    if sorted(parameters) == sorted(given) and parameters != [*given]:
        what = f"`{kernel}` has its parameters in another order"
        raise InputError(what, got=", ".join(parameters), expected=", ".join(given))
    outputs = () if plan.shape is None else (parameters[-1],)
    trace = record_launch(artifact, kernel, plan.grid(arrays), plan.block, *given.values(), outputs=outputs)
    names = [name for name, value in given.items() if isinstance(value, np.ndarray) and value.ndim]
    result = {plan.output: given[plan.output]}
    if kernel == "block_sum":
        result = {TOTAL: np.array(given["sums"].sum(dtype=np.float64), np.float32)}
    return {**result, **figures(trace, artifact, names)}


WRONG, COUNTS = "wrong", "counts"
"""Branches among a launch's arrays: sentences by what is wrong, counts by their kind and what they are of."""
READS, WRITES, OVER, ACCESSES, REQUESTS = "reads", "writes", "over", "accesses", "requests"
"""Kinds of counts: of an array; excess sectors, passes or turns; of one thread, and of one block, to a memory."""
SENTENCES = 2
"""Sentences of a kind in a message; one mistake mostly shows in several places."""


def figures(trace: Trace, artifact: Any, names: Iterable[str]) -> Arrays:
    """All figures of a launch of one of the artifact's kernels; `names` are the task's for its arrays, in order.

    Lines are counted within their cell.
    """
    from mlsys_lab.kernels.trace.report import report

    trace = locate_in_cells(trace, artifact)
    found = report(trace)
    races = [one for one in found.races if not one.equal]  # of equal values either may be the last
    wrong = {
        "outside": _first(one.sentence for one in found.faults if one.what != UNWRITTEN),
        "barriers": _first([one.sentence for one in found.divergences] or found.missed),
        "races": _first(one.sentence for one in races if not one.between_blocks),
        "races of blocks": _first(one.sentence for one in races if one.between_blocks),
        "unwritten": _first(one.sentence for one in found.faults if one.what == UNWRITTEN),
    }
    counts: Tree = {READS: {}, WRITES: {}}
    for name, one in zip(names, found.traffic, strict=True):
        touched = trace.of(space="global", buffer=one.buffer)
        for way, other in ((READS, STORE), (WRITES, LOAD)):
            rows = touched[touched["kind"] != other]
            counts[way][name] = _count(len(rows), _by_line(trace, rows))
    counts[OVER] = {
        "sectors": _count(*find_worst(found.coalescing, "sectors")),
        "passes": _count(*find_worst(found.conflicts, "passes")),
        "turns": _count(*find_worst(found.contention, "turns")),
    }
    counts[ACCESSES] = {space: _count(*busiest_thread(trace, space)) for space in ("global", "shared")}
    counts[REQUESTS] = {space: _count(*busiest_block(trace, space)) for space in ("global", "shared")}
    return flatten({WRONG: wrong, COUNTS: counts})


def _first(sentences: Iterable[str]) -> str:
    return "\n".join(list(sentences)[:SENTENCES])


def _count(count: int, at: str) -> dict[str, int | str]:
    """A count, and where it arises."""
    return {"count": count, "at": at}


def _by_line(trace: Trace, rows: np.ndarray) -> str:
    """The number of rows by line of source, in words."""
    numbers, counts = np.unique(rows["site"], return_counts=True)
    return ", ".join(f"{trace.sites[n]} {count:,} times" for n, count in zip(numbers, counts.tolist(), strict=True))


PREDICTED = {
    "predict_transpose": ("sectors of x", "sectors of y"),
    "predict_matmul": ("sectors of a", "sectors of b", "sectors of c"),
    "predict_loads": ("loads of a", "loads of b"),
}
"""What each function predicts, in its order. An array by a function's name holds calls of it, a row of sizes each."""


def predict(artifact: Any, arrays: Arrays) -> Arrays:
    """Every count that is asked for, as a text, by its name and its call."""
    found = {}
    for function, sizes in arrays.items():
        for row in sizes.tolist() if function in PREDICTED else ():
            got = parts(function, getattr(artifact, function)(*row), *PREDICTED[function])
            for name, one in zip(name_answers(function, row), got, strict=True):
                found[name] = count(name, one)
    return found


def write_call(function: str, row: Iterable[int]) -> str:
    """A call of a function, as code."""
    return f"{function}({', '.join(map(str, row))})"


def name_answers(function: str, row: list[int]) -> list[str]:
    """Names of what one call predicts."""
    return [f"{part} in {write_call(function, row)}" for part in PREDICTED[function]]


ARCH = "sm_90"
"""A GPU that texts in CUDA C++ are compiled for."""
OTHER_ORDER = "{}, last to first"
EVERY = 3
"""One block of this many is left out, so that no other block can do its work."""
MOST_BLOCKS_DOWN = 65_535
"""Blocks that a grid may have along y."""


def is_run(x: Any, y: Any, skipped: int) -> Any:
    """Which blocks, by their x and y, are run: all where `skipped` is no remainder."""
    return (x + 2 * y) % EVERY != skipped


def side_of(artifact: Any) -> int:
    """CPP_TILE; InputError where it is no side of a square."""
    tile = int(whole("CPP_TILE", artifact.CPP_TILE))
    if not 1 <= tile <= 1 << 20:
        raise InputError("CPP_TILE is no side of a tile", got=tile, expected="a whole number from 1 on")
    return tile


def plan_cpp(artifact: Any, kernel: str, sizes: tuple[int, ...]) -> tuple[tuple[int, int], tuple[int, int]]:
    """Grid and block of a kernel in CUDA C++ for its numbers: (rows, columns) or (m, n, k)."""
    if kernel == "transpose":
        return _over((sizes[0], sizes[1]), TILE, TILE), (TILE, ROWS)
    tile = side_of(artifact)
    return _over((sizes[0], sizes[1]), tile, tile), (SIDE, SIDE)


def transpose_cpp(artifact: Any, arrays: Arrays) -> Arrays:
    """What `transpose` leaves in y in either order, with some of the blocks; of large matrices in the last tile."""
    if "sizes" not in arrays:
        return _emulate_some(artifact, "transpose", arrays, arrays["x"].shape)
    rows, columns = sizes = tuple(arrays["sizes"].tolist())
    held = [
        (arrays["x"], (rows - TILE) * columns + columns - TILE, columns),
        (arrays["y"], (columns - TILE) * rows + rows - TILE, rows),
    ]
    return _emulate_last(artifact, "transpose", held, sizes, "y")


def matmul_cpp(artifact: Any, arrays: Arrays) -> Arrays:
    """What `matmul` leaves in c in either order, with some of the blocks; and the side of a block's square.

    Of large matrices it is the last element of c: all rows of their a are one row, all columns of their b one column.
    """
    tile, (_, k) = side_of(artifact), arrays["a"].shape
    if "sizes" not in arrays:
        found = _emulate_some(artifact, "matmul", arrays, (len(arrays["a"]), arrays["b"].shape[1], k))
        return found | {"CPP_TILE": np.array(tile)}
    m, n = arrays["sizes"].tolist()
    m = min(m, MOST_BLOCKS_DOWN * tile)
    top, left = (m - 1) // tile * tile, (n - 1) // tile * tile
    pitch = n if n % 1024 == 0 else 0  # rows are held in pages of memory, or whole
    left = left if pitch else 0
    held = [
        (np.broadcast_to(arrays["a"], (m - top, k)), top * k, 0),
        (np.broadcast_to(arrays["b"], (k, n - left)), left, pitch),
        (np.broadcast_to(arrays["c"], (m - top, n - left)), top * n + left, pitch),
    ]
    found = _emulate_last(artifact, "matmul", held, (m, n, k), "c")
    return {name: values[-1:, -1:] for name, values in found.items()} | {"CPP_TILE": np.array(tile)}


def _emulate_some(artifact: Any, kernel: str, arrays: Arrays, sizes: tuple[int, ...]) -> Arrays:
    """What a kernel leaves in its last matrix, with the blocks that are not skipped; its text has to compile too."""
    from mlsys_lab.kernels.cuda_cpp import compile_cuda

    compile_cuda(source_of(artifact, f"{kernel}_cpp"), (kernel,), name=f"{kernel}.cu", arch=ARCH)
    grid, _ = plan_cpp(artifact, kernel, sizes)
    y, x = np.divmod(np.arange(math.prod(grid)), grid[0])
    some = np.flatnonzero(is_run(x, y, int(arrays["skipped"]))).tolist()
    matrices = {name: array for name, array in arrays.items() if array.ndim}
    return _emulate(artifact, kernel, list(matrices.values()), sizes, list(matrices)[-1], blocks=some)


def _emulate_last(
    artifact: Any, kernel: str, held: list[tuple[np.ndarray, int, int]], sizes: tuple[int, ...], output: str
) -> Arrays:
    """What the last block leaves in the last of some matrices, of which parts are `held`.

    A part is its values, the element of the matrix that they start with, and the length of the matrix's rows.
    """
    from mlsys_lab.kernels.cuda_cpp import Part

    last = math.prod(plan_cpp(artifact, kernel, sizes)[0]) - 1
    which = {"blocks": [last], "parts": [Part(first, pitch) for _, first, pitch in held]}
    return _emulate(artifact, kernel, [values for values, _, _ in held], sizes, output, **which)


def _emulate(
    artifact: Any, kernel: str, matrices: list[np.ndarray], sizes: tuple[int, ...], output: str, **which: Any
) -> Arrays:
    """What a kernel leaves in the last of some matrices, threads first to last and last to first."""
    import torch

    from mlsys_lab.kernels.cuda_cpp import Emulator, Source

    source, found = Source(source_of(artifact, f"{kernel}_cpp"), f"{kernel}.cu"), {}
    for name, last_first in ((output, False), (OTHER_ORDER.format(output), True)):
        tensors = [torch.from_numpy(np.array(values, order="C")) for values in matrices]
        grid, block = plan_cpp(artifact, kernel, sizes)
        Emulator(reversed=last_first, **which)(source, kernel, grid, block, *tensors, *sizes)
        found[name] = tensors[-1].numpy()
    return found


TURNED = (8160, 8224)
"""Rows and columns of the fp32 matrix that is transposed; no powers of two, whose transposes in a row are one."""
TURNS = 16
"""Transposes of a timed call, each of the elements in the order in which the one before left them."""
EDGE = 4096
"""Rows and columns of both factors of the timed product, fp32."""


def make_transpose(seed: int, device: str) -> tuple[Tensor, ...]:
    """Draw a matrix of shape `TURNED`."""
    return _draw(seed, device, 1, TURNED)


def time_transpose(artifact: Any, x: Tensor, *, launch: Launcher | None = None) -> Tensor:
    """x (rows, columns) transposed `TURNS` times, the result taken as (rows, columns) each time."""
    rows, columns = x.shape
    for _ in range(TURNS):
        y = x.new_empty(columns, rows)
        _launch_cpp(artifact, "transpose", (x, y), (rows, columns), launch)
        x = y.view(rows, columns)
    return x


def make_matmul(seed: int, device: str) -> tuple[Tensor, ...]:
    """Draw two factors of a product, each (EDGE, EDGE)."""
    return _draw(seed, device, 2, (EDGE, EDGE))


def time_matmul(artifact: Any, a: Tensor, b: Tensor, *, launch: Launcher | None = None) -> Tensor:
    """a · b, for a (m, k) and b (k, n)."""
    (m, k), n = a.shape, b.shape[1]
    c = a.new_empty(m, n)
    _launch_cpp(artifact, "matmul", (a, b, c), (m, n, k), launch)
    return c


def _launch_cpp(
    artifact: Any, kernel: str, tensors: tuple[Tensor, ...], sizes: tuple[int, ...], launch: Launcher | None
) -> None:
    """Launch on the GPU, or by what stands in for one."""
    from mlsys_lab.kernels.cuda_cpp import Source
    from mlsys_lab.kernels.cuda_cpp import launch as on_gpu

    source = Source(source_of(artifact, f"{kernel}_cpp"), f"{kernel}.cu")
    (launch or on_gpu)(source, kernel, *plan_cpp(artifact, kernel, sizes), *tensors, *sizes)


def _draw(seed: int, device: str, count: int, shape: tuple[int, int]) -> tuple[Tensor, ...]:
    """Matrices of normal numbers, all of them from the seed."""
    import torch

    generator = torch.Generator(device).manual_seed(seed)
    return tuple(torch.randn(shape, generator=generator, device=device) for _ in range(count))
