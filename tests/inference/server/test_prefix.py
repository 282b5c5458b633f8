"""Routing by prefix: balanced, deterministic, and stable when a replica disappears."""

from __future__ import annotations

from collections import Counter

from mlsys_lab.inference.server.messages import GenerateRequest
from mlsys_lab.inference.server.prefix import NUM_TOKENS, rank_replicas, routing_prefix

REPLICAS = ["a", "b", "c"]


def test_requests_with_a_common_start_have_the_same_prefix():
    start = list(range(NUM_TOKENS))
    requests = [GenerateRequest(number, [[*start, number]]) for number in range(2)]
    assert routing_prefix(requests[0]) == routing_prefix(requests[1])
    others = [GenerateRequest(0, [[1]]), GenerateRequest(0, [[2]]), GenerateRequest(0, [[1, 2]])]
    others += [GenerateRequest(0, [[1]], adapter="one"), GenerateRequest(0, [[1]], adapter="other")]
    assert len({routing_prefix(request) for request in [*others, requests[0]]}) == 6


def test_prefixes_spread_evenly_and_keep_their_replica():
    prefixes = [str(number).encode() for number in range(3000)]
    first = Counter(rank_replicas(prefix, REPLICAS)[0] for prefix in prefixes)
    assert all(900 < first[name] < 1100 for name in REPLICAS)
    for prefix in prefixes:
        ranked = rank_replicas(prefix, REPLICAS)
        assert ranked == rank_replicas(prefix, REPLICAS[::-1]) and sorted(ranked) == REPLICAS
        assert rank_replicas(prefix, ["a", "b"]) == [name for name in ranked if name != "c"]
