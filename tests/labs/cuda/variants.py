"""Mistakes that learners make in the lab on CUDA kernels, as changes of the reference."""

from mlsys_grader.proving.variants import Variant

# Pieces of the reference that several mistakes replace.
SERIAL = """\
    if t == 0:
        total = float32(0)
        for i in range(a.size):
            total += products[i]
        out[0] = total
"""
TREE = """\
    half = THREADS // 2
    while half > 0:
        if t < half:
            part[t] += part[t + half]
        cuda.syncthreads()
        half //= 2
"""
WRITE_TILE = """\
        if left + k < y.shape[0] and top + tx < y.shape[1]:
            y[left + k, top + tx] = tile[tx, k]
"""
STRIDES = """\
    for i in range(cuda.grid(1), y.size, cuda.gridsize(1)):
        y[i] += a * x[i]
"""

MAPS = [
    Variant(
        "every block begins anew",
        "    i = cuda.grid(1)\n    y[i] = max(",
        "    i = cuda.threadIdx.x\n    y[i] = max(",
        ("relu",),
    ),
    Variant(
        "blocks overlap by all but one thread",
        "    i = cuda.grid(1)\n    y[i] = max(",
        "    i = cuda.blockIdx.x + cuda.threadIdx.x\n    y[i] = max(",
        ("relu",),
    ),
    Variant(
        "the minimum for the maximum",
        "y[i] = max(x[i], float32(0))",
        "y[i] = min(x[i], float32(0))",
        ("relu",),
    ),
    Variant(
        "x is loaded for the comparison and again for the value",
        "    y[i] = max(x[i], float32(0))\n",
        "    y[i] = x[i] if x[i] > 0 else float32(0)\n",
        ("relu",),
    ),
    Variant(
        "one thread does everything",
        """\
    i = cuda.grid(1)
    y[i] = max(x[i], float32(0))
""",
        """\
    if cuda.grid(1) == 0:
        for i in range(x.size):
            y[i] = max(x[i], float32(0))
""",
        ("relu",),
    ),
    Variant(
        "every thread does everything",
        """\
    i = cuda.grid(1)
    y[i] = max(x[i], float32(0))
""",
        """\
    for i in range(x.size):
        y[i] = max(x[i], float32(0))
""",
        ("relu",),
    ),
    Variant(
        "no guard",
        """\
    if i < w.size:
        w[i] -= rate * g[i]
""",
        "    w[i] -= rate * g[i]\n",
        ("sgd_step",),
    ),
    Variant("the guard lets one thread too many pass", "if i < w.size:", "if i <= w.size:", ("sgd_step",)),
    Variant(
        "the guard stops one thread too many",
        "if i < w.size:",
        "if i < w.size - 1:",
        ("sgd_step",),
    ),
    Variant(
        "the gradient is loaded before the guard",
        """\
    if i < w.size:
        w[i] -= rate * g[i]
""",
        """\
    step = rate * g[i]
    if i < w.size:
        w[i] -= step
""",
        ("sgd_step",),
    ),
    Variant("uphill", "w[i] -= rate * g[i]", "w[i] += rate * g[i]", ("sgd_step",)),
    Variant(
        "the guard compares with the threads of a block",
        "if i < w.size:",
        "if cuda.threadIdx.x < w.size:",
        ("sgd_step",),
    ),
]

