"""One prefix, one first choice: even, the same everywhere, and moved only where its replica goes."""

from __future__ import annotations

from collections import Counter

from mlsys_lab.inference.server.messages import GenerateRequest
from mlsys_lab.inference.server.prefix import CHARACTERS, TOKENS, rank_replicas, read_prefix

REPLICAS = ["a", "b", "c"]


def test_requests_that_begin_alike_have_one_prefix():
    system = ("system", "Answer briefly. " * 20)
    asks = [GenerateRequest(number, messages=[system, ("user", word)]) for number, word in enumerate(("one", "two"))]
    assert read_prefix(asks[0]) == read_prefix(asks[1])
    assert read_prefix(GenerateRequest(0, prompt="x" * CHARACTERS + "a")) == read_prefix(
        GenerateRequest(0, prompt="x" * CHARACTERS + "b")
    )
    assert read_prefix(GenerateRequest(0, prompt=[1] * TOKENS + [2])) == read_prefix(
        GenerateRequest(0, prompt=[1] * TOKENS)
    )
    others = [
        GenerateRequest(0, prompt="a"),
        GenerateRequest(0, prompt="b"),
        GenerateRequest(0, prompt=[1]),
        GenerateRequest(0, prompt="\ud800"),
    ]
    others += [GenerateRequest(0, prompt="a", adapter="one"), GenerateRequest(0, prompt="a", adapter="other")]
    assert len({read_prefix(ask) for ask in [*others, asks[0]]}) == 7


def test_prefixes_spread_and_stay_where_they_are():
    prefixes = [str(number).encode() for number in range(3000)]
    first = Counter(rank_replicas(prefix, REPLICAS)[0] for prefix in prefixes)
    assert all(900 < first[name] < 1100 for name in REPLICAS)
    for prefix in prefixes:
        ranked = rank_replicas(prefix, REPLICAS)
        assert ranked == rank_replicas(prefix, REPLICAS[::-1]) and sorted(ranked) == REPLICAS
        assert rank_replicas(prefix, ["a", "b"]) == [name for name in ranked if name != "c"]
