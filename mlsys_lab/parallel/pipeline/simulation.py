"""A schedule on simulated ranks: its timeline, its idle time and what it keeps."""

from __future__ import annotations

from collections.abc import Iterator

from mlsys_lab.comm.simulate.cluster import Cluster, Task
from mlsys_lab.errors import InputError
from mlsys_lab.parallel.pipeline.schedules import Action, Schedule, has_weight_passes

Done = tuple[str, int, int]
"""A pass that is done: its kind, micro-batch and stage, the chunk's number of all v·p."""


def simulate(
    cluster: Cluster,
    schedule: Schedule,
    *,
    forward_s: float,
    backward_s: float,
    weight_s: float | None = None,
    send_s: float = 0.0,
    activation_bytes: float = 0.0,
) -> None:
    """Issue all actions of a schedule to a cluster of as many ranks, and the messages between chunks of layers.

    forward_s, backward_s: a rank's passes over a micro-batch with all of its chunks together. weight_s: how much of
    backward_s the gradients of weights take, where the schedule has them apart; half of it where that is None.
    send_s: one message. activation_bytes: what a chunk keeps of a micro-batch from forward to its last pass. Raises
    InputError for a schedule in which actions wait for each other, or for one that is not there.
    """
    ranks = len(schedule)
    if ranks != cluster.ranks:
        raise InputError("the schedule has another number of ranks", got=ranks, expected=cluster.ranks)
    late_s, last_kind = 0.0, "backward"
    if has_weight_passes(schedule):
        late_s, last_kind = backward_s / 2 if weight_s is None else weight_s, "weight"
    chunks = _count_chunks(schedule)
    seconds = {"forward": forward_s / chunks, "backward": (backward_s - late_s) / chunks, "weight": late_s / chunks}
    done: dict[Done, Task] = {}
    for rank, action in in_order(schedule):
        stage, after = action.chunk * ranks + rank, []
        for need in _find_needs(action, stage, ranks * chunks - 1):
            source, other = done[need], need[2] % ranks
            after.append(cluster.send(other, rank, send_s, after=[source]) if other != rank and send_s else source)
        name = f"{action.kind} {action.micro_batch}" + (f", chunk {action.chunk}" if chunks > 1 else "")
        task = cluster.compute(rank, seconds[action.kind], name, after)
        done[action.kind, action.micro_batch, stage] = task
        if action.kind == last_kind and activation_bytes:
            cluster.hold(rank, activation_bytes, done["forward", action.micro_batch, stage], until=task)


def in_order(schedule: Schedule) -> Iterator[tuple[int, Action]]:
    """Each rank with its actions, in an order in which an action comes after all that it waits for.

    Raises InputError for a schedule in which actions wait for each other, or for one that is not there.
    """
    ranks = len(schedule)
    last = ranks * _count_chunks(schedule) - 1
    done: set[Done] = set()
    at = [0] * ranks
    moved = True
    while moved:
        moved = False
        for rank, order in enumerate(schedule):
            while at[rank] < len(order):
                action = order[at[rank]]
                stage = action.chunk * ranks + rank
                if not done.issuperset(_find_needs(action, stage, last)):
                    break
                yield rank, action
                done.add((action.kind, action.micro_batch, stage))
                at[rank] += 1
                moved = True
    stuck = [rank for rank, order in enumerate(schedule) if at[rank] < len(order)]
    if stuck:
        rank = stuck[0]
        raise InputError("the schedule never ends", got=f"rank {rank} waits for ever before {schedule[rank][at[rank]]}")


def _find_needs(action: Action, stage: int, last: int) -> list[Done]:
    """What an action of a stage waits for, of stages 0 to `last`: on its own rank, then of the stage beside it."""
    if action.kind == "weight":
        return [("backward", action.micro_batch, stage)]
    own: list[Done] = [] if action.kind == "forward" else [("forward", action.micro_batch, stage)]
    before = stage - 1 if action.kind == "forward" else stage + 1
    return own + ([(action.kind, action.micro_batch, before)] if 0 <= before <= last else [])


def _count_chunks(schedule: Schedule) -> int:
    return 1 + max((action.chunk for order in schedule for action in order), default=0)
