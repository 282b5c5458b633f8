// CUDA C++ on a CPU, to see whether a kernel is right: the threads of a block are fibers that run one at a time, each
// up to its next barrier; a warp runs on as far as it can before the next one starts, and blocks run one after another.
// Slow, and deterministic: in either order of blocks, warps and threads. Shared memory holds NaN when a block begins.
// What is launched lies in a file that the program shares: 64-bit words for the pages that the kernel may touch (how many
// ranges, then where each begins and ends), for its arguments (where each lies, how many bytes before that its array
// begins, and of rows that lie apart how many there are, the bytes of each and those from one to the next), then extents
// of grid and block, bytes of dynamic shared memory, order, number of blocks and which; then what lies there.
#pragma once
#include <fcntl.h>
#include <link.h>
#include <setjmp.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <ucontext.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <type_traits>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__
#define EMULATION_NAMED(number) "constants" #number
#define EMULATION_SECTION(number) __attribute__((section(EMULATION_NAMED(number))))
#define __constant__ EMULATION_SECTION(__COUNTER__)  // apart from variables, of which a kernel may have none
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __shared__ thread_local  // one block runs at a time; of what is so declared, `clear_shared` finds the place

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
T __ldg(const T* from) {
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

const size_t STACK_BYTES = 256 << 10;

enum State { RUNNING, AT_BLOCK_BARRIER, AT_WARP_BARRIER, DONE };
enum Ending { ALL_DONE, WAITING, APART, NO_ROOM };  // of a program, as its exit status

// A barrier in the text: one number for each place where it is written, and the line.
struct Barrier {
    int number, line;
};

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
    std::unique_ptr<char[]> stack{new char[STACK_BYTES]};
    State state = DONE;
    Barrier barrier;  // where it waits for its block
    dim3 index;
    unsigned number = 0;
    alignas(16) unsigned char shown[64];  // what the lane shows its warp
    std::vector<Copy> started;
    std::vector<std::vector<Copy>> groups;
};

inline std::vector<Thread> threads;
inline Thread* current = nullptr;
inline jmp_buf scheduler;
inline void (*body)(const void*) = nullptr;
inline const void* kernel = nullptr;
inline dim3 block_index, block_extent, grid_extent;
inline std::vector<float4> shared_memory;

inline void yield(State state) {
    current->state = state;
    if (!_setjmp(current->paused)) _longjmp(scheduler, 1);
}

inline void wait_for_block(Barrier barrier) {
    current->barrier = barrier;
    yield(AT_BLOCK_BARRIER);
}

