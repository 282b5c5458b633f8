"""Task 4: what a warp asks of memory at once. Oracles: bytes marked one by one; banks served in turns."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise

import numpy as np

from mlsys_checks.sandboxed.gpu_model import memory as calls
from mlsys_checks.sandboxed.spec import Arrays, Case, Check
from mlsys_checks.trusted.answers import agree, likely

WARP, SECTOR, WORD, BANKS = 32, 32, 4, 32


def _rows(rng: np.random.Generator, case: Case) -> Arrays:
    """Requests: strides in bytes from one start, lanes at random, or a crowd; of some only a part of the lanes asks."""
    rows, widths = [], []
    start = 0 if case.params.get("from 0") else SECTOR * int(rng.integers(1, 20))
    for width, stride, shift in case.params.get("strides", ()):
        rows.append(start + shift + stride * np.arange(WARP))
        widths.append(width)
    for width, spread in case.params.get("random", ()):
        rows.append(width * rng.integers(0, spread, WARP))
        widths.append(width)
    if case.params.get("crowd"):  # most lanes want one word; four of them words of one other bank
        crowd, other = rng.permutation(BANKS)[:2]
        words = np.full(WARP, crowd)
        words[rng.permutation(WARP)[:4]] = other + BANKS * np.arange(4)
        rows.append(WORD * words)
        widths.append(WORD)
    requests = np.array(rows)
    if case.params.get("masked"):
        requests[rng.random(requests.shape) < 0.6] = -1
        requests[:, 0] = np.maximum(requests[:, 0], 0)
    if case.params.get("nobody"):  # and in the request before, a single lane
        requests[0, np.arange(WARP) != rng.integers(1, WARP)] = -1
        requests[1:] = -1
    return {"requests": requests, "size_bytes": np.array(widths)}


def _sectors_expect(arrays: Arrays) -> Arrays:
    """Mark every byte that a lane asks for; count the sectors with a mark."""
    expected = {}
    for i, (row, width) in enumerate(zip(arrays["requests"], arrays["size_bytes"].tolist(), strict=True)):
        asked = row[row >= 0]
        marked = {byte for at in asked.tolist() for byte in range(at, at + width)}
        name = calls.sectors_call(i, width)
        expected[name] = np.array(len({byte // SECTOR for byte in marked}))
        expected |= likely(
            name,
            {
                "only the first byte of each lane was looked at": len(np.unique(asked // SECTOR)),
                "so many it would be if the bytes lay side by side": -(-len(asked) * width // SECTOR),
                "lanes in one sector share it": len(asked),
                "the byte behind a lane's last was looked at too": len(
                    np.unique([asked // SECTOR, (asked + width) // SECTOR])
                ),
            },
        )
    return expected


def _passes_expect(arrays: Arrays) -> Arrays:
    """Serve a request pass by pass: each bank hands out one word, to all lanes that want it."""
    expected = {}
    for i, row in enumerate(arrays["requests"]):
        waiting, passes = {address // WORD for address in row[row >= 0].tolist()}, 0
        deepest = np.bincount(row[row >= 0] // WORD % BANKS, minlength=1).max()
        while waiting:
            serving = {word % BANKS: word for word in sorted(waiting)}
            waiting -= set(serving.values())
            passes += 1
        name = calls.passes_call(i)
        expected[name] = np.array(passes)
        expected |= likely(name, {"lanes that want one word share it": int(deepest)})
    return expected


def _shown(call: Callable[[int, int], str]) -> Callable[[Arrays], str]:
    def describe(arrays: Arrays) -> str:
        widths = arrays["size_bytes"].tolist()
        rows = [f"    {_code(calls.lanes(row))}," for row in arrays["requests"]]
        return "\n".join(["requests = [", *rows, "]", *(call(i, width) for i, width in enumerate(widths))])

    return describe


def _code(addresses: Iterable[int]) -> str:
    """Addresses as code: a range where they are one, or one address many times."""
    listed = list(addresses)
    steps = {after - before for before, after in pairwise(listed)}
    if len(listed) > 2 and len(steps) == 1 and 0 not in steps:
        step = steps.pop()
        return f"range({listed[0]}, {listed[-1] + step}, {step})"
    if len(listed) > 2 and steps == {0}:
        return f"[{listed[0]}] * {len(listed)}"
    return f"[{', '.join(map(str, listed))}]"


CHECKS = (
    Check(
        name="sectors",
        title="Sectors of a warp's request",
        points=8,
        cases=(
            Case(
                "side by side, of 1 to 16 bytes", {"strides": [(1, 1, 0), (2, 2, 0), (4, 4, 0), (8, 8, 0), (16, 16, 0)]}
            ),
            Case("one element off", {"strides": [(2, 2, 2), (4, 4, 4), (8, 8, 8)]}),
            Case(
                "from address 0 on, apart, and all there",
                {"strides": [(4, 8, 0), (4, 32, 0), (8, 256, 0), (4, 0, 0)], "from 0": True},
            ),
            Case(
                "lanes that cross from one sector into the next, and shorter ones",
                {"strides": [(8, 64, 28), (4, 64, 28), (16, 48, 20)]},
            ),
            Case("anywhere, some lanes masked off", {"random": [(4, 60), (4, 400), (8, 90)], "masked": True}),
            Case("one lane, and none", {"strides": [(4, 4, 0)] * 2, "nobody": True}),
            Case("far up in memory, and far apart", {"strides": [(4, 8, 2**33), (2, 64, 2**36 - 1), (4, 2**28, 0)]}),
            Case(
                "others",
                {"strides": [(2, 6, 30), (12, 24, 28), (12, 96, 28), (4, 64, 29)], "random": [(6, 300)]},
                hidden=True,
            ),
        ),
        inputs=_rows,
        run=calls.sectors,
        describe=_shown(calls.sectors_call),
        expect=_sectors_expect,
        compare=agree,
        first_hint="Draw memory as a row of sectors, and mark what the first lanes of the failing request touch.",
        hint="Number the sectors from 0 on. In which one is the first byte of a lane, in which one its last? Lanes "
        "that touch the same sector pay for it once.",
        uses=("sectors_touched",),
    ),
    Check(
        name="banks",
        title="Passes of a warp's request through the banks",
        points=8,
        cases=(
            Case("side by side, and one word for all", {"strides": [(4, 4, 0), (4, 0, 8)]}),
            Case(
                "strides of words, from 0 on",
                {
                    "strides": [(4, 8, 0), (4, 12, 0), (4, 64, 4), (4, 128, 0), (4, 132, 0), (4, 4096, 0)],
                    "from 0": True,
                },
            ),
            Case("most lanes at one word", {"crowd": True}),
            Case("two lanes in a word", {"strides": [(2, 2, 0), (2, 64, 0)]}),
            Case("anywhere, some lanes masked off", {"random": [(4, 90), (4, 1000)], "masked": True}),
            Case("one lane, and none", {"strides": [(4, 4, 0)] * 2, "nobody": True}),
            Case("others", {"strides": [(4, 24, 8), (2, 130, 0)], "random": [(4, 500), (2, 200)]}, hidden=True),
        ),
        inputs=_rows,
        run=calls.passes,
        describe=_shown(lambda i, _: calls.passes_call(i)),
        expect=_passes_expect,
        compare=agree,
        first_hint="Write the words that two lanes ask for beside the banks that these words lie in.",
        hint="Which word is an address in, and which bank is that word in? All banks work at once; each takes a pass "
        "for every *different* word that is asked of it. Without lanes there is no pass.",
        uses=("bank_passes",),
    ),
)
