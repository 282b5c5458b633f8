"""Lab 16: where figures in the text come from."""

from __future__ import annotations

from mlsys_lab.configs import TransformerConfig
from mlsys_lab.flops.parameters import parameters
from tests.labs.figures import assert_held
from tests.labs.harness import labs

CAPSTONE = next(lab for lab in labs() if lab.info.topic == "capstone")
TINY = parameters(TransformerConfig("tiny", 1, 4, 2, 6, 10, 16, n_kv_heads=1)).total
FLOPS, GPUS, RATE = 3.8e25, 16_384, 400e12
COMPUTED = (
    f"3.8 × 10²⁵ FLOPs on {GPUS:,} H100s, each of which sustained about {RATE / 1e12:.0f} TFLOP/s: "
    f"{FLOPS / GPUS / RATE / 86_400:.0f} days",
    f"({TINY} parameters of 4 bytes are {4 * TINY} bytes; the moments are 8 bytes for each of the {TINY // 2}",
    f"Without a cache and a scheduler, {12 * 16} forward passes",
)
IN_CODE = ("serves 12 requests of 16 output tokens each", "Each request takes 16 steps")
GIVEN = (
    "**Part 1, a model that trains** (about 145 minutes)",
    "**Part 2, what it costs** (about 125 minutes)",
    "Llama 3 405B",
    "[lab 01](01-autograd.ipynb) (record, VJPs), [lab 05](05-transformer-arithmetic.ipynb) (FLOPs and bytes), "
    "[lab 07](07-collectives.ipynb) and [lab 08](08-data-parallel.ipynb)",
    "[lab 10](10-kv-cache.ipynb) and [lab 11](11-serving.ipynb)",
    "all weights are 0.1 but those of the embedding and the head",
    "Differences of about 10⁻¹⁴ are rounding",
    "your functions of labs 05, 07 and 10",
    "of a link for lab 07",
    "Lab 05's step is that of one rank with all parameters",
    "The products take 18,000 FLOPs at 10⁶ FLOP/s",
    "attention adds 12·L·N·H·T per token",
    "agree with 1 rank for 20 steps",
    "14/3 as many messages",
    "`unbroadcast` of lab 01",
    "the step becomes 2 % faster although the sheet promised 10 %",
)


def test_figures_are_computed_in_code_or_given() -> None:
    assert_held(CAPSTONE, computed=COMPUTED, in_code=IN_CODE, given=GIVEN)
