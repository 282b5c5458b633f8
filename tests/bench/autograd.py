"""What the autograd engine promises about speed and memory, each measured as a ratio within this run.

    python -m tests.bench.autograd [--json FILE]

Prints asked against measured and exits with 1 if a goal is missed; --json writes the measurement records as a list.
One thread throughout: on a machine that others use too, threads that wait for each other would be what is measured.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import micrograd.nn
import torch
from rich.console import Console
from rich.table import Table

from mlsys_lab.autograd import Tensor, best_segments, checkpoint_sequential, cross_entropy, nn, optim
from mlsys_lab.autograd.gpt import GPT, Block, GPTConfig
from mlsys_lab.benchmark import Record, compare, measure, new_record
from mlsys_lab.benchmark.memory import track_memory

SEED = 0
SIZES = (64, 128, 128, 10)
BATCH = 64
LEARNING_RATE = 0.1


@dataclass(frozen=True)
class Goal:
    """A record of ratios and the bound that its median has to keep."""

    record: Record
    asked: float

    @property
    def met(self) -> bool:
        return self.record.p50 >= self.asked if self.record.better == "higher" else self.record.p50 <= self.asked


def ratio(name: str, what: str, samples: tuple[float, ...], better: str, asked: float, notes: str) -> Goal:
    command = "python -m tests.bench.autograd"
    record = new_record(name, what, samples, unit="ratio", better=better, command=command, seed=SEED, notes=notes)
    return Goal(record, asked)


def digits_like() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(SEED)
    return torch.randn(BATCH, SIZES[0]), torch.randint(SIZES[-1], (BATCH,))


def our_step(loss_of: Callable[[Tensor], Tensor], x: torch.Tensor) -> Callable[[], None]:
    torch.manual_seed(SEED)
    module = nn.MLP(*SIZES)
    optimizer = optim.SGD(module.parameters(), LEARNING_RATE)
    batch = Tensor(x)

    def step() -> None:
        optimizer.zero_grad()
        loss_of(module(batch)).backward()
        optimizer.step()

    return step


def mlp_against_torch() -> Goal:
    x, y = digits_like()
    reference = torch.nn.Sequential(
        torch.nn.Linear(SIZES[0], SIZES[1]),
        torch.nn.ReLU(),
        torch.nn.Linear(SIZES[1], SIZES[2]),
        torch.nn.ReLU(),
        torch.nn.Linear(SIZES[2], SIZES[3]),
    )
    optimizer = torch.optim.SGD(reference.parameters(), LEARNING_RATE)

    def torch_step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(reference(x), y).backward()
        optimizer.step()

    times = compare(
        {"ours": our_step(lambda out: cross_entropy(out, y), x), "torch": torch_step}, samples=200, warmup=20
    )
    return ratio(
        "autograd-mlp-step-torch",
        "MLP training step: our time / torch eager's",
        times.ratio("ours", "torch").samples,
        "lower",
        2.0,
        f"ours {times.timings['ours'].p50_s * 1e6:.0f} µs, torch {times.timings['torch'].p50_s * 1e6:.0f} µs a step",
    )


class TorchAttention(torch.nn.Module):
    """Attention with the operations of `mlsys_lab.autograd.gpt`, in torch."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.query, self.key, self.value, self.out = (torch.nn.Linear(*2 * [config.channels]) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attend: (B, T, C) -> (B, T, C)."""
        T, D = x.shape[1], x.shape[2] // self.heads
        q, k, v = (split(x).unflatten(2, (-1, D)).transpose(1, 2) for split in (self.query, self.key, self.value))
        past = torch.ones(T, T, dtype=torch.bool).tril()
        weights = torch.where(past, (q @ k.mT) * D**-0.5, -torch.inf).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


class TorchBlock(torch.nn.Module):
    """Block of `mlsys_lab.autograd.gpt`, in torch."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        c = config.channels
        self.norm1, self.attention, self.norm2 = torch.nn.LayerNorm(c), TorchAttention(config), torch.nn.LayerNorm(c)
        self.feed_forward = torch.nn.Sequential(torch.nn.Linear(c, 4 * c), torch.nn.GELU(), torch.nn.Linear(4 * c, c))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Transform: (B, T, C) -> (B, T, C)."""
        x = x + self.attention(self.norm1(x))
        return x + self.feed_forward(self.norm2(x))


class TorchGPT(torch.nn.Module):
    """The GPT of `mlsys_lab.autograd.gpt`, in torch."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.tokens = torch.nn.Embedding(config.vocabulary, config.channels)
        self.positions = torch.nn.Embedding(config.context, config.channels)
        self.blocks = torch.nn.Sequential(*(TorchBlock(config) for _ in range(config.layers)))
        self.norm = torch.nn.LayerNorm(config.channels)
        self.head = torch.nn.Linear(config.channels, config.vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits: ids (B, T) -> (B, T, V)."""
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        return self.head(self.norm(self.blocks(x)))


