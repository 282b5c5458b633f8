"""Mistakes that a machine makes: a check notices each of a sample.

The sample and the draws are the same in every run, of the labs that are judged fastest. `make prove` tries all mutants
of all labs, once a week in CI. What is said of a mutant of any lab must be said of one that there is, in every run.
"""

from __future__ import annotations

import pytest

from mlsys_grader.proving.mutation.equivalent import read_equivalent
from mlsys_grader.proving.mutation.mutants import find_mutants
from mlsys_grader.proving.mutation.tally import tally_mutations
from tests.labs.harness import labs

pytestmark = pytest.mark.slow
LABS = {lab.info.topic: lab for lab in labs()}
SEED = 20
SWEPT = ("gpu-model", "transformer-arithmetic", "collectives")
SAMPLE = 6
"""Mutants of each of these labs."""


@pytest.mark.parametrize("topic", SWEPT)
def test_a_mistake_made_by_a_machine_is_noticed(topic: str) -> None:
    tally = tally_mutations(LABS[topic], LABS[topic].checks, sample=SAMPLE, seed=SEED)
    assert tally.lines == []
    assert len(tally.outcomes) == SAMPLE


@pytest.mark.parametrize("topic", [topic for topic in LABS if topic not in SWEPT])
def test_no_reason_outlives_its_mutant(topic: str) -> None:
    lab = LABS[topic]
    read_equivalent(lab.folder).refuse_stale(list(find_mutants(lab, lab.checks)))
