"""Checks of task 6: training that was interrupted, and parts of a checkpoint for another number of ranks.

Oracle: a run that nobody interrupted, in NumPy, with the noise of torch's generators; slices of joined arrays.
"""

from __future__ import annotations

import numpy as np
import torch

from mlsys_checks.sandboxed.data_parallel import checkpoints as calls
from mlsys_checks.sandboxed.data_parallel.sharded import name_momenta
from mlsys_checks.sandboxed.ranks import join_ranks, split_ranks
from mlsys_checks.sandboxed.spec import Arrays, Case, Check
from mlsys_checks.trusted.compare import close
from mlsys_checks.trusted.data_parallel.sharded import Momentum
from mlsys_checks.trusted.data_parallel.steps import (
    WEIGHTS,
    count_bytes,
    count_padded_bytes,
    draw,
    draw_weights,
    forms_of,
    weights_of,
)
from mlsys_checks.trusted.traffic import check_ranks, expect_ranks

AXES = {"weights": 1, "step": 0, "rate": 0, "on": 0, "position": 0, "random": 1}
"""How many axes each entry of a part has, besides momenta."""
TWICE = "", "again, "
"""A part is loaded once, and again."""


def _draw_run(rng: np.random.Generator, case: Case) -> Arrays:
    rate, weights = np.round(rng.uniform(0.1, 0.9), 2), draw_weights(rng, case.params["shapes"])
    position = rng.integers(2**54, 2**61) | 1 if case.params["stop"] else 0  # float64 rounds it
    return join_ranks(
        [
            weights
            | forms_of(case)
            | {"data": draw(rng, case.params["steps"]), "stop": np.array(case.params["stop"]), "lr": np.array(rate)}
            | {name: np.array(case.params[name]) for name in ("eager", "momenta") if name in case.params}
            | {"seed": np.array(rng.integers(1, 2**31)), "position": np.array(position)}
            for _ in range(case.params["p"])
        ]
    )


def _expect_run(arrays: Arrays) -> Arrays:
    parts = split_ranks(arrays)
    p, first, steps = len(parts), parts[0], len(parts[0]["data"])
    momenta = int(first.get("momenta", 1))
    optimizer = Momentum(weights_of(first), float(first["lr"]), momenta)
    noises = [torch.Generator().manual_seed(int(part["seed"])) for part in parts]
    stop = int(first["stop"])
    axes_of = AXES | dict.fromkeys(name_momenta(momenta), 1)
    told = {f"axes of {name!r}": np.array(axes) for name, axes in axes_of.items()}
    for step in range(steps):
        if step == stop:
            told |= {f"{again}position": first["position"] for again in TWICE}
            told |= {f"{again}loaded: w{i}": w for i, w in enumerate(optimizer.weights) for again in TWICE}
        sums = [np.zeros_like(w) for w in optimizer.weights]
        for part, noise in zip(parts, noises, strict=True):
            for i, w in enumerate(optimizer.weights):
                drawn = torch.randn(w.shape, dtype=torch.float64, generator=noise).numpy()
                sums[i] = sums[i] + (w * part["data"][step] + drawn) * (i != part.get("frozen"))
        names = [f"step {step}"] if step < stop else [f"{again}later step {step - stop}" for again in TWICE]
        moved = optimizer.step([total / p for total in sums])
        told |= {f"{name}: w{i}": w for i, w in enumerate(moved) for name in names}
    count, size = len(optimizer.weights), count_bytes(optimizer.weights)
    padded = count_padded_bytes(optimizer.weights, p)
    gathers = 3 + 2 * (2 * steps - stop + 1)  # three loadings, and one step besides those that are told
    told |= _expect_states(first, stop, "") if stop or "eager" in first else {}
    told |= _expect_states(first, steps, TWICE[1])
    told[f"{calls.DOUBLED}position"] = first["position"] + 1
    told |= {f"{calls.DOUBLED}loaded: w{i}": 2 * w for i, w in enumerate(optimizer.weights)}
    return expect_ranks(
        [told] * p,
        total_bytes=(p - 1) * (4 * size + gathers * padded),
        total_messages=(p - 1) * (4 * count + p * gathers),
    )


def _expect_states(first: Arrays, steps: int, name: str) -> Arrays:
    """What is saved of the states without axes after so many steps."""
    rate = float(first["lr"]) * 0.9**steps
    return {
        f"{name}saved step": np.array(steps),
        f"{name}saved rate": np.array(rate),
        f"{name}saved on": np.array(True),
    }


def _draw_parts(rng: np.random.Generator, case: Case) -> Arrays:
    n, old = case.params["n"], case.params["old"]
    alike = {"position": np.array(rng.integers(2**54, 2**61) | 1), "step": np.array(rng.integers(1, 1000), "float32")}
    alike["rate"] = draw(rng)
    divided = {"weights": "float32"} | case.params.get("divided", {"momentum": "float64"})
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


def _expect_parts(arrays: Arrays) -> Arrays:
    size, names = int(arrays["size"]), [name[: -len(" of 0")] for name in arrays if name.endswith(" of 0")]
    old = sum(name.startswith("weights of ") for name in arrays)
    told: Arrays = {"count": np.array(size)}
    for name in names:
        given = [arrays[f"{name} of {rank}"] for rank in range(old)]
        if given[0].ndim and name != "random":
            given = np.array_split(np.concatenate(given), size)
        told |= {f"{name} of {rank}": given[rank % len(given)] for rank in range(size)}
    return told


