"""Lab 05: where figures in the text come from, one mistake costs its own check, and the package counts the same."""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest

from mlsys_checks.live import LiveNamespace
from mlsys_checks.runner import run_check
from mlsys_checks.trusted.transformer_arithmetic import oracle
from mlsys_checks.trusted.transformer_arithmetic.generators import compare_answers
from mlsys_lab.configs import preset
from mlsys_lab.flops import activations, cache, compute, memory, parameters
from mlsys_lab.hardware import device
from tests.labs.figures import assert_held
from tests.labs.slips import double, failed, lab_of, leave_unwritten, load_reference
from tests.sampling import sample

LAB = lab_of("transformer-arithmetic")
IN_CODE = (
    "activations of width 4,096 by a weight matrix of 4,096 × 16,384",
    "184,320 and 1,720,320 A100 hours",
    "32 layers, and 32 heads",
    "train on sequences of 4,096 tokens",
    "Llama 2 7B and sequences of 4,096 tokens",
)
GIVEN = (
    "Llama 2 70B took 1,720,320 GPU hours",
    "[Lab 01](01-autograd.ipynb)",
    "6 FLOPs per parameter per token come from",
    "Why 15,000: the first two operands make a 10 × 5 matrix for 10,000 FLOPs, and 5,000 more",
    "the intermediate is 100 × 50, and the two steps cost 150,000",
    "Llama 2 70B it hardly shows",
    "heads of width 128",
    "on 2 trillion tokens",
    "(1,001 parameters on 4 ranks: no rank gets more than 251, and 251 · 4 bytes = 1,004",
    "The 1,536 bytes: 68 elements per token in the layer and 8 for the last norm, 2 bytes each; 10 probabilities",
    "How many devices of 80 GB",
    "(236 of the 680 units are parameters. With every rate at 1,000 FLOP/s, the 3,168 FLOPs of the step take 3.168 s",
    "elementwise work takes 0.680 s",
    "lands within 25 % of the clock",
    "3 sequences read 416 bytes at 1,000 bytes/s, 0.416 s",
    "A product of (64, 4096) by (4096, 4096) matrices",
    "2 · 64 FLOPs per weight of 2 bytes are about 64 FLOP/byte",
)


@pytest.fixture
def module() -> ModuleType:
    return load_reference(LAB)


def computed(module: ModuleType) -> Iterator[str]:
    h100, h200 = device("H100"), device("H200")
    peak, bandwidth = h100.peak("bf16"), h100.memory_bandwidth_bytes_per_s
    yield f"{peak / 1e12:.0f} TFLOP/s in bf16 and reads {bandwidth / 1e12:.2f} TB/s"
    yield f"where the H100 needs {peak / bandwidth:.0f}"
    yield f"the roofline's ridge, the {peak / bandwidth:.0f} FLOP/byte"
    assert h200.peak("bf16") == peak
    faster, larger = h200.memory_bandwidth_bytes_per_s / bandwidth, h200.memory_bytes / h100.memory_bytes
    yield f"{faster:.1f} times its bandwidth and {larger:.1f} times its memory"
    held = module.states(1)
    yield f"about {held.total} bytes per parameter"
    small, large = preset("llama2-7b"), preset("llama2-70b")
    products = module.forward_products(large, large.context)
    others = 5 * (module.elementwise_units(large, large.context) - module.count_parameters(large))  # FLOPs, amply
    flops = module.flops_of(products)
    yield f"more than {math.floor(100 * flops / (flops + others))} % of a large transformer's arithmetic"
    multiply = module.parameters(small).total - module.parameters(small).embedding
    yield f"Llama 2 7B has {multiply / 1e9:.1f} billion weights"
    count = module.count_parameters(large)
    yield f"Llama 2 70B has {count / 1e9:.0f} billion parameters"
    yield f"The states alone, {held.total} bytes per parameter, fill {held.total * count / 80e9:.1f} devices"
    m, k, n = 64, 4096, 4096
    shapes = ("ij,jk->ik", (m, k), (k, n))
    yield f"({module.einsum_flops(*shapes) / module.einsum_bytes(*shapes):.0f} with inputs and outputs)"


def test_figures_are_computed_in_code_or_given(module: ModuleType) -> None:
    assert_held(LAB, computed=computed(module), in_code=IN_CODE, given=GIVEN)


def test_full_recomputation_adds_two_devices_to_those_that_the_states_fill(module: ModuleType) -> None:
    large, plan = preset("llama2-70b"), {"zero_stage": 3, "recomputation": "full"}
    of_states = math.ceil(16 * module.count_parameters(large) / 80e9)
    assert module.fewest_devices(large, 4096, 80 * 10**9, **plan) == of_states + 2


