"""Random states: each rank has its own for Python, NumPy and torch, seeded with its number."""

from __future__ import annotations

import contextlib
import functools
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

State = tuple[Any, Any, torch.Tensor]


def random_state() -> State:
    """Current random states of Python, NumPy (the legacy one) and torch's CPU generator."""
    return random.getstate(), np.random.get_state(), torch.get_rng_state()


def set_random_state(state: State) -> None:
    """Restore random states that `random_state` returned."""
    random.setstate(state[0])
    np.random.set_state(state[1])
    torch.set_rng_state(state[2])


def seed_rank(rank: int) -> None:
    """Seed all three generators with a rank's number."""
    random.seed(rank)
    np.random.seed(rank)
    torch.manual_seed(rank)


@contextlib.contextmanager
def preserve_random_state() -> Iterator[None]:
    """Context that restores the caller's random states at its end."""
    state = random_state()
    try:
        yield
    finally:
        set_random_state(state)


@functools.cache
def initial_random_state(rank: int) -> State:
    """Random states that a rank starts with."""
    with preserve_random_state():
        seed_rank(rank)
        return random_state()
