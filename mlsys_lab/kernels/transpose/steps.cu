// y = xᵀ: x has `rows` rows of `columns` floats, y `columns` rows of `rows`.
#include "quads.cuh"

// One thread an element: neighbours read neighbours and write `rows` apart.
__global__ void naive(const float* __restrict__ x, float* __restrict__ y, int rows, int columns) {
    long long column = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    long long row = static_cast<long long>(blockIdx.y) * blockDim.y + threadIdx.y;
    if (row < rows && column < columns) y[column * rows + row] = x[row * columns + column];
}

// A tile of 32×32 turns in shared memory, its rows `32 + PAD` apart; blocks of 32 × 8 threads, four rows each.
template <int PAD>
__device__ __forceinline__ void turn(const float* __restrict__ x, float* __restrict__ y, int rows, int columns) {
    __shared__ float tile[32][32 + PAD];
    int top = blockIdx.y * 32, left = blockIdx.x * 32;
#pragma unroll
    for (int k = threadIdx.y; k < 32; k += 8) {
        int row = top + k, column = left + threadIdx.x;
        if (row < rows && column < columns) tile[k][threadIdx.x] = x[static_cast<long long>(row) * columns + column];
    }
    __syncthreads();
#pragma unroll
    for (int k = threadIdx.y; k < 32; k += 8) {
        int row = left + k, column = top + threadIdx.x;
        if (row < columns && column < rows) y[static_cast<long long>(row) * rows + column] = tile[threadIdx.x][k];
    }
}

// Reads and writes are coalesced; a column of the tile lies in one bank, so that a warp reads it in 32 turns.
__global__ void __launch_bounds__(256) tiled(const float* __restrict__ x, float* __restrict__ y, int rows,
                                             int columns) {
    turn<0>(x, y, rows, columns);
}

// One column more a row, and a column of the tile lies in 32 banks.
__global__ void __launch_bounds__(256) padded(const float* __restrict__ x, float* __restrict__ y, int rows,
                                              int columns) {
    turn<1>(x, y, rows, columns);
}

// A tile of 64×64, blocks of 16 × 16 threads: each turns 4×4 elements in its registers and moves sixteen bytes at a
// time, to shared memory too, where groups of four are swapped along a row so that eight threads meet eight bank
// groups both on the way in and on the way out. ALIGNED: pointers to 16 bytes, rows and columns multiples of four.
template <bool ALIGNED>
__global__ void __launch_bounds__(256) vectorised(const float* __restrict__ x, float* __restrict__ y, int rows,
                                                  int columns) {
    __shared__ float4 tile[64][16];
    int tx = threadIdx.x, ty = threadIdx.y, top = blockIdx.y * 64, left = blockIdx.x * 64;
    float4 v[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int row = top + 4 * ty + i;
        v[i] = row < rows ? load4<ALIGNED>(x + static_cast<long long>(row) * columns, left + 4 * tx, columns)
                          : make_float4(0, 0, 0, 0);
    }
    int place = ty ^ (tx & 7);
    tile[4 * tx + 0][place] = make_float4(v[0].x, v[1].x, v[2].x, v[3].x);
    tile[4 * tx + 1][place] = make_float4(v[0].y, v[1].y, v[2].y, v[3].y);
    tile[4 * tx + 2][place] = make_float4(v[0].z, v[1].z, v[2].z, v[3].z);
    tile[4 * tx + 3][place] = make_float4(v[0].w, v[1].w, v[2].w, v[3].w);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int row = left + 4 * ty + i;
        if (row < columns) {
            float4 turned = tile[4 * ty + i][tx ^ (ty & 7)];
            store4<ALIGNED>(y + static_cast<long long>(row) * rows, top + 4 * tx, rows, turned);
        }
    }
}
