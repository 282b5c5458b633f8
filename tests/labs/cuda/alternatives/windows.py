"""Loops where the reference has branches: a window loaded in strides, neighbours for a block, a tree in two arrays."""

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


@cuda.jit
def block_sum(x, sums):
    """A block takes neighbouring elements; the tree goes back and forth between two arrays."""
    part = cuda.shared.array((2, THREADS), float32)
    t, block = cuda.threadIdx.x, cuda.blockIdx.x
    each = (x.size + cuda.gridDim.x - 1) // cuda.gridDim.x
    mine = float32(0)
    for i in range(block * each + t, min(x.size, (block + 1) * each), THREADS):
        mine += x[i]
    part[0, t] = mine
    now, half = 0, THREADS // 2
    cuda.syncthreads()
    while half >= 1:
        if t < half:
            part[1 - now, t] = part[now, t] + part[now, t + half]
        now, half = 1 - now, half // 2
        cuda.syncthreads()
    if t == 0:
        sums[block] = part[now, 0]


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
