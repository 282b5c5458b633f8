"""A rank as its program sees it: its number, and sends and receives to the others. There is no global process group."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch

from mlsys_lab.comm.trouble import MessageError
from mlsys_lab.errors import InputError


class Request(ABC):
    """A send or receive that has been posted and may still be under way."""

    @abstractmethod
    def wait(self) -> torch.Tensor | None:
        """Wait until it is done; returns the array of a receive, None for a send."""


class Endpoint(ABC):
    """What a world gives each of its ranks: `address` among `size`, and a way to post messages to other addresses.

    `device` is where this rank computes; `torch_group` is torch.distributed's group of all ranks, where there is one.
    """

    address: int
    size: int
    device: torch.device = torch.device("cpu")
    torch_group: Any = None

    @property
    def num_posts(self) -> int:
        """Number of sends and receives that this rank has posted, where its world counts them."""
        raise NotImplementedError

    @abstractmethod
    def post_send(self, array: torch.Tensor, destination: int, purpose: str, channel: str) -> Request:
        """Start to send an array to an address. It must not change until the request is done."""

    @abstractmethod
    def post_receive(self, source: int, like: torch.Tensor | None, channel: str) -> Request:
        """Start to receive an array sent on this channel; with `like`, one of its shape and dtype and no other."""


class Rank:
    """One of `size` processes that run the same program: number `rank`, counted from 0.

    Sends are synchronous (rendezvous), as gloo's and MPI's for large messages are: `send` returns when the other side
    has received. Messages of a group between two ranks arrive in the order in which they were sent. `purpose` is a tag
    that the ledger adds bytes up by.
    """

    def __init__(self, endpoint: Endpoint, members: tuple[int, ...] | None = None, channel: str = "") -> None:
        self._endpoint, self._channel = endpoint, channel
        self._groups: Counter[tuple[int, ...]] = Counter()
        self._members = tuple(range(endpoint.size)) if members is None else members
        self.rank = self._members.index(endpoint.address)
        self.size = len(self._members)

    @property
    def device(self) -> torch.device:
        """Where this rank computes: its GPU in the world of NCCL, the CPU elsewhere."""
        return self._endpoint.device

    @property
    def torch_group(self) -> Any:
        """torch.distributed's group of ALL ranks in worlds of processes, for comparison; None on threads."""
        return self._endpoint.torch_group

    def send(self, array: torch.Tensor, destination: int, purpose: str = "") -> None:
        """Send an array to rank `destination` and wait until it has been received there."""
        self.isend(array, destination, purpose).wait()

    def recv(self, source: int, like: torch.Tensor | None = None) -> torch.Tensor:
        """Wait for the next array from rank `source` and return it, in storage of its own.

        like: an array of the shape and dtype that must come; MessageError for any other.
        """
        array = self.irecv(source, like).wait()
        assert array is not None
        return array

    def isend(self, array: torch.Tensor, destination: int, purpose: str = "") -> Request:
        """Start to send an array and return at once; it must not change until `wait()` on the request returns."""
        if not isinstance(array, torch.Tensor):
            raise InputError("a rank sends torch tensors", got=type(array).__name__, help="torch.tensor(...)")
        return self._endpoint.post_send(array.detach(), self._address(destination), purpose, self._channel)

    def irecv(self, source: int, like: torch.Tensor | None = None) -> Request:
        """Start to receive the next array from rank `source`; `wait()` on the request returns it. `like` as in recv."""
        return self._endpoint.post_receive(self._address(source), like, self._channel)

    def barrier(self) -> None:
        """Wait until every rank of this group has come here, by dissemination: ⌈log₂ p⌉ empty messages from each.

        Hensgen, Finkel and Manber 1988: in round k a rank tells the one 2ᵏ to its right and hears from 2ᵏ to its left.
        """
        distance, nothing = 1, torch.empty(0)
        while distance < self.size:
            told = self.isend(nothing, (self.rank + distance) % self.size, "barrier")
            self.recv((self.rank - distance) % self.size)
            told.wait()
            distance *= 2

    def group(self, ranks: Iterable[int]) -> Rank:
        """This rank as a member of a smaller group: `ranks`, in whose order its members are numbered from 0.

        Every member must call it with the same ranks. Messages of a group never meet those of another, nor of another
        call with the same ranks. Raises InputError for a group that lacks this rank, names one
        twice, or names one that there is not.
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


def describe(array: torch.Tensor) -> str:
    """Dtype and shape of an array as error messages show them, such as "float32 (3, 4)"."""
    return f"{str(array.dtype).removeprefix('torch.')} {tuple(array.shape)}"


def require_alike(got: torch.Tensor, like: torch.Tensor | None, source: int, destination: int) -> None:
    """Raise MessageError naming both ranks if an array that arrives has not the shape and dtype that was asked for."""
    if like is not None and (got.shape != like.shape or got.dtype != like.dtype):
        raise MessageError(
            f"rank {destination} received from rank {source} another array than it waits for",
            got=describe(got),
            expected=describe(like),
            help="both sides must divide the array in the same way",
        )


class Snapshot:
    """An array as it was when its send was posted, to notice that the program changed it while it was sent."""

    def __init__(self, array: torch.Tensor) -> None:
        self.array, self.version = array, array._version
        self.copy = array.clone(memory_format=torch.contiguous_format)

    def require_unchanged(self, source: int, destination: int) -> None:
        """Raise MessageError naming both ranks if the array no longer has the numbers it was posted with."""
        # torch counts changes by storage: with the same count nothing changed, with another it may be a neighbour.
        touched = self.array._version != self.version and self.array.numel()
        if touched and not torch.equal(as_bytes(self.array), as_bytes(self.copy)):
            raise MessageError(
                f"rank {source} changed an array while it was sending it to rank {destination}",
                help="wait() for the isend first, or send a copy",
            )


def as_bytes(array: torch.Tensor) -> torch.Tensor:
    """The elements as a flat array of bytes: on the same storage, if `array` is contiguous."""
    return array.contiguous().reshape(-1).view(torch.uint8)
