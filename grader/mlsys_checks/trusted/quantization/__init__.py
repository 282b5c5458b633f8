"""Checks of lab 13: names, points, hints, and the ranges from which cases are drawn.

generators   cases, oracles and comparisons of Tasks 1 to 6
models       those of Task 7: a language model, judged on hidden text
"""

from __future__ import annotations

from typing import Any

from mlsys_checks.sandboxed import quantization as calls
from mlsys_checks.sandboxed.spec import Case, Check, Lab, Range, draw_cases
from mlsys_checks.trusted.compare import close
from mlsys_checks.trusted.quantization import generators as draw
from mlsys_checks.trusted.quantization import models
from mlsys_checks.trusted.repeats import repeat_first_case

E2M1, E4M3 = {"format": 0}, {"format": 1}
TENSOR, CHANNEL, GROUP = ({"strategy": i} for i in range(3))
SIGNED, UNSIGNED = {"unsigned": 0}, {"unsigned": 1}
MATRIX: dict[str, Any] = {"rows": Range(1, 7), "groups": Range(1, 5)}
LARGER: dict[str, Any] = {"rows": Range(8, 20), "groups": Range(5, 9)}
SMALL = {"rows": 3, "groups": 4}
SCHEMES = ("Scheme", "IntFormat")
ROUNDING = (*SCHEMES, "QuantizedTensor")
LENT = "scales and codes come from other functions than yours"

