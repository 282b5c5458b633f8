"""Metrics as Prometheus reads them."""

from __future__ import annotations

import re

from mlsys_lab.inference.server.messages import EngineState
from mlsys_lab.inference.server.metrics import SECONDS, Histogram, Metrics

LINE = re.compile(r'mlsys_[a-z_]+(\{[a-z]+="[^"]*"(,[a-z]+="[^"]*")*\})? -?[0-9.e+-]+')


def read(text):
    return dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))


def test_a_time_counts_in_its_own_bucket_and_in_all_above():
    histogram = Histogram()
    for time_s in (0.0, 0.01, 0.011, 60.0, 61.0):
        histogram.observe(time_s)
    *buckets, total, count = histogram.render("t")
    counts = [int(line.rpartition(" ")[2]) for line in buckets]
    assert counts == [2, *[3] * (len(SECONDS) - 2), 4, 5]
    assert buckets[0] == 't_bucket{le="0.01"} 2' and buckets[-1] == 't_bucket{le="+Inf"} 5'
    assert float(total.removeprefix("t_sum ")) == 121.021 and count == "t_count 5"


def test_every_line_is_in_the_format_and_every_metric_has_its_type_once():
    metrics = Metrics(256)
    metrics.responses["/v1/models", 200] += 2
    metrics.first_token.observe(0.3)
    text = metrics.render()
    assert text.endswith("\n")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert len(lines) > 30 and all(LINE.fullmatch(line) for line in lines)
    typed = re.findall(r"^# TYPE (\w+) (counter|gauge|histogram)$", text, re.MULTILINE)
    described = re.findall(r"^# HELP (\w+) \S.*$", text, re.MULTILINE)
    assert [name for name, _ in typed] == described and len(set(described)) == len(described)
    assert all(name.endswith("_total") == (kind == "counter") for name, kind in typed)
    named = {re.sub(r"_(bucket|sum|count)$", "", line.split("{")[0].split(" ")[0]) for line in lines}
    assert named == set(described)


def test_what_stands_there_is_what_was_counted():
    metrics = Metrics(64)
    metrics.responses["/health", 503] += 1
    metrics.prompt_tokens, metrics.open_sequences = 7, 3
    metrics.state = EngineState(num_waiting=2, num_running=1, num_batched_tokens=9, num_used_blocks=4, num_steps=11)
    found = read(metrics.render())
    assert found['mlsys_responses_total{route="/health",status="503"}'] == "1"
    expected = {"prompt_tokens_total": "7", "open_sequences": "3", "waiting_sequences": "2", "running_sequences": "1"}
    expected |= {"batch_tokens": "9", "blocks_used": "4", "blocks": "64", "engine_steps": "11"}
    assert {name: found[f"mlsys_{name}"] for name in expected} == expected