ADAM = {"divided": {"exp_avg": "float64", "exp_avg_sq": "float64"}}
"""Adam's states as torch has them, besides "step"."""
EIGHT_BIT = {"divided": {"state1": "int8", "state2": "uint8", "random_signs": "bool", "times": "int64"}}
"""States of a byte, as of Adam in eight bits, flags, and whole numbers that float64 rounds."""
HALF = {"divided": {calls.BFLOAT16: "int8"}}
"""A state of bfloat16, which crosses as whole numbers: NumPy has no such numbers."""
FURTHER = {"max_exp_avg_sq": "float64", "moved": "bool"}
ALL = {"divided": ADAM["divided"] | EIGHT_BIT["divided"] | HALF["divided"] | FURTHER}
"""States of all these kinds, and further ones."""
CHECKS = (
    check_ranks(
        name="resume",
        title="A run that nobody can tell was interrupted",
        points=6,
        cases=(
            Case("two ranks", {"p": 2, "shapes": [(2,), (3,)], "steps": 4, "stop": 2}),
            Case("one that is frozen", {"p": 3, "shapes": [(2, 2), (3,)], "steps": 3, "stop": 1, "frozen": 0}),
            Case("more ranks than elements", {"p": 3, "shapes": [(2,)], "steps": 2, "stop": 1}),
            Case(
                "one rank, and states that are made before the first step",
                {"p": 1, "shapes": [(2,)], "steps": 4, "stop": 3, "eager": True},
            ),
            Case("saved before the first step", {"p": 2, "shapes": [(2,), (1,)], "steps": 2, "stop": 0}),
            Case(
                "four ranks, many states",
                {"p": 4, "shapes": [(5, 3), (5,), (1,)], "steps": 6, "stop": 3, "momenta": 4},
                hidden=True,
            ),
        ),
        inputs=_draw_run,
        run=calls.resume,
        expect=_expect_run,
        first_hint="Weights, momentum, its count of steps, position, random numbers: which of them is not as it was?",
        hint="A copy of each tensor is saved, or later steps change it. To load: write into the shard, put the states "
        "under the new shard, set the random state, and gather the weights.",
        uses=("ShardedOptimizer", "save_state", "load_state"),
        snippet=WEIGHTS + "def program(rank, arrays):\n"
        "    from mlsys_checks.sandboxed.data_parallel.sharded import Momentum\n\n"
        '    torch.manual_seed(int(arrays["seed"]))\n'
        "    weights = leaves(arrays)\n"
        '    options = {"lr": float(arrays["lr"]), "most": 10**6, "eager": "eager" in arrays}\n'
        "    optimizer = ShardedOptimizer(rank, weights, Momentum, **options)\n"
        '    for step in range(int(arrays["stop"])):\n'
        "        for weight in weights:\n"
        "            noise = torch.randn(weight.shape, dtype=weight.dtype)\n"
        '            grad = weight.detach() * arrays["data"][step] + noise\n'
        "            weight.grad = grad if weight.requires_grad else None\n"
        "        optimizer.reduce_gradients()\n"
        "        optimizer.step()\n"
        '    part = save_state(optimizer, int(arrays["position"]))\n'
        "    lost = [torch.zeros_like(weight).requires_grad_() for weight in weights]\n"
        "    again = ShardedOptimizer(rank, lost, Momentum, **options)\n"
        "    load_state(again, part)\n"
        "    return [weight.detach() for weight in lost]\n\n\n"
        "run(program, split_ranks(given))",
    ),
    Check(
        name="reshard",
        title="Parts for another number of ranks",
        points=6,
        cases=(
            Case("from two to three", {"n": 7, "old": 2, "size": 3}),
            Case("from three to two", {"n": 7, "old": 3, "size": 2}),
            Case("from one to two", {"n": 3, "old": 1, "size": 2}),
            Case("from four to one", {"n": 6, "old": 4, "size": 1}),
            Case("to more ranks than elements", {"n": 2, "old": 2, "size": 4}),
            Case("from more ranks than elements", {"n": 2, "old": 4, "size": 3}),
            Case("as many as before, with Adam's states", {"n": 5, "old": 2, "size": 2, **ADAM}),
            Case("with states of bytes, flags and whole numbers", {"n": 24, "old": 2, "size": 5, **EIGHT_BIT}),
            Case("with a state of bfloat16", {"n": 5, "old": 2, "size": 3, **HALF}),
            Case(
                "from eight to eleven, with states of all kinds", {"n": 203, "old": 8, "size": 11, **ALL}, hidden=True
            ),
        ),
        inputs=_draw_parts,
        run=calls.reshard,
        expect=_expect_parts,
        compare=close,
        first_hint="Three kinds of entries: what belongs to a rank, what is alike on all, and what is divided.",
        hint="Go through the names. Divided ones: torch.cat over the parts in order, then split_chunks anew. "
        "All others are copied, random states from the part of the rank's number modulo that of the old parts.",
        uses=("reshard",),
        snippet='ranks = sum(name.startswith("weights of ") for name in given)\n'
        'names = [name.removesuffix(" of 0") for name in given if name.endswith(" of 0")]\n'
        'parts = [{name: torch.from_numpy(given[f"{name} of {rank}"]) for name in names} for rank in range(ranks)]\n'
        "for part in parts:\n"
        '    part |= {name: one.bfloat16() for name, one in part.items() if name == "bfloat16"}\n'
        'reshard(parts, int(given["size"]))',
    ),
)
