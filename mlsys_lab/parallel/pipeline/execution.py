"""Pipeline execution on real ranks: runs any schedule, sending activations forward and their gradients back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn

from mlsys_lab.comm import Rank, Request
from mlsys_lab.errors import InputError
from mlsys_lab.parallel.pipeline.schedules import KINDS, Action, Kind, Schedule, has_weight_passes
from mlsys_lab.parallel.pipeline.weight_grad_store import WeightGradStore
from mlsys_lab.parallel.tags import Tag

LossFn = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
COMM_KINDS = KINDS[:2]


class Pipeline:
    """This rank's chunks of a model that is split by layers over the ranks of `group`.

    chunks: this rank's modules; each maps one tensor to one tensor. Of the model's v·p chunks, in order of application,
    rank r holds r, p + r, 2p + r and so on. In torch: `torch.distributed.pipelining`.
    """

    def __init__(self, chunks: Sequence[nn.Module], group: Rank) -> None:
        if not chunks or (group.size == 1 and len(chunks) > 1):
            got = f"{len(chunks)} on each of {group.size} ranks"
            raise InputError("a pipeline needs at least one model chunk per rank, and exactly one on one rank", got=got)
        self.chunks, self._group = list(chunks), group
        # A channel for each direction and chunk, so that a message never queues behind one of another chunk.
        ranks, indices = range(group.size), range(len(chunks))
        self._channels = {(kind, chunk): group.group(ranks) for kind in COMM_KINDS for chunk in indices}

    def step(
        self,
        schedule: Schedule,
        inputs: Sequence[torch.Tensor],
        targets: Sequence[torch.Tensor],
        loss_fn: LossFn,
        backward_context: Callable[[int, bool], AbstractContextManager[None]] = lambda chunk, is_last: nullcontext(),
    ) -> torch.Tensor | None:
        """Run the schedule; add the gradients of the mean loss over micro-batches to this rank's parameters.

        inputs, targets: one tensor for each micro-batch; the first rank reads the inputs, the last one the targets.
        backward_context: called with the chunk's index and whether this is the chunk's last pass of its kind; returns
        the context of each pass that accumulates gradients, in which data parallelism can synchronise them. In a
        schedule with weight-gradient passes, those passes accumulate the gradients of linear layers.

        Returns the mean loss on the last rank, None on all others. Raises InputError if the schedule does not match the
        ranks, chunks or micro-batches.
        """
        if len(inputs) != len(targets):
            raise InputError("every micro-batch needs inputs and targets", got=f"{len(inputs)} and {len(targets)}")
        splits_backward = has_weight_passes(schedule)
        self._check(schedule, len(inputs), KINDS if splits_backward else COMM_KINDS)
        chunk_inputs: dict[tuple[int, int], torch.Tensor] = {}
        outputs: dict[tuple[int, int], torch.Tensor] = {}
        stores: dict[tuple[int, int], WeightGradStore] = {}
        sends: list[Request] = []
        losses = []
        order = schedule[self._group.rank]
        last = {(action.kind, action.chunk): number for number, action in enumerate(order)}
        for number, action in enumerate(order):
            key, is_last = action[1:], last[action.kind, action.chunk] == number
            if action.kind == "forward":
                x = self._receive(action)
                chunk_inputs[key] = inputs[action.micro_batch] if x is None else x.requires_grad_()
                stores[key] = WeightGradStore()
                with stores[key] if splits_backward else nullcontext():
                    output = self.chunks[action.chunk](chunk_inputs[key])
                if self._stage(action.chunk) == self._last_stage:
                    output = loss_fn(output, targets[action.micro_batch]) / len(inputs)
                    losses.append(output.detach())
                outputs[key] = output
                sends += self._send(action, output)
            elif action.kind == "backward":
                gradient = self._receive(action)
                with backward_context(action.chunk, is_last):
                    torch.autograd.backward(outputs.pop(key), gradient)
                sends += self._send(action, chunk_inputs.pop(key).grad)
            else:
                with backward_context(action.chunk, is_last):
                    stores.pop(key).backward()
        for request in sends:
            request.wait()
        return torch.stack(losses).sum() if losses else None

    @torch.no_grad()
    def evaluate(
        self, schedule: Schedule, inputs: Sequence[torch.Tensor], targets: Sequence[torch.Tensor], loss_fn: LossFn
    ) -> torch.Tensor | None:
        """Run the schedule's forward passes only, without gradients; arguments and result are those of `step`."""
        sends: list[Request] = []
        losses = []
        for action in schedule[self._group.rank]:
            if action.kind == "forward":
                x = self._receive(action)
                output = self.chunks[action.chunk](inputs[action.micro_batch] if x is None else x)
                if self._stage(action.chunk) == self._last_stage:
                    losses.append(loss_fn(output, targets[action.micro_batch]) / len(inputs))
                sends += self._send(action, output)
        for request in sends:
            request.wait()
        return torch.stack(losses).sum() if losses else None

    @property
    def _last_stage(self) -> int:
        return len(self.chunks) * self._group.size - 1

    def _stage(self, chunk: int) -> int:
        """Index of one of this rank's chunks among the model's v·p."""
        return chunk * self._group.size + self._group.rank

    def _receive(self, action: Action) -> torch.Tensor | None:
        """Activations from the previous stage, or gradients from the next one; None at the ends of the model."""
        stage = self._stage(action.chunk)
        source = stage - 1 if action.kind == "forward" else stage + 1
        if not 0 <= source <= self._last_stage:
            return None
        channel = self._channels[action.kind, action.chunk]
        return channel.recv(source % channel.size)

    def _send(self, action: Action, array: torch.Tensor | None) -> list[Request]:
        """Start to send activations to the next stage, or gradients to the previous one, unless there is none."""
        stage, is_forward = self._stage(action.chunk), action.kind == "forward"
        destination = stage + 1 if is_forward else stage - 1
        if not 0 <= destination <= self._last_stage:
            return []
        assert array is not None
        size = self._group.size
        channel = self._channels[action.kind, destination // size]
        return [
            channel.isend(
                array.detach(), destination % size, Tag.STAGE_ACTIVATIONS if is_forward else Tag.STAGE_GRADIENTS
            )
        ]

    def _check(self, schedule: Schedule, micro_batches: int, kinds: Sequence[Kind]) -> None:
        size, chunks = self._group.size, len(self.chunks)
        order = schedule[self._group.rank] if len(schedule) == size else []
        expected = [Action(kind, i, chunk) for kind in kinds for i in range(micro_batches) for chunk in range(chunks)]
        if sorted(order) != sorted(expected):
            raise InputError(
                "the schedule does not match the pipeline",
                got=f"{len(schedule)} ranks, {len(order)} actions on this rank",
                expected=f"{size} ranks, forward and backward of {micro_batches} micro-batches through {chunks} chunks",
            )