DIMENSIONS = [
    Variant(
        "neighbouring threads in neighbouring rows",
        "    column, row = cuda.grid(2)\n    if row < scores",
        "    row, column = cuda.grid(2)\n    if row < scores",
        ("causal_mask",),
    ),
    Variant(
        "the upper half is kept",
        "        if column <= row:\n",
        "        if column >= row:\n",
        ("causal_mask",),
    ),
    Variant(
        "scores are masked where they stand, too",
        "            masked[row, column] = -math.inf\n",
        "            masked[row, column] = scores[row, column] = -math.inf\n",
        ("causal_mask",),
    ),
    Variant("a query does not see itself", "if column <= row:", "if column < row:", ("causal_mask",)),
    Variant(
        "the rows are not guarded",
        "if row < scores.shape[0] and column < scores.shape[1]:",
        "if column < scores.shape[1]:",
        ("causal_mask",),
    ),
    Variant(
        "the columns are not guarded: they wrap into the next row",
        "if row < scores.shape[0] and column < scores.shape[1]:",
        "if row < scores.shape[0]:",
        ("causal_mask",),
    ),
    Variant(
        "masked scores are loaded as well",
        """\
        if column <= row:
            masked[row, column] = scores[row, column]
""",
        """\
        score = scores[row, column]
        if column <= row:
            masked[row, column] = score
""",
        ("causal_mask",),
    ),
    Variant("masked scores are 0", "masked[row, column] = -math.inf", "masked[row, column] = 0", ("causal_mask",)),
    Variant(
        "what is masked is not written",
        """\
        else:
            masked[row, column] = -math.inf
""",
        "",
        ("causal_mask",),
    ),
    Variant(
        "u goes with the column",
        "out[row, column] = u[row] * v[column]",
        "out[row, column] = u[column] * v[row]",
        ("outer",),
    ),
    Variant(
        "the guard takes rows for columns",
        "if row < u.size and column < v.size:",
        "if row < v.size and column < u.size:",
        ("outer",),
    ),
    Variant(
        "down the columns",
        "    column, row = cuda.grid(2)\n    if row < u",
        "    row, column = cuda.grid(2)\n    if row < u",
        ("outer",),
    ),
    Variant("either guard is enough", "if row < u.size and column", "if row < u.size or column", ("outer",)),
    Variant(
        "only as many elements as threads",
        STRIDES,
        """\
    i = cuda.grid(1)
    if i < y.size:
        y[i] += a * x[i]
""",
        ("axpy",),
    ),
    Variant(
        "the stride is a block",
        "    for i in range(cuda.grid(1), y.size, cuda.gridsize(1)):\n        y[i]",
        "    for i in range(cuda.grid(1), y.size, cuda.blockDim.x):\n        y[i]",
        ("axpy",),
    ),
    Variant(
        "the stride is the number of blocks",
        "    for i in range(cuda.grid(1), y.size, cuda.gridsize(1)):\n        y[i]",
        "    for i in range(cuda.grid(1), y.size, cuda.gridDim.x):\n        y[i]",
        ("axpy",),
    ),
    Variant(
        "each thread takes neighbouring elements",
        STRIDES,
        """\
    each = (y.size + cuda.gridsize(1) - 1) // cuda.gridsize(1)
    first = each * cuda.grid(1)
    for i in range(first, min(first + each, y.size)):
        y[i] += a * x[i]
""",
        ("axpy",),
    ),
    Variant(
        "the last turn has no guard",
        STRIDES,
        """\
    for turn in range((y.size + cuda.gridsize(1) - 1) // cuda.gridsize(1)):
        i = cuda.grid(1) + turn * cuda.gridsize(1)
        y[i] += a * x[i]
""",
        ("axpy",),
    ),
    Variant("y is overwritten", "y[i] += a * x[i]", "y[i] = a * x[i]", ("axpy",)),
    Variant(
        "only the first block works",
        STRIDES,
        """\
    if cuda.blockIdx.x == 0:
        for i in range(cuda.threadIdx.x, y.size, cuda.blockDim.x):
            y[i] += a * x[i]
""",
        ("axpy",),
    ),
]

PREDICTIONS = [
    Variant(
        "a request is one sector", "return 4 * warps, 32 * warps", "return warps, 32 * warps", ("predict_sectors",)
    ),
    Variant(
        "reads and writes exchanged",
        "return 4 * warps, 32 * warps",
        "return 32 * warps, 4 * warps",
        ("predict_sectors",),
    ),
    Variant(
        "writes are coalesced too",
        """\
return 4 * warps, 32 * warps""",
        """\
return 4 * warps, 4 * warps""",
        ("predict_sectors",),
    ),
    Variant(
        "elements are counted",
        "return 4 * warps, 32 * warps",
        "return 32 * warps, 32 * 32 * warps",
        ("predict_sectors",),
    ),
    Variant(
        "the lanes of a warp share a row of a",
        "return 32 * k * warps, k * warps, 32 * warps",
        "return k * warps, 4 * k * warps, 4 * warps",
        ("predict_sectors",),
    ),
    Variant(
        "lanes that want one number fetch it each",
        "return 32 * k * warps, k * warps, 32 * warps",
        "return 32 * k * warps, 32 * k * warps, 32 * warps",
        ("predict_sectors",),
    ),
    Variant(
        "c is written in every step",
        "return 32 * k * warps, k * warps, 32 * warps",
        "return 32 * k * warps, k * warps, 32 * k * warps",
        ("predict_sectors",),
    ),
    Variant(
        "each operand is read once",
        "return m * n * k // side, m * n * k // side",
        "return m * k, k * n",
        ("predict_loads",),
    ),
    Variant(
        "side squared threads share",
        "return m * n * k // side, m * n * k // side",
        "return m * n * k // side**2, m * n * k // side**2",
        ("predict_loads",),
    ),
    Variant(
        "the tile does not matter",
        "return m * n * k // side, m * n * k // side",
        "return m * n * k, m * n * k",
        ("predict_loads",),
    ),
]

