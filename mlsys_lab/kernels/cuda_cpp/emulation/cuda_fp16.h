// What kernels use of CUDA's header of this name.
#pragma once
#include "narrow.h"

typedef emulation::Narrow<11> __half;
typedef __half half;
EMULATION_NARROW(__half)
inline __half __float2half(float value) { return value; }
inline __half __float2half_rn(float value) { return value; }
inline float __half2float(__half value) { return value; }
