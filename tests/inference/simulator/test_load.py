from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from mlsys_lab.errors import InputError
from mlsys_lab.inference.simulator import Arrival, bursts, log_normal, poisson, read_trace, write_trace


def test_requests_come_as_often_as_asked_and_are_as_long():
    arrivals = poisson(5.0, 4000, log_normal(100, 20), seed=1)
    times = [one.time_s for one in arrivals]
    assert times == sorted(times) and times[-1] == pytest.approx(800, rel=0.05)
    gaps = [after - before for before, after in pairwise(times)]
    mean = sum(gaps) / len(gaps)
    assert sum((gap - mean) ** 2 for gap in gaps) / len(gaps) == pytest.approx(mean**2, rel=0.1)  # exponential
    assert sum(len(one.prompt) for one in arrivals) / 4000 == pytest.approx(100, rel=0.05)
    assert sum(one.num_output_tokens for one in arrivals) / 4000 == pytest.approx(20, rel=0.05)
    assert len({one.prompt[0] for one in arrivals}) == 4000  # nothing is shared
    assert arrivals == poisson(5.0, 4000, log_normal(100, 20), seed=1) != poisson(5.0, 4000, log_normal(100, 20))


def test_bursts_come_together():
    arrivals = bursts(5.0, 4001, log_normal(10, 10), size=8)
    times = [one.time_s for one in arrivals]
    assert len(times) == 4001 and len(set(times)) == 501 and times[-1] == pytest.approx(800, rel=0.2)


def test_a_trace_is_read_as_it_was_written(tmp_path):
    arrivals = [Arrival(0.5, (1, 2), 3), Arrival(0.0, (4,), 1)]
    write_trace(tmp_path / "trace.jsonl", arrivals)
    assert read_trace(tmp_path / "trace.jsonl") == arrivals[::-1]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "line 2, is no request: got JSONDecodeError"),
        ('{"time_s": 1, "prompt": [1]}', "is no request: got KeyError: 'num_output_tokens'"),
        (
            '{"time_s": 1, "prompt": [], "num_output_tokens": 1}',
            "expected a time from 0, a prompt of one token or more",
        ),
        ('{"time_s": -1, "prompt": [1], "num_output_tokens": 1}', "expected a time from 0"),
        ('{"time_s": NaN, "prompt": [1], "num_output_tokens": 1}', "expected a time from 0"),
    ],
)
def test_a_damaged_trace_is_told_in_one_line(tmp_path, line, words):
    path = tmp_path / "trace.jsonl"
    path.write_text('{"time_s": 0, "prompt": [1], "num_output_tokens": 1}\n' + line)
    with pytest.raises(InputError) as refused:
        read_trace(path)
    assert words in str(refused.value) and "\n" not in str(refused.value)
    with pytest.raises(InputError, match="cannot be read"):
        read_trace(tmp_path)


def test_lengths_are_one_at_least():
    assert min(log_normal(1, 1)(Random(seed)) for seed in range(50)) == (1, 1)
    drawn = [log_normal(90, 30, longest=100)(Random(seed)) for seed in range(200)]
    assert max(map(sum, drawn)) == 100 and all(min(one) >= 1 for one in drawn)
