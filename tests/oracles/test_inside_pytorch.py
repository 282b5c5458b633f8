"""What chapter 03 counts and derives, against other ways of finding the same number."""

from __future__ import annotations

import json

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from book import trace_block

PAGE = "03-inside-pytorch"


def test_a_block_costs_72_d_squared_flops_a_token(page) -> None:
    """6 FLOPs for each of 12 D² weights and token: torch's own counter, attention's scores left out."""
    B, T, D, H = 2, 16, 64, 4
    block, x = page.Block(D, H), torch.randn(B, T, D, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        block(x).sum().backward()
    counts = {str(op): flops for op, flops in counter.get_flop_counts()["Global"].items()}
    weights = sum(flops for op, flops in counts.items() if op in ("aten.addmm", "aten.mm"))
    assert weights == 72 * D**2 * B * T
    matrices = sum(p.numel() for p in block.parameters() if p.dim() == 2)
    assert matrices == 12 * D**2
    assert [getattr(block, name).weight.numel() / D**2 for name in ("qkv", "proj", "up", "down")] == [3, 1, 4, 4]


def test_the_host_s_work_does_not_depend_on_the_sizes(page) -> None:
    counts = []
    for B, T, D in ((1, 2, 8), (3, 8, 32)):
        block, x = page.Block(D, 1), torch.randn(B, T, D, requires_grad=True)
        upstream = torch.ones(B, T, D)
        block(x).backward(upstream)
        with page.Log() as log:
            block(x).backward(upstream)
        counts.append(len(log.ops))
    assert counts == [len(page.step_log.ops)] * 2


def test_the_share_of_peak_meets_the_answer_s_two_sizes(page) -> None:
    assert page.share_of_peak(page.tokens_30) == pytest.approx(0.30, rel=1e-12)
    assert page.share_of_peak(page.tokens_full) == pytest.approx(1.0, rel=1e-12)
    assert page.share_of_peak(page.tokens_full * 8) == 1.0


def test_saved_bytes_are_what_the_formulas_need(page) -> None:
    assert page.per_element == {
        "u + v": 0,
        "u * 2": 0,
        "u * v": 8,
        "relu(u)": 4,
        "gelu(u)": 4,
        "softmax(u)": 4,
        "layer_norm(u)": 4 + 2 * 4 / 128,  # and a mean and a reciprocal deviation for each row of 128
    }
    assert page.per_token_width == 9


def test_the_route_ends_where_the_tensor_lives(page) -> None:
    x = torch.ones(2, 2)
    assert page.route(torch.ops.aten.add.Tensor, x, x)[-1][0] == "CPU"
    meta = x.to("meta")
    assert [key for key, *_ in page.route(torch.ops.aten.add.Tensor, meta, meta)] == ["AutogradMeta", "Meta"]
    # Composite operators dissolve at their first kernel: nothing of theirs is ever reached on the device.
    assert len(page.route(torch.ops.aten.linear.default, x, x)) == 1


def test_what_the_thread_adds_and_masks() -> None:
    keys, x = torch._C.DispatchKey, torch.ones(1)

    def left() -> list[bool]:
        found = torch._C._dispatch_keys(x) | torch._C._dispatch_tls_local_include_set()
        found = found - torch._C._dispatch_tls_local_exclude_set()
        return [found.has(key) for key in (keys.AutocastCPU, keys.AutogradCPU, keys.CPU, keys.BackendSelect)]

    assert all(torch._C._dispatch_keys(x).has(key) for key in (keys.AutocastCPU, keys.AutogradCPU, keys.CPU))
    assert torch._C._dispatch_keys(x).has(keys.ADInplaceOrView)
    assert not torch._C._dispatch_keys(x).has(keys.BackendSelect)
    assert left() == [False, True, True, True]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert left() == [True, True, True, True]
    with torch.inference_mode():
        assert left() == [False, False, True, True]


def test_the_views_in_the_log_are_those_that_are_named(page) -> None:
    views = {op.name().removeprefix("aten::") for op in page.forward.ops + page.backward.ops if op.is_view}
    rest = {op.name().removeprefix("aten::") for op in page.forward.ops + page.backward.ops if not op.is_view}
    assert views == {"expand", "view", "t", "detach"} and not views & rest


def test_a_leaf_that_is_ready_goes_before_older_nodes(page) -> None:
    first, second = (torch.ones(1, requires_grad=True) for _ in range(2))
    older, seen = first.sin().sin(), []
    result = older * second.cos()
    page.watch(result.grad_fn, seen)
    result.backward()
    names = [name.removesuffix("Backward0") for name, *_ in seen]
    assert names == ["Mul", "Cos", "AccumulateGrad", "Sin", "Sin", "AccumulateGrad"]


def test_a_node_s_names_say_what_it_keeps(page) -> None:
    u = torch.ones(2, 2, requires_grad=True)
    kept = {name: page.saved_by(getattr(torch, name)(u).grad_fn) for name in ("exp", "relu", "tanh", "sigmoid")}
    assert set(kept.values()) == {"result"} and set(kept) == set(page.refused)
    assert page.saved_by(u.sin().grad_fn) == page.saved_by(u.cos().grad_fn) == "self"
    assert page.saved_by((u * 2).grad_fn) == page.saved_by((u + u).grad_fn) == ""


def test_calls_that_are_compared_were_timed_in_the_same_rounds(page) -> None:
    """The page once set a floor of 1.75 µs next to "lower than" an addition of 1.3 µs, timed at another moment."""
    assert list(page.rounds.timings) == list(page.calls)
    assert len({len(timing.samples_s) for timing in page.rounds.timings.values()}) == 1
    assert list(page.sized.timings) == page.sizes
    assert min(page.times_s[:4]) <= page.floor_s <= max(page.times_s[:4])


def test_a_number_in_an_argument_becomes_a_symbol_and_one_in_a_module_is_a_constant() -> None:
    captures = []

    def keep_graph(module, example_inputs):
        captures.append(module)
        return module.forward

    class Counter(torch.nn.Module):
        step = 0

        def forward(self, x):
            self.step += 1
            return x * self.step

    torch._dynamo.reset()
    scaled = torch.compile(lambda x, step, rate: x * step + rate, backend=keep_graph)
    for step in range(2, 7):
        scaled(torch.ones(2), step, 0.1 * step)
    assert len(captures) == 2
    captures.clear()
    counter = torch.compile(Counter(), backend=keep_graph)
    for _ in range(4):
        counter(torch.ones(2))
    assert len(captures) == 4


def test_the_knee_is_where_floor_and_the_cache_s_bytes_weigh_the_same(page) -> None:
    assert 12 * page.knee / page.cache_beta == pytest.approx(page.floor_s, rel=1e-12)


def test_the_cap_with_output_layer_and_scores(page) -> None:
    V, T, L, D = 50_257, 1024, 12, 768
    assert page.whole_flops == page.example_flops + T * (6 * V * D + 3 * L * 4 * T * D)


def test_problem_1_by_reading_the_elements(page) -> None:
    shape, stride, offset = page.picked.shape, page.picked.stride(), page.picked.storage_offset()
    again = torch.as_strided(page.cube, shape, stride, offset)
    by_index = [[[page.cube[j, 2 * k, i + 1] for k in range(2)] for j in range(2)] for i in range(3)]
    assert torch.equal(again, torch.tensor(by_index))


def test_gpt2_small_has_as_many_tensors_as_problem_5_says(page) -> None:
    block = page.Block(8, 1)
    embeddings, final_norm = 2, 2
    assert len(page.parameters) == 12 * len(list(block.parameters())) + embeddings + final_norm
    ops = page.optimiser_ops
    assert ops["fused=True"] < ops["foreach=True"] < len(page.parameters) < ops["foreach=False"]


def test_the_profile_is_the_record_rounded(page) -> None:
    record = json.loads((trace_block.TRACES / "block-forward.json").read_text(encoding="utf-8"))
    for name, depth in (("eager", 0), ("compiled", 2)):
        events = record["traces"][name]
        shown = [one for one in events if one["depth"] == depth]
        assert len(events) == page.trace_events[name]
        assert trace_block.end_us(events) == pytest.approx(page.trace_end_us[name], abs=0.06)
        for one, (operator, start_us, duration_us) in zip(shown, page.traces[name], strict=True):
            assert operator.removeprefix("scaled_dot_product_") in one["name"]
            assert (one["start_us"], one["duration_us"]) == pytest.approx((start_us, duration_us), abs=0.06)
    guards = next(one for one in record["traces"]["compiled"] if "Cache Lookup" in one["name"])
    assert guards["duration_us"] == pytest.approx(page.guards_us, abs=0.06)
    assert (record["shape"]["B"] * record["shape"]["T"], record["shape"]["D"]) == (page.trace_tokens, page.trace_D)


def test_the_profiled_block_is_the_page_s(page) -> None:
    torch.manual_seed(0)
    profiled, shown = trace_block.Block(16, 2), page.Block(16, 2)
    shown.load_state_dict(profiled.state_dict())
    x = torch.randn(2, 3, 16)
    assert torch.equal(profiled(x), shown(x))


@pytest.mark.parametrize(("launch", "kernel", "kernels"), [(5, 2, 100), (5, 20, 100), (7, 7, 1), (3, 11, 17)])
def test_a_queue_takes_the_longer_of_its_two_sides_and_a_synced_one_their_sum(page, launch, kernel, kernels) -> None:
    slower, last = (launch, kernel) if launch > kernel else (kernel, launch)
    assert page.step_us(launch, kernel, kernels) == slower * kernels + last
    assert page.step_us(launch, kernel, kernels, 1) == (launch + kernel) * kernels


def test_segments_are_those_of_the_allocator_s_source(page) -> None:
    """In MiB: kSmallSize 1, kSmallBuffer 2, kMinLargeAlloc 10, kLargeBuffer 20, kRoundLarge 2."""
    mib = 2**20
    sizes = {1: 2, mib: 2, mib + 1: 20, 10 * mib - 1: 20, 10 * mib: 10, 10 * mib + 1: 12, 25 * mib: 26}
    assert {request: page.segment_bytes(request) // mib for request in sizes} == sizes


def test_a_shape_that_changes_is_captured_once_more_and_a_branch_splits_a_graph(page) -> None:
    assert page.captures == [1, 1, 2, 2]
    assert page.pieces == {"with_branch": 2, "without_branch": 1}
    assert page.static_y.tolist() == [x * x + 1 for x in (1.0, 2.0, 3.0)] and page.count == 1


def test_the_design_problem_by_hand(page) -> None:
    peak_ms = 72 * 768**2 * 4096 * 12 / 989.4e12 * 1e3
    assert page.p8_peak_ms == pytest.approx(peak_ms, rel=1e-3)
    assert page.p8_host_ms == pytest.approx(12 + 148 * 9 * 5e-3)
    assert page.p8_device_ms == pytest.approx(2 * peak_ms + 1e3 * 28 * 84_934_656 / 3.35e12, rel=1e-3)
    # At 40 % of peak the host, which needs as long as before, is still the slower side.
    tokens_ms = page.p8_factor * peak_ms
    assert tokens_ms / page.p8_fused_ms == pytest.approx(0.4, rel=1e-3) and tokens_ms / 0.5 < page.p8_fused_ms
    # Per token and hidden size: norm's input, qkv's input, q, k, v, attention's output, norm's input, the MLP's 9.
    assert page.p8_elements == 1 + 1 + 3 + 1 + 1 + 9
