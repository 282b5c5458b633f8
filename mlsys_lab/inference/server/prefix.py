"""Which of several replicas a request goes to first: one that may have the keys and values of its beginning."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from mlsys_lab.inference.server.messages import GenerateRequest

CHARACTERS, TOKENS = 128, 32
"""Beginning of a prompt that decides: long enough to tell system prompts apart, short enough to be shared whole."""


def read_prefix(ask: GenerateRequest) -> bytes:
    """Beginning of what a request asks for, as bytes: its adapter's name, then of a conversation also who speaks.

    Keys and values under one adapter are no use under another.
    """
    under = f"{ask.adapter}\0".encode() if ask.adapter else b""
    if isinstance(ask.prompt, list):
        return under + repr(ask.prompt[:TOKENS]).encode()
    text = ask.prompt or "".join(f"{role}\n{content}\n" for role, content in ask.messages or [])
    return under + text[:CHARACTERS].encode(errors="surrogatepass")


def rank_replicas(prefix: bytes, replicas: Iterable[str]) -> list[str]:
    """Names of replicas, first choice first, by rendezvous hashing (Thaler and Ravishankar, 1998).

    Prefixes spread evenly over the first choices; where a replica goes, its prefixes move and no other does.
    """
    return sorted(replicas, key=lambda name: hashlib.blake2b(prefix + b"\0" + name.encode()).digest())
