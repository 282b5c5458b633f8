"""Generators of lab 08's cases, and oracles: derivatives by hand in NumPy, one process that has everything.

Sizes that a case does not give are drawn. When buckets are sent is read from the log: see `sending`.
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
from mlsys_checks.trusted.data_parallel.sending import CALL, expect_sending, find_sending
from mlsys_checks.trusted.traffic import expect_ranks

STEPS = 2
"""Steps of training, or calls in a row."""
RATE = 0.1
"""What the calls multiply a gradient by before they subtract it."""


# --- what cases are made of -------------------------------------------------------------------------------------------


def draw(rng: np.random.Generator, *shape: int, spread: float = 1.0) -> np.ndarray:
    """Draw numbers with two decimals."""
    return np.array(np.round(rng.normal(0, spread, shape), 2))


def draw_shapes(rng: np.random.Generator, case: Case) -> list[tuple[int, ...]]:
    """Return the case's shapes, or draw `count` of them: with one axis, two, none, or no elements, by turns."""
    if "shapes" in case.params:
        return list(case.params["shapes"])
    count, largest, start = case.params["count"], case.params.get("largest", 3), rng.integers(3)
    sizes = rng.integers(1, largest + 1, (count, 2)).tolist()
    shapes = [[(m,), (m, n), (), (0,)][(start + i) % 4] for i, (m, n) in enumerate(sizes)]
    return [shapes[i] for i in rng.permutation(count)]


def draw_weights(rng: np.random.Generator, case: Case, shapes: Sequence[tuple[int, ...]]) -> Arrays:
    """Draw parameters w0, w1, …; if the case says so, w1 is frozen, or matrices lie transposed in memory."""
    spread, dtype = case.params.get("spread", 0.5), dtype_of(case)
    weights = {f"w{i}": draw(rng, *shape, spread=spread).astype(dtype) for i, shape in enumerate(shapes)}
    return weights | {name: np.array(1) for name in ("frozen", "transposed") if case.params.get(name)}


def dtype_of(case: Case) -> str:
    """Return the dtype of a case's parameters."""
    return "float32" if case.params.get("float32") else str(case.params.get("dtype", "float64"))


def draw_used(rng: np.random.Generator, case: Case, *shape: int) -> np.ndarray:
    """Draw which parameters a rank's losses use, all but about `unused` tenths of them."""
    return np.array(rng.random(shape) >= case.params.get("unused", 0) / 10)


def draw_tokens(rng: np.random.Generator, case: Case) -> list[np.ndarray]:
    """Counts of each rank's micro-batches in each step, (STEPS, batches): given, or drawn for `p` ranks.

    Odd ranks have twice as many in a later step, even ones as many as before: weights remembered by a rank's own counts
    are wrong then.
    """
    given = case.params.get("tokens")
    if given is None:
        given = [
            rng.integers(0, case.params["max_tokens"] + 1, rng.integers(case.params.get("batches", 3) + 1))
            * rng.integers(0, 3, 1).clip(0, 1)  # one rank in three has padding only
            for _ in range(case.params["p"])
        ]
        given[int(rng.integers(len(given)))] = rng.integers(1, case.params["max_tokens"] + 1, 2)
    first = [np.array(tokens, np.int64) for tokens in given]
    return [np.stack([counts << step * (rank % 2) for step in range(STEPS)]) for rank, counts in enumerate(first)]


def weights_of(part: Arrays) -> list[np.ndarray]:
    """Return the arrays w0, w1, … of a rank."""
    return [array for name, array in part.items() if name[0] == "w" and name[1:].isdecimal()]


def count_bytes(arrays: Sequence[np.ndarray]) -> int:
    """Bytes of arrays together."""
    return sum(array.nbytes for array in arrays)


