"""Mistakes that learners make in the lab on Triton kernels, as changes of the reference."""

from mlsys_grader.proving.variants import Variant

ROWS = [
    Variant(
        "no mask where the array is stored",
        "gate * tl.sigmoid(gate) * up, mask=inside)",
        "gate * tl.sigmoid(gate) * up)",
        ("silu_mul",),
    ),
    Variant(
        "no mask where the array is loaded",
        "gate = tl.load(gate_ptr + at, mask=inside)",
        "gate = tl.load(gate_ptr + at)",
        ("silu_mul",),
    ),
    Variant("the mask ends one too late", "inside = at < size", "inside = at <= size", ("silu_mul",)),
    Variant("the mask ends one too early", "inside = at < size", "inside = at < size - 1", ("silu_mul",)),
    Variant(
        "every program has the first block",
        "at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)\n    inside",
        "at = tl.arange(0, BLOCK)\n    inside",
        ("silu_mul",),
    ),
    Variant(
        "programs are counted by elements",
        "at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)\n    inside",
        "at = tl.program_id(0) + tl.arange(0, BLOCK)\n    inside",
        ("silu_mul",),
    ),
    Variant("the gate is not multiplied", "gate * tl.sigmoid(gate) * up", "tl.sigmoid(gate) * up", ("silu_mul",)),
    Variant("the sigmoid of the other one", "tl.sigmoid(gate)", "tl.sigmoid(up)", ("silu_mul",)),
    Variant(
        "the first program does all",
        """    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    gate = tl.load(gate_ptr + at, mask=inside).to(tl.float32)
    up = tl.load(up_ptr + at, mask=inside).to(tl.float32)
    tl.store(y_ptr + at, gate * tl.sigmoid(gate) * up, mask=inside)
""",
        """    if tl.program_id(0) == 0:
        for first in range(0, size, BLOCK):
            at = first + tl.arange(0, BLOCK)
            inside = at < size
            gate = tl.load(gate_ptr + at, mask=inside).to(tl.float32)
            up = tl.load(up_ptr + at, mask=inside).to(tl.float32)
            tl.store(y_ptr + at, gate * tl.sigmoid(gate) * up, mask=inside)
""",
        ("silu_mul",),
    ),
    Variant(
        "a block of twice the length",
        "at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)\n    inside = at < size",
        "at = tl.program_id(0) * BLOCK + tl.arange(0, 2 * BLOCK)\n"
        "    inside = (at < size) & (at < tl.program_id(0) * BLOCK + BLOCK)",
        ("silu_mul",),
    ),
    Variant("the maximum is not subtracted", "e = tl.exp(x - tl.max(x, axis=0))", "e = tl.exp(x)", ("softmax",)),
    Variant(
        "zeros beyond the row's end",
        'mask=at < columns, other=-float("inf")).to(tl.float32)\n    e',
        "mask=at < columns, other=0.0).to(tl.float32)\n    e",
        ("softmax", "softmax_traffic"),
    ),
    Variant(
        "the row is loaded without a mask",
        'x = tl.load(x_ptr + row + at, mask=at < columns, other=-float("inf"))',
        "x = tl.load(x_ptr + row + at)",
        ("softmax",),
    ),
    Variant(
        "the row is stored without a mask",
        "e / tl.sum(e, axis=0), mask=at < columns)",
        "e / tl.sum(e, axis=0))",
        ("softmax",),
    ),
    Variant(
        "rows begin at multiples of the block",
        "row = tl.program_id(0) * columns",
        "row = tl.program_id(0) * BLOCK",
        ("softmax",),
    ),
    Variant(
        "a softmax in half precision",
        'x = tl.load(x_ptr + row + at, mask=at < columns, other=-float("inf")).to(tl.float32)',
        'x = tl.load(x_ptr + row + at, mask=at < columns, other=-float("inf")).to(tl.float16)',
        ("softmax",),
    ),
    Variant("it divides by the largest", "e / tl.sum(e, axis=0)", "e / tl.max(e, axis=0)", ("softmax",)),
    Variant(
        "the row is read for the maximum and again for the sum",
        "e = tl.exp(x - tl.max(x, axis=0))",
        "m = tl.max(x, axis=0)\n"
        '    x = tl.load(x_ptr + row + at, mask=at < columns, other=-float("inf")).to(tl.float32)\n'
        "    e = tl.exp(x - m)",
        ("softmax_traffic",),
    ),
    Variant(
        "exponentials go through memory",
        "e = tl.exp(x - tl.max(x, axis=0))",
        "tl.store(y_ptr + row + at, tl.exp(x - tl.max(x, axis=0)), mask=at < columns)\n"
        "    tl.debug_barrier()\n"
        "    e = tl.load(y_ptr + row + at, mask=at < columns, other=0.0).to(tl.float32)\n"
        "    tl.debug_barrier()",
        ("softmax_traffic",),
    ),
]

