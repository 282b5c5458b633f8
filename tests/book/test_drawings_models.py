"""Drawings of chapters 01 to 03, 07 and 08 show what the package and torch compute."""

from __future__ import annotations

import pytest
import torch
from torch import _C

from book.drawings.automatic_differentiation import follow, most_alive
from book.drawings.inside_pytorch import KEYS, ROUTES
from mlsys_lab.autograd import peak_units
from mlsys_lab.configs import preset
from mlsys_lab.flops import activations, parameters
from mlsys_lab.flops.einsum import Einsum
from mlsys_lab.flops.memory import RECIPES
from mlsys_lab.hardware import device
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


def test_a_token_is_as_wide_as_its_axes_are_long() -> None:
    attention, mlp = svgs("transformer_arithmetic.block")
    llama = preset("llama3-70b")
    width, *_ = boxes(attention, "plain")
    assert boxes(attention, "green")[0] / width == pytest.approx(llama.n_kv_heads / llama.n_heads, rel=0.01)
    assert boxes(mlp, "violet")[0] / width == pytest.approx(llama.d_ff / llama.d_model, rel=0.01)
    assert words(attention)[4] == f"scores, N·S = {llama.n_heads * 8192:,}"


def test_axes_of_a_batch_are_in_all_arrays_and_summed_ones_not_in_the_result() -> None:
    said = [[one for one in words(svg) if ": " in one] for svg in svgs("transformer_arithmetic.loops")]
    assert said == [["free: B, T, F", "summed: D"], ["batch: B, K", "free: T, G, S", "summed: H"]]


def test_a_square_is_a_gigabyte() -> None:
    kept, held = svgs("transformer_arithmetic.bytes_kept")
    llama, h100 = preset("llama3-8b"), device("H100")
    assert len(boxes(kept, "blue")) == len(boxes(kept, "green")) == round(2 * parameters(llama).total / 1e9)
    one_layer = activations.layer(llama, 8192, fused_attention=True).total
    assert len(boxes(kept, "violet")) == round(llama.n_layers * one_layer / 1e9)
    assert len(boxes(held, "quiet")) == round(h100.memory_bytes / 1e9)


def test_valleys_have_their_marks_at_the_bottom() -> None:
    (svg,) = svgs("scaling_laws.valleys")
    tones = ("blue", "orange", "green", "violet")
    places = [boxes(svg, tone, "x")[0] for tone in tones]
    assert places == sorted(places)
    for tone in tones:
        (way,) = (one.get("d", "")[1:] for one in svg.iter("path") if one.get("class") == f"{tone} stroke")
        points = [tuple(map(float, point.split())) for point in way.split("L")]
        assert boxes(svg, tone, "y")[0] + 4 == pytest.approx(max(y for _, y in points), abs=0.3)  # y runs downwards


def test_gopher_and_chinchilla_lie_on_one_line_of_equal_compute() -> None:
    (svg,) = svgs("scaling_laws.budgets")
    _, gopher, chinchilla = zip(boxes(svg, "orange", "x"), boxes(svg, "orange", "y"), strict=True)
    lines = [one.get("d", "")[1:] for one in svg.iter("path") if one.get("class") == "blue"]
    assert len(lines) == 3
    (x0, y0), (x1, y1) = ([float(number) for number in point.split()] for point in lines[0].split("L"))
    slope = (gopher[1] - chinchilla[1]) / (gopher[0] - chinchilla[0])
    assert slope == pytest.approx((y1 - y0) / (x1 - x0), rel=0.15)  # 280 × 0.3 is nearly 70 × 1.4


def test_reading_takes_as_long_as_arithmetic_at_the_ridge() -> None:
    (svg,) = svgs("introduction.wall")
    reading, arithmetic = boxes(svg, "violet"), boxes(svg, "blue")
    assert len(set(reading)) == 1
    assert arithmetic[2] == pytest.approx(reading[2], rel=0.01)
    assert arithmetic[3] == pytest.approx(2 * reading[3], rel=0.01)
    assert arithmetic[1] / reading[1] == pytest.approx(64 / device("H100").ridge_point("bf16"), rel=0.01)


def test_a_square_is_a_byte_of_a_parameter() -> None:
    (svg,) = svgs("introduction.copies")
    counts = {tone: len(boxes(svg, tone)) - 1 for tone in ("blue", "orange", "green", "violet")}  # one in the legend
    kept = [RECIPES[name] for name in ("mixed16", "mixed18", "mixed20")]
    assert counts == {
        "blue": 2 + sum(one.weights for one in kept),
        "orange": sum(one.gradients for one in kept),
        "green": sum(one.master for one in kept),
        "violet": sum(one.moments for one in kept),
    }
    assert words(svg)[1:4] == [f"{one.bytes_per_parameter:g} bytes" for one in kept]


