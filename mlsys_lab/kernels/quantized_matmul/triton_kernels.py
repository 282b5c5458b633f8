"""y = x·Wᵀ in Triton with W dequantized in registers: int8 codes with a scale per output, int4 codes with groups.

Letters: x is (M, K), y is (M, N); N outputs, K inputs, G groups of K/G inputs. A tile of y is BLOCK_M × BLOCK_N; a
loop over K loads BLOCK_N × BLOCK_K codes, converts them to the dtype of x, and multiplies them with a tile of x. So all
codes are loaded M / BLOCK_M times: once for a decode step of up to BLOCK_M tokens.
"""

from __future__ import annotations

from mlsys_lab.kernels.triton_language import dot, tl, triton


@triton.jit
def int8_kernel(
    x_ptr, codes_ptr, scale_ptr, y_ptr, M, N, K, stride_x,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Product with weights code · scale[output]: the scale is applied to the sums, after the loop."""
    rows, columns = tile_offsets(BLOCK_M, BLOCK_N)
    offs_k = tl.arange(0, BLOCK_K)
    x_ptrs = x_ptr + rows.to(tl.int64)[:, None] * stride_x + offs_k[None, :]
    code_ptrs = codes_ptr + columns.to(tl.int64)[:, None] * K + offs_k[None, :]
    accumulator = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, K, BLOCK_K):
        inputs = (offs_k < K - k)[None, :]
        x = tl.load(x_ptrs, mask=(rows < M)[:, None] & inputs, other=0.0)
        codes = tl.load(code_ptrs, mask=(columns < N)[:, None] & inputs, other=0)
        accumulator = dot(x, codes.to(x.dtype).T, accumulator, PRECISION)
        x_ptrs += BLOCK_K
        code_ptrs += BLOCK_K
    scale = tl.load(scale_ptr + columns, mask=columns < N, other=0.0).to(tl.float32)
    store_tile(accumulator * scale[None, :], y_ptr, rows, columns, M, N)


@triton.jit
def int4_kernel(
    x_ptr, packed_ptr, scale_ptr, zero_point_ptr, y_ptr, M, N, K, stride_x,
    GROUP: tl.constexpr, SIGNED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Product with weights (code - zero point) · scale; BLOCK_K divides GROUP, and so K. SIGNED: no zero points."""
    rows, columns = tile_offsets(BLOCK_M, BLOCK_N)
    offs_k, offs_byte = tl.arange(0, BLOCK_K), tl.arange(0, BLOCK_K // 2)
    outputs = columns.to(tl.int64)
    x_ptrs = x_ptr + rows.to(tl.int64)[:, None] * stride_x + offs_k[None, :]
    byte_ptrs = packed_ptr + outputs[:, None] * (K // 2) + offs_byte[None, :]
    groups = outputs * (K // GROUP)
    accumulator = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, K, BLOCK_K):
        x = tl.load(x_ptrs, mask=(rows < M)[:, None], other=0.0)
        packed = tl.load(byte_ptrs, mask=(columns < N)[:, None], other=0)
        scale = tl.load(scale_ptr + groups + k // GROUP, mask=columns < N, other=0.0).to(tl.float32)
        if SIGNED:
            packed ^= 0x88  # flips the sign bits: a code in two's complement becomes the code + 8
            zero_point = tl.full((BLOCK_N,), 8, tl.int32)
        else:
            zero_point = tl.load(zero_point_ptr + groups + k // GROUP, mask=columns < N, other=0).to(tl.int32)
        codes = tl.join(packed & 15, packed >> 4).reshape(BLOCK_N, BLOCK_K).to(tl.int32)  # low halves first
        weights = (codes - zero_point[:, None]).to(tl.float32) * scale[:, None]
        accumulator = dot(x, weights.to(x.dtype).T, accumulator, PRECISION)
        x_ptrs += BLOCK_K
        byte_ptrs += BLOCK_K // 2
    store_tile(accumulator, y_ptr, rows, columns, M, N)


@triton.jit
def tile_offsets(BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Rows and columns of a program's tile."""
    return tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M), tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)


@triton.jit
def store_tile(y, y_ptr, rows, columns, M, N):
    """Store a tile of y (M, N) in its dtype."""
    offsets = rows.to(tl.int64)[:, None] * N + columns[None, :]
    tl.store(y_ptr + offsets, y.to(y_ptr.dtype.element_ty), mask=(rows < M)[:, None] & (columns < N)[None, :])
