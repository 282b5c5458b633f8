"""Serving on the stack: the package's engine with the learner's scheduler, blocks, and attention over a KV cache.

Dimension letters: R rows of logits, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from mlsys_lab.capstone.stack import Stack
from mlsys_lab.errors import InputError
from mlsys_lab.inference.engine import Engine, Request, SamplingParams, SchedulerConfig
from mlsys_lab.inference.engine.model_runner import ModelRunner
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
    """A model runner that calls the stack's `extend` on lab 16's cache in the scheduler's blocks.

    Where the cache layer is the reference package's, its own model runner.
    """
    if stack.sources["cache"].kind == "reference":
        return ModelRunner

    class StackModelRunner(ModelRunner):
        def __init__(self, model: Transformer, num_blocks: int, block_size: int) -> None:
            super().__init__(model, num_blocks, block_size)
            self.cache = stack.capstone.BlockCache(self.kv_cache, block_size)

        def compile(self) -> None:
            """Leave attention to the stack's."""

        def run(self, output: Any) -> list[torch.Tensor]:
            """Compute all scheduled tokens: logits (1, V) of each sampled sequence."""
            self.cache.sequences = dict(enumerate(output.num_scheduled_tokens))
            new = {}
            for number, (seq, n) in enumerate(output.num_scheduled_tokens.items()):
                first, room = seq.num_computed_tokens, len(seq.block_table) * self.cache.block_size
                if first + n > room:
                    got = f"{len(seq.block_table)} blocks of {self.cache.block_size} for {first + n} tokens"
                    raise InputError("the scheduler scheduled tokens for which it allocated no block", got=got)
                new[number] = seq.token_ids[first : first + n]
            logits = stack.cache.extend(self.model, self.cache, new)  # (R, V), in the order of `new`
            rows = {seq: row for row, seq in enumerate(output.num_scheduled_tokens)}
            return [logits[rows[seq], None] for seq in output.sampled]

    return StackModelRunner
