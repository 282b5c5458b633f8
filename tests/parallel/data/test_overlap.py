"""Overlap: the order of step times on real ranks, and hidden fractions in the simulator."""

from __future__ import annotations

import pytest

from mlsys_lab.errors import InputError
from mlsys_lab.parallel.data import overlap


@pytest.mark.alone
def test_buckets_during_the_backward_pass_end_a_step_sooner() -> None:
    layers = 4
    *behind, during = overlap.measure(layers=layers, steps=2)
    assert during.step_s < min(one.step_s for one in behind)
    assert [one.simulated_fraction for one in behind] == pytest.approx([0, 0])
    assert during.simulated_fraction == pytest.approx(1 - 1 / layers)  # all but the last bucket
    longest = 3 * layers * overlap.LAYER_S
    assert all(one.step_s > longest for one in (*behind, during))


@pytest.mark.parametrize("given", [{"ranks": 1}, {"layers": 1}, {"steps": 0}, {"comm_to_compute_ratio": 0.0}])
def test_invalid_arguments_raise(given: dict[str, float]) -> None:
    with pytest.raises(InputError, match="overlap needs two ranks, two layers, a step and a positive ratio"):
        overlap.measure(**given)


def test_the_command_prints_the_hidden_fraction(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        overlap, "measure", lambda *given: [overlap.OverlapResult("one flat all-reduce", 0.25, 0.5, 0.75)]
    )
    assert overlap.main([]) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == ["one", "flat", "all-reduce", "250", "50%", "75%"]


def test_a_mistake_on_the_command_line_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert overlap.main(["--ranks", "1"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("overlap: overlap needs two ranks")
