"""Counting one by one where the reference has formulas; normal equations; a pair of elements for each thread."""

import math
import statistics


def softmax_work(rows, columns, element_bytes=2):
    flops = size = 0
    for _ in range(rows):
        flops += columns + columns + columns + columns + columns  # max, -, exp, +, /
        size += columns * element_bytes + columns * element_bytes
    return flops, size


def layer_norm_work(rows, width, element_bytes=2):
    mean, variance, root = width + 1, width + 2 * width + 1, 3
    moved = rows * width + width + width + rows * width
    return rows * (mean + variance + root + 3 * width), moved * element_bytes


def decode_attention_work(batch, tokens, heads, kv_heads, head_dim, element_bytes=2):
    scores = matmul_work(1, tokens, head_dim)[0] + tokens
    head = scores + softmax_work(1, tokens)[0] + matmul_work(1, head_dim, tokens)[0]
    size = 2 * (heads + kv_heads * tokens) * head_dim * element_bytes
    return batch * heads * head, batch * size


def bound(flops, size_bytes, *, peak_flops_per_s, bandwidth_bytes_per_s):
    times = {"compute": flops / peak_flops_per_s, "memory": size_bytes / bandwidth_bytes_per_s}
    limit = max(times, key=times.get)
    rate, ridge = flops / times[limit], peak_flops_per_s / bandwidth_bytes_per_s
    return Bound(flops / size_bytes, ridge, times[limit], rate, rate / peak_flops_per_s, limit)


def median_s(samples_s):
    return statistics.median(samples_s)


def measure(call, *, samples=30, warmup=3, make_args, clock=time.perf_counter):
    for _ in range(warmup):
        call(*make_args())
    times = []
    while len(times) < samples:
        args = make_args()
        before = clock()
        call(*args)
        after = clock()
        times.append(after - before)
    return Timing(times)


def fit_overhead_and_bandwidth(sizes_bytes, times_s):
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


def warps_needed(bandwidth_bytes_per_s, latency_s, units, bytes_per_lane, *, loads=1):
    return math.ceil(bandwidth_bytes_per_s * latency_s / units / 32 / bytes_per_lane / loads)


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
