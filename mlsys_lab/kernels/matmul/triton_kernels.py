"""C = act(A·B + bias) in Triton: one kernel that gives each program one tile, and two whose programs stay.

Letters: A is (M, K), B is (K, N), C is (M, N). A tile of C is BLOCK_M × BLOCK_N; its sums are kept in float32 while a
loop over K multiplies a BLOCK_M × BLOCK_K tile of A with a BLOCK_K × BLOCK_N tile of B. So A is read N / BLOCK_N times,
B is read M / BLOCK_M times, and C is written once.

After Triton's tutorials 03 (matrix multiplication) and 09 (persistent matmul).
"""

from __future__ import annotations

from mlsys_lab.kernels.tiles import dot
from mlsys_lab.kernels.triton_language import tl, triton


@triton.jit
def tile_of(program, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP_M: tl.constexpr):
    """Row and column of a program's tile: GROUP_M rows of tiles at a time, column by column within them.

    Programs that run at once then share the tiles of both A and B that they read, and find them in the L2 cache.
    GROUP_M = 1 is row after row, where they share one row of A and read all of B.
    """
    rows, columns = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    group = program // (GROUP_M * columns)
    within = program % (GROUP_M * columns)
    height = min(rows - group * GROUP_M, GROUP_M)  # the last group may be lower
    return group * GROUP_M + within % height, within // height


@triton.jit
def activated(z, ACTIVATION: tl.constexpr):
    """Apply the activation to float32 values; gelu is the exact one, with erf."""
    if ACTIVATION == "relu":
        return tl.maximum(z, 0.0)
    if ACTIVATION == "silu":
        return z / (1.0 + tl.exp(-z))
    if ACTIVATION == "gelu":
        return 0.5 * z * (1.0 + tl.erf(z * 0.7071067811865476))  # 1 / sqrt(2)
    return z


@triton.jit
def with_bias(z, bias_ptr, columns, N, BIAS: tl.constexpr):
    """Add the bias of the columns to z, where there is one."""
    if BIAS:
        z += tl.load(bias_ptr + columns, mask=columns < N, other=0.0).to(tl.float32)[None, :]
    return z


