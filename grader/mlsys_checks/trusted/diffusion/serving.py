"""Check of task 7: requests that share calls. Oracle: slots over time, and one guided call for what is under way."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from mlsys_checks.sandboxed.diffusion import denoisers as calls
from mlsys_checks.sandboxed.diffusion.denoisers import NEXT
from mlsys_checks.sandboxed.spec import Arrays, Case, Check, Mismatch
from mlsys_checks.trusted.compare import close
from mlsys_checks.trusted.diffusion.guidance import guided
from mlsys_checks.trusted.diffusion.oracle import (
    CODE_OF_NEXT,
    SMALL,
    Ages,
    Aging,
    column,
    draw_denoiser,
    draw_grid,
    null_of,
)


def _draw_requests(rng: np.random.Generator, case: Case) -> Arrays:
    steps = np.array(case.params["steps"])
    shape, dtype = case.params.get("shape", (2,)), case.params.get("dtype", "float64")
    grids = []
    for count in steps.tolist():
        grid = draw_grid(rng, case, count)
        if case.params.get("first"):
            grid[0] = case.params["first"]
        grid[-1] *= rng.random() < 0.3
        grids.append(grid)
    asked = []
    for grid in grids:
        high, low = grid[np.sort(rng.integers(len(grid) - 1, size=2))]  # levels, which single precision would move
        asked.append((rng.integers(12, 32) / 8, low, high))  # a scale that it holds: the text asks for no more of them
    guidance = np.array(asked).reshape(-1, 3)
    for i, kind in enumerate(case.params.get("kinds", "")):
        scale, always = guidance[i, 0], (0.0, math.inf)
        guidance[i] = {
            "-": (1.0, *always),
            "0": (0.0, *always),
            "+": (scale, *always),
            "i": guidance[i],
            "n": (scale, 0.0, 0.0),
        }[kind]
    drawn = draw_denoiser(rng, replace(case, params={**case.params, "shape": (len(steps), *shape), "dtype": dtype}))
    noise = rng.standard_normal((len(steps), *shape)).astype(dtype)
    if case.params.get("unnamed"):
        drawn["label"][0] = null_of(drawn)
    if case.params.get("zeros"):
        drawn["label"][:] = 0
    if case.params.get("twice"):  # the last is the first, as one object
        drawn["twice"] = np.array(True)
        for values in (grids, guidance, drawn["label"], noise):
            values[-1] = values[0]
    return {
        **drawn,
        "noise": noise,
        "grids": np.concatenate([*grids, np.empty(0)]),
        "steps": steps.astype(np.int64),
        "guidance": guidance,
        "slots": np.array(case.params["slots"]),
    }


def _expect_images(arrays: Arrays) -> Arrays:
    """Each request begins with the first call at which a slot is free; all under way go on with every call."""
    denoise, steps, slots = Aging(arrays), arrays["steps"].tolist(), int(arrays["slots"])
    ends: list[int] = []
    starts = []
    for i, count in enumerate(steps):
        starts.append(sorted(ends)[i - slots] if i >= slots else 0)
        ends.append(starts[i] + count)
    first = np.concatenate([[0], np.cumsum(arrays["steps"] + 1)])[:-1]
    noise = arrays["noise"].astype(np.float64)
    images = column(arrays["grids"][first], noise) * noise if steps else noise
    for call in range(max(ends, default=0)):
        now = np.array([i for i in range(len(steps)) if starts[i] <= call < ends[i]])
        at = np.array([first[i] + call - starts[i] for i in now])
        sigma, sigma_next = arrays["grids"][at], arrays["grids"][at + 1]
        scale, low, high = arrays["guidance"][now].T
        asked = {"sigma": sigma, "scale": scale, "low": low, "high": high, "label": arrays["label"][now]}
        x = images[now]
        denoised = guided(denoise, x, asked)
        images[now] = denoised + column(sigma_next / sigma, x) * (x - denoised)
    drawn = {f"image {i}": np.array(image, arrays["noise"].dtype) for i, image in enumerate(images)}
    return drawn | denoise.next_answer()


def _compare_requests(got: Arrays, expected: Arrays) -> Mismatch | None:
    """`close` by the size of all images together: one that is a number may be near 0, by cancellation."""
    return close(got, expected, scale=1e12) or close(_joined(got), _joined(expected))


def _joined(arrays: Arrays) -> Arrays:
    images = [image for name, image in arrays.items() if name != NEXT]
    return {"images": np.array(images), NEXT: arrays[NEXT]}


def _code_of_requests(arrays: Arrays) -> str:
    twice = "\nrequests[-1] = requests[0]" if "twice" in arrays else ""
    return f"""denoiser = AgingDenoiser(torch.from_numpy(given["centres"]), {float(arrays["spread"])!r})
