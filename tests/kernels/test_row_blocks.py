"""How rows are cut for programs."""

from __future__ import annotations

import pytest
import torch

from mlsys_lab.errors import InputError
from mlsys_lab.kernels.row_blocks import RowBlock, row_block, rows_and_width


def test_narrow_rows_share_a_program_and_wide_ones_get_more_warps() -> None:
    assert row_block(3, elements=1024, per_thread=32) == RowBlock(256, 4, 4)
    assert row_block(1024, elements=1024, per_thread=32) == RowBlock(1, 1024, 4)
    assert row_block(1025, elements=1024, per_thread=32) == RowBlock(1, 2048, 4)
    assert row_block(8192, elements=1024, per_thread=16) == RowBlock(1, 8192, 16)
    assert row_block(2**20, elements=1024, per_thread=16).num_warps == 32


@pytest.mark.parametrize(("rows", "programs"), [(0, 0), (1, 1), (256, 1), (257, 2)])
def test_every_row_has_a_program(rows: int, programs: int) -> None:
    assert RowBlock(256, 4, 4).num_programs(rows) == programs


def test_rows_and_width() -> None:
    assert rows_and_width(torch.ones(5)) == (1, 5) and rows_and_width(torch.ones(2, 3, 5)) == (6, 5)
    assert rows_and_width(torch.ones(0, 5)) == (0, 5)
    for bad in (torch.tensor(1.0), torch.ones(3, 0)):
        with pytest.raises(InputError, match="weights"):
            rows_and_width(bad, "weights")