SHARED = [
    Variant(
        "no barrier before the neighbours are read",
        "    cuda.syncthreads()\n    if i < x.size:\n        y[i] = (near",
        "    if i < x.size:\n        y[i] = (near",
        ("smooth",),
    ),
    Variant(
        "threads beyond the end do not come to the barrier",
        "    cuda.syncthreads()\n    if i < x.size:\n        y[i] = (near",
        "    if i < x.size:\n        cuda.syncthreads()\n        y[i] = (near",
        ("smooth",),
    ),
    Variant(
        "neighbours come from global memory",
        "y[i] = (near[t] + near[t + 1] + near[t + 2]) / float32(3)",
        """\
left = x[i - 1] if i > 0 else float32(0)
        right = x[i + 1] if i + 1 < x.size else float32(0)
        y[i] = (left + x[i] + right) / float32(3)""",
        ("smooth",),
    ),
    Variant(
        "blocks do not look over their edges",
        "near[0] = x[i - 1] if i > 0 else float32(0)",
        "near[0] = float32(0)",
        ("smooth",),
    ),
    Variant(
        "the right neighbour of the block is missing",
        """\
    if t == THREADS - 1:
        near[t + 2] = x[i + 1] if i + 1 < x.size else float32(0)
""",
        "",
        ("smooth",),
    ),
    Variant(
        "the neighbour before the first element is not guarded",
        "near[0] = x[i - 1] if i > 0 else float32(0)",
        "near[0] = x[i - 1]",
        ("smooth",),
    ),
    Variant(
        "no zero after the last element",
        "    near[t + 1] = x[i] if i < x.size else float32(0)\n",
        """\
    if i < x.size:
        near[t + 1] = x[i]
""",
        ("smooth",),
    ),
    Variant("the sum for the mean", "/ float32(3)", "/ float32(1)", ("smooth",)),
    Variant(
        "the window is off by one",
        "(near[t] + near[t + 1] + near[t + 2])",
        "(near[t + 1] + near[t + 2] + near[t + 3])",
        ("smooth",),
    ),
    Variant(
        "no barrier before thread 0 adds",
        """\
        products[t] = a[t] * b[t]
    cuda.syncthreads()
""",
        "        products[t] = a[t] * b[t]\n",
        ("dot",),
    ),
    Variant(
        "every thread adds to one number",
        SERIAL,
        """\
    if t == 0:
        out[0] = 0
    cuda.syncthreads()
    if t < a.size:
        out[0] += products[t]
""",
        ("dot",),
    ),
    Variant(
        "products of threads without an element are added too",
        "for i in range(a.size):\n            total += products[i]",
        "for i in range(THREADS):\n            total += products[i]",
        ("dot",),
    ),
    Variant(
        "all threads add and store",
        SERIAL,
        """\
    total = float32(0)
    for i in range(a.size):
        total += products[i]
    out[0] = total
""",
        ("dot",),
    ),
    Variant(
        "thread 0 loads everything itself",
        "            total += products[i]\n",
        "            total += a[i] * b[i]\n",
        ("dot",),
    ),
    Variant(
        "the sum is kept in global memory",
        """\
            total += products[i]
        out[0] = total
""",
        """\
            total += products[i]
            out[0] = total
""",
        ("dot",),
    ),
    Variant(
        "interleaved addressing",
        TREE,
        """\
    half = 1
    while half < THREADS:
        if t % (2 * half) == 0:
            part[t] += part[t + half]
        cuda.syncthreads()
        half *= 2
""",
        ("block_sum",),
    ),
    Variant(
        "neighbouring threads at distant words",
        TREE,
        """\
    half = 1
    while half < THREADS:
        at = 2 * half * t
        if at < THREADS:
            part[at] += part[at + half]
        cuda.syncthreads()
        half *= 2
""",
        ("block_sum",),
    ),
    Variant(
        "no barrier between the steps of the tree",
        """\
            part[t] += part[t + half]
        cuda.syncthreads()
""",
        "            part[t] += part[t + half]\n",
        ("block_sum",),
    ),
    Variant(
        "a barrier that only the adding threads reach",
        """\
            part[t] += part[t + half]
        cuda.syncthreads()
""",
        """\
            part[t] += part[t + half]
            cuda.syncthreads()
""",
        ("block_sum",),
    ),
    Variant(
        "no barrier before the tree",
        """\
    part[t] = mine
    cuda.syncthreads()
""",
        "    part[t] = mine\n",
        ("block_sum",),
    ),
    Variant("the last step is left out", "while half > 0:", "while half > 1:", ("block_sum",)),
    Variant(
        "all threads add in every step",
        "        if t < half:\n            part[t]",
        "        if t + half < THREADS:\n            part[t]",
        ("block_sum",),
    ),
    Variant(
        "thread 0 adds alone",
        TREE,
        """\
    if t == 0:
        for k in range(1, THREADS):
            part[0] += part[k]
""",
        ("block_sum",),
    ),
    Variant(
        "only threads that have an element store",
        "    part[t] = mine\n",
        """\
    if cuda.grid(1) < x.size:
        part[t] = mine
""",
        ("block_sum",),
    ),
    Variant(
        "a block adds everything",
        "    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):\n        mine",
        "    for i in range(t, x.size, THREADS):\n        mine",
        ("block_sum",),
    ),
    Variant(
        "one element a thread",
        """\
    for i in range(cuda.grid(1), x.size, cuda.gridsize(1)):
        mine += x[i]
""",
        """\
    if cuda.grid(1) < x.size:
        mine += x[cuda.grid(1)]
""",
        ("block_sum",),
    ),
    Variant(
        "all blocks store to one place",
        "sums[cuda.blockIdx.x] = part[0]",
        "sums[0] = part[0]",
        ("block_sum",),
    ),
    Variant(
        "every thread stores the sum",
        "    if t == 0:\n        sums[",
        "    if t < THREADS:\n        sums[",
        ("block_sum",),
    ),
    Variant(
        "steps are added up in global memory by atomics",
        """\
        mine += x[i]
    part[t] = mine
""",
        """\
        mine += x[i]
        cuda.atomic.add(sums, cuda.blockIdx.x, x[i])
    part[t] = mine
""",
        ("block_sum",),
    ),
]

