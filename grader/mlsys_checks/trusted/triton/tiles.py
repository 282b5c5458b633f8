"""Tasks 5 to 8: cases, oracles, minimum traffic, and cases as code.

Oracles: tiles walked one by one and counted, NumPy and SciPy in float64; for pages, each sequence's cache laid out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from scipy.special import logsumexp, softmax

from mlsys_checks.sandboxed.spec import Arrays, Case, Mismatch
from mlsys_checks.sandboxed.triton import MIN_SIDE, NAN_READS, PROGRAMS, blocks, power_of_two
from mlsys_checks.trusted.compare import close
from mlsys_checks.trusted.traced import agree, allow_at_most
from mlsys_checks.trusted.triton.rows import F32, draw_wide, dtype_of, like_result, render_launch, render_result

INT32 = 4
"""Bytes of an int32."""
QUERY = 20.0
"""Added to the length of each query where scores are raised."""


def _side(case: Case, name: str) -> int:
    """Return the side of a tile: 16 times two to the power that the case gives it."""
    return MIN_SIDE << int(case.params.get(name, 0))


# --- tile_order -------------------------------------------------------------------------------------------------------


def draw_order(rng: np.random.Generator, case: Case) -> Arrays:
    """Draw C's sides from numbers of tiles: the last tile of a side is full, or cut off somewhere."""
    sides = {f"BLOCK_{side}": _side(case, f"log_{side}") for side in "MN"}
    tiles = {side: case.params[f"tiles_{side.lower()}"] for side in "MN"}
    cuts = rng.integers(1, MIN_SIDE, 2) * (rng.random(2) < case.params.get("cut", 0.5))
    sizes = {side: n * sides[f"BLOCK_{side}"] - int(cut) for (side, n), cut in zip(tiles.items(), cuts, strict=True)}
    numbers = {**sizes, **sides, "GROUP_M": case.params["group"]}
    return {name: np.array(number) for name, number in numbers.items()}


def expect_order(arrays: Arrays) -> Arrays:
    """Walk the tiles group by group from the top, column by column within one, from top to bottom."""
    rows, columns = (blocks(int(arrays[side]), int(arrays[f"BLOCK_{side}"])) for side in "MN")
    group, all_rows = int(arrays["GROUP_M"]), list(range(rows))
    groups = [all_rows[i : i + group] for i in range(0, rows, group)]
    walked = [(m, n) for members in groups for n in range(columns) for m in members]
    programs = np.empty((rows, columns), np.int32)
    for program, tile in enumerate(walked):
        programs[tile] = program
    return {"programs": programs}


# --- matmul -----------------------------------------------------------------------------------------------------------


