"""What ranks are given, and what they give back and send, held against what is expected and the most that it may cost.

Limits are sums over the messages that an algorithm needs, chunk by chunk, written down here and nowhere taken from the
course's own collectives. A program that sends less than its limit passes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from mlsys_checks.sandboxed.ranks import join_ranks, split_ranks
from mlsys_checks.sandboxed.spec import Arrays, Case, Mismatch
from mlsys_checks.trusted import traffic
from mlsys_checks.trusted.ledger import read_ledger
from mlsys_checks.trusted.ranks import compare_ranks
from mlsys_checks.trusted.snippet import write_input
from mlsys_lab.comm.ledger import Ledger, Post


def draw(rng: np.random.Generator, shape: Sequence[int], dtype: str, *, large: bool = False) -> np.ndarray:
    """Draw numbers of few digits, so that a case can be shown: whole ones, or ones with two decimals.

    `large` adds more to whole ones than a float can tell apart.
    """
    if np.dtype(dtype).kind == "i":
        return np.asarray(rng.integers(-99, 100, shape) + large * 2**54, dtype)
    return np.asarray(np.round(rng.normal(0, 3, shape), 2), dtype)


def draw_ranks(rng: np.random.Generator, case: Case) -> Arrays:
    """Draw an `x` for each rank, and give each the case's numbers; lists hold a number for each rank.

    params: `p`; `shape` of all ranks or `shapes` of each; `dtype`; `large`; `transposed`; `unset`, the ranks whose
    numbers are NaN; whatever else goes to the ranks.
    """
    params = dict(case.params)
    unset, large = params.pop("unset", ()), params.pop("large", False)
    p, dtype = params.pop("p"), params.pop("dtype", "float64")
    shape = params.pop("shape", ())
    shapes = params.pop("shapes", [shape] * p)
    xs = [draw(rng, shapes[rank], dtype, large=large) for rank in range(p)]
    for rank in unset:
        xs[rank].fill(np.nan)
    return join_ranks(
        [
            {"x": x}
            | {name: np.array(value[rank] if isinstance(value, list) else value) for name, value in params.items()}
            for rank, x in enumerate(xs)
        ]
    )


def given_x(arrays: Arrays) -> list[np.ndarray]:
    """Each rank's `x` as its program has it."""
    return [part["x"].T if "transposed" in part else part["x"] for part in split_ranks(arrays)]


def longest(n: int, parts: int) -> int:
    """Length of the longest of so many chunks of n elements."""
    return -(-n // parts)


def compare_run(got: Arrays, expected: Arrays) -> Mismatch | None:
    """Find what `traffic.compare_run` finds, or the first of this lab's own limits that is missed."""
    if (mismatch := compare_ranks(got, expected)) is not None:
        return mismatch
    ledger, limits = read_ledger(got), traffic.limits_of(expected)
    return (
        traffic.find_unwaited(ledger)
        or _find_crossing(ledger, limits)
        or traffic.find_excess(ledger, limits)
        or _find_far(ledger, limits.get("distances", ()))
        or _find_other_buckets(ledger, limits.get("buckets", ()))
    )


check_ranks = partial(traffic.check_ranks, compare=compare_run)
"""Make a check of several ranks. Besides what every lab can limit:

crossing: bytes that a rank sends to other islands of `island` ranks. buckets: bytes of each bucket, in order.
distances: bytes of a message between ranks whose numbers differ in one bit, from the last bit on.
"""


def _find_crossing(ledger: Ledger, limits: dict[str, np.ndarray]) -> Mismatch | None:
    if "crossing" not in limits:
        return None
    island, sent = int(limits["island"]), [0] * len(ledger.logs)
    for (source, destination), size_bytes in ledger.link_bytes().items():
        sent[source] += size_bytes * (source // island != destination // island)
    return traffic.find_excess_rank(sent, limits["crossing"], "bytes to other islands")


def _find_far(ledger: Ledger, most: Sequence[int] | np.ndarray) -> Mismatch | None:
    for one in ledger.messages:
        for bit, limit in enumerate(most):
            if one.source ^ one.destination == 1 << bit and one.size_bytes > limit:
                what = f"rank {one.source} sends too much to rank {one.destination}, which is {1 << bit} away"
                return Mismatch(what, f"{one.size_bytes:,} bytes in a message", f"at most {limit:,} bytes")
    return None


def _find_other_buckets(ledger: Ledger, buckets: Sequence[int] | np.ndarray) -> Mismatch | None:
    """Each element of a bucket is sent 2(p - 1) times, whatever all-reduce it goes through; buckets come in turn."""
    sent = [
        [event.size_bytes for event in log if isinstance(event, Post) and event.kind == "send"] for log in ledger.logs
    ]
    if len(buckets) == 0 or len(sent) == 1 or any(len(sizes) % len(buckets) for sizes in sent):
        return None
    shares = [np.reshape(sizes, (len(buckets), -1)).sum(axis=1) for sizes in sent]
    found = np.sum(shares, axis=0) // (2 * (len(sent) - 1))
    if np.array_equal(found, buckets):
        return None
    told = [", ".join(f"{size:,}" for size in sizes) + " bytes" for sizes in (found, buckets)]
    return Mismatch("the buckets hold other parameters", *told)


def write_tensor(name: str, array: np.ndarray) -> str:
    """An array as code that makes a torch.Tensor of it, also where it has no axes or no entries."""
    if array.ndim and array.size:
        return write_input(name, array)
    made = f"tensor({array.item()}" if array.size else f"empty({array.shape}"
    return f"torch.{made}, dtype=torch.{array.dtype})"


def write_run(call: str) -> Callable[[Arrays], str]:
    """A check's `describe`: code that runs `call` on ranks with the case's arrays; {name} is a number of the case."""

    def describe(arrays: Arrays) -> str:
        parts, lines, numbers = split_ranks(arrays), [], {}
        for name in (name for name in parts[0] if name not in ("x", "transposed")):
            values = [part[name].item() for part in parts]
            numbers[name] = values[0] if len(set(values)) == 1 else f"{name}[rank.rank]"
            lines += [] if len(set(values)) == 1 else [f"{name} = {values}"]
        lines += ["nan = math.nan"] if any(np.isnan(part["x"]).any() for part in parts) else []
        turned = ".T" if "transposed" in parts[0] else ""
        written = "".join(f"    {write_tensor('x', part['x'])}{turned},\n" for part in parts)
        return "\n".join([*lines, f"xs = [\n{written}]", f"run(lambda rank, x: {call.format(**numbers)}, xs)"])

    return describe
