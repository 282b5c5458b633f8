"""LoRA in the serving engine: each token of a batch is computed under the adapter of its request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from mlsys_lab.errors import InputError
from mlsys_lab.inference.adapters.adapter import Adapter
from mlsys_lab.inference.adapters.batched import AdapterBank
from mlsys_lab.inference.engine.engine import Engine
from mlsys_lab.inference.engine.model_runner import ModelRunner
from mlsys_lab.inference.engine.scheduler import Scheduler, SchedulerOutput
from mlsys_lab.inference.engine.sequence import Request
from mlsys_lab.models import Transformer


class LoRAModelRunner:
    """Wraps a model runner: the salt of a sequence's prefix cache is the name of its adapter."""

    def __init__(self, model_runner: ModelRunner, adapters: AdapterBank) -> None:
        self.model_runner, self.adapters = model_runner, adapters

    def run(self, output: SchedulerOutput) -> list[torch.Tensor]:
        """Compute all scheduled tokens, each under the adapter of its sequence."""
        names = [seq.cache_salt for seq, n in output.num_scheduled_tokens.items() for _ in range(n)]
        with self.adapters.apply(names):
            return self.model_runner.run(output)


class LoRAEngine(Engine):
    """Engine that serves a model under many LoRA adapters, by name, in one batch.

    Keys and values depend on the adapter, so requests under different adapters share no blocks. Adapters take no
    memory from `num_blocks`. InputError for an adapter that does not fit the model, and for a scheduler of another
    class, which may mix up the blocks of different adapters.
    """

    def __init__(self, model: Transformer, *, adapters: Mapping[str, Adapter], **options: Any) -> None:
        scheduler = options.get("scheduler")
        if scheduler is not None and not isinstance(scheduler, Scheduler):
            got, expected = type(scheduler).__name__, "one of the package's class Scheduler"
            raise InputError("a scheduler without adapters", got=got, expected=expected)
        super().__init__(model, **options)
        self.adapters = AdapterBank(model, adapters)
        self.model_runner = LoRAModelRunner(self.model_runner, self.adapters)  # type: ignore[assignment]

    def add_request(self, request: Request, *, priority: int = 0, adapter: str | None = None) -> int:  # type: ignore[override]
        """Queue a request to be served under the adapter of this name, or by the model itself; see `Engine`.

        InputError for an unknown adapter.
        """
        if adapter is not None:
            self.adapters.require(adapter)
        return super().add_request(request, priority=priority, cache_salt=adapter)
