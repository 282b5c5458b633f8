"""Generators of lab 09's cases and oracles of its functions: the whole problem on one rank, in NumPy.

`draw_…` returns the inputs of a case, `expect_…` what every rank must return, with limits on what the ranks send.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mlsys_checks.sandboxed.model_parallel import DEGREES, KINDS, PARTS
from mlsys_checks.sandboxed.ranks import join_ranks, split_ranks
from mlsys_checks.sandboxed.spec import Arrays, Case, Mismatch
from mlsys_checks.trusted.compare import close
from mlsys_checks.trusted.traffic import expect_ranks

Rng = np.random.Generator
ITEM, HEADER = 8, 16
"""Bytes of a number, and bytes as which a message without elements may count: its shape."""
FORWARD, BACKWARD = 0, 1


def draw(rng: Rng, *shape: int, spread: float = 1.0) -> np.ndarray:
    """Draw numbers with two decimals."""
    return np.round(rng.normal(0, spread, shape), 2)


def cut(x: np.ndarray, p: int, axis: int = 0) -> list[np.ndarray]:
    """Equal shards of each rank along an axis."""
    return [np.ascontiguousarray(one) for one in np.split(x, p, axis)]


def _all_reduces(elements: int, p: int, *, times: int) -> dict[str, int]:
    """Limits for this number of all-reduces, of this number of elements in all."""
    return {"total_bytes": 2 * (p - 1) * elements * ITEM, "total_messages": times * 2 * p * (p - 1)}


def draw_parameter(rng: Rng, case: Case) -> Arrays:
    """Draw a parameter of 1 to 3 dimensions and the one to shard; `dim` chooses it."""
    p, axes = case.params["p"], case.params["axes"]
    dim = case.params.get("dim", int(rng.integers(axes)))
    shape = rng.integers(2 if case.params.get("dim") else 1, 5, axes)
    shape[dim] = p * case.params["length"]
    return join_ranks([{"parameter": draw(rng, *shape), "dim": np.array(dim)}] * p)


def expect_shards(arrays: Arrays) -> Arrays:
    """Shards of a parameter, without a message."""
    given = split_ranks(arrays)
    shards = cut(given[0]["parameter"], len(given), int(given[0]["dim"]))
    return expect_ranks([{"shard": one} for one in shards], total_messages=0)


ELSEWHERE = 1.0
"""Gradient of each entry of x that comes from elsewhere than the layer."""
X_GRAD = "x.grad, of which 1 comes from elsewhere"


def draw_columns(rng: Rng, case: Case) -> Arrays:
    """Draw a full layer, its input, and gradients of each rank's output features."""
    p, t, inputs, outputs = (case.params[name] for name in ("p", "t", "i", "o"))
    layer = {"weight": draw(rng, p * outputs, inputs), "bias": draw(rng, p * outputs), "x": draw(rng, t, inputs)}
    gradients = cut(draw(rng, t, p * outputs), p, 1)
    wants = {"x_wants": np.array(not case.params["data"])}
    return join_ranks([layer | wants | {"gradient": gradient} for gradient in gradients])


def expect_columns(arrays: Arrays) -> Arrays:
    """Results and gradients of a column-parallel layer and of the copy region."""
    ranks, answers = split_ranks(arrays), []
    p, x = len(ranks), ranks[0]["x"]
    x_grad = np.concatenate([one["gradient"] for one in ranks], 1) @ ranks[0]["weight"]
    shards = zip(cut(ranks[0]["weight"], p), cut(ranks[0]["bias"], p), strict=True)
    for r, (given, (weight, bias)) in enumerate(zip(ranks, shards, strict=True), start=1):
        answer = {"result of CopyToTensorParallelRegion": x * r}
        answer |= {"x.grad through CopyToTensorParallelRegion": x * sum(range(p + 1))}
        answer |= {"result of ColumnParallelLinear": x @ weight.T + bias}
        answer |= {X_GRAD: x_grad + ELSEWHERE} if given["x_wants"] else {}
        answer |= {"weight.grad": given["gradient"].T @ x, "bias.grad": given["gradient"].sum(0)}
        answers.append(answer | {"bias of ColumnParallelLinear": bias})
    return expect_ranks(answers, **_all_reduces(2 * x.size, p, times=2))