MATRICES = [
    Variant(
        "the tile is turned, its place is not",
        WRITE_TILE,
        """\
        if top + k < y.shape[0] and left + tx < y.shape[1]:
            y[top + k, left + tx] = tile[tx, k]
""",
        ("transpose",),
    ),
    Variant(
        "the place is turned, the tile is not",
        "y[left + k, top + tx] = tile[tx, k]",
        "y[left + k, top + tx] = tile[k, tx]",
        ("transpose",),
    ),
    Variant(
        "written down the columns",
        WRITE_TILE,
        """\
        if left + tx < y.shape[0] and top + k < y.shape[1]:
            y[left + tx, top + k] = tile[k, tx]
""",
        ("transpose",),
    ),
    Variant(
        "no tile at all",
        """\
            tile[k, tx] = x[top + k, left + tx]
    cuda.syncthreads()
    for k in range(ty, TILE, ROWS):
"""
        + WRITE_TILE,
        "            y[left + tx, top + k] = x[top + k, left + tx]\n",
        ("transpose", "transpose_banks"),
    ),
    Variant(
        "no padding",
        "cuda.shared.array((TILE, 33), float32)",
        "cuda.shared.array((TILE, TILE), float32)",
        ("transpose_banks",),
    ),
    Variant(
        "two columns of padding",
        "cuda.shared.array((TILE, 33), float32)",
        "cuda.shared.array((TILE, 34), float32)",
        ("transpose_banks",),
    ),
    Variant(
        "a row of padding",
        "cuda.shared.array((TILE, 33), float32)",
        "cuda.shared.array((33, TILE), float32)",
        ("transpose_banks",),
    ),
    Variant(
        "no barrier between filling and emptying the tile",
        """\
            tile[k, tx] = x[top + k, left + tx]
    cuda.syncthreads()
""",
        "            tile[k, tx] = x[top + k, left + tx]\n",
        ("transpose", "transpose_banks"),
    ),
    Variant(
        "threads fetch a quarter of the tile",
        "    for k in range(ty, TILE, ROWS):\n        if top",
        "    for k in range(ty, ROWS, ROWS):\n        if top",
        ("transpose",),
    ),
    Variant(
        "reading has no guard",
        "        if top + k < x.shape[0] and left + tx < x.shape[1]:\n            tile",
        "        if left + tx < x.shape[1] + TILE:\n            tile",
        ("transpose",),
    ),
    Variant(
        "writing is guarded by the sides of x",
        "if left + k < y.shape[0] and top + tx < y.shape[1]:",
        "if left + k < x.shape[0] and top + tx < x.shape[1]:",
        ("transpose",),
    ),
    Variant(
        "without a tile",
        "            y[left + k, top + tx] = tile[tx, k]\n",
        "            y[left + k, top + tx] = x[top + tx, left + k]\n",
        ("transpose",),
    ),
    Variant(
        "the barrier is inside of the guard",
        """\
            tile[k, tx] = x[top + k, left + tx]
    cuda.syncthreads()
""",
        """\
            tile[k, tx] = x[top + k, left + tx]
            cuda.syncthreads()
""",
        ("transpose",),
    ),
    Variant(
        "no barrier before the tiles are multiplied",
        """\
        cuda.syncthreads()
        for k in range(SIDE):
""",
        "        for k in range(SIDE):\n",
        ("matmul", "matmul_memory"),
    ),
    Variant(
        "no barrier before the tiles are filled anew",
        """\
            total += a_tile[ty, k] * b_tile[k, tx]
        cuda.syncthreads()
""",
        "            total += a_tile[ty, k] * b_tile[k, tx]\n",
        ("matmul",),
    ),
    Variant(
        "straight from global memory",
        "            total += a_tile[ty, k] * b_tile[k, tx]\n",
        """\
            if row < a.shape[0] and start + k < a.shape[1] and column < b.shape[1]:
                total += a[row, start + k] * b[start + k, column]
""",
        ("matmul",),
    ),
    Variant(
        "threads without an element of c return",
        "    total = float32(0)\n    for start",
        "    if row >= c.shape[0] or column >= c.shape[1]:\n        return\n    total = float32(0)\n    for start",
        ("matmul",),
    ),
    Variant(
        "what lies outside is left from the step before",
        """\
        a_tile[ty, tx] = a[row, start + tx] if row < a.shape[0] and start + tx < a.shape[1] else float32(0)
""",
        """\
        if row < a.shape[0] and start + tx < a.shape[1]:
            a_tile[ty, tx] = a[row, start + tx]
""",
        ("matmul",),
    ),
    Variant(
        "the columns of a are not guarded",
        "if row < a.shape[0] and start + tx < a.shape[1] else",
        "if row < a.shape[0] else",
        ("matmul",),
    ),
    Variant(
        "the rows of b are not guarded",
        "if start + ty < b.shape[0] and column < b.shape[1] else",
        "if column < b.shape[1] else",
        ("matmul",),
    ),
    Variant(
        "the last tile is left out",
        "for start in range(0, a.shape[1], SIDE):",
        "for start in range(0, a.shape[1] - SIDE + 1, SIDE):",
        ("matmul",),
    ),
    Variant(
        "only the last step's sum is kept",
        "    for start in range(0, a.shape[1], SIDE):\n",
        """\
    for start in range(0, a.shape[1], SIDE):
        total = float32(0)
""",
        ("matmul",),
    ),
    Variant(
        "a tile with itself",
        "a_tile[ty, k] * b_tile[k, tx]",
        "a_tile[ty, k] * b_tile[ty, tx]",
        ("matmul", "matmul_memory"),
    ),
    Variant(
        "c is added up in global memory",
        """\
        cuda.syncthreads()
    if row < c.shape[0] and column < c.shape[1]:
        c[row, column] = total
""",
        """\
        cuda.syncthreads()
        if row < c.shape[0] and column < c.shape[1]:
            c[row, column] = total
""",
        ("matmul",),
    ),
    Variant(
        "down the columns of c",
        """\
    column, row = cuda.grid(2)
    total = float32(0)
    for start in range(0, a.shape[1], SIDE):
""",
        """\
    column, row = cuda.blockIdx.x * SIDE + cuda.threadIdx.y, cuda.blockIdx.y * SIDE + cuda.threadIdx.x
    tx, ty = ty, tx
    total = float32(0)
    for start in range(0, a.shape[1], SIDE):
""",
        ("matmul_memory",),
    ),
    Variant(
        "each number is loaded anew, whole warps to a row",
        """\
    for start in range(0, a.shape[1], SIDE):
        a_tile""",
        """\
    lane, warp = (tx + SIDE * ty) % 32, (tx + SIDE * ty) // 32
    column = SIDE * cuda.blockIdx.x + lane
    for row in range(SIDE * cuda.blockIdx.y + warp, min(SIDE * cuda.blockIdx.y + SIDE, c.shape[0]), 8):
        if lane < SIDE and column < c.shape[1]:
            total = float32(0)
            for k in range(a.shape[1]):
                total += a[row, k] * b[k, column]
            c[row, column] = total
    column, row = c.shape[1], c.shape[0]
    for start in range(0):
        a_tile""",
        ("matmul", "matmul_memory"),
    ),
    Variant(
        "the tile of a is filled transposed",
        "        a_tile[ty, tx] = a[row, start + tx] if",
        "        a_tile[tx, ty] = a[row, start + tx] if",
        ("matmul", "matmul_memory"),
    ),
]

