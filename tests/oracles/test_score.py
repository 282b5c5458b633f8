"""Every figure of the course's list stands in one file, and is either tested or left to a later topic by name."""

from __future__ import annotations

import re

import pytest

from tests.oracles.__main__ import Score, table
from tests.oracles.catalogue import EVIDENCE, LATER, Oracle, named_in_tests, oracles

LISTED = re.findall(
    r"\w+",
    """
AG02 AG03 AG04 AG05 RL01 RL02 RL03 RL04 RL06 RL07 RL08 RL09 RL10 RL11 RL12 RL13 RL14 RL15 RL16 GP01 GP02 GP03 GP04 GP05
GP06 GP08 GP09 GP10 GP12 GP13 FA01 FA02 TP02 TP03 TP04 TP05 TP06 TP07 TP08 SH01 SH02 SH03 SH04 SH05 SH06 CO01 CO02 CO04
CO05 CO06 CO07 CO08 CO09 CO10 CO11 CO13 CO14 PA01 PA02 PA03 PA04 PA05 PA09 PA10 PA11 FL02 FL03 FL04 FL05 FL07 FL08 FL09
KI01 KI02 KI03 KI05 KV01 KV02 KV04 KV05 KV06 SL01 SL02 SL03 SL05 SL06 SL07 SL08 ZE02 ME01 ME02 AC01 AC02 AC03 AC04 MG02
MG03 MG04 PP01 PP02 TR01 TR02 TR03 TR04 TR05 TR06 TR07 TR08 TR09 TR11 TR12 TR13 IN01 IN02 IN03 IN05 IN07 IN08 IN09 IN10
IN11 QU02 QU03 QU04 QU05 QU06 DI03 DI04 DI05 DI06 DI07 FT01 FT03 FT04 FT05 FT06 FT08
""",
)


def leaves(value: object) -> list[object]:
    if isinstance(value, dict):
        return [leaf for inner in value.values() for leaf in leaves(inner)]
    if isinstance(value, list):
        return [leaf for inner in value for leaf in leaves(inner)]
    return [value]


def test_every_entry_of_the_list_is_in_exactly_one_file() -> None:
    assert len(LISTED) == len(set(LISTED)) == 137
    assert sorted(oracles()) == sorted(LISTED)


def test_every_entry_is_tested_or_owned_by_a_later_topic() -> None:
    owned = {name for name, oracle in oracles().items() if oracle.owner}
    assert oracles().keys() - named_in_tests().keys() - owned == set()
    assert named_in_tests().keys() <= oracles().keys()


@pytest.mark.parametrize("oracle", oracles().values(), ids=lambda oracle: oracle.id)
def test_an_entry_is_complete(oracle: Oracle) -> None:
    assert oracle.quantity and oracle.source and oracle.evidence in EVIDENCE
    assert all(isinstance(figure, int | float) for figure in oracle.figures)
    assert 0 <= oracle.rel_tol <= 0.05
    assert oracle.owner in ("", *LATER)
    assert not (oracle.owner and (oracle.by or oracle.restated)), "nothing computes today what a later topic owns"
    assert oracle.owner or oracle.by or len(oracle.restated) == len(oracle.figures), "nobody computes all its figures"
    # A number such as 1e12, without point or sign, is a string to YAML.
    values = leaves([oracle.inputs, oracle.printed, oracle.arithmetic])
    assert not [leaf for leaf in values if isinstance(leaf, str) and leaf[:1].isdigit()]


@pytest.mark.parametrize("oracle", [o for o in oracles().values() if o.contradiction], ids=lambda oracle: oracle.id)
def test_a_contradiction_says_what_is_printed_and_what_follows(oracle: Oracle) -> None:
    printed = oracle.expected if oracle.printed is None else oracle.printed
    arithmetic = oracle.expected if oracle.arithmetic is None else oracle.arithmetic
    assert printed != arithmetic
    assert any("contradict" in name for name in named_in_tests()[oracle.id])


class Report:
    """What the score reads of pytest's reports."""

    def __init__(self, nodeid: str, when: str, passed: bool) -> None:
        self.nodeid, self.when, self.passed = nodeid, when, passed


def test_a_figure_is_reproduced_when_every_test_that_names_it_has_passed() -> None:
    score = Score()
    runs = [
        ("tests/oracles/test_flops.py::test_published_figure[FL02]", "setup", True),
        ("tests/oracles/test_flops.py::test_published_figure[FL02]", "call", True),
        ("tests/oracles/test_tpu.py::test_published_figure[TP05]", "call", True),
        ("tests/oracles/test_tpu.py::test_tp05_contradicts_its_own_inputs", "call", False),
        ("tests/oracles/test_introduction.py::test_the_page_reproduces[FT08]", "setup", False),
        ("tests/oracles/test_score.py::test_an_entry_is_complete[TP06]", "call", True),
    ]
    for run in runs:
        score.pytest_runtest_logreport(Report(*run))  # type: ignore[arg-type]
    assert score.passed == {"FL02": True, "TP05": False, "FT08": False}


def test_the_table_adds_up() -> None:
    cells = [list(column.cells) for column in table({"FL02": True}).columns]
    *topics, total = zip(*cells, strict=True)
    assert total[:2] == ("all", "1") and total[-1] == str(len(oracles()))
    for column in range(1, len(total)):
        assert int(total[column]) == sum(int(row[column]) for row in topics)
    for _, *counts, entries in topics:
        assert sum(map(int, counts)) == int(entries)
