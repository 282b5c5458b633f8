// c = a·b in fp32: a has m rows of k floats, b k rows of n, c m rows of n.
// BM × BN is the tile of c that a block makes, BK how far it goes along k at a time, TM × TN what a thread makes.
#include "quads.cuh"

// One thread an element; neighbours along x take neighbouring ROWS: their reads of a and their writes lie a row apart.
__global__ void naive(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c, int m, int n,
                      int k) {
    int row = blockIdx.x * blockDim.x + threadIdx.x, column = blockIdx.y * blockDim.y + threadIdx.y;
    if (row >= m || column >= n) return;
    float sum = 0.0f;
    for (int i = 0; i < k; i++) {
        sum += a[static_cast<long long>(row) * k + i] * b[static_cast<long long>(i) * n + column];
    }
    c[static_cast<long long>(row) * n + column] = sum;
}

// The same with neighbours along x in neighbouring columns: reads of b and writes are coalesced.
__global__ void coalesced(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c, int m,
                          int n, int k) {
    int row = blockIdx.y * blockDim.y + threadIdx.y, column = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= m || column >= n) return;
    float sum = 0.0f;
    for (int i = 0; i < k; i++) {
        sum += a[static_cast<long long>(row) * k + i] * b[static_cast<long long>(i) * n + column];
    }
    c[static_cast<long long>(row) * n + column] = sum;
}

// Tiles of T×T of a and b in shared memory: each number is read from global memory once a block instead of T times.
template <int T>
__global__ void __launch_bounds__(T* T) shared_tile(const float* __restrict__ a, const float* __restrict__ b,
                                                    float* __restrict__ c, int m, int n, int k) {
    __shared__ float a_tile[T][T], b_tile[T][T];
    int tx = threadIdx.x, ty = threadIdx.y, row = blockIdx.y * T + ty, column = blockIdx.x * T + tx;
    float sum = 0.0f;
    for (int k0 = 0; k0 < k; k0 += T) {
        a_tile[ty][tx] = row < m && k0 + tx < k ? a[static_cast<long long>(row) * k + k0 + tx] : 0.0f;
        b_tile[ty][tx] = k0 + ty < k && column < n ? b[static_cast<long long>(k0 + ty) * n + column] : 0.0f;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < T; i++) sum += a_tile[ty][i] * b_tile[i][tx];
        __syncthreads();
    }
    if (row < m && column < n) c[static_cast<long long>(row) * n + column] = sum;
}

// Fills tile[ROWS][COLUMNS] from row `top`, column `left` of a matrix, zeros outside of it; number by number.
template <int ROWS, int COLUMNS, int THREADS>
__device__ __forceinline__ void fill(float (&tile)[ROWS][COLUMNS], const float* __restrict__ matrix, int top, int left,
                                     int rows, int columns) {
#pragma unroll
    for (int i = threadIdx.x; i < ROWS * COLUMNS; i += THREADS) {
        int row = top + i / COLUMNS, column = left + i % COLUMNS;
        tile[i / COLUMNS][i % COLUMNS] =
            row < rows && column < columns ? matrix[static_cast<long long>(row) * columns + column] : 0.0f;
    }
}

// A thread makes TM elements of one column: a number of b, once in a register, serves TM times.
template <int BM, int BN, int BK, int TM>
__global__ void __launch_bounds__(BM* BN / TM)
    register_tile_1d(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c, int m, int n,
                     int k) {
    constexpr int THREADS = BM * BN / TM;
    __shared__ float a_tile[BM][BK], b_tile[BK][BN];
    int top = blockIdx.y * BM, left = blockIdx.x * BN, tx = threadIdx.x % BN, ty = threadIdx.x / BN;
    float sums[TM] = {};
    for (int k0 = 0; k0 < k; k0 += BK) {
        fill<BM, BK, THREADS>(a_tile, a, top, k0, m, k);
        fill<BK, BN, THREADS>(b_tile, b, k0, left, k, n);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < BK; i++) {
            float right = b_tile[i][tx];
#pragma unroll
            for (int r = 0; r < TM; r++) sums[r] += a_tile[ty * TM + r][i] * right;
        }
        __syncthreads();
    }
#pragma unroll
    for (int r = 0; r < TM; r++) {
        int row = top + ty * TM + r, column = left + tx;
        if (row < m && column < n) c[static_cast<long long>(row) * n + column] = sums[r];
    }
}

// Blocks that the compiler is told to make fit a multiprocessor at once, by what a thread makes: two leave 128 of the
// 65,536 registers for each of 2·256 threads, and it may take more if nobody says so.
__device__ constexpr int blocks(int made) { return made <= 64 ? 2 : 1; }