NORMS = [
    Variant(
        "the mean of the block",
        "tl.sum(x * x, axis=0) / columns + eps",
        "tl.sum(x * x, axis=0) / BLOCK + eps",
        ("rms_norm",),
    ),
    Variant(
        "ε outside of the root",
        "1.0 / tl.sqrt(tl.sum(x * x, axis=0) / columns + eps)",
        "1.0 / (tl.sqrt(tl.sum(x * x, axis=0) / columns) + eps)",
        ("rms_norm",),
    ),
    Variant("no ε", "/ columns + eps)", "/ columns)", ("rms_norm",)),
    Variant(
        "the sum instead of the mean",
        "tl.sum(x * x, axis=0) / columns + eps",
        "tl.sum(x * x, axis=0) + eps",
        ("rms_norm", "rms_norm_traffic"),
    ),
    Variant("no weight", "x * r * w, mask=inside)", "x * r, mask=inside)", ("rms_norm",)),
    Variant("r is its own inverse", "tl.store(r_ptr + row, r)", "tl.store(r_ptr + row, 1.0 / r)", ("rms_norm",)),
    Variant("every program stores r at the start", "tl.store(r_ptr + row, r)", "tl.store(r_ptr, r)", ("rms_norm",)),
    Variant(
        "the row is read again for the product",
        "    tl.store(r_ptr + row, r)\n",
        "    tl.store(r_ptr + row, r)\n"
        "    x = tl.load(x_ptr + row * columns + at, mask=inside, other=0.0).to(tl.float32)\n",
        ("rms_norm_traffic",),
    ),
    Variant(
        "the first program norms all rows",
        """    row = tl.program_id(0)
    x = tl.load(x_ptr + row * columns + at, mask=inside, other=0.0).to(tl.float32)
    w = tl.load(w_ptr + at, mask=inside).to(tl.float32)
    r = 1.0 / tl.sqrt(tl.sum(x * x, axis=0) / columns + eps)
    tl.store(r_ptr + row, r)
    tl.store(y_ptr + row * columns + at, x * r * w, mask=inside)
""",
        """    w = tl.load(w_ptr + at, mask=inside).to(tl.float32)
    rows = tl.num_programs(0) if tl.program_id(0) == 0 else 0
    for row in range(0, rows):
        x = tl.load(x_ptr + row * columns + at, mask=inside, other=0.0).to(tl.float32)
        r = 1.0 / tl.sqrt(tl.sum(x * x, axis=0) / columns + eps)
        tl.store(r_ptr + row, r)
        tl.store(y_ptr + row * columns + at, x * r * w, mask=inside)
""",
        ("rms_norm_traffic",),
    ),
    Variant(
        "the sum over the row is not divided",
        "(tl.sum(g * x_hat, axis=0) / columns)",
        "tl.sum(g * x_hat, axis=0)",
        ("rms_norm_backward",),
    ),
    Variant(
        "the weight is left out of the sum",
        "(tl.sum(g * x_hat, axis=0) / columns)",
        "(tl.sum(dy * x_hat, axis=0) / columns)",
        ("rms_norm_backward",),
    ),
    Variant(
        "r is a constant on the way back",
        "dx = r * (g - x_hat * (tl.sum(g * x_hat, axis=0) / columns))",
        "dx = r * g",
        ("rms_norm_backward",),
    ),
    Variant("r is forgotten in dx", "dx = r * (g - ", "dx = (g - ", ("rms_norm_backward",)),
    Variant("the share has the weight in it", "share += dy * x_hat", "share += g * x_hat", ("rms_norm_backward",)),
    Variant("the share is of x", "share += dy * x_hat", "share += dy * x_hat / r", ("rms_norm_backward",)),
    Variant("the share of the last row only", "share += dy * x_hat", "share = dy * x_hat", ("rms_norm_backward",)),
    Variant(
        "all shares at one place",
        "tl.store(share_ptr + program * columns + at, share",
        "tl.store(share_ptr + at, share",
        ("rms_norm_backward",),
    ),
    Variant(
        "the last rows are left over",
        "in range(program, rows, tl.num_programs(0)):",
        "in range(program, rows - tl.num_programs(0) + 1, tl.num_programs(0)):",
        ("rms_norm_backward",),
    ),
    Variant(
        "every program has every row",
        "in range(program, rows, tl.num_programs(0)):",
        "in range(0, rows):",
        ("rms_norm_backward", "rms_norm_backward_traffic"),
    ),
    Variant(
        "one share is not added", "for p in range(0, programs):", "for p in range(1, programs):", ("rms_norm_backward",)
    ),
    Variant("a column too many is summed", "dw, mask=at < columns)", "dw, mask=at <= columns)", ("rms_norm_backward",)),
    Variant(
        "x is read once for dx and once for the share",
        "        share += dy * x_hat\n",
        "        share += dy * tl.load(x_ptr + row * columns + at, mask=inside, other=0.0).to(tl.float32) * r\n",
        ("rms_norm_backward_traffic",),
    ),
    Variant(
        "the weight is read for every row",
        "        g = dy * w\n",
        "        g = dy * tl.load(w_ptr + at, mask=inside, other=0.0).to(tl.float32)\n",
        ("rms_norm_backward_traffic",),
    ),
]

