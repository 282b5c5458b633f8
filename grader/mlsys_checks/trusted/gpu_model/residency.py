"""Task 5: blocks and warps on a multiprocessor, bytes in flight. Oracles: blocks added one by one, warps counted up."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from mlsys_checks.sandboxed.gpu_model import memory as calls
from mlsys_checks.sandboxed.spec import Arrays, Case, Check
from mlsys_checks.sandboxed.values import encode_text
from mlsys_checks.trusted.answers import agree, likely
from mlsys_lab.hardware import device

WARP, SCHEDULERS = 32, 4
REGISTERS_AT_ONCE, SHARED_AT_ONCE, OWN_SHARED = 256, 128, 1024
FIELDS = ("warps", "blocks", "registers", "shared_bytes")


def _unit(name: str) -> np.ndarray:
    """A multiprocessor of the device table: warps, blocks, registers, bytes of shared memory."""
    row = device(name)
    warps, blocks, registers, shared = (
        row.warps_per_unit,
        row.blocks_per_unit,
        row.register_bytes_per_unit,
        row.shared_bytes_per_unit,
    )
    assert warps and blocks and registers and shared
    return np.array([warps, blocks, registers // 4, shared])


def _held_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    kernels = [list(kernel) for kernel in case.params.get("kernels", ())]
    for _ in range(case.params.get("drawn", 0)):
        kernels.append([int(rng.integers(1, 1025)), int(rng.integers(16, 256)), int(rng.integers(0, 120_000))])
    made_up = case.params.get("unit")
    return {"unit": np.array(made_up) if made_up else _unit(case.params["device"]), "kernels": np.array(kernels)}


def _held_expect(arrays: Arrays) -> Arrays:
    expected = {}
    for threads, registers, shared in arrays["kernels"].tolist():
        blocks, warps, limit = _fill(arrays["unit"].tolist(), threads, registers, shared)
        name = calls.held_call((threads, registers, shared))
        expected[f"blocks of {name}"] = np.array(blocks)
        expected[f"warps of {name}"] = np.array(blocks * warps)
        expected |= likely(f"warps of {name}", {"these are the warps of one block": warps})
        expected[f"limit of {name}"] = encode_text(limit)
    return expected


def _fill(unit: list[int], threads: int, registers: int, shared: int) -> tuple[int, int, str]:
    """Put blocks in until one does not fit: how many there are, warps of each, and the first thing that ran out."""
    at_most_warps, at_most_blocks, all_registers, all_shared = unit
    warps = sum(1 for _ in range(0, threads, WARP))
    each, own = 0, 0
    while each < registers * WARP:
        each += REGISTERS_AT_ONCE
    while own < shared + OWN_SHARED:
        own += SHARED_AT_ONCE
    quarters, blocks = [all_registers // SCHEDULERS] * SCHEDULERS, 0
    while True:
        left = quarters.copy()
        for _ in range(warps):
            widest = left.index(max(left))
            left[widest] -= each
        ran_out = {
            "blocks": blocks + 1 > at_most_blocks,
            "warps": (blocks + 1) * warps > at_most_warps,
            "registers": min(left) < 0,
            "shared memory": (blocks + 1) * own > all_shared,
        }
        if any(ran_out.values()):
            return blocks, warps, next(name for name, out in ran_out.items() if out)
        quarters, blocks = left, blocks + 1


def _held_shown(arrays: Arrays) -> str:
    fields = ", ".join(f"{name}={value}" for name, value in zip(FIELDS, arrays["unit"].tolist(), strict=True))
    return "\n".join([f"unit = Unit({fields})", *(calls.held_call(kernel) for kernel in arrays["kernels"].tolist())])


def _flight_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    """A memory, and multiprocessors whose lanes wait for so many bytes and loads.

    Of no device a whole number of warps suffices but for rounding: whoever forgives the dust of a division is right
    too, up to a thousandth of a warp.
    """
    units, waiting = 128, [[8, 2], [1, 6]] if case.hidden else [[4, 1], [16, 1], [4, 4], [2, 3]]
    if "exceeds" in case.params:  # a whole number of warps just suffices, or fails by half a byte
        bandwidth, latency_s = 2.0**41, 2.0**-21 * (1 + case.params["exceeds"])
    elif case.params.get("slow"):  # a few bytes, and a part of one
        bandwidth, latency_s, units = rng.uniform(1e7, 9e7), rng.uniform(2e-7, 9e-7), 2
    elif case.params.get("no latency"):
        bandwidth, latency_s = 2.0**41, 0.0
    else:
        row = device(case.params["device"])
        bandwidth, units = row.memory_bandwidth_bytes_per_s, row.units
        latency_s = float(f"{rng.uniform(2e-7, 9e-7):.3g}")
    rows = [[units, *each] for each in waiting]
    if case.params.get("least"):  # one number after the other
        rows = [[units, 4, 2], [1, 4, 2], [units, 1, 2], [units, 4, 1]]
    return {
        "bytes_per_s": np.array(float(bandwidth)),
        "latency_s": np.array(latency_s),
        "waiting": np.array(rows),
    }


def _flight_expect(arrays: Arrays) -> Arrays:
    """Add warp after warp to every multiprocessor until enough bytes are under way."""
    bandwidth, latency = Fraction(float(arrays["bytes_per_s"])), Fraction(float(arrays["latency_s"]))
    wanted = bandwidth * latency
    expected = {"bytes_in_flight": np.array(float(wanted))}
    if latency:
        expected |= likely("bytes_in_flight", {"the bandwidth was divided by the latency": float(bandwidth / latency)})
    for units, lane_bytes, loads in arrays["waiting"].tolist():
        warps = 0
        while warps * WARP * lane_bytes * loads * units < wanted:
            warps += 1
        name = calls.needed_call(units, lane_bytes, loads)
        expected[name] = np.array(warps)
        whole_chip = -(-wanted // (WARP * lane_bytes * loads))
        expected |= likely(
            name,
            {
                "a part of a warp takes a whole one": warps - 1,
                "these are the warps of the whole device": int(whole_chip),
                "these are threads": -(-wanted // (lane_bytes * loads * units)),
                "this is with one load at a time": -(-wanted // (WARP * lane_bytes * units)),
            },
        )
    return expected


def _flight_shown(arrays: Arrays) -> str:
    named = [f"{name} = {arrays[name].item()!r}" for name in ("bytes_per_s", "latency_s")]
    return "\n".join(
        [
            *named,
            "bytes_in_flight(bytes_per_s, latency_s)",
            *(calls.needed_call(*row) for row in arrays["waiting"].tolist()),
        ]
    )


CHECKS = (
    Check(
        name="occupancy",
        title="Blocks and warps that a multiprocessor holds",
        points=10,
        cases=(
            Case(
                "places for blocks and for warps",
                {"device": "H100", "kernels": [(32, 16, 0), (256, 16, 0), (200, 16, 0)]},
            ),
            Case("registers", {"device": "H100", "kernels": [(256, 128, 0), (1024, 40, 0), (96, 33, 0), (96, 40, 0)]}),
            Case("registers of a warp with few threads", {"device": "H100", "kernels": [(40, 64, 0), (100, 80, 0)]}),
            Case(
                "shared memory",
                {"device": "H100", "kernels": [(128, 32, 100 * 1024), (128, 32, 13_500), (64, 16, 12_700)]},
            ),
            Case(
                "shared memory, to the byte",
                {"device": "H100", "kernels": [(64, 16, 18 * 1024), (64, 16, 18 * 1024 + 1), (64, 16, 20_097)]},
            ),
            Case("two limits at once", {"device": "RTX 3090", "kernels": [(1024, 37, 8192), (48, 40, 0), (96, 40, 0)]}),
            Case(
                "a smaller unit",
                {"unit": (24, 16, 40 * 1024, 12 * 1024), "kernels": [(32, 16, 0), (64, 120, 100), (128, 16, 0)]},
            ),
            Case(
                "a block that does not fit, for one reason or for two",
                {"device": "H100", "kernels": [(1024, 128, 0), (64, 32, 240_000), (1024, 128, 240_000)]},
            ),
            Case(
                "each number in turn at its least",
                {
                    "unit": (24, 16, 4 * 1024, 12 * 1024),
                    "kernels": [(100, 8, 9000), (1, 8, 9000), (100, 1, 9000), (100, 8, 0), (100, 1, 0), (1, 1, 0)],
                },
                hidden=True,
            ),
            Case("any", {"device": "H100", "drawn": 8}, hidden=True),
            Case("another device", {"device": "RTX 4090", "drawn": 8}, hidden=True),
        ),
        inputs=_held_inputs,
        run=calls.held,
        describe=_held_shown,
        expect=_held_expect,
        compare=agree,
        first_hint="Fill one multiprocessor on paper: what does one block take of each of the four, and which runs out "
        "first?",
        hint="Work out how many blocks each of the four allows; the least of these counts. What a block takes is "
        "rounded up, step by step as the task says; how often it fits is rounded down, of registers twice.",
        uses=("Unit", "Held", "held"),
    ),
    Check(
        name="in_flight",
        title="Bytes in flight, and the warps that it takes",
        points=6,
        cases=(
            Case("an H100", {"device": "H100"}),
            Case("just enough", {"exceeds": 0.0}),
            Case("half a byte more than that, of each multiprocessor", {"exceeds": 2.0**-14}),
            Case("no latency", {"no latency": True}),
            Case("another device", {"device": "A100 80GB"}, hidden=True),
            Case("a slow memory", {"slow": True}, hidden=True),
            Case("each number in turn at its least", {"exceeds": 2.0**-14, "least": True}, hidden=True),
        ),
        inputs=_flight_inputs,
        run=calls.in_flight,
        describe=_flight_shown,
        expect=_flight_expect,
        compare=agree,
        first_hint="Little's law: how much must be under way so that the memory is never idle for a latency?",
        hint="How many bytes does the whole device owe, and how many each of its multiprocessors? How many has one "
        "warp under way, with all its lanes and loads?",
        uses=("bytes_in_flight", "warps_needed"),
    ),
)