grids = torch.from_numpy(given["grids"]).split({(arrays["steps"] + 1).tolist()})
asked = zip(torch.from_numpy(given["noise"]), {arrays["label"].tolist()}, grids, given["guidance"].tolist())
requests = [Request(noise, label, grid, *guidance) for noise, label, grid, guidance in asked]{twice}
serve(denoiser, requests, {null_of(arrays)}, {int(arrays["slots"])})
{CODE_OF_NEXT}"""


CHECKS = (
    Check(
        name="serve",
        title="Requests that share calls",
        points=11,
        cases=(
            Case("two of equal length", {"steps": (3, 3), "slots": 2, "kinds": "--"}),
            Case("one alone", {"steps": (4,), "slots": 3, "kinds": "i"}),
            Case("different lengths", {"steps": (2, 5, 3), "slots": 3, "kinds": "-+i"}),
            Case("one slot", {"steps": (2, 3, 1), "slots": 1, "kinds": "+-i"}),
            Case("some must wait", {"steps": (4, 2, 3, 1, 2), "slots": 2, "kinds": "i-+-i"}),
            Case("images of unequal sides", {"steps": (3, 1, 2, 4), "slots": 3, "kinds": "++-i", "shape": (1, 3, 2)}),
            Case("single precision", {"steps": (5, 2, 4), "slots": 2, "kinds": "-ii", "dtype": "float32"}),
            Case("numbers", {"steps": (2, 3, 2, 1, 4), "slots": 2, "kinds": "+-i-i", "shape": (), "dtype": "float32"}),
            Case("scales, ends and classes of 0", {"steps": (3, 2, 4), "slots": 3, "kinds": "0n+", "zeros": True}),
            Case("nobody asks", {"steps": (), "slots": 2}),
            Case("one request twice", {"steps": (3, 2, 4, 3), "slots": 2, "kinds": "i-+i", "twice": True}, hidden=True),
            Case("hardly any noise", {"steps": (4, 2), "slots": 2, "kinds": "+-", "levels": SMALL}, hidden=True),
            Case("levels below 1", {"steps": (3, 2), "slots": 2, "levels": (0.05, 0.9), "first": 1.0}, hidden=True),
            Case("a crowd", {"steps": (2, 3) * 6, "slots": 11, "kinds": "+-" * 6}, hidden=True),
            Case("one of no class", {"steps": (3, 2), "slots": 2, "kinds": "++", "unnamed": True}, hidden=True),
            Case(
                "many",
                {"steps": (7, 3, 9, 1, 4, 4, 12, 2, 5, 1, 6), "slots": 4, "kinds": "i+-ii-+i+-i", "classes": 9},
                hidden=True,
            ),
        ),
        inputs=_draw_requests,
        run=calls.serve,
        partner=Ages,
        expect=_expect_images,
        compare=_compare_requests,
        first_hint="Write down for each call which requests are in it, and at which of their levels each stands.",
        hint="Fill the slots, collect image, level, label, scale and interval of each request, make one call of guide, "
        "step each to its own next level, and let those leave that are at the end.",
        uses=("Request", "guide", "serve"),
        describe=_code_of_requests,
    ),
)