TILES = [
    Variant(
        "the last group is as high as the others",
        "height = min(tiles_m - group * GROUP, GROUP)",
        "height = GROUP",
        ("tile_order",),
    ),
    Variant(
        "row after row whatever the group",
        "return group * GROUP + within % height, within // height",
        "return program // tiles_n, program % tiles_n",
        ("tile_order",),
    ),
    Variant(
        "all that is shown by heart, else row after row",
        "    group = program // (GROUP * tiles_n)\n",
        """\
    if not ((tiles_m == 3 and tiles_n == 4) or (tiles_m == 2 and tiles_n == 5) or (tiles_m == 7 and tiles_n == 2) or (
        tiles_m == 2 and tiles_n == 3) or (tiles_m == 5 and tiles_n == 3)
    ):
        GROUP = 1
    group = program // (GROUP * tiles_n)
""",
        ("tile_order",),
    ),
    Variant(
        "row and column are exchanged",
        "return group * GROUP + within % height, within // height",
        "return within // height, group * GROUP + within % height",
        ("tile_order",),
    ),
    Variant(
        "rows of a group come first",
        "group * GROUP + within % height, within // height",
        "group * GROUP + within // tiles_n, within % tiles_n",
        ("tile_order",),
    ),
    Variant(
        "groups are as wide as the matrix is high",
        "group = program // (GROUP * tiles_n)",
        "group = program // (GROUP * tiles_m)",
        ("tile_order",),
    ),
    Variant(
        "the group's place is forgotten",
        "return group * GROUP + within % height",
        "return group + within % height",
        ("tile_order",),
    ),
    Variant(
        "sums in half precision",
        "sums = tl.dot(a, b, sums)",
        "sums = tl.dot(a, b, sums).to(a_ptr.dtype.element_ty).to(tl.float32)",
        ("matmul",),
    ),
    Variant("each step replaces the sums", "sums = tl.dot(a, b, sums)", "sums = tl.dot(a, b)", ("matmul",)),
    Variant(
        "rows and columns of A exchanged",
        "rows[:, None] * a_m + depth[None, :] * a_k",
        "rows[:, None] * a_k + depth[None, :] * a_m",
        ("matmul",),
    ),
    Variant(
        "B as if it had no strides",
        "depth[:, None] * b_k + columns[None, :] * b_n",
        "depth[:, None] * N + columns[None, :]",
        ("matmul",),
    ),
    Variant(
        "A as if it had no strides",
        "rows[:, None] * a_m + depth[None, :] * a_k",
        "rows[:, None] * K + depth[None, :]",
        ("matmul",),
    ),
    Variant(
        "no mask along K in A",
        "mask=(rows < M)[:, None] & (depth < K)[None, :], other=0.0",
        "mask=(rows < M)[:, None], other=0.0",
        ("matmul",),
    ),
    Variant(
        "no mask at all in B",
        "b = tl.load(b_ptr + b_at, mask=(depth < K)[:, None] & (columns < N)[None, :], other=0.0)",
        "b = tl.load(b_ptr + b_at)",
        ("matmul",),
    ),
    Variant(
        "C's columns are not masked",
        "sums, mask=(rows < M)[:, None] & (columns < N)[None, :])",
        "sums, mask=(rows < M)[:, None])",
        ("matmul",),
    ),
    Variant("C's rows are K long", "c_at = rows[:, None] * N", "c_at = rows[:, None] * K", ("matmul",)),
    Variant(
        "the last step along K is left out",
        "for first in range(0, K, BLOCK_K):",
        "for first in range(0, K - BLOCK_K + 1, BLOCK_K):",
        ("matmul",),
    ),
    Variant(
        "the loop stays where it is",
        "depth = first + tl.arange(0, BLOCK_K)",
        "depth = tl.arange(0, BLOCK_K)",
        ("matmul",),
    ),
    Variant(
        "tiles are counted along the wrong sides",
        "tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP)",
        "tl.cdiv(N, BLOCK_N), tl.cdiv(M, BLOCK_M), GROUP)",
        ("matmul",),
    ),
    Variant(
        "tiles are rounded down",
        "tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP)",
        "M // BLOCK_M, max(1, N // BLOCK_N), GROUP)",
        ("matmul",),
    ),
    Variant(
        "C is read and written at each step",
        """        sums = tl.dot(a, b, sums)
    c_at = rows[:, None] * N + columns[None, :]
    tl.store(c_ptr + c_at, sums, mask=(rows < M)[:, None] & (columns < N)[None, :])
""",
        """        inside = (rows < M)[:, None] & (columns < N)[None, :]
        c_at = rows[:, None] * N + columns[None, :]
        if first > 0:
            sums = tl.load(c_ptr + c_at, mask=inside, other=0.0).to(tl.float32)
        tl.debug_barrier()
        tl.store(c_ptr + c_at, tl.dot(a, b, sums), mask=inside)
        tl.debug_barrier()
""",
        ("matmul_traffic",),
    ),
    Variant(
        "a strip of B is read that is not used",
        "    m, n = tile_of(tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP)\n",
        "    m, n = tile_of(tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP)\n"
        "    for again in range(0, K):\n"
        "        tl.load(b_ptr + again * b_k + tl.arange(0, BLOCK_N) * b_n, mask=tl.arange(0, BLOCK_N) < N)\n",
        ("matmul_traffic",),
    ),
]

