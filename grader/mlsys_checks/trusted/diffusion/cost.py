"""Checks of task 6: work of a DiT, time of a step and of an image. Oracle: matrices listed one by one."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np

from mlsys_checks.sandboxed.diffusion import cost as calls
from mlsys_checks.sandboxed.diffusion.cost import DIT, SOLVERS
from mlsys_checks.sandboxed.spec import Arrays, Case, Check
from mlsys_checks.sandboxed.values import encode_text
from mlsys_checks.trusted.compare import close

XL, SMALL, ODD = (28, 1152, 32, 2, 4, 8), (12, 384, 32, 8, 4, 8), (5, 132, 24, 3, 1, 1)


def work_of(arrays: Arrays, images: int) -> tuple[int, int]:
    """FLOPs of a call, and bytes of its matrices: each (rows, columns) with how many rows it multiplies an image."""
    L, D, size, patch, channels, out_channels = arrays["config"].tolist()
    T = (size // patch) * (size // patch)
    matrices = [(patch * patch * channels, D, T), (D, patch * patch * out_channels, T), (256, D, 1), (D, D, 1)]
    block = [(D, 3 * D, T), (D, D, T), (D, 4 * D, T), (4 * D, D, T), (D, 6 * D, 1)]
    matrices += L * block + [(D, 2 * D, 1)]
    products = sum(rows * columns * times for rows, columns, times in matrices) + L * (T * D * T + T * T * D)
    weights = sum(rows * columns for rows, columns, _ in matrices)
    return 2 * images * products, int(arrays["element_bytes"]) * weights


def seconds_of(arrays: Arrays, images: int) -> tuple[Fraction, Fraction]:
    """Exact seconds of computing and of reading."""
    flops, moved = work_of(arrays, images)
    flops_per_s, bytes_per_s = arrays["rates"].tolist()
    return flops / Fraction(flops_per_s), moved / Fraction(bytes_per_s)


def _draw(rng: np.random.Generator, case: Case) -> Arrays:
    drawn = {
        "config": np.array(case.params.get("config", XL)),
        "element_bytes": np.array(case.params.get("element_bytes", 2)),
    }
    if "images" in case.params:
        drawn["images"] = np.array(case.params["images"])
    return drawn


def _draw_with_machine(rng: np.random.Generator, case: Case) -> Arrays:
    bytes_per_s = round(float(rng.uniform(2e12, 4e12)), -9)
    ridge = case.params.get("ridge", 300) * rng.uniform(0.95, 1.05)
    drawn = _draw(rng, case)
    if tied := case.params.get("tied"):  # a power of 2, so that no rounding breaks the tie
        flops, moved = work_of(drawn, tied)
        return drawn | {"rates": np.array([flops * (1 + case.params.get("off", 0.0) * rng.uniform(1, 3)), moved])}
    return drawn | {"rates": np.array([round(bytes_per_s * ridge, -9), bytes_per_s])}


def _draw_image(rng: np.random.Generator, case: Case) -> Arrays:
    p = case.params
    return _draw_with_machine(rng, case) | {
        "steps": np.array(p["steps"]),
        "solver": np.array(SOLVERS.index(p["solver"])),
        "guided": np.array(p.get("guided", False)),
        "requests": np.array(p.get("requests", 1)),
    }


def _expect_work(arrays: Arrays) -> Arrays:
    flops, moved = work_of(arrays, int(arrays["images"]))
    return {"FLOPs": np.array(flops), "bytes": np.array(moved)}


def _expect_step(arrays: Arrays) -> Arrays:
    compute, memory = seconds_of(arrays, int(arrays["images"]))
    bound = "compute" if compute > memory else "memory"
    return {"seconds": np.array(float(max(compute, memory))), "bound": encode_text(bound)}


def _expect_batch(arrays: Arrays) -> Arrays:
    compute, memory = seconds_of(arrays, 1)
    return {"images": np.array(memory // compute + 1)}


def _expect_image(arrays: Arrays) -> Arrays:
    images = int(arrays["requests"]) * (1 + int(arrays["guided"]))
    evaluations = {"ddim": 1, "heun": 2}[SOLVERS[int(arrays["solver"])]] * int(arrays["steps"])
    last = int(SOLVERS[int(arrays["solver"])] == "heun")
    return {"seconds": np.array(float((evaluations - last) * max(seconds_of(arrays, images))))}


def _code(call: str) -> Callable[[Arrays], str]:
    """A check's `describe`: the case's sizes and machine, and a call of them."""

    def describe(arrays: Arrays) -> str:
        sizes = ", ".join(f"{name}={value}" for name, value in zip(DIT, arrays["config"].tolist(), strict=True))
        numbers = {name: array.item() for name, array in arrays.items() if not array.ndim}
        named = numbers | {"solver": SOLVERS[numbers["solver"]]} if "solver" in numbers else numbers
        machine = "machine = Machine({!r}, {!r})\n".format(*arrays["rates"].tolist()) if "rates" in arrays else ""
        return f"config = DiT({sizes})\n{machine}{call.format(**named)}"

    return describe


CHECKS = (
    Check(
        name="dit_work",
        title="FLOPs and bytes of a call",
        points=4,
        cases=(
            Case("DiT-XL/2, one image", {"images": 1}),
            Case("DiT-S/8, three images", {"config": SMALL, "images": 3}),
            Case("numbers of four bytes", {"config": ODD, "images": 2, "element_bytes": 4}),
            Case("512 pixels", {"config": (28, 1152, 64, 2, 4, 8), "images": 2}),
            Case("one patch", {"config": (2, 64, 8, 8, 3, 3), "images": 5}),
            Case("many images", {"config": (7, 200, 20, 4, 3, 6), "images": 9, "element_bytes": 1}, hidden=True),
            Case("more than a float counts", {"config": ODD, "images": 3**20}, hidden=True),
        ),
        inputs=_draw,
        run=calls.dit_work,
        expect=_expect_work,
        compare=close,
        first_hint="Which products are made for each token, which for each image, and which have no weights?",
        hint="Add up multiply-adds once an image, once a token, and scores and sums by tokens squared; FLOPs are twice "
        "these. Weights are read once, whatever the batch is.",
        uses=("DiT", "dit_work"),
        describe=_code("dit_work(config, {images}, {element_bytes})"),
    ),
    Check(
        name="predict_step",
        title="Seconds of a call, and what binds",
        points=2,
        cases=(
            Case("one image", {"images": 1}),
            Case("two images", {"images": 2}),
            Case("few tokens", {"config": SMALL, "images": 4}),
            Case("numbers of four bytes", {"config": SMALL, "images": 90, "element_bytes": 4}),
            Case("numbers of one byte", {"config": SMALL, "images": 3, "element_bytes": 1}),
            Case("a tie", {"config": ODD, "images": 4, "tied": 4}),
            Case("hardly bound by compute", {"config": SMALL, "images": 4, "tied": 4, "off": -1e-4}),
            Case("nearly bound by compute", {"config": SMALL, "images": 4, "tied": 4, "off": 1e-4}, hidden=True),
            Case("a slow machine", {"config": ODD, "images": 1, "ridge": 20}, hidden=True),
            Case("numbers of eight bytes", {"config": SMALL, "images": 9, "element_bytes": 8}, hidden=True),
        ),
        inputs=_draw_with_machine,
        run=calls.predict_step,
        expect=_expect_step,
        compare=close,
        first_hint="Is it the slower of the two, and does its name go with it?",
        hint="FLOPs over FLOP/s, bytes over bytes a second; the larger one counts.",
        uses=("DiT", "Machine", "dit_work", "predict_step"),
        describe=_code("predict_step(config, {images}, machine, {element_bytes})"),
    ),
    Check(
        name="least_batch",
        title="From when on compute binds",
        points=2,
        cases=(
            Case("DiT-XL/2", {}),
            Case("few tokens", {"config": SMALL}),
            Case("one image is enough", {"config": ODD, "ridge": 20}),
            Case("a tie", {"config": SMALL, "tied": 4}),
            Case("numbers of four bytes", {"config": SMALL, "element_bytes": 4}),
            Case("numbers of one byte", {"config": SMALL, "element_bytes": 1}),
            Case("one image is hardly enough", {"config": SMALL, "tied": 1, "off": -1e-4}, hidden=True),
            Case("four are nearly enough", {"config": SMALL, "tied": 4, "off": 1e-4}, hidden=True),
            Case("one patch, far from bound", {"config": (3, 64, 8, 8, 3, 3), "ridge": 12_000}, hidden=True),
            Case("numbers of eight bytes", {"config": SMALL, "element_bytes": 8}, hidden=True),
        ),
        inputs=_draw_with_machine,
        run=calls.least_batch,
        expect=_expect_batch,
        compare=close,
        first_hint="Try one image fewer and one more: which of them is bound by compute?",
        hint="Count up from one image until predict_step says compute, or divide the two times of one image.",
        uses=("DiT", "Machine", "least_batch", "predict_step"),
        describe=_code("least_batch(config, machine, {element_bytes})"),
    ),
    Check(
        name="predict_image",
        title="Seconds of images drawn together",
        points=3,
        cases=(
            Case("DDIM, guided", {"steps": 50, "solver": "ddim", "guided": True}),
            Case("Heun", {"steps": 18, "solver": "heun"}),
            Case("DDIM, a crowd", {"steps": 20, "solver": "ddim", "requests": 7}),
            Case("few tokens, guided", {"config": SMALL, "steps": 10, "solver": "heun", "guided": True, "requests": 5}),
            Case("one step", {"steps": 1, "solver": "heun", "element_bytes": 4}),
            Case("DDIM, one image", {"steps": 30, "solver": "ddim"}),
            Case("numbers of one byte", {"config": SMALL, "steps": 7, "solver": "heun", "element_bytes": 1}),
            Case("a crowd, guided", {"steps": 9, "solver": "ddim", "guided": True, "requests": 33}, hidden=True),
            Case("eight bytes", {"config": SMALL, "steps": 12, "solver": "heun", "element_bytes": 8}, hidden=True),
        ),
        inputs=_draw_image,
        run=calls.predict_image,
        expect=_expect_image,
        compare=close,
        first_hint="How many calls are made, and of how many images is each?",
        hint="DDIM calls once a step; Heun twice, but once in the last. Guidance doubles the images of a call, not "
        "the calls.",
        uses=("DiT", "Machine", "predict_image_s", "predict_step"),
        describe=_code('predict_image_s(config, machine, {steps}, "{solver}", {guided}, {requests}, {element_bytes})'),
    ),
)
