"""NumPy where the reference has Python: sorted times, weights of a polynomial's fit, unique sectors, words by bank."""


def matmul_work(m, n, k, element_bytes=2):
    multiplications = additions = m * n * k
    return multiplications + additions, element_bytes * (m * (k + n) + n * k)


def bound(flops, size_bytes, *, peak_flops_per_s, bandwidth_bytes_per_s):
    intensity, ridge = flops / size_bytes, peak_flops_per_s / bandwidth_bytes_per_s
    limit, time_s = "compute", flops / peak_flops_per_s
    if intensity < ridge:
        limit, time_s = "memory", size_bytes / bandwidth_bytes_per_s
    fraction = min(1.0, intensity / ridge)
    return Bound(intensity, ridge, time_s, fraction * peak_flops_per_s, fraction, limit)


def median_s(samples_s):
    ordered, n = np.sort(samples_s), len(samples_s)
    return (ordered[(n - 1) // 2] + ordered[n // 2]) / 2


def measure(call, *, samples=30, warmup=3, make_args, clock=time.perf_counter):
    times = np.empty(warmup + samples)
    for i in range(len(times)):
        args = make_args()
        times[i] = -clock()
        call(*args)
        times[i] += clock()
    return Timing(times[warmup:])


def fit_overhead_and_bandwidth(sizes_bytes, times_s):
    slope, overhead = np.polyfit(sizes_bytes, times_s, 1, w=1 / times_s)
    return overhead, 1 / slope


def predict_s(flops, size_bytes, machine):
    peak, bandwidth = machine.peak_flops_per_s, machine.bandwidth_bytes_per_s
    roof = bound(flops, size_bytes, peak_flops_per_s=peak, bandwidth_bytes_per_s=bandwidth)
    return max(roof.time_s, machine.overhead_s)


def sectors_touched(addresses, size_bytes):
    first = np.array(addresses, dtype=np.int64)
    every = first[:, None] + np.arange(size_bytes)
    return int(np.unique(every // 32).size)


def bank_passes(addresses):
    words = np.unique(np.array(addresses, dtype=np.int64) // 4)
    return np.bincount(words % 32, minlength=32).max()


@cuda.jit
def mixed(x, c, y):
    """Within a block the first two warps take the even positions, the last two the odd ones."""
    t = cuda.threadIdx.x
    odd = t // 64
    at = cuda.blockIdx.x * cuda.blockDim.x + 2 * (t % 64) + odd
    value = x[at]
    result = max(value, float32(0))
    if odd == 1:
        result = float32(0)
        for k in range(c.size):
            result = result * value + c[k]
    y[at] = result
