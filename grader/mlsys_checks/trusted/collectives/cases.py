"""Lab 07's cases, oracles, and limits of what ranks send.

`draw_…` returns the inputs of a case, `expect_…` what its answers must be, by an oracle that shares nothing with the
course's own collectives. Limits are sums over the messages that an algorithm needs; sending less passes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np

from mlsys_checks.sandboxed.collectives import ALGORITHMS, cost_calls
from mlsys_checks.sandboxed.ranks import join_ranks, split_ranks
from mlsys_checks.sandboxed.spec import Arrays, Case, Mismatch
from mlsys_checks.sandboxed.values import decode_text, encode_text, encode_value
from mlsys_checks.trusted import traffic
from mlsys_checks.trusted.compare import close
from mlsys_checks.trusted.ledger import read_ledger
from mlsys_checks.trusted.ranks import compare_ranks
from mlsys_checks.trusted.snippet import write_input
from mlsys_checks.trusted.traffic import expect_ranks
from mlsys_lab.comm.ledger import Ledger, Post

Rng = np.random.Generator
FORMS = ("vector", "matrix", "transposed", "scalar", "empty")
DTYPES = ("float64", "float32", "int64", "int32")

# --- inputs of programs -----------------------------------------------------------------------------------------------


def _draw_shape(rng: Rng, form: str, size: int) -> tuple[int, ...]:
    """Draw a shape of a form, of about `size` elements."""
    if form == "scalar":
        return ()
    if form == "vector":
        return (size,)
    rows = int(rng.integers(2 if form == "transposed" else 1, 4))
    if form == "empty":  # few columns: the judge counts the bits of a long empty array's shape as bytes sent
        return (0, rows)
    return (rows, 1 + size // rows)


def _draw_values(rng: Rng, shape: Sequence[int], dtype: str, *, large: bool = False) -> np.ndarray:
    """Draw numbers of few digits, which a message can show: whole ones, or ones with two decimals.

    `large` adds more to whole ones than a float can tell apart.
    """
    if np.dtype(dtype).kind == "i":
        return np.asarray(rng.integers(-99, 100, shape) + large * 2**54, dtype)
    return np.asarray(np.round(rng.normal(0, 3, shape), 2), dtype)


def _draw_root(rng: Rng, p: int) -> dict[str, Any]:
    """Draw the root of a tree."""
    return {"root": int(rng.integers(p))}


def _draw_pairs(rng: Rng, p: int) -> dict[str, Any]:
    """Draw a partner for each rank."""
    order, partner = rng.permutation(p), [0] * p
    for one, other in zip(order[::2].tolist(), order[1::2].tolist(), strict=True):
        partner[one], partner[other] = other, one
    return {"partner": partner}


def _draw_permutation(rng: Rng, p: int) -> dict[str, Any]:
    """Draw a destination for each rank, which is another rank and no other rank's destination."""
    destination = list(range(p))
    while any(rank == to for rank, to in enumerate(destination)):
        destination = rng.permutation(p).tolist()
    return {"destination": destination, "source": [destination.index(rank) for rank in range(p)]}


NUMBERS = {"root": _draw_root, "pairs": _draw_pairs, "permutation": _draw_permutation}
"""What a rank is called with besides its array; a list holds a number for each rank."""


def draw_ranks(rng: Rng, case: Case) -> Arrays:
    """Draw an `x` for each rank, and the numbers with which the function is called.

    params: `p` ranks, `pairs` of ranks, or `islands` of `island` ranks; `size` of an array; `form` and `dtype` (drawn
    if missing); `unlike`: each rank has a shape of its own; `large`; `unset`: NaN on all ranks but the root; `numbers`:
    which of NUMBERS to draw, unless the case has a `partner` for each rank.
    """
    params = case.params
    p = params.get("p") or 2 * params.get("pairs", 0) or params["islands"] * params["island"]
    dtype = params.get("dtype") or str(rng.choice(DTYPES))
    form = params.get("form") or str(rng.choice(FORMS))
    numbers = {"island": params["island"]} if "island" in params else {}
    if "partner" in params:
        numbers["partner"] = params["partner"]
    elif "numbers" in params:
        numbers |= NUMBERS[params["numbers"]](rng, p)
    shape = _draw_shape(rng, form, params["size"])
    parts: list[Arrays] = []
    for rank in range(p):
        if params.get("unlike"):
            form = str(rng.choice(FORMS))
            shape = _draw_shape(rng, form, int(rng.integers(0, params["size"] + 1)))
        x = _draw_values(rng, shape, dtype, large=bool(params.get("large")))
        if params.get("unset") and rank != numbers["root"]:
            x.fill(np.nan)
        own = {name: value[rank] if isinstance(value, list) else value for name, value in numbers.items()}
        own |= {"transposed": True} if form == "transposed" else {}
        parts.append({"x": x, **{name: np.array(value) for name, value in own.items()}})
    return join_ranks(parts)


