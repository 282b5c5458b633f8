// The functions of ../ptx.cuh on a CPU, written from what the PTX ISA says of each instruction.
#pragma once
#include "cuda_on_cpu.h"

typedef unsigned short bf16;

// A copy arrives no sooner than its group is waited for: who forgets to wait reads what was there before.
inline void cp_async(void* shared, const void* global, bool valid) {
    emulation::current->started.push_back({shared, global, valid});
}

inline void cp_async_commit() {
    emulation::current->groups.push_back(emulation::current->started);
    emulation::current->started.clear();
}

template <int PENDING>
void cp_async_wait() {
    auto& groups = emulation::current->groups;
    while (groups.size() > PENDING) {
        for (const emulation::Copy& copy : groups.front()) {
            if (copy.valid) std::memcpy(copy.to, copy.from, 16);
            else std::memset(copy.to, 0, 16);
        }
        groups.erase(groups.begin());
    }
}

inline unsigned pair_of(bf16 low, bf16 high) { return low | unsigned(high) << 16; }

inline void ldmatrix(unsigned (&words)[4], const void* row, bool transposed) {
    emulation::show(row);
    unsigned outer = emulation::lane() / 4, inner = emulation::lane() % 4 * 2;
    for (unsigned i = 0; i < 4; i++) {
        auto element = [&](unsigned r, unsigned c) {
            return static_cast<const bf16*>(emulation::shown_by<const void*>(8 * i + r))[c];
        };
        words[i] = transposed ? pair_of(element(inner, outer), element(inner + 1, outer))
                              : pair_of(element(outer, inner), element(outer, inner + 1));
    }
    __syncwarp();
}

inline void ldmatrix_x4(unsigned (&words)[4], const void* row) { ldmatrix(words, row, false); }
inline void ldmatrix_x4_transposed(unsigned (&words)[4], const void* row) { ldmatrix(words, row, true); }

inline float half_of(unsigned word, unsigned upper) {
    unsigned bits = (upper ? word >> 16 : word & 0xffff) << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

inline void mma_m16n8k16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    struct Held {
        unsigned a[4], b[2];
    };
    emulation::show(Held{{a[0], a[1], a[2], a[3]}, {b0, b1}});
    auto a_at = [](unsigned row, unsigned k) {
        Held held = emulation::shown_by<Held>(row % 8 * 4 + k % 8 / 2);
        return half_of(held.a[row / 8 + k / 8 * 2], k % 2);
    };
    auto b_at = [](unsigned k, unsigned column) {
        Held held = emulation::shown_by<Held>(column * 4 + k % 8 / 2);
        return half_of(held.b[k / 8], k % 2);
    };
    for (unsigned i = 0; i < 4; i++) {
        unsigned row = emulation::lane() / 4 + i / 2 * 8, column = emulation::lane() % 4 * 2 + i % 2;
        for (unsigned k = 0; k < 16; k++) d[i] += a_at(row, k) * b_at(k, column);
    }
    __syncwarp();
}

inline bf16 rounded(float value) {
    unsigned bits;
    std::memcpy(&bits, &value, 4);
    if (value != value) return bf16(bits >> 16 | 1);
    return bf16((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline unsigned pack_bf16(float low, float high) { return pair_of(rounded(low), rounded(high)); }
