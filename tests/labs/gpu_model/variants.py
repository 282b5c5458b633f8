"""Mistakes that learners make in the lab on the model of the GPU, as changes of the reference."""

from mlsys_grader.proving.variants import Variant

# Pieces of the reference that several mistakes replace.
LOOP = """\
        value = make()
        start = clock()
        call(value)
        times.append(clock() - start)
"""
FITTED = """\
    columns = np.stack([1 / times_s, sizes_bytes / times_s], axis=1)
    overhead_s, s_per_byte = np.linalg.lstsq(columns, np.ones(len(times_s)))[0]
"""
TOUCHED = "touched.update(range(address // 32, (address + size_bytes - 1) // 32 + 1))"
BRANCH = """\
    warp, lane = i // 32, i % 32
    at = 64 * (warp // 2) + 2 * lane + warp % 2
    value = x[at]
    if warp % 2 == 0:
"""
COLUMNS = """\
    for column in range(cuda.threadIdx.x, x.shape[1], THREADS):
        y[row, column] = scale * x[row, column]
"""

WORK = [
    Variant("the output is not moved", "(inputs + 1) * n * element_bytes", "inputs * n * element_bytes", ("work",)),
    Variant(
        "a maximum costs nothing",
        "return 5 * rows * columns, 2 * rows",
        "return 4 * rows * columns, 2 * rows",
        ("work",),
    ),
    Variant(
        "softmax moves its input only",
        "5 * rows * columns, 2 * rows * columns * element_bytes",
        "5 * rows * columns, rows * columns * element_bytes",
        ("work",),
    ),
    Variant(
        "softmax moves what it computes in between",
        "5 * rows * columns, 2 * rows * columns * element_bytes",
        "5 * rows * columns, 4 * rows * columns * element_bytes",
        ("work",),
    ),
    Variant(
        "weight and bias are read for every row",
        "elements = 2 * rows * width + 2 * width",
        "elements = 4 * rows * width",
        ("work",),
    ),
    Variant(
        "weight and bias are forgotten",
        "elements = 2 * rows * width + 2 * width",
        "elements = 2 * rows * width",
        ("work",),
    ),
    Variant("the mean is subtracted twice", "sums, scalars, scaled = 4 *", "sums, scalars, scaled = 5 *", ("work",)),
    Variant("a row's own divisions are left out", "4 * width, 5, 3 * width", "4 * width, 0, 3 * width", ("work",)),
    Variant("a multiply-add is one FLOP", "return 2 * m * n * k,", "return m * n * k,", ("work",)),
    Variant("the product is not written", "(m * k + k * n + m * n)", "(m * k + k * n)", ("work",)),
    Variant(
        "elements, not bytes",
        "(m * k + k * n + m * n) * element_bytes",
        "m * k + k * n + m * n",
        ("work",),
    ),
    Variant("all elements have two bytes", "+ cache) * element_bytes", "+ cache) * 2", ("work",)),
    Variant(
        "every query head has a cache of its own",
        "cache = 2 * batch * tokens * kv_heads * head_dim",
        "cache = 2 * batch * tokens * heads * head_dim",
        ("work",),
    ),
    Variant(
        "the sequences share a cache",
        "cache = 2 * batch * tokens * kv_heads * head_dim",
        "cache = 2 * tokens * kv_heads * head_dim",
        ("work",),
    ),
    Variant(
        "keys without values",
        "cache = 2 * batch * tokens",
        "cache = batch * tokens",
        ("work",),
    ),
    Variant(
        "only key/value heads compute",
        "flops = batch * heads * tokens",
        "flops = batch * kv_heads * tokens",
        ("work",),
    ),
    Variant("attention without its softmax", "(4 * head_dim + 1 + 5)", "(4 * head_dim)", ("work",)),
    Variant("bytes per FLOP", "return flops / size_bytes, max", "return size_bytes / flops, max", ("bound",)),
    Variant("the times are added", "max(compute_s, memory_s), limit", "compute_s + memory_s, limit", ("bound",)),
    Variant("the shorter time", "max(compute_s, memory_s), limit", "min(compute_s, memory_s), limit", ("bound",)),
    Variant("on the ridge memory limits", "if compute_s >= memory_s", "if compute_s > memory_s", ("bound",)),
    Variant(
        "limits exchanged",
        'limit = "compute" if compute_s >= memory_s else "memory"',
        'limit = "memory" if compute_s >= memory_s else "compute"',
        ("bound",),
    ),
]