def _given_x(arrays: Arrays) -> list[np.ndarray]:
    """Return each rank's `x` as its program has it."""
    return [part["x"].T if "transposed" in part else part["x"] for part in split_ranks(arrays)]


def _write_tensor(array: np.ndarray) -> str:
    """Write an array as code that makes a torch.Tensor of it, also if it has no axes or no entries."""
    if array.ndim and array.size:
        return write_input("x", array)
    made = f"tensor({array.item()}" if array.size else f"empty({array.shape}"
    return f"torch.{made}, dtype=torch.{array.dtype})"


def render_run(call: str) -> Callable[[Arrays], str]:
    """Return a check's `describe`: code that runs `call` on ranks; {name} in it is a number of the case."""

    def describe(arrays: Arrays) -> str:
        parts, lines, numbers = split_ranks(arrays), [], {}
        for name in (name for name in parts[0] if name not in ("x", "transposed")):
            values = [part[name].item() for part in parts]
            numbers[name] = values[0] if len(set(values)) == 1 else f"{name}[rank.rank]"
            lines += [] if len(set(values)) == 1 else [f"{name} = {values}"]
        lines += ["nan = math.nan"] if any(np.isnan(part["x"]).any() for part in parts) else []
        turned = [".T" if "transposed" in part else "" for part in parts]
        written = "".join(f"    {_write_tensor(p['x'])}{t},\n" for p, t in zip(parts, turned, strict=True))
        return "\n".join([*lines, f"xs = [\n{written}]", f"run(lambda rank, x: {call.format(**numbers)}, xs)"])

    return describe


# --- what programs must return and may send ---------------------------------------------------------------------------


def _expect_from(name: str, source: str, steps: int, arrays: Arrays) -> Arrays:
    """Each rank receives the array of the rank that its number `source` names."""
    parts = split_ranks(arrays)
    xs = _given_x(arrays)
    received = [{name: xs[int(part[source])]} for part in parts]
    return expect_ranks(received, bytes=[traffic.count_bytes(x) for x in xs], messages=1, steps=steps)


expect_exchange = partial(_expect_from, "exchange", "partner", 2)
expect_send_recv = partial(_expect_from, "send_recv", "source", 1)


def _tree_limits(arrays: Arrays) -> dict[str, int]:
    xs = _given_x(arrays)
    return {"total_bytes": (len(xs) - 1) * traffic.count_bytes(xs[0]), "steps": (len(xs) - 1).bit_length()}


def expect_broadcast(arrays: Arrays) -> Arrays:
    """Every rank has the root's array."""
    xs = _given_x(arrays)
    roots = [int(part["root"]) for part in split_ranks(arrays)]
    return expect_ranks([{"broadcast": xs[root]} for root in roots], **_tree_limits(arrays))


def _sum(xs: Sequence[np.ndarray]) -> np.ndarray:
    return np.asarray(np.sum(xs, axis=0, dtype=xs[0].dtype))


def expect_reduce(arrays: Arrays) -> Arrays:
    """The root has the sum."""
    xs, root = _given_x(arrays), int(split_ranks(arrays)[0]["root"])
    answers: list[Arrays] = [{"nothing": np.array(True)} for _ in xs]
    answers[root] = {"reduce": _sum(xs)}
    return expect_ranks(answers, **_tree_limits(arrays))


