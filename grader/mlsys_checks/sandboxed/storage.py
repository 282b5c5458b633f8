"""torch for storage only: its own autograd switched off, and refusing to run where a submission switches it on.

`without_modules` does the same to layers of torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn
from unittest import mock

import torch
from torch import nn
from torch.autograd import forward_ad

from mlsys_lab.errors import InputError


def _refuse_gradients(*_: Any, **__: Any) -> NoReturn:
    raise RuntimeError("torch's own autograd is switched off in this lab; the gradients come from your engine")


@contextmanager
def _without_autograd() -> Iterator[None]:
    with (
        torch.inference_mode(),
        torch.autograd.graph.saved_tensors_hooks(_refuse_gradients, _refuse_gradients),
        mock.patch.object(torch.autograd, "_engine_run_backward", _refuse_gradients),
        mock.patch.object(torch.autograd.graph, "_engine_run_backward", _refuse_gradients),
        mock.patch.object(forward_ad, "enter_dual_level", _refuse_gradients),
    ):
        yield


@contextmanager
def without_modules() -> Iterator[None]:
    """Raise InputError where a module of torch is called in the block."""

    def refuse(module: nn.Module, *_: Any, **__: Any) -> NoReturn:
        expected = "operations on Tensors of `engine`"
        raise InputError("your code calls a module of torch", got=type(module).__name__, expected=expected)

    with mock.patch.object(nn.Module, "__call__", refuse):
        yield


storage_only = _without_autograd()
"""Decorator of every call: torch records nothing (inference mode), and code that leaves that mode finds saving tensors
and both of torch's autograd engines disabled. Gradients therefore come from the learner's engine.
"""
