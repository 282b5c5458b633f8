"""The serving engine with preemption by swapping: the model runner copies blocks to host memory and back."""

from __future__ import annotations

import torch

from mlsys_lab.inference.engine.engine import Engine
from mlsys_lab.inference.engine.model_runner import ModelRunner, compute_slot_mapping
from mlsys_lab.inference.engine.scheduler import SchedulerOutput
from mlsys_lab.inference.swap.scheduler import SwapOutput, SwappingScheduler


class SwappingModelRunner(ModelRunner):
    """Model runner that copies swapped blocks before the forward pass."""

    def run(self, output: SchedulerOutput) -> list[torch.Tensor]:
        """Swap blocks out and in, then compute all scheduled tokens."""
        assert isinstance(output, SwapOutput)
        tensors = self.kv_cache.tensors
        for swapped in output.swap_out:
            slots = compute_slot_mapping(swapped.blocks, self.block_size, 0, swapped.num_tokens)
            swapped.contents = [tensor[:, :, slots].cpu() for tensor in tensors]
        for one in output.swap_in:
            assert one.swapped.contents is not None
            slots = compute_slot_mapping(one.seq.block_table, self.block_size, one.first, one.end)
            for tensor, contents in zip(tensors, one.swapped.contents, strict=True):
                tensor[:, :, slots] = contents[:, :, one.first : one.end].to(tensor.device)
        return super().run(output)


class SwappingEngine(Engine):
    """Engine that swaps; its `config` is a `SwapConfig`."""

    scheduler_class = SwappingScheduler
    model_runner_class = SwappingModelRunner
