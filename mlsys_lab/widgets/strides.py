"""Interactive strides figure: the storage position of each element of a tensor.

The figure reimplements this arithmetic in JavaScript; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, Self

import anywidget
import traitlets

from mlsys_lab.errors import InputError
from mlsys_lab.widgets.modules import esm
from mlsys_lab.widgets.page import table

if TYPE_CHECKING:
    import torch

_MAX_CELLS = 16  # a storage is drawn in one row, which has to fit 390 px
_MAX_SIDE = 8


def positions(shape: Sequence[int], stride: Sequence[int], offset: int = 0) -> list[int]:
    """Storage cell of each element, in reading order (the last dimension fastest): offset + Σ index·stride.

    >>> positions((2, 3), (1, 2))
    [0, 2, 4, 1, 3, 5]
    """
    return [offset + sum(i * s for i, s in zip(index, stride, strict=True)) for index in product(*map(range, shape))]


def is_contiguous(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether reading order is storage order without gaps: PyTorch's rule, in which dimensions of size 1 do not count.

    >>> is_contiguous((3, 4), (4, 1)), is_contiguous((4, 3), (1, 4)), is_contiguous((1, 4), (7, 1))
    (True, False, True)
    """
    step = 1
    for size, one in zip(reversed(shape), reversed(stride), strict=True):
        if size != 1 and one != step:
            return False
        step *= size
    return True


def strides_data(views: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """Data of the strides figure: two-dimensional views of one small storage, by name; the first is shown initially.

    Raises `InputError` for views of different storages, of other than two dimensions, or too large to draw.
    """
    if not views:
        raise InputError("the strides figure has nothing to show", expected="at least one view")
    presets = []
    storages = {view.untyped_storage().data_ptr() for view in views.values()}
    if len(storages) != 1:
        raise InputError("the views do not share a storage", got=f"{len(storages)} storages", expected="1")
    for label, view in views.items():
        if view.dim() != 2 or max(view.shape) > _MAX_SIDE or view.numel() == 0:
            limit = f"two dimensions of 1 to {_MAX_SIDE}"
            raise InputError(f"view {label!r} cannot be drawn", got=f"shape {tuple(view.shape)}", expected=limit)
        presets.append(
            {
                "label": label,
                "shape": list(view.shape),
                "stride": list(view.stride()),
                "offset": view.storage_offset(),
            }
        )
    cells = view.untyped_storage().nbytes() // view.itemsize
    if cells > _MAX_CELLS:
        raise InputError("the storage is too large to draw", got=f"{cells} cells", expected=f"at most {_MAX_CELLS}")
    first = {key: value for key, value in presets[0].items() if key != "label"}
    return {"cells": cells, "presets": presets, **first}


def strides_table(data: Mapping[str, Any]) -> str:
    """HTML table of the views of `strides_data`."""
    rows = (
        (
            one["label"],
            tuple(one["shape"]),
            tuple(one["stride"]),
            one["offset"],
            ", ".join(map(str, positions(one["shape"], one["stride"], one["offset"]))),
        )
        for one in data["presets"]
    )
    return table(("view", "shape", "stride", "offset", "storage cells in reading order"), rows)


class Strides(anywidget.AnyWidget):
    """Notebook figure of views of one storage and the cells they touch: `Strides.from_views({"t": t, "t.T": t.T})`."""

    _esm = esm("strides")
    cells = traitlets.Int(1).tag(sync=True)
    presets = traitlets.List(traitlets.Dict()).tag(sync=True)
    shape = traitlets.List(traitlets.Int()).tag(sync=True)
    stride = traitlets.List(traitlets.Int()).tag(sync=True)
    offset = traitlets.Int(0).tag(sync=True)

    @classmethod
    def from_views(cls, views: Mapping[str, torch.Tensor]) -> Self:
        """Figure of named views of one storage; raises InputError as `strides_data` does."""
        return cls(**strides_data(views))
