"""What chapter 07 computes and concludes, against published figures and against arithmetic written out here."""

from __future__ import annotations

import math

import pytest

from tests.oracles.catalogue import oracles

PAGE = "07-transformer-arithmetic"

# Llama 3 70B and the page's step, by the letters of the page.
L, D, F, N, K, H, V = 80, 8192, 28_672, 64, 8, 128, 128_256
B, T, GPUS, PEAK = 512, 8192, 64, 989.4e12
MATRICES = L * (2 * D * N * H + 2 * D * K * H + 3 * D * F) + V * D  # that multiply: the head, not the embedding
PARAMETERS = MATRICES + L * 2 * D + D + V * D


def exactly(value):
    return pytest.approx(value, rel=1e-12)


def test_the_first_bound(page) -> None:
    assert page.P == PARAMETERS
    assert page.first_s == exactly(6 * PARAMETERS * B * T / (GPUS * PEAK))
    assert 16 * page.P < GPUS * page.capacity == GPUS * 80 * 2**30


def test_the_einsums_of_a_layer_cost_its_loops_and_its_arrays(page) -> None:
    lengths = {"D": D, "F": F, "H": H, "K": K, "N": N, "G": N // K, "B": 1, "S": 8192}
    for tokens, sizes in ((8192, page.prompt), (1, page.token)):
        assert sizes == {**lengths, "T": tokens}
        for subscripts in page.layer.values():
            arrays = subscripts.replace("->", ",").split(",")
            products = [math.prod(sizes[letter] for letter in array) for array in arrays]
            einsum = page.Einsum.parse(subscripts, sizes)
            assert einsum.flops == 2 * math.prod(sizes[letter] for letter in {*subscripts} - {*",->"})
            assert einsum.intensity() == exactly(einsum.flops / (2 * sum(products)))
    # The prose: a product is over the ridge for a prompt and at 1 for a token; scores are under it either way.
    ridge = page.h100.ridge_point("bf16")
    of_prompt = {name: page.Einsum.parse(text, page.prompt).intensity() for name, text in page.layer.items()}
    assert {name for name, intensity in of_prompt.items() if intensity < ridge} == {"scores", "weighted sum"}
    assert page.decode_intensity == pytest.approx(1, abs=1e-3)
    assert page.score_intensity < page.sizes["G"] == N // K
    oracle = oracles()["FL05"]
    assert page.fused_intensity == pytest.approx(oracle.figures[1], rel=oracle.rel_tol)


def test_the_order_of_a_product_of_three(page) -> None:
    assert page.scores_first.flops == 2 * 2 * 8192**2 * 128
    assert page.cheapest.flops == 2 * 2 * 8192 * 128**2
    assert page.scores_first.flops / page.cheapest.flops == 8192 / 128


def test_gpt2_to_the_last_parameter(page) -> None:
    layer = 12 * 768**2 + 9 * 768 + 4 * 768  # matrices; biases 3 + 1 + 4 + 1; two norms of a scale and a shift
    assert page.gpt2.total == 12 * layer + 50_257 * 768 + 1024 * 768 + 2 * 768
    oracles()["PA01"].check(page.gpt2.total)
    assert page.gpt2.norm == 12 * 4 * 768 + 2 * 768


def test_the_table_of_models(page) -> None:
    oracles()["PA04"].check(page.counts["llama2-7b"].total)
    split = page.counts["llama3-70b"]
    oracles()["PA11"].check(split.mlp / 1e9, (split.embedding + split.head) / 1e9, split.attention / 1e9)
    mixtral = page.counts["mixtral-8x7b"]
    expert = 32 * 3 * 4096 * 14_336
    assert mixtral.total - mixtral.active == 6 * expert
    assert page.counts["deepseek-v3"].total == pytest.approx(671e9, rel=1e-3)  # as its report rounds it
    assert page.counts["deepseek-v3"].active == pytest.approx(37e9, rel=0.02)


def test_what_runs_is_what_is_counted(page) -> None:
    """The page's small model by hand: 2 FLOPs forward and 4 backward for each weight that multiplies, and attention."""
    layers, width, heads, kv_heads, hidden, vocabulary, tokens, sequences = 3, 96, 6, 2, 200, 300, 64, 5
    H_ = width // heads
    layer = 2 * width**2 + 2 * width * kv_heads * H_ + 3 * width * hidden
    token = 6 * (layers * layer + width * vocabulary) + 3 * layers * 4 * tokens * width
    assert page.counted == page.formula == sequences * tokens * token


def test_latent_attention_s_parameters(page) -> None:
    down, up = 7168 * (1536 + 512 + 64), 1536 * 128 * 192 + 512 * 128 * (128 + 128)
    assert page.latent_attention == down + up + 128 * 128 * 7168
    assert page.whole_attention == 7168 * 128 * (192 + 192 + 128 + 128)


def test_where_six_flops_err(page) -> None:
    attention = 4 * L * T * N * H
    counted = 3 * (2 * MATRICES + attention)
    assert 1 / page.compute.six_n_ratio(page.llama, T) == exactly(counted / (6 * PARAMETERS))
    assert page.compute.attention_share(page.llama, T) == exactly(attention / (2 * MATRICES + attention))
    assert page.crossover == exactly(2 * MATRICES / (4 * L * N * H))
    # T = 8D for multi-head attention and a gated MLP four times as wide.
    textbook = page.TransformerConfig("book", 1, d_model=1024, n_heads=8, d_ff=4096, vocab_size=1, context=8)
    assert page.compute.attention_crossover(textbook) == pytest.approx(8 * 1024, rel=1e-3)  # a head of one token


def test_states_by_recipe_and_stage(page) -> None:
    for name, size in (("mixed16", 16), ("mixed18", 18), ("mixed20", 20)):
        recipe = page.memory.RECIPES[name]
        assert recipe.bytes_per_parameter == size
        stages = [page.memory.states(64e9, recipe, data=64, zero_stage=stage).total / 1e9 for stage in range(4)]
        gradients = size - 14
        assert stages == exactly([64 * size, 64 * (2 + gradients) + 12, 64 * 2 + gradients + 12, size])
    assert [round(size, 1) for size in page.zero_paper] == [120.0, 31.4, 16.6, 1.9]  # the paper's figure 1
    table = oracles()["ME01"].figures
    assert [table[2], table[6]] == exactly(
        [70 * page.memory.RECIPES[name].bytes_per_parameter for name in ("mixed16", "mixed20")]
    )


def test_the_table_of_korthikanti(page) -> None:
    oracles()["AC02"].check(*(one.total / page.unit for one in page.kept.values()))
    oracles()["AC03"].check(page.kept["one device"].total / 1e9)
    assert page.saved == pytest.approx(oracles()["AC01"].figures[2], rel=oracles()["AC01"].rel_tol)


def test_selective_recomputation_is_cheaper_than_its_paper_says(page) -> None:
    oracle = oracles()["AC04"]
    printed, theirs, once = zip(*page.hfu_ratio.values(), strict=True)
    oracle.check(*theirs)
    assert list(printed) == pytest.approx(oracle.figures, rel=1e-3)
    i = oracle.inputs
    for ratio, width, layers in zip(once, i["h"], i["l"], strict=True):
        matrices, attention = 24 * width**2 + 2 * i["V"] * width / layers, 4 * i["s"] * width
        assert ratio == exactly(1 + attention / (3 * (matrices + attention)))
    assert all(theirs_ - 1 == exactly(3 * (once_ - 1)) for theirs_, once_ in zip(theirs, once, strict=True))


def test_caches(page) -> None:
    names = ("llama3-8b", "llama3-70b", "llama3-405b")
    oracles()["KV02"].check(*(page.cache.bytes_per_token(page.preset(name)) for name in names))
    assert page.cache.bytes_per_token(page.preset("llama2-7b")) == 2 * 32 * 4096 * 2
    assert page.latent_kb == 61 * (512 + 64) * 2 / 1e3
    assert page.unpacked_kb == 61 * 128 * (128 + 64 + 128) * 2 / 1e3


def test_published_utilisations(page) -> None:
    assert round(100 * page.palm_mfu, 1) == 100 * oracles()["TR13"].figures[0]
    assert round(100 * page.llama_mfu) == 40  # printed as 41 beside the 400 TFLOP/s that it follows from
    assert round(100 * page.megatron_hfu) == 52
    with_recomputation = 4 * 24 * 25_600**2 + 4 * 4 * 2048 * 25_600 + 3 * 2 * 51_200 * 25_600 / 128
    model = 3 * 24 * 25_600**2 + 3 * 4 * 2048 * 25_600 + 3 * 2 * 51_200 * 25_600 / 128
    assert page.megatron_mfu == exactly(163e12 / 312e12 * model / with_recomputation)


def test_serving_on_one_node(page) -> None:
    """Prefill by its FLOPs, decoding by the bytes of weights and cache: the embedding is not read, its row apart."""
    attention = 4 * L * N * H * (T * (T + 1) / 2)
    prompt_flops = 2 * (MATRICES - V * D) * T + attention + 2 * V * D
    assert page.prefill.time_s == pytest.approx(prompt_flops / (8 * PEAK), rel=1e-9)
    norms = L * 2 * D + D  # every device reads them
    for sequences, bound in ((1, page.decode_one), (64, page.decode_many)):
        read = 2 * (MATRICES / 8 + norms) + sequences * T * 2 * L * K * H * 2 / 8
        assert bound.time_s == pytest.approx(read / 3350e9, rel=1e-9)
    for prefill, one, many in page.served.values():
        assert (prefill.binds, one.binds, many.binds) == ("compute", "memory", "memory")
    h100, h200 = page.served["H100"], page.served["H200"]  # "it helps decoding only"
    assert h100[0].time_s == h200[0].time_s
    assert h100[1].time_s / h200[1].time_s == exactly(4800 / 3350)


def test_the_answer(page) -> None:
    """Llama 3 70B on 64 H100s: FLOPs with the causal half of attention, bytes by kind, and what the month buys."""
    forward = 2 * MATRICES + 4 * L * N * H * (T + 1) / 2
    assert page.best_s == pytest.approx(3 * forward * B * T / (GPUS * PEAK), rel=1e-9)
    layers = forward - 2 * V * D
    recomputing = (3 * forward + layers) * B * T / (GPUS * PEAK)
    assert page.again.bounds["step"].time_s == pytest.approx(recomputing, rel=1e-9)
    # States with tensor parallelism: an eighth of the matrices, all norms; the optimiser's over 8 data ranks.
    held = (MATRICES + V * D) / 8 + L * 2 * D + D
    use = page.best.memory
    assert [use.weights, use.gradients, use.master + use.moments] == exactly([2 * held, 2 * held, 12 * held / 8])
    # A layer keeps 4D of norms, queries, keys, values and attention's result, 3F of the MLP, statistics in fp32.
    per_token = 2 * (4 * D + 2 * N * H + 2 * K * H + 3 * F) + 4 * N
    end = T * (2 * 2 * D + 4 * V / 8)
    assert use.activations == exactly(L * T * per_token / 8 + end)
    assert page.sharded.memory.activations == exactly(L * T * per_token + T * (2 * 2 * D + 4 * V))
    inputs = 2 * T * D
    assert page.again.memory.activations == exactly(L * inputs + T * per_token - inputs + T * (2 * 2 * D + 4 * V))
    assert [run.fits for run in page.runs.values()] == [False, True, True, True]
    assert page.month_tokens == exactly(30 * 86_400 / page.best_s * B * T)
    # The first bound misses attention and nothing else that takes time here; the embedding makes it a little larger.
    assert page.first_s < page.best_s < 1.1 * page.first_s


def test_problems_with_published_figures_that_contradict_themselves(page) -> None:
    counted, rounded = oracles()["PA10"], oracles()["PA10"].printed[0]
    share = page.p1.attention / (page.p1.attention + page.p1.mlp)
    counted.check(page.p1.total, share, page.cache.bytes_per_token(page.p1_config, 1))
    assert math.floor(page.p1_rounded / 1e9) * 1e9 == rounded

    utilisation = oracles()["FL08"]
    utilisation.check(page.p2_flops, page.p2_used[1513e12])
    assert page.p2_used[page.h100.peak("fp8")] == pytest.approx(utilisation.arithmetic[1], rel=0.005)

    checkpoints = oracles()["TR02"]
    checkpoints.check(page.p3[3], page.p3_total[3], page.p3_chips[3], page.p3_total[3] * 1e3 / 8960)
    of_four = [page.p3[4], page.p3_total[4], page.p3_chips[4]]
    assert of_four == pytest.approx(checkpoints.printed[:3], rel=0.005)

    tensor = oracles()["TR06"]
    assert page.p4_days == pytest.approx(tensor.figures[1], rel=tensor.rel_tol)
    assert page.p4_limit == pytest.approx(tensor.arithmetic["tensor_parallel"], rel=1e-3)
    assert page.llama.d_ff / 1995 == pytest.approx(tensor.printed["tensor_parallel"], rel=1e-3)

    room = oracles()["KI05"]
    assert page.p5_weights == 2 * 52e9  # the parameters that the problem states; the post counts an embedding too
    assert round(160 - page.p5_weights / 1e9) / 0.002 == exactly(room.arithmetic["tokens"])


def test_the_other_problems(page) -> None:
    palm = oracles()["TR13"]
    assert page.p6 == pytest.approx(3 * (palm.inputs["hfu"] / palm.expected - 1), rel=1e-9)
    oracles()["MG04"].check(*page.p7_days.values())
    matrices, attention, head = 24 * 12_288**2, 4 * 2048 * 12_288, 2 * 51_200 * 12_288
    step = 1536 * 2048 * (96 * 4 * (matrices + attention) + 3 * head)
    assert page.p7_step == exactly(step)
    oracles()["MG03"].check(page.p7_step, oracles()["MG03"].figures[1])
    keys = 2 * 8192 * 512 * 128 * 128 + 2 * 8192 * 128 * 128
    query = 2 * 128 * 128 * 512 + 2 * 128 * 512 * 8192
    assert page.p8_orders == {"keys first": keys, "query first": query}
