// What kernels use of CUDA's header of this name.
#pragma once
#include "narrow.h"

typedef emulation::Narrow<8> __nv_bfloat16;
typedef __nv_bfloat16 nv_bfloat16;
EMULATION_NARROW(__nv_bfloat16)
inline __nv_bfloat16 __float2bfloat16(float value) { return value; }
inline __nv_bfloat16 __float2bfloat16_rn(float value) { return value; }
inline float __bfloat162float(__nv_bfloat16 value) { return value; }
