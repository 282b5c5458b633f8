"""Warps that part and meet again: both sides of a branch store, loops run from the end, lanes skip turns."""


@cuda.jit
def relu(x, y):
    i = cuda.grid(1)
    value = x[i]
    if value > 0:
        y[i] = value
    else:
        y[i] = 0


@cuda.jit
def sgd_step(w, g, rate):
    """The last element first, and indices below 0, which count from the end."""
    i = -1 - cuda.grid(1)
    if i < -w.size:
        return
    w[i] -= rate * g[i]


@cuda.jit
def causal_mask(scores, masked):
    column, row = cuda.grid(2)
    if row >= scores.shape[0] or column >= scores.shape[1]:
        return
    if column > row:
        masked[row][column] = -math.inf
    else:
        masked[row][column] = scores[row][column]


@cuda.jit
def axpy(a, x, y):
    for i in range(y.size - 1 - cuda.grid(1), -1, -cuda.gridsize(1)):
        y[i] += a * x[i]


@cuda.jit
def smooth(x, y):
    near = cuda.shared.array(WINDOW, float32)
    first = THREADS * cuda.blockIdx.x - 1
    k = cuda.threadIdx.x
    while True:
        if k >= WINDOW:
            break
        i = first + k
        k += THREADS
        if i < 0 or i >= x.size:
            near[i - first] = 0
            continue
        near[i - first] = x[i]
    cuda.syncthreads()
    i, t = cuda.grid(1), cuda.threadIdx.x
    if i < x.size:
        total = float32(0)
        for k in range(2, -1, -1):
            total += near[t + k]
        y[i] = total / 3


@cuda.jit
def block_sum(x, sums):
    """The last warp of the tree waits for itself alone."""
    part = cuda.shared.array(THREADS, float32)
    t = cuda.threadIdx.x
    mine = float32(0)
    for turn in range((x.size + cuda.gridsize(1) - 1) // cuda.gridsize(1)):
        i = cuda.grid(1) + turn * cuda.gridsize(1)
        if i >= x.size:
            continue
        mine += x[i]
    part[t] = mine
    cuda.syncthreads()
    half = THREADS // 2
    while half >= 32:
        if t < half:
            part[t] += part[t + half]
        cuda.syncthreads()
        half //= 2
    if t < 32:
        while half > 0:
            if t < half:
                part[t] += part[t + half]
            cuda.syncwarp()
            half //= 2
    if t == 0:
        sums[cuda.blockIdx.x] = part[0]
