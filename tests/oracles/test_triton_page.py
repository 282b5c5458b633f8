"""What chapter 06 counts and concludes, against published figures and against arithmetic written out here."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from mlsys_lab.kernels.trace.report import report
from tests.oracles.catalogue import oracles

PAGE = "06-triton"
TEXT = (Path(__file__).parents[2] / "book" / "chapters" / f"{PAGE}.md").read_text("utf-8")

PEAK, BANDWIDTH, UNITS = 989.4e12, 3350e9, 132


def exactly(value):
    return pytest.approx(value, rel=1e-12)


def test_passes_of_a_softmax(page) -> None:
    """The tutorial's count: 5·N·D + 2·N numbers read, 3·N·D + 2·N written, and the ratio to a fused one."""
    read, written = (sum(row[way] for row in page.eager) / 4 for way in (1, 2))
    oracles()["GP10"].check(read, written, page.moved(page.eager) / page.least)
    assert oracles()["GP10"].inputs == {"M": page.R, "N": page.D}
    assert len(page.eager) == 5
    assert page.moved(page.library) == page.least


def test_a_load_without_a_mask_is_found_and_one_with_a_mask_is_right(page) -> None:
    read, written = report(page.doubled(page.double_kernel, 40)).problems
    assert "24 of 64 lanes read beyond the end of x_ptr" in read
    assert "24 of 64 lanes write beyond the end of y_ptr" in written
    assert report(page.doubled(page.masked_kernel, 40)).problems == ()
    assert report(page.doubled(page.double_kernel, 64)).problems == ()


@pytest.mark.parametrize(("m", "n", "k"), [(20, 20, 20), (17, 33, 5), (1, 1, 1)])
def test_the_page_s_product(page, m: int, n: int, k: int) -> None:
    a, b = torch.randn(m, k).half(), torch.randn(k, n).half()
    c, trace = page.product(a, b, 16, 16)
    torch.testing.assert_close(c.float(), a.float() @ b.float(), rtol=1e-3, atol=1e-5)
    assert report(trace).problems == ()


def test_the_picture_is_small_and_shows_all_accesses(page) -> None:
    assert len(json.dumps(page.tiles_data)) < 40_000
    assert report(page.tiles_trace).problems == ()


def test_lines_are_those_that_hold_code(page) -> None:
    assert (
        page.code_lines("# a comment\ndef f(\n    x,  # of x\n):\n\n    return x\n") == 4
    )  # def f( · x, · ): · return
    kernel = TEXT.split("def matmul_kernel(")[1].split("\n\n\n")[0].splitlines()
    assert page.page_lines == len(kernel) + 1  # and the decorator
    assert "/*" not in page.cpp_kernel.read_text("utf-8")
    plain = [line.strip() for line in page.cpp_kernel.read_text("utf-8").splitlines()]
    assert page.cpp_lines == len([line for line in plain if line and not line.startswith("//")])


