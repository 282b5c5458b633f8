// Four neighbouring floats of a row as one float4, at the edge of a matrix too.
// ALIGNED: the row starts at a multiple of 16 bytes, and `column` and `width` are multiples of four.
#pragma once

// row[column … column + 3], zeros from `width` on.
template <bool ALIGNED>
__device__ __forceinline__ float4 load4(const float* row, int column, int width) {
    if constexpr (ALIGNED) {
        return column < width ? *reinterpret_cast<const float4*>(row + column) : make_float4(0, 0, 0, 0);
    } else {
        return make_float4(column < width ? row[column] : 0.0f, column + 1 < width ? row[column + 1] : 0.0f,
                           column + 2 < width ? row[column + 2] : 0.0f, column + 3 < width ? row[column + 3] : 0.0f);
    }
}

// row[column … column + 3] = v, but for what lies at `width` or beyond.
template <bool ALIGNED>
__device__ __forceinline__ void store4(float* row, int column, int width, float4 v) {
    if constexpr (ALIGNED) {
        if (column < width) *reinterpret_cast<float4*>(row + column) = v;
    } else {
        if (column < width) row[column] = v.x;
        if (column + 1 < width) row[column + 1] = v.y;
        if (column + 2 < width) row[column + 2] = v.z;
        if (column + 3 < width) row[column + 3] = v.w;
    }
}