def draw_rows(rng: Rng, case: Case) -> Arrays:
    """Draw a full layer, each rank's input features, and the gradient of the result."""
    p, t, inputs, outputs = (case.params[name] for name in ("p", "t", "i", "o"))
    layer = {"weight": draw(rng, outputs, p * inputs), "bias": draw(rng, outputs), "gradient": draw(rng, t, outputs)}
    wants = {"x_wants": np.array(not case.params["data"])}
    return join_ranks([layer | wants | {"x": x} for x in cut(draw(rng, t, p * inputs), p, 1)])


def expect_rows(arrays: Arrays) -> Arrays:
    """Results and gradients of a row-parallel layer and of the reduce region."""
    ranks, answers = split_ranks(arrays), []
    p, gradient, bias = len(ranks), ranks[0]["gradient"], ranks[0]["bias"]
    result = np.concatenate([one["x"] for one in ranks], 1) @ ranks[0]["weight"].T + bias
    for r, (given, weight) in enumerate(zip(ranks, cut(ranks[0]["weight"], p, 1), strict=True), start=1):
        answer = {"result of ReduceFromTensorParallelRegion": gradient * sum(range(p + 1))}
        answer |= {"x.grad through ReduceFromTensorParallelRegion": gradient * r, "result of RowParallelLinear": result}
        answer |= {X_GRAD: gradient @ weight + ELSEWHERE} if given["x_wants"] else {}
        answer |= {"weight.grad": gradient.T @ given["x"], "bias.grad": gradient.sum(0)}
        answers.append(answer | {"bias of RowParallelLinear": bias})
    return expect_ranks(answers, **_all_reduces(2 * result.size, p, times=2))


CALLS = 3
"""Calls of an MLP, of which the gradients add up; in the last one x is data."""


def draw_mlp(rng: Rng, case: Case) -> Arrays:
    """Draw both layers of an MLP, inputs and gradients."""
    p, t, d, hidden, outputs = (case.params[name] for name in ("p", "t", "d", "f", "o"))
    given = {"up.weight": draw(rng, p * hidden, d), "up.bias": draw(rng, p * hidden) + 5e-5}  # not at the ReLU's corner
    given |= {"down.weight": draw(rng, outputs, p * hidden), "down.bias": draw(rng, outputs)}
    return join_ranks([given | {"x": draw(rng, CALLS, t, d), "gradient": draw(rng, CALLS, t, outputs)}] * p)


def expect_mlp(arrays: Arrays) -> Arrays:
    """Results and gradients of an MLP; limits for all-reduces that send all to all, as lent ones do."""
    ranks = split_ranks(arrays)
    p, given = len(ranks), ranks[0]
    up, down, answer = given["up.weight"], given["down.weight"], dict[str, np.ndarray]()
    total: dict[str, Any] = dict.fromkeys(("up.weight", "up.bias", "down.weight", "down.bias"), 0.0)
    for call, (x, gradient) in enumerate(zip(given["x"], given["gradient"], strict=True)):
        before = x @ up.T + given["up.bias"]
        hidden, back = np.maximum(before, 0), gradient @ down * (before > 0)
        answer |= {f"result of the MLP, call {call}": hidden @ down.T + given["down.bias"]}
        if call < CALLS - 1:
            answer |= {f"x.grad in call {call}, of which 1 comes from elsewhere": back @ up + ELSEWHERE}
        new = (back.T @ x, back.sum(0), gradient.T @ hidden, gradient.sum(0))
        total = {name: total[name] + one for name, one in zip(total, new, strict=True)}
    shards = [cut(total[name], p, axis) for name, axis in (("up.weight", 0), ("up.bias", 0), ("down.weight", 1))]
    answers = [
        answer | {f"{name}.grad": one for name, one in zip(total, (*own, total["down.bias"]), strict=True)}
        for own in zip(*shards, strict=True)
    ]
    times = 2 * CALLS  # all-reduces; one autograd function for the whole MLP sends back in the last call too
    sent = (given["x"].size + given["gradient"].size + times) * ITEM
    return expect_ranks(answers, total_bytes=p * (p - 1) * sent, total_messages=times * 2 * p * (p - 1))


def draw_logits(rng: Rng, case: Case) -> Arrays:
    """Draw logits and targets.

    `spread`: of the logits; `offset`: difference between tokens; `towers`: one logit of each token stands out;
    `padded`: last columns that are no tokens.
    """
    p, t, width = (case.params[name] for name in ("p", "t", "width"))
    logits = draw(rng, t, p * width, spread=case.params.get("spread", 1.0))
    logits += np.linspace(case.params.get("offset", 0.0), 0.0, t)[:, None]
    usable = p * width - case.params.get("padded", 0)
    if case.params.get("towers"):
        logits[np.arange(t), rng.integers(0, usable, t)] += 2000.0
    logits[:, usable:] = -np.inf
    edges = rng.permutation([edge for r in range(p) for edge in (r * width, (r + 1) * width - 1) if edge < usable])
    targets = rng.integers(0, usable, t)
    targets[: len(edges)] = edges[:t]
    gradients = {name: np.array(np.round(rng.uniform(0.5, 3.0), 2)) for name in ("gradient", "again")}
    return join_ranks([{"logits": own, "targets": targets} | gradients for own in cut(logits, p, 1)])


