"""A schedule on simulated ranks: its timeline, its idle time and what it keeps."""

from __future__ import annotations

from collections.abc import Iterator

from mlsys_lab.comm.simulate.cluster import Cluster, Task
from mlsys_lab.errors import InputError
from mlsys_lab.parallel.pipeline.schedules import Action, Schedule


def simulate(
    cluster: Cluster,
    schedule: Schedule,
    *,
    forward_s: float,
    backward_s: float,
    send_s: float = 0.0,
    activation_bytes: float = 0.0,
) -> None:
    """Issue all actions of a schedule to a cluster of as many ranks, and the messages between chunks of layers.

    forward_s, backward_s: a rank's passes over a micro-batch with all of its chunks together. send_s: one message.
    activation_bytes: what a chunk keeps of a micro-batch from forward to backward. Raises InputError for a schedule in
    which actions wait for each other, or for one that is not there.
    """
    ranks = len(schedule)
    if ranks != cluster.ranks:
        raise InputError("the schedule has another number of ranks", got=ranks, expected=cluster.ranks)
    chunks = 1 + max((action.chunk for order in schedule for action in order), default=0)
    seconds = {"forward": forward_s / chunks, "backward": backward_s / chunks}
    done: dict[tuple[str, int, int], Task] = {}
    for rank, action in in_order(schedule):
        stage, last = action.chunk * ranks + rank, ranks * chunks - 1
        forward = action.kind == "forward"
        before = stage - 1 if forward else stage + 1
        after = [] if forward else [done["forward", action.micro_batch, stage]]
        if 0 <= before <= last:
            source = done[action.kind, action.micro_batch, before]
            other = before % ranks
            after.append(cluster.send(other, rank, send_s, after=[source]) if other != rank and send_s else source)
        name = f"{action.kind} {action.micro_batch}" + (f", chunk {action.chunk}" if chunks > 1 else "")
        task = cluster.compute(rank, seconds[action.kind], name, after)
        done[action.kind, action.micro_batch, stage] = task
        if not forward and activation_bytes:
            cluster.hold(rank, activation_bytes, done["forward", action.micro_batch, stage], until=task)


def in_order(schedule: Schedule) -> Iterator[tuple[int, Action]]:
    """Each rank with its actions, in an order in which an action comes after all that it waits for.

    Raises InputError for a schedule in which actions wait for each other, or for one that is not there.
    """
    ranks = len(schedule)
    last = ranks * (1 + max((action.chunk for order in schedule for action in order), default=0)) - 1
    done: set[tuple[str, int, int]] = set()
    at = [0] * ranks

    def is_ready(action: Action, stage: int) -> bool:
        forward = action.kind == "forward"
        before = stage - 1 if forward else stage + 1
        own = forward or ("forward", action.micro_batch, stage) in done
        return own and (not 0 <= before <= last or (action.kind, action.micro_batch, before) in done)

    moved = True
    while moved:
        moved = False
        for rank, order in enumerate(schedule):
            while at[rank] < len(order) and is_ready(action := order[at[rank]], action.chunk * ranks + rank):
                yield rank, action
                done.add((action.kind, action.micro_batch, action.chunk * ranks + rank))
                at[rank] += 1
                moved = True
    stuck = [rank for rank, order in enumerate(schedule) if at[rank] < len(order)]
    if stuck:
        rank = stuck[0]
        raise InputError("the schedule never ends", got=f"rank {rank} waits for ever before {schedule[rank][at[rank]]}")
