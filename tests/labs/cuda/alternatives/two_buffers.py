"""Two arrays that take turns, so that one barrier a step is enough; a dot product by a tree; shifts."""


def predict_transpose(rows, columns):
    requests = columns // 32 * rows
    return requests << 2, requests << 5


def predict_matmul(m, n, k):
    written = m // 32 * n
    read = written * k
    return read << 5, read, written << 5


def predict_loads(m, n, k, side):
    across, down = n // side, m // side
    return across * down * side * k, down * across * k * side


@cuda.jit
def dot(x, y, out):
    products = cuda.shared.array(THREADS, float32)
    t = cuda.threadIdx.x
    products[t] = x[t] * y[t] if t < x.size else float32(0)
    cuda.syncthreads()
    half = THREADS // 2
    while half > 0:
        if t < half:
            products[t] = products[t] + products[t + half]
        half //= 2
        cuda.syncthreads()
    if t == 0:
        out[0] = products[0]


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
def matmul(a, b, c):
    a_tile = cuda.shared.array((2, SIDE, SIDE), float32)
    b_tile = cuda.shared.array((2, SIDE, SIDE), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    column, row = cuda.grid(2)
    steps = (a.shape[1] + SIDE - 1) // SIDE
    total = float32(0)
    for step in range(steps + 1):
        now = step % 2
        at = step * SIDE
        if step < steps:
            a_tile[now, ty, tx] = a[row, at + tx] if row < a.shape[0] and at + tx < a.shape[1] else float32(0)
            b_tile[now, ty, tx] = b[at + ty, column] if at + ty < b.shape[0] and column < b.shape[1] else float32(0)
        if step > 0:
            for k in range(SIDE):
                total += a_tile[1 - now, ty, k] * b_tile[1 - now, k, tx]
        cuda.syncthreads()
    if row < c.shape[0] and column < c.shape[1]:
        c[row, column] = total


CPP_TILE = 32


def matmul_cpp():
    """Two buffers take turns, so that one barrier a step is enough; a thread makes 2 × 2 elements."""
    return r"""
constexpr int TILE = 32, STEP = 16;

__device__ float at(const float* matrix, int row, int column, int rows, int columns) {
    return row < rows && column < columns ? matrix[(size_t)row * columns + column] : 0.0f;
}

extern "C" __global__ void matmul(const float* a, const float* b, float* c, int m, int n, int k) {
    __shared__ float a_tile[2][STEP][TILE + 1], b_tile[2][STEP][TILE];
    const int tx = threadIdx.x, ty = threadIdx.y, top = TILE * blockIdx.y, left = TILE * blockIdx.x;
    float4 sums = make_float4(0, 0, 0, 0);
    for (int start = 0, now = 0; start < k; start += STEP, now ^= 1) {
        for (int i = 0; i < TILE; i += 16) {
            a_tile[now][tx][ty + i] = at(a, top + ty + i, start + tx, m, k);  // turned on its way in
            b_tile[now][ty][tx + i] = at(b, start + ty, left + tx + i, k, n);
        }
        __syncthreads();
        for (int s = 0; s < STEP; s++) {
            const float upper = a_tile[now][s][ty], lower = a_tile[now][s][ty + 16];
            const float near = b_tile[now][s][tx], far = b_tile[now][s][tx + 16];
            sums.x += upper * near, sums.y += upper * far, sums.z += lower * near, sums.w += lower * far;
        }
    }
    const float found[2][2] = {{sums.x, sums.y}, {sums.z, sums.w}};
    for (int i = 0; i < 4; i++) {
        const int row = top + ty + i / 2 * 16, column = left + tx + i % 2 * 16;
        if (row < m && column < n) c[(size_t)row * n + column] = found[i / 2][i % 2];
    }
}
"""