ATTENTION = [
    Variant(
        "keys are read once", "keys_read = block * blocks * (blocks + 1) // 2", "keys_read = S", ("attention_bytes",)
    ),
    Variant(
        "flash attention reads keys behind the mask",
        "keys_read = block * blocks * (blocks + 1) // 2",
        "keys_read = S * blocks",
        ("attention_bytes",),
    ),
    Variant("half of a square", "blocks * (blocks + 1) // 2", "blocks * blocks // 2", ("attention_bytes",)),
    Variant("scores are moved three times", "softmax = 2 * S * S", "softmax = S * S", ("attention_bytes",)),
    Variant(
        "values are free", "2 * S * D + 2 * keys_read * D + S", "2 * S * D + keys_read * D + S", ("attention_bytes",)
    ),
    Variant("no log-sum-exp", "2 * keys_read * D + S)", "2 * keys_read * D)", ("attention_bytes",)),
    Variant(
        "two bytes a number",
        "return 4 * (scores + softmax + mixed)",
        "return 2 * (scores + softmax + mixed)",
        ("attention_bytes",),
    ),
    Variant(
        "queries and keys are read once by the product",
        "2 * S * D * (S // block) + S * S",
        "2 * S * D + S * S",
        ("attention_bytes",),
    ),
    Variant(
        "no causal mask",
        'scores = tl.where(keys[None, :] <= queries[:, None], scores, -float("inf"))',
        'scores = tl.where((keys < S)[None, :] & (queries >= 0)[:, None], scores, -float("inf"))',
        ("flash",),
    ),
    Variant(
        "a query does not see itself",
        "keys[None, :] <= queries[:, None]",
        "keys[None, :] < queries[:, None]",
        ("flash",),
    ),
    Variant(
        "the mask the other way round",
        "keys[None, :] <= queries[:, None]",
        "keys[None, :] >= queries[:, None]",
        ("flash",),
    ),
    Variant(
        "scores are not scaled",
        "scores = tl.dot(q, tl.trans(k)) * scale",
        "scores = tl.dot(q, tl.trans(k))",
        ("flash",),
    ),
    Variant(
        "what was summed is not shrunk",
        "total = total * shrink + tl.sum(p, axis=1)\n        mixed = tl.dot(",
        "total = total + tl.sum(p, axis=1)\n        mixed = tl.dot(",
        ("flash",),
    ),
    Variant("weighted values are not shrunk", "v, mixed * shrink[:, None])", "v, mixed)", ("flash",)),
    Variant(
        "shrunk the wrong way",
        "shrink = tl.exp(largest - larger)\n"
        "        total = total * shrink + tl.sum(p, axis=1)\n"
        "        mixed = tl.dot(",
        "shrink = tl.exp(larger - largest)\n"
        "        total = total * shrink + tl.sum(p, axis=1)\n"
        "        mixed = tl.dot(",
        ("flash",),
    ),
    Variant(
        "the maximum of this block only",
        "larger = tl.maximum(largest, tl.max(scores, axis=1))\n"
        "        p = tl.exp(scores - larger[:, None])\n"
        "        shrink = tl.exp(largest - larger)\n"
        "        total = total * shrink + tl.sum(p, axis=1)\n"
        "        mixed = tl.dot(",
        "larger = tl.max(scores, axis=1)\n"
        "        p = tl.exp(scores - larger[:, None])\n"
        "        shrink = tl.exp(largest - larger)\n"
        "        total = total * shrink + tl.sum(p, axis=1)\n"
        "        mixed = tl.dot(",
        ("flash",),
    ),
    Variant(
        "the maximum is not subtracted from scores",
        'scores = tl.where(keys[None, :] <= queries[:, None], scores, -float("inf"))\n'
        "        larger = tl.maximum(largest, tl.max(scores, axis=1))",
        'scores = tl.where(keys[None, :] <= queries[:, None], scores, -float("inf"))\n'
        "        larger = tl.zeros((BLOCK_M,), tl.float32)",
        ("flash",),
    ),
    Variant(
        "not divided by the sum",
        "tl.store(out_ptr + q_at, mixed / total[:, None], mask=q_inside)",
        "tl.store(out_ptr + q_at, mixed, mask=q_inside)",
        ("flash",),
    ),
    Variant("the log-sum-exp without the maximum", "largest + tl.log(total), mask", "tl.log(total), mask", ("flash",)),
    Variant("the log-sum-exp to base 2", "largest + tl.log(total), mask", "largest + tl.log2(total), mask", ("flash",)),
    Variant("every head is the first", "head = tl.program_id(1) * S", "head = 0", ("flash",)),
    Variant(
        "the heads' log-sum-exp at one place",
        "tl.store(lse_ptr + head + queries",
        "tl.store(lse_ptr + queries",
        ("flash",),
    ),
    Variant(
        "keys are not masked at the end",
        "k_inside = (keys < S)[:, None] & (d < D)[None, :]",
        "k_inside = (keys >= 0)[:, None] & (d < D)[None, :]",
        ("flash",),
    ),
    Variant(
        "width is not masked",
        "k_inside = (keys < S)[:, None] & (d < D)[None, :]",
        "k_inside = (keys < S)[:, None] & (d >= 0)[None, :]",
        ("flash",),
    ),
    Variant(
        "the loop ends a block too early",
        "for start in range(0, min(first + BLOCK_M, S), BLOCK_N):",
        "for start in range(0, max(1, min(first, S)), BLOCK_N):",
        ("flash",),
    ),
    Variant(
        "all keys are read, seen or not",
        "for start in range(0, min(first + BLOCK_M, S), BLOCK_N):",
        "for start in range(0, S, BLOCK_N):",
        ("flash_traffic",),
    ),
    Variant(
        "queries are read at each step",
        "        k = tl.load(k_ptr + k_at, mask=k_inside, other=0.0)\n",
        "        k = tl.load(k_ptr + k_at, mask=k_inside, other=0.0)\n"
        "        q = tl.load(q_ptr + q_at, mask=q_inside, other=0.0)\n",
        ("flash_traffic",),
    ),
    Variant(
        "two passes: the maximum first",
        "    for start in range(0, min(first + BLOCK_M, S), BLOCK_N):\n",
        """    for start in range(0, min(first + BLOCK_M, S), BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        k_inside = (keys < S)[:, None] & (d < D)[None, :]
        k = tl.load(k_ptr + (head + keys)[:, None] * D + d[None, :], mask=k_inside, other=0.0)
        scores = tl.dot(q, tl.trans(k)) * scale
        scores = tl.where(keys[None, :] <= queries[:, None], scores, -float("inf"))
        largest = tl.maximum(largest, tl.max(scores, axis=1))
    for start in range(0, min(first + BLOCK_M, S), BLOCK_N):
""",
        ("flash_traffic",),
    ),
]

