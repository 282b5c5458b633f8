"""What torch is used for here: arrays and the kernels that compute on them. Its own autograd stays out of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from mlsys_lab.errors import InputError


def to_storage(data: Any, dtype: torch.dtype | None, device: torch.device | str | None) -> torch.Tensor:
    """A torch tensor of these numbers: the one given where dtype and device agree already, else a copy.

    Raises InputError for what holds no numbers and for tensors that torch's autograd watches.
    """
    if not isinstance(data, torch.Tensor):
        if isinstance(data, np.ndarray):
            data = np.array(data)  # a copy of our own: torch cannot hold negative strides nor read-only memory
        try:
            data = torch.as_tensor(data)
        except (TypeError, ValueError, RuntimeError) as problem:
            raise InputError(
                "cannot make a tensor of this",
                got=f"{type(data).__name__} ({problem})",
                expected="a number, nested lists of numbers, a numpy array or a torch tensor",
            ) from problem
    elif data.requires_grad:
        raise InputError(
            "torch's autograd must not watch the storage of a Tensor",
            got="a torch tensor with requires_grad=True",
            help="pass tensor.detach()",
        )
    tensor: torch.Tensor = data.to(device=device, dtype=dtype)
    return tensor
