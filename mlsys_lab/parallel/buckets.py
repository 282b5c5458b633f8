"""Buckets of gradients that are sent while the backward pass goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Generic, TypeVar

from torch import nn

from mlsys_lab.comm.collectives.steps import InFlight
from mlsys_lab.errors import InputError
from mlsys_lab.parallel.flat import FlatParameters

Result = TypeVar("Result")


class BucketReducer(Generic[Result]):
    """Starts a collective for each bucket as soon as all of its gradients are there and all buckets before it started.

    That order is the same on every rank, whatever order gradients come in. Each gradient that comes takes all
    collectives under way one step further.
    """

    def __init__(self, buckets: Sequence[FlatParameters], start: Callable[[FlatParameters], InFlight[Result]]) -> None:
        self.buckets, self._start = list(buckets), start
        self._is_on = True
        self._in_flight: list[InFlight[Result]] = []
        self._came: list[set[nn.Parameter]] = [set() for _ in buckets]
        for number, bucket in enumerate(buckets):
            for parameter in bucket.parameters:
                parameter.register_post_accumulate_grad_hook(partial(self._note, number))  # type: ignore[no-untyped-call]

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Within this context gradients add up on their rank, and nothing is sent."""
        self._is_on = False
        try:
            yield
        finally:
            self._is_on = True

    def finish(self) -> Iterator[tuple[FlatParameters, Result]]:
        """Wait for all collectives; yields each bucket and what came of it. Raises InputError without all gradients."""
        for bucket, came in zip(self.buckets, self._came, strict=True):
            if len(came) < len(bucket.parameters):
                bucket.read_gradients()  # says which have none, if that is why
                raise InputError(
                    "gradients have not been made since the last synchronisation",
                    got=f"{len(came)} of a bucket's {len(bucket.parameters)}",
                    help="call backward() first, once for each synchronisation",
                )
        in_flight, self._in_flight = self._in_flight, []
        self._came = [set() for _ in self.buckets]
        for bucket, collective in zip(self.buckets, in_flight, strict=True):
            yield bucket, collective.wait()

    def _note(self, number: int, parameter: nn.Parameter) -> None:
        if not self._is_on:
            return
        if parameter in self._came[number]:
            raise InputError(
                "a gradient was added to while it was being synchronised",
                got=f"a second backward() for a parameter of shape {tuple(parameter.shape)}",
                help="call finish_gradient_synchronization() first, or add up under no_sync()",
            )
        self._came[number].add(parameter)
        for collective in self._in_flight:
            collective.advance()
        while (next_one := len(self._in_flight)) < len(self.buckets):
            bucket = self.buckets[next_one]
            if len(self._came[next_one]) < len(bucket.parameters):
                break
            self._in_flight.append(self._start(bucket))
