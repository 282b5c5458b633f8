"""Comparisons where the reference takes a maximum or a minimum; a multiprocessor filled block by block."""


def regime(time_s, flops, size_bytes, machine):
    least = predict_s(flops, size_bytes, machine)
    share = least / time_s
    if share < 0.5:
        return "unexplained", share
    if flops / machine.flops_per_s == least:
        return "compute", share
    if size_bytes / machine.bytes_per_s == least:
        return "memory", share
    return "overhead", share


def predict_s(flops, size_bytes, machine):
    longest = machine.overhead_s
    for time_s in (flops / machine.flops_per_s, size_bytes / machine.bytes_per_s):
        if time_s > longest:
            longest = time_s
    return longest


def _rounded(amount, unit):
    return amount + (-amount) % unit


def held(unit, threads, registers, shared_bytes):
    warps = _rounded(threads, 32) // 32
    of_warps = 4 * (unit.registers // 4 // _rounded(32 * registers, 256))
    shared = _rounded(shared_bytes + 1024, 128)
    blocks = 0
    while True:
        more = blocks + 1
        if more > unit.blocks:
            return Held(blocks, blocks * warps, "blocks")
        if more * warps > unit.warps:
            return Held(blocks, blocks * warps, "warps")
        if more * warps > of_warps:
            return Held(blocks, blocks * warps, "registers")
        if more * shared > unit.shared_bytes:
            return Held(blocks, blocks * warps, "shared memory")
        blocks = more


def warps_needed(bytes_per_s, latency_s, units, bytes_a_lane, *, loads=1):
    return int(-(-bytes_in_flight(bytes_per_s, latency_s) // (units * 32 * bytes_a_lane * loads)))


@cuda.jit
def polynomial(value, c):
    total = float32(0)
    for k in range(c.size):
        total = total * value + c[k]
    return total


@cuda.jit
def mixed(x, c, y):
    """Warps in turn: of each 64 elements the first warp has the odd places, the second the even ones."""
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
