"""Launch the learner's kernels for lab 04's checks: grids, blocks and launches as the tasks fix them.

Kernels run under the recorder: what outputs then hold, and what the launch did to memory, comes back as arrays. At the
end is what is timed on a GPU: kernels compiled, at sizes of real models, with tiles that fit the shared memory of any
GPU since the T4.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch

from mlsys_checks.sandboxed.findings import collect_findings
from mlsys_checks.sandboxed.kernels.loading import load_kernels
from mlsys_checks.sandboxed.lending import lend
from mlsys_checks.sandboxed.spec import Arrays
from mlsys_checks.sandboxed.values import whole
from mlsys_lab.errors import InputError
from mlsys_lab.kernels.trace.events import Trace
from mlsys_lab.kernels.trace.traffic import times_read, writers
from mlsys_lab.kernels.trace.triton_interpreter import record
from mlsys_lab.kernels.triton_compile import check_compiles
from mlsys_lab.kernels.triton_launch import launch
from mlsys_lab.stack.artifact import Artifact

Tensor = torch.Tensor

PROGRAMS = "program of each element"
"""Answer: number of the program that stored each element of a result."""
FLOATS = re.compile(r"\bf(?:16|32|64)\b")
"""Types in Triton's IR of a kernel that does more than integer arithmetic."""
NAN_READS = "elements read that are NaN"
"""Answer: how many elements of the KV cache were read that held NaN before the launch."""
MIN_SIDE = 16
"""Smallest side of a tile: tensor cores take no smaller one."""
TILE_INDEX = """
@triton.jit
def tile_index(program, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP_M: tl.constexpr):
    columns = tl.cdiv(N, BLOCK_N)
    above = program // (GROUP_M * columns) * GROUP_M
    height = tl.minimum(tl.cdiv(M, BLOCK_M) - above, GROUP_M)
    rest = program - above * columns
    return above + rest % height, rest // height
"""
"""Lent to the learner's product, so that a mistake in the order of tiles costs points once."""