def gpt_against_torch() -> Goal:
    config, batch = GPTConfig(vocabulary=512, context=64, layers=4, heads=4, channels=128, fused=True), 8
    torch.manual_seed(SEED)
    ours, reference = GPT(config), TorchGPT(config)
    reference.load_state_dict(ours.state_dict())
    tokens, targets = torch.randint(config.vocabulary, (2, batch, config.context))
    our_optimizer = optim.AdamW(ours.parameters(), 1e-4)
    optimizer = torch.optim.AdamW(reference.parameters(), 1e-4, foreach=False)

    def step() -> None:
        our_optimizer.zero_grad()
        cross_entropy(ours(tokens), targets).backward()
        our_optimizer.step()

    def torch_step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(reference(tokens).flatten(0, 1), targets.flatten()).backward()
        optimizer.step()

    times = compare({"ours": step, "torch": torch_step}, samples=60, warmup=5)
    return ratio(
        "autograd-gpt-step-torch",
        "GPT training step on fused nodes: our time / torch eager's",
        times.ratio("ours", "torch").samples,
        "lower",
        1.1,
        f"ours {times.timings['ours'].p50_s * 1e3:.1f} ms, torch {times.timings['torch'].p50_s * 1e3:.1f} ms a step",
    )


def micrograd_step_s(model: micrograd.nn.MLP, x: list[list[float]], y: list[int]) -> float:
    """CPU seconds of one training step on these samples: forward, squared error, backward, update.

    CPU time, which favours micrograd on a busy machine; with Python's garbage collection, without which it never frees.
    """
    gc.collect()
    start = time.process_time()
    loss = 0
    for features, target in zip(x, y, strict=True):
        for i, out in enumerate(model(features)):
            loss = loss + (out - float(i == target)) ** 2
    model.zero_grad()
    loss.backward()
    for p in model.parameters():
        p.data -= LEARNING_RATE / len(x) * p.grad
    return time.process_time() - start


def mlp_against_micrograd() -> Goal:
    """micrograd takes minutes and gigabytes for 64 samples, so some are measured and the rest is multiplication."""
    x, y = digits_like()
    targets = torch.nn.functional.one_hot(y, SIZES[-1]).float()
    ours = measure(our_step(lambda out: ((out - targets) ** 2).sum() * (1 / BATCH), x), samples=50, warmup=20)
    random.seed(SEED)
    model = micrograd.nn.MLP(SIZES[0], list(SIZES[1:]))
    rows, classes = (x / SIZES[0]).tolist(), y.tolist()
    counts = (1, 2, 4)
    per_sample_s = [{n: micrograd_step_s(model, rows[:n], classes[:n]) / n for n in counts} for _ in range(3)]
    least_s = [min(of_round.values()) for of_round in per_sample_s]
    shown = ", ".join(f"{n}: {min(round_[n] for round_ in per_sample_s):.3f}" for n in counts)
    return ratio(
        "autograd-mlp-step-micrograd",
        "MLP training step: micrograd's time / ours",
        tuple(BATCH * seconds / ours.p50_s for seconds in least_s),
        "higher",
        2000.0,
        f"micrograd measured on batches of {shown} s a sample, which should be alike, and extrapolated to {BATCH} "
        f"samples by the least of these; ours measured on {BATCH} ({ours.p50_s * 1e6:.0f} µs)",
    )


def checkpointing() -> tuple[Goal, Goal]:
    layers, batch, tokens = 16, 8, 128
    config = GPTConfig(vocabulary=1, context=tokens, layers=layers, heads=4, channels=64)
    torch.manual_seed(SEED)
    blocks = [Block(config) for _ in range(layers)]
    x = torch.randn(batch, tokens, config.channels)
    segments = best_segments(layers)

    def step(checkpointed: bool) -> None:
        for block in blocks:
            block.zero_grad()
        out = checkpoint_sequential(blocks, Tensor(x), segments if checkpointed else 1)
        out.mean().backward()

    peaks = []
    for checkpointed in (False, True):
        for block in blocks:
            block.zero_grad()
        with track_memory() as memory:
            step(checkpointed)
        peaks.append(memory.peak_bytes)
    times = compare({"plain": lambda: step(False), "checkpointed": lambda: step(True)}, samples=10, warmup=1)
    stack = f"{layers} GPT blocks, {segments} segments"
    return (
        ratio(
            "autograd-checkpoint-memory",
            f"{stack}: peak bytes checkpointed / plain",
            (peaks[1] / peaks[0],),
            "lower",
            1 / 3,
            f"{peaks[1] / 1e6:.1f} MB and {peaks[0] / 1e6:.1f} MB at the peak, gradients of parameters included",
        ),
        ratio(
            "autograd-checkpoint-time",
            f"{stack}: time checkpointed / plain",
            times.ratio("checkpointed", "plain").samples,
            "lower",
            1.4,
            f"{times.timings['checkpointed'].p50_s:.3f} s and {times.timings['plain'].p50_s:.3f} s a step",
        ),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure what the autograd engine promises.")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the measurement records here")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    goals = [mlp_against_torch(), gpt_against_torch(), mlp_against_micrograd(), *checkpointing()]
    table = Table("what", "asked", "measured", "p20 to p80", "met", title="autograd")
    for goal in goals:
        record, sign = goal.record, "≥" if goal.record.better == "higher" else "≤"
        spread = f"{record.p20:,.3g} to {record.p80:,.3g}" if len(record.samples) > 1 else "exact"
        table.add_row(
            record.what, f"{sign} {goal.asked:,.4g}", f"{record.p50:,.3g}", spread, "yes" if goal.met else "NO"
        )
    console = Console()
    console.print(table)
    for goal in goals:
        console.print(f"{goal.record.name}: {goal.record.notes}", highlight=False)
    if arguments.json:
        records = [json.loads(goal.record.to_json()) for goal in goals]
        arguments.json.write_text(json.dumps(records, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return 0 if all(goal.met for goal in goals) else 1


if __name__ == "__main__":
    sys.exit(main())
