"""Checks of tasks 4 and 5a: divided optimisers and weights. Oracle: one process with all of them, in NumPy.

That nobody keeps what belongs to others is not asked of the learner's code. A rank that receives only its chunk of the
gradients cannot have the others' states; weights that are scaled between forward and backward pass are wrong in
whoever kept them; and what a rank holds is counted.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import numpy as np

from mlsys_checks.sandboxed.data_parallel import sharded as calls
from mlsys_checks.sandboxed.ranks import join_ranks, split_ranks
from mlsys_checks.sandboxed.spec import Arrays, Case
from mlsys_checks.trusted.compare import close
from mlsys_checks.trusted.data_parallel.steps import (
    SPLIT,
    WEIGHTS,
    count_bytes,
    count_padded_bytes,
    draw,
    draw_weights,
    forms_of,
    weights_of,
)
from mlsys_checks.trusted.traffic import check_ranks, compare_run, expect_ranks

RATE = 0.1
"""What the calls multiply a layer's gradient by before they subtract it."""
BUDGET_BYTES = 160 << 10
"""Room on each rank for its share of the deep stack and its gradients, and for a few whole layers."""


class Momentum:
    """The optimiser of the calls, on all parameters at once: its rate falls by a tenth with each step."""

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


def _draw_steps(rng: np.random.Generator, case: Case) -> Arrays:
    shapes, steps, without = case.params["shapes"], 3, case.params.get("without", ())
    rate = case.params.get("lr", np.round(rng.uniform(0.1, 0.9), 2))
    places = range(len(shapes))
    parts = [
        draw_weights(rng, shapes, dtype=case.params.get("dtype", "float64"))
        | {f"g{i}": draw(rng, steps, *shape) for i, shape in enumerate(shapes)}
        | {"used": np.array([[not {(rank, i), (rank, i, s)} & {*without} for i in places] for s in range(steps)])}
        | {"steps": np.array(steps), "lr": np.array(rate)}
        | forms_of(case)
        for rank in range(case.params["p"])
    ]
    return join_ranks(parts)


def _expect_steps(arrays: Arrays) -> Arrays:
    parts = split_ranks(arrays)
    p, steps = len(parts), int(parts[0]["steps"])
    optimizer = Momentum(weights_of(parts[0]), float(parts[0]["lr"]))
    dtype = optimizer.weights[0].dtype
    told = {f"at the start: w{i}": w for i, w in enumerate(optimizer.weights)}
    for step in range(steps):
        sums = [
            np.sum([part[f"g{i}"][step] * part["used"][step, i] for part in parts], axis=0)
            for i in range(len(optimizer.weights))
        ]
        moved = optimizer.step([total / p for total in sums])
        told |= {f"step {step}: w{i}": w.astype(dtype) for i, w in enumerate(moved)}
    count, padded = len(optimizer.weights), count_padded_bytes(optimizer.weights, p)
    return expect_ranks(
        [told] * p,
        total_bytes=(p - 1) * (count_bytes(optimizer.weights) + 2 * steps * padded) * dtype.itemsize // 8,
        total_messages=(p - 1) * (count + 2 * p * steps),
    )


def _draw_parts(rng: np.random.Generator, case: Case) -> Arrays:
    spread, unit = case.params.get("spread", 1.0), case.params.get("unit", 1.0)
    parts = [draw(rng, length, spread=spread) * unit for length in case.params["lengths"]]
    norm = float(np.sqrt(sum(np.sum(part**2) for part in parts)))
    most = case.params.get("most", case.params["share"] * norm or 1.0)
    return join_ranks([{"part": part, "max_norm": np.array(most)} for part in parts])


def _expect_clipped(arrays: Arrays) -> Arrays:
    parts = split_ranks(arrays)
    p, most = len(parts), float(parts[0]["max_norm"])
    norm = float(np.linalg.norm(np.concatenate([part["part"] for part in parts])))
    factor = most / norm if norm > most else 1.0
    told = [{"norm": np.array(norm), "part": part["part"] * factor} for part in parts]
    return expect_ranks(told, messages=2 * (p - 1), largest_message=64)


