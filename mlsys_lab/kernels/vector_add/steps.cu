// z = x + y of n floats.

// One thread an element.
__global__ void naive(const float* __restrict__ x, const float* __restrict__ y,
                      float* __restrict__ z, long long n) {
    long long i =
        static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < n) z[i] = x[i] + y[i];
}

// As many threads as fill the device, each going on by the size of the whole grid.
__global__ void grid_stride(const float* __restrict__ x, const float* __restrict__ y, float* __restrict__ z,
                            long long n) {
    long long stride = static_cast<long long>(gridDim.x) * blockDim.x;
    for (long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += stride) {
        z[i] = x[i] + y[i];
    }
}

// Sixteen bytes at once; the last n % 4 elements one by one. Needs pointers aligned to 16 bytes.
__global__ void vectorised(const float* __restrict__ x, const float* __restrict__ y, float* __restrict__ z,
                           long long n) {
    const float4* x4 = reinterpret_cast<const float4*>(x);
    const float4* y4 = reinterpret_cast<const float4*>(y);
    float4* z4 = reinterpret_cast<float4*>(z);
    long long stride = static_cast<long long>(gridDim.x) * blockDim.x;
    long long first = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    for (long long i = first; i < n / 4; i += stride) {
        float4 a = x4[i], b = y4[i];
        z4[i] = make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
    }
    for (long long i = n / 4 * 4 + first; i < n; i += stride) z[i] = x[i] + y[i];
}
