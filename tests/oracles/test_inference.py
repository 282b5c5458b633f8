"""Published figures on serving, from the closed forms of the cache and the roofline."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mlsys_lab.configs.presets import preset
from mlsys_lab.configs.transformer import TransformerConfig
from mlsys_lab.flops.bounds import machine
from mlsys_lab.flops.cache import bytes_per_token, kv_cache_bytes
from mlsys_lab.flops.communication import critical_tokens, tensor_parallel_bytes
from mlsys_lab.flops.compute import forward, two_n
from mlsys_lab.flops.estimate import estimate_serving
from mlsys_lab.flops.layout import Layout
from mlsys_lab.flops.memory import BYTES
from mlsys_lab.flops.parameters import parameters
from mlsys_lab.flops.roofline import bound, bound_on
from mlsys_lab.flops.steady import freed_tokens, prefill_servers
from mlsys_lab.flops.utilisation import mbu, training_time_s
from mlsys_lab.hardware import device
from mlsys_lab.inference.speculative import flops_ratio, speedup
from tests.oracles.catalogue import oracles
from tests.oracles.stationary import critical_devices, one_side_bytes, two_sides_bytes

LLAMA_70B = preset("llama3-70b")


def multi_head(layers: int, width: int, vocabulary: int = 32_000) -> TransformerConfig:
    """As OPT and the models of kipply's post are: heads of 128, F = 4D with two matrices."""
    return TransformerConfig("", layers, width, width // 128, 4 * width, vocabulary, 8192, activation="gelu", tied=True)


def opt_13b(i):
    config = multi_head(i["L"], i["h"])
    return [bytes_per_token(config, i["b"]), kv_cache_bytes(config, i["tokens"], element_bytes=i["b"])]


def long_sequences(i):
    one = kv_cache_bytes(LLAMA_70B, i["tokens"], element_bytes=1)
    everything = kv_cache_bytes(LLAMA_70B, i["tokens"], i["batch"], 1)
    return [bytes_per_token(LLAMA_70B, 1), one / 1e9, everything / 1e12, (i["N"] + everything) / i["hbm"]]


def token_52b(i):
    config = multi_head(i["L"], i["d"])
    one = forward(config, 1)
    return [one.key_value, bytes_per_token(config), one.layers - one.attention]


def step_52b(i):
    a100 = replace(device("A100 40GB"), peaks={"fp16": i["flops"]}, memory_bandwidth_bytes_per_s=i["hbm"])
    one = forward(multi_head(i["L"], i["d"]), 1)
    flops, weight_bytes = one.layers - one.attention, one.layers - one.attention  # 2 FLOPs and 2 bytes a parameter
    few, many = (1e3 * bound_on(a100, "fp16", rows * flops, weight_bytes).time_s for rows in (207, 416))
    return [a100.ridge_point("fp16"), few, many, critical_tokens(i["flops"], i["link"])]


def step_260b(i):
    roofs = {"peak_flops_per_s": i["gpus"] * i["flops"], "bandwidth_bytes_per_s": i["gpus"] * i["bw"]}
    small, large = (bound(two_n(i["N"], rows), 2 * i["N"], **roofs) for rows in (1, i["batch"]))
    ring = tensor_parallel_bytes(multi_head(i["L"], i["d"]), i["batch"], i["gpus"], layers=i["L"], training=False)
    # The source sends each buffer once, whole; a ring of n sends 2(n - 1)/n of it.
    once = ring / 2 * i["gpus"] / (i["gpus"] - 1)
    return [1e3 * small.time_s, 1e3 * large.time_s, 1e3 * once / i["link"]]


def room_52b(i, weights=None, token_bytes=None):
    weight_bytes = 2 * parameters(multi_head(i["L"], i["d"], i["V"])).total
    left = [gpus * i["memory"] - (weights or i["weights"]) for gpus in i["gpus"]]
    return [weight_bytes, *(room / (token_bytes or i["token_bytes"]) for room in left)]


def step_70b(i):
    cached = kv_cache_bytes(LLAMA_70B, i["tokens"], i["batch"], 1)
    everything = i["N"] + cached
    roofs = {"peak_flops_per_s": i["flops"], "bandwidth_bytes_per_s": i["bw"]}
    step_s = bound(two_n(i["N"], i["batch"]) / i["chips"], everything / i["chips"], **roofs).time_s
    rate = i["batch"] / step_s
    return [cached / 1e9, everything / 1e9, everything / i["hbm"], 1e3 * step_s, rate, rate / i["chips"]]


def answers(i):
    v5e = replace(device("TPU v5e"), memory_bandwidth_bytes_per_s=i["bw"])
    step_s = bound_on(v5e, "bf16", two_n(70e9, 1) / i["chips"][0], i["hbm"]).time_s  # memory full: read all of it
    runs = zip(i["batch"], i["chips"], strict=True)
    return [1e3 * step_s, *(batch / (i["tokens"] * step_s) / chips for batch, chips in runs)]


def full_load(i):
    flops = two_n(i["N"], i["tokens"])
    prefill_s = training_time_s(flops, peak_flops_per_s=i["flops"], devices=i["chips"], utilisation=i["mfu"])
    (long, short), step_s = i["answers"], i["step_ms"] / 1e3
    leaving = freed_tokens(i["batch"], i["tokens"], long)
    return [prefill_s, leaving, prefill_servers(prefill_s, step_s, i["batch"], short)]


def two_sides(i):
    """The factor is what a link carries of tokens times D, but for the root of the number of devices."""
    sizes = i["D"], i["F"]
    return [critical_devices(*sizes, axes=i["axes"]), two_sides_bytes(1, *sizes, 1, axes=i["axes"]) / i["D"]]


def bandwidth(i):
    share = mbu(i["N"] * i["bytes"], i["time_s"], bandwidth_bytes_per_s=i["bw"])
    return [share * i["bw"] / 1e12, share]


def gains(i):
    least = speedup(i["alpha"], 1, i["c"])  # a single draft gains (1 + alpha) / (1 + c)
    return [speedup(i["alpha"], i["gamma"], i["c"]), least]


COMPUTED = {
    "KV01": opt_13b,
    "KV02": lambda i: [bytes_per_token(preset(f"llama3-{size}")) for size in ("8b", "70b", "405b")],
    "KV04": lambda i: [kv_cache_bytes(preset("llama2-13b"), i["tokens"]) / 1e9],
    "KV05": long_sequences,
    "KV06": lambda i: [kv_cache_bytes(multi_head(i["L"], i["NH"]), i["tokens"], element_bytes=1) / 2**30],
    "KI01": token_52b,
    "KI02": step_52b,
    "KI03": step_260b,
    "KI05": room_52b,
    "IN01": step_70b,
    "IN02": answers,
    "IN03": full_load,
    "IN05": two_sides,
    "IN07": lambda i: [flops_ratio(alpha, drafts) for alpha, drafts in i["cases"]],
    "IN08": gains,
    "IN09": bandwidth,
}


@pytest.mark.parametrize("name", COMPUTED)
def test_published_figure(name: str) -> None:
    oracle = oracles()[name]
    oracle.check(*COMPUTED[name](oracle.inputs))


def test_in01_is_what_the_estimate_says() -> None:
    """The same slice by the package's own bound: all weights but the embedding read, traffic counted too."""
    i = oracles()["IN01"].inputs
    v5e = machine(replace(device("TPU v5e"), memory_bandwidth_bytes_per_s=i["bw"]), "bf16")
    sizes = {"batch": i["batch"], "tokens": i["tokens"], "weight_bytes": 1, "cache_bytes": 1}
    estimate = estimate_serving(LLAMA_70B, v5e, Layout(tensor=i["chips"]), **sizes)
    *_, step_ms, rate, rate_of_each = oracles()["IN01"].figures
    bound_s = estimate.bounds["decode"].time_s
    assert [1e3 * bound_s, estimate.tokens_per_s["decode"]] == pytest.approx([step_ms, rate], rel=0.005)
    assert estimate.tokens_per_s["decode"] / estimate.devices == pytest.approx(rate_of_each, rel=0.005)
    assert estimate.bounds["decode"].binds == "memory" and estimate.fits


def test_kv02_the_presets_have_the_sizes_of_the_source() -> None:
    i = oracles()["KV02"].inputs
    for name, layers in zip(("8b", "70b", "405b"), i["L"], strict=True):
        config = preset(f"llama3-{name}")
        assert (config.n_layers, config.n_kv_heads, config.head_dim) == (layers, i["K"], i["H"])


def test_ki03_contradicts_its_own_number_of_layers() -> None:
    oracle = oracles()["KI03"]
    i = oracle.inputs
    hops = {layers: 4 * layers * i["hop_us"] / 1e3 for layers in (i["L"], 128)}
    assert hops[i["L"]] == pytest.approx(oracle.arithmetic["latency_ms"])
    assert round(hops[128]) == oracle.printed["latency_ms"]


def test_ki05_contradicts_its_own_division() -> None:
    oracle = oracles()["KI05"]
    computed = room_52b(oracle.inputs)
    assert computed[1:] == pytest.approx(oracle.expected[1:], rel=1e-12)
    assert computed[2] > 1.2 * oracle.printed[2]
    every_digit = room_52b(oracle.inputs, computed[0], bytes_per_token(multi_head(64, 8192)))
    assert every_digit[1:] == pytest.approx(oracle.arithmetic["with_every_digit"], rel=1e-4)


def test_in02_contradicts_its_own_bytes_a_weight() -> None:
    oracle = oracles()["IN02"]
    assert 70 * BYTES["int4"] == oracle.arithmetic["int4_weights_GB"] != oracle.printed["int4_weights_GB"]


def test_in05_contradicts_its_own_square() -> None:
    oracle = oracles()["IN05"]
    i, arithmetic = oracle.inputs, oracle.arithmetic
    one, two = one_side_bytes(1, i["D"]) / i["D"], two_sides_bytes(1, i["D"], i["F"], 1, axes=i["axes"]) / i["D"]
    assert one == pytest.approx(arithmetic["other_factor"][0] / arithmetic["other_factor"][1])
    assert two**2 == pytest.approx(arithmetic["squared_factor"])
    assert two**2 / one**2 == pytest.approx(oracle.expected[0]) != oracle.printed[0]
