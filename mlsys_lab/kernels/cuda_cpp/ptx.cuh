// Instructions that CUDA C++ has no operator for, each a function of one line of PTX, as the PTX ISA documents it.
// They need a GPU of compute capability 8.0 or newer.
#pragma once

typedef unsigned short bf16;  // the bits of a bfloat16: the upper half of a float's

// An address in shared memory as the instructions below take it.
__device__ __forceinline__ unsigned shared_address(const void* pointer) {
    return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// Starts a copy of sixteen bytes from global to shared memory, past the L1 cache; both addresses are multiples of 16.
// Where `valid` is false nothing is read and zeros are written.
__device__ __forceinline__ void cp_async(void* shared, const void* global, bool valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global),
                 "r"(valid ? 16 : 0)
                 : "memory");
}

// Closes a group: the thread's copies since the last one.
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most PENDING of the thread's newest groups are under way.
template <int PENDING>
__device__ __forceinline__ void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// Four 8×8 matrices of 2-byte elements: lane 8i + r gives the address of row r of matrix i (16 bytes, aligned);
// each lane gets in word i the elements 2(lane % 4) and one more of row lane / 4 of matrix i.
__device__ __forceinline__ void ldmatrix_x4(unsigned (&words)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(shared_address(row))
                 : "memory");
}

// The same with each matrix transposed: elements of column lane / 4, rows 2(lane % 4) and one more.
__device__ __forceinline__ void ldmatrix_x4_transposed(unsigned (&words)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(shared_address(row))
                 : "memory");
}

// d += a·b of a warp: a 16×16, b 16×8 in bf16, d 16×8 in fp32. With group g = lane / 4 and t = lane % 4, a lane holds
// a: rows g, g+8, g, g+8 of column pairs 2t, 2t, 2t+8, 2t+8;  b: row pairs 2t, 2t+8 of column g;
// d: columns 2t, 2t+1 of row g, then of row g+8.
__device__ __forceinline__ void mma_m16n8k16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Two floats rounded to the nearest bf16, `low` in the lower half.
__device__ __forceinline__ unsigned pack_bf16(float low, float high) {
    unsigned word;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
}
