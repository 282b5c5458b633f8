"""Ray Serve's request router, by prefix. Ray Serve imports it where it runs."""

from __future__ import annotations

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from mlsys_lab.inference.server.prefix import rank_replicas, routing_prefix


class PrefixRouter(RequestRouter):
    """Router that sends requests with the same prefix to the same replica, and to the others while that one is full.

    A replica is full with `max_ongoing_requests` requests; then the least busy of the others is taken.
    """

    queue_len_response_deadline_s = max_queue_len_response_deadline_s = 2.0
    """Time that a replica has to report its load, else it is skipped. Ray's default of 0.1 s is too short on a busy
    machine: the request would go to another replica, which computes the prefix again."""

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Ranks of replicas for a request: the first choice of its prefix, then all others."""
        if pending_request is None:
            return [candidate_replicas]
        by_name = {replica.replica_id.unique_id: replica for replica in candidate_replicas}
        first, *others = rank_replicas(routing_prefix(pending_request.args[0]), by_name)
        return [[by_name[first]], [by_name[name] for name in others]]
