"""Counts, states and times, as text in Prometheus' exposition format (version 0.0.4)."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter

from mlsys_lab.inference.server.messages import EngineState

SECONDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0)
"""Upper bounds of the buckets of times."""


class Histogram:
    """Times in seconds, counted by the least bound of `SECONDS` that is not below them."""

    def __init__(self) -> None:
        self.counts, self.sum_s = [0] * (len(SECONDS) + 1), 0.0

    def observe(self, time_s: float) -> None:
        """Add a time in seconds to the histogram."""
        self.counts[bisect_left(SECONDS, time_s)] += 1
        self.sum_s += time_s

    def render(self, name: str) -> list[str]:
        """Lines of the buckets, each with all before it, of the sum and of the count."""
        lines, total = [], 0
        for bound, count in zip((*SECONDS, "+Inf"), self.counts, strict=True):
            total += count
            lines.append(f'{name}_bucket{{le="{bound}"}} {total}')
        return [*lines, f"{name}_sum {self.sum_s}", f"{name}_count {total}"]


class Metrics:
    """Counters and gauges of a server; `num_blocks` is the size of its KV cache."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.responses: Counter[tuple[str, int]] = Counter()
        self.prompt_tokens = self.generated_tokens = self.restarts = self.open_sequences = self.adapter_bytes = 0
        self.state = EngineState(0, 0, 0, 0, 0)
        self.first_token, self.between_tokens = Histogram(), Histogram()

    def render(self) -> str:
        """Write all metrics in Prometheus' text format."""
        by_route = [
            f'mlsys_responses_total{{route="{route}",status="{status}"}} {count}'
            for (route, status), count in sorted(self.responses.items())
        ]
        state = self.state
        plain = [
            ("mlsys_prompt_tokens_total", "counter", "Tokens of accepted prompts.", self.prompt_tokens),
            ("mlsys_generated_tokens_total", "counter", "Tokens generated.", self.generated_tokens),
            ("mlsys_engine_restarts_total", "counter", "Times that the engine crashed.", self.restarts),
            ("mlsys_open_sequences", "gauge", "Sequences that clients wait for.", self.open_sequences),
            ("mlsys_waiting_sequences", "gauge", "Sequences in the engine's queue.", state.num_waiting),
            ("mlsys_running_sequences", "gauge", "Sequences with blocks in the cache.", state.num_running),
            ("mlsys_batch_tokens", "gauge", "Tokens of the last step.", state.num_batched_tokens),
            ("mlsys_blocks_used", "gauge", "Blocks of the cache that a sequence holds.", state.num_used_blocks),
            ("mlsys_blocks", "gauge", "Blocks of the cache.", self.num_blocks),
            ("mlsys_adapter_bytes", "gauge", "Bytes of all LoRA adapters.", self.adapter_bytes),
            ("mlsys_engine_steps", "gauge", "Steps since the engine began.", state.num_steps),
        ]
        times = [
            ("mlsys_time_to_first_token_seconds", "From request to first token.", self.first_token),
            ("mlsys_time_between_tokens_seconds", "Between two outputs of a sequence.", self.between_tokens),
        ]
        lines = [*_head("mlsys_responses_total", "counter", "Responses by route and status."), *by_route]
        for name, kind, said, value in plain:
            lines += [*_head(name, kind, said), f"{name} {value}"]
        for name, said, histogram in times:
            lines += [*_head(name, "histogram", said), *histogram.render(name)]
        return "\n".join(lines) + "\n"


def _head(name: str, kind: str, said: str) -> list[str]:
    return [f"# HELP {name} {said}", f"# TYPE {name} {kind}"]
