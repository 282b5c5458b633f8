"""Task 7: what attention moves, and flash attention. Oracles: tiles walked and counted, softmax in float64."""

from __future__ import annotations

from functools import partial

import numpy as np
from scipy.special import logsumexp, softmax

from mlsys_checks.sandboxed.spec import Arrays, Case, Check
from mlsys_checks.sandboxed.triton import attention as calls
from mlsys_checks.sandboxed.triton.launches import blocks, power_of_two
from mlsys_checks.trusted.compare import close
from mlsys_checks.trusted.traced import allow_at_most
from mlsys_checks.trusted.triton import snippets, speed
from mlsys_checks.trusted.triton.comparison import agree_nearly
from mlsys_checks.trusted.triton.scores import raise_scores

F32 = 4
"""Bytes of a float32."""
ALIKE = {"spread": 0.0, "scores": {None: -1e6}, "dtype": np.float16, "scale": 2.0**80}
"""All queries alike, and all keys: every score is the same, however far from zero, and below any number but -inf."""
LEAST = [[1, 1, 1], [31, 1, 31], [40, 1, 1], [23, 23, 23]]
"""Tokens, width and block at their least, one of them or several."""
CHANGED = [[720, 20, 24], [1440, 20, 24], [720, 21, 24], [720, 20, 48]]
"""Tokens, width and block, of which one is another each time."""
CANCELLING = {"dtype": np.float16, "spread": 0.1, "scores": {None: 150.0}, "cancelling": 1.03, "scale": 0.3}
"""Scores of about -3, though their products are large, and so log-sum-exps near zero: there each rounding shows."""
RISING = {"dtype": np.float16, "spread": 0.1, "scores": {17: 12.3, 33: 26.8}}
"""Scores whose exponentials, relative to a maximum of earlier blocks, are above all float16."""
ROUNDED = {"dtype": np.float16, "spread": 0.0, "scores": {0: 3.75, None: -20.0}, "scale": 0.6927 / 3.75}
"""Weights of 1 and 0.50022, which rounds to a half; log-sum-exps come near zero."""
LARGE = {"dtype": np.float16, "value": 3e4}
"""Values of which no two can be added up in half precision."""

# --- attention_bytes ------------------------------------------------------------------------------------------------


def _bytes_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    rows = []
    for _ in range(case.params["draws"]):
        block, blocks = int(rng.integers(16, 128)), int(rng.integers(*case.params.get("blocks", (1, 9))))
        rows.append([block * blocks, int(rng.integers(3, block + 1)), block])
    return {"sizes": np.array([*case.params.get("also", []), *rows])}


def _bytes_expect(arrays: Arrays) -> Arrays:
    """Tiles that are loaded or stored, one row of tiles after the other."""
    expected: Arrays = {}
    for S, D, block in arrays["sizes"].tolist():
        naive = flash = 0
        for rows in range(0, S, block):
            tiles, seen = S // block, len(range(0, rows + block, block))
            naive += tiles * (2 * block * D + block * block)  # a tile of scores: all of D at once
            naive += block * D  # a tile of the result: D is no wider than a block
            naive += tiles * (block * block + block * D)
            flash += 2 * block * D + block
            flash += seen * 2 * block * D
        naive += S * 2 * S
        given = f"{S}, {D}, {block}"
        expected[f"naive_attention_bytes({given})"] = np.array(F32 * naive)
        expected[f"flash_attention_bytes({given})"] = np.array(F32 * flash)
    return expected


# --- flash ----------------------------------------------------------------------------------------------------------


def _inputs(rng: np.random.Generator, case: Case) -> Arrays:
    size = (case.params["heads"], case.params["tokens"], case.params["width"])
    dtype, spread = case.params.get("dtype", np.float32), case.params.get("spread", 1.0)
    q, k, v = (rng.normal(scale=s, size=size) for s in (spread, spread, 1.0))
    v += case.params.get("value", 0.0)
    if "scores" in case.params:
        raise_scores(q, k, case.params["scores"])
    if "cancelling" in case.params:
        k[..., ::2] *= -case.params["cancelling"]
    given = {name: array.astype(dtype) for name, array in (("q", q), ("k", k), ("v", v))}
    block_m, block_n = case.params.get("blocks", (16, 16))
    numbers = {"scale": case.params.get("scale", size[2] ** -0.5), "BLOCK_M": block_m, "BLOCK_N": block_n}
    return given | {name: np.array(number) for name, number in numbers.items()}


def _expect(arrays: Arrays, counted: bool) -> Arrays:
    q, k, v = (arrays[name].astype(np.float64) for name in ("q", "k", "v"))
    tokens = q.shape[1]
    scores = float(arrays["scale"]) * q @ k.transpose(0, 2, 1)
    scores[:, ~np.tri(tokens, dtype=bool)] = -np.inf
    out = softmax(scores, axis=2) @ v
    values = {"out": out.astype(arrays["q"].dtype), "lse": logsumexp(scores, axis=2).astype(np.float32)}
    return values | _most(arrays) if counted else values


def _most(arrays: Arrays) -> Arrays:
    """Keys up to the end of the block that holds a program's last query."""
    (heads, tokens, width), block_m, block_n = arrays["q"].shape, int(arrays["BLOCK_M"]), int(arrays["BLOCK_N"])
    programs = blocks(tokens, block_m)
    ends = [min(tokens, (i + 1) * block_m) for i in range(programs)]
    seen = [min(tokens, blocks(end, block_n) * block_n) for end in ends]
    row = width * arrays["q"].itemsize
    return allow_at_most(
        "flash_kernel",
        reads={"q_ptr": heads * tokens * row, "k_ptr": heads * sum(seen) * row, "v_ptr": heads * sum(seen) * row},
        writes={"out_ptr": heads * tokens * row, "lse_ptr": heads * tokens * F32},
        busiest=2 * (min(tokens, block_m) + max(seen)) * row + block_m * F32,
        widest=max(block_m, block_n) * max(calls.LEAST_D, power_of_two(width)),
        programs=heads * programs,
    )


