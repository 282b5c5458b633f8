"""Checks of ragged attention's arguments, beyond those of decode attention: starts of the queries, and the window."""

from __future__ import annotations

import torch

from mlsys_lab.errors import InputError
from mlsys_lab.kernels.arguments import check_integers, check_rank


def check_starts(q: torch.Tensor, starts: torch.Tensor) -> None:
    """Raise InputError unless `starts` is one or more integers in a row, where `q` is."""
    check_integers(q, starts=starts)
    check_rank(1, starts=starts)
    if not len(starts):
        raise InputError("starts of the sequences' queries", got="none", expected="one a sequence and their end")


def check_queries(q: torch.Tensor, lengths: torch.Tensor, starts: torch.Tensor) -> None:
    """Raise InputError for starts that do not cut all queries into parts of at most `lengths`; waits for a GPU."""
    counts = starts.diff()
    if int(starts[0]) != 0 or int(starts[-1]) != len(q) or bool((counts < 0).any()):
        raise InputError("starts of the sequences' queries", got=starts.tolist(), expected=f"rising from 0 to {len(q)}")
    if bool((counts > lengths).any()):
        raise InputError(
            "more queries than tokens",
            got=f"{counts.tolist()} of {lengths.tolist()}",
            expected="lengths that count the new tokens",
        )


def check_window(window: int | None) -> None:
    """Raise InputError for a window in which a query would not see itself."""
    if window is not None and window < 1:
        raise InputError("window of attention", got=window, expected="1 or more, or None for all tokens before")
