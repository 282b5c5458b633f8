"""How lab 01 meets the learner's engine: torch's own autograd switched off, arrays as inputs."""

from __future__ import annotations

from typing import Any

import torch

from mlsys_lab.checks.learner.spec import Arrays

storage_only = torch.inference_mode()
"""Decorates every call: in inference mode torch records nothing, so all gradients come from the learner's engine."""


def inputs_of(artifact: Any, arrays: Arrays, *names: str) -> list[Any]:
    """The named arrays as inputs of the learner's engine that want a gradient."""
    return [artifact.Tensor(torch.from_numpy(arrays[name]), requires_grad=True) for name in names]
