"""Gradient buckets: parameters that are communicated together, while the backward pass is still running."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Generic, TypeVar

import torch
from torch import nn

from mlsys_lab.comm.collectives.steps import InFlight
from mlsys_lab.errors import InputError

Result = TypeVar("Result")


class Bucket:
    """Parameters of one dtype and device, copied to and from one flat tensor of `numel` elements."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.parameters = list(parameters)
        self.numel = sum(parameter.numel() for parameter in self.parameters)
        self.dtype, self.device = parameters[0].dtype, parameters[0].device

    def read_values(self) -> torch.Tensor:
        """Return a flat copy of all values."""
        return torch.cat([parameter.detach().reshape(-1) for parameter in self.parameters])

    def write_values(self, flat: torch.Tensor) -> None:
        """Set all values from a flat tensor, cast to the parameters' dtype."""
        for parameter, values in self.split(flat):
            parameter.data.copy_(values)

    def read_gradients(self) -> torch.Tensor:
        """Return a flat copy of all gradients. Raises InputError if a parameter has none."""
        without = [tuple(parameter.shape) for parameter in self.parameters if parameter.grad is None]
        if without:
            raise InputError(
                "parameters got no gradient",
                got=f"{len(without)} of {len(self.parameters)}, the first of shape {without[0]}",
                help="freeze what the loss does not use by requires_grad_(False)",
            )
        return torch.cat([parameter.grad.reshape(-1) for parameter in self.parameters if parameter.grad is not None])

    def write_gradients(self, flat: torch.Tensor) -> None:
        """Set all gradients from a flat tensor, in place."""
        for parameter, values in self.split(flat):
            assert parameter.grad is not None
            parameter.grad.copy_(values)

    def free_gradients(self) -> None:
        """Set all gradients to None, which frees their memory."""
        for parameter in self.parameters:
            parameter.grad = None

    def split(self, flat: torch.Tensor) -> Iterator[tuple[nn.Parameter, torch.Tensor]]:
        """Yield each parameter with its elements of a flat tensor, in the parameter's shape."""
        chunks = torch.split(flat, [parameter.numel() for parameter in self.parameters])
        for parameter, chunk in zip(self.parameters, chunks, strict=True):
            yield parameter, chunk.view(parameter.shape)


def assign_buckets(parameters: Iterable[nn.Parameter], bucket_bytes: float) -> list[Bucket]:
    """Group trainable parameters into buckets, last parameters first, as the backward pass produces their gradients.

    A bucket takes parameters of one dtype and device until the next would exceed `bucket_bytes`; a larger parameter has
    a bucket of its own (Li et al., arXiv:2006.15704, §3.2.3). Raises InputError if no parameter is trainable.
    """
    if not bucket_bytes > 0:
        raise InputError("a bucket's bytes must be positive", got=f"bucket_bytes={bucket_bytes}")
    buckets: list[list[nn.Parameter]] = []
    open_buckets: dict[tuple[torch.dtype, torch.device], tuple[list[nn.Parameter], float]] = {}
    for parameter in reversed([one for one in parameters if one.requires_grad]):
        kind, size_bytes = (parameter.dtype, parameter.device), parameter.numel() * parameter.element_size()
        bucket, free_bytes = open_buckets.get(kind, ([], 0.0))
        if not bucket or size_bytes > free_bytes:
            bucket, free_bytes = [], bucket_bytes
            buckets.append(bucket)
        bucket.append(parameter)
        open_buckets[kind] = bucket, free_bytes - size_bytes
    if not buckets:
        raise InputError("nothing to train", got="no parameter with requires_grad")
    return [Bucket(bucket) for bucket in buckets]


class BucketReducer(Generic[Result]):
    """Starts each bucket's collective in the backward pass, once its gradients and those of earlier buckets exist.

    Collectives thus start in the same order on every rank, in whatever order gradients arrive. Each gradient that
    arrives advances all collectives in flight by one step. In torch: DDP's `Reducer`.
    """

    def __init__(self, buckets: Sequence[Bucket], start_collective: Callable[[Bucket], InFlight[Result]]) -> None:
        self.buckets, self._start_collective = list(buckets), start_collective
        self._is_syncing = True
        self._in_flight: list[InFlight[Result]] = []
        self._ready: list[set[nn.Parameter]] = [set() for _ in buckets]
        for index, bucket in enumerate(buckets):
            for parameter in bucket.parameters:
                parameter.register_post_accumulate_grad_hook(partial(self._mark_ready, index))  # type: ignore[no-untyped-call]

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Context in which gradients accumulate locally and nothing is sent."""
        self._is_syncing = False
        try:
            yield
        finally:
            self._is_syncing = True

    def finish(self) -> Iterator[tuple[Bucket, Result]]:
        """Wait for all collectives; yield each bucket with its result. Raises InputError if a gradient is missing."""
        for bucket, ready in zip(self.buckets, self._ready, strict=True):
            if len(ready) < len(bucket.parameters):
                bucket.read_gradients()  # raises with the parameters that have none, if that is why
                raise InputError(
                    "no gradients have been computed since the last synchronisation",
                    got=f"{len(ready)} of a bucket's {len(bucket.parameters)}",
                    help="call backward() first, once for each synchronisation",
                )
        in_flight, self._in_flight = self._in_flight, []
        self._ready = [set() for _ in self.buckets]
        for bucket, collective in zip(self.buckets, in_flight, strict=True):
            yield bucket, collective.wait()

    def _mark_ready(self, index: int, parameter: nn.Parameter) -> None:
        if not self._is_syncing:
            return
        if parameter in self._ready[index]:
            raise InputError(
                "a gradient was added to while it was being synchronised",
                got=f"a second backward() for a parameter of shape {tuple(parameter.shape)}",
                help="call finish_gradient_synchronization() after each backward(); DDP can also use no_sync()",
            )
        self._ready[index].add(parameter)
        for collective in self._in_flight:
            collective.advance()
        while (next_index := len(self._in_flight)) < len(self.buckets):
            bucket = self.buckets[next_index]
            if len(self._ready[next_index]) < len(bucket.parameters):
                break
            self._in_flight.append(self._start_collective(bucket))
