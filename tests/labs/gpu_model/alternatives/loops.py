"""Counting one by one where the reference has formulas; sorted lists; a pair of elements a thread."""

import math
import statistics


def softmax_work(rows, columns, *, element_bytes=2):
    flops = size = 0
    for _ in range(rows):
        flops += columns + columns + columns + columns + columns  # max, -, exp, +, /
        size += columns * element_bytes + columns * element_bytes
    return flops, size


def layer_norm_work(rows, width, *, element_bytes=2):
    mean, variance, root = width + 1, width + 2 * width + 1, 3
    moved = rows * width + width + width + rows * width
    return rows * (mean + variance + root + 3 * width), moved * element_bytes


def decode_attention_work(batch, tokens, heads, kv_heads, head_dim, *, element_bytes=2):
    flops = size = 0
    scores = matmul_work(1, tokens, head_dim)[0] + tokens
    for _ in range(batch):
        size += 2 * heads * head_dim * element_bytes
        size += 2 * kv_heads * tokens * head_dim * element_bytes
        for _ in range(heads):
            flops += scores + softmax_work(1, tokens)[0] + matmul_work(1, head_dim, tokens)[0]
    return flops, size


def bound(flops, size_bytes, flops_per_s, bytes_per_s):
    times = {"compute": flops / flops_per_s, "memory": size_bytes / bytes_per_s}
    limit = max(times, key=times.get)
    return flops / size_bytes, times[limit], limit


def median_time_s(make, call, clock, *, samples, warmup):
    for _ in range(warmup):
        call(make())
    times = []
    while len(times) < samples:
        given = make()
        before = clock()
        call(given)
        after = clock()
        times.append(after - before)
    return statistics.median(times)


def fit_overhead_and_bandwidth(sizes_bytes, times_s):
    """The normal equations, solved by hand."""
    a, b = 1 / times_s, sizes_bytes / times_s
    aa, ab, bb = (a * a).sum(), (a * b).sum(), (b * b).sum()
    determinant = aa * bb - ab * ab
    overhead = (a.sum() * bb - b.sum() * ab) / determinant
    return overhead, determinant / (aa * b.sum() - ab * a.sum())


def sectors_touched(addresses, size_bytes):
    return len({byte // 32 for address in addresses for byte in range(address, address + size_bytes)})


def bank_passes(addresses):
    passes, words = 0, sorted({address // 4 for address in addresses})
    while words:
        taken, left = set(), []
        for word in words:
            if word % 32 in taken:
                left.append(word)
            taken.add(word % 32)
        words, passes = left, passes + 1
    return passes


def warps_needed(bytes_per_s, latency_s, units, bytes_a_lane, *, loads=1):
    return math.ceil(bytes_per_s * latency_s / units / 32 / bytes_a_lane / loads)


@cuda.jit
def mixed(x, c, y):
    """The first half of a block's threads takes two elements each, the other warps are idle as a whole."""
    t = cuda.threadIdx.x
    if t < THREADS // 2:
        even = cuda.blockIdx.x * THREADS + 2 * t
        y[even] = max(x[even], float32(0))
        value = x[even + 1]
        total = float32(0)
        for k in range(c.size):
            total = total * value + c[k]
        y[even + 1] = total


@cuda.jit
def scale_rows(x, s, y):
    scale = s[cuda.blockIdx.x]
    column = cuda.threadIdx.x
    while column < y.shape[1]:
        y[cuda.blockIdx.x, column] = x[cuda.blockIdx.x, column] * scale
        column += cuda.blockDim.x
