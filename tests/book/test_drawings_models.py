"""Drawings of chapters 01 to 03, 07 and 08 show what the package and torch compute."""

from __future__ import annotations

import pytest
import torch
from torch import _C

from book.drawings.automatic_differentiation import follow, most_alive
from book.drawings.inside_pytorch import KEYS, ROUTES
from mlsys_lab.autograd import peak_units
from tests.drawn import boxes, svgs, words


def test_both_shares_of_a_value_used_twice_are_added() -> None:
    (svg,) = svgs("automatic_differentiation.graph")
    x, y = torch.tensor(3.0, requires_grad=True), torch.tensor(-1.0, requires_grad=True)
    ((x + y) * x).backward()
    assert x.grad is not None and y.grad is not None
    drawn = words(svg)
    assert any(one.startswith("x̄") and one.endswith(f"= {x.grad:g}") for one in drawn)
    assert f"ȳ = {y.grad:g}" in drawn


def test_reverse_mode_ends_at_a_row_as_wide_as_the_parameters_and_forward_mode_at_a_number() -> None:
    forward, reverse = svgs("automatic_differentiation.modes")
    assert boxes(forward, "green") == boxes(forward, "green", "height")
    assert boxes(reverse, "green") == [max(boxes(reverse, "quiet"))]


@pytest.mark.parametrize(("layers", "segments"), [(6, 1), (9, 1), (9, 3), (6, 2), (16, 4)])
def test_a_followed_pass_holds_as_many_arrays_as_the_formula_says(layers: int, segments: int) -> None:
    steps, lives = follow(layers, segments)
    assert most_alive(lives, len(steps)) == peak_units(layers, segments)
    again = layers - layers // segments  # all but the last segment
    assert [kind for kind, _ in steps].count("f") == layers + again
    assert [layer for kind, layer in steps if kind == "b"] == list(range(layers, 0, -1))


def test_lives_that_are_drawn_are_those_that_were_followed() -> None:
    drawn = [words(svg)[-1] for name in ("tape", "checkpoints") for svg in svgs(f"automatic_differentiation.{name}")]
    assert drawn[0] == "6 steps, at most 2 arrays"
    for words_, layers, segments in zip(drawn[1:], (6, 9, 9), (1, 1, 3), strict=True):
        steps, lives = follow(layers, segments)
        assert words_ == f"{len(steps)} steps, at most {peak_units(layers, segments)} arrays"
        assert len(lives) >= layers + 1


def test_views_read_the_cells_that_their_strides_say() -> None:
    t = torch.arange(12).reshape(3, 4)
    for svg, view in zip(svgs("inside_pytorch.views"), (t, t.T, t[1:, 1:3], t[:, :1].expand(3, 4)), strict=True):
        drawn = [int(one) for one in words(svg) if one.isdigit()]
        (rows, columns), (down, across) = view.shape, view.stride()
        assert drawn == [view.storage_offset() + i * down + j * across for i in range(rows) for j in range(columns)]


def _route(op: torch._ops.OpOverload) -> tuple[str, ...]:
    """Keys, without their device, whose kernels a call of `op` on two matrices runs in the present context."""
    table = dict(one.split(": ", 1) for one in _C._dispatch_dump_table(op.name()).splitlines() if ": " in one)
    keys = _C._dispatch_keys(torch.ones(2, 2)) | _C._dispatch_tls_local_include_set()
    keys, found = keys - _C._dispatch_tls_local_exclude_set(), []
    while (key := keys.highestPriorityTypeId()) != _C.DispatchKey.Undefined:
        if not table[key.name].startswith("fallthrough"):
            found.append(next(one for one in reversed(KEYS) if key.name.startswith(one)))
        keys = keys.remove(key)
    return tuple(found)


def test_calls_take_the_drawn_routes_in_the_installed_torch() -> None:
    aten = torch.ops.aten
    seen = [_route(aten.add.Tensor), _route(aten.view.default)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        seen.append(_route(aten.mm.default))
    with torch.inference_mode():
        seen.append(_route(aten.add.Tensor))
    assert seen == list(ROUTES.values())
    (svg,) = svgs("inside_pytorch.route")
    assert len(boxes(svg, "blue")) + len(boxes(svg, "green")) == sum(map(len, seen))


def test_the_recorded_graph_ends_in_one_node_for_the_leaf() -> None:
    tensors, nodes = svgs("inside_pytorch.graph")
    assert len(boxes(tensors, "blue")) == len(boxes(nodes, "orange")) == 6
    drawn = words(nodes)
    kept = dict(zip(drawn[::2], drawn[1::2], strict=True))
    assert kept["Tanh"] == kept["Exp"] == "keeps result" and kept["Sin"] == kept["Cos"] == "keeps self"
    assert kept["AccumulateGrad"] == "adds to .grad"
