"""Cases of lab 08's checks, and oracles: derivatives by hand in NumPy, one process that has everything, sums of sizes.

Sizes of a case may be given (`shapes`, `tokens`), which makes it an example or a situation; what is not given is drawn.
When buckets are sent is read from the log: see `sending`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch

from mlsys_checks.sandboxed import data_parallel as calls
from mlsys_checks.sandboxed.ranks import DEFERRED, join_ranks, split_ranks
from mlsys_checks.sandboxed.spec import Arrays, Case
from mlsys_checks.sandboxed.values import encode_text
from mlsys_checks.trusted.data_parallel.sending import Sending, expect_sending, find_sending
from mlsys_checks.trusted.traffic import expect_ranks

STEPS = 2
"""Steps of training, or calls in a row, if a case names no other number."""
RATE = 0.1
"""What the calls multiply a gradient by before they subtract it."""
AGAIN = "", "again, "
"""A state is loaded once, and again."""
AXES = {"weights": 1, "step": 0, "rate": 0, "on": 0, "position": 0, "random": 1}
"""How many axes each entry of a state has; momenta have one."""


# --- what cases are made of -------------------------------------------------------------------------------------------


def draw(rng: np.random.Generator, *shape: int, spread: float = 1.0) -> np.ndarray:
    """Draw numbers with two decimals."""
    return np.array(np.round(rng.normal(0, spread, shape), 2))


def draw_shapes(rng: np.random.Generator, case: Case) -> list[tuple[int, ...]]:
    """Return the case's shapes, or draw `count` of them: with one axis or two, one in four with none or no elements."""
    if "shapes" in case.params:
        return list(case.params["shapes"])
    largest = case.params.get("largest", 3)
    shapes: list[tuple[int, ...]] = []
    for _ in range(case.params["count"]):
        axes = int(rng.choice([0, 1, 1, 1, 1, 2, 2, 3]))
        shape = tuple(rng.integers(1, largest + 1, min(axes, 2)).tolist())
        shapes.append((0,) if axes == 3 else shape)
    return shapes if any(0 not in shape for shape in shapes) else [*shapes[1:], (2,)]


def draw_weights(
    rng: np.random.Generator, shapes: Sequence[tuple[int, ...]], spread: float = 1.0, dtype: str = "float64"
) -> Arrays:
    """Draw parameters w0, w1, …"""
    return {f"w{i}": draw(rng, *shape, spread=spread).astype(dtype) for i, shape in enumerate(shapes)}


def dtype_of(case: Case) -> str:
    """Return the dtype of a case's parameters."""
    return "float32" if case.params.get("float32") else str(case.params.get("dtype", "float64"))


def forms_of(case: Case) -> Arrays:
    """Return what is unusual about parameters: the index of one that is frozen, whether matrices are transposed."""
    return {name: np.array(case.params[name]) for name in ("frozen", "transposed") if case.params.get(name)}


def draw_used(rng: np.random.Generator, case: Case, p: int, steps: int, count: int) -> np.ndarray:
    """Draw which parameters each rank's loss uses in each step; `not_used` names some that are not used."""
    used: np.ndarray = rng.random((p, steps, count)) > case.params.get("unused", 0) / 10
    for rank, i, *step in case.params.get("not_used", ()):
        used[(rank, *step, i) if step else (rank, slice(None), i)] = False
    return used


def draw_tokens(rng: np.random.Generator, case: Case) -> list[np.ndarray]:
    """Counts of each rank's micro-batches in each step, (STEPS, batches): given, or drawn for `p` ranks.

    Odd ranks have twice as many in a later step, even ones as many as before: weights remembered by a rank's own counts
    are wrong then.
    """
    given = case.params.get("tokens")
    if given is None:
        given = [
            rng.integers(0, case.params["most"] + 1, rng.integers(0, 4)) * rng.integers(0, 3, 1).clip(0, 1)
            for _ in range(case.params["p"])
        ]
        given[int(rng.integers(len(given)))] = rng.integers(1, case.params["most"] + 1, 2)
    first = [np.array(tokens, np.int64) for tokens in given]
    return [np.stack([counts << step * (rank % 2) for step in range(STEPS)]) for rank, counts in enumerate(first)]


