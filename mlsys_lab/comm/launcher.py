"""Run a program on several ranks: on threads that take turns, or on processes connected by gloo or NCCL."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from mlsys_lab.comm.errors import MessageError
from mlsys_lab.comm.ledger import Ledger
from mlsys_lab.comm.rank import Rank
from mlsys_lab.comm.threads import run_threads
from mlsys_lab.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from mlsys_lab.comm.cost.topology import Topology  # a lab may withhold costs

Backend = Literal["threads", "gloo", "nccl"]
BACKENDS = ("threads", "gloo", "nccl")


class Run(NamedTuple):
    """Each rank's result, in order of rank, and the ledger of all messages."""

    results: list[Any]
    ledger: Ledger


def run(
    function: Callable[[Rank, Any], Any],
    inputs: Sequence[Any],
    *,
    backend: Backend = "threads",
    topology: Topology | None = None,
    limit_s: float = 60.0,
) -> Run:
    """Call `function(rank, input)` on one rank for each of `inputs`, and wait for all ranks.

    backend: "threads" (deterministic, one rank runs at a time, in this process), or "gloo" or "nccl" (one process for
    each rank, in parallel; NCCL needs a GPU for each). Each rank has its own random state, seeded with its number.
    topology: what connects the ranks (`mlsys_lab.comm.cost.topology`). The ledger's times are then seconds, as if each
    message had its route to itself and nothing else took time. Without a topology they are latency steps.
    limit_s: how long a rank may run without a message: CPU seconds on threads, wall-clock seconds otherwise.

    Raises DeadlockError when no rank can continue (detected exactly on threads, by the time limit otherwise), RankError
    when a rank raises, dies or does not end, MessageError for a message that does not fit, and InputError for bad
    arguments. All other ranks are then stopped.

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
    if backend not in BACKENDS:
        help_ = did_you_mean(backend, BACKENDS)
        raise InputError("unknown backend", got=backend, expected=" or ".join(BACKENDS), help=help_)
    if backend == "threads":
        results, logs = run_threads(function, inputs, limit_s)
    else:
        from mlsys_lab.comm.processes import run_processes

        results, logs = run_processes(function, inputs, backend, limit_s)
    ledger = Ledger(logs, topology.message_s if topology else None)
    if ledger.unmatched:
        rank, post = ledger.unmatched[0]
        what = f"all ranks have ended, but {post.describe(rank)}"
        raise MessageError(what, help="every send needs a matching receive")
    return Run(results, ledger)
