"""Machine-made mutants of each lab: its checks kill no fewer of them than they did when the lab was proved."""

from __future__ import annotations

import pytest

from mlsys_grader.proving.mutation.tally import tally_mutations
from tests.labs.harness import labs

SEED, SAMPLE = 20, 300
FLOORS = {"serving": 0.91, "quantization": 0.95, "capstone": 0.95}
"""Kill rate that a lab's checks reach at least: that of the sample when the lab was proved, less one percentage point.

What is missing to 1 are mostly mutants that are right after all, such as a sum in another order.
"""
LOWEST = 0.86
"""Floor of a lab that has not been proved on this sample yet: the lowest rate of any lab on record, less one point."""


@pytest.mark.weekly
@pytest.mark.filterwarnings("ignore::SyntaxWarning")  # a mistake may well look like one
@pytest.mark.parametrize("lab", labs(), ids=lambda lab: lab.info.topic)
def test_the_kill_rate_holds_the_labs_floor(lab) -> None:
    tally = tally_mutations(lab, lab.checks, sample=SAMPLE, seed=SEED, workers=2)
    assert not tally.errors
    assert tally.kill_rate >= FLOORS.get(lab.info.topic, LOWEST), "\n".join([tally.summary, *tally.lines])
