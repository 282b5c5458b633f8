"""Ray Serve's router of requests to replicas, by prefix: it is imported where Ray Serve runs."""

from __future__ import annotations

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from mlsys_lab.inference.server.prefix import rank_replicas, read_prefix


class PrefixRouter(RequestRouter):
    """Router that sends requests with one prefix to one replica, and to the others while that one is full.

    Full is a replica with `max_ongoing_requests` under way; of the others the least busy one is taken.
    """

    queue_len_response_deadline_s = max_queue_len_response_deadline_s = 2.0
    """Seconds that a replica has to say how busy it is; then it is passed over. Ray's own 0.1 s are too few for one
    whose machine is busy, and its prefix would be computed again elsewhere."""

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Ranks of replicas for a request: the prefix's first choice, then all others."""
        if pending_request is None:
            return [candidate_replicas]
        named = {one.replica_id.unique_id: one for one in candidate_replicas}
        first, *others = rank_replicas(read_prefix(pending_request.args[0]), named)
        return [[named[first]], [named[name] for name in others]]
