// c = a·b in bf16 on the tensor cores, summed in fp32: a has m rows of k, b k rows of n, c m rows of n.
// BM × BN is the tile of c that a block makes, WM × WN a warp's part of it, BK how far it goes along k at a time.
#include "ptx.cuh"

// Where the CHUNK of eight elements of a row lies in shared memory: chunks are swapped along the row, so that the eight
// rows which ldmatrix reads at once lie in different banks. In elements; CHUNKS a row.
template <int CHUNKS>
__device__ __forceinline__ int place(int row, int chunk) {
    static_assert(CHUNKS == 4 || CHUNKS % 8 == 0, "rows of 64 bytes or of a multiple of 128");
    int swapped = CHUNKS == 4 ? chunk ^ (row >> 1 & 3) : chunk ^ (row & 7);
    return (row * CHUNKS + swapped) * 8;
}

// Starts to bring a ROWS × COLUMNS tile, from row `top` and column `left` of a matrix, zeros outside of it.
// ALIGNED: sixteen bytes at a time, asynchronously; the matrix starts at 16 bytes and `columns` is a multiple of eight.
template <bool ALIGNED, int ROWS, int COLUMNS, int THREADS>
__device__ __forceinline__ void bring(bf16* tile, const bf16* __restrict__ matrix, int top, int left, int rows,
                                      int columns) {
    constexpr int CHUNKS = COLUMNS / 8;
    static_assert(ROWS * CHUNKS % THREADS == 0, "the threads must share the tile evenly");
#pragma unroll
    for (int i = 0; i < ROWS * CHUNKS / THREADS; i++) {
        int r = (threadIdx.x + i * THREADS) / CHUNKS, chunk = (threadIdx.x + i * THREADS) % CHUNKS;
        int row = top + r, column = left + chunk * 8;
        bf16* to = tile + place<CHUNKS>(r, chunk);
        const bf16* from = matrix + static_cast<long long>(row) * columns + column;
        if constexpr (ALIGNED) {
            bool inside = row < rows && column < columns;
            cp_async(to, inside ? from : matrix, inside);
        } else {
#pragma unroll
            for (int e = 0; e < 8; e++) to[e] = row < rows && column + e < columns ? from[e] : bf16(0);
        }
    }
}

// Which tile a block makes: GROUP rows of tiles are done column by column, so that blocks which run at the same time
// share what they read in the L2 cache.
template <int GROUP>
__device__ __forceinline__ void tile_of_block(int& tile_row, int& tile_column, int tile_rows, int tile_columns) {
    int group = blockIdx.x / (GROUP * tile_columns), within = blockIdx.x % (GROUP * tile_columns);
    int height = min(GROUP, tile_rows - group * GROUP);
    tile_row = group * GROUP + within % height;
    tile_column = within / height;
}

// The fragments of a warp for sixteen steps along k.
template <int WM, int WN>
struct Fragments {
    unsigned a[WM / 16][4], b[WN / 16][4];

    template <int BK, int BN>
    __device__ __forceinline__ void load(const bf16* a_tile, const bf16* b_tile, int row, int column, int k) {
        int lane = threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < WM / 16; i++) {
            ldmatrix_x4(a[i], a_tile + place<BK / 8>(row + 16 * i + lane % 16, k / 8 + lane / 16));
        }
#pragma unroll
        for (int j = 0; j < WN / 16; j++) {
            ldmatrix_x4_transposed(b[j], b_tile + place<BN / 8>(k + lane % 16, column / 8 + 2 * j + lane / 16));
        }
    }
};

// STAGES tiles are in shared memory or on their way there. Dynamic shared memory: 2·STAGES·BK·(BM + BN) bytes.
// A grid of one dimension, as many blocks as tiles. Two blocks are to fit a multiprocessor where a lane makes no more
// than 64 elements.
template <bool ALIGNED, int BM, int BN, int BK, int WM, int WN, int STAGES>
__global__ void __launch_bounds__(BM / WM * (BN / WN) * 32, ALIGNED && WM * WN <= 2048 ? 2 : 1)
    tensor_cores(const bf16* __restrict__ a, const bf16* __restrict__ b, bf16* __restrict__ c, int m, int n, int k) {
    constexpr int THREADS = BM / WM * (BN / WN) * 32;
    extern __shared__ __align__(128) bf16 tiles[];
    bf16 *a_tiles = tiles, *b_tiles = tiles + STAGES * BM * BK;
    int tile_row, tile_column;
    tile_of_block<8>(tile_row, tile_column, (m + BM - 1) / BM, (n + BN - 1) / BN);
    int top = tile_row * BM, left = tile_column * BN, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int row = warp / (BN / WN) * WM, column = warp % (BN / WN) * WN, steps = (k + BK - 1) / BK;

    auto start = [&](int step) {
        if (step < steps) {
            int stage = step % STAGES;
            bring<ALIGNED, BM, BK, THREADS>(a_tiles + stage * BM * BK, a, top, step * BK, m, k);
            bring<ALIGNED, BK, BN, THREADS>(b_tiles + stage * BK * BN, b, step * BK, left, k, n);
        }
        cp_async_commit();  // an empty group too, so that groups count steps
    };
#pragma unroll
    for (int step = 0; step < STAGES - 1; step++) start(step);

    float sums[WM / 16][WN / 8][4] = {};
    Fragments<WM, WN> fragments[2];
    for (int step = 0; step < steps; step++) {
        cp_async_wait<STAGES - 2>();
        __syncthreads();  // this step's tiles are there for all, and the last step's are free
        start(step + STAGES - 1);
        const bf16 *a_tile = a_tiles + step % STAGES * BM * BK, *b_tile = b_tiles + step % STAGES * BK * BN;
        fragments[0].template load<BK, BN>(a_tile, b_tile, row, column, 0);
#pragma unroll
        for (int i = 0; i < BK / 16; i++) {
            const Fragments<WM, WN>& now = fragments[i % 2];
            Fragments<WM, WN>& next = fragments[(i + 1) % 2];
            if (i + 1 < BK / 16) next.template load<BK, BN>(a_tile, b_tile, row, column, 16 * (i + 1));
#pragma unroll
            for (int r = 0; r < WM / 16; r++)
#pragma unroll
                for (int s = 0; s < WN / 8; s++) {
                    mma_m16n8k16(sums[r][s], now.a[r], now.b[s / 2][s % 2 * 2], now.b[s / 2][s % 2 * 2 + 1]);
                }
        }
    }

#pragma unroll
    for (int r = 0; r < WM / 16; r++)
#pragma unroll
        for (int s = 0; s < WN / 8; s++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                int at = top + row + 16 * r + 8 * half + lane / 4, across = left + column + 8 * s + lane % 4 * 2;
                unsigned pair = pack_bf16(sums[r][s][2 * half], sums[r][s][2 * half + 1]);
                bf16* to = c + static_cast<long long>(at) * n + across;
                if constexpr (ALIGNED) {
                    if (at < m && across < n) *reinterpret_cast<unsigned*>(to) = pair;
                } else {
                    if (at < m && across < n) to[0] = bf16(pair & 0xffff);
                    if (at < m && across + 1 < n) to[1] = bf16(pair >> 16);
                }
            }
}
