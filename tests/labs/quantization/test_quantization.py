"""Lab 13: where figures in the text come from, oracles against ml_dtypes, and one mistake costs its own check."""

from __future__ import annotations

import inspect
from types import ModuleType

import ml_dtypes
import numpy as np
import pytest
import torch

from mlsys_checks.runner import run_check
from mlsys_checks.sandboxed.spec import Case
from mlsys_checks.sandboxed.values import decode_value
from mlsys_checks.trusted.quantization import generators, models
from mlsys_checks.trusted.verdict import draw_inputs
from mlsys_lab import hardware
from mlsys_lab.configs import preset
from mlsys_lab.efficiency import formats, quantization
from mlsys_lab.efficiency.pretrained import CONFIG, load_grammar_model, sample_windows
from mlsys_lab.flops.parameters import parameters
from tests.labs.figures import assert_held
from tests.labs.slips import lab_of, leave_unwritten, load_reference

LAB = lab_of("quantization")
IN_CODE = (
    "The next cell draws 100,000 numbers",
    "In 3 bits and groups of 32: what fraction",
    "made 64 times larger",
    "is larger than that of 4-bit codes in groups of 128,",
)
GIVEN = (
    "A layer of 8192 × 8192 in bf16 on an H100 (989 TFLOP/s dense, 3.35 TB/s)",
    "scale for each group of 128 weights",
    "[lab 05](05-transformer-arithmetic.ipynb)",
    "therefore has 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives",
    "(2.5 lies in the middle between 2 and 3",
    "round to zero, and -0.0, get",
    "A scale is stored in 16 bits, a zero point in 8",
    "(UINT4 has 16 codes, so 15 steps from -2.5 to 5: the scale is 0.5.)",
    "Its matrices have 64 or 128 inputs",
    "groups have 32 to 128 weights",
    "(With the scale 1.125 each 4 becomes 4.5, a squared error of 4 · 0.25 = 1.",
    "With 1.0 only the first number is off, by 0.875, and its square is 0.77.)",
    "the largest is more than 20 standard deviations",
    "(0.4 is rounded to 0 with the error 0.4, which the next column takes over. It is nearly 0.8, rounded to 1.)",
    "127 · 127 + 1 · 64 = 16,193; a few such products are too much for int16",
    "always have 16 bits per number",
    "100 tokens move 36 + 200 · 12 bytes; the arithmetic would take only 32 s.",
    "saves 0.5, for the first one only 0.1)",
    "takes forever for 14 layers",
    "a rise of the loss by 0.01 is about 1 %",
    "Give each group of 16 weights a scale",
    "INT4 in groups of 32 at",
    "in blocks of 128.",
)
CHECK_OF = dict.fromkeys(("linear_bytes", "least_time"), "price") | {
    name: name for name in ("decode", "encode", "hessian", "gptq", "refit", "sensitivity", "allocate")
}
CHECK_OF |= {"max_scale": "scales", "round_to_codes": "codes", "predict_error": "noise", "mse_scale": "clip"}
CHECK_OF |= {"smooth_scale": "smooth", "fold_scale": "fold", "int8_linear": "product", "two_four_mask": "mask"}


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    return load_reference(LAB)


def computed(module: ModuleType) -> list[str]:
    """Phrases of the text, made of what the package and the lab's own functions give."""
    weights, h100 = parameters(preset("llama3-70b")).total, hardware.device("H100")
    bits = module.Scheme(module.INT4, "group", 128).bits_per_weight((8192, 8192))
    small, memory = weights * bits / 8e9, h100.memory_bytes / 1e9
    full_s, small_s = (size / h100.memory_bandwidth_bytes_per_s * 1e9 for size in (2 * weights / 1e9, small))
    numbers = [formats.E4M3.value(code) for code in range(256)]
    finite = [number for number in numbers if number == number]
    layers = sum(rows * columns for rows, columns in models._layers_of(CONFIG).values())
    budgets = next(case.params["hundredths"] for case in LAB.checks["budget"].cases)
    return [
        f"Llama 3 70B has {weights / 1e9:.1f} billion weights: {2 * weights / 1e9:.0f} GB in bf16,",
        f"more than one H100 of {memory:.0f} GB holds. In 4 bits, with a 16-bit scale",
        f"it takes {small:.0f} GB. One GPU is enough, {memory - small:.0f} GB are left",
        f"in {1e3 * small_s:.0f} ms instead of {1e3 * full_s:.0f}.",
        f"E4M3 has {len(finite)} codes that stand for numbers, from {min(finite):.0f} to {max(finite):.0f}.",
        f"which take {bits:g}. In practice",
        "the metadata keep the speedup at 16/9 = " + f"{16 / 9:.2f}. In 4 bits",
        f"a third of what is stored, and {16 / 12:.2f} is all",
        f"integers of 4 bits, {module.Scheme(module.INT4, 'group', 32).bits_per_weight((64, 64)):g} per weight",
        f"at most {models.ALLOWED} of what round-to-nearest in 3 bits and groups of {models.GROUP} costs",
        f"are {budgets.low / 100:g} to {budgets.high / 100:g} bits per weight",
        f"at most {100 * models.PREDICTED:.0f} % of it, or by {models.LEAST} nats",
        f"take {2 * layers:,} bytes",
        f"fit into a quarter, {layers // 2:,} bytes",
        f"by a factor of about {smoothing_gain(module):.0f}.",
    ]


