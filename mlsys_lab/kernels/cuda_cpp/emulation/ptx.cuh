// The functions of ../ptx.cuh on a CPU, written from what the PTX ISA says of each instruction.
#pragma once
#include "cuda_on_cpu.h"

typedef unsigned short bf16;

EMULATION_TELLS inline void cp_async(void* shared, const void* global, bool valid) {
    emulation::start_copy(shared, global, valid, EMULATION_CALLER);
}
inline void cp_async_commit() { emulation::close_copies(); }
template <int PENDING>
void cp_async_wait() {
    emulation::finish_copies(PENDING);
}

inline unsigned pair_of(bf16 low, bf16 high) { return low | unsigned(high) << 16; }

__attribute__((no_sanitize("thread"))) inline void ldmatrix(unsigned (&words)[4], const void* row, const void* from, bool transposed) {
    emulation::touch(emulation::LOAD, row, 16, from);
    struct Row {
        bf16 elements[8];
    };
    Row own;
    std::memcpy(&own, row, sizeof own);
    emulation::show(own);
    unsigned outer = emulation::lane() / 4, inner = emulation::lane() % 4 * 2;
    for (unsigned i = 0; i < 4; i++) {
        auto element = [&](unsigned r, unsigned c) { return emulation::shown_by<Row>(8 * i + r).elements[c]; };
        words[i] = transposed ? pair_of(element(inner, outer), element(inner + 1, outer))
                              : pair_of(element(outer, inner), element(outer, inner + 1));
    }
    emulation::wait_for_warp(false);
}

EMULATION_TELLS inline void ldmatrix_x4(unsigned (&words)[4], const void* row) {
    ldmatrix(words, row, EMULATION_CALLER, false);
}
EMULATION_TELLS inline void ldmatrix_x4_transposed(unsigned (&words)[4], const void* row) {
    ldmatrix(words, row, EMULATION_CALLER, true);
}

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
    emulation::wait_for_warp(false);
}

inline bf16 rounded(float value) {
    unsigned bits;
    std::memcpy(&bits, &value, 4);
    if (value != value) return bf16(bits >> 16 | 1);
    return bf16((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline unsigned pack_bf16(float low, float high) { return pair_of(rounded(low), rounded(high)); }
