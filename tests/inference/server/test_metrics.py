"""Metrics as Prometheus' own parser reads them."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from mlsys_lab.inference.server.messages import EngineState
from mlsys_lab.inference.server.metrics import Metrics


def test_samples_have_the_values_that_were_recorded():
    metrics, other = Metrics(64), Metrics(8)
    metrics.http_requests.labels("/health", 503).inc()
    metrics.prompt_tokens.inc(7)
    metrics.time_to_first_token.observe(0.3)
    metrics.record(EngineState(num_waiting=2, num_running=1, num_batched_tokens=9, num_used_blocks=4, num_steps=11))
    families = list(text_string_to_metric_families(metrics.render().decode()))
    found = {(one.name, *one.labels.values()): one.value for family in families for one in family.samples}
    expected = {("http_requests_total", "/health", "503"): 1, ("prompt_tokens_total",): 7}
    expected |= {("num_requests_waiting",): 2, ("num_requests_running",): 1, ("num_batched_tokens",): 9}
    expected |= {("num_kv_cache_blocks_used",): 4, ("num_kv_cache_blocks",): 64, ("engine_steps",): 11}
    expected |= {("time_to_first_token_seconds_bucket", le): float(le == "0.5") for le in ("0.2", "0.5")}
    assert {(f"mlsys_{name}", *labels): value for (name, *labels), value in expected.items()}.items() <= found.items()
    assert all(family.documentation for family in families if not family.name.endswith("_created"))
    assert b"mlsys_prompt_tokens_total 0.0" in other.render()
