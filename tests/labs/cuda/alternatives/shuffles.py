"""Registers where the reference uses shared memory: sums by shuffles in a warp; indices worked out by hand."""

EVERY_LANE = 0xFFFFFFFF
WARPS = 4  # of a block


@cuda.jit
def relu(x, y):
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    value = x[i]
    if value < 0:
        value = float32(0)
    y[i] = value


@cuda.jit
def causal_mask(scores, masked):
    row = cuda.blockIdx.y * cuda.blockDim.y + cuda.threadIdx.y
    column = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if row >= masked.shape[0] or column >= masked.shape[1]:
        return
    masked[row, column] = scores[row, column] if column <= row else -math.inf


@cuda.jit(device=True)
def warp_total(value):
    for power in range(5):
        value += cuda.shfl_xor_sync(EVERY_LANE, value, 1 << power)
    return value


@cuda.jit
def dot(a, b, out):
    of_warps = cuda.shared.array(WARPS, float32)
    t = cuda.threadIdx.x
    mine = a[t] * b[t] if t < a.size else float32(0)
    mine = warp_total(mine)
    if t % 32 == 0:
        of_warps[t // 32] = mine
    cuda.syncthreads()
    if t == 0:
        out[0] = of_warps[0] + of_warps[1] + of_warps[2] + of_warps[3]


@cuda.jit
def block_sum(x, sums):
    of_warps = cuda.shared.array(WARPS, float32)
    t = cuda.threadIdx.x
    mine = float32(0)
    i = cuda.grid(1)
    while i < x.size:
        mine += x[i]
        i += cuda.gridsize(1)
    mine = warp_total(mine)
    if t % 32 == 0:
        of_warps[t // 32] = mine
    cuda.syncthreads()
    if t < 32:
        mine = of_warps[t] if t < WARPS else float32(0)
        mine = warp_total(mine)
        if t == 0:
            sums[cuda.blockIdx.x] = mine


@cuda.jit
def matmul(a, b, c):
    a_tile = cuda.shared.array((16, 16), float32)
    b_tile = cuda.shared.array((16, 16), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    row, column = cuda.blockIdx.y * 16 + ty, cuda.blockIdx.x * 16 + tx
    total = float32(0)
    for step in range((b.shape[0] + 15) // 16):
        k = step * 16
        value = float32(0)
        if row < a.shape[0] and k + tx < a.shape[1]:
            value = a[row, k + tx]
        a_tile[ty, tx] = value
        value = float32(0)
        if k + ty < b.shape[0] and column < b.shape[1]:
            value = b[k + ty, column]
        b_tile[ty, tx] = value
        cuda.syncthreads()
        for j in range(16):
            total = total + a_tile[ty, j] * b_tile[j, tx]
        cuda.syncthreads()
    if row < c.shape[0] and column < c.shape[1]:
        c[row, column] = total
