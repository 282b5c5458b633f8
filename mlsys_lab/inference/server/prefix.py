"""Prefix-aware routing: which of several replicas probably has a request's prefix in its cache."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from mlsys_lab.inference.server.messages import GenerateRequest

NUM_TOKENS = 32
"""Length of the prefix that decides: long enough to tell system prompts apart, and shorter than most of them."""


def routing_prefix(request: GenerateRequest) -> bytes:
    """Start of a request's first prompt as bytes, after its adapter's name: adapters share no KV cache."""
    adapter = f"{request.adapter}\0".encode() if request.adapter else b""
    return adapter + repr(request.prompts[0][:NUM_TOKENS]).encode()


def rank_replicas(prefix: bytes, replicas: Iterable[str]) -> list[str]:
    """Names of replicas, first choice first, by rendezvous hashing (Thaler and Ravishankar, 1998).

    Prefixes spread evenly over the first choices. When a replica disappears, only its own prefixes move.
    """
    return sorted(replicas, key=lambda name: hashlib.blake2b(prefix + b"\0" + name.encode()).digest())
