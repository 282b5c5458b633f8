"""Lab 10: where figures in the text come from, and logs of passes that must be refused."""

from __future__ import annotations

from mlsys_checks.sandboxed.values import decode_value, encode_value
from mlsys_checks.trusted.verdict import draw_inputs
from mlsys_lab.configs import TransformerConfig, preset
from mlsys_lab.flops.parameters import parameters
from tests.labs.figures import assert_held
from tests.labs.harness import labs

KV_CACHE = next(lab for lab in labs() if lab.info.topic == "kv-cache")
LLAMA, PROMPT, OUTPUT = preset("llama3-8b"), 500, 500
TOKEN_BYTES = 2 * LLAMA.n_layers * LLAMA.n_kv_heads * LLAMA.head_dim * 2
WITHOUT, WITH = sum(range(PROMPT, PROMPT + OUTPUT)), PROMPT + OUTPUT - 1
WIDE = TransformerConfig("a wide LLaMA", 4, 1024, 16, 2816, 1024, 1024, n_kv_heads=4)
COMPUTED = (
    f"on a model of about {round(4 * parameters(WIDE).total / 1e6, -1):.0f} MB",
    f"a prompt of {PROMPT} tokens and generates {OUTPUT} more",
    f"for each new token: {WITHOUT:,} tokens in all. With a **KV cache** it processes {WITH},",
    f"Llama 3 8B keeps {TOKEN_BYTES:,} bytes for each token, {8192 * TOKEN_BYTES / 1e9:.2f} GB for a sequence of 8,192",
    f"989/3.35 = {989 / 3.35:.0f}, the ridge point",
    f"In each layer 4,095 tokens further, {32 * 4095:,} in all",
    f"a step computes {64 * 5} tokens, more than the {989 / 3.35:.0f} that an H100 can compute",
    f"2 × 48 + 2 × 10 = {2 * 48 + 2 * 10} FLOPs",
    f"The remaining {4 * 2 * 2 * 10} belong to 10 visible tokens",
)
IN_CODE = (
    "a prompt of 50 tokens in chunks of 16, and 10 output tokens",
    "a sequence of 8,192 tokens in bf16",
    "200 cached tokens per sequence",
)
GIVEN = (
    "about as long as decoding ten",
    "[lab 05](05-transformer-arithmetic.ipynb)",
    "residual is [0, 0.2, 0.1], its total 0.3: the running sum exceeds 0.1 × 0.3",
    "10 tokens in chunks of 4",
    "on an H100 (989 TFLOP/s, 3.35 TB/s)",
    "The last pass brings tokens 9, 10 and 11",
    "24 weights for attention and 24 in the MLP, the head 10",
    "A window of 4,096 tokens in each of 32 layers",
    "with 64 sequences and four drafts each",
)


def test_figures_are_computed_in_code_or_given() -> None:
    assert_held(KV_CACHE, computed=COMPUTED, in_code=IN_CODE, given=GIVEN)


def test_a_log_of_other_passes_is_refused() -> None:
    check = KV_CACHE.checks["prefill"]
    expected = check.expect(draw_inputs(check, check.cases[0], 0))
    assert check.compare(expected, expected) is None
    for passes in ([[[0, 0, [-1]]]], [[[0, 0, [1.0]]]], [[[0, 0]]], [[[0, 0, [1]]]], []):
        log = decode_value(expected["log"]) | {"passes": passes}
        assert check.compare(expected | {"log": encode_value(log)}, expected) is not None
    assert check.compare({"log": encode_value([])[:1]}, expected).what == "the log cannot be read"
