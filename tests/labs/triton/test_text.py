"""Numbers in the text of lab 04."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mlsys_checks.sandboxed.triton import timed
from mlsys_checks.trusted.traced import SLACK
from mlsys_checks.trusted.triton.speed import FLASH, MATMUL, SOFTMAX
from mlsys_lab.kernels.trace.sectors import SECTOR_BYTES
from tests.labs.figures import assert_held
from tests.labs.harness import labs

TRITON = next(lab for lab in labs() if lab.info.topic == "triton")
IN_CODE = (
    "Your kernel's requests, one after the other, on arrays of 70 numbers: 32 lanes at a time",
    "on 7 rows of 37",
    "Rows of 37 floats",
    "for 16 rows of 24, by the number of programs",
    "16 × 16 tiles, and 16 programs run at once",
    "What 16 programs that run at once ask",
    "move at 256 tokens",
    "two sequences of 37 and 20 tokens, pages of 16",
    "D and PAGE at least 16",
    "tiles of at least 16 rows",
    "sides of tiles are at least 16",
    "fits into, at least 16",
    "BLOCK_M and BLOCK_N are at least 16",
)
GIVEN = ("what does that cost, and would rows of 40?", "to 10 bits of mantissa")


def blocks_of(monkeypatch: pytest.MonkeyPatch, call: Callable[..., object], *sides: int) -> dict[str, Any]:
    """The sizes of blocks with which a kernel is launched where it is timed."""
    given: dict[str, Any] = {}
    monkeypatch.setattr(timed, "launch", lambda *_, **options: given.update(options))
    call(SimpleNamespace(matmul_kernel=None, flash_kernel=None), *[torch.empty(sides)] * 3)
    return given


def computed(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    yield f"allows {SLACK} times what the task says"
    yield f"the {SECTOR_BYTES}-byte pieces in which memory answers"
    yield f"0 to {16 - 1}. How many rows"
    yield f"do these {16} read"
    first_deaf = next(2**k for k in range(20) if torch.tensor(2.0**k, dtype=torch.float16) + 1 == 2**k)
    yield f"a float16 that has grown to {first_deaf:,} no longer notices"
    tokens = 100_000
    yield f"For S = {tokens:,} that matrix has {4 * tokens**2 // 10**9} GB, for one head"
    yield f"{SOFTMAX.points} points for a softmax at {SOFTMAX.target} of torch's speed"
    yield f"{MATMUL.points} for a product at {MATMUL.target} of cuBLAS"
    yield f"{FLASH.points} for attention at {FLASH.target};"
    product = blocks_of(monkeypatch, lambda artifact, a, b, _: timed.matmul(artifact, a, b), 256, 256)
    m, n, k = (product[f"BLOCK_{side}"] for side in "MNK")
    yield f"with tiles of {m} × {n} × {k} for the product"
    attention = blocks_of(monkeypatch, timed.flash, 1, 128, 64)
    yield f"and {attention['BLOCK_M']} queries by {attention['BLOCK_N']} keys"
    yield f"fewer from {SOFTMAX.start}, {MATMUL.start} and {FLASH.start} on"


def test_figures_are_computed_or_given(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_held(TRITON, computed=computed(monkeypatch), in_code=IN_CODE, given=GIVEN)