def smoothing_gain(module: ModuleType) -> float:
    """How much less the error of an 8-bit product is with alpha 0.5, as in the lab's cell."""
    model, name = load_grammar_model(), "blocks.1.mlp.up"
    weight = model.get_submodule(name).weight
    inputs = module.layer_inputs(model, sample_windows(64, seed=1))[name]
    inputs[:, [5, 40]] *= 64
    exact, errors = inputs @ weight.T, []
    scale = module.smooth_scale(inputs.abs().amax(0), weight.abs().amax(0))
    for s in (torch.ones(64), scale):
        product = module.int8_linear(inputs / s, module.quantize_tensor(weight * s, module.Scheme(module.INT8)))
        errors.append((product - exact).square().mean().item())
    return errors[0] / errors[1]


def test_figures_come_from_somewhere(reference: ModuleType) -> None:
    assert_held(LAB, computed=computed(reference), in_code=IN_CODE, given=GIVEN)


@pytest.mark.parametrize(("number", "dtype"), [(0, ml_dtypes.float4_e2m1fn), (1, ml_dtypes.float8_e4m3fn)])
def test_the_oracle_of_codes_agrees_with_ml_dtypes(number: int, dtype: type) -> None:
    check = LAB.checks["encode"]
    x = draw_inputs(check, Case("E", {"format": number}), 5)["x"]
    x = x[np.abs(x) <= generators.FORMATS[number][0] * 1e9]
    x = x[np.abs(x) <= float(ml_dtypes.finfo(dtype).max)]
    encoded = generators.expect_encode({"case": generators.encode_value(generators.FORMATS[number]), "x": x})["codes"]
    assert (encoded == x.astype(dtype).view(np.uint8)).all()
    codes = np.arange(2 ** (1 + sum(generators.FORMATS[number][:2])), dtype=np.uint8)
    decoded = generators.expect_decode({"case": generators.encode_value(generators.FORMATS[number]), "codes": codes})
    values = codes.view(dtype).astype(np.float32)
    assert (decoded["is NaN"] == np.isnan(values)).all()
    assert (decoded["numbers"] == np.nan_to_num(values, nan=0.0)).all()


@pytest.mark.parametrize("name", CHECK_OF)
def test_a_missing_function_costs_its_own_check_only(name: str) -> None:
    module = load_reference(LAB)
    leave_unwritten(module, name)
    checks = [check for check in LAB.checks.checks if check.name != "budget"]  # the only one that lends nothing
    assert {check.name for check in checks if not run_check(check, module).passed} == {CHECK_OF[name]}


def test_formats_have_the_package_s_names_and_arguments(reference: ModuleType) -> None:
    for name in ("encode", "decode"):
        mine, ours = (list(inspect.signature(getattr(home, name)).parameters) for home in (reference, formats))
        assert mine == ours[: len(mine)]
    for format_ in (formats.E2M1, formats.E4M3):
        fields = format_.exponent_bits, format_.mantissa_bits, format_.specials
        x = torch.randn(1000) * 3
        assert torch.equal(reference.encode(x, reference.FloatFormat(*fields)), formats.encode(x, format_))


def test_layers_are_quantized_as_the_package_does(reference: ModuleType) -> None:
    weight, inputs = torch.randn(6, 24), torch.randn(50, 24) @ torch.randn(24, 24)
    for name, options in (
        ("INT4", ("channel",)),
        ("INT8", ("group", 8)),
        ("UINT4", ("group", 12)),
        ("INT4", ("tensor",)),
    ):
        mine, ours = (
            reference.Scheme(getattr(reference, name), *options),
            quantization.Scheme(getattr(formats, name), *options),
        )
        assert mine.bits_per_weight((6, 24)) == ours.bits_per_weight((6, 24))
        found, expected = reference.quantize_tensor(weight, mine), quantization.quantize_tensor(weight, ours)
        assert torch.allclose(found.dequantize(), expected.dequantize(), atol=1e-3)
        if options[0] != "tensor":
            h = quantization.hessian(inputs)
            assert torch.equal(reference.hessian(inputs), h)
            assert torch.equal(reference.gptq(weight, h, mine).codes, quantization.gptq(weight, h, ours).codes)
    largest = torch.tensor([16.0, 0.0, 3.0]), torch.tensor([1.0, 2.0, 5.0])
    assert torch.allclose(reference.smooth_scale(*largest), quantization.smooth_scale(*largest))


def test_a_budget_is_refused_for_bytes_for_form_and_for_a_wrong_prediction(reference: ModuleType) -> None:
    check = LAB.checks["budget"]
    inputs = draw_inputs(check, check.cases[0], 1)
    got = check.run(reference, {name: x for name, x in inputs.items() if not name.startswith("_")})
    assert check.compare(got, inputs) is None
    first = decode_value(inputs["case"])["layers"][0]
    codes, scale = got[f"codes of {first}"], got[f"scale of {first}"]
    for wrong, what in (
        ({"predicted increase": np.array(-0.1)}, "predicted increase is wrong"),
        ({"predicted increase": np.array(np.nan)}, "predicted increase is wrong"),
        ({f"codes of {first}": codes * 9}, "need more bits"),
        ({f"codes of {first}": codes[1:]}, "another form"),
        ({f"scale of {first}": scale * np.float32(1.0001)}, "16 bits"),
        ({f"scale of {first}": scale[:, :0]}, "another form"),
        ({f"scale of {first}": np.repeat(scale, 8, 1), f"bits of {first}": np.array(8)}, "more than the budget"),
        ({f"scale of {first}": scale * 0}, "rises too much"),
    ):
        mismatch = check.compare(got | wrong, inputs)
        assert mismatch is not None and what in mismatch.what
