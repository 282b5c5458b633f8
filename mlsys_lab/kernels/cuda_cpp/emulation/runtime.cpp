// Runs an emulated launch and watches each of its accesses.
//
// The launch lies in a file that the program shares: 64-bit words for its arguments (six each: where it lies, bytes of a
// row, rows, bytes from one row to the next in the file and in the array, and bytes of the array before the first row),
// then extents of grid and block, bytes of dynamic shared memory, order, number of blocks and which; then what lies there.
// Each tensor gets a range of addresses of its own, so large that what overruns one lands in no other. Arguments of the
// program are that file, and for each shared array `offset:bytes` among the program's thread-local variables.
//
// Two accesses are in order in one thread, across a barrier, and across a lock: what a thread did before a fence comes
// before what another does later, if after the fence the one, and then the other, have updated one word by atomics. (A
// fence after the latter is not asked for.) A faulty access ends the program with FAULT and a line on stderr.
#include "cuda_on_cpu.h"

#include <fcntl.h>
#include <link.h>
#include <setjmp.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <ucontext.h>
#include <unistd.h>

#include <cstdio>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

namespace emulation {

dim3 thread_index, block_index, block_extent, grid_extent;
char* dynamic_shared_memory;

namespace {

const size_t STACK_BYTES = 256 << 10;
// Of addresses; an array is amid its range. Linux maps a program's own memory above a sixth of 2^47, and as low as that
// only where its stack is unlimited.
const uintptr_t FIRST = uintptr_t(1) << 42, RANGE = uintptr_t(1) << 39;
const unsigned BLOCK = 1u << 31, WARP = 1u << 30;  // among the numbers of threads: all of a block, those of a warp

enum State { RUNNING, AT_BLOCK_BARRIER, AT_WARP_BARRIER, DONE };
enum Ending { ALL_DONE, WAITING, DIVERGED, NO_ADDRESSES, FAULT };  // of a program, as its exit status

// Who touched memory, where in the program, and when: by its fences, and the barriers of its block and of its warp.
struct Access {
    unsigned block, from, time = 0, phase, sync;  // time 0: there was none
    unsigned short thread;
    unsigned char kind;
};

// Of an element of global memory, or a byte of shared memory, the accesses that a later one may race with. Of loads and
// of atomics any two that are in no order: another store races with one of these at least.
struct Cell {
    Access store, atomics[2], loads[2];
};

// Up to when a thread knows what others did: by block and thread, the time; by block and warp or block, the barriers.
struct Known {
    std::map<std::pair<unsigned, unsigned>, unsigned> until;

    void note(unsigned block, unsigned who, unsigned time) {
        unsigned& known = until[{block, who}];
        known = max(known, time);
    }

    void add(const Known& other) {
        for (const auto& [who, time] : other.until) note(who.first, who.second, time);
    }

