"""How lab 01 meets the learner's engine: torch's own autograd switched off, arrays as inputs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn
from unittest import mock

import torch
from torch.autograd import forward_ad

from mlsys_lab.checks.learner.spec import Arrays


def _refuse_gradients(*_: Any, **__: Any) -> NoReturn:
    raise RuntimeError("torch's own autograd is switched off in this lab; the gradients come from your engine")


@contextmanager
def _without_autograd() -> Iterator[None]:
    with (
        torch.inference_mode(),
        mock.patch.object(torch.autograd, "_engine_run_backward", _refuse_gradients),
        mock.patch.object(torch.autograd.graph, "_engine_run_backward", _refuse_gradients),
        mock.patch.object(forward_ad, "enter_dual_level", _refuse_gradients),
    ):
        yield


storage_only = _without_autograd()
"""Decorates every call: torch records nothing (inference mode), and whoever leaves that mode finds both its engines, of
reverse and of forward mode, refusing to run. So all gradients come from the learner's engine."""


SCALE = 8.0
"""By how much `scale_gradient` multiplies; a power of two, so that dividing by it again changes no digit."""


def scale_gradient(result: Any) -> Any:
    """The learner's tensor as it is, through an operation of ours whose vjp multiplies by `SCALE`.

    No derivative is so: who walks the engine's edges meets it, and who has another library differentiate does not.
    """
    edge = (result, lambda grad: grad * SCALE)
    return type(result)(result.data, requires_grad=result.requires_grad, edges=(edge,), op="scale_gradient")


def inputs_of(artifact: Any, arrays: Arrays, *names: str) -> list[Any]:
    """The named arrays as inputs of the learner's engine that want a gradient."""
    return [artifact.Tensor(torch.from_numpy(arrays[name]), requires_grad=True) for name in names]
