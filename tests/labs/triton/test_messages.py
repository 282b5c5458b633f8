"""What lab 04's checks say is wrong, beyond the numbers."""

from __future__ import annotations

import pytest

from mlsys_lab.checks.runner import run_check
from tests.labs.harness import kernels_of, labs, module_of

LAB = next(lab for lab in labs() if lab.info.topic == "triton")
WHY = "; slots and pages that no token has filled hold NaN, and 0 · NaN is NaN too"


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ("v = tl.load(v_ptr + k_at, mask=there[:, None], other=0.0)", "v = tl.load(v_ptr + k_at)", True),
        ("tl.load(table_ptr + sequence * most_pages + page)", "sequence * most_pages + page", True),
        ('scores = tl.where(there[None, :], scores, -float("inf"))', "scores += 0.0", False),
    ],
)
def test_unfilled_slots_are_named_where_they_were_read(right: str, wrong: str, said: bool) -> None:
    assert LAB.reference.count(right) == 1
    mistake = kernels_of(module_of(LAB.reference.replace(right, wrong), "mistake.ipynb"))
    mismatch = run_check(LAB.checks["decode"], mistake).mismatch
    assert mismatch is not None and mismatch.what.endswith(WHY) == said