def expect_loss(arrays: Arrays) -> Arrays:
    """Mean loss, and the gradients of two backward passes."""
    ranks = split_ranks(arrays)
    p, targets = len(ranks), ranks[0]["targets"]
    logits, t = np.concatenate([one["logits"] for one in ranks], 1), len(targets)
    shifted = logits - logits.max(1, keepdims=True)
    log_sum = np.log(np.exp(shifted).sum(1))
    loss = (log_sum - shifted[np.arange(t), targets]).mean()
    gradient = np.exp(shifted - log_sum[:, None])
    gradient[np.arange(t), targets] -= 1
    gradient *= (float(ranks[0]["gradient"]) + float(ranks[0]["again"])) / t
    answers = [{"loss": np.array(loss), GRADIENT: one} for one in cut(gradient, p, 1)]
    limits = {"total_bytes": 3 * p * (p - 1) * t * ITEM, "total_messages": 6 * p * (p - 1)}
    return expect_ranks(answers, **limits, largest_message=3 * p * t * ITEM)


GRADIENT = "logits.grad after two backward passes"


def compare_loss(got: Arrays, expected: Arrays) -> Mismatch | None:
    """As `close`, with the sizes of what losses and probabilities are differences of."""
    return close(got, expected, min_size={"loss": 1.0, GRADIENT: 1 / len(expected[GRADIENT])})


SECONDS = ((1.0, 2.0), (2.0, 1.0), (1.0, 1.0))
"""Times of a forward and a backward pass with which a schedule is played."""
Orders = list[list[tuple[int, int]]]


def play(orders: Orders, seconds: tuple[float, float]) -> tuple[float, list[int]]:
    """When the last action ends, infinity for a deadlock; the most micro-batches in flight on each rank."""
    p = len(orders)
    ends: dict[tuple[int, int, int], float] = {}
    free, done, in_flight, most, moved = [0.0] * p, [0] * p, [0] * p, [0] * p, True
    while moved:
        moved = False
        for r, order in enumerate(orders):
            while done[r] < len(order):
                kind, i = order[done[r]]
                other = r - 1 if kind == FORWARD else r + 1
                needs = [(kind, i, other)] if 0 <= other < p else []
                needs += [(FORWARD, i, r)] if kind == BACKWARD else []
                if any(need not in ends for need in needs):
                    break
                ends[kind, i, r] = free[r] = max([free[r], *(ends[need] for need in needs)]) + seconds[kind]
                in_flight[r] += 1 if kind == FORWARD else -1
                most[r], done[r], moved = max(most[r], in_flight[r]), done[r] + 1, True
    finished = all(count == len(order) for count, order in zip(done, orders, strict=True))
    return max(free) if finished else math.inf, most


def draw_schedule(rng: Rng, case: Case) -> Arrays:
    """Return the case's sizes."""
    del rng
    return {name: np.array(case.params[name]) for name in ("ranks", "micro_batches")}


def expect_schedule(arrays: Arrays) -> Arrays:
    """Return the sizes, by which `compare_schedules` judges."""
    return arrays


def compare_schedules(got: Arrays, expected: Arrays) -> Mismatch | None:
    """Play a schedule: every action once, few micro-batches in flight, no larger bubble."""
    p, m = (int(expected[name]) for name in ("ranks", "micro_batches"))
    orders: Orders = [[(kind, i) for kind, i in got[f"rank {r}"].tolist()] for r in range(p)]
    for r, order in enumerate(orders):
        for kind, i in sorted({*order, *((kind, i) for kind in (FORWARD, BACKWARD) for i in range(m))}):
            if (count := order.count((kind, i))) != (wanted := int(0 <= i < m)):
                what = f"rank {r} runs the {KINDS[kind]} pass of micro-batch {i} too {'often' if count else 'rarely'}"
                return Mismatch(what, f"{count} times", f"{wanted} times, with micro-batches 0 to {m - 1}")
    for seconds in SECONDS:
        end_s, in_flight = play(orders, seconds)
        least_s = (m + p - 1) * sum(seconds)
        if math.isinf(end_s):
            return Mismatch("the ranks wait for each other: no rank can run its next action", "a deadlock", "an end")
        for r, most in enumerate(in_flight):
            if most > (limit := min(p - r, m)):
                what = f"rank {r} has too many micro-batches in flight"
                return Mismatch(what, f"{most} at a time", f"at most {limit}")
        if end_s > least_s + 1e-9:
            times = f"forward {seconds[0]:g} s, backward {seconds[1]:g} s"
            return Mismatch(f"the bubble is too large ({times})", f"the step takes {end_s:g} s", f"{least_s:g} s")
    return None


