"""However many submissions are decided on, neither the judge nor the process beside it grows."""

from itertools import cycle, islice
from pathlib import Path

import pytest

from mlsys_grader.course.lab import GradedLab
from mlsys_grader.judging.oracle import Oracle, Oracles
from tests.labs.harness import labs
from tests.sampling import sample

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SUBMISSIONS, WARM = 200, 20
GROWTH_BYTES = 8 << 20
"""A saved tensor of one submission in two hundred would be more."""


def held_bytes(pid):
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (kilobytes,) = (line.split()[1] for line in lines if line.startswith("RssAnon:"))
    return int(kilobytes) << 10


@pytest.mark.parametrize("lab", sample(labs(), len(labs())), ids=lambda lab: lab.info.topic)
def test_the_judge_stays_as_large_as_it_was(lab):
    """Each submission is asked one check, in turn, as far as the comparison."""
    checks = lab.checks.checks
    with Oracles(GradedLab(lab.info)) as oracles:
        held = []
        for check in islice(cycle(checks), SUBMISSIONS):
            with Oracle(oracles, {check.name: 1}) as oracle:
                oracle.inputs(check, check.cases[0])
                assert oracle.compare(check, check.cases[0], {}) is not None
            held.append(held_bytes("self") + held_bytes(oracles._process.pid))
    assert held[-1] - held[WARM] < GROWTH_BYTES
