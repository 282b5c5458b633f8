"""Mistakes that a machine makes: a check notices each of a sample.

The sample and the draws are the same in every run, of the labs that are judged fastest. `make prove` tries all mutants
of all labs, once a week in CI, and refuses an explanation of a mutant that there is not.
"""

from __future__ import annotations

import pytest

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
