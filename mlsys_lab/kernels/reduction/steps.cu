// The sum of n floats. The first three steps leave one partial sum a block and are launched again on these until one is
// left; the last does it in one launch. Blocks of THREADS threads, a power of two from 32 to 1024.

// A tree whose partners are 1, 2, 4 … apart: in every warp some threads add and the others wait.
template <int THREADS>
__global__ void interleaved(const float* __restrict__ x, float* __restrict__ sums, long long n) {
    __shared__ float part[THREADS];
    int t = threadIdx.x;
    long long i = static_cast<long long>(blockIdx.x) * THREADS + t;
    part[t] = i < n ? x[i] : 0.0f;
    __syncthreads();
    for (int apart = 1; apart < THREADS; apart *= 2) {
        if (t % (2 * apart) == 0) part[t] += part[t + apart];
        __syncthreads();
    }
    if (t == 0) sums[blockIdx.x] = part[0];
}

// A tree whose partners are THREADS / 2 … 4, 2, 1 apart: the threads that add are neighbours, whole warps retire.
template <int THREADS>
__global__ void sequential(const float* __restrict__ x, float* __restrict__ sums, long long n) {
    __shared__ float part[THREADS];
    int t = threadIdx.x;
    long long i = static_cast<long long>(blockIdx.x) * THREADS + t;
    part[t] = i < n ? x[i] : 0.0f;
    __syncthreads();
    for (int apart = THREADS / 2; apart > 0; apart /= 2) {
        if (t < apart) part[t] += part[t + apart];
        __syncthreads();
    }
    if (t == 0) sums[blockIdx.x] = part[0];
}

// The sum over a warp, in lane 0: values pass from register to register.
__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) value += __shfl_down_sync(0xffffffffu, value, apart);
    return value;
}

// The sum over a block, in thread 0: shared memory holds one number a warp.
template <int THREADS>
__device__ __forceinline__ float block_sum(float value) {
    __shared__ float part[THREADS / 32];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    value = warp_sum(value);
    if (lane == 0) part[warp] = value;
    __syncthreads();
    value = lane < THREADS / 32 ? part[lane] : 0.0f;
    return warp == 0 ? warp_sum(value) : 0.0f;
}

template <int THREADS>
__global__ void warp_shuffle(const float* __restrict__ x, float* __restrict__ sums, long long n) {
    long long i = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x;
    float sum = block_sum<THREADS>(i < n ? x[i] : 0.0f);
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

// Every thread first adds many elements, LOADS loads of sixteen bytes at a time; the block that is the last to finish
// adds the blocks' sums, always in the same order. `finished` is 0 before the launch and after it. Needs a grid that is
// no larger than `sums` and x aligned to 16 bytes.
template <int THREADS, int LOADS>
__global__ void one_pass(const float* __restrict__ x, float* __restrict__ sums, unsigned* __restrict__ finished,
                         float* __restrict__ total, long long n) {
    const float4* x4 = reinterpret_cast<const float4*>(x);
    long long stride = static_cast<long long>(gridDim.x) * THREADS;
    long long i = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x;
    long long tail = n / 4 * 4 + i;
    float partial[LOADS] = {};
    for (; i + (LOADS - 1) * stride < n / 4; i += LOADS * stride) {
        float4 v[LOADS];
#pragma unroll
        for (int k = 0; k < LOADS; k++) v[k] = x4[i + k * stride];
#pragma unroll
        for (int k = 0; k < LOADS; k++) partial[k] += (v[k].x + v[k].y) + (v[k].z + v[k].w);
    }
    for (; i < n / 4; i += stride) {
        float4 v = x4[i];
        partial[0] += (v.x + v.y) + (v.z + v.w);
    }
    if (tail < n) partial[0] += x[tail];
#pragma unroll
    for (int k = 1; k < LOADS; k++) partial[0] += partial[k];
    float sum = block_sum<THREADS>(partial[0]);

    __shared__ bool last;
    if (threadIdx.x == 0) {
        sums[blockIdx.x] = sum;
        __threadfence();
        last = atomicAdd(finished, 1u) == gridDim.x - 1;
    }
    __syncthreads();
    if (!last) return;
    __threadfence();
    float rest = 0.0f;
    for (int block = threadIdx.x; block < gridDim.x; block += THREADS) {
        rest += *const_cast<volatile float*>(sums + block);
    }
    rest = block_sum<THREADS>(rest);
    if (threadIdx.x == 0) {
        *total = rest;
        *finished = 0;
    }
}
