"""Mistakes that a machine makes: a check notices each of a sample, and what is said to be none of them is there.

The sample and the draws are the same in every run; `make prove` tries all mutants of all labs, once a week in CI.
"""

from __future__ import annotations

import pytest

from mlsys_grader.proving.mutation.equivalent import read_equivalent, refuse_stale
from mlsys_grader.proving.mutation.mutants import find_mutants
from mlsys_grader.proving.mutation.tally import tally_mutations
from tests.labs.harness import LabUnderTest, labs

pytestmark = pytest.mark.slow
LABS = {lab.info.topic: lab for lab in labs()}
SEED = 20
SWEPT = {"gpu-model": 40, "cuda": 20, "triton": 20, "transformer-arithmetic": 40, "collectives": 40}
"""Mutants in the sample of each lab of which every survivor has been looked at, fewer where kernels are interpreted."""
EXPLAINED = [lab for lab in LABS.values() if lab.info.topic not in SWEPT and read_equivalent(lab.folder)]
"""Labs without a sample that explain mutants; a sweep itself refuses an explanation of a mutant that there is not."""


@pytest.mark.parametrize(("topic", "sample"), SWEPT.items())
def test_a_mistake_made_by_a_machine_is_noticed(topic: str, sample: int) -> None:
    tally = tally_mutations(LABS[topic], LABS[topic].checks, sample=sample, seed=SEED)
    assert tally.lines == []
    assert len(tally.outcomes) == sample


@pytest.mark.parametrize("lab", EXPLAINED, ids=[lab.info.topic for lab in EXPLAINED])
def test_every_mutant_that_is_said_to_be_right_exists(lab: LabUnderTest) -> None:
    refuse_stale(read_equivalent(lab.folder), {mutant.name for mutant in find_mutants(lab, lab.checks)})
