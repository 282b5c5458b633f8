"""The reference keeps its points where half-precision gradients of one element cancel."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mlsys_checks.trusted.compare import close
from mlsys_grader.proving.draws import try_draws
from mlsys_grader.proving.trials import try_reference
from tests.labs.harness import labs

CANCELS = (5453, 29179)
"""Seeds of draws in which the root mean square of the array allowed for less than the rounding of its terms."""
(LAB,) = (lab for lab in labs() if lab.info.topic == "autograd")
CHECK = replace(LAB.checks["tensor_index"], cases=(LAB.checks["tensor_index"].cases[3],))


@pytest.mark.parametrize("seed", CANCELS)
def test_terms_that_cancel_cost_no_point(seed: int) -> None:
    assert CHECK.cases[0].name == "half precision, long rows"
    by_rms = replace(CHECK, compare=close)
    allowed, refused = (
        next(try_draws([one], [try_reference(LAB)], 1, seed=seed, limit_s=60)) for one in (CHECK, by_rms)
    )
    assert allowed.lost == () and allowed.tolerance_used is not None and allowed.tolerance_used < 0.5
    assert refused.lost != ()
