"""NumPy where the reference has Python: sorted times, weights of a polynomial's fit, unique sectors, words by bank."""


def elementwise_work(n, inputs, flops_each, *, element_bytes=2):
    arrays = [n] * inputs + [n]
    return flops_each * n, sum(arrays) * element_bytes


def matmul_work(m, n, k, *, element_bytes=2):
    multiplications = additions = m * n * k
    return multiplications + additions, element_bytes * (m * (k + n) + n * k)


def bound(flops, size_bytes, flops_per_s, bytes_per_s):
    intensity, ridge = flops / size_bytes, flops_per_s / bytes_per_s
    if intensity < ridge:
        return intensity, size_bytes / bytes_per_s, "memory"
    return intensity, flops / flops_per_s, "compute"


def median_time_s(make, call, clock, *, samples, warmup):
    times = np.empty(warmup + samples)
    for i in range(len(times)):
        value = make()
        times[i] = -clock()
        call(value)
        times[i] += clock()
    kept = np.sort(times[warmup:])
    return (kept[(samples - 1) // 2] + kept[samples // 2]) / 2


def fit_overhead_and_bandwidth(sizes_bytes, times_s):
    slope, overhead = np.polyfit(sizes_bytes, times_s, 1, w=1 / times_s)
    return overhead, 1 / slope


def predict_s(flops, size_bytes, machine):
    return (
        bound(flops, size_bytes, machine.flops_per_s, machine.bytes_per_s)[1]
        if _busy(flops, size_bytes, machine)
        else machine.overhead_s
    )


def _busy(flops, size_bytes, machine):
    return bound(flops, size_bytes, machine.flops_per_s, machine.bytes_per_s)[1] > machine.overhead_s


def sectors_touched(addresses, size_bytes):
    first = np.array(addresses, dtype=np.int64)
    every = first[:, None] + np.arange(size_bytes)
    return int(np.unique(every // 32).size)


def bank_passes(addresses):
    words = np.unique(np.array(addresses, dtype=np.int64) // 4)
    return np.bincount(words % 32, minlength=32).max()


@cuda.jit
def mixed(x, c, y):
    """Within a block the first two warps take the even places, the last two the odd ones."""
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
