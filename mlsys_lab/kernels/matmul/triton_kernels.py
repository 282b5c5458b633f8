"""C = act(A·B + bias) in Triton: one kernel with a program per tile, and two persistent ones.

Letters: A is (M, K), B is (K, N), C is (M, N). A tile of C is BLOCK_M × BLOCK_N; its sums accumulate in float32 while a
loop over K multiplies BLOCK_M × BLOCK_K tiles of A by BLOCK_K × BLOCK_N tiles of B. So A is loaded N / BLOCK_N times,
B is loaded M / BLOCK_M times, and C is stored once.

After Triton's tutorials 03 (matrix multiplication) and 09 (persistent matmul).
"""

from __future__ import annotations

from mlsys_lab.kernels.triton_language import dot, tl, triton


@triton.jit
def tile_index(program, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP_M: tl.constexpr):
    """Row and column of a program's tile in grouped order: GROUP_M rows of tiles at a time, column by column.

    Concurrent programs then share tiles of both A and B in the L2 cache. GROUP_M = 1 is row-major order, in which they
    share one row of A and load all of B.
    """
    rows, columns = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    group = program // (GROUP_M * columns)
    within = program % (GROUP_M * columns)
    group_rows = min(rows - group * GROUP_M, GROUP_M)  # the last group may have fewer rows
    return group * GROUP_M + within % group_rows, within // group_rows


@triton.jit
def activate(z, ACTIVATION: tl.constexpr):
    """Apply the activation to float32 values; gelu is the exact one, with erf."""
    if ACTIVATION == "relu":
        return tl.maximum(z, 0.0)
    if ACTIVATION == "silu":
        return z / (1.0 + tl.exp(-z))
    if ACTIVATION == "gelu":
        return 0.5 * z * (1.0 + tl.erf(z * 0.7071067811865476))  # 1 / sqrt(2)
    return z


@triton.jit
def add_bias(z, bias_ptr, columns, N, BIAS: tl.constexpr):
    """Add the bias of the columns to z, where there is one."""
    if BIAS:
        z += tl.load(bias_ptr + columns, mask=columns < N, other=0.0).to(tl.float32)[None, :]
    return z