TIMING = [
    Variant("the mean", "float(np.median(times[warmup:]))", "float(np.mean(times[warmup:]))", ("median_time",)),
    Variant("the least", "float(np.median(times[warmup:]))", "float(np.min(times[warmup:]))", ("median_time",)),
    Variant(
        "the upper of the middle two",
        "float(np.median(times[warmup:]))",
        "sorted(times[warmup:])[samples // 2]",
        ("median_time",),
    ),
    Variant("warm-up counts", "np.median(times[warmup:])", "np.median(times)", ("median_time",)),
    Variant(
        "the warm-up is dropped at the end", "np.median(times[warmup:])", "np.median(times[:samples])", ("median_time",)
    ),
    Variant(
        "the slowest are dropped, not the first",
        "np.median(times[warmup:])",
        "np.median(sorted(times)[:samples])",
        ("median_time",),
    ),
    Variant(
        "one call too few is dropped",
        "np.median(times[warmup:])",
        "np.median(times[max(warmup - 1, 0) :])",
        ("median_time",),
    ),
    Variant(
        "the making is timed",
        LOOP,
        """\
        start = clock()
        call(make())
        times.append(clock() - start)
""",
        ("median_time",),
    ),
    Variant(
        "one input for all",
        "    times = []\n    for _ in range(warmup + samples):\n        value = make()\n",
        "    times = []\n    value = make()\n    for _ in range(warmup + samples):\n",
        ("median_time",),
    ),
    Variant(
        "no warm-up",
        "for _ in range(warmup + samples):",
        "for _ in range(samples):",
        ("median_time",),
    ),
    Variant(
        "one clock for all: the mean of a loop",
        "    return float(np.median(times[warmup:]))",
        "    return sum(times[warmup:])",
        ("median_time",),
    ),
    Variant(
        "errors in seconds",
        FITTED,
        """\
    columns = np.stack([np.ones(len(times_s)), sizes_bytes], axis=1)
    overhead_s, s_per_byte = np.linalg.lstsq(columns, times_s)[0]
""",
        ("fit",),
    ),
    Variant(
        "a fit of logarithms",
        FITTED,
        """\
    s_per_byte, overhead_s = np.polyfit(np.log(sizes_bytes), np.log(times_s), 1)
""",
        ("fit",),
    ),
    Variant("seconds per byte", "float(1 / s_per_byte)", "float(s_per_byte)", ("fit",)),
    Variant(
        "the overhead is the shortest time",
        "return float(overhead_s), float",
        "return float(times_s.min()), float",
        ("fit",),
    ),
    Variant(
        "the bandwidth is that of the largest size",
        "float(1 / s_per_byte)",
        "float(sizes_bytes[-1] / times_s[-1])",
        ("fit",),
    ),
    Variant(
        "the line goes through its ends",
        FITTED,
        """\
    s_per_byte = (times_s[-1] - times_s[0]) / (sizes_bytes[-1] - sizes_bytes[0])
    overhead_s = times_s[0] - sizes_bytes[0] * s_per_byte
""",
        ("fit",),
    ),
    Variant(
        "the overhead is added to the prediction",
        "return max(flops / machine.flops_per_s, size_bytes / machine.bytes_per_s, machine.overhead_s)",
        "return max(flops / machine.flops_per_s, size_bytes / machine.bytes_per_s) + machine.overhead_s",
        ("regime",),
    ),
    Variant(
        "the prediction knows no overhead",
        "size_bytes / machine.bytes_per_s, machine.overhead_s)",
        "size_bytes / machine.bytes_per_s)",
        ("regime",),
    ),
    Variant(
        "no share above one",
        "share = parts[longest] / time_s",
        "share = min(1.0, parts[longest] / time_s)",
        ("regime",),
    ),
    Variant("the share upside down", "share = parts[longest] / time_s", "share = time_s / parts[longest]", ("regime",)),
    Variant(
        "nothing is unexplained",
        '(longest if share >= 0.5 else "unexplained"), share',
        "longest, share",
        ("regime",),
    ),
    Variant("one half is too little", "if share >= 0.5 else", "if share > 0.5 else", ("regime",)),
    Variant("the shortest binds", "longest = max(parts,", "longest = min(parts,", ("regime",)),
    Variant(
        "of equal times the last",
        "longest = max(parts,",
        "longest = max(reversed(parts),",
        ("regime",),
    ),
]

