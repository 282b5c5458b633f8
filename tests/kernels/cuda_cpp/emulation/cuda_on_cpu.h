// CUDA C++ on a CPU, to see whether a kernel is right: the threads of a block are fibers that run one at a time, each
// up to its next barrier; a warp runs on as far as it can before the next one starts, and blocks run one after another.
// Slow, and deterministic: in either order of blocks, warps and threads.
#pragma once
#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __shared__ static  // one block runs at a time

struct dim3 {
    unsigned x = 1, y = 1, z = 1;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(4) uchar4 {
    unsigned char x, y, z, w;
};
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uchar4 make_uchar4(unsigned char x, unsigned char y, unsigned char z, unsigned char w) { return {x, y, z, w}; }
using std::max;
using std::min;

namespace emulation {

enum State { RUNNING, AT_BLOCK_BARRIER, AT_WARP_BARRIER, DONE };

struct Copy {
    void* to;
    const void* from;
    bool valid;
};

// A fiber is entered by its context once, and left and taken up again by jumps, which cost no system call.
struct Thread {
    ucontext_t context;
    jmp_buf paused;
    bool entered = false;
    std::vector<char> stack = std::vector<char>(256 << 10);
    State state = DONE;
    dim3 index;
    unsigned number = 0;
    alignas(16) unsigned char shown[64];  // what the lane shows its warp
    std::vector<Copy> started;
    std::vector<std::vector<Copy>> groups;
};

inline std::vector<Thread> threads;
inline Thread* current = nullptr;
inline jmp_buf scheduler;
inline const std::function<void()>* body = nullptr;
inline dim3 block_index, block_extent, grid_extent;
inline std::vector<float4> shared_memory;

inline void yield(State state) {
    current->state = state;
    if (!_setjmp(current->paused)) _longjmp(scheduler, 1);
}

inline void fiber() {
    (*body)();
    current->state = DONE;
    _longjmp(scheduler, 1);
}

inline void run_on(Thread& thread) {
    current = &thread;
    if (_setjmp(scheduler)) return;
    if (thread.entered) _longjmp(thread.paused, 1);
    thread.entered = true;
    setcontext(&thread.context);
}

// Frees the threads of [first, last) if all that live wait at this barrier.
inline bool release(size_t first, size_t last, State barrier) {
    bool any = false;
    for (size_t i = first; i < last; i++) {
        if (threads[i].state == barrier) any = true;
        else if (threads[i].state != DONE) return false;
    }
    for (size_t i = first; any && i < last; i++) {
        if (threads[i].state == barrier) threads[i].state = RUNNING;
    }
    return any;
}

// 0, or 1 where threads wait for others that never come.
inline int run_block(bool reversed) {
    size_t count = threads.size();
    for (size_t i = 0; i < count; i++) {
        Thread& t = threads[i];
        unsigned n = unsigned(i);
        t.index = {n % block_extent.x, n / block_extent.x % block_extent.y, n / (block_extent.x * block_extent.y)};
        t.number = n, t.state = RUNNING, t.entered = false, t.started.clear(), t.groups.clear();
        getcontext(&t.context);
        t.context.uc_stack.ss_sp = t.stack.data(), t.context.uc_stack.ss_size = t.stack.size();
        t.context.uc_link = nullptr;  // a fiber never returns
        makecontext(&t.context, fiber, 0);
    }
    std::memset(static_cast<void*>(shared_memory.data()), 0xff, shared_memory.size() * sizeof(float4));
    size_t warps = (count + 31) / 32;
    do {
        for (size_t i = 0; i < warps; i++) {
            size_t first = (reversed ? warps - 1 - i : i) * 32, last = std::min(first + 32, count);
            do {
                for (size_t k = first; k < last; k++) {
                    Thread& t = threads[reversed ? last - 1 - (k - first) : k];
                    if (t.state == RUNNING) run_on(t);
                }
            } while (release(first, last, AT_WARP_BARRIER));
        }
    } while (release(0, count, AT_BLOCK_BARRIER));
    return std::all_of(threads.begin(), threads.end(), [](const Thread& t) { return t.state == DONE; }) ? 0 : 1;
}

inline int launch(dim3 grid, dim3 block, size_t shared_bytes, bool reversed, const std::function<void()>& kernel) {
    grid_extent = grid, block_extent = block, body = &kernel;
    threads.resize(size_t(block.x) * block.y * block.z);
    shared_memory.resize(shared_bytes / sizeof(float4) + 1);
    size_t blocks = size_t(grid.x) * grid.y * grid.z;
    for (size_t i = 0; i < blocks; i++) {
        unsigned n = unsigned(reversed ? blocks - 1 - i : i);
        block_index = {n % grid.x, n / grid.x % grid.y, n / (grid.x * grid.y)};
        if (run_block(reversed)) return 1;
    }
    return 0;
}

template <class T>
T* dynamic_shared() {
    return reinterpret_cast<T*>(shared_memory.data());
}

// What the lane shows, to be read by the lanes of its warp between two barriers.
template <class T>
void show(const T& value) {
    static_assert(sizeof(T) <= sizeof(Thread::shown));
    std::memcpy(current->shown, &value, sizeof(T));
    yield(AT_WARP_BARRIER);
}

template <class T>
T shown_by(unsigned lane) {
    T value;
    std::memcpy(&value, threads[current->number / 32 * 32 + lane].shown, sizeof(T));
    return value;
}

inline unsigned lane() { return current->number % 32; }

}  // namespace emulation

#define threadIdx (emulation::current->index)
#define blockIdx (emulation::block_index)
#define blockDim (emulation::block_extent)
#define gridDim (emulation::grid_extent)

inline void __syncthreads() { emulation::yield(emulation::AT_BLOCK_BARRIER); }
inline void __syncwarp() { emulation::yield(emulation::AT_WARP_BARRIER); }
inline void __threadfence() {}

inline float __shfl_down_sync(unsigned, float value, unsigned apart) {
    emulation::show(value);
    unsigned from = emulation::lane() + apart;
    float found = from < 32 ? emulation::shown_by<float>(from) : value;
    __syncwarp();
    return found;
}

template <class T>
T atomicAdd(T* to, T value) {
    T before = *to;
    *to += value;
    return before;
}
