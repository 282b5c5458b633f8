"""The scheduler of preemption by swapping, without torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mlsys_lab.inference.engine.block_manager import BlockManager
from mlsys_lab.inference.engine.scheduler import Scheduler, SchedulerConfig, SchedulerOutput
from mlsys_lab.inference.engine.sequence import Sequence
from mlsys_lab.validation import require_non_negative

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class SwapConfig(SchedulerConfig):
    """Limits of a scheduler that swaps: a preempted sequence is recomputed once `num_host_blocks` are in use."""

    num_host_blocks: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_non_negative(num_host_blocks=self.num_host_blocks)


@dataclass
class SwappedSequence:
    """The KV cache of a sequence's first `num_tokens` tokens in host memory.

    `blocks` held them on the device. `contents` is set by the model runner, and stays None in a simulation.
    """

    blocks: list[int]
    num_tokens: int
    contents: list[torch.Tensor] | None = None


@dataclass(frozen=True)
class SwapIn:
    """Restore positions `first` to `end` - 1 of a sequence from host memory."""

    seq: Sequence
    first: int
    end: int
    swapped: SwappedSequence


@dataclass
class SwapOutput(SchedulerOutput):
    """A step that first copies blocks: all of `swap_out` to host memory, then all of `swap_in` from it."""

    swap_out: list[SwappedSequence] = field(default_factory=list)
    swap_in: list[SwapIn] = field(default_factory=list)


class SwappingScheduler(Scheduler):
    """Scheduler that swaps preempted sequences out while host blocks last, and recomputes the others."""

    output_class = SwapOutput

    def __init__(self, block_manager: BlockManager, config: SchedulerConfig) -> None:
        super().__init__(block_manager, config)
        self.num_host_blocks = config.num_host_blocks if isinstance(config, SwapConfig) else 0
        self.swapped: dict[Sequence, SwappedSequence] = {}

    @property
    def num_used_host_blocks(self) -> int:
        """Number of blocks in host memory."""
        return sum(len(swapped.blocks) for swapped in self.swapped.values())

    def finish(self, seq: Sequence) -> None:
        """Remove a sequence, with what is swapped out of it."""
        super().finish(seq)
        self.swapped.pop(seq, None)

    def _preempt(self, seq: Sequence, output: SchedulerOutput) -> None:
        blocks = seq.block_table[: self.block_manager.blocks_for(seq.num_computed_tokens)]
        if blocks and self.num_used_host_blocks + len(blocks) <= self.num_host_blocks:
            assert isinstance(output, SwapOutput)
            self.swapped[seq] = SwappedSequence(blocks, seq.num_computed_tokens)
            output.swap_out.append(self.swapped[seq])
        super()._preempt(seq, output)

    def _move_to_running(self, seq: Sequence, output: SchedulerOutput) -> None:
        """Restore the swapped tokens that are not in the prefix cache any more."""
        super()._move_to_running(seq, output)
        swapped = self.swapped.pop(seq, None)
        if swapped and seq.num_computed_tokens < swapped.num_tokens:
            assert isinstance(output, SwapOutput)
            output.swap_in.append(SwapIn(seq, seq.num_computed_tokens, swapped.num_tokens, swapped))
            seq.num_computed_tokens = swapped.num_tokens
            self.block_manager.cache_full_blocks(seq)