REQUESTS = [
    Variant("where a lane ends is not looked at", TOUCHED, "touched.add(address // 32)", ("sectors",)),
    Variant(
        "a lane reaches one byte too far",
        "(address + size_bytes - 1) // 32 + 1",
        "(address + size_bytes) // 32 + 1",
        ("sectors",),
    ),
    Variant(
        "bytes over 32",
        "    return len(touched)",
        "    return -(-len(addresses) * size_bytes // 32)",
        ("sectors",),
    ),
    Variant(
        "from the first byte to the last",
        "    return len(touched)",
        "    return max(touched) - min(touched) + 1 if touched else 0",
        ("sectors",),
    ),
    Variant("sectors of 128 bytes", TOUCHED, "touched.add(address // 128)", ("sectors",)),
    Variant("lanes share nothing", "    return len(touched)", "    return len(addresses)", ("sectors",)),
    Variant(
        "lanes that want one word wait for each other",
        "words = {address // 4 for address in addresses}",
        "words = [address // 4 for address in addresses]",
        ("banks",),
    ),
    Variant(
        "banks of bytes",
        "words = {address // 4 for address in addresses}",
        "words = set(addresses)",
        ("banks",),
    ),
    Variant("16 banks", "of_banks[word % 32] += 1", "of_banks[word % 16] += 1", ("banks",)),
    Variant("a bank for 32 words in a row", "of_banks[word % 32]", "of_banks[word // 32 % 32]", ("banks",)),
    Variant("the number of banks", "return max(of_banks)", "return sum(count > 0 for count in of_banks)", ("banks",)),
    Variant("conflicts, not passes", "return max(of_banks)", "return max(of_banks) - 1", ("banks",)),
    Variant("at least one pass", "return max(of_banks)", "return max(1, *of_banks)", ("banks",)),
]

RESIDENCY = [
    Variant("threads, not warps", "warps = -(-threads // 32)", "warps = threads // 32 or 1", ("occupancy",)),
    Variant(
        "registers are not rounded up",
        "per_warp = -(-32 * registers // 256) * 256",
        "per_warp = 32 * registers",
        ("occupancy",),
    ),
    Variant(
        "registers of a block are rounded up",
        "4 * (unit.registers // 4 // per_warp) // warps",
        "unit.registers // (-(-threads * registers // 256) * 256)",
        ("occupancy",),
    ),
    Variant(
        "the schedulers share their registers",
        "4 * (unit.registers // 4 // per_warp) // warps",
        "unit.registers // per_warp // warps",
        ("occupancy",),
    ),
    Variant(
        "each scheduler has all registers",
        "4 * (unit.registers // 4 // per_warp) // warps",
        "4 * (unit.registers // per_warp) // warps",
        ("occupancy",),
    ),
    Variant("a block takes no shared memory for itself", "(shared_bytes + 1024)", "shared_bytes", ("occupancy",)),
    Variant(
        "a block takes some for itself only if it asks for some",
        "(shared_bytes + 1024)",
        "(shared_bytes + 1024 if shared_bytes else 1)",
        ("occupancy",),
    ),
    Variant("all units have an H100's registers", "unit.registers // 4", "65_536 // 4", ("occupancy",)),
    Variant(
        "shared memory is not rounded up",
        "per_block = -(-(shared_bytes + 1024) // 128) * 128",
        "per_block = shared_bytes + 1024",
        ("occupancy",),
    ),
    Variant("places for blocks are without end", '"blocks": unit.blocks,', '"blocks": 10**9,', ("occupancy",)),
    Variant(
        "at least one block",
        "return Held(allowed[limit], allowed[limit] * warps, limit)",
        "return Held(max(1, allowed[limit]), max(1, allowed[limit]) * warps, limit)",
        ("occupancy",),
    ),
    Variant(
        "the warps of one block",
        "Held(allowed[limit], allowed[limit] * warps, limit)",
        "Held(allowed[limit], warps, limit)",
        ("occupancy",),
    ),
    Variant(
        "of several limits the last",
        "limit = min(allowed, key",
        "limit = min(reversed(allowed), key",
        ("occupancy",),
    ),
    Variant("latency divides", "return bytes_per_s * latency_s", "return bytes_per_s / latency_s", ("in_flight",)),
    Variant("warps are rounded down", "int(np.ceil(of_a_unit", "int(np.floor(of_a_unit", ("in_flight",)),
    Variant(
        "always one warp more",
        "int(np.ceil(of_a_unit / (32 * bytes_a_lane * loads)))",
        "int(of_a_unit / (32 * bytes_a_lane * loads)) + 1",
        ("in_flight",),
    ),
    Variant(
        "the warps of the whole device",
        "of_a_unit = bytes_in_flight(bytes_per_s, latency_s) / units",
        "of_a_unit = bytes_in_flight(bytes_per_s, latency_s)",
        ("in_flight",),
    ),
    Variant("one load only", "(32 * bytes_a_lane * loads)", "(32 * bytes_a_lane)", ("in_flight",)),
    Variant("threads, not warps, are counted", "(32 * bytes_a_lane * loads)", "(bytes_a_lane * loads)", ("in_flight",)),
]

