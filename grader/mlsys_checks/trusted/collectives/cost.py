"""Checks of task 7: seconds of four forms of all-reduce, and the fastest. Oracle: every message of every round."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from mlsys_checks.sandboxed import collectives as calls
from mlsys_checks.sandboxed.spec import Arrays, Case, Check, Mismatch
from mlsys_checks.sandboxed.values import decode_text, encode_text
from mlsys_checks.trusted.answers import agree
from mlsys_checks.trusted.compare import close

Round = list[tuple[int, int]]
"""Source and destination of messages that travel at once."""
TIE = 1e-9
"""Share of its time by which a form may be behind the fastest one and still count as equally fast: rounding decides."""
OR = " or "


def _round(value: float) -> np.ndarray:
    return np.array(float(f"{value:.2g}"))


def _change_each(call: Mapping[str, Any], *changes: Mapping[str, Any]) -> Arrays:
    """A call, then again with the numbers of each of the changes, and all others as they were."""
    every = [call, *({**call, **change} for change in changes)]
    return {name: np.array([one[name] for one in every]) for name in call}


def _draw_wire(rng: np.random.Generator, case: Case) -> Arrays:
    call = {
        "p": np.array(case.params["p"]),
        "alpha": np.array(case.params.get("alpha", _round(rng.uniform(1e-6, 9e-6)))),
        "beta": _round(rng.uniform(1e-12, 1e-10)),
    }
    if "another_p" not in case.params:
        return call
    return _change_each(
        call, {"p": case.params["another_p"]}, {"alpha": 3 * call["alpha"]}, {"beta": 3 * call["beta"]}, {"alpha": 0.0}
    )


def _expect_crossover(arrays: Arrays) -> Arrays:
    return {f"bytes{which}": _cross(given) for which, given in calls.split_calls(arrays)}


def _cross(given: Arrays) -> np.ndarray:
    """Where two straight lines in bytes meet, from their exact values at 0 and 1 byte."""
    p, alpha, beta = int(given["p"]), Fraction(float(given["alpha"])), Fraction(float(given["beta"]))
    rounds = 2 * (p - 1).bit_length()

    def gain(n: int) -> Fraction:
        return rounds * (alpha + n * beta) - 2 * (p - 1) * (alpha + Fraction(n, p) * beta)

    return np.array(float(-gain(0) / (gain(1) - gain(0))))


def _draw_islands(rng: np.random.Generator, case: Case) -> Arrays:
    """Wires of which the one across is slower, unless the case says otherwise; a size in bytes."""
    inside, across = rng.uniform(0.5e-6, 2e-6), rng.uniform(3e-6, 9e-6)
    fast, slow = rng.uniform(1e-12, 4e-12), rng.uniform(2e-11, 9e-11)
    if case.params.get("turned"):
        inside, across, fast, slow = across, inside, slow, fast
    if case.params.get("crossed"):
        inside, across = across, inside
    costs = {"inside_alpha": inside, "inside_beta": fast, "across_alpha": across, "across_beta": slow}
    rounded = {name: _round(cost) for name, cost in costs.items()}
    return {name: np.array(case.params[name]) for name in ("p", "size_bytes", "island")} | rounded


def _draw_changes(rng: np.random.Generator, case: Case) -> Arrays:
    """A call, and again with each number another, or the least that it can be.

    At first the hierarchy is the fastest, but only just: with either latency tripled, say, it no longer is.
    """
    p, island = case.params["p"], case.params["island"]
    costs = {f"{where}_alpha": _round(rng.uniform(1e-6, 2e-6)) for where in ("inside", "across")}
    costs |= {"inside_beta": _round(rng.uniform(1e-12, 4e-12)), "across_beta": _round(rng.uniform(2e-11, 9e-11))}
    latency_s = costs["inside_alpha"] + costs["across_alpha"]
    saved_s = (costs["across_beta"] - costs["inside_beta"]) * (island - 1) * (p // island - 1) / p
    call = {"p": p, "island": island, "size_bytes": np.ceil(1.3 * latency_s / saved_s)} | costs
    others = [{"p": 2 * p}, {"island": 2 * island}, {"inside_beta": call["across_beta"]}]
    others += [{name: 3 * call[name]} for name in ("size_bytes", "inside_alpha", "across_alpha", "across_beta")]
    least = [{"p": island}, {"island": 1}, *({name: 0.0} for name in ("size_bytes", *costs))]
    return _change_each(call, *others, *least)


def _draw_many(rng: np.random.Generator, case: Case) -> Arrays:
    """Calls about any wires, with sizes near those at which latency takes as long as bytes."""
    count = case.params["calls"]
    p = 2 ** rng.integers(2, 6, count)
    costs = {f"{where}_alpha": 10 ** rng.uniform(-6.5, -4.5, count) for where in ("inside", "across")}
    costs |= {f"{where}_beta": 10 ** rng.uniform(-12, -9, count) for where in ("inside", "across")}
    size_bytes = costs["across_alpha"] / costs["across_beta"] * 10 ** rng.uniform(-1, 2, count)
    return {"p": p, "size_bytes": np.ceil(size_bytes) // 2 * 2 + 1, "island": 2 ** rng.integers(1, np.log2(p))} | costs


DRAWS = {"one call": _draw_islands, "changes": _draw_changes, "many calls": _draw_many}


def _draw_choice(rng: np.random.Generator, case: Case) -> Arrays:
    return DRAWS[case.params.get("draw", "one call")](rng, case)


def _expect_choice(arrays: Arrays) -> Arrays:
    return {
        f"{name}{which}": answer
        for which, given in calls.split_calls(arrays)
        for name, answer in _expect_call(given).items()
    }


def _expect_call(given: Arrays) -> Arrays:
    """Seconds of each form, and the names of all that are equally fast."""
    p, island, size = int(given["p"]), int(given["island"]), float(given["size_bytes"])
    inside, across = (
        tuple(float(given[f"{where}_{part}"]) for part in ("alpha", "beta")) for where in ("inside", "across")
    )

    def message_s(source: int, destination: int, share: float) -> float:
        alpha, beta = inside if source // island == destination // island else across
        return alpha + share * size * beta

    def total_s(rounds: list[tuple[Round, float]]) -> float:
        return sum(max(message_s(a, b, share) for a, b in one) for one, share in rounds)

    distances = [1 << k for k in range(p.bit_length() - 1)]
    tree = [([(v, v + d) for v in range(d)], 1.0) for d in distances]
    pairs = [([(r, r ^ d) for r in range(p)], d / p) for d in distances]
    ring: list[tuple[Round, float]] = [([(r, (r + 1) % p) for r in range(p)], 1 / p)] * (2 * p - 2)
    within: Round = [(r, r - r % island + (r + 1) % island) for r in range(p)]
    between: Round = [(r, (r + island) % p) for r in range(p)]
    islands = [(within, 1 / island)] * (2 * island - 2) + [(between, 1 / p)] * (2 * (p // island) - 2)
    rounds = {"tree": tree + tree, "ring": ring, "halving_doubling": pairs + pairs, "hierarchical": islands}
    times_s = {name: total_s(one) for name, one in rounds.items()}
    fastest = [name for name, time_s in times_s.items() if time_s <= min(times_s.values()) * (1 + TIE)]
    seconds = {name: np.array(time_s, np.float64) for name, time_s in times_s.items()}
    return seconds | {"choose": encode_text(OR.join(fastest))}


def _compare_choice(got: Arrays, expected: Arrays) -> Mismatch | None:
    """As `agree`, but of several forms that are equally fast any may be chosen."""
    chosen = {
        name: got[name]
        for name, fastest in expected.items()
        if name.startswith("choose") and name in got and decode_text(got[name]) in decode_text(fastest).split(OR)
    }
    return agree(got, expected | chosen)


def _islands(p: int, island: int, size_bytes: float, **others: object) -> dict[str, object]:
    return {"p": p, "island": island, "size_bytes": size_bytes, **others}


CHECKS = (
    Check(
        name="crossover",
        title="From which size on a ring is faster than trees",
        points=4,
        cases=(
            Case("sixteen ranks", {"p": 16}),
            Case("six ranks", {"p": 6}),
            Case("two ranks", {"p": 2}),
            Case("four ranks", {"p": 4}),
            Case("a wire without latency", {"p": 8, "alpha": 0.0}),
            Case("many ranks", {"p": 513}, hidden=True),
            Case("each number changed in turn", {"p": 5, "another_p": 7}, hidden=True),
        ),
        inputs=_draw_wire,
        run=calls.crossover,
        expect=_expect_crossover,
        compare=close,
        first_hint="Write both times as S·α + k·n·β. Where are they equal?",
        hint="The ring has p - 1 - ⌈log2 p⌉ more steps each way, and ⌈log2 p⌉ - (p - 1)/p times n bytes less: n is "
        "where the one costs what the other saves.",
        uses=("Wire", "crossover_bytes"),
        snippet="crossover_bytes(p, Wire(alpha, beta))",
    ),
    Check(
        name="choose",
        title="Seconds of four forms, and the fastest",
        points=6,
        cases=(
            Case("two islands of four, few bytes", _islands(8, 4, 1e3)),
            Case("two islands of four, many bytes", _islands(8, 4, 1e9 + 1)),
            Case("the same bytes, slow wires inside", _islands(8, 4, 1e9 + 1, turned=True)),
            Case("slow wires inside four islands of two", _islands(8, 2, 2e5, turned=True)),
            Case("one island", _islands(16, 16, 1e6)),
            Case("islands of one", _islands(4, 1, 5e4, turned=True)),
            Case("a fast network between slow islands", _islands(16, 4, 3e6, turned=True)),
            Case("bytes that do not divide", _islands(8, 2, 1001.0)),
            Case("one rank", _islands(1, 1, 4e3)),
            Case("no bytes", _islands(8, 4, 0.0)),
            Case("a network of low latency and little bandwidth", _islands(64, 4, 8e5, crossed=True)),
            Case("that network, many bytes", _islands(8, 4, 3e7, crossed=True)),
            Case("many islands", _islands(128, 8, 4e7), hidden=True),
            Case("one large island, many bytes", _islands(32, 32, 3e7), hidden=True),
            Case("each number changed in turn", {"p": 16, "island": 4, "draw": "changes"}, hidden=True),
            Case("wires of all kinds", {"calls": 24, "draw": "many calls"}, hidden=True),
        ),
        inputs=_draw_choice,
        run=calls.choose,
        expect=_expect_choice,
        compare=_compare_choice,
        first_hint="Which form is wrong, and in which of the cases? With one island all of its wires are inside.",
        hint="List the distances 1, 2, 4 … p/2 and the wire of each: across from d = island on. Tree: n bytes at "
        "each; halving and doubling: n·d/p. The ring pays its slowest wire in all of its 2(p - 1) steps.",
        uses=("Wire", "predict", "choose"),
        snippet="predict(p, size_bytes, island, Wire(inside_alpha, inside_beta), Wire(across_alpha, across_beta))",
    ),
)