    bool has(const Access& a) const {
        auto at_least = [&](unsigned who, unsigned time) {
            auto found = until.find({a.block, who});
            return found != until.end() && found->second >= time;
        };
        return !until.empty() && (at_least(a.thread, a.time) || at_least(WARP | a.thread / 32, a.sync + 1) ||
                                  at_least(BLOCK, a.phase + 1));
    }
};

struct Copy {
    void* to;
    const void* from;
    bool valid;
    const void* place;
};

// A fiber is entered by its context once, and left and taken up again by jumps, which cost no system call.
struct Thread {
    ucontext_t context;
    jmp_buf paused;
    bool entered;
    std::unique_ptr<char[]> stack{new char[STACK_BYTES]};
    State state = DONE;
    Barrier barrier;  // where it waits for its block
    bool orders_memory;  // the barrier where it waits for its warp
    dim3 index;
    unsigned number, time, phase, sync;
    Known known, told;  // told: by its atomics since a fence
    alignas(16) unsigned char shown[64];
    std::vector<Copy> started;
    std::vector<std::vector<Copy>> groups;
};

struct Array {
    uintptr_t begin;  // of its first element, and as rows: bytes before the first, and of each
    size_t first, row, rows, pitch, cell_bytes;
    bool shared;
    Cell* cells;
};

std::vector<Thread> threads;
Thread* current;
jmp_buf scheduler;
void (*kernel)(char* const*);
std::vector<char*> arguments;
unsigned block_number;
std::vector<Array> arrays;  // one for each argument, dynamic shared memory, then what is declared __shared__
size_t windows;             // how many of them have a range of addresses
uintptr_t fixed_shared, fixed_shared_bytes;
std::map<uintptr_t, Known> published;  // by the word that atomics update

// A store in no order with another access: a race if it changes anything, which is known when it is done.
struct {
    size_t bytes = 0, array;
    ptrdiff_t offset;
    const void* at;
    std::vector<unsigned char> before;
    Access other, own;
} doubtful;

void tell(const char* what, size_t array, ptrdiff_t offset, size_t bytes, const Access& one, const Access& other) {
    std::fprintf(stderr, "%s %zu %td %zu", what, array, offset, bytes);
    for (const Access* a : {&one, &other}) std::fprintf(stderr, " %d %u %u %u", a->kind, a->from, a->block, a->thread);
    std::fprintf(stderr, "\n");
}

// A load from shared memory that nothing was written to: told when its block ends, for the store may come yet and race.
struct {
    size_t bytes = 0, array;
    ptrdiff_t offset;
    Access own;
} early;

[[noreturn]] void end_with_fault() { _exit(FAULT); }

void tell_race(size_t array, ptrdiff_t offset, size_t bytes, const Access& other, const Access& own) {
    bool turned = other.kind == LOAD;
    tell("race", array, offset, bytes, turned ? own : other, turned ? other : own);
    end_with_fault();
}

void end_if_early() {
    if (!early.bytes) return;
    tell("unwritten", early.array, early.offset, early.bytes, early.own, early.own);
    end_with_fault();
}

void settle() {
    if (!doubtful.bytes) return;
    bool changed = std::memcmp(doubtful.at, doubtful.before.data(), doubtful.bytes);
    static std::set<std::pair<unsigned, unsigned>> told;
    if (changed) tell_race(doubtful.array, doubtful.offset, doubtful.bytes, doubtful.other, doubtful.own);
    if (doubtful.other.kind == STORE && told.insert({doubtful.other.from, doubtful.own.from}).second) {
        tell("equal", doubtful.array, doubtful.offset, doubtful.bytes, doubtful.other, doubtful.own);
    }
    doubtful.bytes = 0;
}

bool is_ordered(const Access& a) {
    if (a.block == block_number) {
        if (a.thread == current->number || a.phase < current->phase) return true;
        if (a.thread / 32 == current->number / 32 && a.sync < current->sync) return true;
    }
    return current->known.has(a);
}

// Keeps an access in place of one that comes before it, or of another block's to shared memory, if there is any.
void keep(Access (&slots)[2], const Access& now, bool shared) {
    for (Access& one : slots) {
        if (one.time && !(shared && one.block != now.block) && !is_ordered(one)) continue;
        one = now;
        return;
    }
}

Array* find(uintptr_t at) {
    if (at - FIRST < windows * RANGE) return &arrays[(at - FIRST) / RANGE];
    if (at - fixed_shared >= fixed_shared_bytes) return nullptr;
    Array* nearest = nullptr;
    size_t least = ~size_t(0);
    for (size_t i = windows; i < arrays.size(); i++) {
        uintptr_t begin = arrays[i].begin, end = begin + arrays[i].row;
        size_t apart = at < begin ? begin - at : at < end ? 0 : at - end + 1;
        if (apart < least) least = apart, nearest = &arrays[i];
    }
    return nearest;
}

void yield(State state) {
    settle();
    current->state = state;
    if (!_setjmp(current->paused)) _longjmp(scheduler, 1);
}

void fiber() {
    kernel(arguments.data());
    settle();
    current->state = DONE;
    _longjmp(scheduler, 1);
}

void run_on(Thread& thread) {
    current = &thread, thread_index = thread.index;
    if (_setjmp(scheduler)) return;
    if (thread.entered) _longjmp(thread.paused, 1);
    thread.entered = true;
    setcontext(&thread.context);
}

// Frees the threads of [first, last) if all that live wait at this barrier; what one of them knows they all know then.
bool release(size_t first, size_t last, State barrier) {
    bool any = false, orders = barrier == AT_BLOCK_BARRIER;
    Known known;
    for (size_t i = first; i < last; i++) {
        if (threads[i].state == barrier) any = true;
        else if (threads[i].state != DONE) return false;
    }
    for (size_t i = first; any && i < last; i++) {
        Thread& t = threads[i];
        if (t.state != barrier) continue;
        orders = orders || t.orders_memory;
        known.add(t.known);
    }
    for (size_t i = first; any && i < last; i++) {
        Thread& t = threads[i];
        if (t.state != barrier) continue;
        t.state = RUNNING;
        if (!orders) continue;
        if (barrier == AT_BLOCK_BARRIER) t.phase++;
        else t.sync++;
        if (!known.until.empty()) t.known = known;
    }
    return any;
}

// Whether all threads that wait for their block do so at one barrier; says the lines where they do not.
bool are_together() {
    const Thread* first = nullptr;
    for (const Thread& t : threads) {
        if (t.state != AT_BLOCK_BARRIER) continue;
        if (!first) first = &t;
        if (t.barrier.number == first->barrier.number) continue;
        int one = first->barrier.line, other = t.barrier.line;
        std::fprintf(stderr, "lines %d and %d\n", min(one, other), max(one, other));
        return false;
    }
    return true;
}

Ending run_block(bool reversed) {
    size_t count = threads.size();
    for (size_t i = 0; i < count; i++) {
        Thread& t = threads[i];
        unsigned n = unsigned(i);
        t.index = {n % block_extent.x, n / block_extent.x % block_extent.y, n / (block_extent.x * block_extent.y)};
        t.number = n, t.state = RUNNING, t.entered = false, t.started.clear(), t.groups.clear();
        t.time = 1, t.phase = t.sync = 0, t.known = t.told = Known();
        getcontext(&t.context);
        t.context.uc_stack.ss_sp = t.stack.get(), t.context.uc_stack.ss_size = STACK_BYTES;
        t.context.uc_link = nullptr;  // a fiber never returns
        makecontext(&t.context, fiber, 0);
    }
    size_t warps = (count + 31) / 32;
    do {
        for (size_t i = 0; i < warps; i++) {
            size_t first = (reversed ? warps - 1 - i : i) * 32, last = min(first + 32, count);
            bool any;
            do {
                any = false;
                for (size_t k = first; k < last; k++) {
                    Thread& t = threads[reversed ? last - 1 - (k - first) : k];
                    if (t.state == RUNNING) run_on(t);
                    any = any || t.state == RUNNING;
                }
            } while (any || release(first, last, AT_WARP_BARRIER));
        }
        if (!are_together()) return DIVERGED;
    } while (release(0, count, AT_BLOCK_BARRIER));
    end_if_early();
    for (const Thread& t : threads) {
        if (t.state != DONE) return WAITING;
    }
    return ALL_DONE;
}

void* map(void* at, size_t bytes, int flags, int file, off_t place) {
    void* found = mmap(at, bytes, PROT_READ | PROT_WRITE, flags | (at ? MAP_FIXED_NOREPLACE : 0), file, place);
    if (found == MAP_FAILED || (at && found != at)) _exit(NO_ADDRESSES);
    return found;
}

void watch_array(Array array) {
    if (array.row) {
        size_t cells = (array.rows * array.row + array.cell_bytes - 1) / array.cell_bytes;
        int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
        array.cells = static_cast<Cell*>(map(nullptr, cells * sizeof(Cell), flags, -1, 0));
    }
    arrays.push_back(array);
}

// Gives an argument of the kernel its addresses; returns where it begins. `size` is an element's, 0 for a number.
char* place(int file, char* start, const uint64_t* words, unsigned size) {
    auto [at, row, rows, reach, pitch, first] = *reinterpret_cast<const uint64_t(*)[6]>(words);
    uintptr_t begin = FIRST + arrays.size() * RANGE + RANGE / 2;
    if (first + (rows - 1) * pitch + row > RANGE / 2) _exit(NO_ADDRESSES);
    watch_array({begin, first, size ? row : 0, rows, pitch, max(size, 1u), false, nullptr});
    if (!size) return start + at;
    for (uint64_t i = 0; i < rows && row; i++) {
        uintptr_t page = (begin + first + i * pitch) / 4096 * 4096;
        map(reinterpret_cast<void*>(page), reach, MAP_SHARED, file, at + i * reach);
    }
    return reinterpret_cast<char*>(begin);
}

int find_fixed_shared(dl_phdr_info* file, size_t, void*) {
    for (int i = 0; i < file->dlpi_phnum; i++) {
        if (file->dlpi_phdr[i].p_type != PT_TLS) continue;
        fixed_shared = reinterpret_cast<uintptr_t>(file->dlpi_tls_data);
        fixed_shared_bytes = file->dlpi_phdr[i].p_memsz;
    }
    return 1;  // of several files the first is the program
}

}  // namespace

void touch(Kind kind, const void* address, size_t bytes, const void* from) {
    Array* array = find(uintptr_t(address));
    if (!array || !current || !bytes) return;
    settle();
    size_t number = array - arrays.data();
    ptrdiff_t within = uintptr_t(address) - array->begin - array->first;  // of what is there of the array
    size_t row = array->rows > 1 ? size_t(within) / array->pitch : 0, in_row = within - row * array->pitch;
    Access now{block_number, unsigned(uintptr_t(from)), current->time, current->phase, current->sync};
    now.thread = current->number, now.kind = kind;
    if (within < 0 || row >= array->rows || in_row + bytes > array->row) {
        end_if_early();
        tell("bounds", number, within, bytes, now, now);
        end_with_fault();
    }
    if (kind == ATOMIC) {
        if (!current->told.until.empty()) {
            published[uintptr_t(address)].add(current->told);
            now.time = current->told.until[{block_number, current->number}];  // who knows that has seen this
        }
        auto known = published.find(uintptr_t(address));
        if (known != published.end()) current->known.add(known->second);
    }
    size_t start = row * array->row + in_row;
    for (size_t i = start / array->cell_bytes; i <= (start + bytes - 1) / array->cell_bytes; i++) {
        Cell& cell = array->cells[i];
        auto is_here = [&](const Access& a) { return a.time && (!array->shared || a.block == block_number); };
        bool written = !array->shared || is_here(cell.store);
        if (kind != STORE && !written && !early.bytes) {
            early.bytes = bytes, early.array = number, early.offset = within, early.own = now;
        }
        auto races = [&](const Access& a) { return is_here(a) && !is_ordered(a); };
        const Access* other = nullptr;
        if (races(cell.store)) other = &cell.store;
        for (int k = 0; k < 2 && !other; k++) {
            if (kind != ATOMIC && races(cell.atomics[k])) other = &cell.atomics[k];
            else if (kind != LOAD && races(cell.loads[k])) other = &cell.loads[k];
        }
        if (other && (kind != STORE || !written)) tell_race(number, within, bytes, *other, now);
        if (other && !doubtful.bytes) {
            auto* here = static_cast<const unsigned char*>(address);
            doubtful.before.assign(here, here + bytes);
            doubtful.bytes = bytes, doubtful.array = number, doubtful.offset = within, doubtful.at = address;
            doubtful.other = *other, doubtful.own = now;
        }
        if (kind == STORE) cell.store = now;
        else keep(kind == LOAD ? cell.loads : cell.atomics, now, array->shared);
    }
}

void wait_for_block(Barrier barrier) {
    current->barrier = barrier;
    yield(AT_BLOCK_BARRIER);
}

void wait_for_warp(bool orders_memory) {
    current->orders_memory = orders_memory;
    yield(AT_WARP_BARRIER);
}

void let_others_run() { yield(RUNNING); }

void fence() {
    current->told = current->known;
    current->told.note(block_number, current->number, current->time++);
    current->told.note(block_number, WARP | current->number / 32, current->sync);
    current->told.note(block_number, BLOCK, current->phase);
}

// A copy arrives no sooner than its group is waited for: who forgets to wait reads what was there before.
void start_copy(void* to, const void* from, bool valid, const void* place) {
    if (valid) touch(LOAD, from, 16, place);
    current->started.push_back({to, from, valid, place});
}

void close_copies() {
    current->groups.push_back(current->started);
    current->started.clear();
}

void finish_copies(size_t pending) {
    auto& groups = current->groups;
    while (groups.size() > pending) {
        for (const Copy& copy : groups.front()) {
            touch(STORE, copy.to, 16, copy.place);
            if (copy.valid) std::memcpy(copy.to, copy.from, 16);
            else std::memset(copy.to, 0, 16);
        }
        groups.erase(groups.begin());
    }
}

unsigned lane() { return current->number % 32; }

unsigned char (&shown(unsigned lane))[64] { return threads[current->number / 32 * 32 + lane].shown; }

int launch(char** given, std::initializer_list<unsigned> sizes, void (*called)(char* const*)) {
    int file = open(given[1], O_RDWR);
    struct stat found;
    fstat(file, &found);
    char* start = static_cast<char*>(map(nullptr, found.st_size, MAP_SHARED, file, 0));
    const uint64_t* words = reinterpret_cast<const uint64_t*>(start);
    for (unsigned size : sizes) {
        arguments.push_back(place(file, start, words, size));
        words += 6;
    }
    std::vector<unsigned> e(words, words + 6);
    grid_extent = {e[0], e[1], e[2]}, block_extent = {e[3], e[4], e[5]};
    uintptr_t dynamic = FIRST + arrays.size() * RANGE + RANGE / 2;
    watch_array({dynamic, 0, words[6], 1, 0, 1, true, nullptr});
    dynamic_shared_memory = reinterpret_cast<char*>(dynamic);
    if (words[6]) map(dynamic_shared_memory, words[6], MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    windows = arrays.size();
    dl_iterate_phdr(find_fixed_shared, nullptr);
    for (char** one = given + 2; *one; one++) {
        size_t offset, bytes;
        std::sscanf(*one, "%zu:%zu", &offset, &bytes);
        watch_array({fixed_shared + offset, 0, bytes, 1, 0, 1, true, nullptr});
    }
    kernel = called;
    threads.resize(size_t(e[3]) * e[4] * e[5]);
    bool reversed = words[7];
    size_t blocks = words[8];
    for (size_t i = 0; i < blocks; i++) {
        block_number = unsigned(words[9 + (reversed ? blocks - 1 - i : i)]);
        block_index = {block_number % e[0], block_number / e[0] % e[1], block_number / (e[0] * e[1])};
        if (Ending how = run_block(reversed)) return how;
    }
    return ALL_DONE;
}

}  // namespace emulation

// What g++ -fsanitize=thread calls.
using namespace emulation;
#define HOOKS(bytes)                                                                                     \
    void __tsan_read##bytes(void* at) { touch(LOAD, at, bytes, EMULATION_CALLER); }                      \
    void __tsan_write##bytes(void* at) { touch(STORE, at, bytes, EMULATION_CALLER); }                    \
    void __tsan_unaligned_read##bytes(void* at) { touch(LOAD, at, bytes, EMULATION_CALLER); }            \
    void __tsan_unaligned_write##bytes(void* at) { touch(STORE, at, bytes, EMULATION_CALLER); }

extern "C" {
HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)
void __tsan_init() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
void __tsan_read_range(void* at, size_t bytes) { touch(LOAD, at, bytes, EMULATION_CALLER); }
void __tsan_write_range(void* at, size_t bytes) { touch(STORE, at, bytes, EMULATION_CALLER); }

void __ubsan_handle_type_mismatch_v1(void*, uintptr_t) {
    Access now{block_number, unsigned(uintptr_t(EMULATION_CALLER)), 0, 0, 0, (unsigned short)current->number, LOAD};
    tell("misaligned", 0, 0, 0, now, now);
    end_with_fault();
}

// The text calls these in place of memcpy, memmove and memset.
void* emulation_memcpy(void* to, const void* from, size_t bytes) {
    touch(LOAD, from, bytes, EMULATION_CALLER);
    touch(STORE, to, bytes, EMULATION_CALLER);
    return std::memcpy(to, from, bytes);
}
void* emulation_memmove(void* to, const void* from, size_t bytes) {
    touch(LOAD, from, bytes, EMULATION_CALLER);
    touch(STORE, to, bytes, EMULATION_CALLER);
    return std::memmove(to, from, bytes);
}
void* emulation_memset(void* to, int value, size_t bytes) {
    touch(STORE, to, bytes, EMULATION_CALLER);
    return std::memset(to, value, bytes);
}
}