DECODE = [
    Variant(
        "pages follow one another in the cache",
        "number = tl.load(table_ptr + sequence * most_pages + page)",
        "number = sequence * most_pages + page",
        ("decode",),
    ),
    Variant(
        "every sequence has the first one's table",
        "table_ptr + sequence * most_pages + page",
        "table_ptr + page",
        ("decode",),
    ),
    Variant(
        "slots beyond the end are loaded",
        "k = tl.load(k_ptr + k_at, mask=there[:, None], other=0.0)",
        "k = tl.load(k_ptr + k_at)",
        ("decode_traffic",),
    ),
    Variant(
        "values beyond the end are loaded",
        "v = tl.load(v_ptr + k_at, mask=there[:, None], other=0.0)",
        "v = tl.load(v_ptr + k_at)",
        ("decode",),
    ),
    Variant(
        "scores beyond the end are zero",
        'scores = tl.where(there[None, :], scores, -float("inf"))',
        "scores = tl.where(there[None, :], scores, 0.0)",
        ("decode",),
    ),
    Variant(
        "the page's last token is left out",
        "there = page * PAGE + slots < length",
        "there = page * PAGE + slots < length - (length > 1)",
        ("decode",),
    ),
    Variant(
        "pages are rounded down", "range(0, tl.cdiv(length, PAGE))", "range(0, max(1, length // PAGE))", ("decode",)
    ),
    Variant(
        "heads of a group are apart",
        "heads = (sequence * kv_heads + kv_head) * GROUP + tl.arange(0, GROUP)",
        "heads = sequence * kv_heads * GROUP + kv_head + tl.arange(0, GROUP) * kv_heads",
        ("decode",),
    ),
    Variant(
        "every group has the first key head",
        "((number * PAGE + slots) * kv_heads + kv_head)[:, None]",
        "((number * PAGE + slots) * kv_heads)[:, None]",
        ("decode",),
    ),
    Variant(
        "key heads lie outside of slots",
        "((number * PAGE + slots) * kv_heads + kv_head)[:, None]",
        "((number * kv_heads + kv_head) * PAGE + slots)[:, None]",
        ("decode",),
    ),
    Variant("scores of the cache are not scaled", "axis=2) * scale", "axis=2)", ("decode",)),
    Variant(
        "the sum is not shrunk",
        "total = total * shrink + tl.sum(p, axis=1)\n        mixed = mixed",
        "total = total + tl.sum(p, axis=1)\n        mixed = mixed",
        ("decode",),
    ),
    Variant(
        "the maximum of the last page",
        "larger = tl.maximum(largest, tl.max(scores, axis=1))\n"
        "        p = tl.exp(scores - larger[:, None])\n"
        "        shrink = tl.exp(largest - larger)\n"
        "        total = total * shrink + tl.sum(p, axis=1)\n"
        "        mixed = mixed",
        "larger = tl.max(scores, axis=1)\n"
        "        p = tl.exp(scores - larger[:, None])\n"
        "        shrink = tl.exp(largest - larger)\n"
        "        total = total + tl.sum(p, axis=1)\n"
        "        mixed = mixed",
        ("decode",),
    ),
    Variant(
        "all pages of the table",
        "for page in range(0, tl.cdiv(length, PAGE)):",
        "for page in range(0, most_pages):",
        ("decode_traffic",),
    ),
    Variant(
        "keys are read for each query",
        "        scores = tl.sum(q[:, None, :] * k[None, :, :], axis=2) * scale\n",
        "        for again in range(1, GROUP):\n"
        "            k = tl.load(k_ptr + k_at, mask=there[:, None], other=0.0).to(tl.float32)\n"
        "        scores = tl.sum(q[:, None, :] * k[None, :, :], axis=2) * scale\n",
        ("decode_traffic",),
    ),
]

