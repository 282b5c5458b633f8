"""How far a kernel's result may be from float64's: one rule for all kernels that multiply tiles."""

from __future__ import annotations

import torch

from mlsys_checks.trusted.compare import tolerance


def assert_near(got: torch.Tensor, expected: torch.Tensor, *, scale: float = 1.0) -> None:
    """`got` is `expected` where that is infinite, else within `scale` · tolerance(dtype) · (|expected| + mean size)."""
    assert got.shape == expected.shape
    allowed = scale * tolerance(str(got.dtype).removeprefix("torch."))
    got, expected = got.detach().double().cpu(), expected.detach().double().cpu()
    finite = expected.isfinite()
    assert torch.equal(got[~finite], expected[~finite])
    if finite.any():
        size = expected[finite].square().mean().sqrt()
        excess = (got - expected)[finite].abs() / (expected[finite].abs() + size + (size == 0))
        assert float(excess.max()) <= allowed, f"{float(excess.max()):.2g} off, {allowed:.2g} allowed"
