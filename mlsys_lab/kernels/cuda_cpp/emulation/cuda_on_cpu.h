// CUDA C++ on a CPU, to see whether a kernel is right: what a kernel's text is compiled against. The threads of a block
// are fibers that run one at a time, each up to its next barrier; a warp runs on as far as it can before the next one
// starts, and blocks run one after another: slow, and deterministic, in either order of blocks, warps and threads.
// g++ reports each load and store of the text to runtime.cpp, which knows the arrays and the order of accesses.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <type_traits>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__
#define EMULATION_NAMED(number) "constants" #number
#define EMULATION_SECTION(number) __attribute__((section(EMULATION_NAMED(number))))
#define __constant__ EMULATION_SECTION(__COUNTER__)  // apart from variables, of which a kernel may have none
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
// One block runs at a time; symbols tell where each array lies. Else arrays of a class would have guard variables.
#define __shared__ __attribute__((used)) __constinit thread_local

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(4) uchar4 {
    unsigned char x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uchar4 make_uchar4(unsigned char x, unsigned char y, unsigned char z, unsigned char w) { return {x, y, z, w}; }
template <class T>
__forceinline__ T __ldg(const T* from) {
    return *from;
}
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
template <class A, class B>
constexpr std::common_type_t<A, B> min(A a, B b) {
    return b < a ? b : a;
}
template <class A, class B>
constexpr std::common_type_t<A, B> max(A a, B b) {
    return a < b ? b : a;
}

namespace emulation {

enum Kind { LOAD, STORE, ATOMIC };

// A barrier in the text: one number for each place where it is written, and the line.
struct Barrier {
    int number, line;
};

extern dim3 thread_index, block_index, block_extent, grid_extent;

void wait_for_block(Barrier barrier);
void wait_for_warp(bool orders_memory);
void let_others_run();  // who takes a lock meets others that want it
void fence();
void touch(Kind kind, const void* address, size_t bytes, const void* from);  // before the access, which is made `from`
void start_copy(void* to, const void* from, bool valid, const void* place);
void close_copies();
void finish_copies(size_t pending);
unsigned lane();
unsigned char (&shown(unsigned lane))[64];  // what a lane of this thread's warp shows the others
extern char* dynamic_shared_memory;
int launch(char** given, std::initializer_list<unsigned> sizes, void (*called)(char* const* arguments));

template <class T>
T* dynamic_shared() {
    return reinterpret_cast<T*>(dynamic_shared_memory);
}

// Of a function that tells of its accesses itself, at the line that calls it.
#define EMULATION_TELLS __attribute__((noinline, no_sanitize("thread")))
#define EMULATION_CALLER __builtin_return_address(0)

template <class T, class Change>
EMULATION_TELLS T update(T* at, const void* from, Change change) {
    touch(ATOMIC, at, sizeof(T), from);
    T before = *at;
    *at = change(before);
    let_others_run();
    return before;
}

// What the lane shows, to be read by the lanes of its warp between two barriers.
template <class T>
void show(const T& value) {
    static_assert(sizeof(T) <= 64);
    std::memcpy(shown(lane()), &value, sizeof(T));
    wait_for_warp(false);
}

template <class T>
T shown_by(unsigned lane) {
    T value;
    std::memcpy(&value, shown(lane), sizeof(T));
    return value;
}

template <class T>
T shuffle(T value, int from, bool inside) {
    show(value);
    T found = inside ? shown_by<T>(from) : value;
    wait_for_warp(false);
    return found;
}

}  // namespace emulation

#define threadIdx (emulation::thread_index)
#define blockIdx (emulation::block_index)
#define blockDim (emulation::block_extent)
#define gridDim (emulation::grid_extent)

#define __syncthreads() emulation::wait_for_block({__COUNTER__, __LINE__})
inline void __syncwarp(unsigned = 0xffffffffu) { emulation::wait_for_warp(true); }
inline void __threadfence() { emulation::fence(); }

template <class T>
T __shfl_sync(unsigned, T value, int lane, int width = 32) {
    return emulation::shuffle(value, emulation::lane() / width * width + unsigned(lane) % width, true);
}
template <class T>
T __shfl_up_sync(unsigned, T value, unsigned apart, int width = 32) {
    return emulation::shuffle(value, emulation::lane() - apart, emulation::lane() % width >= apart);
}
template <class T>
T __shfl_down_sync(unsigned, T value, unsigned apart, int width = 32) {
    return emulation::shuffle(value, emulation::lane() + apart, emulation::lane() % width + apart < unsigned(width));
}
template <class T>
T __shfl_xor_sync(unsigned, T value, int flip, int width = 32) {
    unsigned from = emulation::lane() ^ flip;
    return emulation::shuffle(value, from, from / width <= emulation::lane() / width);
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
    emulation::show(predicate != 0);
    unsigned found = 0;
    for (unsigned i = 0; i < 32; i++) found |= unsigned(mask >> i & 1 && emulation::shown_by<bool>(i)) << i;
    emulation::wait_for_warp(false);
    return found;
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, !predicate) == 0; }

#define EMULATION_ATOMIC(name, made)                                                     \
    template <class T>                                                                   \
    EMULATION_TELLS T name(T* at, std::common_type_t<T> value) {                         \
        return emulation::update(at, EMULATION_CALLER, [=](T old) -> T { return made; }); \
    }
EMULATION_ATOMIC(atomicAdd, old + value)
EMULATION_ATOMIC(atomicSub, old - value)
EMULATION_ATOMIC(atomicMin, value < old ? value : old)
EMULATION_ATOMIC(atomicMax, old < value ? value : old)
EMULATION_ATOMIC(atomicExch, value)
EMULATION_ATOMIC(atomicAnd, old & value)
EMULATION_ATOMIC(atomicOr, old | value)
EMULATION_ATOMIC(atomicXor, old ^ value)
template <class T>
EMULATION_TELLS T atomicCAS(T* at, std::common_type_t<T> expected, std::common_type_t<T> value) {
    return emulation::update(at, EMULATION_CALLER, [=](T old) -> T { return old == expected ? value : old; });
}
