"""Compare the speed of a notebook's code with the library's on a GPU. The grader measures the points."""

from __future__ import annotations

from typing import Any

from mlsys_checks.sandboxed.attempt import missing_names
from mlsys_checks.sandboxed.spec import Check
from mlsys_checks.trusted.compare import tolerance
from mlsys_lab.benchmark.timing import compare
from mlsys_lab.errors import InputError
from mlsys_lab.kernels.runtime import triton_interprets

SEED = 20
SAMPLES = 20


def speed_of(check: Check, artifact: Any) -> str:
    """One line on the time of a call compared with the library's; without the GPU it needs, a line that says so.

    Only the calls are timed. Grading also charges the learner for drawing inputs and summing outputs
    (`mlsys_checks.sandboxed.performance.Performance`), so its ratio is lower. Raises `InputError` for a check without
    performance points, interpreted kernels, missing code and a wrong result.
    """
    import torch

    performance = check.performance
    if performance is None:
        raise InputError(f"check {check.name!r} has no points for speed")
    if performance.device == "cuda" and not torch.cuda.is_available():
        return f"{check.title}: speed is not measured here, there is no GPU. No mark is lost by that."
    if performance.device == "cuda" and triton_interprets():
        advice = "start Python without TRITON_INTERPRET=1, run the exported cells and ask again"
        raise InputError("kernels are interpreted in this session, which says nothing about speed", help=advice)
    if (problem := missing_names(check, artifact)) is not None:
        raise InputError(problem.what, got=problem.got or None, expected=problem.expected)
    inputs = performance.make(SEED, performance.device)
    results = performance.call(artifact, *inputs), performance.library(*inputs)
    for got, want in zip(*map(_several, results), strict=True):
        _refuse_wrong(got, want, performance.scale)
    calls = {"yours": lambda: performance.call(artifact, *inputs), "library": lambda: performance.library(*inputs)}
    times = compare(calls, device=performance.device, samples=SAMPLES)
    ratio = times.ratio("library", "yours").p50
    return (
        f"{check.title}: {1e3 * times.timings['yours'].p50_s:.3g} ms, the library "
        f"{1e3 * times.timings['library'].p50_s:.3g} ms: {ratio:.2f} of its speed. "
        f"Points rise from {performance.start:g} to {performance.target:g} of it; grading measures it again."
    )


def _several(result: Any) -> tuple[Any, ...]:
    return result if isinstance(result, tuple) else (result,)


def _refuse_wrong(got: Any, want: Any, scale: float) -> None:
    """Raise `InputError` unless two tensors agree in norm within the grader's tolerance."""
    if (got.shape, got.dtype) != (want.shape, want.dtype):
        raise InputError("the result has another shape or dtype", got=_kind(got), expected=_kind(want))
    off = float((got.double() - want.double()).norm() / want.double().norm())
    allowed = scale * tolerance(str(want.dtype).removeprefix("torch."))
    if not off <= allowed:
        raise InputError("the result is wrong at this size", got=f"{off:.1e} off, as a norm", expected=f"{allowed:.1e}")


def _kind(tensor: Any) -> str:
    return f"{tuple(tensor.shape)}, {tensor.dtype}"
