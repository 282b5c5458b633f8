"""PyTorch without its compiler, for jobs that have neither the programs, the files nor the minutes that it wants."""

from __future__ import annotations

from typing import Any


def disable_compiler() -> None:
    """Have `torch.compile` leave code as it is written, and no other call load the compiler for its settings.

    Where the compiler stops half way in a frame, what is called next fails too. And `use_deterministic_algorithms`,
    which many notebooks begin with, would load 900 modules, whose 76 MB count against a check's memory.
    """
    import torch

    torch.compile = _leave_uncompiled
    torch.use_deterministic_algorithms = _use_deterministic_algorithms


def _leave_uncompiled(model: Any = None, **options: object) -> Any:
    return model if model is not None else lambda function: function


def _use_deterministic_algorithms(mode: bool, *, warn_only: bool = False) -> None:
    import torch

    torch._C._set_deterministic_algorithms(mode, warn_only=warn_only)
