"""The engine: continuous batching of requests that arrive at any time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch

from mlsys_lab.errors import InputError
from mlsys_lab.inference.engine.block_manager import BlockManager
from mlsys_lab.inference.engine.model_runner import ModelRunner
from mlsys_lab.inference.engine.sampler import create_generation_states, sample
from mlsys_lab.inference.engine.scheduler import Scheduler, SchedulerConfig, SchedulerOutput
from mlsys_lab.inference.engine.sequence import (
    CompletionOutput,
    GenerationState,
    Request,
    SampledToken,
    Sequence,
    SequenceDelta,
    SequenceStats,
)

if TYPE_CHECKING:
    from mlsys_lab.models import Transformer


class Engine:
    """Continuous-batching engine on a KV cache of `num_blocks` blocks of `block_size` tokens.

    A request's output is independent of batching, preemption and prefix caching, up to the rounding of logits: greedy
    or with a seed, it equals that of `generate`. `scheduler` replaces the engine's own, of which `config` is the
    configuration; InputError unless it manages as many blocks of the same size. `compiled` compiles attention for a
    CPU, which an engine repays that runs for longer than seconds. Extensions are subclasses that extend `step`, replace
    `sample`, or name another scheduler and model runner.
    """

    scheduler_class = Scheduler
    model_runner_class = ModelRunner

    def __init__(
        self,
        model: Transformer,
        *,
        num_blocks: int,
        block_size: int = 16,
        config: SchedulerConfig | None = None,
        scheduler: Scheduler | None = None,
        compiled: bool = False,
    ) -> None:
        self.model = model
        if scheduler is None:
            block_manager = BlockManager(num_blocks, block_size)
            scheduler = self.scheduler_class(block_manager, config or SchedulerConfig())
        elif config is not None:
            raise InputError("a scheduler has its own configuration", got="both", help="leave out config")
        self.scheduler = scheduler
        manager = scheduler.block_manager
        if (manager.pool.num_blocks, manager.block_size) != (num_blocks, block_size):
            got, expected = f"{manager.pool.num_blocks} of {manager.block_size}", f"{num_blocks} of {block_size} tokens"
            raise InputError("the scheduler manages other blocks than the engine", got=got, expected=expected)
        self.model_runner = self.model_runner_class(model, num_blocks, block_size)
        if compiled:
            self.model_runner.compile()
        self.last_scheduler_output: SchedulerOutput | None = None
        self._states: dict[Sequence, GenerationState] = {}
        self._added_s: dict[Sequence, float] = {}
        self._first_step_s: dict[Sequence, float] = {}
        self._num_requests = 0

    @property
    def is_idle(self) -> bool:
        """Whether every request has finished."""
        return self.scheduler.is_idle

    def add_request(self, request: Request, *, priority: int = 0, cache_salt: str | None = None) -> int:
        """Queue the sequences of a request and return its id; a higher `priority` is served earlier, unlike in vLLM.

        Raises InputError if the model cannot serve the request, or if it can outgrow the cache.
        """
        request.validate(self.model)
        request_id = self._num_requests
        prompt, max_tokens = request.prompt_token_ids, request.max_tokens
        # A scheduler of lab 11 need not know these.
        options: dict[str, Any] = {"priority": priority, "cache_salt": cache_salt} if priority or cache_salt else {}
        for state in create_generation_states(request, request_id):
            seq = self.scheduler.add(prompt, max_tokens, **options)
            self._states[seq] = state
            self._added_s[seq] = time.monotonic()
        self._num_requests += 1
        return request_id

    def step(self) -> list[SequenceDelta]:
        """Run one step and return the tokens it generated, none if it only computed parts of prompts."""
        if self.scheduler.is_idle:
            return []
        self.last_scheduler_output = output = self.scheduler.schedule()
        now_s = time.monotonic()
        for seq in output.num_scheduled_tokens:
            self._first_step_s.setdefault(seq, now_s)
        logits = self.model_runner.run(output)
        states = [self._states[seq] for seq in output.sampled]
        sampled = self.sample(output, states, logits)
        outputs = [
            state.extend(tokens, self._stats(seq))
            for seq, state, tokens in zip(output.sampled, states, sampled, strict=True)
        ]
        self.scheduler.update_from_output(output, [one.token_ids for one in outputs])
        for seq, state in zip(output.sampled, states, strict=True):
            if state.completion:
                self._finish(seq)
        for state, one in zip(states, outputs, strict=True):
            state.call_on_token(one.token_ids)
        return outputs

    def abort_request(self, request_id: int) -> None:
        """Remove an unfinished request and free its blocks; raises InputError if no unfinished request has this id."""
        sequences = [seq for seq, state in self._states.items() if state.request_id == request_id]
        if not sequences:
            raise InputError("no unfinished request with this id", got=request_id)
        for seq in sequences:
            self._finish(seq)

    def run(self) -> dict[int, list[CompletionOutput]]:
        """Step until every request has finished.

        Returns the completions that finished during this call, by request id and in order of sequence index.
        """
        completions: dict[int, dict[int, CompletionOutput]] = {}
        while not self.is_idle:
            for output in self.step():
                if output.completion:
                    completions.setdefault(output.request_id, {})[output.index] = output.completion
        return {request_id: [found[index] for index in sorted(found)] for request_id, found in completions.items()}

    def sample(
        self, output: SchedulerOutput, states: list[GenerationState], logits: list[torch.Tensor]
    ) -> list[list[SampledToken]]:
        """Tokens with log-probabilities of each sampled sequence, from its logits (1, V)."""
        return [[sampled] for sampled in sample(states, torch.cat(logits))] if logits else []

    def _stats(self, seq: Sequence) -> SequenceStats:
        num_cached_tokens = min(seq.num_cached_tokens, seq.num_prompt_tokens)  # counted again after a preemption
        queue_time_s = self._first_step_s[seq] - self._added_s[seq]
        return SequenceStats(num_cached_tokens, seq.num_preemptions, queue_time_s)

    def _finish(self, seq: Sequence) -> None:
        self.scheduler.finish(seq)
        del self._states[seq], self._added_s[seq]
        self._first_step_s.pop(seq, None)
