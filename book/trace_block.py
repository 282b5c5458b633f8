"""Profile the forward pass of chapter 3's transformer block, eager and compiled: `python book/trace_block.py`.

Both traces go to book/data/traces/block-forward.json: an entry for each event that the profiler saw in the fastest of
50 calls, with its start and duration in µs, and its depth (the number of events around it). Compiling takes a C++
compiler and a minute, so the chapter reads the file instead.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

from mlsys_lab.models.training import one_thread

TRACES = Path(__file__).parent / "data" / "traces"
COMMAND = "python book/trace_block.py"
B, T, D, H = 1, 16, 64, 4


class Block(nn.Module):
    """The chapter's block: attention with H heads and an MLP of width 4D, each after a layer norm."""

    def __init__(self, D: int, H: int) -> None:
        super().__init__()
        self.H = H
        self.norm1, self.norm2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.proj = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.up, self.down = nn.Linear(D, 4 * D), nn.Linear(4 * D, D)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # (B, T, D)
        """Return the block's output, of the same shape."""
        B, T, D = x.shape
        heads = self.qkv(self.norm1(x)).view(B, T, 3, self.H, D // self.H)
        q, k, v = heads.permute(2, 0, 3, 1, 4)  # each (B, H, T, D/H)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # (B, H, T, D/H)
        x = x + self.proj(mixed.transpose(1, 2).reshape(B, T, D))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


def trace(call: Callable[[], object], warmup: int = 50, repeats: int = 50) -> list[dict[str, Any]]:
    """Events of the fastest of `repeats` calls after a warm-up, in the order in which they start."""
    for _ in range(warmup):
        call()
    return min((_events(call) for _ in range(repeats)), key=lambda events: end_us(events))


def end_us(events: list[dict[str, Any]]) -> float:
    """Microseconds from the first event's start to the last event's end."""
    return max(one["start_us"] + one["duration_us"] for one in events)


def _events(call: Callable[[], object]) -> list[dict[str, Any]]:
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        call()
    taken = sorted(seen.events(), key=lambda one: one.time_range.start)
    start = taken[0].time_range.start
    return [
        {
            "name": one.name,
            "start_us": round(one.time_range.start - start, 2),
            "duration_us": round(one.time_range.elapsed_us(), 2),
            "depth": _depth(one),
        }
        for one in taken
    ]


def _depth(event: Any) -> int:
    depth = 0
    while (event := event.cpu_parent) is not None:
        depth += 1
    return depth


def trace_block() -> dict[str, Any]:
    """Trace the block's forward pass, eager and compiled, with one thread and without gradients."""
    import torch._inductor.config as inductor

    inductor.cpp.enable_kernel_profile = True
    torch.manual_seed(0)
    block, x = Block(D, H).eval(), torch.randn(B, T, D)
    compiled = torch.compile(block)
    with one_thread(), torch.no_grad():
        torch.testing.assert_close(compiled(x), block(x))
        traces = {"eager": trace(lambda: block(x)), "compiled": trace(lambda: compiled(x))}
    shape = {"B": B, "T": T, "D": D, "H": H}
    return {"command": COMMAND, "torch": torch.__version__, "shape": shape, "traces": traces}


if __name__ == "__main__":
    record = trace_block()
    TRACES.mkdir(exist_ok=True)
    (TRACES / "block-forward.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    for name, events in record["traces"].items():
        print(f"{name:10}{len(events):4} events in {end_us(events):.0f} µs")