KERNELS = [
    Variant(
        "the branch stays within warps",
        BRANCH,
        """\
    at = i
    value = x[at]
    if at % 2 == 0:
""",
        ("mixed",),
    ),
    Variant(
        "the branch stays within warps, behind shared memory",
        """\
    value = x[at]
    if warp % 2 == 0:
        y[at] = max(value, float32(0))
    else:
        total = float32(0)
        for k in range(c.size):
            total = total * value + c[k]
        y[at] = total
""",
        """\
    at = i
    near = cuda.shared.array(32, float32)
    if cuda.threadIdx.x < 32:
        near[lane] = c[lane % c.size]
    cuda.syncthreads()
    value = x[at]
    total = max(value, float32(0))
    if at % 2:
        total = float32(0)
        for k in range(c.size):
            total = total * value + near[k]
    y[at] = total
""",
        ("mixed",),
    ),
    Variant(
        "coefficients go through shared memory, and one warp passes by the barrier",
        "    value = x[at]\n",
        """\
    near = cuda.shared.array(128, float32)
    if warp % 4 != 1:
        cuda.syncthreads()
    near[cuda.threadIdx.x] = x[at]
    value = near[cuda.threadIdx.x]
""",
        ("mixed",),
    ),
    Variant(
        "the branch falls between halves of a warp",
        BRANCH,
        """\
    half, lane = i // 16, i % 16
    at = 32 * (half // 2) + 2 * lane + half % 2
    value = x[at]
    if half % 2 == 0:
""",
        ("mixed",),
    ),
    Variant(
        "the branch is between warps, the elements are not",
        "    at = 64 * (warp // 2) + 2 * lane + warp % 2\n",
        "    at = i + 0 * lane\n",
        ("mixed",),
    ),
    Variant(
        "two warps take the same elements",
        "64 * (warp // 2) + 2 * lane + warp % 2",
        "64 * (warp // 2) + 2 * lane",
        ("mixed",),
    ),
    Variant(
        "each warp has 64 elements of its own",
        "64 * (warp // 2) + 2 * lane + warp % 2",
        "64 * warp + 2 * lane + warp % 2",
        ("mixed",),
    ),
    Variant("kinds exchanged", "    if warp % 2 == 0:\n", "    if warp % 2 == 1:\n", ("mixed",)),
    Variant(
        "the lowest power first",
        "total = total * value + c[k]",
        "total = total * value + c[c.size - 1 - k]",
        ("mixed",),
    ),
    Variant(
        "all lanes evaluate the polynomial",
        """\
    if warp % 2 == 0:
        y[at] = max(value, float32(0))
    else:
        total = float32(0)
        for k in range(c.size):
            total = total * value + c[k]
        y[at] = total
""",
        """\
    total = float32(0)
    for k in range(c.size):
        total = total * value + c[k]
    y[at] = total if warp % 2 else max(value, float32(0))
""",
        ("mixed",),
    ),
    Variant(
        "the element is loaded in every turn",
        "total = total * value + c[k]",
        "total = total * x[at] + c[k]",
        ("mixed",),
    ),
    Variant(
        "a loop of no turns for half of the lanes",
        BRANCH
        + """\
        y[at] = max(value, float32(0))
    else:
        total = float32(0)
        for k in range(c.size):
            total = total * value + c[k]
        y[at] = total
""",
        """\
    at = i
    value = x[at]
    total = float32(0)
    for k in range(c.size * (at % 2)):
        total = total * value + c[k]
    y[at] = total if at % 2 else max(value, float32(0))
""",
        ("mixed",),
    ),
    Variant(
        "only the first block works",
        "    i = cuda.grid(1)\n",
        "    i = cuda.threadIdx.x\n",
        ("mixed",),
    ),
    Variant(
        "pieces of neighbouring columns",
        COLUMNS,
        """\
    each = (x.shape[1] + THREADS - 1) // THREADS
    first = each * cuda.threadIdx.x
    for column in range(first, min(first + each, x.shape[1])):
        y[row, column] = scale * x[row, column]
""",
        ("scale_rows",),
    ),
    Variant(
        "only as many columns as threads",
        COLUMNS,
        """\
    column = cuda.threadIdx.x
    if column < x.shape[1]:
        y[row, column] = scale * x[row, column]
""",
        ("scale_rows",),
    ),
    Variant("threads for rows", "row = cuda.blockIdx.x", "row = cuda.threadIdx.x % x.shape[0]", ("scale_rows",)),
    Variant(
        "the number of the row is loaded in every turn",
        "scale * x[row, column]",
        "s[row] * x[row, column]",
        ("scale_rows",),
    ),
    Variant(
        "one thread does the row",
        COLUMNS,
        """\
    if cuda.threadIdx.x == 0:
        for column in range(x.shape[1]):
            y[row, column] = scale * x[row, column]
""",
        ("scale_rows",),
    ),
    Variant(
        "every thread does the row",
        "range(cuda.threadIdx.x, x.shape[1], THREADS)",
        "range(0, x.shape[1])",
        ("scale_rows",),
    ),
    Variant(
        "no end to the row",
        "range(cuda.threadIdx.x, x.shape[1], THREADS)",
        "range(cuda.threadIdx.x, (x.shape[1] + THREADS - 1) // THREADS * THREADS, THREADS)",
        ("scale_rows",),
    ),
    Variant(
        "the stride is a warp",
        "range(cuda.threadIdx.x, x.shape[1], THREADS)",
        "range(cuda.threadIdx.x, x.shape[1], 32)",
        ("scale_rows",),
    ),
    Variant(
        "lanes far apart within the row",
        COLUMNS,
        """\
    t = cuda.threadIdx.x
    for start in range(0, x.shape[1], THREADS):
        column = start + t % 32 * 4 + t // 32
        if column < x.shape[1]:
            y[row, column] = scale * x[row, column]
""",
        ("scale_rows",),
    ),
    Variant("a number of another row", "scale = s[row]", "scale = s[cuda.threadIdx.x % s.size]", ("scale_rows",)),
]