# --- weights ----------------------------------------------------------------------------------------------------------


def _draw_layers(rng: np.random.Generator, case: Case) -> Arrays:
    p, depth, width = (case.params[name] for name in ("p", "depth", "width"))
    rows, steps, axes = case.params.get("rows", 2), case.params.get("steps", 2), case.params.get("axes", 2)
    growth, dtype = np.round(rng.uniform(1.2, 1.6), 2), case.params.get("dtype", "float64")
    residual = case.params.get("residual", False)
    widths = [width + i % 2 * (not residual) for i in range(depth + 1)]  # no layer is square where none has to be
    shapes = [((inner + 1) * outer,) for inner, outer in pairwise(widths)]
    return join_ranks(
        [
            draw_weights(rng, shapes, width**-0.5, dtype)
            | {"x": draw(rng, steps, *[2, rows + rank][3 - axes :], widths[0]).astype(dtype)}
            | {"g": draw(rng, steps, *[2, rows + rank][3 - axes :], widths[-1]).astype(dtype)}
            | {"growth": np.array(growth), "x_wants": np.array(case.params.get("x_wants", True))}
            | {name: np.array(case.params.get(name, 1)) for name in ("passes", "backward")}
            | {"form": np.array(case.params.get("form", 0)), "residual": np.array(residual)}
            for rank in range(p)
        ]
    )


def _expect_layers(arrays: Arrays) -> Arrays:
    parts = split_ranks(arrays)
    p, width = len(parts), parts[0]["x"].shape[-1]
    flat, weights = weights_of(parts[0]), list[tuple[np.ndarray, np.ndarray]]()
    for w in flat:
        both = w.reshape(width + 1, -1)  # the bias below the weight
        weights.append((both[:-1], both[-1]))
        width = both.shape[1]
    growth, steps = float(parts[0]["growth"]), len(parts[0]["x"])
    passes, backward, residual = (int(parts[0][name]) for name in ("passes", "backward", "residual"))
    told: list[Arrays] = [{} for _ in range(p)]
    for step in range(steps):
        grown = [(w * growth, b * growth) for w, b in weights]
        sums = [(np.zeros_like(w), np.zeros_like(b)) for w, b in weights]
        for part, one in zip(parts, told, strict=True):
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
    for one in told:
        for i, (w, b) in enumerate(weights):
            bias = b[0] if b.size == 1 else b
            forms = ((w, bias), (w.T, w[:0], bias), (np.vstack([w, b]),), (*b, w))
            one |= {f"layer {i}: w{k}": part for k, part in enumerate(forms[form])}
    count = sum(1 + len(b) if form == 3 else 3 for _, b in weights)  # of all weights; in other forms three are most
    padded = sum(count_padded_bytes([one], p) for one in flat)
    # One forward, one and a reduce-scatter each time that it goes back, and one when all is over.
    gathers = (1 + 2 * backward) * steps * passes + 1
    return expect_ranks(
        told,
        total_bytes=(p - 1) * (count_bytes(flat) + gathers * padded),
        total_messages=(p - 1) * (count + len(weights) * p * gathers),  # at the start one for each weight
    )


