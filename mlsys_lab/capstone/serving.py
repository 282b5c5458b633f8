"""Serving on the stack: the package's engine with the learner's scheduler, blocks, and attention over a KV cache.

Dimension letters: K key/value heads, T new tokens of a sequence, S cached tokens, H head_dim, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from mlsys_lab.capstone.stack import Stack
from mlsys_lab.errors import InputError
from mlsys_lab.inference.engine import Engine, Request, SamplingParams, SchedulerConfig
from mlsys_lab.inference.engine.model_runner import KVCache, ModelRunner, compute_slot_mapping
from mlsys_lab.models import Transformer
from mlsys_lab.stack.workspace import Workspace, write_atomic

SERVED = """\
from pathlib import Path

from mlsys_lab.capstone.serving import runner_class
from mlsys_lab.capstone.stack import load_stack
from mlsys_lab.stack.workspace import Workspace

stack = load_stack(Workspace(Path({root!r})), {swaps!r})
build, model_runner_class = stack.scheduler.build, runner_class(stack)
"""
"""What the server's own process runs to load the same stack."""


def build_engine(
    stack: Stack, model: Transformer, *, num_blocks: int, block_size: int = 16, config: SchedulerConfig | None = None
) -> Engine:
    """Make an engine whose scheduler is the stack's, and whose forward passes go through the stack's KV cache."""
    scheduler = stack.scheduler.build(num_blocks, block_size, config or SchedulerConfig())
    kind = type("StackEngine", (Engine,), {"model_runner_class": runner_class(stack)})
    engine: Engine = kind(model, num_blocks=num_blocks, block_size=block_size, scheduler=scheduler)
    return engine


def write_served(path: Path, workspace: Workspace, swaps: Mapping[str, str] | None = None) -> None:
    """Write the Python file by which `mlsys-lab serve --scheduler` serves on a workspace's stack."""
    write_atomic(path, SERVED.format(root=str(workspace.root), swaps=dict(swaps or {})))


def generate_greedy(engine: Engine, prompts: Iterable[Sequence[int]], max_tokens: int) -> list[list[int]]:
    """Serve prompts concurrently; the likeliest tokens of each, in order. InputError as `Engine.add_request`."""
    greedy = SamplingParams(temperature=0)
    ids = [engine.add_request(Request(list(prompt), max_tokens, greedy)) for prompt in prompts]
    completions = engine.run()
    return [list(completions[request_id][0].token_ids) for request_id in ids]


def runner_class(stack: Stack) -> type[ModelRunner]:
    """A model runner that calls the stack's `extend` on a cache in the scheduler's blocks.

    Lab 10's caches have a row for each sequence, and lab 11's scheduler hands out blocks. `BlockCache` is a cache as
    lab 10 defines one (`length`, `update`, `advance`), whose tokens lie where the scheduler's block tables say. Where
    the cache layer is the reference package's, its own model runner.
    """
    if stack.sources["cache"].kind == "reference":
        return ModelRunner

    class BlockCache(stack.cache.Cache):  # type: ignore[name-defined,misc]
        def __init__(self, kv_cache: KVCache, block_size: int) -> None:
            super().__init__(0)
            self.kv_cache, self.block_size = kv_cache, block_size
            self.scheduled: dict[int, Any] = {}  # sequences of this step, by number

        def length(self, sequence: int) -> int:
            """Tokens of a sequence in the cache: those that the scheduler counts as computed."""
            return int(self.scheduled[sequence].num_computed_tokens)

        def advance(self, sequence: int, num_tokens: int) -> None:
            """Leave the count to the scheduler's `update_from_output`."""

        def update(
            self, layer: int, sequence: int, k: torch.Tensor, v: torch.Tensor
        ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
            """Store k, v (K, T, H) in the sequence's blocks; all its keys and values (K, S, H), and positions (S,)."""
            start, table = self.length(sequence), self.scheduled[sequence].block_table
            end = start + k.shape[1]
            if end > len(table) * self.block_size:
                got = f"{len(table)} blocks of {self.block_size} for {end} tokens"
                raise InputError("the scheduler scheduled tokens for which it allocated no block", got=got)
            slots = compute_slot_mapping(table, self.block_size, 0, end)
            self.kv_cache.store(layer, slots[start:], k.transpose(0, 1), v.transpose(0, 1))
            keys, values = self.kv_cache.load(layer, slots)  # (S, K, H) each
            return keys.transpose(0, 1), values.transpose(0, 1), torch.arange(end)

    class StackModelRunner(ModelRunner):
        def __init__(self, model: Transformer, num_blocks: int, block_size: int) -> None:
            super().__init__(model, num_blocks, block_size)
            self.cache = BlockCache(self.kv_cache, block_size)

        def compile(self) -> None:
            """Leave attention to the stack's."""

        def run(self, output: Any) -> list[torch.Tensor]:
            """Compute all scheduled tokens: logits (1, V) of each sampled sequence."""
            self.cache.scheduled = dict(enumerate(output.num_scheduled_tokens))
            new = {}
            for number, (seq, n) in enumerate(output.num_scheduled_tokens.items()):
                first = seq.num_computed_tokens
                new[number] = seq.token_ids[first : first + n]
            logits = stack.cache.extend(self.model, self.cache, new)  # (R, V), in the order of `new`
            rows = {seq: row for row, seq in enumerate(output.num_scheduled_tokens)}
            return [logits[rows[seq], None] for seq in output.sampled]

    return StackModelRunner
