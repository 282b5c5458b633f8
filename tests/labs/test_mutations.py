"""Mistakes that a machine makes: a check of each lab notices each of a sample.

The sample and the draws are the same in every run. `make prove` tries all mutants of all labs, once a week in CI. What
is said of a mutant must be said of one that there is, in every run.
"""

from __future__ import annotations

import pytest

from mlsys_grader.proving.mutation.tally import tally_mutations
from tests.labs.harness import labs

pytestmark = pytest.mark.slow
SEED = 20
SAMPLE = 3
"""Mutants of each lab."""


@pytest.mark.parametrize("lab", labs(), ids=lambda lab: lab.info.topic)
def test_a_mistake_made_by_a_machine_is_noticed(lab) -> None:
    tally = tally_mutations(lab, lab.checks, sample=SAMPLE, seed=SEED)
    assert tally.lines == []
    assert len(tally.outcomes) == SAMPLE