inline void fiber() {
    body(kernel);
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

// Whether all threads that wait for their block do so at one barrier; says the lines where they do not.
inline bool are_together() {
    const Thread* first = nullptr;
    for (const Thread& t : threads) {
        if (t.state != AT_BLOCK_BARRIER) continue;
        if (!first) first = &t;
        if (t.barrier.number == first->barrier.number) continue;
        int one = first->barrier.line, other = t.barrier.line;
        std::fprintf(stderr, "%d %d", min(one, other), max(one, other));
        return false;
    }
    return true;
}

// What the program declares as __shared__ is all that it has of its own for a thread: of several files the first.
inline int clear_shared(dl_phdr_info* file, size_t, void*) {
    for (int i = 0; i < file->dlpi_phnum; i++) {
        if (file->dlpi_phdr[i].p_type == PT_TLS) std::memset(file->dlpi_tls_data, 0xff, file->dlpi_phdr[i].p_memsz);
    }
    return 1;
}

inline Ending run_block(bool reversed) {
    size_t count = threads.size();
    for (size_t i = 0; i < count; i++) {
        Thread& t = threads[i];
        unsigned n = unsigned(i);
        t.index = {n % block_extent.x, n / block_extent.x % block_extent.y, n / (block_extent.x * block_extent.y)};
        t.number = n, t.state = RUNNING, t.entered = false, t.started.clear(), t.groups.clear();
        getcontext(&t.context);
        t.context.uc_stack.ss_sp = t.stack.get(), t.context.uc_stack.ss_size = STACK_BYTES;
        t.context.uc_link = nullptr;  // a fiber never returns
        makecontext(&t.context, fiber, 0);
    }
    std::memset(static_cast<void*>(shared_memory.data()), 0xff, shared_memory.size() * sizeof(float4));
    dl_iterate_phdr(clear_shared, nullptr);
    size_t warps = (count + 31) / 32;
    do {
        for (size_t i = 0; i < warps; i++) {
            size_t first = (reversed ? warps - 1 - i : i) * 32, last = min(first + 32, count);
            do {
                for (size_t k = first; k < last; k++) {
                    Thread& t = threads[reversed ? last - 1 - (k - first) : k];
                    if (t.state == RUNNING) run_on(t);
                }
            } while (release(first, last, AT_WARP_BARRIER));
        }
        if (!are_together()) return APART;
    } while (release(0, count, AT_BLOCK_BARRIER));
    for (const Thread& t : threads) {
        if (t.state != DONE) return WAITING;
    }
    return ALL_DONE;
}

// Pages of the file at places so far apart, with nothing between that can be touched.
inline char* spread(int file, uint64_t place, uint64_t rows, uint64_t bytes, uint64_t pitch) {
    const size_t guard = 1 << 20;
    size_t reach = (rows - 1) * pitch + bytes;
    void* all = mmap(nullptr, reach + 2 * guard, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED) _exit(NO_ROOM);
    char* first = static_cast<char*>(all) + guard;
    for (uint64_t row = 0; row < rows; row++) {
        mmap(first + row * pitch, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, place + row * bytes);
    }
    return first;
}

// The file, mapped; of its pages the kernel can touch those that hold an argument.
struct Given {
    std::vector<char*> arguments;
    const uint64_t* launch;

    Given(const char* path, size_t count) {
        int file = open(path, O_RDWR);
        struct stat found;
        fstat(file, &found);
        char* start = static_cast<char*>(mmap(nullptr, found.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
        const uint64_t* ranges = reinterpret_cast<const uint64_t*>(start);
        uint64_t held = *ranges++;
        for (uint64_t i = 0; i < held; i++) {
            uint64_t end = ranges[2 * i + 1], next = i + 1 < held ? ranges[2 * i + 2] : found.st_size;
            mprotect(start + end, next - end, PROT_NONE);
        }
        const uint64_t* words = ranges + 2 * held;
        for (size_t i = 0; i < count; i++, words += 5) {
            char* place = words[2] ? spread(file, words[0], words[2], words[3], words[4]) : start + words[0];
            arguments.push_back(place - words[1]);
        }
        launch = words;
    }

    // An argument of the kernel: the address of a tensor, or a number.
    template <class T>
    T at(size_t argument) const {
        if constexpr (std::is_pointer_v<T>) return reinterpret_cast<T>(arguments[argument]);
        else return *reinterpret_cast<T*>(arguments[argument]);
    }
};

template <class Kernel>
int launch(const Given& given, const Kernel& called) {
    kernel = &called, body = [](const void* one) { (*static_cast<const Kernel*>(one))(); };
    std::vector<unsigned> e(given.launch, given.launch + 6);
    grid_extent = {e[0], e[1], e[2]}, block_extent = {e[3], e[4], e[5]};
    threads.resize(size_t(e[3]) * e[4] * e[5]);
    shared_memory.resize(given.launch[6] / sizeof(float4) + 1);
    bool reversed = given.launch[7];
    size_t blocks = given.launch[8];
    for (size_t i = 0; i < blocks; i++) {
        unsigned n = unsigned(given.launch[9 + (reversed ? blocks - 1 - i : i)]);
        block_index = {n % e[0], n / e[0] % e[1], n / (e[0] * e[1])};
        if (Ending how = run_block(reversed)) return how;
    }
    return ALL_DONE;
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

#define __syncthreads() emulation::wait_for_block({__COUNTER__, __LINE__})
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
