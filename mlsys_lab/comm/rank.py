"""A rank as its program sees it: its number, and sends to and receives from other ranks, without global state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch

from mlsys_lab.comm.errors import MessageError
from mlsys_lab.errors import InputError


class Request(ABC):
    """A send or receive that has been posted and may still be in flight."""

    @abstractmethod
    def wait(self) -> torch.Tensor | None:
        """Wait until it is complete; return the array of a receive, None for a send."""


class Endpoint(ABC):
    """Transport of one rank, implemented by each backend: `address` among `size`, and posting of sends and receives.

    `device` is where this rank computes; `torch_group` is torch.distributed's group of all ranks, if there is one.
    """

    address: int
    size: int
    device: torch.device = torch.device("cpu")
    torch_group: Any = None

    @property
    def num_posts(self) -> int:
        """Number of sends and receives that this rank has posted, if its backend counts them."""
        raise NotImplementedError

    @abstractmethod
    def post_send(self, array: torch.Tensor, destination: int, purpose: str, channel: str) -> Request:
        """Start to send an array to an address. The array must not change until the request is complete."""

    @abstractmethod
    def post_receive(self, source: int, like: torch.Tensor | None, channel: str) -> Request:
        """Start to receive an array sent on this channel; with `like`, it must have that array's shape and dtype."""


class Rank:
    """One of the `size` ranks of a process group, with number `rank`, counted from 0.

    Sends are synchronous (rendezvous), as those of gloo, and of MPI for large messages: `send` returns once the other
    rank has received. Messages of a group between two ranks arrive in the order in which they were sent. `purpose` is
    a tag by which the ledger sums bytes.
    """

    def __init__(self, endpoint: Endpoint, members: tuple[int, ...] | None = None, channel: str = "") -> None:
        self._endpoint, self._channel = endpoint, channel
        self._groups: Counter[tuple[int, ...]] = Counter()
        self._members = tuple(range(endpoint.size)) if members is None else members
        self.rank = self._members.index(endpoint.address)
        self.size = len(self._members)

    @property
    def device(self) -> torch.device:
        """Where this rank computes: its GPU with NCCL, otherwise the CPU."""
        return self._endpoint.device

    @property
    def torch_group(self) -> Any:
        """torch.distributed's group of ALL ranks, for comparison; None on threads."""
        return self._endpoint.torch_group

    def send(self, array: torch.Tensor, destination: int, purpose: str = "") -> None:
        """Send an array to rank `destination` and wait until it has been received."""
        self.isend(array, destination, purpose).wait()

    def recv(self, source: int, like: torch.Tensor | None = None) -> torch.Tensor:
        """Wait for the next array from rank `source` and return it, in storage of its own.

        like: an array of the expected shape and dtype; MessageError for any other.
        """
        array = self.irecv(source, like).wait()
        assert array is not None
        return array

    def isend(self, array: torch.Tensor, destination: int, purpose: str = "") -> Request:
        """Start to send an array; it must not change until `wait()` on the returned request returns."""
        if not isinstance(array, torch.Tensor):
            raise InputError("a rank sends torch tensors", got=type(array).__name__, help="torch.tensor(...)")
        return self._endpoint.post_send(array.detach(), self._address(destination), purpose, self._channel)

    def irecv(self, source: int, like: torch.Tensor | None = None) -> Request:
        """Start to receive the next array from rank `source`; `wait()` on the request returns it.

        like: as in recv. With it gloo can place the array at once, instead of waiting for its shape first.
        """
        return self._endpoint.post_receive(self._address(source), like, self._channel)

    def barrier(self) -> None:
        """Wait until every rank of this group has reached the barrier: ⌈log₂ p⌉ empty messages from each rank.

        Dissemination (Hensgen, Finkel and Manber 1988): in round k a rank signals the rank 2ᵏ to its right and waits
        for the one 2ᵏ to its left.
        """
        distance, empty = 1, torch.empty(0)
        while distance < self.size:
            signal = self.isend(empty, (self.rank + distance) % self.size, "barrier")
            self.recv((self.rank - distance) % self.size, like=empty)
            signal.wait()
            distance *= 2

    def group(self, ranks: Iterable[int]) -> Rank:
        """This rank in a new group of `ranks`, whose members are numbered from 0 in the given order.

        Every member must call it with the same ranks. Messages of a group are never matched with those of another, nor
        of another call with the same ranks. Raises InputError for a group without this rank, with one rank twice, or
        with one that does not exist.
        """
        chosen = tuple(ranks)
        for one in chosen:
            self._check(one)
        if len(set(chosen)) < len(chosen):
            raise InputError("a group names each rank once", got=list(chosen))
        if self.rank not in chosen:
            raise InputError(
                "a rank can only join a group that it is in",
                got=f"rank {self.rank}, group {list(chosen)}",
                help="call group() on the ranks that it names only",
            )
        self._groups[chosen] += 1
        name = f"{self._channel}/{'.'.join(map(str, chosen))}#{self._groups[chosen]}"
        return Rank(self._endpoint, tuple(self._members[one] for one in chosen), name)

    def _address(self, rank: int) -> int:
        self._check(rank)
        if rank == self.rank:
            raise InputError("a rank cannot send to itself or receive from itself", got=f"rank {rank}")
        return self._members[rank]

    def _check(self, rank: int) -> None:
        if not 0 <= rank < self.size:
            raise InputError("no such rank", got=rank, expected=f"0 to {self.size - 1}")

    def __repr__(self) -> str:
        return f"Rank({self.rank} of {self.size})"


def describe_array(array: torch.Tensor) -> str:
    """Dtype and shape of an array as error messages show them, such as "float32 (3, 4)"."""
    return f"{str(array.dtype).removeprefix('torch.')} {tuple(array.shape)}"


def check_received(got: torch.Tensor, like: torch.Tensor | None, source: int, destination: int) -> None:
    """Raise MessageError, naming both ranks, unless a received array has the expected shape and dtype."""
    if like is not None and (got.shape != like.shape or got.dtype != like.dtype):
        raise MessageError(
            f"rank {destination} received from rank {source} another array than it expects",
            got=describe_array(got),
            expected=describe_array(like),
            help="both sides must divide the array in the same way",
        )


class Snapshot:
    """Copy of an array when its send was posted, to detect that the program changed it while it was in flight.

    With `share`, an array that fills its storage is not copied: `copy` is the array itself, and writing to it counts as
    a change even if the values stay the same.
    """

    def __init__(self, array: torch.Tensor, share: bool = False) -> None:
        self.array, self.version = array, array._version
        fills_storage = array.is_contiguous() and array.nbytes == array.untyped_storage().nbytes()
        self.copy = array if share and fills_storage else array.clone(memory_format=torch.contiguous_format)

    def require_unchanged(self, source: int, destination: int) -> None:
        """Raise MessageError, naming both ranks, if the array has changed since its send was posted."""
        # torch counts changes by storage: if the count is the same nothing changed; else another view may have.
        touched = self.array._version != self.version and self.array.numel()
        if touched and (self.copy is self.array or not torch.equal(as_bytes(self.array), as_bytes(self.copy))):
            raise MessageError(
                f"rank {source} changed an array while it was sending it to rank {destination}",
                help="wait() for the isend first, or send a copy",
            )


def as_bytes(array: torch.Tensor) -> torch.Tensor:
    """The elements as a flat array of bytes: on the same storage, if `array` is contiguous."""
    return array.contiguous().reshape(-1).view(torch.uint8)
