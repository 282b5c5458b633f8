"""Metrics of a server for Prometheus, named as vLLM names them where the meaning is the same.

vLLM's prefix `vllm:` is `mlsys_` here. A request for n completions counts as n, as it does in vLLM's scheduler.
"""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from mlsys_lab.inference.server.messages import EngineState

BUCKETS_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0)
"""Upper bounds of the histograms' buckets, in seconds."""


class Metrics:
    """Counters, gauges and histograms in a registry of their own; `num_blocks` is the size of the KV cache."""

    def __init__(self, num_blocks: int) -> None:
        self.registry = CollectorRegistry()
        options: dict[str, Any] = {"namespace": "mlsys", "registry": self.registry}
        self.http_requests = Counter("http_requests", "HTTP responses.", ("handler", "status"), **options)
        self.prompt_tokens = Counter("prompt_tokens", "Prompt tokens of accepted requests.", **options)
        self.generation_tokens = Counter("generation_tokens", "Generated tokens.", **options)
        self.prefix_cache_queries = Counter("prefix_cache_queries", "Prompt tokens of finished requests.", **options)
        self.prefix_cache_hits = Counter("prefix_cache_hits", "Of those, tokens from the prefix cache.", **options)
        self.preemptions = Counter("num_preemptions", "Preemptions of finished requests.", **options)
        self.engine_restarts = Counter("engine_restarts", "Crashes of the engine.", **options)
        self.num_requests_open = Gauge("num_requests_open", "Requests that clients are waiting for.", **options)
        self.num_requests_waiting = Gauge("num_requests_waiting", "Requests in the waiting queue.", **options)
        self.num_requests_running = Gauge("num_requests_running", "Requests in the running batch.", **options)
        self.num_batched_tokens = Gauge("num_batched_tokens", "Tokens of the last step.", **options)
        self.num_blocks_used = Gauge("num_kv_cache_blocks_used", "KV cache blocks in use by a request.", **options)
        Gauge("num_kv_cache_blocks", "KV cache blocks.", **options).set(num_blocks)
        self.num_images_open = Gauge("num_images_open", "Images that clients are waiting for.", **options)
        self.generated_images = Counter("generated_images", "Generated images.", **options)
        self.adapter_bytes = Gauge("lora_adapter_bytes", "Size of all LoRA adapters in bytes.", **options)
        self.engine_steps = Gauge("engine_steps", "Steps since the engine started.", **options)
        options["buckets"] = BUCKETS_S
        self.time_to_first_token = Histogram("time_to_first_token_seconds", "From request to first token.", **options)
        self.inter_token_latency = Histogram("inter_token_latency_seconds", "Between outputs of a request.", **options)
        self.request_queue_time = Histogram("request_queue_time_seconds", "Before a request's first step.", **options)
        self.e2e_request_latency = Histogram("e2e_request_latency_seconds", "From request to last token.", **options)
        self.image_latency = Histogram("image_request_latency_seconds", "From request to last image.", **options)

    def record(self, state: EngineState) -> None:
        """Set the gauges of the engine to its state after a step."""
        self.num_requests_waiting.set(state.num_waiting)
        self.num_requests_running.set(state.num_running)
        self.num_batched_tokens.set(state.num_batched_tokens)
        self.num_blocks_used.set(state.num_used_blocks)
        self.engine_steps.set(state.num_steps)

    def render(self) -> bytes:
        """Render all metrics in Prometheus' text format, version 0.0.4."""
        return generate_latest(self.registry)
