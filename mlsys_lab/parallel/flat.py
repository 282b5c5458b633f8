"""Parameters laid end to end in one flat array, so that one message carries many of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import nn

from mlsys_lab.errors import InputError


class FlatParameters:
    """Parameters of one dtype and one device, in order, whose elements are counted through as if in one array."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.parameters = list(parameters)
        self.numel = sum(parameter.numel() for parameter in self.parameters)
        self.dtype, self.device = parameters[0].dtype, parameters[0].device

    def read_values(self) -> torch.Tensor:
        """Return all values in a flat array of their own."""
        return torch.cat([parameter.detach().reshape(-1) for parameter in self.parameters])

    def write_values(self, flat: torch.Tensor) -> None:
        """Set all values from a flat array, cast to the parameters' dtype."""
        for parameter, part in self.divide(flat):
            parameter.data.copy_(part)

    def read_gradients(self) -> torch.Tensor:
        """Return all gradients in a flat array of their own. Raises InputError where a parameter has none."""
        without = [tuple(parameter.shape) for parameter in self.parameters if parameter.grad is None]
        if without:
            raise InputError(
                "parameters got no gradient",
                got=f"{len(without)} of {len(self.parameters)}, the first of shape {without[0]}",
                help="freeze what the loss does not use by requires_grad_(False)",
            )
        return torch.cat([parameter.grad.reshape(-1) for parameter in self.parameters if parameter.grad is not None])

    def write_gradients(self, flat: torch.Tensor) -> None:
        """Set all gradients from a flat array, in place."""
        for parameter, part in self.divide(flat):
            assert parameter.grad is not None
            parameter.grad.copy_(part)

    def free_gradients(self) -> None:
        """Forget all gradients, and give their memory back."""
        for parameter in self.parameters:
            parameter.grad = None

    def divide(self, flat: torch.Tensor) -> Iterator[tuple[nn.Parameter, torch.Tensor]]:
        """Yield each parameter with its part of a flat array, in its shape."""
        parts = torch.split(flat, [parameter.numel() for parameter in self.parameters])
        for parameter, part in zip(self.parameters, parts, strict=True):
            yield parameter, part.view(parameter.shape)


def assign_buckets(parameters: Iterable[nn.Parameter], bucket_bytes: float) -> list[FlatParameters]:
    """Divide the parameters that are trained into buckets, last ones first, as the backward pass has their gradients.

    A bucket takes parameters of one dtype and device until the next would make it more than `bucket_bytes`; one that is
    larger by itself has a bucket of its own (Li et al., arXiv:2006.15704, §3.2.3). Raises InputError where nothing is
    trained.
    """
    if not bucket_bytes > 0:
        raise InputError("a bucket's bytes must be positive", got=f"bucket_bytes={bucket_bytes}")
    buckets: list[list[nn.Parameter]] = []
    room: dict[tuple[torch.dtype, torch.device], tuple[list[nn.Parameter], float]] = {}
    for parameter in reversed([one for one in parameters if one.requires_grad]):
        kind, size_bytes = (parameter.dtype, parameter.device), parameter.numel() * parameter.element_size()
        bucket, left = room.get(kind, ([], 0.0))
        if not bucket or size_bytes > left:
            bucket, left = [], bucket_bytes
            buckets.append(bucket)
        bucket.append(parameter)
        room[kind] = bucket, left - size_bytes
    if not buckets:
        raise InputError("nothing to train", got="no parameter with requires_grad")
    return [FlatParameters(bucket) for bucket in buckets]
