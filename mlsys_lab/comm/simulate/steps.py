"""Programs for the simulated cluster: a ring all-reduce message by message, and a data-parallel training step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mlsys_lab.comm.simulate.cluster import Cluster, Task

if TYPE_CHECKING:
    from mlsys_lab.comm.cost.alpha_beta import LinkCost


def ring_all_reduce(
    cluster: Cluster, ranks: Sequence[int], size_bytes: float, link: LinkCost | None = None, after: Sequence[Task] = ()
) -> list[Task]:
    """Issue a ring all-reduce message by message; return the last task of each rank, in their order.

    A rank forwards in step k + 1 what it received in step k, so a rank that starts late delays its neighbours one after
    the other. link: cost of a message without contention; if None, chunks are transfers over the cluster's topology.
    after: for each rank a task that its first message waits for.
    """
    p = len(ranks)
    if p < 2:
        return list(after)
    issue, amount = (cluster.send, link.time_s(1, size_bytes / p)) if link else (cluster.transfer, size_bytes / p)
    ready = [[task] for task in after] if after else [[] for _ in ranks]
    for _ in range(2 * (p - 1)):
        sent = [issue(ranks[i], ranks[i + 1 - p], amount, "ring", ready[i]) for i in range(p)]
        ready = [[sent[i - 1]] for i in range(p)]
    return [tasks[0] for tasks in ready]


def data_parallel_step(
    cluster: Cluster,
    layers: int,
    forward_s: float,
    all_reduce_s: float,
    *,
    overlap: bool = True,
) -> Task:
    """Issue a data-parallel step on all ranks: forward, backward (twice as long), one all-reduce for each layer.

    With overlap, a layer's all-reduce runs during the backward pass of the layers before it; without, after the entire
    backward pass. Returns the optimizer's task of rank 0.
    """
    ranks = range(cluster.ranks)
    for rank in ranks:
        for layer in range(layers):
            cluster.compute(rank, forward_s, f"forward {layer}")
    gradients = [
        [cluster.compute(rank, 2 * forward_s, f"backward {layer}") for rank in ranks]
        for layer in reversed(range(layers))
    ]
    last = gradients[-1]
    reduced = [
        cluster.collective(ranks, all_reduce_s, f"all-reduce {layers - 1 - i}", own if overlap else last)
        for i, own in enumerate(gradients)
    ]
    updates = [cluster.compute(rank, 0.0, "optimizer", reduced) for rank in ranks]
    return updates[0]