CHECKS = (
    Check(
        name="decode",
        title="Numbers of codes",
        points=5,
        cases=(
            Case("E2M1", E2M1),
            Case("E4M3", E4M3),
            *draw_cases({}, public=3, hidden=2, larger=1),
        ),
        inputs=draw.draw_decode,
        run=calls.decode,
        expect=draw.expect_decode,
        compare=close,
        describe=draw.render_float("decode(codes, format)"),
        first_hint="Is the error among the codes whose exponent field is 0, or among the other ones?",
        hint="Take sign, exponent field and mantissa field apart by shifts and masks. A subnormal number has no "
        "leading 1, and the power of an exponent field of 1.",
        uses=("FloatFormat", "decode"),
    ),
    Check(
        name="encode",
        title="Codes of numbers, with ties",
        points=8,
        cases=(
            Case("numbers of E2M1", {**E2M1, "kind": "points"}),
            Case("ties of E2M1", {**E2M1, "kind": "ties"}),
            Case("subnormal numbers of E4M3", {**E4M3, "kind": "small"}),
            Case("beyond the range of E4M3", {**E4M3, "kind": "beyond"}),
            Case("E4M3", E4M3),
            *draw_cases({}, public=3, hidden=2, larger=1),
        ),
        inputs=draw.draw_encode,
        run=calls.encode,
        expect=draw.expect_encode,
        compare=draw.compare_codes,
        describe=draw.render_float("encode(x, format)"),
        first_hint="Which numbers are wrong: ties, zero, those below the smallest normal one, or beyond the largest?",
        hint="Find the power of two below the number, at least that of the smallest normal number. Count the spacings "
        "in it, round, and add the codes that lie before. Then limit the code, and set the sign bit.",
        uses=("FloatFormat", "encode"),
    ),
    Check(
        name="bits",
        title="Bits per weight",
        points=4,
        cases=(Case("one of each kind", {"columns": 9}), *draw_cases({"columns": 40}, public=1, hidden=1, columns=200)),
        inputs=draw.draw_bits,
        run=calls.bits_per_weight,
        expect=draw.expect_bits,
        compare=close,
        describe=draw.render_bits,
        first_hint="How many weights share a scale, and does the format have zero points?",
        hint="A scale has 16 bits, a zero point has 8. Divide both by the number of weights that share them.",
        uses=SCHEMES,
    ),
    Check(
        name="scales",
        title="Scales and zero points",
        points=7,
        cases=(
            Case("one row, symmetric", {**SMALL, "rows": 1, **CHANNEL, **SIGNED}),
            Case("groups, with zero points", {**SMALL, **GROUP, **UNSIGNED}),
            Case("one scale for all", {**SMALL, **TENSOR, **UNSIGNED}),
            Case("numbers of one sign", {**SMALL, "rows": 6, "groups": 2, **UNSIGNED, "kind": "one side"}),
            Case("zeros, and scales too small for fp16", {**SMALL, "kind": "zeros", **SIGNED, **CHANNEL}),
            Case("zeros in groups, with zero points", {**SMALL, "kind": "zeros", **UNSIGNED, **GROUP}),
            *draw_cases(MATRIX, public=4, hidden=2, **LARGER),
        ),
        inputs=draw.draw_scales,
        run=calls.max_scale,
        expect=draw.expect_scales,
        compare=draw.compare_scales,
        describe=draw.render_scheme("max_scale(x, scheme)"),
        first_hint="Is the scale wrong or the zero point? In which block are the largest and the smallest number?",
        hint="Symmetric: the largest magnitude over `largest`. Otherwise the range from the smaller of 0 and the "
        "minimum to the larger of 0 and the maximum. Round to fp16 before the zero point is computed.",
        uses=(*SCHEMES, "max_scale"),
    ),
    Check(
        name="codes",
        title="Integer codes",
        points=7,
        cases=(
            Case("a symmetric row", {**SMALL, "rows": 1, **CHANNEL, **SIGNED}),
            Case("ties", {**SMALL, **CHANNEL, **SIGNED, "kind": "ties"}),
            Case("groups, with zero points", {**SMALL, **GROUP, **UNSIGNED, "bits": 8}),
            Case("one scale for all", {**SMALL, **TENSOR}),
            Case("a long tail", {**SMALL, "kind": "tail"}),
            *draw_cases(MATRIX, public=4, hidden=2, **LARGER),
        ),
        inputs=draw.draw_rounding,
        run=calls.round_to_codes,
        expect=draw.expect_rounding,
        compare=draw.compare_rounding,
        describe=draw.render_scheme("round_to_codes(x, scale, zero_point, scheme)"),
        first_hint="Which scale does the first wrong number have? Is its code within the format's range?",
        hint="Arrange x in blocks, divide by the scale of each block and round; add the zero point; clamp to the "
        "range; return to the shape of x.",
        uses=(*SCHEMES, "round_to_codes"),
    ),
    Check(
        name="noise",
        title="Predicted error of a range",
        points=5,
        cases=(
            Case("some are clipped", {"count": 8}),
            Case("all are clipped", {"count": 5, "clip": 1}),
            Case("none is clipped", {"count": 5, "clip": 2}),
            *draw_cases({"count": Range(1, 30)}, public=2, hidden=1, count=Range(100, 300)),
        ),
        inputs=draw.draw_noise,
        run=calls.predict_error,
        expect=draw.expect_noise,
        compare=close,
        describe=draw.render_noise,
        first_hint="What is the mean square of numbers that are spread evenly between minus and plus half a step?",
        hint="The integral gives the square of the step over twelve, for the numbers inside of the range only. Those "
        "outside have the square of what is cut off.",
        uses=("IntFormat", "predict_error"),
    ),
    Check(
        name="clip",
        title="Range of least error",
        points=7,
        cases=(
            Case("one row", {**SMALL, "rows": 1, **CHANNEL, **SIGNED, "kind": "tail"}),
            Case("rows that differ", {"rows": 9, "groups": 9, **CHANNEL, **SIGNED, "bits": 4, "kind": "tail"}),
            Case("groups, with zero points", {**SMALL, **GROUP, **UNSIGNED, "kind": "tail"}),
            Case("one scale for all", {**SMALL, **TENSOR, "kind": "tail"}),
            *draw_cases({**MATRIX, "kind": "tail"}, public=3, hidden=2, **LARGER),
        ),
        inputs=draw.draw_clip,
        run=calls.mse_scale,
        expect=draw.expect_clip,
        compare=draw.compare_clip,
        describe=draw.render_scheme("mse_scale(x, scheme, {fractions})", LENT),
        first_hint="Does each group keep its own best fraction, and is the error that of the round trip?",
        hint="For each fraction: scale, codes, back to numbers, squared error summed over each block. Keep a scale "
        "where its error is below the least so far.",
        uses=(*ROUNDING, "mse_scale"),
    ),
    Check(
        name="hessian",
        title="Hessian of a layer",
        points=3,
        cases=(
            Case("four tokens", {"tokens": 4, "columns": 3}),
            Case("one token", {"tokens": 1, "columns": 4}),
            *draw_cases({"tokens": Range(1, 9), "columns": Range(1, 9)}, public=1, hidden=1, tokens=50),
        ),
        inputs=draw.draw_hessian,
        run=calls.hessian,
        expect=draw.expect_hessian,
        compare=close,
        snippet="hessian(inputs)",
        first_hint="Which matrix stands between E and its transpose when the norm is written out as a trace?",
        hint="Sum the products of each pair of inputs over the tokens, in float64.",
        uses=("hessian",),
    ),
    Check(
        name="gptq",
        title="Error-compensated columns",
        points=12,
        cases=(
            Case("one group per row", {**SMALL, **CHANNEL, **SIGNED, "bits": 3}),
            Case("groups", {**SMALL, **GROUP, **SIGNED, "bits": 4}),
            Case("groups, with zero points", {"rows": 6, "groups": 6, **GROUP, **UNSIGNED, "bits": 3}),
            Case("fewer tokens than inputs", {"rows": 6, "groups": 4, "tokens": 3, "bits": 4}),
            Case("another damping", {"rows": 8, "groups": 5, "bits": 3, "damped": 1}),
            *draw_cases({**MATRIX, "bits": Range(2, 5)}, public=4, hidden=2, **LARGER),
        ),
        inputs=draw.draw_gptq,
        run=calls.gptq,
        expect=draw.expect_gptq,
        compare=draw.compare_gptq,
        describe=draw.render_scheme("gptq(weight, hessian, scheme, **{options})", LENT),
        first_hint="Which is the first wrong column? Column 0 needs no correction, column 1 that of column 0 alone. "
        "If they are nearly right, is H damped by a fraction of its mean diagonal?",
        hint="Round a column, take the exact column minus the rounded one, and subtract it from the later columns, "
        "times the row of the factor over its diagonal entry. A group's scale sees the corrected columns.",
        uses=(*ROUNDING, "gptq"),
    ),
    Check(
        name="smooth",
        title="Smoothing scales",
        points=4,
        cases=(
            Case("four channels", {"columns": 4}),
            Case("channels of zeros", {"columns": 12, "zeros": 1}),
            Case("another alpha", {"columns": 6, "alpha": 1, "zeros": 1}),
            *draw_cases({"columns": Range(1, 20), "zeros": 1, "alpha": 1}, public=2, hidden=1, columns=90),
        ),
        inputs=draw.draw_smooth,
        run=calls.smooth_scale,
        expect=draw.expect_smooth,
        compare=close,
        describe=draw.render_call("smooth_scale", "alpha"),
        first_hint="What is the scale of a channel whose activations are 16 and whose weights are 1? And one of zeros?",
        hint="A power of the activations over a power of the weights; the two exponents add up to 1. Where either is "
        "zero, the scale is 1.",
        uses=("smooth_scale",),
    ),
    Check(
        name="fold",
        title="Scales folded into norm and weights",
        points=4,
        cases=(
            Case("one layer and a square one", {"columns": 3, "weights": 1}),
            *draw_cases({"columns": Range(1, 8), "weights": Range(0, 3)}, public=2, hidden=1, columns=30),
        ),
        inputs=draw.draw_fold,
        run=calls.fold_scale,
        expect=draw.expect_fold,
        compare=close,
        describe=draw.render_fold,
        first_hint="A channel of the norm's output gets smaller by its scale. What must its weights do?",
        hint="The norm's weight is divided. Weights (O, I) are multiplied along their inputs, the last axis.",
        uses=("fold_scale",),
    ),
    Check(
        name="product",
        title="A product in integers",
        points=5,
        cases=(
            Case("three tokens", {"tokens": 3, "columns": 4, "rows": 2}),
            Case("one scale for the weight", {"tokens": 3, "columns": 5, "rows": 3, "whole": 1}),
            Case("large sums", {"tokens": 2, "columns": 900, "rows": 3, "one_sign": 1}),
            *draw_cases({"tokens": Range(1, 9), "columns": Range(1, 9), "rows": Range(2, 9)}, public=2, hidden=1),
        ),
        inputs=draw.draw_product,
        run=calls.int8_linear,
        expect=draw.expect_product,
        compare=close,
        describe=draw.render_product,
        first_hint="Can your integer type hold the sums? Which axis of the result belongs to tokens, which to outputs?",
        hint="Quantize x as if tokens were rows of a weight. Multiply codes as int32; then the scales of tokens scale "
        "rows of the product, those of the weight its columns.",
        uses=(*ROUNDING, "int8_linear"),
    ),
    Check(
        name="mask",
        title="Two of four",
        points=3,
        cases=(
            Case("two rows", {"rows": 2, "fours": 2}),
            Case("equal scores", {"rows": 6, "fours": 5, "ties": 1}),
            *draw_cases({"rows": Range(1, 6), "fours": Range(1, 6)}, public=1, hidden=1, fours=30),
        ),
        inputs=draw.draw_mask,
        run=calls.two_four_mask,
        expect=draw.expect_mask,
        compare=draw.compare_mask,
        describe=draw.render_call("two_four_mask"),
        first_hint="Are there exactly two in each four, also where scores are equal?",
        hint="Arrange each row in fours, and select positions by rank: a threshold lets equal scores through.",
        uses=("two_four_mask",),
    ),
    Check(
        name="refit",
        title="Weights that make up for those that went",
        points=5,
        cases=(
            Case("two rows", {"rows": 2, "columns": 4}),
            Case("all of a row stays, or nothing", {"rows": 3, "columns": 5, "extremes": 1}),
            Case("fewer tokens than inputs", {"rows": 3, "columns": 8, "tokens": 3}),
            Case("float32, another damping", {"rows": 3, "columns": 6, "single": 1, "damped": 1}),
            *draw_cases({"rows": Range(1, 6), "columns": Range(1, 9)}, public=2, hidden=1, columns=24),
        ),
        inputs=draw.draw_refit,
        run=calls.refit,
        expect=draw.expect_refit,
        compare=draw.compare_refit,
        describe=draw.render_call("refit", "damping"),
        first_hint="For one row with two weights, of which one goes: does the other one move, and in which direction?",
        hint="Where weights stay, the gradient is zero: the part of H among them times the correction equals the part "
        "between them and those that went, times the weights that went.",
        uses=("refit",),
    ),
    Check(
        name="price",
        title="Bytes and time of 2:4 sparsity",
        points=4,
        cases=(Case("two layers", {"calls": 2}), *draw_cases({"calls": 3}, public=2, hidden=1, calls=9)),
        inputs=draw.draw_price,
        run=calls.price,
        expect=draw.expect_price,
        compare=close,
        describe=draw.render_price,
        first_hint="Are the bytes wrong or the seconds, in dense calls or in sparse ones?",
        hint="Four sparse weights store two values and two positions of 2 bits. Inputs and outputs have 2 bytes per "
        "number, whatever the weights have. The longer of the two times counts.",
        uses=("Machine", "linear_bytes", "least_time"),
    ),
    Check(
        name="sensitivity",
        title="Loss increase of each layer alone",
        points=4,
        cases=(
            Case("two layers", {"n_layers": 1, "layers": 2, "windows": 3}),
            *draw_cases({"n_layers": Range(1, 2), "layers": Range(1, 4), "windows": Range(1, 4)}, public=1, hidden=1),
        ),
        inputs=models.draw_sensitivity,
        run=calls.sensitivity,
        expect=models.expect_sensitivity,
        compare=models.compare_increases,
        describe=models.render_sensitivity,
        first_hint="Is the second layer measured while the first one is still replaced?",
        hint="Measure the model as it is once. Then replace one layer by one candidate at a time, measure, and put the "
        "layer back before the next.",
        uses=("QuantizedTensor", "Scheme", "Transformer", "TransformerConfig", "sensitivity"),
    ),
    Check(
        name="allocate",
        title="Bits for each layer",
        points=6,
        cases=(
            Case("three layers", {"layers": 3}),
            Case("only the smallest fit", {"layers": 5, "kind": "tight"}),
            Case("candidates in any order", {"layers": 6, "kind": "any order"}),
            Case("too many combinations to try", {"layers": 16, "kind": "any order"}),
            *draw_cases({"layers": Range(1, 7)}, public=3, hidden=2, layers=Range(14, 18)),
        ),
        inputs=models.draw_allocate,
        run=calls.allocate,
        expect=models.expect_allocate,
        compare=models.compare_choices,
        describe=models.render_allocate,
        first_hint="Do the choices fit? For two layers, is there a better pair than yours?",
        hint="After each layer keep, for every number of bytes used so far, the least sum and how it came about. In "
        "the end take the least of all sums.",
        uses=("allocate",),
    ),
    Check(
        name="budget",
        title="A model within a budget, on hidden text",
        points=7,
        cases=(
            Case("a budget", {"hundredths": Range(355, 370)}),
            Case("another budget", {"hundredths": Range(355, 370)}, hidden=True),
        ),
        inputs=models.draw_budget,
        run=calls.compress,
        expect=models.expect_budget,
        compare=models.compare_budget,
        describe=models.render_budget,
        first_hint="Which of the three fails: the bytes, the loss, or the prediction of the loss?",
        hint="Candidates by GPTQ in groups, sensitivity on windows that their Hessians have not seen, the choices of "
        "`allocate`. The prediction is the sum of their increases.",
        uses=("Transformer", "TransformerConfig", "compress"),
        time_limit_s=30.0,
    ),
)
LAB = Lab("quantization", (*repeat_first_case(CHECKS[:-1]), CHECKS[-1]))