def _longest(n: int, parts: int) -> int:
    """Length of the longest chunk if n elements are cut into `parts`."""
    return -(-n // parts)


def expect_reduce_scatter(arrays: Arrays) -> Arrays:
    """Each rank has its chunk of the sum, and sends all chunks but this one."""
    xs = _given_x(arrays)
    p, n, size = len(xs), xs[0].size, xs[0].itemsize
    chunks = np.array_split(_sum(xs).ravel(), p)
    return expect_ranks(
        [{"reduce_scatter": chunk} for chunk in chunks],
        bytes=[(n - len(chunk)) * size for chunk in chunks],
        messages=p - 1,
        largest_message=_longest(n, p) * size,
        steps=p - 1,
    )


def expect_all_gather(arrays: Arrays) -> Arrays:
    """Every rank has all arrays, and sends all but its neighbour's, whichever way round the ring turns."""
    xs = _given_x(arrays)
    p, sizes = len(xs), [traffic.count_bytes(x) for x in xs]
    gathered = {"length": np.array(p)} | {f"all_gather[{i}]": x for i, x in enumerate(xs)}
    most = [sum(sizes) - min(sizes[(r + 1) % p], sizes[(r - 1) % p]) for r in range(p)]
    return expect_ranks([gathered] * p, bytes=most, total_bytes=(p - 1) * sum(sizes), messages=p - 1, steps=p - 1)


def _least_bytes(xs: Sequence[np.ndarray]) -> int:
    """Bytes of all ranks in any all-reduce: each number is sent p - 1 times to be added, and its sum p - 1 times."""
    return 2 * (len(xs) - 1) * xs[0].nbytes


def expect_all_reduce(arrays: Arrays) -> Arrays:
    """Every rank has the sum, and sends all chunks but one, twice; which one is up to the algorithm."""
    xs = _given_x(arrays)
    p, n, size = len(xs), xs[0].size, xs[0].itemsize
    return expect_ranks(
        [{"all_reduce": _sum(xs)}] * p,
        bytes=2 * (n - n // p) * size,
        total_bytes=_least_bytes(xs),
        messages=2 * (p - 1),
        largest_message=_longest(n, p) * size,
        steps=2 * (p - 1),
    )


def expect_halving_doubling(arrays: Arrays) -> Arrays:
    """Every rank has the sum; at distance d it sends no more than the d longest of the chunks."""
    xs = _given_x(arrays)
    p, n, size = len(xs), xs[0].size, xs[0].itemsize
    levels = p.bit_length() - 1
    power, folded = 1 << levels, p > 1 << levels
    distances = [d * (n // power) + min(d, n % power) for d in (1 << k for k in range(levels))]
    return expect_ranks(
        [{"halving_doubling": _sum(xs)}] * p,
        bytes=(2 * sum(distances) + folded * n) * size,
        total_bytes=_least_bytes(xs),
        messages=2 * levels + folded,
        distances=np.zeros(0) if folded else size * np.array(distances, dtype=np.int64),  # others may fold
        steps=2 * levels + 2 * folded,
    )


def expect_hierarchical(arrays: Arrays) -> Arrays:
    """Every rank has the sum, and sends to other islands what a ring all-reduce of one chunk over islands does."""
    xs, island = _given_x(arrays), int(split_ranks(arrays)[0]["island"])
    p, n, size = len(xs), xs[0].size, xs[0].itemsize
    islands, chunk = p // island, _longest(n, island)
    crossing = 2 * (chunk - chunk // islands) * size
    steps = 2 * (island - 1) + 2 * (islands - 1)
    return expect_ranks(
        [{"hierarchical": _sum(xs)}] * p,
        bytes=2 * (n - n // island) * size + crossing,
        total_bytes=_least_bytes(xs),
        messages=steps,
        steps=steps,
        crossing=crossing,
        island=island,
    )


def compare_run(got: Arrays, expected: Arrays) -> Mismatch | None:
    """Return the first wrong answer, request without a wait, or exceeded limit."""
    if (mismatch := compare_ranks(got, expected)) is not None:
        return mismatch
    ledger, limits = read_ledger(got), traffic.limits_of(expected)
    return (
        traffic.find_unwaited(ledger)
        or _find_crossing(ledger, limits)
        or _find_excess(ledger, limits)
        or _find_far(ledger, limits.get("distances", ()))
        or _find_other_buckets(ledger, limits)
    )


check_ranks = partial(traffic.check_ranks, compare=compare_run)
"""Make a check of several ranks. Limits besides those of every lab:

crossing: bytes that a rank sends to other islands of `island` ranks. buckets: bytes of each bucket, in order.
distances: bytes of a message between ranks whose numbers differ in one bit, from the last bit on.
"""


def _find_excess(ledger: Ledger, limits: dict[str, np.ndarray]) -> Mismatch | None:
    mismatch = traffic.find_excess(ledger, limits)
    if mismatch is None or not mismatch.got.endswith(" steps"):
        return mismatch
    what = "too many messages follow one another: do ranks wait in turn, or does one rank serve all others?"
    return replace(mismatch, what=what)


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
                what = f"rank {one.source} sends too much to rank {one.destination}, at distance {1 << bit}"
                return Mismatch(what, f"{one.size_bytes:,} bytes in a message", f"at most {limit:,} bytes")
    return None


def _find_other_buckets(ledger: Ledger, limits: dict[str, np.ndarray]) -> Mismatch | None:
    """Each element of a bucket is sent 2(p - 1) times, whatever all-reduce it goes through; buckets come in turn."""
    buckets = limits.get("buckets", ())
    sent = [
        [event.size_bytes for event in log if isinstance(event, Post) and event.kind == "send"] for log in ledger.logs
    ]
    if len(buckets) == 0 or len(sent) == 1:
        return None
    given = f"with bucket_bytes={limits['bucket_bytes']:,} and parameters of {_write_sizes(limits['parameters'])}"
    for rank, sizes in enumerate(sent):
        if len(sizes) % len(buckets):
            what = f"{given}: the number of buckets is wrong"
            return Mismatch(
                what, f"{len(sizes)} messages from rank {rank}", f"as many for each of {len(buckets)} buckets"
            )
    shares = [np.reshape(sizes, (len(buckets), -1)).sum(axis=1) for sizes in sent]
    found = np.sum(shares, axis=0) // (2 * (len(sent) - 1))
    if np.array_equal(found, buckets):
        return None
    return Mismatch(f"{given}: the sizes of the buckets, in order, are wrong", *map(_write_sizes, (found, buckets)))


def _write_sizes(sizes: Iterable[int]) -> str:
    return ", ".join(f"{size:,}" for size in sizes) + " bytes"


# --- gradients --------------------------------------------------------------------------------------------------------

FILLS = ("exact", "short", "larger", "none", "all")


def draw_gradients(rng: Rng, case: Case) -> Arrays:
    """Draw weights, equal on all ranks, and each rank's x of each weight.

    `count` weights of at most `size` elements. `fill`, drawn if missing, says how many bytes a bucket holds: exactly
    the last few weights, a byte less, a byte less than the largest weight, no bytes, or everything. `without`: how many
    of ten gradients are missing; `absent`: the first rank has none, and no rank has one of the first weight.
    """
    p, count, size = (case.params[name] for name in ("p", "count", "size"))
    dtype, fill = case.params.get("dtype") or str(rng.choice(DTYPES[:2])), case.params.get("fill") or rng.choice(FILLS)
    forms = ("scalar", "vector", "matrix")
    shapes = [_draw_shape(rng, str(rng.choice(forms)), int(rng.integers(1, size + 1))) for _ in range(count)]
    weights = {f"w{i}": _draw_values(rng, shape, dtype) for i, shape in enumerate(shapes)}
    sizes = [w.nbytes for w in weights.values()]
    some = sum(sizes[-int(rng.integers(1, count + 1)) :])
    room = {"exact": some, "short": some - 1, "larger": max(sizes) - 1, "none": 0, "all": 1 << 20}[str(fill)]
    parts = []
    for rank in range(p):
        missing = rng.random(count) < case.params.get("without", 0) / 10
        if case.params.get("absent"):
            missing[0] = True
            missing |= rank == 0
        xs = {f"x of w{i}": _draw_values(rng, shapes[i], dtype) for i in range(count) if not missing[i]}
        parts.append(weights | xs | {"bucket_bytes": np.array(room)})
    return join_ranks(parts)


def expect_gradients(arrays: Arrays) -> Arrays:
    """Every rank has the means, and sends each bucket as one all-reduce."""
    parts = split_ranks(arrays)
    p, weights = len(parts), {name: w for name, w in parts[0].items() if name.startswith("w")}
    xs = {
        name: np.sum([part.get(f"x of {name}", np.zeros_like(w)) for part in parts], axis=0)
        for name, w in weights.items()
    }
    means = {f"{name}.grad": (2 * w * xs[name] / p).astype(w.dtype) for name, w in weights.items()}
    counts, size = [w.size for w in weights.values()], parts[0]["w0"].itemsize
    room = int(parts[0]["bucket_bytes"]) // size
    buckets = _fill_buckets(counts[::-1], room)
    messages = 2 * (p - 1) * len(buckets)
    return expect_ranks(
        [means] * p,
        total_bytes=2 * (p - 1) * sum(counts) * size,
        messages=messages,
        largest_message=_longest(max(room, *counts), p) * size,
        steps=messages,
        buckets=np.array(buckets) * size,
        bucket_bytes=parts[0]["bucket_bytes"],
        parameters=np.array(counts) * size,
    )


def _fill_buckets(counts: Sequence[int], room: int) -> list[int]:
    """Return the elements of each bucket with this much room for neighbours: cut before the first that is too much."""
    sums, cut, buckets = np.cumsum([0, *counts]), 0, []
    while cut < len(counts):
        fits = int(np.searchsorted(sums, sums[cut] + room, side="right")) - 1
        end = max(fits, cut + 1)
        buckets.append(int(sums[end] - sums[cut]))
        cut = end
    return buckets


def render_gradients(arrays: Arrays) -> str:
    """Render weights, gradients and the call of all ranks."""
    parts = split_ranks(arrays)
    names = [name for name in parts[0] if name.startswith("w")]
    weights = "".join(f"    {_write_tensor(parts[0][name])},\n" for name in names)
    lines = []
    for part in parts:
        grads = (2 * part[name] * part[f"x of {name}"] if f"x of {name}" in part else None for name in names)
        written = ", ".join("None" if grad is None else _write_tensor(np.round(grad, 6)) for grad in grads)
        lines.append(f"    [{written}],\n")
    return (
        f"weights = [\n{weights}]\ngrads = [\n{''.join(lines)}]\n\n"
        "def average(rank, grads):\n"
        "    parameters = [Tensor(w, requires_grad=True) for w in weights]\n"
        "    for parameter, grad in zip(parameters, grads):\n"
        "        parameter.grad = grad\n"
        f"    average_gradients(parameters, rank, {int(parts[0]['bucket_bytes'])})\n"
        "    return [parameter.grad for parameter in parameters]\n\n"
        "run(average, grads)"
    )


# --- chunks and counts ------------------------------------------------------------------------------------------------


def draw_chunks(rng: Rng, case: Case) -> Arrays:
    """Draw an array, and a number of parts."""
    form = case.params.get("form") or str(rng.choice([form for form in FORMS if form != "transposed"]))
    x = _draw_values(rng, _draw_shape(rng, form, case.params["size"]), str(rng.choice(DTYPES)))
    return {"x": x, "parts": np.array(case.params["parts"])}


def expect_chunks(arrays: Arrays) -> Arrays:
    """Return NumPy's chunks."""
    turned = np.moveaxis(np.atleast_1d(arrays["x"]), 0, -1)
    chunks = np.array_split(turned.ravel(), int(arrays["parts"]))
    return {"length": np.array(len(chunks))} | {f"split_chunks[{i}]": chunk for i, chunk in enumerate(chunks)}


def render_chunks(arrays: Arrays) -> str:
    """Render the call."""
    return f"x = {_write_tensor(arrays['x'])}\nsplit_chunks(x.movedim(0, -1), {int(arrays['parts'])})"


def draw_counts(rng: Rng, case: Case) -> Arrays:
    """Draw rows of n and p: any, multiples and one more or less, fewer elements than ranks, more than floats hold."""
    p = int(rng.integers(2, case.params["p"] + 1))
    rows = [(p * int(rng.integers(1, 100)) + more, p) for more in (-1, 0, 1)]
    rows += [(0, p), (p - 1, p), (case.params["p"], 1), (2**61 - int(rng.integers(1, 9)), p)]
    return {"rows": np.array([*rows, (int(rng.integers(3, 2000)), int(rng.integers(3, 12)))])}


def expect_counts(arrays: Arrays) -> Arrays:
    """Follow each chunk: every rank but its owner sends it to be summed, every rank but the last passes the sum on."""
    expected: Arrays = {}
    for n, p in arrays["rows"].tolist():
        sent = np.zeros(p, np.int64)
        for owner in range(p):
            chunk = len(range(owner, n, p))  # elements dealt out in turn make chunks of the same lengths
            for hop in range(1, p):
                sent[(owner + hop) % p] += chunk
                sent[(owner + hop - 1) % p] += chunk
        expected[f"ring_elements({n}, {p})"] = sent
    return expected


def render_counts(arrays: Arrays) -> str:
    """Render a call for each row."""
    return "\n".join(f"ring_elements({n}, {p})" for n, p in arrays["rows"].tolist())


# --- costs ------------------------------------------------------------------------------------------------------------

OR = " or "
TIE = 1e-9
"""Relative difference of times below which two algorithms are equally fast: rounding decides."""
BYTE = 1.0
"""Bytes by which a crossover may be off: a search by bisection ends somewhere."""
LARGEST = 2**40
"""Bytes up to which `crossover_bytes` looks, by default."""


SLOW = [100.0, 1e12]
"""A link on which trees and rings cross above LARGEST."""


def _draw_link(rng: Rng) -> list[float]:
    """Draw a latency in seconds and a bandwidth in bytes per second."""
    return [float(f"{10 ** rng.uniform(-6.5, -4.5):.2g}"), float(f"{10 ** rng.uniform(9, 12):.2g}")]


def _up_to(factor: float, link: list[float]) -> dict[str, int]:
    """Return `largest` as a multiple of the bytes that a link carries in its latency."""
    return {"largest": round(factor * link[0] * link[1])}


def draw_switch_costs(rng: Rng, case: Case) -> Arrays:
    """Draw calls of `all_reduce_s` and `crossover_bytes`, some with links without latency or without end of bandwidth.

    `p`: the largest number of ranks. Trees and rings cross at 0.8 to 11.4 times latency times bandwidth, so `largest`
    is below the crossing or above it.
    """
    made: list[list[Any]] = []
    for number in range(case.params["links"]):
        link, p = _draw_link(rng), int(rng.integers(3, case.params["p"] + 1))
        power, size = 1 << int(rng.integers(2, 7)), float(round(link[0] * link[1] * 10 ** rng.uniform(-1, 2)))
        ranks = {"tree": p, "ring": p, "halving_doubling": power}
        made += [["all_reduce_s", name, count, size, link] for name, count in ranks.items()]
        made += [["crossover_bytes", "tree", "ring", count, link] for count in (2, p, power)]
        made += [["crossover_bytes", *names, power, link] for names in (("ring", "tree"), ("halving_doubling", "ring"))]
        if number == 0:
            made += [["all_reduce_s", name, count, 0.0, link] for name, count in ranks.items()]
            made += [["all_reduce_s", name, 1, size, link] for name in ranks]
            made += [["crossover_bytes", "tree", "ring", p, [0.0, link[1]]]]
            made += [["crossover_bytes", "tree", "ring", power, [link[0], math.inf]]]
            made += [["crossover_bytes", "tree", "ring", power, link, _up_to(factor, link)] for factor in (0.5, 20)]
            made += [["crossover_bytes", "tree", "ring", power, SLOW, *up_to] for up_to in ([], [_up_to(20, SLOW)])]
    return {"case": encode_value(made)}


def draw_island_costs(rng: Rng, case: Case) -> Arrays:
    """Draw calls of `predict_s` and `select_algorithm` for `topologies`, near sizes at which the choice changes.

    Four of them have a single rank, one island, islands of one rank, and no bytes.
    """
    made: list[list[Any]] = []
    if case.params.get("example"):
        two_nodes = [8, 4, [1e-6, 450e9], [5e-6, 50e9]]
        made = [["predict_s", name, 1e6, two_nodes] for name in ALGORITHMS] + [["select_algorithm", 1e6, two_nodes]]
    for number in range(case.params["topologies"]):
        levels = int(rng.integers(1, 8))
        p, island = 1 << levels, 1 << int(rng.integers(levels + 1))
        p, island = ((p, island), (1, 1), (p, p), (p, 1))[number if number < 4 else 0]
        inside, (latency_s, bytes_per_s) = _draw_link(rng), _draw_link(rng)
        topology = [p, island, inside, [latency_s, bytes_per_s]]
        size = 0.0 if number == 4 else 1.0 + 2 * round(latency_s * bytes_per_s * 10 ** rng.uniform(-1, 2))
        made += [["predict_s", name, size, topology] for name in ALGORITHMS]
        made += [["select_algorithm", size, topology]]
    return {"case": encode_value(made)}


def render_costs(arrays: Arrays) -> str:
    """Render the calls."""
    return "\n".join(f"print({code})" for code, *_ in cost_calls(arrays))


def expect_costs(arrays: Arrays) -> Arrays:
    """Return each call's code and answer: a number, or text for None and names; several names if equally fast."""
    oracles: dict[str, Callable[..., np.ndarray]] = {
        "all_reduce_s": lambda name, p, size, link: np.array(_seconds(name, size, [p, p, link, link])),
        "crossover_bytes": _cross,
        "predict_s": lambda name, size, topology: np.array(_seconds(name, size, topology)),
        "select_algorithm": _fastest,
    }
    expected: Arrays = {}
    for i, (code, name, arguments, named) in enumerate(cost_calls(arrays)):
        expected |= {f"code {i}": encode_text(code), f"call {i}": oracles[name](*arguments, **named)}
    return expected


def _rounds(algorithm: str, p: int, island: int) -> list[tuple[int, list[tuple[int, int]], Fraction]]:
    """Return an algorithm's rounds: how often, the pairs that send at the same time, and what fraction of the array."""
    distances = [1 << k for k in range((p - 1).bit_length())]
    if algorithm == "tree":
        return [(2, [(v, v + d) for v in range(d) if v + d < p], Fraction(1)) for d in distances]
    if algorithm == "halving_doubling":
        return [(2, [(r, r ^ d) for r in range(p)], Fraction(d, p)) for d in distances]
    if algorithm == "ring":
        return [(2 * p - 2, [(r, (r + 1) % p) for r in range(p)], Fraction(1, p))]
    within = [(r, r - r % island + (r + 1) % island) for r in range(p)]
    between = [(r, (r + island) % p) for r in range(p)]
    return [(2 * island - 2, within, Fraction(1, island)), (2 * (p // island) - 2, between, Fraction(1, p))]


def _line(algorithm: str, size: float, topology: Sequence[Any]) -> Fraction:
    """Return the exact seconds of an all-reduce on islands."""
    p, island, *links = topology
    costs = [(Fraction(latency_s), Fraction(1) / Fraction(rate) if rate < math.inf else 0) for latency_s, rate in links]
    total = Fraction(0)
    for times, pairs, fraction in _rounds(algorithm, p, island):
        used = {costs[a // island != b // island] for a, b in pairs} if times else set()
        total += times * max((alpha + fraction * Fraction(size) * beta for alpha, beta in used), default=0)
    return total


def _seconds(algorithm: str, size: float, topology: Sequence[Any]) -> float:
    return float(_line(algorithm, size, topology))


def _cross(first: str, second: str, p: int, link: Sequence[float], largest: float = LARGEST) -> np.ndarray:
    """Return where two straight lines in bytes meet, exactly, if the second is the lower one from there on."""
    ahead = [_line(second, n, [p, p, link, link]) - _line(first, n, [p, p, link, link]) for n in (0, 1)]
    slope = ahead[1] - ahead[0]
    if ahead[0] < 0 or slope >= 0 or -ahead[0] / slope >= largest:
        return encode_text("None")
    return np.array(float(-ahead[0] / slope))


def _fastest(size: float, topology: Sequence[Any]) -> np.ndarray:
    times_s = {name: _seconds(name, size, topology) for name in ALGORITHMS}
    most = min(times_s.values()) * (1 + TIE)
    return encode_text(OR.join(name for name, time_s in times_s.items() if time_s <= most))


def compare_costs(got: Arrays, expected: Arrays) -> Mismatch | None:
    """Return the first call with a wrong answer; of algorithms that are equally fast any may be selected."""
    for i in range(len(expected) // 2):
        name, code = f"call {i}", decode_text(expected[f"code {i}"])
        answer, want = got.get(name, encode_text("nothing")), expected[name]
        if want.dtype == answer.dtype == np.uint8:
            right = decode_text(answer) in decode_text(want).split(OR)
        else:
            right = answer.dtype == want.dtype and close({name: answer}, {name: want}) is None
            right |= answer.dtype == want.dtype and code.startswith("crossover") and bool(abs(answer - want) <= BYTE)
        if not right:
            return Mismatch(f"`{code}` is wrong", _shown(answer), _shown(want))
    return None


def _shown(answer: np.ndarray) -> str:
    return decode_text(answer) if answer.dtype == np.uint8 else f"{answer.item():.6g}"