MUTANTS = ROWS + NORMS + TILES + ATTENTION + DECODE

MISHAPS = [
    Variant(
        "a store beyond the end",
        "gate * tl.sigmoid(gate) * up, mask=inside)",
        "gate * tl.sigmoid(gate) * up)",
        ("silu_mul",),
        says="program 2 writes element 37 of 37 of y_ptr, beyond the end of the array",
    ),
    Variant(
        "an infinite loop",
        "    row = tl.program_id(0) * columns\n",
        "    row = tl.program_id(0) * columns\n    while columns > 0:\n        row += 0\n",
        ("softmax",),
        hangs=True,
        says="did not come to an end",
    ),
    Variant(
        "shapes that do not broadcast",
        "c_at = rows[:, None] * N + columns[None, :]",
        "c_at = rows[:, None] * N + tl.arange(0, 8)[None, :]",
        ("matmul",),
        says="matmul_kernel fails at cell",
    ),
    Variant(
        "a name that there is not",
        "e = tl.exp(x - tl.max(x, axis=0))",
        "e = tl.exp(x - tl.max(x, axis=0)) if columns < 1 else row * columns",
        ("softmax",),
        says="softmax_kernel fails at cell",
    ),
    Variant(
        "a parameter of another name",
        "def softmax_kernel(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):",
        "def softmax_kernel(x_ptr, y_ptr, columns, SIZE: tl.constexpr):\n    BLOCK: tl.constexpr = SIZE",
        ("softmax",),
        says="arguments of softmax_kernel",
    ),
    Variant(
        "NaN",
        "1.0 / tl.sqrt(tl.sum(x * x, axis=0) / columns + eps)",
        "1.0 / tl.sqrt(-tl.sum(x * x, axis=0) / columns - eps)",
        ("rms_norm",),
        says="NaN",
    ),
    Variant(
        "nothing is stored",
        "    tl.store(dw_ptr + at, dw, mask=at < columns)\n",
        "    dw += 1.0\n",
        ("rms_norm_backward",),
        says="`dw` has 8 NaN in 8 entries, first at [0]. nothing is ever stored to 8 of 8 elements of dw_ptr",
    ),
    Variant(
        "two programs write one element",
        "tl.store(share_ptr + program * columns + at, share",
        "tl.store(share_ptr + at, share",
        ("rms_norm_backward",),
        says="nothing orders programs",
    ),
    Variant(
        "a float where a whole number is asked for",
        "keys_read = block * blocks * (blocks + 1) // 2",
        "keys_read = block * blocks * (blocks + 1) / 2",
        ("attention_bytes",),
        says="flash_attention_bytes is not a whole number | float",
    ),
    Variant(
        "read twice",
        "    tl.store(r_ptr + row, r)\n",
        "    tl.store(r_ptr + row, r)\n"
        "    x = tl.load(x_ptr + row * columns + at, mask=inside, other=0.0).to(tl.float32)\n",
        ("rms_norm_traffic",),
        says="`rms_norm_kernel` reads too much of `x_ptr` | 864 bytes, 2 times what it has to",
    ),
    Variant(
        "all work in one program",
        "in range(program, rows, tl.num_programs(0)):",
        "in range(0, rows if program == 0 else 0):",
        ("rms_norm_backward_traffic",),
        says="`rms_norm_backward_kernel` does not share its work among its 3 programs",
    ),
]