def test_each_step_is_limited_by_another_lane() -> None:
    (svg,) = svgs("introduction.limits")
    h100, n_params = device("H100"), 8e9
    lanes = {"blue": boxes(svg, "blue"), "violet": boxes(svg, "violet"), "green": boxes(svg, "green")}
    wide = max(lanes["violet"])
    assert [lanes["violet"][0], lanes["green"][0], lanes["blue"][2]] == [wide] * 3
    compute_s = 6 * n_params * 512 / h100.peak("bf16")
    link_s = 4 * n_params / h100.link("NVLink").per_direction_bytes_per_s
    memory_s = 6 * n_params / h100.memory_bandwidth_bytes_per_s
    assert [lanes["blue"][1] / wide, lanes["violet"][1] / wide] == pytest.approx(
        [compute_s / link_s, memory_s / link_s], abs=1e-3
    )
    assert lanes["green"][1] / wide == pytest.approx(link_s / (16 * compute_s), abs=1e-3)


def test_floors_part_beyond_the_runs_and_not_before() -> None:
    (svg,) = svgs("scaling_laws.floors")
    ways = {
        one.get("class", "").split()[0]: [tuple(map(float, point.split())) for point in one.get("d", "")[1:].split("L")]
        for one in svg.iter("path")
        if one.get("class", "").endswith("stroke")
    }
    none, published, high = (ways[tone] for tone in ("violet", "blue", "orange"))
    assert none[-1][1] > published[-1][1] > high[-1][1]  # y runs downwards
    runs = [(x + 4, y + 4) for x, y in zip(boxes(svg, "plain", "x"), boxes(svg, "plain", "y"), strict=True)]
    assert len(runs) == 6 and len(boxes(svg, "green")) == 1
    for x, y in runs:
        for way in ways.values():
            nearest = min(way, key=lambda point: abs(point[0] - x))
            assert nearest[1] == pytest.approx(y, abs=6)


def test_only_the_misprinted_row_lies_off_its_line() -> None:
    (svg,) = svgs("scaling_laws.approaches")
    for tone, count in (("blue", 0), ("green", 0), ("orange", 1)):
        points = [(x + 3, y + 3) for x, y in zip(boxes(svg, tone, "x"), boxes(svg, tone, "y"), strict=True)]
        (way,) = (one.get("d", "")[1:] for one in svg.iter("path") if one.get("class") == tone)
        (x0, y0), (x1, y1) = ([float(number) for number in point.split()] for point in way.split("L"))
        off = [abs(y0 + (y1 - y0) * (x - x0) / (x1 - x0) - y) > 8 for x, y in points]
        assert len(points) == 9 and sum(off) == count


def test_the_exchange_is_hidden_from_the_critical_number_of_tokens_on() -> None:
    (svg,) = svgs("introduction.exchange")
    h100 = device("H100")
    critical = h100.peak("bf16") / h100.link("NVLink").per_direction_bytes_per_s
    counts = [int(one.replace(",", "")) for one in words(svg) if one.replace(",", "").isdigit()]
    ratios = [back / sent for back, sent in zip(boxes(svg, "blue"), boxes(svg, "violet"), strict=True)]
    assert ratios == pytest.approx([count / critical for count in counts], rel=0.01)
    assert words(svg).count("waits for the wires") == sum(ratio < 0.99 for ratio in ratios) == 1


def test_a_node_refuses_what_torch_s_backward_refuses() -> None:
    for svg, name in zip(svgs("inside_pytorch.versions"), ("exp", "sin"), strict=True):
        result = getattr(torch, name)(torch.ones(3, requires_grad=True))
        result.add_(1)
        try:
            result.sum().backward()
            verdict = "runs"
        except RuntimeError:
            verdict = "refuses"
        assert verdict in words(svg)


def test_orders_of_attention_cost_what_the_einsum_says() -> None:
    first, cheapest = svgs("transformer_arithmetic.order")
    attention = Einsum.parse("TH,SH,SV->TV", T=8192, S=8192, H=128, V=128)
    drawn = [float(words(svg)[-1].removesuffix(" GFLOP")) for svg in (first, cheapest)]
    assert drawn == [round(attention.contraction(way).flops / 1e9, 1) for way in ([(0, 1), (0, 1)], None)]
    assert boxes(first, "orange")[0] / boxes(cheapest, "orange")[0] == pytest.approx(8192 / 128, rel=0.05)


def test_the_terms_of_the_law_are_drawn_one_upon_the_other() -> None:
    (svg,) = svgs("scaling_laws.terms")
    ways = {one.get("class"): one.get("d", "")[1:].split("L") for one in svg.iter("path")}
    heights = {tone: [float(point.split()[1]) for point in ways[tone]] for tone in ("blue stroke", "orange stroke")}
    floor = float(ways["violet"][0].split()[1])
    assert all(blue < orange < floor for blue, orange in zip(*heights.values(), strict=False))
    assert heights["orange stroke"] == sorted(heights["orange stroke"], reverse=True)  # y runs downwards
    assert boxes(svg, "blue", "y")[0] + 4 == pytest.approx(max(heights["blue stroke"]), abs=0.2)