def weights_of(part: Arrays, letter: str = "w") -> list[np.ndarray]:
    """Return the arrays w0, w1, … of a rank."""
    return [array for name, array in part.items() if name[0] == letter and name[1:].isdecimal()]


def count_bytes(arrays: Sequence[np.ndarray]) -> int:
    """Bytes of arrays together."""
    return sum(array.nbytes for array in arrays)


def count_padded_bytes(arrays: Sequence[np.ndarray], p: int) -> int:
    """Bytes of arrays concatenated and padded to p equal chunks."""
    n, size = sum(array.size for array in arrays), arrays[0].itemsize
    return -(-n // p) * p * size


# --- the same step on every rank --------------------------------------------------------------------------------------


def draw_start(rng: np.random.Generator, case: Case) -> Arrays:
    """Draw parameters for each rank, of which rank 0's count."""
    shapes = draw_shapes(rng, case)
    parts = [draw_weights(rng, shapes, dtype=dtype_of(case)) | forms_of(case) for _ in range(case.params["p"])]
    return join_ranks(parts)


def expect_start(arrays: Arrays) -> Arrays:
    """Rank 0's parameters on all ranks, of both kinds."""
    parts = split_ranks(arrays)
    p, first = len(parts), weights_of(parts[0])
    answers = {f"{kind}w{i}": w for kind in ("", "torch's ") for i, w in enumerate(first)}
    sent = 2 * (p - 1)  # of both kinds
    return expect_ranks([answers] * p, total_bytes=sent * count_bytes(first), total_messages=sent * len(first))


def draw_counts(rng: np.random.Generator, case: Case) -> Arrays:
    """Draw numbers of tokens."""
    return join_ranks([{"tokens": tokens} for tokens in draw_tokens(rng, case)])


def expect_weights(arrays: Arrays) -> Arrays:
    """The weight of each micro-batch."""
    tokens = [part["tokens"] for part in split_ranks(arrays)]
    p, answers = len(tokens), list[Arrays]({} for _ in tokens)
    for step in range(STEPS):
        total = sum(int(one[step].sum()) for one in tokens)
        for one, counts in zip(answers, (one[step] for one in tokens), strict=True):
            one[f"count of step {step}"] = np.array(len(counts))
            one |= {f"weights[{i}] of step {step}": np.array(p * count / total) for i, count in enumerate(counts)}
    return expect_ranks(answers, messages=2 * STEPS * (p - 1), largest_message=64)


def draw_losses(rng: np.random.Generator, case: Case) -> Arrays:
    """Draw a loss for each rank, the sum of w² x over the parameters that it uses."""
    shapes, dtype = draw_shapes(rng, case), dtype_of(case)
    tokens = case.params.get("tokens") or rng.integers(1, 100, case.params["p"]).tolist()
    weights = draw_weights(rng, shapes, dtype=dtype) | forms_of(case)
    used = draw_used(rng, case, len(tokens), 1, len(shapes))[:, 0]
    return join_ranks(
        [
            weights
            | {f"x{i}": draw(rng, *shape).astype(dtype) for i, shape in enumerate(shapes)}
            | {"used": used[rank], "tokens": np.array(count)}
            for rank, count in enumerate(tokens)
        ]
    )


def expect_gradients(arrays: Arrays) -> Arrays:
    """Gradients of the mean over all tokens."""
    parts = split_ranks(arrays)
    p, weights = len(parts), weights_of(parts[0])
    total = sum(int(part["tokens"]) for part in parts)
    answers = {}
    for i, w in enumerate(weights):
        xs = [int(part["tokens"]) * part[f"x{i}"] * part["used"][i] for part in parts]
        answers[f"w{i}.grad"] = (2 * w * np.sum(xs, axis=0) / total).astype(w.dtype)
    size = count_bytes(weights)
    return expect_ranks(
        [answers] * p,
        messages=4 * (p - 1),
        total_bytes=2 * (p - 1) * size + p * (p - 1) * 64,
        largest_message=max(size, 64),
    )


# --- buckets ----------------------------------------------------------------------------------------------------------


def fill_buckets(sizes: Sequence[int], bucket_bytes: int) -> list[range]:
    """Parameters of each bucket, from the last: cut wherever the next is too much."""
    buckets, end = [], len(sizes)
    while end:
        begin = end - 1
        while begin and sum(sizes[begin - 1 : end]) <= bucket_bytes:
            begin -= 1
        buckets.append(range(begin, end))
        end = begin
    return buckets


def draw_sizes(rng: np.random.Generator, case: Case) -> Arrays:
    """Draw sizes, and room for exactly a few neighbours, or for a byte less or more."""
    unit = 4 * int(rng.integers(1, 9))
    drawn = case.params["sizes"] if "sizes" in case.params else rng.integers(0, 10, case.params["count"])
    sizes = np.array(drawn, dtype=np.int64) * unit
    if "room" in case.params:
        return {"sizes": sizes, "bucket_bytes": np.array(case.params["room"] * unit)}
    first = int(rng.integers(len(sizes)))
    room = max(0, int(sizes[first : first + 3].sum()) + int(rng.integers(-1, 2)))
    return {"sizes": sizes, "bucket_bytes": np.array(room)}


def expect_buckets(arrays: Arrays) -> Arrays:
    """The bucket of each parameter."""
    found = np.full(len(arrays["sizes"]), -1)
    for number, bucket in enumerate(fill_buckets(arrays["sizes"].tolist(), int(arrays["bucket_bytes"]))):
        found[bucket] = number
    return {"bucket of each parameter": found}


def _draw_signs(rng: np.random.Generator, passes: int, weights: int) -> Arrays:
    """Draw what gradients are multiplied by: for each backward pass one sign for each weight, and one more."""
    return {DEFERRED: rng.choice([-1.0, 1.0], passes * (weights + 1))}


def draw_chain(rng: np.random.Generator, case: Case) -> Arrays:
    """Draw layers, their order on each rank, and which of them each step uses."""
    shapes, p, steps = draw_shapes(rng, case), case.params["p"], case.params.get("steps", STEPS)
    spread, dtype, zeros = case.params.get("spread", 0.5), dtype_of(case), case.params.get("zeros", ())
    used = draw_used(rng, case, p, steps, len(shapes))
    parts = []
    for rank in range(p):
        order = rng.permutation(len(shapes)) if rank and case.params.get("shuffled") else np.arange(len(shapes))
        order = order[::-1] if rank % 2 and case.params.get("reversed") else order
        parts.append(
            draw_weights(rng, shapes, spread, dtype)  # other ones on each rank: rank 0's count
            | {f"x{i}": draw(rng, steps, *shape, spread=0.5 * (i not in zeros)) for i, shape in enumerate(shapes)}
            | {"order": order, "used": used[rank], "bucket_bytes": np.array(case.params["bucket_bytes"])}
            | _draw_signs(rng, steps, len(shapes))
            | forms_of(case)
        )
    return join_ranks(parts)


def expect_chain(arrays: Arrays) -> Arrays:
    """Gradients of each step, and when each bucket must be sent."""
    parts = split_ranks(arrays)
    p, weights = len(parts), weights_of(parts[0])
    buckets = fill_buckets([w.nbytes for w in weights], int(parts[0]["bucket_bytes"]))
    answers: Arrays = {}
    steps = len(parts[0]["x0"])
    for step in range(steps):
        sums = [np.zeros_like(w) for w in weights]
        for part in parts:
            xs = [part[f"x{i}"][step] * part["used"][step, i] for i in range(len(weights))]
            factors = [1 + float(np.sum(w * x)) for w, x in zip(weights, xs, strict=True)]
            *signs, sign = part[DEFERRED].reshape(steps, -1)[step].tolist()
            for i in part["order"][::-1].tolist():
                sums[i] += xs[i] * np.prod(factors[:i] + factors[i + 1 :]) * sign
                sign *= signs[i]
        answers |= {f"w{i}.grad of step {step}": total / p for i, total in enumerate(sums)}
        weights = [w - RATE * total / p for w, total in zip(weights, sums, strict=True)]
    size = count_bytes(weights)
    return expect_ranks(
        [answers] * p,
        total_bytes=(p - 1) * size * (1 + 2 * steps),
        total_messages=(p - 1) * (len(weights) + 2 * steps * p * len(buckets)),
        **expect_sending(
            [_find_sending_of_chain(part, buckets) for part in parts],
            [count_bytes([weights[i] for i in bucket]) for bucket in buckets],
            signs=len(weights) + 1,
            steps=steps,
        ),
    )


def _find_sending_of_chain(part: Arrays, buckets: Sequence[range]) -> list[Sending]:
    """The backward pass asks for the last sign at first, then for that of each layer once it has gone through it."""
    layers = part["order"][::-1].tolist()
    return [find_sending(layers, used, [len(layers), *layers], buckets) for used in part["used"].tolist()]


def draw_batches(rng: np.random.Generator, case: Case) -> Arrays:
    """Draw the micro-batches of each rank, and which parameters each of them uses."""
    count, width = case.params["weights"], case.params["width"]
    weights = draw_weights(rng, [(width,)] * count)
    alike, outlier = (case.params.get(name, False) for name in ("alike", "outlier"))
    parts = []
    for rank, tokens in enumerate(draw_tokens(rng, case)):
        batches = tokens.shape[1]
        uses = draw_used(rng, case, 1, batches, count)[0]
        for _, batch, i in (one for one in case.params.get("unused_in", ()) if one[0] == rank):
            uses[batch, i] = False
        uses[~uses.any(1), 0] = True  # each loss uses a parameter
        rows = draw(rng, tokens.sum(), width, spread=1e4 if outlier and rank == 0 else 1.0)
        if alike and batches:  # all of a step are the first
            uses[:] = uses[0]
            steps = np.split(rows, tokens.sum(1).cumsum()[:-1])
            rows = np.concatenate([np.tile(one[: len(one) // batches], (batches, 1)) for one in steps])
        a_row = 10**9 if outlier and rank else 1  # tokens of each row, all equal
        parts.append(
            weights
            | {"rows": rows, "tokens": tokens * a_row, "tokens a row": np.array(a_row), "alike": np.array(alike)}
            | {"uses": uses, "bucket_bytes": np.array(case.params["bucket_bytes"])}
            | _draw_signs(rng, STEPS * batches, count)
            | ({"value": np.array(case.params["values"][rank])} if "values" in case.params else {})
        )
    return join_ranks(parts)


def expect_batches(arrays: Arrays) -> Arrays:
    """Gradients of each step, and when each bucket must be sent."""
    parts = split_ranks(arrays)
    p, weights = len(parts), weights_of(parts[0])
    buckets = fill_buckets([w.nbytes for w in weights], int(parts[0]["bucket_bytes"]))
    answers: Arrays = {}
    for step in range(STEPS):
        total = sum(int(part["tokens"][step].sum()) for part in parts)
        sums = [np.zeros_like(w) for w in weights]
        for part in parts:
            a_row, uses = int(part["tokens a row"]), part["uses"]
            pieces = np.split(part["rows"], np.cumsum(part["tokens"] // a_row)[:-1])[step * len(uses) :]
            signs = part[DEFERRED].reshape(-1, len(weights) + 1)[step * len(uses) :]
            for rows, used, sign in zip(pieces, uses, signs, strict=False):
                outcome = rows @ sum(w * use for w, use in zip(weights, used, strict=True))
                for i in np.flatnonzero(used):
                    sums[i] += 2 * a_row * rows.T @ outcome * sign[i]  # of the sum over tokens
        answers |= {f"w{i}.grad of step {step}": one / total for i, one in enumerate(sums)}
        answers |= {f"{calls.SYNC} after step {step}": np.array(True)}
        weights = [w - RATE * one / total for w, one in zip(weights, sums, strict=True)]
    size = count_bytes(weights)
    return expect_ranks(
        [answers] * p,
        total_bytes=(p - 1) * size * (1 + 2 * STEPS) + STEPS * p * (p - 1) * 64,
        total_messages=(p - 1) * (len(weights) + STEPS * 2 * p * (len(buckets) + 1)),
        **expect_sending(
            [
                [
                    _find_sending_of_batch(used, buckets) if tokens else []
                    for step in part["tokens"].tolist()
                    for used, tokens in zip(part["uses"].tolist(), step, strict=True)
                ]
                for part in parts
            ],
            [count_bytes([weights[i] for i in bucket]) for bucket in buckets],
            signs=len(weights) + 1,
            steps=STEPS,
        ),
    )


def _find_sending_of_batch(used: list[bool], buckets: Sequence[range]) -> Sending:
    """The backward pass asks for the sign of each weight that is used before it computes its gradient."""
    layers = np.flatnonzero(used)[::-1].tolist()
    return find_sending(layers, used, [*layers, len(used)], buckets)


# --- sharded optimizers and layers ------------------------------------------------------------------------------------


class Momentum:
    """The optimizer of the calls, on all parameters at once: its rate falls by a tenth with each step."""

    def __init__(self, weights: list[np.ndarray], rate: float, momenta: int = 1) -> None:
        self.weights, self.rate, self.steps = weights, rate, 0
        self.momenta = [[np.zeros_like(w) for w in weights] for _ in range(momenta)]

    def step(self, gradients: list[np.ndarray]) -> list[np.ndarray]:
        """Move all weights, and return them."""
        self.steps, self.rate = self.steps + 1, 0.9 * self.rate
        for i, momentum in enumerate(self.momenta, start=1):
            momentum[:] = [m / 2**i + g for m, g in zip(momentum, gradients, strict=True)]
        sums = (sum(each) for each in zip(*self.momenta, strict=True))
        self.weights = [w - self.rate / self.steps * m for w, m in zip(self.weights, sums, strict=True)]
        return self.weights


def draw_steps(rng: np.random.Generator, case: Case) -> Arrays:
    """Draw parameters and each rank's gradients of three steps."""
    shapes, steps, p = draw_shapes(rng, case), 3, case.params["p"]
    rate, used = np.round(rng.uniform(0.1, 0.9), 2), draw_used(rng, case, p, steps, len(shapes))
    parts = [
        draw_weights(rng, shapes, dtype=dtype_of(case))
        | {f"g{i}": draw(rng, steps, *shape) for i, shape in enumerate(shapes)}
        | {"used": used[rank], "steps": np.array(steps), "lr": np.array(rate)}
        | forms_of(case)
        for rank in range(p)
    ]
    return join_ranks(parts)


def expect_steps(arrays: Arrays) -> Arrays:
    """Weights after each step, of one process that has all states."""
    parts = split_ranks(arrays)
    p, steps = len(parts), int(parts[0]["steps"])
    optimizer = Momentum(weights_of(parts[0]), float(parts[0]["lr"]))
    dtype = optimizer.weights[0].dtype
    answers = {f"at the start: w{i}": w for i, w in enumerate(optimizer.weights)}
    for step in range(steps):
        sums = [
            np.sum([part[f"g{i}"][step] * part["used"][step, i] for part in parts], axis=0)
            for i in range(len(optimizer.weights))
        ]
        moved = optimizer.step([total / p for total in sums])
        answers |= {f"step {step}: w{i}": w.astype(dtype) for i, w in enumerate(moved)}
    count, padded = len(optimizer.weights), count_padded_bytes(optimizer.weights, p)
    return expect_ranks(
        [answers] * p,
        total_bytes=(p - 1) * (count_bytes(optimizer.weights) + 2 * steps * padded) * dtype.itemsize // 8,
        total_messages=(p - 1) * (count + 2 * p * steps),
    )


def draw_clipped(rng: np.random.Generator, case: Case) -> Arrays:
    """Draw each rank's part of a gradient; `percent` of its norm are the limit."""
    spread, unit = case.params.get("spread", 1.0), case.params.get("unit", 1.0)
    lengths = case.params.get("lengths") or rng.integers(0, case.params["largest"] + 1, case.params["p"]).tolist()
    parts = [draw(rng, length, spread=spread) * unit for length in lengths]
    norm = float(np.sqrt(sum(np.sum(part**2) for part in parts)))
    limit = case.params.get("limit", case.params.get("percent", 0) / 100 * norm or 1.0)
    return join_ranks([{"part": part, "max_norm": np.array(limit)} for part in parts])


def expect_clipped(arrays: Arrays) -> Arrays:
    """The norm of the whole gradient, and its clipped parts."""
    parts = split_ranks(arrays)
    p, most = len(parts), float(parts[0]["max_norm"])
    norm = float(np.linalg.norm(np.concatenate([part["part"] for part in parts])))
    factor = most / norm if norm > most else 1.0
    answers = [{"norm": np.array(norm), "gradients": part["part"] * factor} for part in parts]
    return expect_ranks(answers, messages=2 * (p - 1), largest_message=64)


def draw_layers(rng: np.random.Generator, case: Case) -> Arrays:
    """Draw layers, and what goes into the first and comes back to the last."""
    p, depth, width = (case.params[name] for name in ("p", "depth", "width"))
    rows, steps, axes = case.params.get("rows", 2), case.params.get("steps", 2), case.params.get("axes", 2)
    growth, dtype = np.round(rng.uniform(1.2, 1.6), 2), case.params.get("dtype", "float64")
    residual = case.params.get("residual", False)
    passes = case.params.get("passes", 1) if depth % 2 == 0 or residual else 1  # or the result does not fit in again
    widths = [width + i % 2 * (not residual) for i in range(depth + 1)]  # no layer is square where none has to be
    shapes = [((inner + 1) * outer,) for inner, outer in pairwise(widths)]
    return join_ranks(
        [
            draw_weights(rng, shapes, width**-0.5, dtype)
            | {"x": draw(rng, steps, *[2, rows + rank][3 - axes :], widths[0]).astype(dtype)}
            | {"g": draw(rng, steps, *[2, rows + rank][3 - axes :], widths[-1]).astype(dtype)}
            | {"growth": np.array(growth), "x_wants": np.array(case.params.get("x_wants", True))}
            | {"passes": np.array(passes), "backward": np.array(case.params.get("backward", 1))}
            | {"form": np.array(case.params.get("form", 0)), "residual": np.array(residual)}
            for rank in range(p)
        ]
    )


def expect_layers(arrays: Arrays) -> Arrays:
    """Results, gradients and weights of a stack of layers, by the chain rule."""
    parts = split_ranks(arrays)
    p, width = len(parts), parts[0]["x"].shape[-1]
    flat, weights = weights_of(parts[0]), list[tuple[np.ndarray, np.ndarray]]()
    for w in flat:
        both = w.reshape(width + 1, -1)  # the bias below the weight
        weights.append((both[:-1], both[-1]))
        width = both.shape[1]
    growth, steps = float(parts[0]["growth"]), len(parts[0]["x"])
    passes, backward, residual = (int(parts[0][name]) for name in ("passes", "backward", "residual"))
    answers: list[Arrays] = [{} for _ in range(p)]
    for step in range(steps):
        grown = [(w * growth, b * growth) for w, b in weights]
        sums = [(np.zeros_like(w), np.zeros_like(b)) for w, b in weights]
        for part, one in zip(parts, answers, strict=True):
            hs = [part["x"][step].reshape(-1, part["x"].shape[-1])]
            for w, b in weights * passes:
                hs.append(np.tanh(hs[-1] @ w + b + (hs[-1] if residual else 0)))
            one[f"step {step}: result"] = hs[-1].reshape(part["g"][step].shape)
            g = backward * part["g"][step].reshape(hs[-1].shape)
            for place in reversed(range(len(weights) * passes)):
                g, i = g * (1 - hs[place + 1] ** 2), place % len(weights)
                sums[i] = sums[i][0] + hs[place].T @ g, sums[i][1] + g.sum(0)
                g = g @ grown[i][0].T + (g if residual else 0)
            if part["x_wants"]:
                one[f"step {step}: x.grad"] = g.reshape(part["x"][step].shape)
        weights = [(w - RATE * dw / p, b - RATE * db / p) for (w, b), (dw, db) in zip(grown, sums, strict=True)]
    form = int(parts[0]["form"])
    for one in answers:
        for i, (w, b) in enumerate(weights):
            bias = b[0] if b.size == 1 else b
            forms = ((w, bias), (w.T, w[:0], bias), (np.vstack([w, b]),), (*b, w))
            one |= {f"layer {i}: w{k}": part for k, part in enumerate(forms[form])}
    count = sum(1 + len(b) if form == 3 else 3 for _, b in weights)  # of all weights; in other forms three are most
    padded = sum(count_padded_bytes([one], p) for one in flat)
    # One forward, one and a reduce-scatter each time that it goes back, and one when all is over.
    gathers = (1 + 2 * backward) * steps * passes + 1
    return expect_ranks(
        answers,
        total_bytes=(p - 1) * (count_bytes(flat) + gathers * padded),
        total_messages=(p - 1) * (count + len(weights) * p * gathers),  # at the start one for each weight
    )


def draw_cost(rng: np.random.Generator, case: Case) -> Arrays:
    """Draw a number of parameters that the ranks divide."""
    p, chunk = case.params["p"], int(rng.integers(10, 10 ** case.params["digits"])) | 1
    return {"num_params": np.array(p * chunk), "world_size": np.array(p)}


def expect_cost(arrays: Arrays) -> Arrays:
    """Count the bytes of a parameter that every rank keeps, and the chunks that each rank of a ring sends."""
    n, p = int(arrays["num_params"]), int(arrays["world_size"])
    chunk = n // p
    answers: Arrays = {}
    for stage, whole_bytes in enumerate((16, 4, 2, 0)):  # bytes of a parameter that every rank has
        answers[f"stage {stage}: bytes kept"] = encode_text(whole_bytes * n + (16 - whole_bytes) * chunk)
        rounds = [chunk] * (p - 1) * (3 if stage == 3 else 2)
        answers[f"stage {stage}: elements sent"] = encode_text(sum(rounds))
    return answers


# --- checkpoints ------------------------------------------------------------------------------------------------------


KINDS = {
    "exp_avg_sq": "float64",
    "state1": "int8",
    "state2": "uint8",
    "random_signs": "bool",
    "times": "int64",
    calls.BFLOAT16: "int8",
}
"""States of further dtypes: of a byte, as of Adam in eight bits, flags, whole numbers that float64 rounds, bfloat16."""


def draw_run(rng: np.random.Generator, case: Case) -> Arrays:
    """Draw training that stops after a few steps."""
    rate, weights = np.round(rng.uniform(0.1, 0.9), 2), draw_weights(rng, draw_shapes(rng, case))
    steps, stop = case.params["steps"], min(case.params["stop"], case.params["steps"])
    position = rng.integers(2**54, 2**61) | 1 if stop else 0  # float64 rounds it
    return join_ranks(
        [
            weights
            | forms_of(case)
            | {"data": draw(rng, steps), "stop": np.array(stop), "lr": np.array(rate)}
            | {name: np.array(case.params[name]) for name in ("eager", "momenta") if case.params.get(name)}
            | {"seed": np.array(rng.integers(1, 2**31)), "position": np.array(position)}
            for _ in range(case.params["p"])
        ]
    )


def expect_run(arrays: Arrays) -> Arrays:
    """Weights of training that never stopped, with the noise of generators of torch."""
    parts = split_ranks(arrays)
    p, first, steps = len(parts), parts[0], len(parts[0]["data"])
    momenta = int(first.get("momenta", 1))
    optimizer = Momentum(weights_of(first), float(first["lr"]), momenta)
    noises = [torch.Generator().manual_seed(int(part["seed"])) for part in parts]
    stop = int(first["stop"])
    axes_of = AXES | dict.fromkeys(calls.name_momenta(momenta), 1)
    answers = {f"axes of {name!r}": np.array(axes) for name, axes in axes_of.items()}
    for step in range(steps):
        if step == stop:
            answers |= {f"{again}position": first["position"] for again in AGAIN}
            answers |= {f"{again}loaded: w{i}": w for i, w in enumerate(optimizer.weights) for again in AGAIN}
        sums = [np.zeros_like(w) for w in optimizer.weights]
        for part, noise in zip(parts, noises, strict=True):
            for i, w in enumerate(optimizer.weights):
                drawn = torch.randn(w.shape, dtype=torch.float64, generator=noise).numpy()
                sums[i] = sums[i] + (w * part["data"][step] + drawn) * (i != part.get("frozen"))
        names = [f"step {step}"] if step < stop else [f"{again}later step {step - stop}" for again in AGAIN]
        moved = optimizer.step([total / p for total in sums])
        answers |= {f"{name}: w{i}": w for i, w in enumerate(moved) for name in names}
    count, size = len(optimizer.weights), count_bytes(optimizer.weights)
    padded = count_padded_bytes(optimizer.weights, p)
    gathers = 3 + 2 * (2 * steps - stop + 1)  # three loads, and one step without an answer
    answers |= _expect_states(first, stop, "") if stop or "eager" in first else {}
    answers |= _expect_states(first, steps, AGAIN[1])
    answers[f"{calls.DOUBLED}position"] = first["position"] + 1
    answers |= {f"{calls.DOUBLED}loaded: w{i}": 2 * w for i, w in enumerate(optimizer.weights)}
    return expect_ranks(
        [answers] * p,
        total_bytes=(p - 1) * (4 * size + gathers * padded),
        total_messages=(p - 1) * (4 * count + p * gathers),
    )


def _expect_states(first: Arrays, steps: int, name: str) -> Arrays:
    """Saved states without axes, after this number of steps."""
    rate = float(first["lr"]) * 0.9**steps
    return {
        f"{name}saved step": np.array(steps),
        f"{name}saved rate": np.array(rate),
        f"{name}saved on": np.array(True),
    }


def draw_states(rng: np.random.Generator, case: Case) -> Arrays:
    """Draw a checkpoint: a state for each of `old` ranks."""
    n, old = case.params["n"], case.params["old"]
    alike = {"position": np.array(rng.integers(2**54, 2**61) | 1), "step": np.array(rng.integers(1, 1000), "float32")}
    alike["rate"] = draw(rng)
    divided = {"weights": "float32", "momentum": "float64"} | (KINDS if case.params.get("kinds") else {})
    chunks = {name: np.array_split(_draw_entry(rng, n, dtype), old) for name, dtype in divided.items()}
    arrays: Arrays = {"size": np.array(case.params["size"])}
    for rank in range(old):
        part = {name: pieces[rank] for name, pieces in chunks.items()} | alike
        part["random"] = rng.integers(0, 256, 6, dtype=np.uint8)
        arrays |= {f"{name} of {rank}": array for name, array in part.items()}
    return arrays


def _draw_entry(rng: np.random.Generator, n: int, dtype: str) -> np.ndarray:
    if np.dtype(dtype).kind == "f":
        return draw(rng, n).astype(dtype)
    least, most = {"bool": (0, 2), "int64": (2**54, 2**61)}.get(dtype, (0, 128))
    return rng.integers(least, most, n).astype(dtype)


def expect_states(arrays: Arrays) -> Arrays:
    """Slices of the concatenated entries."""
    size, names = int(arrays["size"]), [name[: -len(" of 0")] for name in arrays if name.endswith(" of 0")]
    old = sum(name.startswith("weights of ") for name in arrays)
    answers: Arrays = {"count": np.array(size)}
    for name in names:
        given = [arrays[f"{name} of {rank}"] for rank in range(old)]
        if given[0].ndim and name != "random":
            given = np.array_split(np.concatenate(given), size)
        answers |= {f"{name} of {rank}": given[rank % len(given)] for rank in range(size)}
    return answers