def draw_matmul(rng: np.random.Generator, case: Case) -> Arrays:
    """Draw two factors around `mean`. `cancelling`: sums grow along half of K and shrink along the other."""
    p = {"mean": 0.0, "group": 1, **case.params}
    a, b = (rng.normal(p["mean"], 1, size) for size in ((p["m"], p["k"]), (p["k"], p["n"])))
    if p.get("cancelling"):
        a[:, p["k"] // 2 :] *= -1
    layout = {name: np.array(bool(p.get(name))) for name in ("a_transposed", "b_transposed", "padded")}
    sizes = {"GROUP_M": p["group"], **{f"BLOCK_{side}": _side(case, f"log_{side}") for side in "MNK"}}
    numbers = {name: np.array(size) for name, size in sizes.items()}
    return {"a": a.astype(dtype_of(case)), "b": b.astype(dtype_of(case)), **numbers, **layout, **draw_wide(case)}


def expect_matmul(arrays: Arrays) -> Arrays:
    """Return the product."""
    a, b = arrays["a"], arrays["b"]
    return {"c": like_result(a.astype(np.float64) @ b.astype(np.float64), a, arrays)}


def expect_matmul_traffic(arrays: Arrays) -> Arrays:
    """Return the product, who stores it, and what full tiles read: rows past the last may wrap around (`% M`)."""
    values, a, b = expect_matmul(arrays), arrays["a"], arrays["b"]
    (M, K), N, (block_m, block_n, block_k) = a.shape, b.shape[1], (int(arrays[f"BLOCK_{side}"]) for side in "MNK")
    rows, columns = blocks(M, block_m), blocks(N, block_n)
    limits = allow_at_most(
        "matmul_kernel",
        reads={
            "a_ptr": columns * rows * block_m * K * a.itemsize,
            "b_ptr": rows * columns * block_n * K * b.itemsize,
        },
        writes={"c_ptr": values["c"].nbytes},
        busiest=(block_m + block_n) * K * a.itemsize + min(M, block_m) * min(N, block_n) * values["c"].itemsize,
        widest=max(block_m * block_n, block_m * block_k, block_k * block_n),
        programs=rows * columns,
    )
    programs = expect_order({**arrays, "M": np.array(M), "N": np.array(N)})["programs"].astype(np.int64)
    of_elements = programs.repeat(block_m, axis=0).repeat(block_n, axis=1)[:M, :N]
    return {**values, PROGRAMS: of_elements, **limits}


# --- attention_bytes --------------------------------------------------------------------------------------------------


def draw_sizes(rng: np.random.Generator, case: Case) -> Arrays:
    """Draw sizes (S, D, block), or take those of the case: S a multiple of the block, D no larger than it."""
    p = {"count": 1, "low": 1, "high": 9, "least": 16, "also": [], **case.params}
    rows = []
    for _ in range(p["count"]):
        block = int(rng.integers(p["least"], 128))
        rows.append([block * int(rng.integers(p["low"], p["high"])), int(rng.integers(1, block + 1)), block])
    return {"sizes": np.array([*p["also"], *rows])}


def expect_bytes(arrays: Arrays) -> Arrays:
    """Count the tiles that are loaded or stored, one row of tiles after the other."""
    expected: Arrays = {}
    for S, D, block in arrays["sizes"].tolist():
        naive, flash, tiles = S * 2 * S, 0, S // block
        for i in range(tiles):
            naive += tiles * (2 * block * D + block * block)  # a tile of scores: all of D at once
            naive += tiles * (block * block + block * D) + block * D  # a tile of the result: D fits into one tile
            flash += 2 * block * D + block + (i + 1) * 2 * block * D
        for name, count in (("naive", naive), ("flash", flash)):
            expected[f"{name}_attention_bytes({S}, {D}, {block})"] = np.array(F32 * count)
    return expected


def describe_bytes(arrays: Arrays) -> str:
    """Write the calls of both functions."""
    names = ("naive_attention_bytes", "flash_attention_bytes")
    return "\n".join(f"{name}{tuple(sizes)}" for sizes in arrays["sizes"].tolist() for name in names)


# --- flash ------------------------------------------------------------------------------------------------------------


def _raise_scores(q: np.ndarray, k: np.ndarray, by: Mapping[int | None, float]) -> None:
    """Change queries and keys (head, token, D) in place so that scores / √D rise by about `by[token]`.

    None stands for all keys. A key that is named loses what it held.
    """
    D = q.shape[-1]
    along = np.full(D, D**-0.5)
    q += QUERY * along
    for token, rise in by.items():
        if token is not None:
            k[:, token] = 0.0
        k[:, slice(None) if token is None else token] += rise * D**0.5 / QUERY * along


def draw_attention(rng: np.random.Generator, case: Case) -> Arrays:
    """Draw queries, keys and values; `scores` raises scores, `cancelling` turns half of each key around."""
    p = {"spread": 1.0, "value": 0.0, **case.params}
    size = (p["heads"], p["tokens"], p["D"])
    q, k, v = (rng.normal(scale=scale, size=size) for scale in (p["spread"], p["spread"], 1.0))
    v += p["value"]
    if "scores" in p:
        _raise_scores(q, k, p["scores"])
    if "cancelling" in p:
        k[..., ::2] *= -p["cancelling"]
    numbers = {
        "scale": p.get("scale", p["D"] ** -0.5),
        "BLOCK_M": _side(case, "log_M"),
        "BLOCK_N": _side(case, "log_N"),
    }
    given = {name: array.astype(dtype_of(case)) for name, array in (("q", q), ("k", k), ("v", v))}
    return given | {name: np.array(number) for name, number in numbers.items()}


def expect_attention(arrays: Arrays) -> Arrays:
    """Return output and log-sum-exp of causal attention."""
    q, k, v = (arrays[name].astype(np.float64) for name in ("q", "k", "v"))
    scores = float(arrays["scale"]) * q @ k.transpose(0, 2, 1)
    scores[:, ~np.tri(q.shape[1], dtype=bool)] = -np.inf
    out = (softmax(scores, axis=2) @ v).astype(arrays["q"].dtype)
    return {"out": out, "lse": logsumexp(scores, axis=2).astype(np.float32)}


def expect_attention_traffic(arrays: Arrays) -> Arrays:
    """Add the minimum traffic: keys up to the end of the block that holds a program's last query."""
    (heads, S, D), block_m, block_n = arrays["q"].shape, int(arrays["BLOCK_M"]), int(arrays["BLOCK_N"])
    ends = [min(S, first + block_m) for first in range(0, S, block_m)]
    seen = [min(S, blocks(end, block_n) * block_n) for end in ends]
    row = D * arrays["q"].itemsize
    limits = allow_at_most(
        "flash_kernel",
        reads={"q_ptr": heads * S * row, "k_ptr": heads * sum(seen) * row, "v_ptr": heads * sum(seen) * row},
        writes={"out_ptr": heads * S * row, "lse_ptr": heads * S * F32},
        busiest=2 * (min(S, block_m) + max(seen)) * row + block_m * F32,
        widest=max(block_m, block_n) * max(MIN_SIDE, power_of_two(D)),
        programs=heads * len(ends),
    )
    return expect_attention(arrays) | limits


def compare_attention(got: Arrays, expected: Arrays) -> Mismatch | None:
    """Compare outputs within three times the usual tolerance, the log-sum-exp within the usual one.

    A score of 150 in float32 is off by 1e-5, and its exponential by as large a fraction; scores in base 2 are rounded
    once more. No exponential stands behind a log-sum-exp: right answers have used a third of the tolerance, and ln 2 as
    0.6931 takes nearly twice as much.
    """
    lse = {name: array for name, array in expected.items() if name == "lse"}
    return agree(got, expected, scale=3.0) or close({name: got[name] for name in lse}, lse)


# --- decode -----------------------------------------------------------------------------------------------------------


def draw_decode(rng: np.random.Generator, case: Case) -> Arrays:
    """Draw sequences whose blocks lie anywhere in a cache with some to spare; slots without a token are NaN.

    `lengths`: tokens of each sequence, or `sequences` of which each draws up to `longest`. `equal`: every score is the
    same. `scores`: raised in the first sequence. `quiet`: the first query of each group has scores near 0.
    """
    p = {"log_size": 0, "kv_heads": 2, "log_group": 1, "log_D": 1, "spread": 1.0, **case.params}
    group, size, D, kv_heads = 1 << p["log_group"], MIN_SIDE << p["log_size"], MIN_SIDE << p["log_D"], p["kv_heads"]
    lengths = p.get("lengths") or rng.integers(1, p["longest"] + 1, p["sequences"]).tolist()
    counts = [blocks(length, size) for length in lengths]
    ids = rng.permutation(sum(counts) + 2).astype(np.int32)
    cache = np.full((2, len(ids), size, kv_heads, D), np.nan)
    table, free = np.full((len(lengths), max(counts)), -1, dtype=np.int32), iter(ids)
    for sequence, length in enumerate(lengths):
        for i in range(counts[sequence]):
            table[sequence, i] = block = next(free)
            filled = min(size, length - i * size)
            cache[:, block, :filled] = rng.normal(scale=p["spread"], size=(2, filled, kv_heads, D))
    q = rng.normal(scale=p["spread"], size=(len(lengths), kv_heads * group, D))
    if p.get("equal"):
        q *= 0.0
        cache[0] *= 0.0
    if "scores" in p:
        own = table[0, : counts[0]]
        keys = cache[0, own].reshape(-1, kv_heads, D).swapaxes(0, 1)
        _raise_scores(q[0], keys, p["scores"])
        cache[0, own] = keys.swapaxes(0, 1).reshape(-1, size, kv_heads, D)
    if p.get("quiet"):
        q[:, ::group] *= 0.01
    dtype, scale = dtype_of(case), np.array(p.get("scale", D**-0.5))
    given = {"q": q.astype(dtype), "k": cache[0].astype(dtype), "v": cache[1].astype(dtype)}
    lengths = np.array(lengths, dtype=np.int32)
    return {**given, "block_table": table, "seq_lens": lengths, "scale": scale, **draw_wide(case)}


def expect_decode(arrays: Arrays) -> Arrays:
    """Return the attention of each query to its sequence's tokens."""
    q, k, v = (arrays[name].astype(np.float64) for name in ("q", "k", "v"))
    group, out = q.shape[1] // k.shape[2], np.empty_like(q)
    for sequence, length in enumerate(arrays["seq_lens"].tolist()):
        own = arrays["block_table"][sequence, : blocks(length, k.shape[1])]
        keys, values = (one[own].reshape(-1, *one.shape[2:])[:length] for one in (k, v))  # (length, kv_heads, D)
        for head in range(q.shape[1]):
            scores = keys[:, head // group] @ q[sequence, head] * float(arrays["scale"])
            out[sequence, head] = softmax(scores) @ values[:, head // group]
    return {"out": like_result(out, arrays["q"], arrays)}


def expect_decode_traffic(arrays: Arrays) -> Arrays:
    """Return the attention, and the minimum traffic: each cached key and value once per group."""
    values, q, (_, size, kv_heads, D) = expect_decode(arrays), arrays["q"], arrays["k"].shape
    lengths, out = arrays["seq_lens"].tolist(), values["out"]
    counts = [blocks(length, size) for length in lengths]
    group, row = q.shape[1] // kv_heads, D * q.itemsize
    limits = allow_at_most(
        "decode_kernel",
        reads={
            "q_ptr": q.nbytes,
            "k_ptr": sum(lengths) * kv_heads * row,
            "v_ptr": sum(lengths) * kv_heads * row,
            "block_table_ptr": sum(counts) * kv_heads * INT32,
            "seq_lens_ptr": len(lengths) * kv_heads * INT32,
        },
        writes={"out_ptr": out.nbytes},
        busiest=(2 * max(lengths) + group) * row + group * D * out.itemsize + (max(counts) + 1) * INT32,
        widest=max(group, size) * D,
        programs=len(lengths) * kv_heads,
    )
    return values | limits


def compare_decode(got: Arrays, expected: Arrays) -> Mismatch | None:
    """Compare as attention is; of NaN, say where it may come from if slots without a token were read."""
    mismatch, out, reads = compare_attention(got, expected), got.get("out"), got.get(NAN_READS)
    if mismatch is None or out is None or out.dtype.kind != "f" or not np.isnan(out).any():
        return mismatch
    if reads is None or reads.ndim or not reads > 0:
        return mismatch
    why = "slots and blocks without a token hold NaN, and 0 · NaN is NaN too"
    return replace(mismatch, what=f"{mismatch.what}; {why}")


# --- cases as code ----------------------------------------------------------------------------------------------------


def _sizes(arrays: Arrays, *names: str) -> dict[str, int]:
    return {name: int(arrays[name]) for name in names}


def describe_order(arrays: Arrays) -> str:
    """Write a case of Task 5 as code."""
    M, N, sizes = int(arrays["M"]), int(arrays["N"]), _sizes(arrays, "BLOCK_M", "BLOCK_N", "GROUP_M")
    rows, columns = blocks(M, sizes["BLOCK_M"]), blocks(N, sizes["BLOCK_N"])
    results = {"programs": f"torch.empty({rows}, {columns}, dtype=torch.int32)"}
    return render_launch("order_kernel", rows * columns, "", results, f"programs, {M}, {N}", **sizes)


def describe_matmul(arrays: Arrays) -> str:
    """Write a case of Task 6 as code."""
    (M, K), N, sizes = arrays["a"].shape, arrays["b"].shape[1], _sizes(arrays, "BLOCK_M", "BLOCK_N", "BLOCK_K")
    programs = blocks(M, sizes["BLOCK_M"]) * blocks(N, sizes["BLOCK_N"])
    results = {"c": f"torch.empty({M}, {N}{'' if arrays['wide'] else ', dtype=a.dtype'})"}
    turned = [f"{x} = {x}.T.contiguous().T" for x in "ab" if arrays[f"{x}_transposed"] and not arrays["padded"]]
    padded = [f"{x} = torch.nn.functional.pad({x}, (0, 5))[:, :-5]" for x in "ab" if arrays["padded"]]
    arguments = f"a, b, c, {M}, {N}, {K}, *a.stride(), *b.stride()"
    group = int(arrays["GROUP_M"])
    code = render_launch("matmul_kernel", programs, "a b", results, arguments, **sizes, GROUP_M=group)
    first, rest = code.split("\n", 1)
    return "\n".join([first, *turned, *padded, rest])


def describe_attention(arrays: Arrays) -> str:
    """Write a case of FlashAttention as code."""
    (heads, S, D), sizes = arrays["q"].shape, _sizes(arrays, "BLOCK_M", "BLOCK_N")
    results = {"out": "torch.empty_like(q)", "lse": f"torch.empty({heads}, {S})"}
    arguments, grid = f"q, k, v, out, lse, {S}, {D}, {float(arrays['scale'])}", (blocks(S, sizes["BLOCK_M"]), heads)
    width = max(MIN_SIDE, power_of_two(D))
    return render_launch("flash_kernel", grid, "q k v", results, arguments, **sizes, BLOCK_D=width)


def describe_decode(arrays: Arrays) -> str:
    """Write a case of Task 8 as code."""
    (sequences, heads, D), (_, size, kv_heads, _) = arrays["q"].shape, arrays["k"].shape
    inputs, results = "q k v block_table seq_lens", {"out": render_result(arrays, "q")}
    stride, scale = arrays["block_table"].shape[1], float(arrays["scale"])
    arguments = f"q, k, v, block_table, seq_lens, out, {stride}, {scale}"
    sizes = {"D": D, "GROUP": heads // kv_heads, "BLOCK_SIZE": size}
    return render_launch("decode_kernel", (sequences, kv_heads), inputs, results, arguments, **sizes)