// A thread makes TM × TN elements: TM + TN numbers from shared memory serve TM·TN multiply-adds.
template <int BM, int BN, int BK, int TM, int TN>
__global__ void __launch_bounds__(BM* BN / (TM * TN), blocks(TM* TN))
    register_tile_2d(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c, int m, int n,
                     int k) {
    constexpr int THREADS = BM * BN / (TM * TN);
    __shared__ float a_tile[BM][BK], b_tile[BK][BN];
    int top = blockIdx.y * BM, left = blockIdx.x * BN, tx = threadIdx.x % (BN / TN), ty = threadIdx.x / (BN / TN);
    float sums[TM][TN] = {};
    for (int k0 = 0; k0 < k; k0 += BK) {
        fill<BM, BK, THREADS>(a_tile, a, top, k0, m, k);
        fill<BK, BN, THREADS>(b_tile, b, k0, left, k, n);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < BK; i++) {
            float down[TM], right[TN];
#pragma unroll
            for (int r = 0; r < TM; r++) down[r] = a_tile[ty * TM + r][i];
#pragma unroll
            for (int s = 0; s < TN; s++) right[s] = b_tile[i][tx * TN + s];
#pragma unroll
            for (int r = 0; r < TM; r++)
#pragma unroll
                for (int s = 0; s < TN; s++) sums[r][s] += down[r] * right[s];
        }
        __syncthreads();
    }
#pragma unroll
    for (int r = 0; r < TM; r++)
#pragma unroll
        for (int s = 0; s < TN; s++) {
            int row = top + ty * TM + r, column = left + tx * TN + s;
            if (row < m && column < n) c[static_cast<long long>(row) * n + column] = sums[r][s];
        }
}

// From here on everything moves by fours. A tile of a is kept transposed, so that the TM numbers which a thread needs
// lie side by side; its rows are four floats longer than BM, so that the stores which transpose it meet different banks
// for BK = 8, and each bank twice at most for BK = 16.

// The quads of a ROWS × COLUMNS tile that a thread carries from global to shared memory.
template <bool ALIGNED, int ROWS, int COLUMNS, int THREADS>
struct Carried {
    static constexpr int QUADS = ROWS * COLUMNS / 4 / THREADS;
    static_assert(QUADS * 4 * THREADS == ROWS * COLUMNS, "the threads must share the tile's quads evenly");
    float4 quads[QUADS];

    static __device__ __forceinline__ int row(int i) { return (threadIdx.x + i * THREADS) / (COLUMNS / 4); }
    static __device__ __forceinline__ int column(int i) { return (threadIdx.x + i * THREADS) % (COLUMNS / 4) * 4; }

    __device__ __forceinline__ void load(const float* __restrict__ matrix, int top, int left, int rows, int columns) {
#pragma unroll
        for (int i = 0; i < QUADS; i++) {
            int r = top + row(i);
            quads[i] = r < rows ? load4<ALIGNED>(matrix + static_cast<long long>(r) * columns,
                                                 left + column(i), columns)
                                : make_float4(0, 0, 0, 0);
        }
    }

    __device__ __forceinline__ void store(float (&tile)[ROWS][COLUMNS]) const {
#pragma unroll
        for (int i = 0; i < QUADS; i++) *reinterpret_cast<float4*>(&tile[row(i)][column(i)]) = quads[i];
    }

    __device__ __forceinline__ void store_transposed(float (&tile)[COLUMNS][ROWS + 4]) const {
#pragma unroll
        for (int i = 0; i < QUADS; i++) {
            tile[column(i) + 0][row(i)] = quads[i].x;
            tile[column(i) + 1][row(i)] = quads[i].y;
            tile[column(i) + 2][row(i)] = quads[i].z;
            tile[column(i) + 3][row(i)] = quads[i].w;
        }
    }
};

// COUNT floats for a thread: quads that lie APART floats apart.
template <int COUNT, int APART>
__device__ __forceinline__ void gather(float (&into)[COUNT], const float* from) {
#pragma unroll
    for (int q = 0; q < COUNT / 4; q++) {
        float4 v = *reinterpret_cast<const float4*>(from + q * APART);
        into[4 * q] = v.x, into[4 * q + 1] = v.y, into[4 * q + 2] = v.z, into[4 * q + 3] = v.w;
    }
}

// sums += the product of BK columns of a_tile, from `row` on, with BK rows of b_tile, from `column` on.
template <int DOWN, int RIGHT, int BK, int BM, int BN, int TM, int TN>
__device__ __forceinline__ void multiply(float (&sums)[TM][TN], const float (&a_tile)[BK][BM + 4],
                                         const float (&b_tile)[BK][BN], int row, int column) {
#pragma unroll
    for (int i = 0; i < BK; i++) {
        float down[TM], right[TN];
        gather<TM, DOWN>(down, &a_tile[i][row]);
        gather<TN, RIGHT>(right, &b_tile[i][column]);
#pragma unroll
        for (int r = 0; r < TM; r++)
#pragma unroll
            for (int s = 0; s < TN; s++) sums[r][s] += down[r] * right[s];
    }
}

