"""Checks of lab 05: names, points, hints, and the ranges from which cases are drawn.

oracle       a decoder transformer in torch, asked what it has, runs and keeps
generators   cases, oracles of all functions, cases as code
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mlsys_checks.sandboxed.spec import Arrays, Case, Check, Lab, Range, draw_cases
from mlsys_checks.sandboxed.transformer_arithmetic import run_calls
from mlsys_checks.trusted.repeats import repeat_first_case
from mlsys_checks.trusted.transformer_arithmetic import generators as draw

MODEL = {
    "kind": "any",
    "n_layers": Range(1, 4),
    "kv_heads": Range(1, 3),
    "group": Range(1, 3),
    "head_dim": Range(2, 16),
    "d_model": Range(3, 40),
    "d_ff": Range(5, 60),
    "vocab_size": Range(7, 200),
    "context": Range(1, 30),
    "tokens": Range(1, 20),
    "batch": Range(1, 4),
}
"""Ranges of a model's sizes, and of the sequences that it gets; see `generators.draw_config`."""
PLAIN = {
    **dict.fromkeys(("n_layers", "kv_heads", "group"), 2),
    **{"head_dim": Range(3, 6), "d_model": Range(7, 16), "d_ff": Range(17, 30), "vocab_size": Range(31, 60)},
    **{"context": Range(5, 9), "tokens": Range(2, 4), "batch": Range(2, 4)},
}
"""Sizes of the cases that come first: small, and no two of them equal but by chance."""
GPT2, LLAMA, SMALL = ({**MODEL, "kind": kind} for kind in ("gpt2", "llama", "small"))
GROUPED = {**PLAIN, "group": 3}
DEEP = {"n_layers": 6, "batch": Range(5, 8)}
"""What hidden cases have: no public case is as large."""


def _sizes(kind: str, *numbers: int) -> dict[str, Any]:
    names = ("n_layers", "d_model", "n_heads", "n_kv_heads", "d_ff", "vocab_size", "context")
    return {**draw.KINDS[kind], **dict(zip(names, numbers, strict=True))}


GPT2_124M = _sizes("gpt2", 12, 768, 12, 12, 3072, 50257, 1024)
LLAMA_8B = _sizes("llama", 32, 4096, 32, 8, 14336, 128256, 8192)
LARGE = {**_sizes("llama", 79, 8209, 63, 9, 28697, 128273, 8209), "head_dim": 129, "mlp_bias": True}
"""Odd sizes near those of a model of 70 billion parameters: neither 32 bits nor a float32 hold its counts."""


def _make_check(inputs: Callable[..., Arrays], cases: tuple[Case, ...], **parts: Any) -> Check:
    sides: dict[str, Any] = {"run": run_calls, "expect": draw.expect_answers, "compare": draw.compare_answers}
    return Check(inputs=inputs, cases=cases, describe=draw.render_calls, **sides, **parts)


def _of(function: str, *given: str, **sizes: Any) -> dict[str, Any]:
    return {**MODEL, "function": function, "given": given, **sizes}


def _cases(
    named: Mapping[str, Mapping[str, Any]], sizes: dict[str, Any], *, public: int, hidden: int
) -> tuple[Case, ...]:
    larger = {name: size for name, size in DEEP.items() if name in sizes}
    return (*(Case(name, of) for name, of in named.items()), *draw_cases(sizes, public=public, hidden=hidden, **larger))