CHECKS = (
    check_ranks(
        name="sharded_optimizer",
        title="ZeRO 1: every rank keeps a part of the states",
        points=13,
        cases=(
            Case("two ranks", {"p": 2, "shapes": [(2,), (2, 2)]}),
            Case("three ranks, seven elements", {"p": 3, "shapes": [(1, 2), (3,), (2,)]}),
            Case("float32", {"p": 2, "shapes": [(2, 1), (3,)], "dtype": "float32"}),
            Case("more ranks than elements", {"p": 4, "shapes": [(2,), (1,)]}),
            Case("as many ranks as elements", {"p": 4, "shapes": [(1, 2), (2,)]}),
            Case("a parameter without a gradient", {"p": 2, "shapes": [(3,), (2,)], "without": [(1, 0)]}),
            Case(
                "in every step another one without", {"p": 2, "shapes": [(3,), (2,)], "without": [(1, 0, 1), (0, 1, 2)]}
            ),
            Case("a rate of zero", {"p": 2, "shapes": [(2,), (1,)], "lr": 0.0}),
            Case("a rank without any", {"p": 2, "shapes": [(3,), (2,)], "without": [(1, 0), (1, 1)]}),
            Case(
                "one that lies transposed in memory, one without axes, one empty",
                {"p": 2, "shapes": [(2, 3), (0,), ()], "without": [(0, 0)], "transposed": True},
            ),
            Case("one rank", {"p": 1, "shapes": [(2,), (3,)]}),
            Case("five ranks", {"p": 5, "shapes": [(7, 3), (7,), (2, 2, 2), (1,)], "without": [(4, 1)]}, hidden=True),
        ),
        inputs=_draw_steps,
        run=calls.sharded_optimizer,
        expect=_expect_steps,
        first_hint="Which elements does this rank's optimiser move, whose gradients does it need, who needs its "
        "weights?",
        hint="Join all parameters to one flat array; this rank's chunk of it, a copy, goes to optimizer_class. "
        "Gradients: joined alike, reduce_scatter, divided by rank.size. After the step: all_gather the shards, join.",
        uses=("ShardedOptimizer",),
        snippet=WEIGHTS + "def program(rank, arrays):\n"
        "    from mlsys_checks.sandboxed.data_parallel.sharded import Momentum\n\n"
        "    weights = leaves(arrays)\n"
        '    optimizer = ShardedOptimizer(rank, weights, Momentum, lr=float(arrays["lr"]), most=10**6)\n'
        "    for i, weight in enumerate(weights):\n"
        '        if arrays["used"][0, i]:\n'
        '            weight.grad = torch.from_numpy(arrays[f"g{i}"])[0].to(weight.dtype)\n'
        "    optimizer.reduce_gradients()\n"
        "    optimizer.step()\n"
        "    return [weight.detach() for weight in weights]\n\n\n"
        "run(program, split_ranks(given))",
    ),
    check_ranks(
        name="clip_gradient",
        title="Clipping by the norm of the whole",
        points=6,
        cases=(
            Case("two ranks, clipped to half", {"lengths": [3, 3], "share": 0.5}),
            Case("within the limit", {"lengths": [3, 2, 2], "share": 1.2}),
            Case("one rank has nothing", {"lengths": [2, 1, 0], "share": 0.25}),
            Case("a gradient of zeros", {"lengths": [2, 2], "share": 0.5, "spread": 0.0}),
            Case("zeros, and no room at all", {"lengths": [2, 1], "share": 0.0, "spread": 0.0, "most": 0.0}),
            Case("no room at all", {"lengths": [2, 3], "share": 0.0, "most": 0.0}),
            Case("no limit", {"lengths": [2, 3], "share": 0.0, "most": np.inf}),
            Case("a hair above the limit", {"lengths": [2, 3], "share": 1 - 5e-7}),
            Case("a small gradient", {"lengths": [3, 2], "share": 0.5, "spread": 0.2}),
            Case("tiny numbers", {"lengths": [3, 2], "share": 0.5, "unit": 1e-40}),
            Case("huge numbers, a tiny limit", {"lengths": [3, 2], "share": 0.0, "unit": 1e40, "most": 1e-40}),
            Case("one rank", {"lengths": [4], "share": 0.5}),
            Case("many elements", {"lengths": [11, 11, 10], "share": 0.9}),
            Case("four ranks", {"lengths": [29, 29, 28, 28], "share": 0.1}, hidden=True),
        ),
        inputs=_draw_parts,
        run=calls.clip_gradient,
        expect=_expect_clipped,
        compare=partial(compare_run, compare=close),  # nothing cancels, and tiny numbers must be as near
        first_hint="What of each part do the others need to know so that all of them get the same norm?",
        hint="Add up the squares of this part, all_reduce that one number (a tensor of one element), take its root. "
        "Scale only where the norm is more than max_norm, in place.",
        uses=("clip_gradient",),
        snippet=SPLIT + "def program(rank, arrays):\n"
        '    part = torch.from_numpy(arrays["part"]).clone()\n'
        '    norm = clip_gradient(rank, part, float(arrays["max_norm"]))\n'
        "    return norm, part\n\n\n"
        "run(program, split_ranks(given))",
    ),
    check_ranks(
        name="sharded_layer",
        title="ZeRO 3: weights that are whole while they are used",
        points=16,
        cases=(
            Case("two ranks, one layer", {"p": 2, "depth": 1, "width": 2, "steps": 1}),
            Case("three ranks, two layers", {"p": 3, "depth": 2, "width": 2}),
            Case("more ranks than elements, a bias without axes", {"p": 5, "depth": 2, "width": 1}),
            Case("layers that are used twice", {"p": 2, "depth": 2, "width": 2, "passes": 2}),
            Case("gone back through twice", {"p": 2, "depth": 2, "width": 2, "backward": 2}),
            Case(
                "some weights want no gradient; one is empty, one lies transposed in memory",
                {"p": 2, "depth": 2, "width": 2, "form": 1},
            ),
            Case("beside residual connections", {"p": 2, "depth": 2, "width": 2, "residual": True}),
            Case("float32", {"p": 2, "depth": 1, "width": 3, "dtype": "float32"}),
            Case("the first layer's x wants no gradient", {"p": 2, "depth": 2, "width": 3, "x_wants": False}),
            Case("an x of one axis that wants none", {"p": 2, "depth": 1, "width": 2, "axes": 1, "x_wants": False}),
            Case("an x of three axes", {"p": 2, "depth": 2, "width": 2, "axes": 3}),
            Case("one rank, layers of one weight", {"p": 1, "depth": 2, "width": 2, "form": 2}),
            Case("a deep stack", {"p": 3, "depth": 12, "width": 32, "steps": 1, "x_wants": False}),
            Case(
                "five ranks, layers of many weights",
                {"p": 5, "depth": 2, "width": 7, "rows": 1, "form": 3},
                hidden=True,
            ),
        ),
        inputs=_draw_layers,
        run=calls.sharded_layer,
        expect=_expect_layers,
        first_hint="Which of forward and backward needs whole weights, and what does autograd still hold between the "
        "two?",
        hint="forward puts away x and the layer, nothing that was gathered. backward: gather, detach x and weights and "
        "have them want gradients, compute under enable_grad, ask for their gradients, and reduce_scatter those of the "
        "weights, joined, divided by the number of ranks.",
        uses=("ShardedLayer",),
        time_limit_s=10.0,
        memory_bytes=BUDGET_BYTES,
        snippet="from mlsys_checks.sandboxed.data_parallel.sharded import cut_layer\n"
        + SPLIT
        + "def program(rank, arrays):\n"
        '    x, layers = torch.from_numpy(arrays["x"][0]), []\n'
        "    width = x.shape[-1]\n"
        '    for name in (name for name in arrays if name[0] == "w"):\n'
        "        both = torch.from_numpy(arrays[name]).clone().view(width + 1, -1)\n"
        '        layers.append(ShardedLayer(rank, *cut_layer(both, int(arrays["form"]), len(layers))))\n'
        "        width = both.shape[1]\n"
        '    for layer in layers * int(arrays["passes"]):\n'
        '        x = (x + layer(x) if arrays["residual"] else layer(x)).tanh()\n'
        "    return x.detach()\n\n\n"
        "run(program, split_ranks(given))",
    ),
)
