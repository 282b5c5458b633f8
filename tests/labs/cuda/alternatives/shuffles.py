"""Registers and shuffles where the reference uses shared memory, loops where it has branches."""

EVERY_LANE = 0xFFFFFFFF
WARPS = 4  # of a block
LENGTH: int = THREADS + 2
PITCH = TILE + 1


@cuda.jit
def sgd_step(weights: "float32[:]", gradient: "float32[:]", learning_rate: "float32") -> "None":
    for i in range(cuda.grid(1), weights.size, cuda.gridsize(1)):
        weights[i] = weights[i] - learning_rate * gradient[i]


@cuda.jit
def outer(u, v, out):
    column, row = cuda.grid(2)
    while row < u.size:
        if column < v.size:
            out[row, column] = v[column] * u[row]
        row += cuda.gridsize(2)[1]


@cuda.jit
def axpy(a, x, y):
    i = cuda.grid(1)
    while i < x.size:
        old = y[i]
        y[i] = old + a * x[i]
        i += cuda.blockDim.x * cuda.gridDim.x


@cuda.jit
def smooth(x, y):
    window = cuda.shared.array(LENGTH, float32)
    first = THREADS * cuda.blockIdx.x - 1
    for k in range(cuda.threadIdx.x, LENGTH, THREADS):
        at = first + k
        window[k] = x[at] if 0 <= at < x.size else float32(0)
    cuda.syncthreads()
    i = cuda.grid(1)
    if i < x.size:
        total = float32(0)
        for k in range(3):
            total += window[cuda.threadIdx.x + k]
        y[i] = total / 3


@cuda.jit(device=True)
def warp_total(value):
    for power in range(5):
        value += cuda.shfl_xor_sync(EVERY_LANE, value, 1 << power)
    return value


@cuda.jit
def dot(x, y, out):
    of_warps = cuda.shared.array(WARPS, float32)
    t = cuda.threadIdx.x
    mine = x[t] * y[t] if t < x.size else float32(0)
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
def transpose(x, y):
    """The turn is made when the tile is filled."""
    tile = cuda.shared.array((TILE, PITCH), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    for k in range(ty, TILE, cuda.blockDim.y):
        row, column = cuda.blockIdx.y * TILE + k, cuda.blockIdx.x * TILE + tx
        if row < x.shape[0] and column < x.shape[1]:
            tile[tx, k] = x[row, column]
    cuda.syncthreads()
    for k in range(ty, TILE, cuda.blockDim.y):
        row, column = cuda.blockIdx.x * TILE + k, cuda.blockIdx.y * TILE + tx
        if row < y.shape[0] and column < y.shape[1]:
            y[row, column] = tile[k, tx]