MUTANTS = MAPS + DIMENSIONS + PREDICTIONS + SHARED + MATRICES

MISHAPS = [
    Variant(
        "a kernel returns its result",
        "    y[i] = max(x[i], float32(0))\n",
        "    return max(x[i], float32(0))\n",
        ("relu",),
        says="no number",
    ),
    Variant(
        "a whole array at once",
        "    y[i] = max(x[i], float32(0))\n",
        "    y[:] = max(x[i], float32(0))\n",
        ("relu",),
        says="one integer",
    ),
    Variant(
        "an index that is no whole number",
        "y[i] = max(x[i], float32(0))",
        "y[i / 1] = max(x[i], float32(0))",
        ("relu",),
        says="one integer",
    ),
    Variant(
        "a kernel has other parameters",
        "def axpy(a, x, y):",
        "def axpy(x, y):\n    a = 1",
        ("axpy",),
        says="wrong parameters",
    ),
    Variant(
        "an exception in a thread",
        "w[i] -= rate * g[i]",
        "w[i] -= rate * g[i // 0]",
        ("sgd_step",),
        says="ZeroDivisionError",
    ),
    Variant(
        "a shape that is not constant",
        "cuda.shared.array(WINDOW, float32)",
        "cuda.shared.array(x.size, float32)",
        ("smooth",),
        says="has to be a constant",
    ),
    Variant(
        "too much shared memory",
        "cuda.shared.array(WINDOW, float32)",
        "cuda.shared.array((WINDOW, WINDOW), float32)",
        ("smooth",),
        says="shared memory",
    ),
    Variant("a loop without an end", "        half //= 2\n", "        half = half\n", ("block_sum",), hangs=True),
    Variant(
        "a matrix indexed like a vector",
        "out[row, column] = u[row]",
        "out[row] = u[row]",
        ("outer",),
        says="2 integers",
    ),
    Variant(
        "not a number",
        "        mine += x[i]\n    part",
        "        mine += x[i] * math.nan\n    part",
        ("block_sum",),
        says="no number",
    ),
    Variant(
        "a prediction is a float",
        "return m * n * k // side, m * n * k // side",
        "return m * n * k / side, m * n * k / side",
        ("predict_loads",),
        says="divide by //",
    ),
    Variant(
        "a prediction is one number",
        "return 4 * warps, 32 * warps",
        "return 36 * warps",
        ("predict_sectors",),
        says="a tuple (sectors of x, of y)",
    ),
]