EINSUM = {"letters": Range(2, 6), "size": 9, "einsums": 2, "operands": 3}
ORDER = {"letters": 4, "size": 50, "einsums": 3}
STATES = {"data": Range(1, 17), "tensor": Range(1, 9), "power": Range(1, 40), "over": Range(0, 1)}
DEVICES = {**LLAMA, "even": Range(1, 4), "zero_stage": Range(1, 3), "max_devices": Range(1, 64)}
TINY = {"kv_heads": 1, "group": 1, "n_layers": 1, "head_dim": 2, "d_model": 3, "d_ff": 5, "vocab_size": 7, "even": 1}
"""Some 200 parameters: of rounded shards, one device more need not make the largest smaller."""
MANY = {**DEVICES, "zero_stage": 3, "even": 16}
SERVED = {**MODEL, "kind": "llama", "tokens": Range(1, 100)}
ROOM = {**SERVED, "fits": (15, 300)}
STEP = _of("step_products", "forward_products")
UNITS = _of("elementwise_units", "parameters", kind="small")
DECODE = _of("decode_work", "parameters", "forward_products", "kv_cache_bytes", tokens=Range(1, 100))
OFFERS = ((2, 1, 1000), (1, 2, 3), (1, 1, 1), (1, 0.25, 0.5))
"""Memory, speeds and price of machines next to the third, which is the cheapest for a token."""
FREE = ((1, 1, 1), (1, 1, 0), (1, 2, 0), (1, 1, 2))
"""The second and the third cost nothing, and the third is faster."""

