"""Pipeline schedules on simulated ranks: their timeline, bubble and memory."""

from __future__ import annotations

from collections.abc import Iterator

from mlsys_lab.comm.simulate.cluster import Cluster, Task
from mlsys_lab.errors import InputError
from mlsys_lab.parallel.pipeline.schedules import Action, Schedule, has_weight_passes

Pass = tuple[str, int, int]
"""Kind, micro-batch and stage of a pass; the stage is the chunk's index among the model's v·p."""


def issue_schedule(
    cluster: Cluster,
    schedule: Schedule,
    *,
    forward_s: float,
    backward_s: float,
    weight_s: float | None = None,
    send_s: float = 0.0,
    activation_bytes: float = 0.0,
) -> None:
    """Issue all passes of a schedule, and the messages between stages, to a cluster with one rank per pipeline rank.

    forward_s, backward_s: time of a micro-batch through all of a rank's chunks. weight_s: the part of backward_s that
    weight gradients take in a schedule with weight-gradient passes; half by default. send_s: time of one message.
    activation_bytes: memory that a chunk holds for a micro-batch from its forward to its last pass. Raises InputError
    if the schedule and the cluster differ in their number of ranks, or if the schedule deadlocks.
    """
    ranks = len(schedule)
    if ranks != cluster.ranks:
        raise InputError("the schedule has another number of ranks", got=ranks, expected=cluster.ranks)
    deferred_s, last_kind = 0.0, "backward"
    if has_weight_passes(schedule):
        deferred_s, last_kind = backward_s / 2 if weight_s is None else weight_s, "weight"
    chunks = _count_chunks(schedule)
    seconds = {
        "forward": forward_s / chunks,
        "backward": (backward_s - deferred_s) / chunks,
        "weight": deferred_s / chunks,
    }
    done: dict[Pass, Task] = {}
    for rank, action in in_dependency_order(schedule):
        stage, after = action.chunk * ranks + rank, []
        for dependency in _dependencies(action, stage, ranks * chunks - 1):
            task, other = done[dependency], dependency[2] % ranks
            after.append(cluster.send(other, rank, send_s, after=[task]) if other != rank and send_s else task)
        name = f"{action.kind} {action.micro_batch}" + (f", chunk {action.chunk}" if chunks > 1 else "")
        task = cluster.compute(rank, seconds[action.kind], name, after)
        done[action.kind, action.micro_batch, stage] = task
        if action.kind == last_kind and activation_bytes:
            cluster.hold(rank, activation_bytes, done["forward", action.micro_batch, stage], until=task)


def in_dependency_order(schedule: Schedule) -> Iterator[tuple[int, Action]]:
    """Ranks and their actions, each after all the actions that it depends on.

    Raises InputError for a schedule that deadlocks.
    """
    ranks = len(schedule)
    last_stage = ranks * _count_chunks(schedule) - 1
    done: set[Pass] = set()
    next_action = [0] * ranks
    progressed = True
    while progressed:
        progressed = False
        for rank, order in enumerate(schedule):
            while next_action[rank] < len(order):
                action = order[next_action[rank]]
                stage = action.chunk * ranks + rank
                if not done.issuperset(_dependencies(action, stage, last_stage)):
                    break
                yield rank, action
                done.add((action.kind, action.micro_batch, stage))
                next_action[rank] += 1
                progressed = True
    stuck = [rank for rank, order in enumerate(schedule) if next_action[rank] < len(order)]
    if stuck:
        rank = stuck[0]
        raise InputError(
            "the schedule deadlocks", got=f"rank {rank} waits forever at {schedule[rank][next_action[rank]]}"
        )


def in_time_order(schedule: Schedule) -> list[tuple[int, Action]]:
    """Ranks and their actions by when they start, if backward passes take two forward passes' time and messages none.

    Streams run messages in order of issue: one that is issued long before its time holds up those issued after it.
    """
    ranks, last_stage = len(schedule), len(schedule) * _count_chunks(schedule) - 1
    free, done = [0.0] * ranks, dict[Pass, float]()
    started: list[tuple[float, int, Action]] = []
    for rank, action in in_dependency_order(schedule):
        stage = action.chunk * ranks + rank
        start = max([free[rank], *(done[one] for one in _dependencies(action, stage, last_stage))])
        done[action.kind, action.micro_batch, stage] = free[rank] = start + (2 if action.kind == "backward" else 1)
        started.append((start, rank, action))
    return [(rank, action) for _, rank, action in sorted(started, key=lambda one: one[0])]


def _dependencies(action: Action, stage: int, last_stage: int) -> list[Pass]:
    """Passes that an action of a stage depends on: the stage's own earlier pass, then that of the neighbour stage."""
    if action.kind == "weight":
        return [("backward", action.micro_batch, stage)]
    own: list[Pass] = [] if action.kind == "forward" else [("forward", action.micro_batch, stage)]
    neighbour = stage - 1 if action.kind == "forward" else stage + 1
    return own + ([(action.kind, action.micro_batch, neighbour)] if 0 <= neighbour <= last_stage else [])


def _count_chunks(schedule: Schedule) -> int:
    return 1 + max((action.chunk for order in schedule for action in order), default=0)
