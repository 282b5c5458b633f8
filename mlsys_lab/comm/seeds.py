"""Random states of ranks: each has its own, of Python, NumPy and torch, seeded with its number."""

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
    """The present random states of Python, NumPy (the legacy one) and torch's CPU generator."""
    return random.getstate(), np.random.get_state(), torch.get_rng_state()


def set_random_state(state: State) -> None:
    """Put back what `random_state` returned."""
    random.setstate(state[0])
    np.random.set_state(state[1])
    torch.set_rng_state(state[2])


def seed_rank(rank: int) -> None:
    """Seed all three with the number of a rank."""
    random.seed(rank)
    np.random.seed(rank)
    torch.manual_seed(rank)


@contextlib.contextmanager
def keep_random_state() -> Iterator[None]:
    """`with keep_random_state():` leaves the caller's random states as they were, whatever the body draws."""
    state = random_state()
    try:
        yield
    finally:
        set_random_state(state)


@functools.cache
def initial_state(rank: int) -> State:
    """The state that a rank starts from."""
    with keep_random_state():
        seed_rank(rank)
        return random_state()