def _describe_bytes(arrays: Arrays) -> str:
    """Calls of both functions for each of the case's sizes."""
    names = ("naive_attention_bytes", "flash_attention_bytes")
    return "\n".join(f"{name}{tuple(sizes)}" for sizes in arrays["sizes"].tolist() for name in names)


CHECKS = (
    Check(
        name="attention_bytes",
        title="Bytes of attention, the plain way and flash",
        points=6,
        cases=(
            Case("one block, two, and four", {"draws": 0, "also": [[16, 16, 16], [32, 16, 16], [64, 16, 16]]}),
            Case("other widths, and blocks of any size", {"draws": 3}),
            Case("one number changed at a time", {"draws": 0, "also": CHANGED}),
            Case("a hundred thousand tokens", {"draws": 0, "also": [[1100 * 91, 83, 91]]}),
            Case("many others", {"draws": 60}, hidden=True),
            Case("each number at its least", {"draws": 0, "also": LEAST}, hidden=True),
            Case("a million tokens", {"draws": 0, "also": [[500 * 2003, 1999, 2003]]}, hidden=True),
            Case("longer than a kernel could be run for", {"draws": 2, "blocks": (120, 160)}, hidden=True),
        ),
        inputs=_bytes_inputs,
        run=calls.predicted,
        describe=_describe_bytes,
        expect=_bytes_expect,
        compare=close,
        first_hint="Take two blocks and go through the programs: what does each load, and what does it store?",
        hint="Launch by launch: how many columns of tiles read all of Q, how many rows of tiles all of K, and what of "
        "the S² numbers is read or written each time? D fits into one tile. Flash: how many blocks of keys does block "
        "number i of queries read? Use //, and 4 bytes a number.",
        uses=("naive_attention_bytes", "flash_attention_bytes"),
    ),
    Check(
        name="flash",
        title="Causal flash attention and its log-sum-exp",
        points=12,
        cases=(
            Case("one block", {"heads": 1, "tokens": 16, "width": 16}),
            Case("two heads, tokens that do not fill a block", {"heads": 2, "tokens": 21, "width": 16}),
            Case("two heads, a width that is no power of two", {"heads": 2, "tokens": 35, "width": 20, "scale": 0.3}),
            Case(
                "scores far apart, and longer blocks of keys than of queries",
                {"heads": 1, "tokens": 33, "width": 16, "spread": 7.0, "blocks": (16, 32)},
            ),
            Case("the first key outweighs all others", {"heads": 1, "tokens": 20, "width": 16, "scores": {0: 110.0}}),
            Case("all scores far below zero", {"heads": 1, "tokens": 20, "width": 16, "scores": {None: -110.0}}),
            Case("half precision, one score, 10³⁰ below zero", {"heads": 1, "tokens": 20, "width": 16, **ALIKE}),
            Case("longer blocks of queries than of keys", {"heads": 2, "tokens": 45, "width": 35, "blocks": (32, 16)}),
            Case("many blocks of keys", {"heads": 1, "tokens": 1041, "width": 16, "blocks": (2048, 16)}),
            Case("half precision, large products that cancel", {"heads": 1, "tokens": 40, "width": 16, **CANCELLING}),
            Case("half precision, scores that rise block by block", {"heads": 1, "tokens": 40, "width": 16, **RISING}),
            Case("half precision, weights that all round down", {"heads": 1, "tokens": 33, "width": 1, **ROUNDED}),
            Case("half precision, large values, one to a token", {"heads": 1, "tokens": 9, "width": 1, **LARGE}),
            Case("one token", {"heads": 1, "tokens": 1, "width": 16, "scores": {0: -3.0}}),
            Case("others", {"heads": 2, "tokens": 70, "width": 13, "spread": 3.0, "blocks": (16, 32)}, hidden=True),
            Case(
                "a later key outweighs all others", {"heads": 2, "tokens": 21, "width": 23, "scores": {17: 110.0}}, True
            ),
        ),
        inputs=_inputs,
        run=calls.flash,
        expect=partial(_expect, counted=False),
        compare=agree_nearly,
        snippet=snippets.FLASH,
        first_hint="Which keys may the first query see, and what becomes of your sums when a larger score comes?",
        hint="Scores of keys that a query does not see become -inf before the maximum is taken. Both the sum and the "
        "weighted values are multiplied by exp(old maximum - new maximum). The log-sum-exp is the maximum plus "
        "tl.log of the sum, in the scores' own scale.",
        uses=("flash_kernel",),
        traced=True,
    ),
    Check(
        name="flash_traffic",
        title="Keys and values once for each block of queries that sees them",
        points=6,
        cases=(
            Case("three blocks", {"heads": 1, "tokens": 48, "width": 16}),
            Case("two heads", {"heads": 2, "tokens": 45, "width": 16, "dtype": np.float16, "blocks": (32, 16)}, True),
        ),
        inputs=_inputs,
        run=calls.flash,
        expect=partial(_expect, counted=True),
        compare=agree_nearly,
        snippet=snippets.FLASH,
        first_hint="Which is the last key that a program's queries see, and where does its loop end?",
        hint="Load Q before the loop. The loop ends with the block that holds the program's last query: no later key "
        "is seen. Nothing is stored before the end.",
        uses=("flash_kernel",),
        performance=speed.FLASH,
        traced=True,
    ),
)
