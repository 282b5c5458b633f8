"""In which order each rank of a pipeline works on its micro-batches: what decides about idle time and memory.

Letters: p ranks, m micro-batches, v chunks of layers that each rank has. Rank r has chunks r, p + r, 2p + r and so on
of the model's v·p, so that a micro-batch goes round v times.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from mlsys_lab.errors import InputError

Kind = Literal["forward", "backward", "weight"]
KINDS: tuple[Kind, Kind, Kind] = ("forward", "backward", "weight")


class Action(NamedTuple):
    """A rank's pass over one micro-batch with one of its chunks, both counted from 0.

    In a schedule with passes of kind "weight" those work out the gradients of weights, and "backward" that of what went
    into the chunk alone; in any other "backward" works out both.
    """

    kind: Kind
    micro_batch: int
    chunk: int = 0


Schedule = list[list[Action]]
"""Type of a schedule: for each rank the actions that it takes, in order."""


def gpipe(ranks: int, micro_batches: int) -> Schedule:
    """All micro-batches forward, then all backward (Huang et al., arXiv:1811.06965): m kept at once on each rank."""
    _require(ranks, micro_batches)
    one = [Action("forward", i) for i in range(micro_batches)] + [Action("backward", i) for i in range(micro_batches)]
    return [list(one) for _ in range(ranks)]


def one_forward_one_backward(ranks: int, micro_batches: int) -> Schedule:
    """Backward as early as can be, then one forward and one backward in turn (PipeDream-flush, arXiv:2006.09503).

    As much idle time as `gpipe`; rank r keeps at most p - r micro-batches at once.
    """
    return interleaved(ranks, micro_batches, chunks=1)


def interleaved(ranks: int, micro_batches: int, chunks: int) -> Schedule:
    """1F1B with v chunks of layers on each rank (Narayanan et al., arXiv:2104.04473, §2.2): idle time divided by v.

    Micro-batches go in groups of p: each group through a rank's first chunk, then through its second. The price is v
    times as many messages. Raises InputError unless p divides m, where v is more than 1.
    """
    _require(ranks, micro_batches)
    if chunks < 1 or (chunks > 1 and micro_batches % ranks):
        got = f"{micro_batches} over {ranks} ranks, {chunks} chunks"
        raise InputError("interleaved micro-batches are a multiple of the ranks", got=got)
    size = ranks if chunks > 1 else micro_batches
    forward = [
        Action("forward", first + i, chunk)
        for first in range(0, micro_batches, size)
        for chunk in range(chunks)
        for i in range(size)
    ]
    backward = [Action("backward", one.micro_batch, chunks - 1 - one.chunk) for one in forward]
    schedule = []
    for rank in range(ranks):
        ahead = ranks - 1 - rank if chunks == 1 else 2 * (ranks - 1 - rank) + (chunks - 1) * ranks
        ahead = min(ahead, len(forward))
        order = forward[:ahead]
        for i, action in enumerate(forward[ahead:]):
            order += [action, backward[i]]
        schedule.append(order + backward[len(forward) - ahead :])
    return schedule


def zero_bubble(ranks: int, micro_batches: int) -> Schedule:
    """1F1B whose gradients of weights wait: ZB-H1 (Qi et al., arXiv:2401.10241, §2.2), about a third of its idle time.

    The rank before waits for no gradient of weights. Rank r is r micro-batches late with them, and fills with the last
    ones the gap in which 1F1B waits at the end. All ranks keep p micro-batches at most, as 1F1B's rank 0 does.
    """
    _require(ranks, micro_batches)
    schedule = []
    for rank, order in enumerate(one_forward_one_backward(ranks, micro_batches)):
        split: list[Action] = []
        for action in order:
            split.append(action)
            if action.kind == "backward" and action.micro_batch >= rank:
                split.append(Action("weight", action.micro_batch - rank))
        late = range(max(0, micro_batches - rank), micro_batches)
        schedule.append(split + [Action("weight", i) for i in late])
    return schedule


def has_weight_passes(schedule: Schedule) -> bool:
    """Whether gradients of weights have passes of their own in a schedule."""
    return any(action.kind == "weight" for order in schedule for action in order)


def max_in_flight(order: list[Action]) -> int:
    """Micro-batches of which a rank keeps activations at once at most, each chunk's counted by itself."""
    last = "weight" if has_weight_passes([order]) else "backward"
    kept = most = 0
    for action in order:
        kept += (action.kind == "forward") - (action.kind == last)
        most = max(most, kept)
    return most


def _require(ranks: int, micro_batches: int) -> None:
    if ranks < 1 or micro_batches < 1:
        raise InputError("a pipeline has at least one rank and micro-batch", got=f"{ranks} and {micro_batches}")