@pytest.mark.parametrize("name", ["gpt2", "llama2-7b", "llama2-70b", "llama3-8b"])
def test_the_package_has_the_same_names_and_counts(name: str, module: ModuleType) -> None:
    config, tokens, batch = preset(name), 512, 3
    counted = parameters(config)
    assert vars(module.parameters(config)).items() <= vars(counted).items()
    assert module.training_flops(config, 4 * config.context) == compute.training(config, config.context, batch=4).model
    for same in ("attention_share", "attention_crossover"):
        args = {"config": config, **({"tokens": tokens} if same == "attention_share" else {})}
        assert getattr(module, same)(**args) == pytest.approx(getattr(compute, same)(**args))
    sizes: dict[str, Any] = {"tokens": tokens, "batch": batch}
    assert module.kv_cache_bytes(config, **sizes) == cache.kv_cache_bytes(config, **sizes)
    for stage in range(4):
        own, theirs = (
            states(64 * 999, *recipe, data=16, zero_stage=stage)
            for states, recipe in ((module.states, ()), (memory.states, (memory.recipe("mixed16"),)))
        )
        assert vars(own) == vars(theirs)
    for how in ("none", "selective", "full") if name != "gpt2" else ():  # whose GELU has another name here
        kept, whole = (activations.layer(config, **sizes, recomputation=kind) for kind in (how, "none"))
        layers = activations.stack(kept, whole, layers=config.n_layers)
        expected = layers + activations.head_bytes(config, **sizes)
        assert module.activation_bytes(config, **sizes, recomputation=how) == expected


OWN = {
    "parse_einsum": {"einsum_parse"},
    "einsum_flops": {"einsum_cost"},
    "parameters": {"parameters_gpt2", "parameters_llama"},
    "forward_products": {"forward_products"},
    "states": {"state_bytes"},
    "activation_bytes": {"activation_bytes"},
    "step_products": {"step_products"},
    "elementwise_units": {"elementwise_units"},
    "decode_work": {"decode_work"},
    "largest_batch": {"serving_memory"},
}
"""The checks that ask about a function itself."""


@pytest.mark.slow
@pytest.mark.parametrize("name", sample([*OWN], 6))
def test_a_mistake_costs_the_checks_of_its_own_function(name: str, module: ModuleType) -> None:
    double(module, name)
    assert failed(LAB, module) == OWN[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", sample(["parameters", "parse_einsum", "forward_products"], 3))
def test_an_unwritten_function_costs_its_own_checks(name: str, module: ModuleType) -> None:
    leave_unwritten(module, name)
    assert failed(LAB, module) == OWN[name]


class Reading(NamedTuple):
    """An einsum as a learner may read it: the tuple that is asked for, with names."""

    operands: list[str]
    output: str
    sizes: dict[str, int]


def test_functions_may_return_more_than_is_asked_for(module: ModuleType) -> None:
    right = module.parse_einsum

    def flops(subscripts: str, *shapes: Any) -> int:
        read = module.parse_einsum(subscripts, *shapes)
        each = len(read.operands) - 1 + any(x not in read.output for x in read.sizes)
        return int(each * math.prod(read.sizes.values()))

    vars(module).update(parse_einsum=lambda *asked: Reading(*right(*asked)), einsum_flops=flops)
    assert {name for name in failed(LAB, module) if name.startswith("einsum")} == set()


def test_a_notebook_has_its_own_functions_back(module: ModuleType) -> None:
    leave_unwritten(module, "parameters")
    own, live = dict(vars(module)), LiveNamespace(vars(module))
    assert run_check(LAB.checks["decode_work"], live).passed
    assert not run_check(LAB.checks["parameters_gpt2"], live).passed
    assert vars(module) == own


@pytest.mark.parametrize("size", [(7, 5), (9, 1), (1, 4)], ids=str)
def test_the_oracle_of_any_size_is_what_torch_runs(size: tuple[int, int]) -> None:
    sizes = {"n_layers": 2, "d_model": 5, "n_heads": 6, "n_kv_heads": 2, "head_dim": 3, "d_ff": 7, "vocab_size": 11}
    config = oracle.fill_config(**sizes, context=4, position="learned", norm="rms", activation="swiglu")
    ran = oracle._sum_products(oracle.run_products(config, *size))
    assert sorted(oracle.forward_products(config, *size)) == sorted(ran)


def test_answers_that_are_missing_or_too_much_are_refused() -> None:
    answer = {"parameters(config).mlp": np.frombuffer(b"72", np.uint8)}
    assert compare_answers(answer, answer) is None
    missing, extra = compare_answers({}, answer), compare_answers(answer, {})
    assert missing is not None and missing.what == "`parameters(config).mlp` is missing"
    assert extra is not None and (extra.got, extra.expected) == ("72", "nothing")
