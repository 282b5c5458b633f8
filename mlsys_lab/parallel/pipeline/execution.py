"""A pipeline on real ranks: activations go to the next chunk of layers, their gradients come back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn

from mlsys_lab.comm import Rank, Request
from mlsys_lab.errors import InputError
from mlsys_lab.parallel.pipeline.late_weights import WeightGradStore
from mlsys_lab.parallel.pipeline.schedules import KINDS, Action, Kind, Schedule, has_weight_passes

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
ACTIVATIONS, GRADIENTS = "activations between stages", "gradients between stages"
WAYS = KINDS[:2]
"""Kinds of passes that send to the next chunk, or to the one before."""


class Pipeline:
    """This rank's chunks of a model that is divided over the ranks of `group`, layer after layer.

    chunks: this rank's modules, each from one tensor to one tensor: of all v·p in the order in which they are applied,
    rank r has those with numbers r, p + r, 2p + r and so on. In torch: `torch.distributed.pipelining`.
    """

    def __init__(self, chunks: Sequence[nn.Module], group: Rank) -> None:
        if not chunks or (group.size == 1 and len(chunks) > 1):
            got = f"{len(chunks)} on each of {group.size} ranks"
            raise InputError("a pipeline has at least one chunk of layers a rank, and one rank one chunk", got=got)
        self.chunks, self._group = list(chunks), group
        # Each way of each chunk has a channel of its own, so that messages of one never stand before another's.
        everyone, numbers = range(group.size), range(len(chunks))
        self._ways = {(kind, chunk): group.group(everyone) for kind in WAYS for chunk in numbers}

    def step(
        self,
        schedule: Schedule,
        inputs: Sequence[torch.Tensor],
        targets: Sequence[torch.Tensor],
        loss: Loss,
        backward_context: Callable[[int, bool], AbstractContextManager[None]] = lambda chunk, is_last: nullcontext(),
    ) -> torch.Tensor | None:
        """Go through the schedule; add the gradients of the mean loss over micro-batches to this rank's parameters.

        inputs, targets: of each micro-batch; the first rank reads the inputs, the last one the targets.
        backward_context: a context for every pass that adds to gradients, given the number of this rank's chunk and
        whether it is the chunk's last of its kind: where data parallelism sends gradients. Where a schedule has passes
        for the weights' gradients, those of linear layers are added there. Returns the mean loss on the last rank and
        None on the others. Raises InputError for a schedule of other ranks, chunks or micro-batches.
        """
        split = has_weight_passes(schedule)
        self._check(schedule, len(inputs), KINDS if split else WAYS)
        given: dict[tuple[int, int], torch.Tensor] = {}
        results: dict[tuple[int, int], torch.Tensor] = {}
        late: dict[tuple[int, int], WeightGradStore] = {}
        sent: list[Request] = []
        losses = []
        order = schedule[self._group.rank]
        last = {(action.kind, action.chunk): number for number, action in enumerate(order)}
        for number, action in enumerate(order):
            where, is_last = action[1:], last[action.kind, action.chunk] == number
            if action.kind == "forward":
                x = self._receive(action)
                given[where] = inputs[action.micro_batch] if x is None else x.requires_grad_()
                late[where] = WeightGradStore()
                with late[where] if split else nullcontext():
                    result = self.chunks[action.chunk](given[where])
                if self._stage(action.chunk) == self._last:
                    result = loss(result, targets[action.micro_batch]) / len(inputs)
                    losses.append(result.detach())
                results[where] = result
                sent += self._send(action, result)
            elif action.kind == "backward":
                gradient = self._receive(action)
                with backward_context(action.chunk, is_last):
                    torch.autograd.backward(results.pop(where), gradient)
                sent += self._send(action, given.pop(where).grad)
            else:
                with backward_context(action.chunk, is_last):
                    late.pop(where).backward()
        for request in sent:
            request.wait()
        return torch.stack(losses).sum() if losses else None

    @property
    def _last(self) -> int:
        return len(self.chunks) * self._group.size - 1

    def _stage(self, chunk: int) -> int:
        return chunk * self._group.size + self._group.rank

    def _receive(self, action: Action) -> torch.Tensor | None:
        """What the chunk before has sent, or backward the one behind; None at the ends of the model."""
        stage = self._stage(action.chunk)
        source = stage - 1 if action.kind == "forward" else stage + 1
        if not 0 <= source <= self._last:
            return None
        way = self._ways[action.kind, action.chunk]
        return way.recv(source % way.size)

    def _send(self, action: Action, array: torch.Tensor | None) -> list[Request]:
        """Start to send to the chunk behind, or backward to the one before; nothing at the ends of the model."""
        stage, forward = self._stage(action.chunk), action.kind == "forward"
        destination = stage + 1 if forward else stage - 1
        if not 0 <= destination <= self._last:
            return []
        assert array is not None
        size = self._group.size
        way = self._ways[action.kind, destination // size]
        return [way.isend(array.detach(), destination % size, ACTIVATIONS if forward else GRADIENTS)]

    def _check(self, schedule: Schedule, micro_batches: int, kinds: Sequence[Kind]) -> None:
        size, chunks = self._group.size, len(self.chunks)
        order = schedule[self._group.rank] if len(schedule) == size else []
        each = [Action(kind, i, chunk) for kind in kinds for i in range(micro_batches) for chunk in range(chunks)]
        if sorted(order) != sorted(each):
            raise InputError(
                "the schedule is of another pipeline",
                got=f"{len(schedule)} ranks, {len(order)} actions here",
                expected=f"{size} ranks, each of {micro_batches} micro-batches forward and backward by {chunks} chunks",
            )