MUTANTS = WORK + TIMING + REQUESTS + RESIDENCY + KERNELS

MISHAPS = [
    Variant(
        "FLOPs alone",
        "    return 5 * rows * columns, 2 * rows * columns * element_bytes",
        "    return 5 * rows * columns",
        ("work",),
        says="a tuple (FLOPs, bytes)",
    ),
    Variant(
        "a count that is a float",
        "return 2 * m * n * k,",
        "return 2 * m * n * k / 1,",
        ("work",),
        says="of ints // gives one",
    ),
    Variant(
        "a word that is none of the two",
        'limit = "compute" if',
        'limit = "flops" if',
        ("bound",),
        says="'memory' or 'compute'",
    ),
    Variant(
        "an input of one's own",
        "        call(value)\n",
        "        call(None)\n",
        ("median_time",),
        says="make()",
    ),
    Variant(
        "a clock of one's own",
        LOOP,
        LOOP.replace("clock()", "len(times)"),
        ("median_time",),
        says="`clock` is never called",
    ),
    Variant(
        "a call too many",
        "range(warmup + samples)",
        "range(warmup + samples + 1)",
        ("median_time",),
        says="called too often",
    ),
    Variant(
        "it waits for the clock",
        "        start = clock()\n",
        "        start = clock()\n        while clock() == start:\n            pass\n",
        ("median_time",),
        hangs=True,
    ),
    Variant("no answer", "    return len(touched)\n", "    len(touched)\n", ("sectors",), says="NoneType"),
    Variant(
        "not a number",
        "return float(overhead_s), float(1 / s_per_byte)",
        "return float(overhead_s), float(1 / s_per_byte) * np.nan",
        ("fit",),
        says="NaN",
    ),
    Variant(
        "a dictionary for the record",
        "return Held(allowed[limit], allowed[limit] * warps, limit)",
        "return allowed",
        ("occupancy",),
        says="Held(blocks, warps, limit)",
    ),
    Variant(
        "division by zero",
        "return flops / size_bytes, max",
        "return flops / 0, max",
        ("bound",),
        says="ZeroDivisionError",
    ),
    Variant(
        "a kernel with other parameters",
        "def scale_rows(x, s, y):",
        "def scale_rows(s, x, y):",
        ("scale_rows",),
        says="wrong parameters",
    ),
    Variant(
        "beyond the end of the array",
        "64 * (warp // 2) + 2 * lane + warp % 2",
        "64 * (warp // 2) + 2 * lane + warp % 2 + x.size",
        ("mixed",),
        says="NaN",
    ),
    Variant(
        "a kernel that never ends",
        "        for k in range(c.size):\n",
        "        k = 0\n        while k < 1:\n",
        ("mixed",),
        hangs=True,
    ),
    Variant(
        "not stored",
        "        y[row, column] = scale",
        "        value = scale",
        ("scale_rows",),
        says="NaN",
    ),
    Variant(
        "still a plain function", "@cuda.jit\ndef scale_rows", "def scale_rows", ("scale_rows",), says="scale_rows"
    ),
]