CHECKS = (
    _make_check(
        draw.draw_parse,
        (
            Case("a matrix product, and others", {**EINSUM, "einsums": 0, "named": draw.EXAMPLES[:3]}),
            *draw_cases(EINSUM, public=9, hidden=3, letters=Range(4, 8)),
        ),
        name="einsum_parse",
        title="Letters, sizes, and what does not fit",
        points=5,
        first_hint="Read the failing einsum aloud, letter by letter: which size does each letter meet, and where a "
        "second time?",
        hint="Split at '->', then at ','. Go through letters and sizes together and keep the first size of each "
        "letter: a later one must be equal to it, also where one of them is 1. Raise ValueError, nothing else.",
        uses=("parse_einsum",),
    ),
    _make_check(
        draw.draw_cost,
        (
            Case("matrix products", {**EINSUM, "named": draw.EXAMPLES[:2]}),
            Case("all is summed, and nothing", {**EINSUM, "named": draw.EXAMPLES[2:]}),
            Case("a summed letter of size 1", {**EINSUM, "einsums": 0, "size": 1, "named": draw.EXAMPLES[:1]}),
            Case("attention scores of a million tokens", {**EINSUM, "large": True}),
            *draw_cases(EINSUM, public=7, hidden=3, operands=4),
        ),
        name="einsum_cost",
        title="FLOPs and bytes of an einsum",
        points=6,
        first_hint="Write the loop nest of the failing einsum: which loops are there, and what does the innermost line "
        "do?",
        hint="How often does the innermost line run? Each time it multiplies one factor after the other, and adds if a "
        "letter is missing from the output. Bytes: elements of every operand and of the output. Return ints.",
        uses=("parse_einsum", "einsum_flops", "einsum_bytes"),
    ),
    _make_check(
        draw.draw_order,
        (
            Case("chains, and the outer two first", {**ORDER, "named": draw.CHAINS}),
            Case("all letters of one size", {**ORDER, "size": 4, "equal": True}),
            Case("the last with either of the others", {**ORDER, "size": 4, "equal": True, "named": ("ij,kj,j->ik",)}),
            Case("two pairs that cost nearly the same, in more than 64 bits", {**ORDER, "large": True}),
            *draw_cases(ORDER, public=6, hidden=2, letters=5),
        ),
        name="einsum_order",
        title="Which two of three to contract first",
        points=6,
        first_hint="Which letters does the first product still have, and which later step needs each of them?",
        hint="A letter of the pair is summed in the first step only if neither the third operand nor the output has "
        "it. Each step is an einsum of two, which einsum_flops counts. Keep the first pair where two are equal.",
        uses=("parse_einsum", "einsum_flops", "best_first_pair"),
    ),
    _make_check(
        draw.draw_parameters,
        (
            Case("GPT-2 124M", {"published": GPT2_124M}),
            Case("the small model of Task 5", SMALL),
            *_cases({"a GPT-2": {**GPT2, **PLAIN}}, {**MODEL, "kind": "layer norms"}, public=3, hidden=2),
        ),
        name="parameters_gpt2",
        title="Parameters of GPT-2 models",
        points=7,
        first_hint="Compare the field that is off with its row of the task's table: which matrix or bias is too many, "
        "or missing?",
        hint="Per layer: 4 matrices of attention, 2 of the MLP, 2 norms; one norm at the end. A bias has one number "
        "for each output of its matrix; a layer norm has one if norm_bias. Positions: context rows of D.",
        uses=("TransformerConfig", "Parameters", "parameters"),
    ),
    _make_check(
        draw.draw_parameters,
        (
            Case("Llama 3 8B", {"published": LLAMA_8B}),
            Case("a large one of untidy sizes", {"published": LARGE}),
            Case("grouped heads", {**LLAMA, **GROUPED}),
            Case("tied, with biases", {**LLAMA, **PLAIN, "kind": "tied"}),
            *_cases({}, {**MODEL, "kind": "swiglu"}, public=2, hidden=2),
        ),
        name="parameters_llama",
        title="Parameters of Llama models",
        points=8,
        first_hint="How wide is the output of each projection, and how many matrices has the MLP?",
        hint="Keys and values have K heads, queries and output N; all heads are H wide, and N·H need not be D. SwiGLU "
        "has three matrices: two biases of F and one of D if there are any.",
        uses=("TransformerConfig", "Parameters", "parameters"),
    ),
    _make_check(
        draw.draw_sized,
        _cases(
            {
                "a GPT-2": _of("forward_products", **PLAIN, kind="gpt2"),
                "a Llama with grouped heads": _of("forward_products", **GROUPED, kind="llama"),
                "the small model of Task 5": _of("forward_products", kind="small"),
            },
            _of("forward_products"),
            public=3,
            hidden=1,
        ),
        name="forward_products",
        title="Every matrix product of a forward pass",
        points=8,
        first_hint="Write down the shapes of both factors of the product that is off. Which of them does the whole "
        "batch share?",
        hint="Projections and MLP: which axis do all tokens of the batch lie along? scores and weighted_sum belong to "
        "one head of one sequence in one layer: how many such products are there, and what does a query head meet? The "
        "head runs once, tied or not.",
        uses=("TransformerConfig", "forward_products"),
    ),
    _make_check(
        draw.draw_training,
        (
            Case("a Llama", {**LLAMA, **PLAIN}),
            Case("more tokens than a float can count", {**LLAMA, "d_model": 509, "d_ff": 2039, "power": 56}),
            *draw_cases(MODEL, public=3, hidden=1),
        ),
        name="training_flops",
        title="FLOPs of a training run",
        points=5,
        first_hint="How long is one sequence, and how many of them make up these tokens?",
        hint="total_tokens / context sequences of context tokens each: one long sequence would have more scores. "
        "Forward once, back twice as much. Return an int.",
        uses=("TransformerConfig", "forward_products", "training_flops"),
    ),
    _make_check(
        draw.draw_share,
        (
            Case("a Llama", {**LLAMA, **PLAIN}),
            Case("a long sequence", {**LLAMA, "tokens": 5_000_000_000}),
            *draw_cases({**MODEL, "tokens": Range(1, 200)}, public=3, hidden=1),
        ),
        name="attention_share",
        title="Attention's fraction, and where it is one half",
        points=5,
        first_hint="Double the tokens on paper: which products double, and which grow fourfold?",
        hint="FLOPs are a·T + b·T²: which two products make up b? The fraction is that part of the whole, and both "
        "parts are equal at one T, which need not be whole.",
        uses=("TransformerConfig", "forward_products", "attention_share", "attention_crossover"),
    ),
    _make_check(
        draw.draw_states,
        (
            Case("one device", {**STATES, "data": 1, "tensor": 1}),
            Case("one parameter more than divides evenly", {**STATES, "data": 5, "tensor": 3, "power": 30, "over": 1}),
            Case("more parameters than a float can count", {**STATES, "data": 7, "tensor": 4, "power": 58, "over": 1}),
            *draw_cases(STATES, public=4, hidden=2, data=Range(99, 999), tensor=Range(2, 64)),
        ),
        name="state_bytes",
        title="Weights, gradients and optimizer states per device",
        points=6,
        first_hint="Take the stage that fails: which kinds are sharded in it, among which ranks, and what if the "
        "division leaves a remainder?",
        hint="Round up after each division: first by the tensor-parallel group, then by data. Stage 1 shards master "
        "copy and moments by data, stage 2 the gradients too, stage 3 the weights too. -(-a // b) rounds up in ints.",
        uses=("States", "states"),
    ),
    _make_check(
        draw.draw_activations,
        _cases(
            {
                "a GPT-2": {**GPT2, **PLAIN, "even": 1},
                "a Llama": {**LLAMA, **PLAIN, "even": 1},
                "four tensor-parallel ranks": {**LLAMA, "even": 4},
                "one token, one layer": {**LLAMA, "even": 1, "n_layers": 1, "tokens": 1},
            },
            {**MODEL, "even": Range(1, 4)},
            public=4,
            hidden=1,
        ),
        name="activation_bytes",
        title="Activations per device, with and without recomputation",
        points=8,
        first_hint="Which arrays does a layer keep, which are kept once, and which does this recomputation drop?",
        hint="Add up elements per token of a layer, times 2 bytes; then the last norm, and V times 4 bytes once. "
        "selective: the softmax of one layer is there, not of L. full: L inputs of D, and one layer has the rest of "
        "its arrays too.",
        uses=("TransformerConfig", "activation_bytes"),
    ),
    _make_check(
        draw.draw_devices,
        (
            Case("ZeRO 3", {**DEVICES, **PLAIN, "zero_stage": 3, "even": 1, "max_devices": 64}),
            Case("ZeRO 1, few parameters", {**DEVICES, **TINY, "zero_stage": 1, "max_devices": 64}),
            Case("no ZeRO: more devices do not help", {**DEVICES, "zero_stage": 0}),
            Case("fewer devices allowed than one tensor-parallel group", {**DEVICES, "even": 4, "max_devices": 3}),
            Case("more than 4,096 devices, if need be, in groups of 16", {**MANY, "max_devices": 5000}),
            Case("4,096 devices at most, in groups of 16", {**MANY, "max_devices": 4096}),
            *draw_cases(DEVICES, public=3, hidden=1),
        ),
        name="fewest_devices",
        title="The smallest number of devices that holds a training run",
        points=7,
        first_hint="Which parts of the memory shrink as data grows, and which stay as they are?",
        hint="Try data = 1, 2, 3, … while data · tensor is at most max_devices, and return data · tensor for the first "
        "whose memory adds up to no more than memory_bytes. Activations are those of one sequence, and no number of "
        "data-parallel ranks makes them smaller.",
        uses=("TransformerConfig", "states", "activation_bytes", "training_memory", "fewest_devices"),
    ),
    _make_check(
        draw.draw_sized,
        _cases(
            {
                "the small model": {**STEP, **PLAIN, "kind": "small"},
                "as many tokens as a head is wide": {**STEP, "kind": "small", "as_wide": True},
                "a Llama with grouped heads": {**STEP, **GROUPED, "kind": "llama"},
            },
            STEP,
            public=2,
            hidden=1,
        ),
        name="step_products",
        title="Every matrix product of a training step",
        points=6,
        first_hint="Take one product Y = X·W: which two products does its backward pass run?",
        hint="Three for each of forward_products, as many times each: itself, and one for the gradient of each factor. "
        "A gradient has the shape of its factor: which length is then summed over? That is the middle number.",
        uses=("TransformerConfig", "forward_products", "step_products"),
    ),
    _make_check(
        draw.draw_sized,
        _cases({"the small model": {**UNITS, **PLAIN}, "one token": {**UNITS, "tokens": 1}}, UNITS, public=2, hidden=1),
        name="elementwise_units",
        title="Elementwise work of the small model",
        points=3,
        first_hint="Change one size of the failing model on paper: which rows of your table change with it?",
        hint="Write each row as elements per token, then multiply by B·T. Scores have T entries in each of N heads. "
        "The update at the end does not depend on tokens.",
        uses=("TransformerConfig", "count_parameters", "elementwise_units"),
    ),
    _make_check(
        draw.draw_prediction,
        _cases(
            {
                "the small model": {**SMALL, **PLAIN},
                "as many tokens as a head is wide": {**SMALL, "as_wide": True},
                "one token": {**SMALL, "tokens": 1, "batch": 1, "n_layers": 1},
            },
            SMALL,
            public=2,
            hidden=1,
        ),
        name="predict_step",
        title="Seconds of a step, predicted",
        points=5,
        first_hint="Compute one product by hand: its FLOPs, its own rate, its seconds.",
        hint="Seconds of one kind of product are its FLOPs, 2·times·m·k·n, over the rate of its own shape. Add them "
        "up, and add the elementwise units times unit_s.",
        uses=("TransformerConfig", "step_products", "elementwise_units", "predict_training_step_s"),
    ),
    _make_check(
        draw.draw_cache,
        (
            Case("a large model and long sequences", {"published": LARGE, "tokens": Range(10_000, 20_000), "batch": 3}),
            Case("a GPT-2", {**SERVED, "kind": "gpt2"}),
            *_cases({"a Llama with grouped heads": {**SERVED, **GROUPED}}, SERVED, public=2, hidden=1),
        ),
        name="serving_memory",
        title="Bytes of the KV cache, and the largest batch",
        points=4,
        first_hint="What does one token leave behind in one layer, and what else lies in memory?",
        hint="Keys and values: two arrays in each layer, of K heads, not N, at 2 bytes. All parameters are in memory "
        "too, at 2 bytes each; round down, and return 0 rather than a negative number.",
        uses=("TransformerConfig", "count_parameters", "kv_cache_bytes", "largest_batch"),
    ),
    _make_check(
        draw.draw_sized,
        _cases(
            {
                "a GPT-2, tied": {**DECODE, **PLAIN, "kind": "gpt2"},
                "a Llama with grouped heads": {**DECODE, **GROUPED, "kind": "llama"},
                "the first token": {**DECODE, "tokens": 1},
            },
            DECODE,
            public=3,
            hidden=1,
        ),
        name="decode_work",
        title="FLOPs and bytes of a decode step",
        points=5,
        first_hint="In one step: what is read once for the whole batch, what for each sequence, and what is merely "
        "looked up?",
        hint="The products of one token by itself have scores and weighted_sum for one key: what do the other "
        "tokens − 1 add, in each layer and sequence? The weights are read once for the whole batch, the cache once for "
        "each sequence. Tables are only looked up: leave out positions, and the embedding unless it is tied.",
        uses=("TransformerConfig", "forward_products", "parameters", "kv_cache_bytes", "decode_work"),
    ),
    _make_check(
        draw.draw_machines,
        (
            Case("one machine", {**ROOM, **PLAIN}),
            Case("both times are equal", {**ROOM, "equal": True}),
            Case("neither the largest nor the fastest nor the cheapest hour", {**ROOM, "offers": OFFERS}),
            Case("one is a little cheaper", {**ROOM, "offers": ((1, 1, 1), (1, 1, 0.999999))}),
            Case("two that cost nothing", {**ROOM, "offers": FREE}),
            Case("equal costs per token, not per hour", {**ROOM, "offers": ((1, 2, 2), (1, 1, 1), (1, 4, 4))}),
            Case("room for one sequence", {**ROOM, "fits": (15, 16)}),
            Case("none fits", {**ROOM, "machines": 3, "fits": (-50, 9)}),
            Case("no machine at all", {**ROOM, "machines": 0}),
            Case("each is there twice", {**ROOM, "machines": 3, "twice": 3}),
            *draw_cases({**SERVED, "machines": Range(1, 6)}, public=5, hidden=2, kind="any", machines=9),
        ),
        name="choose_machine",
        title="The machine that serves cheapest, and its limit",
        points=6,
        first_hint="For the machine that is right: how many tokens does it generate in an hour, and what does an hour "
        "cost?",
        hint="price_per_hour / 3600 · step_s is what a step costs; it generates `batch` tokens. Take the larger of the "
        "two times, not their sum; if they are equal, the limit is compute. Leave out a machine whose batch is 0.",
        uses=("TransformerConfig", "Machine", "Choice", "largest_batch", "decode_work", "choose_machine"),
    ),
)
LAB = Lab("transformer-arithmetic", repeat_first_case(CHECKS))
