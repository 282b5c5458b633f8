"""What Triton's interpreter leaves behind in the language is taken back."""

from __future__ import annotations

import torch

from mlsys_lab.kernels.triton_language import tl, triton
from mlsys_lab.kernels.triton_members import original_members, read_members, restore_members


@triton.jit
def copy(x_ptr, y_ptr):  # nothing of Triton's library in it, which compiles where torch has imported Triton first
    tl.store(y_ptr, tl.load(x_ptr))


def test_members_are_as_imported_after_a_launch_that_nobody_prepared() -> None:
    before, originals = read_members(), dict(original_members())
    x, y = torch.ones(1), torch.zeros(1)
    try:
        if not isinstance(copy, triton.runtime.JITFunction):
            copy[(1,)](x, y)  # replaces `tl.core.load` and does not put it back
            assert y.item() == 1
        tl.tensor.added = 1
        restore_members(original_members())
        now = dict(read_members())
        assert all(now[place].items() >= members.items() for place, members in originals.items())
        assert tl.core.is_builtin(tl.core.load) and not hasattr(tl.tensor, "added")
    finally:
        restore_members(before)
