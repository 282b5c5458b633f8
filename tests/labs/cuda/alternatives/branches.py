"""Warps that part and meet again: both sides of a branch store, loops run from the end, lanes skip turns."""

MASKED = -math.inf


@cuda.jit
def relu(x, y):
    i = cuda.grid(1)
    value = x[i]
    if value > 0:
        y[i] = value
    else:
        y[i] = 0


@cuda.jit
def sgd_step(w, g, lr):
    """The last element first, and indices below 0, which count from the end."""
    i = -1 - cuda.grid(1)
    if i < -w.size:
        return
    w[i] -= lr * g[i]


@cuda.jit
def causal_mask(scores, masked):
    column, row = cuda.grid(2)
    if row >= scores.shape[0] or column >= scores.shape[1]:
        return
    if column > row:
        masked[row][column] = MASKED
    else:
        masked[row][column] = scores[row][column]


@cuda.jit
def axpy(a, x, y):
    for i in range(y.size - 1 - cuda.grid(1), -1, -cuda.gridsize(1)):
        y[i] += a * x[i]


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


CPP_TILE = 16


def transpose_cpp():
    """A tile whose columns are turned instead of padded, by a thread's number alone."""
    return r"""
#define SIDE 32
template <int ROWS>
__device__ __forceinline__ int turned(int row, int column) { return row * SIDE + (column ^ row) % SIDE; }

extern "C" __global__ void __launch_bounds__(256)
transpose(const float* __restrict__ x, float* __restrict__ y, const int rows, const int columns) {
    __shared__ __align__(16) float tile[SIDE * SIDE];
    const unsigned lane = threadIdx.x, warp = threadIdx.y, width = min(SIDE, columns - SIDE * (int)blockIdx.x);
    const float* from = x + (long long)SIDE * blockIdx.y * columns + SIDE * blockIdx.x;
#pragma unroll
    for (int row = SIDE - 8 + warp; row >= 0; row -= 8) {
        if (SIDE * blockIdx.y + row >= rows || lane >= width) continue;
        tile[turned<8>(row, lane)] = __ldg(from + (long long)row * columns + lane);
    }
    __syncthreads();
    if (SIDE * blockIdx.y + lane >= rows) return;
    for (unsigned row = warp; row < width; row += blockDim.y)
        y[(long long)(SIDE * blockIdx.x + row) * rows + SIDE * blockIdx.y + lane] = tile[turned<8>(lane, row)];
}
"""


def matmul_cpp():
    """One element a thread, as in Task 7."""
    return r"""
extern "C" __global__ void matmul(const float* a, const float* b, float* c, int m, int n, int k) {
    __shared__ float a_tile[16][16], b_tile[16][16];
    const int row = blockIdx.y * blockDim.y + threadIdx.y, column = blockIdx.x * blockDim.x + threadIdx.x;
    float total = 0;
    for (int step = 0; step < (k + 15) / 16; ++step) {
        const int s = 16 * step + threadIdx.x, t = 16 * step + threadIdx.y;
        a_tile[threadIdx.y][threadIdx.x] = 0;
        b_tile[threadIdx.y][threadIdx.x] = 0;
        if (row < m && s < k) a_tile[threadIdx.y][threadIdx.x] = a[(size_t)row * k + s];
        if (column < n && t < k) b_tile[threadIdx.y][threadIdx.x] = b[(size_t)t * n + column];
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 16; ++i) total = fmaf(a_tile[threadIdx.y][i], b_tile[i][threadIdx.x], total);
        __syncthreads();
    }
    if (row >= m || column >= n) return;
    c[(size_t)row * n + column] = total;
}
"""