@triton.jit
def product(
    a_ptr, b_ptr, m, n, M, N, K, a_m, a_k, b_k, b_n,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute the tile (m, n) of A·B; `a_m` … `b_n` are strides in elements. EVEN: no tile reaches over an edge."""
    in_m, in_n, in_k = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
    # The tile's corner in 64 bits: M·K may pass 2³¹. Within the tile, 32 bits do.
    a_ptrs = a_ptr + m.to(tl.int64) * BLOCK_M * a_m + (in_m[:, None] * a_m + in_k[None, :] * a_k)
    b_ptrs = b_ptr + n.to(tl.int64) * BLOCK_N * b_n + (in_k[:, None] * b_k + in_n[None, :] * b_n)
    accumulator = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, K, BLOCK_K):
        if EVEN:
            a = tl.load(a_ptrs)
            b = tl.load(b_ptrs)
        else:
            a = tl.load(a_ptrs, mask=(in_m < M - m * BLOCK_M)[:, None] & (in_k < K - k)[None, :], other=0.0)
            b = tl.load(b_ptrs, mask=(in_k < K - k)[:, None] & (in_n < N - n * BLOCK_N)[None, :], other=0.0)
        accumulator = dot(a, b, accumulator, PRECISION)
        a_ptrs += BLOCK_K * a_k
        b_ptrs += BLOCK_K * b_k
    return accumulator


@triton.jit
def store(
    z, c_ptr, z_ptr, bias_ptr, m, n, M, N,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, ACTIVATION: tl.constexpr, BIAS: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """Apply bias and activation while the tile is in registers, and store it. KEEP: the activation's input as well."""
    rows, columns = m * BLOCK_M + tl.arange(0, BLOCK_M), n * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = (rows < M)[:, None] & (columns < N)[None, :]
    offsets = rows.to(tl.int64)[:, None] * N + columns[None, :]
    z = with_bias(z, bias_ptr, columns, N, BIAS)
    if KEEP:
        tl.store(z_ptr + offsets, z.to(z_ptr.dtype.element_ty), mask=inside)
    tl.store(c_ptr + offsets, activated(z, ACTIVATION).to(c_ptr.dtype.element_ty), mask=inside)


@triton.jit
def tile_kernel(
    a_ptr, b_ptr, c_ptr, z_ptr, bias_ptr, M, N, K, a_m, a_k, b_k, b_n,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, EVEN: tl.constexpr,
    PRECISION: tl.constexpr, ACTIVATION: tl.constexpr, BIAS: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """Product where each program makes one tile of C."""
    m, n = tile_of(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)
    z = product(a_ptr, b_ptr, m, n, M, N, K, a_m, a_k, b_k, b_n, BLOCK_M, BLOCK_N, BLOCK_K, EVEN, PRECISION)
    store(z, c_ptr, z_ptr, bias_ptr, m, n, M, N, BLOCK_M, BLOCK_N, ACTIVATION, BIAS, KEEP)


@triton.jit
def persistent_kernel(
    a_ptr, b_ptr, c_ptr, z_ptr, bias_ptr, M, N, K, a_m, a_k, b_k, b_n,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, EVEN: tl.constexpr,
    PRECISION: tl.constexpr, ACTIVATION: tl.constexpr, BIAS: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """Product by as many programs as multiprocessors, tile after tile: the next one's loads begin as this is stored."""
    tiles = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=True):
        m, n = tile_of(tile, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        z = product(a_ptr, b_ptr, m, n, M, N, K, a_m, a_k, b_k, b_n, BLOCK_M, BLOCK_N, BLOCK_K, EVEN, PRECISION)
        store(z, c_ptr, z_ptr, bias_ptr, m, n, M, N, BLOCK_M, BLOCK_N, ACTIVATION, BIAS, KEEP)


@triton.jit
def descriptor_kernel(
    a_ptr, b_ptr, c_ptr, z_ptr, bias_ptr, M, N, K, a_stride, b_stride,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    A_TRANSPOSED: tl.constexpr, B_TRANSPOSED: tl.constexpr,
    PRECISION: tl.constexpr, ACTIVATION: tl.constexpr, BIAS: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """Product by tensor descriptors: Hopper's copy engine (TMA) fetches whole tiles and knows where the matrix ends.

    Threads compute no addresses and hold no pointers, and what lies past an edge arrives as zeros. An A that is stored
    transposed is read through a descriptor of Aᵀ and turned on its way into the tensor cores; B likewise.
    """
    if A_TRANSPOSED:
        a_tiles = tl.make_tensor_descriptor(a_ptr, [K, M], [a_stride, 1], [BLOCK_K, BLOCK_M])
    else:
        a_tiles = tl.make_tensor_descriptor(a_ptr, [M, K], [a_stride, 1], [BLOCK_M, BLOCK_K])
    if B_TRANSPOSED:
        b_tiles = tl.make_tensor_descriptor(b_ptr, [N, K], [b_stride, 1], [BLOCK_N, BLOCK_K])
    else:
        b_tiles = tl.make_tensor_descriptor(b_ptr, [K, N], [b_stride, 1], [BLOCK_K, BLOCK_N])
    HALF: tl.constexpr = BLOCK_N // 2
    c_tiles = tl.make_tensor_descriptor(c_ptr, [M, N], [N, 1], [BLOCK_M, HALF])
    if KEEP:
        z_tiles = tl.make_tensor_descriptor(z_ptr, [M, N], [N, 1], [BLOCK_M, HALF])
    tiles = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=True):
        m, n = tile_of(tile, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        row, column = m * BLOCK_M, n * BLOCK_N
        accumulator = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for k in range(0, K, BLOCK_K):
            a = a_tiles.load([k, row]).T if A_TRANSPOSED else a_tiles.load([row, k])
            b = b_tiles.load([column, k]).T if B_TRANSPOSED else b_tiles.load([k, column])
            accumulator = dot(a, b, accumulator, PRECISION)
        # Two halves, one after the other, take half the shared memory on their way out: more stages fit.
        left, right = accumulator.reshape(BLOCK_M, 2, HALF).permute(0, 2, 1).split()
        for half in tl.static_range(2):
            columns = column + half * HALF + tl.arange(0, HALF)
            z = with_bias(left if half == 0 else right, bias_ptr, columns, N, BIAS)
            if KEEP:
                z_tiles.store([row, column + half * HALF], z.to(z_ptr.dtype.element_ty))
            c_tiles.store([row, column + half * HALF], activated(z, ACTIVATION).to(c_ptr.dtype.element_ty))