def test_traffic_of_tiles(page) -> None:
    for (m, n), (asked, _) in page.tile_bytes.items():
        assert asked == 2 * 64 * 64 * (64 // n + 64 // m + 1)


def test_weights_are_asked_for_once_a_program(page) -> None:
    """32 programs of two rows, each with 4,096 bytes of weights; four times the rows would not make it better."""
    assert (page.norm_traces[0].grid[0], page.weight.nbytes) == (32, 4096)
    x = torch.randn(4 * 64, 1024)
    weight = torch.ones(1024)
    more = page.asked_bytes(page.norms.rms_norm, x, weight) / page.norm_cost.forward(*x.shape, 4, centred=False)[1]
    assert more > page.ratios["RMS norm"][2]


def test_passes_and_fused_kernels_by_hand(page) -> None:
    """Numbers that the operators of a norm move, and what fused programs read twice: the weights."""
    n, d = 64, 1024
    rms, layer = 7 * n * d + 6 * n + d, 12 * n * d + 8 * n + 2 * d
    assert page.ratios["RMS norm"][:2] == (6, exactly(rms / (2 * n * d + d)))
    assert page.ratios["layer norm"][:2] == (9, exactly(layer / (2 * n * d + 2 * d)))
    assert page.ratios["cross-entropy"][1] == pytest.approx(2.0, rel=0.02)
    assert page.ratios["softmax"][2] == 1.0
    least = n * (d * 4 + 8 + 2 * 4)
    assert page.ratios["cross-entropy"][2] == exactly((least + 4 * n) / least)  # a row's own logit, once more
    for name, weights in (("RMS norm", 1), ("layer norm", 2)):
        more = (page.ratios[name][2] - 1) * (2 * n + weights) * d  # numbers: weights again, and 1 / σ (and μ) of a row
        again = (more - weights * n) / (weights * d)
        assert again == pytest.approx(round(again), abs=1e-9)
        assert 0 < again < n
    assert max(page.ratios, key=lambda name: page.ratios[name][1]) == "layer norm"


def test_the_page_s_softmax_moves_the_least(page) -> None:
    assert page.total(page.row_trace).ratio == 1.0
    assert page.online_ratio == {"one_pass": 1.0, "online": 1.5}
    assert page.MAX_WIDTH == 1024 * 32


def test_one_query_s_loop_is_attention_whatever_the_block(page) -> None:
    q, k, v = torch.randn(64), torch.randn(12, 64), torch.randn(12, 64)
    for block in (1, 5, 12, 100):
        torch.testing.assert_close(page.attend(q, k, v, block), torch.softmax(k @ q / 8, 0) @ v)


def test_attention_s_counts_by_hand(page) -> None:
    for tokens, naive, flash in zip(page.lengths, *page.counted.values(), strict=True):
        row, blocks = 64 * 2, tokens // 64  # bytes of a row of Q, K, V or the output
        assert naive == 4 * 4 * tokens**2 + 2 * blocks * tokens * row + 2 * tokens * row + 4 * tokens
        assert flash == 2 * 64 * (blocks * (blocks + 1) // 2) * row + 2 * tokens * row + 4 * tokens
        assert page.cost.forward(page.head(tokens))[1] == 4 * tokens * row
        assert page.unfused_bytes(page.head(tokens)) == 16 * tokens**2 + 4 * tokens * row
    assert f"{page.least_ratio:.1f}" == "128.0"
    assert page.long["unfused"] / 4096**2 == pytest.approx(4 * 4 + 4, rel=0.01)
    assert page.keys_bytes == 2 * 4096 * 64 * 2 < page.h100.l2_bytes
    flops, least = page.cost.forward(page.head(4096))
    assert flops / least == exactly(4 * 64 * 4096 * 4097 / 2 / (4 * 4096 * 128))
    assert flops / least > 3 * PEAK / BANDWIDTH  # "far to the right"


def test_what_is_quoted_of_flash_attention(page) -> None:
    published = oracles()["FA01"]
    for name, unit in (("hbm_GB", "GB"), ("runtime_ms", "ms")):
        standard, fused = published.inputs[name]
        assert f"{standard} {unit} against {fused}" in TEXT
    fused, standard = published.inputs["GFLOPs"]
    assert f"100 * ({fused} / {standard} - 1)" in TEXT
    batch, heads, tokens, head_dim = (published.inputs[name] for name in ("batch", "heads", "tokens", "head_dim"))
    sizes = page.cost.Shape(batch, heads, heads, tokens, tokens, head_dim)
    assert page.cost.forward(sizes)[0] / 1e9 == pytest.approx(published.arithmetic["forward_GFLOPs"], rel=0.001)


def test_decode_attention(page) -> None:
    tokens, ends = sum(page.seq_lens), 2 * len(page.seq_lens) * page.heads
    least = (2 * tokens * page.kv_heads + ends) * 64 * 2
    assert page.least_decode == least
    for parts, ratio in page.decode_ratio.items():
        shape = (page.seq_lens, page.heads, page.kv_heads, 64)
        assert ratio * least == exactly(page.decode_cost.paged_bytes(*shape, num_splits=parts, block_n=16))


def test_a_wave_of_programs(page) -> None:
    """Strips of 16 rows of A or columns of B, 512 bytes each, that 32 tiles in a patch touch."""
    patches = {1: (2, 16), 4: (4, 8), 8: (8, 4), 16: (16, 2)}
    assert page.wave == {height: 512 * (down + across) for height, (down, across) in patches.items()}


def test_the_list_that_is_tuned_over(page) -> None:
    assert page.tuned[page.first, page.flat][1] == exactly(16 / UNITS)
    assert page.tuned[page.busiest, page.flat][1] == exactly(4 * 64 / (2 * UNITS))
    for sizes in (page.large, page.flat):  # "asks for least"
        assert page.tuned[page.first, sizes][0] == min(page.tuned[tile, sizes][0] for tile in page.candidates)


def test_what_fusing_saves(page) -> None:
    """Bytes an element, with float32 between bfloat16 in and out, over the four that a fused kernel moves."""
    convert, back, one, two = 2 + 4, 4 + 2, 4, 8  # a conversion, and a pass that writes a number a row, or a matrix
    counted = [
        row[1] + row[2] for row in page.passes(page.softmax.reference, torch.empty(page.rows, device="meta").bfloat16())
    ]
    passes = [round(one / (2 * page.TOKENS * page.WIDE)) for one in counted]
    assert sum(passes) == 22
    assert page.gain["softmax"] == pytest.approx((convert + 2 * one + 3 * two + back) / 4, rel=1e-3)
    assert page.gain["RMS norm"] == pytest.approx((2 * convert + one + 3 * two + back) / 4, rel=1e-3)
    product_s = 2 * 4096**3 / PEAK
    relu_s = 2 * 2 * 4096**2 / BANDWIDTH
    assert page.gain["matmul, then ReLU"] == pytest.approx(1 + relu_s / product_s, rel=1e-9)
    assert page.gain["matmul alone"] == 1.0
    scores, rows = 16 * 4096**2, 16 * 4096 * 128
    flash_s = 4 * 128 * scores * (4097 / 4096) / 2 / PEAK
    naive_s = (16 * scores + 4 * 2 * rows) / BANDWIDTH
    assert page.gain["attention"] == pytest.approx(naive_s / flash_s, rel=1e-6)


def test_problems_on_rows(page) -> None:
    assert (len(page.p1), page.p1_ratio) == (4, pytest.approx(3.0, rel=1e-3))
    assert page.p2 == {781: 781 / 1024, 1024: 1.0, 1025: 1025 / 2048}
    whole = torch.logsumexp(torch.tensor([2 + math.log(1.5), 5 + math.log(1.2)], dtype=torch.float64), 0) - 5
    assert page.p3_sum == exactly(math.exp(whole))
    assert page.p3_share == exactly(1.5 * math.exp(2) / (1.5 * math.exp(2) + 1.2 * math.exp(5)))


def test_problems_on_tiles(page) -> None:
    assert page.p4_side == exactly(2 * PEAK / BANDWIDTH) and page.p4_tile == 1024
    assert page.p4_registers == page.h100.register_bytes_per_unit < 4 * page.p4_tile**2
    assert 0.5 < page.p5[128] / page.p5[64] < 0.53  # "a little more than half"
    assert page.p5_shared == {m: (m + 2 * 2 * 64) * 128 * 2 for m in (64, 128)}
    oracles()["FA02"].check(page.p6_standard, page.p6_flash)
    given = oracles()["FA02"].inputs
    assert (page.p6_n, page.p6_d, page.p6_fast) == (given["N"], given["d"], given["M_elems"])


def test_problems_on_bounds(page) -> None:
    for kv_heads, bound in page.p7_bound.items():
        size = 2 * 128 * (2 * 8 * 32_768 * kv_heads + 2 * 8 * 32)
        assert bound.limit == "memory" and bound.time_s == exactly(size / BANDWIDTH)
    thin = 2 * (2 * 4096 * 64 + 4096**2) / BANDWIDTH  # limited by memory
    relu = 2 * 2 * 4096**2 / BANDWIDTH
    assert page.p8[64] == exactly(relu / (thin + relu))
    assert page.p8[16_384] == exactly(relu / (2 * 4096**2 * 16_384 / PEAK + relu))