def blocks(size: int, block: int) -> int:
    """Return how many blocks cover `size`."""
    return -(-size // block)


def power_of_two(size: int) -> int:
    """Return the smallest power of two that is at least `size`."""
    return 1 << max(size - 1, 0).bit_length()


def _tensors(arrays: Arrays) -> dict[str, Tensor]:
    """Return the case's arrays as tensors, without its single numbers."""
    return {name: torch.from_numpy(array) for name, array in arrays.items() if array.ndim}


def _unwritten(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return a result before the launch: NaN, or -1 for integers."""
    return torch.full(shape, torch.nan if dtype.is_floating_point else -1, dtype=dtype)


def _result_like(given: Tensor, arrays: Arrays) -> Tensor:
    """Return an unwritten result of a tensor's shape and, unless the case says float32 by `wide`, of its dtype."""
    return _unwritten(*given.shape, dtype=torch.float32 if arrays["wide"] else given.dtype)


def _launch(
    artifact: Any, kernel: str, grid: int | Sequence[int], *args: Any, outputs: dict[str, Tensor], **constants: Any
) -> tuple[Arrays, Trace]:
    """Launch a kernel of the learner's under the recorder; return results and findings, and the trace.

    Outputs come back under their parameters' names without `_ptr`. Raises `InputError` for a kernel that the
    interpreter runs but the compiler for a GPU refuses.
    """
    trace = record(getattr(artifact, kernel), grid, *args, outputs=tuple(outputs), **constants)
    check_compiles(getattr(artifact, kernel), *args, **constants)
    results: Arrays = {name.removesuffix("_ptr"): value.numpy() for name, value in outputs.items()}
    return {**results, **collect_findings(trace, artifact)}, trace


def silu_mul(artifact: Any, arrays: Arrays) -> Arrays:
    """Launch `silu_mul_kernel`; also return which program stored each element."""
    t, block = _tensors(arrays), int(arrays["BLOCK"])
    y, n = _result_like(t["gate"], arrays), t["gate"].numel()
    inputs = (t["gate"], t["up"], y, n)
    got, trace = _launch(artifact, "silu_mul_kernel", blocks(n, block), *inputs, outputs={"y_ptr": y}, BLOCK=block)
    return {**got, PROGRAMS: writers(trace, "y_ptr")}


def softmax(artifact: Any, arrays: Arrays) -> Arrays:
    """Launch `softmax_kernel`."""
    x = _tensors(arrays)["x"]
    y, (rows, D) = _result_like(x, arrays), x.shape
    return _launch(artifact, "softmax_kernel", rows, x, y, D, outputs={"y_ptr": y}, BLOCK=power_of_two(D))[0]


def rms_norm(artifact: Any, arrays: Arrays) -> Arrays:
    """Launch `rms_norm_kernel`: the norm, and r of each row."""
    t = _tensors(arrays)
    x, (rows, D) = t["x"], t["x"].shape
    outputs = {"y_ptr": _result_like(x, arrays), "r_ptr": _unwritten(rows)}
    inputs = (x, t["w"], *outputs.values(), D, float(arrays["eps"]))
    return _launch(artifact, "rms_norm_kernel", rows, *inputs, outputs=outputs, BLOCK=power_of_two(D))[0]


def rms_norm_backward(artifact: Any, arrays: Arrays) -> Arrays:
    """Launch both kernels of the backward pass: dx, partial sums of `programs` programs, and dw from these."""
    t, programs = _tensors(arrays), int(arrays["programs"])
    N, D = t["x"].shape
    outputs = {"dx_ptr": _result_like(t["x"], arrays), "partials_ptr": _unwritten(programs, D)}
    inputs = (t["dy"], t["x"], t["w"], t["r"], *outputs.values(), N, D)
    sizes = {"BLOCK": power_of_two(D)}
    first, _ = _launch(artifact, "rms_norm_backward_kernel", programs, *inputs, outputs=outputs, **sizes)
    dw, block = _result_like(t["w"], arrays), int(arrays["BLOCK_of_sum_rows"])
    given = (outputs["partials_ptr"], dw, programs, D)
    second, _ = _launch(artifact, "sum_rows_kernel", blocks(D, block), *given, outputs={"dw_ptr": dw}, BLOCK=block)
    return {**first, **second}


def order(artifact: Any, arrays: Arrays) -> Arrays:
    """Launch `order_kernel`: the program of each tile. Raises `InputError` for floats on the way."""
    sizes = {name: int(arrays[name]) for name in ("M", "N", "BLOCK_M", "BLOCK_N", "GROUP_M")}
    M, N = sizes.pop("M"), sizes.pop("N")
    programs = _unwritten(blocks(M, sizes["BLOCK_M"]), blocks(N, sizes["BLOCK_N"]), dtype=torch.int32)
    outputs = {"programs_ptr": programs}
    got, _ = _launch(artifact, "order_kernel", programs.numel(), programs, M, N, outputs=outputs, **sizes)
    if floats := FLOATS.search(check_compiles(artifact.order_kernel, programs, M, N, **sizes)):
        expected = "integers only: `//` and `%`, since a GPU rounds the quotient of `/`"
        raise InputError("`tile_index` computes with floats", got=f"a number of type {floats[0]}", expected=expected)
    return got


@cache
def _right_order() -> Any:
    return load_kernels(Artifact.parse("tile_index", TILE_INDEX)).tile_index


def matmul(artifact: Any, arrays: Arrays) -> Arrays:
    """Launch `matmul_kernel` with a right `tile_index`; also return which program stored each element.

    `a_transposed`, `b_transposed`: this factor's columns are contiguous; `padded`: rows of both are further apart.
    """
    t = _tensors(arrays)
    a, b = (_lay_out(t[name], bool(arrays[f"{name}_transposed"]), bool(arrays["padded"])) for name in ("a", "b"))
    (M, K), N = a.shape, b.shape[1]
    c = _result_like(a.new_empty(M, N), arrays)
    inputs = (a, b, c, M, N, K, *a.stride(), *b.stride())
    sizes = {name: int(arrays[name]) for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M")}
    programs = blocks(M, sizes["BLOCK_M"]) * blocks(N, sizes["BLOCK_N"])
    with lend(artifact, tile_index=_right_order()):
        got, trace = _launch(artifact, "matmul_kernel", programs, *inputs, outputs={"c_ptr": c}, **sizes)
    return {**got, PROGRAMS: writers(trace, "c_ptr")}


def _lay_out(x: Tensor, transposed: bool, padded: bool) -> Tensor:
    if padded:
        rows = x.new_full((len(x), x.shape[1] + 5), torch.nan)
        rows[:, :-5] = x
        return rows[:, :-5]
    return x.T.contiguous().T if transposed else x


def attention_bytes(artifact: Any, arrays: Arrays) -> Arrays:
    """Call both predictions for each row (S, D, block) of the case."""
    found: Arrays = {}
    for sizes in arrays["sizes"].tolist():
        for name in ("naive_attention_bytes", "flash_attention_bytes"):
            found[f"{name}({', '.join(map(str, sizes))})"] = whole(name, getattr(artifact, name)(*sizes))
    return found


def flash(artifact: Any, arrays: Arrays) -> Arrays:
    """Launch `flash_kernel`: output and log-sum-exp."""
    t, (block_m, block_n) = _tensors(arrays), (int(arrays[name]) for name in ("BLOCK_M", "BLOCK_N"))
    heads, S, D = t["q"].shape
    outputs = {"out_ptr": _unwritten(heads, S, D, dtype=t["q"].dtype), "lse_ptr": _unwritten(heads, S)}
    inputs = (t["q"], t["k"], t["v"], *outputs.values(), S, D, float(arrays["scale"]))
    sizes = {"BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_D": max(MIN_SIDE, power_of_two(D))}
    return _launch(artifact, "flash_kernel", (blocks(S, block_m), heads), *inputs, outputs=outputs, **sizes)[0]


def decode(artifact: Any, arrays: Arrays) -> Arrays:
    """Launch `decode_kernel`; also return how many slots without a token it read."""
    t = _tensors(arrays)
    (sequences, heads, D), (_, block_size, kv_heads, _) = t["q"].shape, t["k"].shape
    out = _result_like(t["q"], arrays)
    cache = (t["k"], t["v"], t["block_table"], t["seq_lens"])
    inputs = (t["q"], *cache, out, t["block_table"].shape[1], float(arrays["scale"]))
    sizes = {"D": D, "GROUP": heads // kv_heads, "BLOCK_SIZE": block_size}
    got, trace = _launch(artifact, "decode_kernel", (sequences, kv_heads), *inputs, outputs={"out_ptr": out}, **sizes)
    named = {buffer.name for buffer in trace.buffers} & {"k_ptr", "v_ptr"}
    reads = [(times_read(trace, name) > 0)[np.isnan(arrays[name[0]])].sum() for name in sorted(named)]
    return {**got, NAN_READS: np.array(sum(map(int, reads)))}


# --- timed on a GPU ---------------------------------------------------------------------------------------------------

ROWS, COLUMNS = 8192, 4096
"""Shape of the softmax's input, float32."""
REPEATS, WEIGHT = 16, 100.0
"""Softmaxes of a call, and how much of one is added to the input of the next, so that none can be left out."""
SIDE = 8192
"""Side of the product's square matrices, float16."""
HEADS, TOKENS, WIDTH = 32, 8192, 64
"""Shape of attention's queries, keys and values, float16, causal."""


def make_softmax(seed: int, device: str) -> tuple[Tensor]:
    """Draw a softmax's input, (ROWS, COLUMNS)."""
    return (_drawn(seed, device, 1, ROWS, COLUMNS, dtype=torch.float32)[0],)


def timed_softmax(artifact: Any, x: Tensor) -> Tensor:
    """Compute the softmax of each row `REPEATS` times, each time of the input and the result before."""
    (rows, columns), y = x.shape, torch.empty_like(x)
    for i in range(REPEATS):
        given = torch.add(x, y, alpha=WEIGHT) if i else x
        sizes: dict[str, Any] = {"BLOCK": power_of_two(columns), "num_warps": 8}
        launch(artifact.softmax_kernel, (rows,), x.device, given, y, columns, **sizes)
    return y


def make_matmul(seed: int, device: str) -> tuple[Tensor, ...]:
    """Draw both factors of a product, (SIDE, SIDE)."""
    return _drawn(seed, device, 2, SIDE, SIDE)


def timed_matmul(artifact: Any, a: Tensor, b: Tensor) -> Tensor:
    """Compute A·B by the learner's kernel and `tile_index`."""
    (M, K), N = a.shape, b.shape[1]
    c = a.new_empty(M, N)
    inputs = (a, b, c, M, N, K, *a.stride(), *b.stride())
    tile: dict[str, Any] = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 32, "GROUP_M": 8}
    grid = (blocks(M, 128) * blocks(N, 128),)
    launch(artifact.matmul_kernel, grid, a.device, *inputs, **tile, num_warps=8, num_stages=3)
    return c


def make_flash(seed: int, device: str) -> tuple[Tensor, ...]:
    """Draw queries, keys and values, (HEADS, TOKENS, WIDTH)."""
    return _drawn(seed, device, 3, HEADS, TOKENS, WIDTH)


def timed_flash(artifact: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute the output of causal attention."""
    heads, S, D = q.shape
    out, lse = torch.empty_like(q), q.new_empty(heads, S, dtype=torch.float32)
    inputs = (q, k, v, out, lse, S, D, D**-0.5)
    tile: dict[str, Any] = {"BLOCK_M": 128, "BLOCK_N": 64, "BLOCK_D": power_of_two(D)}
    grid = (blocks(S, 128), heads)
    launch(artifact.flash_kernel, grid, q.device, *inputs, **tile, num_warps=4, num_stages=2)
    return out


def _drawn(seed: int, device: str, count: int, *shape: int, dtype: torch.dtype = torch.float16) -> tuple[Tensor, ...]:
    """Draw `count` tensors of normal numbers from the seed."""
    generator = torch.Generator(device).manual_seed(seed)
    return tuple(torch.randn(shape, generator=generator, device=device, dtype=dtype) for _ in range(count))
