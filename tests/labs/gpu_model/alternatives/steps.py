"""Comparisons where the reference takes a maximum or a minimum; a multiprocessor filled warp by warp."""


def regime(time_s, flops, size_bytes, machine):
    least = predict_s(flops, size_bytes, machine)
    explained = least / time_s
    if explained < 0.5:
        return "unexplained", explained
    if flops / machine.peak_flops_per_s == least:
        return "compute", explained
    if size_bytes / machine.bandwidth_bytes_per_s == least:
        return "memory", explained
    return "overhead", explained


def predict_s(flops, size_bytes, machine):
    longest = machine.overhead_s
    for time_s in (flops / machine.peak_flops_per_s, size_bytes / machine.bandwidth_bytes_per_s):
        if time_s > longest:
            longest = time_s
    return longest


def _rounded(amount, unit):
    return amount + (-amount) % unit


def occupancy(device, threads, *, registers, shared_bytes=0):
    warps = _rounded(threads, 32) // 32
    per_warp, of_warps = _rounded(32 * registers, 256), 0
    while (of_warps // 4 + 1) * per_warp <= device.register_bytes_per_unit // 16:
        of_warps += 1
    shared = _rounded(shared_bytes + 1024, 128)
    by = {
        "shared memory": device.shared_bytes_per_unit // shared,
        "registers": of_warps // warps,
        "warps": device.warps_per_unit // warps,
        "blocks": device.blocks_per_unit,
    }
    blocks = sorted(by.values())[0]
    return Occupancy(blocks=blocks, warps=blocks * warps, occupancy=blocks * warps / device.warps_per_unit, by=by)


def warps_needed(bandwidth_bytes_per_s, latency_s, units, bytes_per_lane, *, loads=1):
    return int(-(-bandwidth_bytes_per_s * latency_s // (units * 32 * bytes_per_lane * loads)))


def bandwidth_fraction(warps, bandwidth_bytes_per_s, latency_s, units, bytes_per_lane, *, loads=1):
    in_flight = units * warps * 32 * bytes_per_lane * loads
    usable = in_flight / latency_s
    return 1 if usable > bandwidth_bytes_per_s else usable / bandwidth_bytes_per_s


@cuda.jit
def polynomial(value, c):
    total = float32(0)
    for k in range(c.size):
        total = total * value + c[k]
    return total


@cuda.jit
def mixed(x, c, y):
    """Warps in turn: of each 64 elements the first warp has the odd positions, the second the even ones."""
    i = cuda.grid(1)
    lane, second = i % 32, i // 32 % 2
    at = i - lane - 32 * second + 2 * lane + 1 - second
    if second == 1:
        y[at] = max(x[at], float32(0))
    else:
        y[at] = polynomial(x[at], c)


@cuda.jit
def scale_rows(x, s, y):
    row, t = cuda.blockIdx.x, cuda.threadIdx.x
    scale = s[row]
    for turn in range((x.shape[1] + THREADS - 1) // THREADS):
        column = turn * THREADS + t
        if column < x.shape[1]:
            y[row, column] = x[row, column] * scale
