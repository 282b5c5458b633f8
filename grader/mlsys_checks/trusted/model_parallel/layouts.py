"""Checks of task 6: the seconds of a step by layout, and the best one. Oracle: messages counted, all layouts tried."""

from __future__ import annotations

import math

import numpy as np

from mlsys_checks.sandboxed.model_parallel import layouts as calls
from mlsys_checks.sandboxed.spec import Arrays, Case, Check, Mismatch
from mlsys_checks.trusted.compare import close

NODE = 8
WORD = 2
"""Bytes of a number that is sent."""
SLACK = 1e-9
"""By how much another order of the same sums may make a layout seem faster."""


def _parameters(model: list[int]) -> int:
    layers, width, hidden, _ = model
    return layers * (4 * width * width + 3 * width * hidden)


def step_seconds(arrays: Arrays, d: int, t: int, p: int) -> dict[str, float]:
    """Seconds of a step by what they are spent on: messages of one device, added up."""
    model, batch, node = arrays["model"].tolist(), int(arrays["batch"]), int(arrays["node"])
    flops_per_s, _, link, network = arrays["rates"].tolist()
    layers, width, _, tokens = model
    micro_batches = batch // d
    sent_link = sent_network = 0.0
    block = WORD * tokens * width
    sent_link += micro_batches * (layers // p) * 4 * (2 * (t - 1) * (block / t))
    if p > 1:
        sent_network += micro_batches * 2 * (block / t)
    share = WORD * _parameters(model) / (t * p)
    together = min(d, node // t)
    islands = d / together
    sent_link += 2 * (together - 1) * (share / together)
    sent_network += 2 * (islands - 1) / islands * (share / together)
    compute = 6.0 * _parameters(model) * tokens * batch / (d * t * p * flops_per_s)
    return {
        "compute": compute,
        "bubble": compute / micro_batches * (p - 1),
        "link": sent_link / link,
        "network": sent_network / network,
    }


def kept_bytes(arrays: Arrays, d: int, t: int, p: int) -> float:
    """Bytes that the first stage's devices keep."""
    layers, width, _, tokens = arrays["model"].tolist()
    states = _parameters(arrays["model"].tolist()) / (t * p) * (WORD + WORD + 12 / d)
    in_flight = min(p, int(arrays["batch"]) // d)
    return float(states + in_flight * (layers // p) * tokens * width * (10 + 24 / t))


def is_possible(arrays: Arrays, d: int, t: int, p: int) -> bool:
    """Whether a layout divides devices, node, model and batch evenly."""
    layers, width, _, _ = arrays["model"].tolist()
    if min(d, t, p) < 1 or d * t * p != int(arrays["devices"]):
        return False
    return not (int(arrays["node"]) % t or width % t or layers % p or int(arrays["batch"]) % d)


def _draw_machine(rng: np.random.Generator, case: Case) -> Arrays:
    flops_per_s = round(float(rng.uniform(3e14, 1.2e15)), -12)
    link, network = round(float(rng.uniform(2e11, 6e11)), -9), round(float(rng.uniform(2e10, 8e10)), -8)
    memory_bytes = case.params.get("memory_bytes", case.params.get("memory_gb", 80) * 1e9)
    model = {"model": np.array(case.params["model"], dtype=np.int64), "batch": np.array(case.params["batch"])}
    if "needs" in case.params:  # as much memory as a layout needs, or a little less or more
        memory_bytes = kept_bytes(model, *case.params["needs"]) * (1 + case.params["spare"])
    rates = np.array([flops_per_s, memory_bytes, link, network])
    return model | {"rates": rates, "node": np.array(case.params.get("node", NODE))}


def _draw_layout(rng: np.random.Generator, case: Case) -> Arrays:
    return _draw_machine(rng, case) | {"layout": np.array(case.params["layout"], dtype=np.int64)}


def _expect_parts(arrays: Arrays) -> Arrays:
    return {name: np.array(value) for name, value in step_seconds(arrays, *arrays["layout"].tolist()).items()}


def _draw_cluster(rng: np.random.Generator, case: Case) -> Arrays:
    return _draw_machine(rng, case) | {"devices": np.array(case.params["devices"])}


def _expect_best(arrays: Arrays) -> Arrays:
    """Every layout that is possible, with the seconds and bytes that it takes; the case for compare."""
    devices = int(arrays["devices"])
    rows = [
        (d, t, devices // d // t)
        for d in range(1, devices + 1)
        for t in range(1, devices // d + 1)
        if is_possible(arrays, d, t, devices // d // t)
    ]
    seconds = [math.fsum(step_seconds(arrays, *row).values()) for row in rows]
    fits = [kept_bytes(arrays, *row) <= arrays["rates"][1] for row in rows]
    return {"layouts": np.array(rows).reshape(-1, 3), "seconds": np.array(seconds), "fits": np.array(fits, dtype=bool)}


def _compare_layouts(got: Arrays, expected: Arrays) -> Mismatch | None:
    """None where no layout that fits is faster than the one that was chosen."""
    chosen = tuple(int(got[name]) for name in calls.SIZES)
    fits, seconds = expected["fits"], expected["seconds"]
    least = float(seconds[fits].min()) if fits.any() else math.inf
    if chosen == (0, 0, 0):
        return Mismatch("no layout is chosen where one fits", "None", "a Layout") if fits.any() else None
    said = "data {}, tensor {}, pipeline {}".format(*chosen)
    found = np.flatnonzero((expected["layouts"] == chosen).all(1))
    if not found.size:
        return Mismatch("the layout does not divide devices, node, model and batch evenly", said, "one that does")
    if not fits[found[0]]:
        return Mismatch("the layout does not fit into memory", said, "one that fits" if fits.any() else "None")
    if (took := float(seconds[found[0]])) > least * (1 + SLACK):
        return Mismatch("another layout is faster", f"{took:.6g} s with {said}", f"{least:.6g} s")
    return None


SMALL, MIDDLING, LARGE = (24, 2048, 5632, 2048), (40, 5120, 13824, 4096), (80, 8192, 28672, 4096)
FULL = 16 * 2**27 + 34 * 2**20 * 8
"""Bytes of 2²⁷ parameters on one device, and of the activations of their eight layers."""
ONLY = {"model": (7, 1280, 3456, 1024), "devices": 175, "node": 5, "batch": 15, "needs": (5, 5, 7)}
"""A cluster that can be divided in one way, with fewer micro-batches than stages, not as many as copies; of no size
that divides 12 or 24 bytes evenly."""

CHECKS = (
    Check(
        name="step_parts",
        title="The seconds of a step, predicted",
        points=6,
        cases=(
            Case("all four kinds", {"model": LARGE, "layout": (8, 4, 4), "batch": 128}),
            Case("data parallelism alone", {"model": SMALL, "layout": (32, 1, 1), "batch": 64}),
            Case("within a node", {"model": SMALL, "layout": (2, 4, 1), "batch": 6}),
            Case("a pipeline alone", {"model": MIDDLING, "layout": (1, 1, 20), "batch": 7}),
            Case("a pipeline that one node has room for", {"model": SMALL, "layout": (1, 2, 4), "batch": 6}),
            Case("a whole node for tensors", {"model": LARGE, "layout": (16, 8, 2), "batch": 96}),
            Case("one device", {"model": SMALL, "layout": (1, 1, 1), "batch": 4}),
            Case("nodes of six", {"model": (36, 3072, 8192, 1024), "layout": (9, 2, 3), "batch": 45, "node": 6}),
            Case("nodes of sixteen", {"model": MIDDLING, "layout": (10, 2, 8), "batch": 70, "node": 16}, hidden=True),
        ),
        inputs=_draw_layout,
        run=calls.step_parts,
        expect=_expect_parts,
        compare=close,
        first_hint="Of each part: how many bytes or FLOPs has one device, how often in a step, and over which wires?",
        hint="m = batch / d micro-batches go through L/p layers of a stage. A ring sends 2(t - 1)/t of its bytes. "
        "Gradients go over both wires; a pipeline's activations over the network.",
        uses=("step_parts", "Model", "Machine", "Layout"),
        snippet="step_parts(Model(*model.tolist()), Machine(*rates.tolist(), node), Layout(*layout.tolist()), batch)",
    ),
    Check(
        name="choose_layout",
        title="The best layout",
        points=4,
        cases=(
            Case("a model that fits anywhere", {"model": SMALL, "devices": 16, "batch": 64}),
            Case("a model that must be cut", {"model": LARGE, "devices": 128, "batch": 256}),
            Case("little memory", {"model": MIDDLING, "devices": 64, "batch": 128, "memory_gb": 24}),
            Case("fewer sequences than devices", {"model": MIDDLING, "devices": 64, "batch": 16}),
            Case(
                "far fewer sequences than stages",
                {"model": (40, 5115, 13824, 8192), "devices": 40, "batch": 2, "memory_gb": 24},
            ),
            Case("nothing fits", {"model": LARGE, "devices": 8, "batch": 8}),
            Case(
                "twelve devices, nodes of six", {"model": (36, 3072, 8192, 2048), "devices": 12, "batch": 12, "node": 6}
            ),
            Case(
                "a prime number of layers, an odd width",
                {"model": (29, 5115, 13824, 2048), "devices": 58, "batch": 232, "memory_gb": 40},
            ),
            Case("one device", {"model": (12, 768, 2048, 512), "devices": 1, "batch": 2}),
            Case(
                "memory that is just enough",
                {"model": (8, 1024, 4096, 1024), "devices": 1, "batch": 2, "memory_bytes": FULL},
            ),
            Case("memory for the only layout that divides", ONLY | {"spare": SLACK}),
            Case("a little less than the only layout needs", ONLY | {"spare": -SLACK}),
            Case("no layout divides nodes and a half", {"model": (8, 1024, 4096, 1024), "devices": 12, "batch": 8}),
            Case("fewer sequences than a node has devices", {"model": (8, *LARGE[1:]), "devices": 8, "batch": 1}),
            Case("steps of a millisecond", {"model": (8, 1024, 4096, 1024), "devices": 8, "batch": 1}),
            Case("fewer devices than a node has", {"model": SMALL, "devices": 4, "batch": 3}),
            Case(
                "a large node for tensors",
                {"model": (4, 1024, 4096, 1024), "devices": 64, "node": 16, "batch": 1},
            ),
            Case(
                "a stage for each of many layers",
                {"model": (96, 1024, 4096, 1024), "devices": 96, "node": 1, "batch": 1},
            ),
            Case(
                "large nodes, many copies",
                {"model": (7, 2304, 6144, 2048), "devices": 648, "node": 18, "batch": 36},
                hidden=True,
            ),
            Case("a large cluster", {"model": LARGE, "devices": 480, "batch": 240, "memory_gb": 96}, hidden=True),
        ),
        inputs=_draw_cluster,
        run=calls.choose_layout,
        expect=_expect_best,
        compare=_compare_layouts,
        first_hint="Which layouts are possible at all, which of them fit, and which of those takes least?",
        hint="Go through all t and p that divide evenly; d follows from them. Keep the fastest of those whose states "
        "and activations together are within memory_bytes.",
        uses=("choose_layout", "step_parts", "Model", "Machine", "Layout"),
        snippet="best = choose_layout(Model(*model.tolist()), Machine(*rates.tolist(), node), devices, batch)\n"
        "(best.data, best.tensor, best.pipeline) if best else 0",
    ),
)
