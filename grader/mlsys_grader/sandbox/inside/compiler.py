"""Disable PyTorch's compiler for jobs, which have neither the programs and files nor the time that it needs."""

from __future__ import annotations

from typing import Any


def disable_compiler() -> None:
    """Make `torch.compile` a no-op, and keep other calls from importing the compiler for its settings.

    A compiler that stops half way in a frame also breaks the next call. `use_deterministic_algorithms`, which many
    notebooks call first, would import 900 modules, whose 76 MB count against a check's memory.
    """
    import torch

    torch.compile = _leave_uncompiled
    torch.use_deterministic_algorithms = _use_deterministic_algorithms


def _leave_uncompiled(model: Any = None, **options: object) -> Any:
    return model if model is not None else lambda function: function


def _use_deterministic_algorithms(mode: bool, *, warn_only: bool = False) -> None:
    import torch

    torch._C._set_deterministic_algorithms(mode, warn_only=warn_only)