def count_padded_bytes(arrays: Sequence[np.ndarray], p: int) -> int:
    """Bytes of arrays concatenated and padded to p equal chunks."""
    n, size = sum(array.size for array in arrays), arrays[0].itemsize
    return -(-n // p) * p * size


def _count(count: int, noun: str) -> str:
    """A count and its noun: "1 rank", "2 ranks"."""
    return f"{count} {noun}{'s' * (count != 1)}"


# --- the same step on every rank --------------------------------------------------------------------------------------


def draw_start(rng: np.random.Generator, case: Case) -> Arrays:
    """Draw other parameters for each rank."""
    shapes = draw_shapes(rng, case)
    return join_ranks([draw_weights(rng, case, shapes) for _ in range(case.params["p"])])


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
            one |= {f"weights[{i}] of step {step}": np.array(p * count / total) for i, count in enumerate(counts)}
    answers = [one | {"count": np.array(len(one))} for one in answers]
    return expect_ranks(answers, messages=2 * STEPS * (p - 1), largest_message=64)


def draw_losses(rng: np.random.Generator, case: Case) -> Arrays:
    """Draw a loss for each rank, the sum of w² x over the parameters that it uses."""
    shapes = draw_shapes(rng, case)
    tokens = case.params.get("tokens") or rng.integers(1, 100, case.params["p"]).tolist()
    weights = draw_weights(rng, case, shapes)
    return join_ranks(
        [
            weights
            | {f"x{i}": draw(rng, *shape).astype(dtype_of(case)) for i, shape in enumerate(shapes)}
            | {"used": draw_used(rng, case, len(shapes)), "tokens": np.array(count)}
            for count in tokens
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
    buckets = fill_buckets(arrays["sizes"].tolist(), int(arrays["bucket_bytes"]))
    found = np.full(len(arrays["sizes"]), -1)
    for i, bucket in enumerate(buckets):
        found[bucket] = i
    return {"number of buckets": np.array(len(buckets)), "bucket of each parameter": found}


def draw_batches(rng: np.random.Generator, case: Case) -> Arrays:
    """Draw layers, their order on each rank, and micro-batches: `passes` in each step, or one for each token count."""
    shapes, is_repeated = draw_shapes(rng, case), bool(case.params.get("is_repeated"))
    if (passes := case.params.get("passes")) is None:
        tokens_of_ranks = draw_tokens(rng, case)
    else:
        tokens_of_ranks = [np.ones((STEPS, passes), np.int64)] * case.params["p"]
    parts = []
    for rank, tokens in enumerate(tokens_of_ranks):
        order = np.arange(len(shapes))
        if rank and case.params.get("shuffled"):
            order = rng.permutation(order)
        if rank and case.params.get("reversed"):
            order = order[::-1]
        batches = np.arange(tokens.size)
        batches -= batches % max(1, tokens.shape[1]) if is_repeated else 0  # all of a step are the first
        xs = {f"x{i}": draw(rng, tokens.size, *shape, spread=0.5)[batches] for i, shape in enumerate(shapes)}
        used = draw_used(rng, case, tokens.size, len(shapes))[batches]
        signs = rng.choice([-1.0, 1.0], tokens.size * (len(shapes) + 1))  # for each pass one of each weight, and one
        sizes = {"is_repeated": np.array(is_repeated), "bucket_bytes": np.array(case.params["bucket_bytes"])}
        sizes |= {"value": np.array(case.params["values"][rank])} if "values" in case.params else {}
        weights = draw_weights(rng, case, shapes)  # other ones on each rank: rank 0's count
        parts.append(weights | xs | sizes | {"order": order, "tokens": tokens, "used": used, DEFERRED: signs})
    return join_ranks(parts)


def expect_ddp(arrays: Arrays) -> Arrays:
    """Means over ranks of the sums of each rank's gradients, and when each bucket must be sent."""
    parts = split_ranks(arrays)
    shapes, (_, passes) = [w.shape for w in weights_of(parts[0])], parts[0]["tokens"].shape
    size = int(parts[0]["bucket_bytes"])
    call = (
        f"`DDP(parameters, group, bucket_bytes={size})` was called on {_count(len(parts), 'rank')} for parameters of "
    )
    call += f"shapes {shapes}. In each of {STEPS} steps the check called `backward()` {_count(passes, 'time')}"
    call += ", all but the last time under `no_sync()`," * (passes > 1) + " and `finish_gradient_synchronization()`."
    fractions = [np.full(part["tokens"].shape, 1 / len(parts)) for part in parts]
    return _expect_descent(parts, fractions) | {CALL: encode_text(call)}


def expect_accumulated(arrays: Arrays) -> Arrays:
    """Gradients of the mean over all tokens, and when each bucket must be sent."""
    parts = split_ranks(arrays)
    total = np.sum([part["tokens"].sum(1) for part in parts], axis=0)
    steps = [f"{[part['tokens'][step].tolist() for part in parts]} in step {step}" for step in range(STEPS)]
    call = f"`accumulate_gradients(ddp, losses, tokens, group)` was called with the ranks' tokens {', '.join(steps)}."
    fractions = [part["tokens"] / total[:, None] for part in parts]
    return _expect_descent(parts, fractions, num_all_reduces=1) | {CALL: encode_text(call)}


def _expect_descent(parts: Sequence[Arrays], fractions: Sequence[np.ndarray], num_all_reduces: int = 0) -> Arrays:
    """Gradients of each step, sums over micro-batches that count by their fractions, and limits on what is sent.

    num_all_reduces: of one number in each step, besides the buckets'.
    """
    p, weights = len(parts), weights_of(parts[0])
    buckets = fill_buckets([w.nbytes for w in weights], int(parts[0]["bucket_bytes"]))
    answers: Arrays = {}
    for step in range(STEPS):
        sums = [np.zeros(w.shape) for w in weights]
        for part, fraction in zip(parts, fractions, strict=True):
            for place, weight in enumerate(fraction[step]):
                gradients = _differentiate(part, weights, step * fraction.shape[1] + place)
                sums = [total + weight * gradient for total, gradient in zip(sums, gradients, strict=True)]
        found = [total.astype(w.dtype) for w, total in zip(weights, sums, strict=True)]
        answers |= {f"w{i}.grad of step {step}": gradient for i, gradient in enumerate(found)}
        weights = [w - RATE * gradient for w, gradient in zip(weights, found, strict=True)]
    size = count_bytes(weights)
    return expect_ranks(
        [answers] * p,
        total_bytes=(p - 1) * (size * (1 + 2 * STEPS) + num_all_reduces * STEPS * p * 64),
        total_messages=(p - 1) * (len(weights) + 2 * STEPS * p * (len(buckets) + num_all_reduces)),
        **expect_sending(
            [[_find_sending(part, turn, buckets) for turn in range(part["tokens"].size)] for part in parts],
            [count_bytes([weights[i] for i in bucket]) for bucket in buckets],
            signs=len(weights) + 1,
            steps=STEPS,
        ),
    )


def _differentiate(part: Arrays, weights: Sequence[np.ndarray], turn: int) -> list[np.ndarray]:
    """Gradients of the product of 1 + w·x over all layers, each with the signs that the backward pass met before it."""
    xs = [part[f"x{i}"][turn] * is_used for i, is_used in enumerate(part["used"][turn])]
    factors = [1 + float(np.sum(w * x)) for w, x in zip(weights, xs, strict=True)]
    *signs, sign = part[DEFERRED].reshape(-1, len(weights) + 1)[turn].tolist()
    gradients = dict[int, np.ndarray]()
    for i in part["order"][::-1].tolist():
        gradients[i] = xs[i] * np.prod(factors[:i] + factors[i + 1 :]) * sign
        sign *= signs[i]
    return [gradients[i] for i in range(len(weights))]


def _find_sending(part: Arrays, turn: int, buckets: Sequence[range]) -> list[tuple[int, int, int]]:
    """Buckets sent in a backward pass, which asks for the last sign at first, then for each layer's after the layer."""
    layers = part["order"][::-1].tolist()
    has_tokens = bool(part["tokens"].flat[turn])
    return find_sending(layers, part["used"][turn].tolist(), [len(layers), *layers], buckets) if has_tokens else []


# --- sharded optimizers and layers ------------------------------------------------------------------------------------


class Momentum:
    """The optimizer of the calls, on all parameters at once: its rate falls by a tenth with each step."""

    def __init__(self, part: Arrays) -> None:
        self.weights, self.rate, self.steps = weights_of(part), float(part["lr"]), 0
        self.momenta = [[np.zeros_like(w) for w in self.weights] for _ in calls.MOMENTA]

    def step(self, gradients: list[np.ndarray]) -> None:
        """Move all weights."""
        self.steps, self.rate = self.steps + 1, 0.9 * self.rate
        for momentum, divisor in zip(self.momenta, calls.MOMENTA.values(), strict=True):
            momentum[:] = [m / divisor + g for m, g in zip(momentum, gradients, strict=True)]
        sums = (sum(each) for each in zip(*self.momenta, strict=True))
        self.weights = [w - self.rate / self.steps * m for w, m in zip(self.weights, sums, strict=True)]


def draw_training(rng: np.random.Generator, case: Case) -> Arrays:
    """Draw parameters and each rank's gradients of three steps; if the case has a `stop`, what is saved then too."""
    shapes, steps = draw_shapes(rng, case), 3
    shared = {"lr": np.round(rng.uniform(0.1, 0.9), 2)}
    if "stop" in case.params:
        position = rng.integers(2**54, 2**61) | 1  # float64 rounds it
        shared |= {"stop": np.array(case.params["stop"]), "position": np.array(position)}
    parts = []
    for _ in range(case.params["p"]):
        part = draw_weights(rng, case, shapes) | {f"g{i}": draw(rng, steps, *shape) for i, shape in enumerate(shapes)}
        part |= shared | {"used": draw_used(rng, case, steps, len(shapes))}
        if "frozen" in part:
            part["used"][:, 1:2] = False
        if "stop" in part:
            part["seed"] = np.array(rng.integers(1, 2**31))
        parts.append(part)
    return join_ranks(parts)


def _average(parts: Sequence[Arrays], step: int, noises: Sequence[torch.Generator] = ()) -> list[np.ndarray]:
    """Mean gradients over ranks, with random noise of each rank if it has a generator."""
    sums = [np.zeros(w.shape) for w in weights_of(parts[0])]
    for rank, part in enumerate(parts):
        for i, total in enumerate(sums):
            gradient = part[f"g{i}"][step]
            if noises:
                drawn = torch.randn(total.shape, dtype=torch.float64, generator=noises[rank])
                gradient = gradient + drawn.numpy()
            sums[i] = total + gradient * part["used"][step, i]
    return [total / len(parts) for total in sums]


def expect_steps(arrays: Arrays) -> Arrays:
    """Weights after each step, of one process that has all states."""
    parts = split_ranks(arrays)
    p, steps, optimizer = len(parts), len(parts[0]["g0"]), Momentum(parts[0])
    first = optimizer.weights
    answers = {f"at the start: w{i}": w for i, w in enumerate(first)}
    for step in range(steps):
        optimizer.step(_average(parts, step))
        answers |= {f"step {step}: w{i}": w.astype(first[i].dtype) for i, w in enumerate(optimizer.weights)}
    return expect_ranks(
        [answers] * p,
        total_bytes=(p - 1) * (count_bytes(first) + 2 * steps * count_padded_bytes(first, p)),
        total_messages=(p - 1) * (len(first) + 2 * p * steps),
    )


def draw_clipped(rng: np.random.Generator, case: Case) -> Arrays:
    """Draw each rank's part of a gradient; `percent` of its norm are the limit."""
    lengths = case.params.get("lengths") or rng.integers(0, case.params["largest"] + 1, case.params["p"]).tolist()
    parts = [draw(rng, length) * case.params.get("unit", 1.0) for length in lengths]
    limit = case.params["percent"] / 100 * np.linalg.norm(np.concatenate(parts))
    return join_ranks([{"part": part, "max_norm": np.array(limit)} for part in parts])


def expect_clipped(arrays: Arrays) -> Arrays:
    """The norm of the whole gradient, and its clipped parts."""
    parts = split_ranks(arrays)
    p, max_norm = len(parts), float(parts[0]["max_norm"])
    norm = float(np.linalg.norm(np.concatenate([part["part"] for part in parts])))
    factor = max_norm / norm if norm > max_norm else 1.0
    answers = [{"norm": np.array(norm), "gradients": part["part"] * factor} for part in parts]
    return expect_ranks(answers, messages=2 * (p - 1), largest_message=64)


def draw_layers(rng: np.random.Generator, case: Case) -> Arrays:
    """Draw layers, the input of the first and the gradient of the last one's output."""
    p, depth, width, axes = (case.params[name] for name in ("p", "depth", "width", "axes"))
    residual, passes = bool(case.params.get("residual")), case.params.get("passes", 1)
    shared = {name: np.array(case.params.get(name, 0)) for name in ("depth", "form", "needs_grad", "transposed")}
    shared |= {"residual": np.array(residual), "growth": np.round(rng.uniform(1.2, 1.6), 2)}
    shared |= {"passes": np.array(passes), "backward": np.array(case.params.get("backward", 1))}
    has_square_layers = residual or passes > 1  # whose output is added to their input, or fits the first layer
    widths = [width + i % 2 * (not has_square_layers) for i in range(depth + 1)]
    parts = []
    for rank in range(p):
        part = dict(shared)
        for i, (m, n) in enumerate(pairwise(widths)):
            part |= {f"w{i}": draw(rng, m, n, spread=width**-0.5), f"b{i}": draw(rng, n, spread=0.5)}
        rows = [2, 2 + rank][3 - axes :]
        part |= {"x": draw(rng, STEPS, *rows, widths[0]), "g": draw(rng, STEPS, *rows, widths[-1])}
        parts.append(part)
    return join_ranks(parts)


def expect_layers(arrays: Arrays) -> Arrays:
    """Results, gradients and parameters of a stack of layers, by the chain rule."""
    parts = split_ranks(arrays)
    p, first, answers = len(parts), parts[0], list[Arrays]({} for _ in parts)
    depth, form, passes, backward = (int(first[name]) for name in ("depth", "form", "passes", "backward"))
    growth, residual, has_bias = float(first["growth"]), int(first["residual"]), bool(calls.cut_bias(first["b0"], form))
    weights = [first[f"w{i}"] for i in range(depth)]
    biases = [first[f"b{i}"] * has_bias for i in range(depth)]
    for step in range(STEPS):
        before, grown = list(zip(weights, biases, strict=True)), [growth * w for w in weights]
        weights, biases = list(grown), [growth * b for b in biases]
        for part, answer in zip(parts, answers, strict=True):
            hs = [part["x"][step].reshape(-1, part["x"].shape[-1])]
            for w, b in before * passes:
                hs.append(np.tanh(hs[-1] @ w + b + (hs[-1] if residual else 0)))
            answer[f"result of step {step}"] = hs[-1].reshape(part["g"][step].shape)
            g = backward * part["g"][step].reshape(hs[-1].shape)
            for place in reversed(range(depth * passes)):
                g, i = g * (1 - hs[place + 1] ** 2), place % depth
                weights[i] = weights[i] - RATE * hs[place].T @ g / p
                biases[i] = biases[i] - RATE * has_bias * g.sum(0) / p
                g = g @ grown[i].T + (g if residual else 0)
            if part["needs_grad"]:
                answer[f"x.grad of step {step}"] = g.reshape(part["x"][step].shape)
    layers = [[w, *calls.cut_bias(b, form)] for w, b in zip(weights, biases, strict=True)]
    for i, parameters in enumerate(layers):
        for answer in answers:
            answer |= {f"unshard() of layer {i}: parameter {k}": np.array(one) for k, one in enumerate(parameters)}
    # Forward one gather; each time that it goes back a gather and a reduce-scatter; one gather when all is over.
    gathers = (1 + 2 * backward) * STEPS * passes + 1
    size, padded = sum(map(count_bytes, layers)), sum(count_padded_bytes(layer, p) for layer in layers)
    shapes = " and ".join(str(np.shape(one)) for one in layers[0])
    call = f"`FSDPUnit(layer, parameters, group)` was called on {_count(p, 'rank')} for {_count(depth, 'layer')}, the "
    call += f"first with parameters of shapes {shapes}. The check called `unit(x)`, scaled all shards, and went back."
    return expect_ranks(
        answers,
        total_bytes=(p - 1) * (size + gathers * padded),
        total_messages=(p - 1) * (sum(map(len, layers)) + depth * p * gathers),
    ) | {CALL: encode_text(call)}


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


AXES = {"weights": 1, "position": 0, "random": 1}
STATE_AXES = dict.fromkeys(calls.DTYPES, 0) | dict.fromkeys(calls.MOMENTA, 1)
"""How many axes each entry of a checkpoint has, and each of the inner optimizer's once it has made a step."""
KINDS = {"exp_avg_sq": "float64", "state1": "int8", "state2": "uint8", "random_signs": "bool", "times": "int64"}
"""States of further dtypes: of a byte, as of Adam in eight bits, flags, and whole numbers that float64 rounds."""


def expect_run(arrays: Arrays) -> Arrays:
    """Weights of training that goes on with its weights doubled, with the noise of generators of torch."""
    parts = split_ranks(arrays)
    p, steps, stop, optimizer = len(parts), len(parts[0]["g0"]), int(parts[0]["stop"]), Momentum(parts[0])
    noises = [torch.Generator().manual_seed(int(part["seed"])) for part in parts]
    saved = AXES | (STATE_AXES if stop else {})
    answers = {f"axes of save_state's {name!r}": np.array(axes) for name, axes in saved.items()}
    loads = ("first load", "second load")
    for step in range(steps):
        if step == stop:
            optimizer.weights = [2 * w for w in optimizer.weights]
            answers |= {f"{load}: position": parts[0]["position"] for load in loads}
            answers |= {f"{load}: w{i}": w for i, w in enumerate(optimizer.weights) for load in loads}
        names = [f"step {step}"] if step < stop else [f"{load}, step {step}" for load in loads]
        optimizer.step(_average(parts, step, noises))
        answers |= {f"{name}: w{i}": w for i, w in enumerate(optimizer.weights) for name in names}
    count, size = len(optimizer.weights), count_bytes(optimizer.weights)
    all_steps = stop + 1 + 2 * (steps - stop)  # one is not saved, and those after the stop are made twice
    largest = max(2 * size, count_padded_bytes(optimizer.weights, p))  # by two kinds of all-gather
    call = f"On {_count(p, 'rank')} `save_state(optimizer, position)` was called after {stop} of {steps} steps. The "
    call += "check doubled the saved weights, and twice called `load_state(optimizer, state)` and went on training."
    return expect_ranks(
        [answers] * p,
        total_bytes=(p - 1) * (3 * size + 4 * size * all_steps + 2 * largest),
        total_messages=(p - 1) * (3 * count + 4 * all_steps + 2 * p),
    ) | {CALL: encode_text(call)}


def draw_states(rng: np.random.Generator, case: Case) -> Arrays:
    """Draw a checkpoint: a state for each of `old` ranks."""
    n, old = case.params["n"], case.params["old"]
    common = {"position": np.array(rng.integers(2**54, 2**61) | 1), "step": np.array(rng.integers(1, 1000), "float32")}
    common["rate"] = draw(rng)
    sharded = {"weights": "float32", "momentum": "float64"} | (KINDS if case.params.get("kinds") else {})
    chunks = {name: np.array_split(_draw_entry(rng, n, dtype), old) for name, dtype in sharded.items()}
    arrays: Arrays = {"size": np.array(case.params["size"])}
    for rank in range(old):
        state = {name: pieces[rank] for name, pieces in chunks.items()} | common
        state["random"] = rng.integers(0, 256, 6, dtype=np.uint8)
        arrays |= {f"{name} of {rank}": array for name, array in state.items()}
    return arrays


def _draw_entry(rng: np.random.Generator, n: int, dtype: str) -> np.ndarray:
    if np.dtype(dtype).kind == "f":
        return draw(rng, n).astype(dtype)
    low, high = {"bool": (0, 2), "int64": (2**54, 2**61)}.get(dtype, (0, 128))
    return rng.integers(low, high, n).astype(dtype)


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
