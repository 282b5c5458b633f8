"""Speculative decoding in the serving engine: drafts of every sequence are verified in the engine's own batch."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from mlsys_lab.inference.engine.block_manager import BlockManager
from mlsys_lab.inference.engine.engine import Engine
from mlsys_lab.inference.engine.scheduler import Scheduler, SchedulerConfig, SchedulerOutput
from mlsys_lab.inference.engine.sequence import GenerationState, SampledToken, Sequence, SequenceDelta
from mlsys_lab.inference.speculative.controller import SpeculationController
from mlsys_lab.inference.speculative.decoding import propose, verify
from mlsys_lab.inference.speculative.drafters import Draft, Drafter
from mlsys_lab.models import Transformer
from mlsys_lab.validation import require_at_least_one


class SpeculativeScheduler(Scheduler):
    """Scheduler that adds the draft tokens of `draft_token_ids` to a step.

    Drafts only use what is left of tokens and blocks: no sequence is preempted for them.
    """

    def __init__(self, block_manager: BlockManager, config: SchedulerConfig) -> None:
        super().__init__(block_manager, config)
        self.draft_token_ids: dict[Sequence, list[int]] = {}

    def schedule(self) -> SchedulerOutput:
        """Compose the next step, with as many draft tokens of the sampled sequences as fit."""
        output = super().schedule()
        for seq in output.sampled:
            draft, num_tokens = self.draft_token_ids.get(seq, []), output.num_scheduled_tokens[seq]
            num_drafts = min(len(draft), output.remaining_token_budget, seq.max_tokens - seq.num_output_tokens - 1)
            while num_drafts > 0 and not self.block_manager.allocate_slots(seq, num_tokens + num_drafts):
                num_drafts -= 1
            if num_drafts > 0:
                output.draft_token_ids[seq] = draft[:num_drafts]
                output.num_scheduled_tokens[seq] += num_drafts
                output.remaining_token_budget -= num_drafts
        return output

    def update_from_output(self, output: SchedulerOutput, token_ids: Any) -> None:
        """Count accepted tokens as computed, and free the blocks of rejected drafts."""
        super().update_from_output(output, token_ids)
        for seq in output.draft_token_ids:
            while len(seq.block_table) > self.block_manager.blocks_for(seq.num_computed_tokens):
                self.block_manager.pool.free(seq.block_table.pop())


class SpeculativeEngine(Engine):
    """Engine that verifies up to `num_speculative_tokens` draft tokens of each sequence in a step.

    `drafter` makes a drafter for each sequence; sequences with a constraint go without drafts. Outputs are distributed
    as without drafts; greedy ones are equal. If `adaptive`, a controller lowers the number of drafts of all sequences
    where fewer are faster.
    """

    scheduler_class: type[SpeculativeScheduler] = SpeculativeScheduler
    scheduler: SpeculativeScheduler

    def __init__(
        self,
        model: Transformer,
        *,
        drafter: Callable[[], Drafter],
        num_speculative_tokens: int = 4,
        adaptive: bool = False,
        **options: Any,
    ) -> None:
        require_at_least_one(num_speculative_tokens=num_speculative_tokens)
        super().__init__(model, **options)
        self.controller = SpeculationController(num_speculative_tokens) if adaptive else None
        self.make_drafter, self.num_speculative_tokens = drafter, num_speculative_tokens
        self._drafters: dict[Sequence, Drafter] = {}
        self._drafts: dict[Sequence, Draft] = {}

    def step(self) -> list[SequenceDelta]:
        """Draft tokens for the running sequences, then run one step that verifies them."""
        start_s = time.perf_counter()
        num_tokens = self.controller.num_tokens() if self.controller else self.num_speculative_tokens
        self._drafts = {
            seq: propose(self._drafter(seq), self._states[seq], num_tokens)
            for seq in self.scheduler.running
            if self._states[seq].num_tokens_left > 1 and not self._states[seq].constraint and num_tokens
        }
        self.scheduler.draft_token_ids = {seq: draft.token_ids for seq, draft in self._drafts.items()}
        draft_s = time.perf_counter() - start_s
        deltas = super().step()
        output = self.last_scheduler_output
        if self.controller and output and deltas:
            drafted = [len(output.draft_token_ids.get(seq, [])) for seq in output.sampled]
            if sum(output.num_scheduled_tokens.values()) == len(drafted) + sum(drafted):  # no prompt in this step
                results = [(num, len(delta.token_ids) - 1) for num, delta in zip(drafted, deltas, strict=True)]
                self.controller.record(num_tokens, results, draft_s, time.perf_counter() - start_s - draft_s)
        return deltas

    def sample(
        self, output: SchedulerOutput, states: list[GenerationState], logits: list[torch.Tensor]
    ) -> list[list[SampledToken]]:
        """Verify drafts by logits (k + 1, V), and sample the sequences without drafts together."""
        plain = [row for row, part in enumerate(logits) if len(part) == 1]
        sampled = iter(super().sample(output, [states[row] for row in plain], [logits[row] for row in plain]))
        return [
            next(sampled) if len(part) == 1 else self._verify(seq, part)
            for seq, part in zip(output.sampled, logits, strict=True)
        ]

    def _verify(self, seq: Sequence, logits: torch.Tensor) -> list[SampledToken]:
        draft, k = self._drafts[seq], len(logits) - 1
        return verify(self._states[seq], Draft(draft.token_ids[:k], draft.probabilities[:k]), logits)

    def _drafter(self, seq: Sequence) -> Drafter:
        if seq not in self._drafters:
            self._drafters[seq] = self.make_drafter()
        return self._drafters[seq]

    def _finish(self, seq: Sequence) -> None:
        super()._finish(seq)
        self._drafters.pop(seq, None)
