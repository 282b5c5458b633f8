"""Pipeline schedules: the order in which each rank runs its passes, which determines the bubble and the memory.

A schedule is data. `execution` runs it on real ranks and `simulation` on simulated ones. Letters: p ranks,
m micro-batches, v model chunks on each rank (virtual stages). Rank r holds chunks r, p + r, 2p + r, … of the model's
v·p, so a micro-batch goes round the ranks v times.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from mlsys_lab.errors import InputError

Kind = Literal["forward", "backward", "weight"]
KINDS: tuple[Kind, Kind, Kind] = ("forward", "backward", "weight")


class Action(NamedTuple):
    """A pass of one micro-batch through one of the rank's model chunks, both counted from 0.

    In a schedule with passes of kind "weight" (zero bubble's W), those compute weight gradients and "backward" (B) the
    gradient of the chunk's input only. In any other schedule "backward" computes both.
    """

    kind: Kind
    micro_batch: int
    chunk: int = 0


Schedule = list[list[Action]]
"""Actions of each rank, in order."""


def gpipe(ranks: int, micro_batches: int) -> Schedule:
    """All forward passes, then all backward passes (Huang et al., arXiv:1811.06965): m micro-batches in flight."""
    _require_positive(ranks, micro_batches)
    one = [Action("forward", i) for i in range(micro_batches)] + [Action("backward", i) for i in range(micro_batches)]
    return [list(one) for _ in range(ranks)]


def one_forward_one_backward(ranks: int, micro_batches: int) -> Schedule:
    """1F1B (PipeDream-flush, arXiv:2006.09503): warm up, then alternate forward and backward passes, then cool down.

    The bubble is that of `gpipe`; rank r has at most p - r micro-batches in flight.
    """
    return interleaved(ranks, micro_batches, num_chunks=1)


def interleaved(ranks: int, micro_batches: int, num_chunks: int) -> Schedule:
    """1F1B with v model chunks on each rank (Narayanan et al., arXiv:2104.04473, §2.2): the bubble divided by v.

    Micro-batches advance in groups of p: each group through a rank's first chunk, then through its second. The price is
    v times as many messages. With v > 1, raises InputError unless p divides m.
    """
    _require_positive(ranks, micro_batches)
    if num_chunks < 1:
        raise InputError("a rank needs at least one model chunk", got=num_chunks)
    if num_chunks > 1 and micro_batches % ranks:
        got = f"{micro_batches} over {ranks} ranks, {num_chunks} chunks"
        raise InputError("interleaved micro-batches must be a multiple of the ranks", got=got)
    group_size = ranks if num_chunks > 1 else micro_batches
    forward = [
        Action("forward", first + i, chunk)
        for first in range(0, micro_batches, group_size)
        for chunk in range(num_chunks)
        for i in range(group_size)
    ]
    backward = [Action("backward", one.micro_batch, num_chunks - 1 - one.chunk) for one in forward]
    schedule = []
    for rank in range(ranks):
        warm_up = ranks - 1 - rank if num_chunks == 1 else 2 * (ranks - 1 - rank) + (num_chunks - 1) * ranks
        warm_up = min(warm_up, len(forward))
        order = forward[:warm_up]
        for i, action in enumerate(forward[warm_up:]):
            order += [action, backward[i]]
        schedule.append(order + backward[len(forward) - warm_up :])
    return schedule


def zb_h1(ranks: int, micro_batches: int) -> Schedule:
    """ZB-H1 (Qi et al., arXiv:2401.10241, §2.2): 1F1B with deferred weight gradients, about a third of its bubble.

    The previous stage no longer waits for weight gradients. Rank r defers them by r micro-batches and fills 1F1B's
    cool-down bubble with the last ones. Every rank has up to p micro-batches in flight, as 1F1B's rank 0 has.
    """
    _require_positive(ranks, micro_batches)
    schedule = []
    for rank, order in enumerate(one_forward_one_backward(ranks, micro_batches)):
        actions: list[Action] = []
        for action in order:
            actions.append(action)
            if action.kind == "backward" and action.micro_batch >= rank:
                actions.append(Action("weight", action.micro_batch - rank))
        deferred = range(max(0, micro_batches - rank), micro_batches)
        schedule.append(actions + [Action("weight", i) for i in deferred])
    return schedule


def has_weight_passes(schedule: Schedule) -> bool:
    """Whether the schedule computes weight gradients in passes of their own."""
    return any(action.kind == "weight" for order in schedule for action in order)


def max_in_flight(order: list[Action]) -> int:
    """Largest number of (micro-batch, chunk) pairs whose activations a rank holds at once, given its actions."""
    last_kind = "weight" if has_weight_passes([order]) else "backward"
    in_flight = largest = 0
    for action in order:
        in_flight += (action.kind == "forward") - (action.kind == last_kind)
        largest = max(largest, in_flight)
    return largest


def _require_positive(ranks: int, micro_batches: int) -> None:
    if ranks < 1 or micro_batches < 1:
        raise InputError("a pipeline has at least one rank and micro-batch", got=f"{ranks} and {micro_batches}")