// Writes a thread's sums: quads of rows DOWN and quads of columns RIGHT apart, from `row` and `column` on.
template <bool ALIGNED, int DOWN, int RIGHT, int TM, int TN>
__device__ __forceinline__ void write(float* __restrict__ c, const float (&sums)[TM][TN], int row, int column, int m,
                                      int n) {
#pragma unroll
    for (int r = 0; r < TM; r++) {
        int at = row + r / 4 * DOWN + r % 4;
        if (at < m) {
#pragma unroll
            for (int s = 0; s < TN; s += 4) {
                store4<ALIGNED>(c + static_cast<long long>(at) * n, column + s / 4 * RIGHT, n,
                                make_float4(sums[r][s], sums[r][s + 1], sums[r][s + 2], sums[r][s + 3]));
            }
        }
    }
}

// Sixteen bytes at a time from global memory, from shared memory and back. A thread's columns are quads BN·4/TN apart,
// so that eight neighbours read 128 bytes in a row.
template <bool ALIGNED, int BM, int BN, int BK, int TM, int TN>
__global__ void __launch_bounds__(BM* BN / (TM * TN), ALIGNED ? blocks(TM* TN) : 1)
    vectorised(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c, int m, int n, int k) {
    constexpr int THREADS = BM * BN / (TM * TN), DOWN = 4 * BM / TM, RIGHT = 4 * BN / TN;
    __shared__ __align__(16) float a_tile[BK][BM + 4];
    __shared__ __align__(16) float b_tile[BK][BN];
    int top = blockIdx.y * BM, left = blockIdx.x * BN;
    int row = threadIdx.x / (BN / TN) * 4, column = threadIdx.x % (BN / TN) * 4;
    Carried<ALIGNED, BM, BK, THREADS> a_part;
    Carried<ALIGNED, BK, BN, THREADS> b_part;
    float sums[TM][TN] = {};
    for (int k0 = 0; k0 < k; k0 += BK) {
        a_part.load(a, top, k0, m, k);
        b_part.load(b, k0, left, k, n);
        a_part.store_transposed(a_tile);
        b_part.store(b_tile);
        __syncthreads();
        multiply<DOWN, RIGHT, BK, BM, BN>(sums, a_tile, b_tile, row, column);
        __syncthreads();
    }
    write<ALIGNED, DOWN, RIGHT>(c, sums, top + row, left + column, m, n);
}

// Where a lane of a warp stands among COLUMNS columns of lanes: in squares of four, so that lanes 0 and 1, 2 and 3 …
// read the same numbers of a, and lanes 0 and 2, 1 and 3 … the same of b. A request of sixteen bytes a lane then takes
// two passes through shared memory instead of four (NVIDIA's forum, forums.developer.nvidia.com/t/77228).
template <int COLUMNS>
__device__ __forceinline__ int lane_row(int lane) {
    return (lane >> 1 & 1) + (lane >> 2) / (COLUMNS / 2) * 2;
}

template <int COLUMNS>
__device__ __forceinline__ int lane_column(int lane) {
    return (lane & 1) + (lane >> 2) % (COLUMNS / 2) * 2;
}

// Each warp makes a tile of WM × WN near to square, so that its lanes share what they read; two tiles of a and b, so
// that the next is on its way from global memory while this one is multiplied, and one barrier a tile is enough.
template <bool ALIGNED, int BM, int BN, int BK, int WM, int WN, int TM, int TN>
__global__ void __launch_bounds__(BM* BN / (TM * TN), ALIGNED ? blocks(TM* TN) : 1)
    warp_tile(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c, int m, int n, int k) {
    constexpr int THREADS = BM * BN / (TM * TN), DOWN = 4 * WM / TM, RIGHT = 4 * WN / TN;
    static_assert(WM / TM * (WN / TN) == 32, "a warp's tile must take 32 threads");
    __shared__ __align__(16) float a_tile[2][BK][BM + 4];
    __shared__ __align__(16) float b_tile[2][BK][BN];
    int top = blockIdx.y * BM, left = blockIdx.x * BN, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int row = warp / (BN / WN) * WM + lane_row<WN / TN>(lane) * 4;
    int column = warp % (BN / WN) * WN + lane_column<WN / TN>(lane) * 4;
    Carried<ALIGNED, BM, BK, THREADS> a_part;
    Carried<ALIGNED, BK, BN, THREADS> b_part;
    float sums[TM][TN] = {};
    a_part.load(a, top, 0, m, k);
    b_part.load(b, 0, left, k, n);
    a_part.store_transposed(a_tile[0]);
    b_part.store(b_tile[0]);
    __syncthreads();
    for (int k0 = 0, now = 0; k0 < k; k0 += BK, now ^= 1) {
        bool more = k0 + BK < k;
        if (more) {
            a_part.load(a, top, k0 + BK, m, k);
            b_part.load(b, k0 + BK, left, k, n);
        }
        multiply<DOWN, RIGHT, BK, BM, BN>(sums, a_tile[now], b_tile[now], row, column);
        if (more) {
            a_part.store_transposed(a_tile[now ^ 1]);
            b_part.store(b_tile[now ^ 1]);
        }
        __syncthreads();
    }
    write<ALIGNED, DOWN, RIGHT>(c, sums, top + row, left + column, m, n);
}
