// Brightness of a picture: RED·red + GREEN·green + BLUE·blue of each pixel.
constexpr float RED = 0.299f, GREEN = 0.587f, BLUE = 0.114f;  // WEIGHTS of this folder's __init__.py

// The three numbers of a pixel lie side by side: a warp's load takes every third number.
__global__ void interleaved(const float* __restrict__ picture, float* __restrict__ brightness, long long pixels) {
    long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= pixels) return;
    brightness[i] = RED * picture[3 * i] + GREEN * picture[3 * i + 1] + BLUE * picture[3 * i + 2];
}

// One plane after the other: a warp's load takes 32 numbers in a row.
__global__ void planar(const float* __restrict__ picture, float* __restrict__ brightness, long long pixels) {
    long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= pixels) return;
    brightness[i] = RED * picture[i] + GREEN * picture[pixels + i] + BLUE * picture[2 * pixels + i];
}

// Interleaved, four pixels a thread: three loads of sixteen bytes, one store; the last pixels % 4 one by one.
// Needs pointers aligned to 16 bytes.
__global__ void vectorised(const float* __restrict__ picture, float* __restrict__ brightness, long long pixels) {
    long long i = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (4 * i + 3 < pixels) {
        const float4* quads = reinterpret_cast<const float4*>(picture) + 3 * i;
        float4 a = quads[0], b = quads[1], c = quads[2];
        reinterpret_cast<float4*>(brightness)[i] = make_float4(
            RED * a.x + GREEN * a.y + BLUE * a.z, RED * a.w + GREEN * b.x + BLUE * b.y,
            RED * b.z + GREEN * b.w + BLUE * c.x, RED * c.y + GREEN * c.z + BLUE * c.w);
    } else {
        for (long long k = 4 * i; k < pixels; k++) {
            brightness[k] = RED * picture[3 * k] + GREEN * picture[3 * k + 1] + BLUE * picture[3 * k + 2];
        }
    }
}
