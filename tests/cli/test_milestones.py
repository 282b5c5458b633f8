"""`mlsys-lab milestones`: figures, whose code ran, exit codes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_milestone_shows_published_and_obtained_numbers_and_whose_code_ran(call: Call) -> None:
    code, out, err = call("milestones", "ring-all-reduce", "--swap", "collectives=reference", "engine=solved")
    assert code == 0 and not err
    assert "2009  ring-all-reduce" in out and "Patarasuk & Yuan" in out
    assert "published 1.75" in out and "code that ran: collectives: the reference package's (swapped)" in out
    assert "scope: " in out


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("zeroo",), 1, "unknown milestone: got 'zeroo', expected one of backpropagation, "),
        (("zero", "--swap", "collectives"), 1, "--swap takes a layer and a kind: got 'collectives', expected such as"),
        (("zero", "--swap", "cash=solved"), 1, "unknown layer: got 'cash', expected one of engine, "),
    ],
)
def test_a_wrong_name_is_one_line(call: Call, arguments: tuple[str, ...], code: int, said: str) -> None:
    got, out, err = call("milestones", *arguments)
    assert got == code and not out
    assert err.startswith(f"mlsys-lab: {said}") and err.count("\n") == 1


def test_a_milestone_that_a_layer_cannot_run_is_exit_code_1(call: Call) -> None:
    code, out, err = call("milestones", "speculative-decoding", "--swap", "cache=reference")
    assert code == 1 and "2023  speculative-decoding" in out
    assert err.startswith("mlsys-lab: speculative-decoding: the cache layer has no speculative_step; code that ran: ")
    assert err.count("\n") == 1