def _one_forward_one_backward(p: int, m: int) -> Orders:
    """Run a forward pass where fewer than min(p - r, m) micro-batches are in flight, else a backward pass."""
    orders: Orders = []
    for r in range(p):
        order: list[tuple[int, int]] = []
        done = [0, 0]
        while done[BACKWARD] < m:
            admits = done[FORWARD] < m and done[FORWARD] - done[BACKWARD] < min(p - r, m)
            kind = FORWARD if admits else BACKWARD
            order.append((kind, done[kind]))
            done[kind] += 1
        orders.append(order)
    return orders


ORDERS = ("1F1B", "GPipe", "last first", "rotated", "far ahead")


def _draw_orders(kind: str, p: int, m: int) -> Orders:
    forward, backward = [(FORWARD, i) for i in range(m)], [(BACKWARD, i) for i in range(m)]
    if kind == "1F1B":
        return _one_forward_one_backward(p, m)
    if kind == "rotated":  # the first micro-batch is one in the middle
        return [[(one, (i + m // 2) % m) for one, i in order] for order in _one_forward_one_backward(p, m)]
    if kind == "far ahead":  # early ranks as in GPipe, the last as early as can be
        return [forward + backward] * (p - 1) + _one_forward_one_backward(p, m)[-1:]
    return [forward + (backward if kind == "GPipe" else backward[::-1])] * p


def draw_stages(rng: Rng, case: Case) -> Arrays:
    """Draw a chunk for each rank, inputs, targets and a schedule; `width` of activations, 0 for other ones each."""
    p, m, width, hidden = (case.params[name] for name in ("p", "m", "width", "hidden"))
    orders = _draw_orders(ORDERS[case.params["order"]], p, m)
    widths = [width or int(rng.integers(1, 6)) for _ in range(p + 1)]
    rows = [case.params.get("rows") or int(rng.integers(1, 4)) for _ in range(m)]
    schedule = {f"actions{r}": np.array(order, dtype=np.int64) for r, order in enumerate(orders)}
    ranks: list[Arrays] = []
    for r in range(p):
        one = {"first": draw(rng, widths[r], hidden, spread=widths[r] ** -0.5)}
        one |= {"second": draw(rng, hidden, widths[r + 1], spread=hidden**-0.5)} | schedule
        if r == 0:
            one |= {f"x{i}": draw(rng, t, widths[0]) + 1e-4 * i for i, t in enumerate(rows)}  # no two are equal
        if r == p - 1:
            one |= {f"target{i}": draw(rng, t, widths[-1]) for i, t in enumerate(rows)}
        ranks.append(one)
    return join_ranks(ranks)


def expect_stages(arrays: Arrays) -> Arrays:
    """Gradients of all chunks and the mean loss, micro-batch by micro-batch."""
    ranks = split_ranks(arrays)
    p, m = len(ranks), len(ranks[0]["actions0"]) // 2
    answers: list[Arrays] = [
        {f"{name}.grad": np.zeros_like(one[name]) for name in ("first", "second")} for one in ranks
    ]
    mean, sent = 0.0, np.zeros(p, dtype=np.int64)
    for i in range(m):
        xs, hiddens = [ranks[0][f"x{i}"]], []
        for one in ranks:
            hiddens.append(np.tanh(xs[-1] @ one["first"]))
            xs.append(hiddens[-1] @ one["second"])
        target = ranks[-1][f"target{i}"]
        along = (xs[-1] * target).sum(1)
        mean += np.square(along).mean() / m
        gradient = 2 * along[:, None] * target / len(along) / m
        for r in reversed(range(p)):
            answers[r]["second.grad"] += hiddens[r].T @ gradient
            back = gradient @ ranks[r]["second"].T * (1 - hiddens[r] ** 2)
            answers[r]["first.grad"] += xs[r].T @ back
            gradient = back @ ranks[r]["first"].T
            sent[r] += ITEM * ((gradient.size if r else 0) + (xs[r + 1].size if r < p - 1 else 0))
    answers[-1]["mean loss"] = np.array(mean)
    back_order = [i for kind, i in ranks[0]["actions0"].tolist() if kind == BACKWARD]
    answers[0]["micro-batches in the order of their backward passes"] = np.array(back_order)
    return expect_ranks(answers, bytes=sent, messages=np.array([m * ((r > 0) + (r < p - 1)) for r in range(p)]))


def draw_sequence(rng: Rng, case: Case) -> Arrays:
    """Return the number of ranks and of tokens, `length` for each of two chunks of a rank."""
    del rng
    ranks = case.params["ranks"]
    return {"ranks": np.array(ranks), "tokens": np.array(2 * ranks * case.params["length"])}


def _zigzag(tokens: int, p: int) -> list[np.ndarray]:
    chunks = np.arange(tokens).reshape(2 * p, -1)
    return [np.concatenate([chunks[r], chunks[-1 - r]]) for r in range(p)]


def expect_zigzag(arrays: Arrays) -> Arrays:
    """Positions of each rank."""
    positions = _zigzag(int(arrays["tokens"]), int(arrays["ranks"]))
    return {f"positions[{r}]": one for r, one in enumerate(positions)}


DIVISIONS = ("zigzag", "contiguous", "strided", "reversed", "shuffled")


def _divide(rng: Rng, kind: str, tokens: int, p: int) -> list[np.ndarray]:
    """Positions of each rank; zigzag only where each rank has an even number of tokens."""
    if kind == "zigzag" and tokens % (2 * p) == 0:
        return _zigzag(tokens, p)
    if kind == "strided":
        return [np.arange(r, tokens, p) for r in range(p)]
    chunks = np.split(rng.permutation(tokens) if kind == "shuffled" else np.arange(tokens), p)
    return chunks[::-1] if kind == "reversed" else chunks


def draw_heads(rng: Rng, case: Case) -> Arrays:
    """Draw queries, keys and values of each rank.

    `spread`: of the scores; `slope`: sizes of the first and the last key; `first`: the first token's own score, times
    a square.
    """
    p, b, n, t, h = (case.params[name] for name in ("p", "b", "n", "t", "h"))
    spread = case.params.get("spread", 1.0)
    q, k, v = (draw(rng, b, n, p * t, h, spread=size) for size in (spread, spread, 1.0))
    if case.params.get("slope"):
        k *= np.linspace(case.params["slope"][0], case.params["slope"][1], p * t)[:, None]
    if case.params.get("first"):
        k[:, :, 0] = case.params["first"] * q[:, :, 0]
    positions = _divide(rng, DIVISIONS[case.params["division"]], p * t, p)
    everyone = {f"positions{r}": own for r, own in enumerate(positions)}
    return join_ranks([{"q": q[:, :, own], "k": k[:, :, own], "v": v[:, :, own]} | everyone for own in positions])


def expect_heads(arrays: Arrays) -> Arrays:
    """Attention of each rank's queries to all keys at once."""
    ranks = split_ranks(arrays)
    p, answers = len(ranks), []
    positions = [ranks[0][f"positions{r}"] for r in range(p)]
    keys, values = (np.concatenate([one[name] for one in ranks], axis=2) for name in "kv")
    for given, own in zip(ranks, positions, strict=True):
        scores = given["q"] @ keys.swapaxes(2, 3) / np.sqrt(keys.shape[3])
        scores = np.where(np.concatenate(positions) <= own[:, None], scores, -np.inf)
        weights = np.exp(scores - scores.max(3, keepdims=True))
        answers.append({"result": weights @ values / weights.sum(3, keepdims=True)})
    size = 2 * ranks[0]["k"].size * ITEM
    limits = {"total_bytes": p * (p - 1) * size, "messages": 2 * (p - 1), "largest_message": size}
    return expect_ranks(answers, **limits, steps=2 * (p - 1))


def draw_parts(rng: Rng, case: Case) -> Arrays:
    """Draw what each rank sends to each: up to `rows` rows, often none."""
    p, width = case.params["p"], case.params["width"]
    counts = rng.integers(-1, case.params["rows"] + 1, (p, p)).clip(0)
    return join_ranks([{f"part{j}": draw(rng, int(count), width) for j, count in enumerate(row)} for row in counts])


def expect_received(arrays: Arrays) -> Arrays:
    """What comes from each rank."""
    ranks = split_ranks(arrays)
    p = len(ranks)
    answers = [{f"received[{i}]": ranks[i][f"part{j}"] for i in range(p)} for j in range(p)]
    sent = [sum(one[f"part{j}"].nbytes for j in range(p) if j != i) for i, one in enumerate(ranks)]
    return expect_ranks(answers, bytes=np.array(sent) + HEADER * (p - 1), messages=p - 1)


def draw_choices(rng: Rng, n: int, experts: int, top_k: int, liked: int = -1) -> np.ndarray:
    """Draw the experts that each token chooses, all different; `liked` is the first choice of all tokens."""
    scores = rng.random((n, experts))
    if liked >= 0:
        scores[:, liked] = 2.0
    return (-scores).argsort(1)[:, :top_k].reshape(n, top_k)


def draw_expert_ids(rng: Rng, case: Case) -> Arrays:
    """Draw choices and a capacity factor, in quarters; none for 0."""
    experts = case.params["experts"]
    chosen = draw_choices(rng, case.params["n"], experts, min(case.params["k"], experts), case.params.get("liked", -1))
    factor = [case.params["quarters"] / 4] if case.params["quarters"] else []
    return {"expert_ids": chosen, "num_experts": np.array(experts), "capacity_factor": np.array(factor, dtype=float)}


def expect_routing(arrays: Arrays) -> Arrays:
    """Rows of each expert, choice by choice and token by token, and the number of choices beyond its capacity."""
    chosen, experts = arrays["expert_ids"], int(arrays["num_experts"])
    n, top_k = chosen.shape
    factor = float(arrays["capacity_factor"][0]) if arrays["capacity_factor"].size else math.inf
    capacity = math.ceil(factor * n * top_k / experts) if math.isfinite(factor) else n * top_k
    rows: list[list[tuple[int, int]]] = [[] for _ in range(experts)]
    for choice in range(top_k):
        for token in range(n):
            rows[chosen[token, choice]].append((token, choice))
    kept = [queue[:capacity] for queue in rows]
    pairs = np.array([pair for queue in kept for pair in queue], dtype=np.int64).reshape(-1, 2)
    counts = np.array([len(queue) for queue in kept])
    dropped = np.array(n * top_k - len(pairs))
    counted = {"num_dropped": dropped, "tokens_per_expert": counts}
    return counted | {"token_indices": pairs[:, 0].copy(), "topk_index": pairs[:, 1].copy()}


def draw_dispatch(rng: Rng, case: Case) -> Arrays:
    """Draw tokens (up to `n`; none on rank 0 if `empty`), weights, routing and experts of each rank."""
    p, local, width, top_k = (case.params[name] for name in ("p", "local", "width", "k"))
    experts, ranks = p * local, []
    for r in range(p):
        n = case.params.get("exactly") or int(rng.integers(case.params["n"] + 1))
        n = 0 if r == 0 and case.params.get("empty") else n
        sizes = {"n": n, "experts": experts, "k": top_k, "quarters": case.params["quarters"]}
        chosen = draw_expert_ids(rng, Case("", sizes | {"liked": case.params.get("liked", -1)}))
        weights = rng.dirichlet(np.ones(min(top_k, experts)), n)
        one = {"tokens": draw(rng, n, width), "weights": weights, **expect_routing(chosen)}
        ranks.append(one | {"matrices": draw(rng, local, width, width, spread=width**-0.5)})
    return join_ranks(ranks)


def expect_combined(arrays: Arrays) -> Arrays:
    """Weighted results, row by row."""
    ranks, answers = split_ranks(arrays), []
    p, local = len(ranks), len(ranks[0]["matrices"])
    worked, travelling = np.zeros(p, dtype=np.int64), 0
    for r, given in enumerate(ranks):
        result = np.zeros_like(given["tokens"])
        expert_of_row = np.repeat(np.arange(p * local), given["tokens_per_expert"])
        for token, choice, e in zip(given["token_indices"], given["topk_index"], expert_of_row, strict=True):
            home, i = divmod(int(e), local)
            result[token] += given["weights"][token, choice] * np.tanh(
                given["tokens"][token] @ ranks[home]["matrices"][i]
            )
            worked[home] += 1
            travelling += home != r
        answers.append({"result": result})
    for answer, rows in zip(answers, worked, strict=True):
        answer["rows that this rank's experts got"] = np.array(rows)
    width, pairs = ranks[0]["tokens"].shape[1], p * (p - 1)
    numbers = ITEM * max(travelling, pairs * local) + pairs * 3 * (ITEM + HEADER)  # the lent all-to-all sends 8 ahead
    return expect_ranks(answers, total_bytes=2 * travelling * width * ITEM + numbers, total_messages=8 * pairs)


SLACK = 1e-9
"""By how much the order of a sum may change what a layout takes."""


def _num_parameters(arrays: Arrays) -> int:
    layers, d_model, d_ff = map(int, arrays["sizes"])
    return layers * (4 * d_model * d_model + 3 * d_model * d_ff)


def step_seconds(arrays: Arrays, d: int, t: int, p: int) -> dict[str, float]:
    """Seconds of a step: bytes of one GPU, message by message."""
    batch, node, tokens = (int(arrays[name]) for name in ("batch", "node", "tokens"))
    flops_per_s, _, link, network = arrays["rates"].tolist()
    layers, d_model, _ = arrays["sizes"].tolist()
    micro_batches, block = batch // d, 2 * tokens * d_model
    on_link = micro_batches * (layers // p) * 4 * (2 * (t - 1) * (block / t))
    on_network = micro_batches * 2 * (block / t) if p > 1 else 0.0
    shard, together = 2 * _num_parameters(arrays) / (t * p), min(d, node // t)
    on_link += 2 * (together - 1) * (shard / together)
    nodes = d / together
    on_network += 2 * (nodes - 1) / nodes * (shard / together)
    compute = 6.0 * _num_parameters(arrays) * tokens * batch / (d * t * p * flops_per_s)
    seconds = (compute, compute / micro_batches * (p - 1), on_link / link, on_network / network)
    return dict(zip(PARTS, seconds, strict=True))


def held_bytes(arrays: Arrays, d: int, t: int, p: int) -> float:
    """Bytes that a GPU of the first stage holds."""
    layers, d_model, _ = arrays["sizes"].tolist()
    states = _num_parameters(arrays) / (t * p) * (2 + 2 + 12 / d)
    in_flight = min(p, int(arrays["batch"]) // d)
    return float(states + in_flight * (layers // p) * int(arrays["tokens"]) * d_model * (10 + 24 / t))


def possible_layouts(arrays: Arrays) -> list[tuple[int, int, int]]:
    """All layouts that divide devices, node, width, layers and batch evenly."""
    layers, d_model, _ = arrays["sizes"].tolist()
    devices, batch, node = (int(arrays[name]) for name in ("devices", "batch", "node"))
    degrees = [t for t in range(1, node + 1) if not (node % t or d_model % t or devices % t)]
    pairs = [(t, p) for t in degrees for p in range(1, layers + 1) if not (layers % p or devices % (t * p))]
    return [(devices // (t * p), t, p) for t, p in pairs if batch % (devices // (t * p)) == 0]


def draw_machine(rng: Rng, case: Case) -> Arrays:
    """Draw rates; a model and a node from the case's params."""
    flops_per_s = round(float(rng.uniform(3e14, 1.2e15)), -12)
    link, network = round(float(rng.uniform(2e11, 6e11)), -9), round(float(rng.uniform(2e10, 8e10)), -8)
    rates = np.array([flops_per_s, case.params.get("memory_bytes", 80e9), link, network])
    sizes = np.array([case.params[name] for name in ("layers", "d_model", "d_ff")], dtype=np.int64)
    named = {name: np.array(case.params[name]) for name in ("node", "batch", "tokens")}
    return {"sizes": sizes, "rates": rates, **named}


def draw_layout(rng: Rng, case: Case) -> Arrays:
    """Draw a layout: t divides the node, and replicas fill part of a node or whole nodes."""
    node, p = case.params["node"], case.params["p"]
    t = case.params.get("t") or int(rng.choice([n for n in range(1, node + 1) if node % n == 0]))
    g = node // t
    d = case.params.get("d") or int(rng.choice([*range(1, g + 1), *(g * nodes for nodes in (2, 3, 5, 9))]))
    sizes = {
        "layers": p * int(rng.integers(1, 9)),
        "d_model": 128 * int(rng.integers(4, 65)),
        "tokens": 512 * int(rng.integers(1, 9)),
    }
    sizes |= {"d_ff": 128 * int(rng.integers(8, 129)), "batch": d * int(rng.integers(1, 13))}
    return draw_machine(rng, Case("", {**case.params, **sizes})) | {"layout": np.array([d, t, p])}


def expect_seconds(arrays: Arrays) -> Arrays:
    """The four parts of a step."""
    return {name: np.array(seconds) for name, seconds in step_seconds(arrays, *arrays["layout"].tolist()).items()}


def draw_cluster(rng: Rng, case: Case) -> Arrays:
    """Draw a cluster; with `spare`, memory is what one of the possible layouts holds, and that fraction more."""
    arrays = draw_machine(rng, case) | {"devices": np.array(case.params["devices"])}
    layouts = possible_layouts(arrays)
    if layouts and "spare" in case.params:
        chosen = layouts[int(rng.integers(len(layouts)))]
        arrays["rates"][1] = held_bytes(arrays, *chosen) * (1 + case.params["spare"])
    table = [[*one, *step_seconds(arrays, *one).values()] for one in layouts]
    return arrays | {"table": np.array(table, dtype=float).reshape(-1, 7)}


def draw_any_cluster(rng: Rng, case: Case) -> Arrays:
    """Draw sizes of a cluster that can be divided in several ways, or take the case's; then draw the cluster.

    In every layout the replicas fill part of a node or whole nodes.
    """
    ways = {"node": (4, 6, 8, 16), "layers": (24, 29, 36, 40, 80, 96), "tokens": (1024, 2048, 4096)}
    ways |= {"d_model": (1024, 2304, 5115, 5120, 8192), "nodes": (1, 2, 4, 6, 10, 0, -1), "batch": (1, 2, 4, 12, 36)}
    sizes: dict[str, Any] = {name: int(rng.choice(some)) for name, some in ways.items()}
    nodes = sizes["nodes"] if sizes["nodes"] > 0 else sizes["layers"] // (2 + sizes["nodes"])  # all layers, or half
    devices = sizes["node"] * nodes
    sizes |= {
        "d_ff": 128 * int(rng.integers(16, 224)),
        "batch": sizes["batch"] * max(1, devices // 8),
        "devices": devices,
    }
    sizes |= {} if "devices" in case.params else {"spare": float(rng.choice([SLACK, -SLACK, 0.3]))}
    arrays = draw_cluster(rng, Case("", {**sizes, **case.params}))
    is_even = all(d % min(d, int(arrays["node"]) // t) == 0 for d, t, _ in possible_layouts(arrays))
    return arrays if is_even else draw_any_cluster(rng, case)


def expect_layouts(arrays: Arrays) -> Arrays:
    """All possible layouts, with what they take and whether they fit."""
    layouts = possible_layouts(arrays)
    seconds = [math.fsum(step_seconds(arrays, *one).values()) for one in layouts]
    fits = [held_bytes(arrays, *one) <= arrays["rates"][1] for one in layouts]
    return {
        "layouts": np.array(layouts).reshape(-1, 3),
        "seconds": np.array(seconds),
        "fits": np.array(fits, dtype=bool),
    }


def compare_layouts(got: Arrays, expected: Arrays) -> Mismatch | None:
    """Accept a layout if none that fits is faster."""
    chosen = tuple(int(got[name]) for name in DEGREES)
    fits, seconds = expected["fits"], expected["seconds"]
    shown = f"Layout({', '.join(map(str, chosen))})"
    if not any(chosen):
        if not fits.any():
            return None
        return Mismatch("choose_layout returned None, but a layout divides evenly and fits", "None", "a Layout")
    found = np.flatnonzero((expected["layouts"] == chosen).all(1))
    if not found.size:
        wanted = "data · tensor · pipeline = devices, and t, p and d divide what the task says"
        return Mismatch("the layout does not divide devices, node, d_model, layers and batch evenly", shown, wanted)
    if not fits[found[0]]:
        return Mismatch("the layout does not fit into memory_bytes", shown, "one that fits" if fits.any() else "None")
    takes_s, least_s = float(seconds[found[0]]), float(seconds[fits].min())
    if takes_s > least_s * (1 + SLACK):
        fastest = np.flatnonzero(fits & (seconds == least_s))[0]
        best = f"Layout({', '.join(map(str, expected['layouts'][fastest].tolist()))})"
        return Mismatch("another layout that fits is faster", f"{shown}: {takes_s:.6g} s", f"{best}: {least_s:.6g} s")
    return None


def write_ranks(body: Sequence[str], call: str) -> str:
    """Code that runs a case on its ranks: lines of a program, and what it returns."""
    program = ["def program(group, arrays):", *(f"    {line}" for line in body), f"    return {call}"]
    start = "from mlsys_checks.sandboxed.ranks import split_ranks"
    return "\n".join([start, "", "", *program, "", "", "run(program, split_ranks(given))"])
