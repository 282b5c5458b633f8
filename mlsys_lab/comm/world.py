"""Run one program on several ranks: on threads that take turns, or on processes that talk over gloo or NCCL."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from mlsys_lab.comm.ledger import Ledger
from mlsys_lab.comm.rank import Rank
from mlsys_lab.comm.threads import run_threads
from mlsys_lab.comm.trouble import MessageError
from mlsys_lab.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from mlsys_lab.comm.cost.topology import Topology  # a lab may withhold costs

WorldName = Literal["threads", "gloo", "nccl"]
WORLDS = ("threads", "gloo", "nccl")


class Run(NamedTuple):
    """What a run gives back: each rank's result, in order, and the ledger of all messages."""

    results: list[Any]
    ledger: Ledger


def run(
    function: Callable[[Rank, Any], Any],
    inputs: Sequence[Any],
    *,
    world: WorldName = "threads",
    topology: Topology | None = None,
    limit_s: float = 60.0,
) -> Run:
    """Call `function(rank, input)` once for each of `inputs`, each on a rank of its own, and wait for all of them.

    world: "threads" (deterministic, one rank at a time, in this process), or "gloo" and "nccl" (a process a rank,
    really at once; NCCL needs a GPU for each). Each rank has its own random state, seeded with its number.
    topology: what connects the ranks (`mlsys_lab.comm.cost.topology`). Times of the ledger are then seconds, as if each
    message had its way to itself and nothing else took time; without a topology they are latency steps.
    limit_s: how long a rank may go without a message, in CPU seconds on threads, and in seconds on the clock otherwise.

    Raises DeadlockError when no rank can go on (told exactly on threads, by the time limit elsewhere), RankError when
    one raises, dies or does not end, MessageError for a message that does not fit, InputError for bad arguments. Then
    all other ranks are stopped.

    >>> import torch
    >>> def pass_right(rank, x):
    ...     request = rank.isend(x, (rank.rank + 1) % rank.size)
    ...     got = rank.recv((rank.rank - 1) % rank.size, like=x)
    ...     request.wait()
    ...     return got
    >>> results, ledger = run(pass_right, [torch.tensor([r]) for r in range(3)])
    >>> results, ledger
    ([tensor([2]), tensor([0]), tensor([1])], Ledger(3 ranks, 3 messages, 24 bytes, 1 steps))
    """
    if len(inputs) < 1:
        raise InputError("a run needs at least one rank", got="no inputs", expected="one input for each rank")
    if not limit_s > 0:
        raise InputError("a limit must be positive", got=f"limit_s={limit_s}")
    if topology and topology.size != len(inputs):
        raise InputError("the topology has another number of ranks", got=topology.size, expected=len(inputs))
    if world not in WORLDS:
        raise InputError("no such world", got=world, expected=" or ".join(WORLDS), help=did_you_mean(world, WORLDS))
    if world == "threads":
        results, logs = run_threads(function, inputs, limit_s)
    else:
        from mlsys_lab.comm.processes import run_processes

        results, logs = run_processes(function, inputs, world, limit_s)
    ledger = Ledger(logs, topology.message_s if topology else None)
    if ledger.unmatched:
        rank, post = ledger.unmatched[0]
        raise MessageError(f"all ranks have ended, but {post.describe(rank)}", help="every send needs its receive")
    return Run(results, ledger)
