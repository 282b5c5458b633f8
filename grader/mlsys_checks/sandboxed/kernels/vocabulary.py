"""Names that a kernel may use besides its own, for `mlsys_checks.sandboxed.kernels.language`.

Excluded of Numba and Triton: printing, assembly, pointers made from numbers, and whatever is not arithmetic, a load, a
store or a barrier.
"""

from __future__ import annotations

import re


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


BUILTINS = _words("range min max abs int float bool len")
MATH = _words(
    """acos asin atan atan2 ceil copysign cos cosh e erf erfc exp expm1 fabs floor fmod hypot inf isfinite isinf isnan
    lgamma log log10 log1p log2 nan pi pow sin sinh sqrt tan tanh trunc"""
)
NUMBER_TYPES = _words("boolean float16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64")
TYPES_OF = {"np": "numpy", "numpy": "numpy", "numba": "numba", "nb": "numba", "types": "numba.types"}
"""Names under which Numba kernels know a library's number types (`np.float32`), and nothing else of it."""
CUDA = _words(
    """threadIdx.x threadIdx.y threadIdx.z blockIdx.x blockIdx.y blockIdx.z blockDim.x blockDim.y blockDim.z
    gridDim.x gridDim.y gridDim.z grid gridsize laneid warpsize
    shared.array local.array syncthreads syncthreads_and syncthreads_count syncthreads_or syncwarp
    threadfence threadfence_block
    all_sync any_sync ballot_sync shfl_sync shfl_up_sync shfl_down_sync shfl_xor_sync
    atomic.add atomic.and_ atomic.cas atomic.compare_and_swap atomic.dec atomic.exch atomic.inc atomic.max atomic.min
    atomic.or_ atomic.sub atomic.xor
    brev clz ffs fma popc selp"""
)
TRITON = _words(
    """program_id num_programs range static_range static_assert constexpr assume
    load store make_block_ptr advance make_tensor_descriptor debug_barrier
    atomic_add atomic_and atomic_cas atomic_max atomic_min atomic_or atomic_xchg atomic_xor
    arange full zeros zeros_like broadcast broadcast_to cast cat expand_dims flip gather interleave join permute ravel
    reshape split trans view where
    argmax argmin associative_scan cumprod cumsum dot histogram max min reduce softmax sort sum xor_sum
    abs cdiv ceil clamp cos div_rn erf exp exp2 fdiv floor fma log log2 maximum minimum rsqrt sigmoid sin sqrt sqrt_rn
    umulhi
    max_constancy max_contiguous multiple_of
    bfloat16 float16 float32 float64 int1 int8 int16 int32 int64 uint8 uint16 uint32 uint64
    math.abs math.ceil math.cos math.div_rn math.erf math.exp math.exp2 math.fdiv math.floor math.fma math.log math.log2
    math.rsqrt math.sin math.sqrt math.sqrt_rn math.umulhi"""
)
ANNOTATIONS = frozenset(["tl.constexpr", "bool", "float", "int", "tl.float32", "tl.int32", "tl.int64"])
"""Parameter annotations that mean something to Triton: a constant, or a number type (no narrow one)."""
TYPE_WORD = re.compile(r"const|(?:^|\.)(?:bool|half|double|void|u?int|b?float|bf|fp|i|u)(?:\d\w*|_t)?$")
"""Pattern of annotations that mean something to Triton: a constant, or one of its type names."""
MODULES = {"cuda": CUDA, "tl": TRITON, "math": MATH}
DIALECTS = {"cuda.jit": ("cuda", "math"), "triton.jit": ("tl",)}
"""Modules that a kernel may name, by decorator; under these names only."""
PRINTS_NOTHING = "a kernel in these checks prints nothing: look at what it stores, or at its trace"
REQUESTED = {
    "tl.swizzle2d": "write it out, from the program's number: a lab asks for it",
    "tl.pointer_type": "a kernel has the addresses of its parameters: let a table hold offsets into one of these",
    **dict.fromkeys(("tl.tanh", "tl.math.tanh"), "2 * tl.sigmoid(2 * x) - 1"),
    **dict.fromkeys(("tl.static_print", "tl.device_print"), PRINTS_NOTHING),
}
"""Names that learners try and kernels may not use, each with what to do instead."""
ATTRIBUTES = {
    "cuda.jit": _words("dtype ndim shape size"),
    "triton.jit": _words(
        """T abs argmax argmin broadcast_to cast ceil cos cumsum dtype element_ty erf exp exp2 expand_dims floor load
        log log2 max min ndim numel permute ravel reshape rsqrt shape sigmoid sin split sqrt store sum to trans view"""
    ),
}
"""Attributes and methods of arrays, blocks, descriptors and their types that kernels may use, by decorator."""
RESERVED = BUILTINS | NUMBER_TYPES | frozenset([*MODULES, "triton"])
