"""However many submissions are judged, neither the judge nor the process beside it grows, nor does a kernel."""

import ctypes
import gc
from itertools import cycle, islice, product
from pathlib import Path

import pytest

from mlsys_checks.trusted.verdict import draw_inputs
from mlsys_grader.course.lab import GradedLab
from mlsys_grader.judging.oracle import Oracle, OracleServer
from tests.labs.harness import labs
from tests.sampling import sample

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SUBMISSIONS, WARM = 200, 20
GROWTH_BYTES = 8 << 20
"""A saved tensor of one submission in two hundred would be more."""
DRAW_BYTES = 1 << 20
"""What a process may keep of each draw of a check."""
ROUNDS = 10
"""Rounds of two draws in which a process fills what it makes once: torch's caches take six."""


def held_bytes(pid):
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (kilobytes,) = (line.split()[1] for line in lines if line.startswith("RssAnon:"))
    return int(kilobytes) << 10


def clear_up():
    """Free what nobody holds: cycles that wait for the collector, and what the allocator keeps for later."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


@pytest.mark.weekly
@pytest.mark.parametrize("lab", sample(labs(), len(labs())), ids=lambda lab: lab.info.topic)
def test_the_judge_stays_as_large_as_it_was(lab):
    """Each submission is asked one check, in turn, as far as the comparison."""
    checks = lab.checks.checks
    with OracleServer(GradedLab(lab.info)) as oracles:
        held = []
        for check in islice(cycle(checks), SUBMISSIONS):
            with Oracle(oracles, {check.name: 1}) as oracle:
                oracle.inputs(check, check.cases[0])
                assert oracle.compare(check, check.cases[0], {}) is not None
            held.append(held_bytes("self") + held_bytes(oracles._process.pid))
    assert held[-1] - held[WARM] < GROWTH_BYTES


@pytest.mark.parametrize("lab", sample(labs(), len(labs())), ids=lambda lab: lab.info.topic)
def test_a_process_that_computes_what_checks_expect_keeps_none_of_it(lab):
    """As a notebook's kernel does with every run of a check; what is cached is small."""
    for check in lab.checks.checks:
        held, grown = [0], 2 * DRAW_BYTES
        while (
            grown >= 2 * DRAW_BYTES and len(held) <= ROUNDS
        ):  # what is made once ends, what is kept of each draw does not
            for seed, case in product(range(2 * len(held), 2 * len(held) + 2), check.cases):
                check.expect(draw_inputs(check, case, seed))
            clear_up()
            held.append(held_bytes("self"))
            grown = held[-1] - held[-2]
        assert grown < 2 * DRAW_BYTES, (check.name, held)