@triton.jit
def tile_product(
    a_ptr, b_ptr, m, n, M, N, K, stride_am, stride_ak, stride_bk, stride_bn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute the tile (m, n) of A·B; strides are in elements. EVEN: no tile crosses an edge."""
    offs_m, offs_n, offs_k = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
    # 64-bit offset of the tile's corner: M·K may exceed 2³¹. Within the tile, 32 bits are enough.
    a_ptrs = a_ptr + m.to(tl.int64) * BLOCK_M * stride_am + (offs_m[:, None] * stride_am + offs_k[None, :] * stride_ak)
    b_ptrs = b_ptr + n.to(tl.int64) * BLOCK_N * stride_bn + (offs_k[:, None] * stride_bk + offs_n[None, :] * stride_bn)
    accumulator = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, K, BLOCK_K):
        if EVEN:
            a = tl.load(a_ptrs)
            b = tl.load(b_ptrs)
        else:
            a = tl.load(a_ptrs, mask=(offs_m < M - m * BLOCK_M)[:, None] & (offs_k < K - k)[None, :], other=0.0)
            b = tl.load(b_ptrs, mask=(offs_k < K - k)[:, None] & (offs_n < N - n * BLOCK_N)[None, :], other=0.0)
        accumulator = dot(a, b, accumulator, PRECISION)
        a_ptrs += BLOCK_K * stride_ak
        b_ptrs += BLOCK_K * stride_bk
    return accumulator


@triton.jit
def store_tile(
    z, c_ptr, z_ptr, bias_ptr, m, n, M, N,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    ACTIVATION: tl.constexpr, BIAS: tl.constexpr, SAVE_INPUT: tl.constexpr,
):  # fmt: skip
    """Apply bias and activation in registers and store the tile. SAVE_INPUT: store the activation's input too."""
    rows, columns = m * BLOCK_M + tl.arange(0, BLOCK_M), n * BLOCK_N + tl.arange(0, BLOCK_N)
    mask = (rows < M)[:, None] & (columns < N)[None, :]
    offsets = rows.to(tl.int64)[:, None] * N + columns[None, :]
    z = add_bias(z, bias_ptr, columns, N, BIAS)
    if SAVE_INPUT:
        tl.store(z_ptr + offsets, z.to(z_ptr.dtype.element_ty), mask=mask)
    tl.store(c_ptr + offsets, activate(z, ACTIVATION).to(c_ptr.dtype.element_ty), mask=mask)


@triton.jit
def tile_kernel(
    a_ptr, b_ptr, c_ptr, z_ptr, bias_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, EVEN: tl.constexpr,
    PRECISION: tl.constexpr, ACTIVATION: tl.constexpr, BIAS: tl.constexpr, SAVE_INPUT: tl.constexpr,
):  # fmt: skip
    """Product with one tile of C per program."""
    m, n = tile_index(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)
    z = tile_product(
        a_ptr, b_ptr, m, n, M, N, K, stride_am, stride_ak, stride_bk, stride_bn,
        BLOCK_M, BLOCK_N, BLOCK_K, EVEN, PRECISION,
    )  # fmt: skip
    store_tile(z, c_ptr, z_ptr, bias_ptr, m, n, M, N, BLOCK_M, BLOCK_N, ACTIVATION, BIAS, SAVE_INPUT)


@triton.jit
def persistent_kernel(
    a_ptr, b_ptr, c_ptr, z_ptr, bias_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, EVEN: tl.constexpr,
    PRECISION: tl.constexpr, ACTIVATION: tl.constexpr, BIAS: tl.constexpr, SAVE_INPUT: tl.constexpr,
):  # fmt: skip
    """Product by persistent programs, one per multiprocessor: the next tile's loads start while this one is stored."""
    tiles = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=True):
        m, n = tile_index(tile, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        z = tile_product(
            a_ptr, b_ptr, m, n, M, N, K, stride_am, stride_ak, stride_bk, stride_bn,
            BLOCK_M, BLOCK_N, BLOCK_K, EVEN, PRECISION,
        )  # fmt: skip
        store_tile(z, c_ptr, z_ptr, bias_ptr, m, n, M, N, BLOCK_M, BLOCK_N, ACTIVATION, BIAS, SAVE_INPUT)


@triton.jit
def descriptor_kernel(
    a_ptr, b_ptr, c_ptr, z_ptr, bias_ptr, M, N, K, a_stride, b_stride,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    A_TRANSPOSED: tl.constexpr, B_TRANSPOSED: tl.constexpr,
    PRECISION: tl.constexpr, ACTIVATION: tl.constexpr, BIAS: tl.constexpr, SAVE_INPUT: tl.constexpr,
):  # fmt: skip
    """Product with tensor descriptors: Hopper's copy engine (TMA) loads tiles and handles the matrix edges.

    Threads compute no addresses and hold no pointers; elements past an edge are loaded as zeros. An A that is stored
    transposed is loaded through a descriptor of Aᵀ and transposed on its way into the tensor cores; B likewise.
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
    if SAVE_INPUT:
        z_tiles = tl.make_tensor_descriptor(z_ptr, [M, N], [N, 1], [BLOCK_M, HALF])
    tiles = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=True):
        m, n = tile_index(tile, M, N, BLOCK_M, BLOCK_N, GROUP_M)
        row, column = m * BLOCK_M, n * BLOCK_N
        accumulator = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for k in range(0, K, BLOCK_K):
            a = a_tiles.load([k, row]).T if A_TRANSPOSED else a_tiles.load([row, k])
            b = b_tiles.load([column, k]).T if B_TRANSPOSED else b_tiles.load([k, column])
            accumulator = dot(a, b, accumulator, PRECISION)
        # Storing the tile in two halves takes half the shared memory: more stages fit.
        left, right = accumulator.reshape(BLOCK_M, 2, HALF).permute(0, 2, 1).split()
        for half in tl.static_range(2):
            columns = column + half * HALF + tl.arange(0, HALF)
            z = add_bias(left if half == 0 else right, bias_ptr, columns, N, BIAS)
            if SAVE_INPUT:
                z_tiles.store([row, column + half * HALF], z.to(z_ptr.dtype.element_ty))
            c_tiles.store([row, column + half * HALF], activate(z, ACTIVATION).to(c_ptr.dtype.element_ty))
