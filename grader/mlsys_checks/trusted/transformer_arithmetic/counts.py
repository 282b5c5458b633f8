"""Tasks 2 and 3: parameters, matrix products, FLOPs. Oracle: torch modules counted, and products as torch runs them."""

from __future__ import annotations

import itertools

import numpy as np

from mlsys_checks.sandboxed.spec import Arrays, Case, Check
from mlsys_checks.sandboxed.transformer_arithmetic import counts as calls
from mlsys_checks.sandboxed.transformer_arithmetic.models import rows_as_text
from mlsys_checks.sandboxed.values import encode_text
from mlsys_checks.trusted.answers import agree
from mlsys_checks.trusted.transformer_arithmetic.given import Product, give, sum_products
from mlsys_checks.trusted.transformer_arithmetic.oracle import (
    draw_model,
    draw_sequences,
    model_array,
    products_of,
    sizes_of,
    weights_of,
)
from mlsys_checks.trusted.transformer_arithmetic.words import describe_calls

GPT2_KIND = {
    "position": "learned",
    "norm": "layer",
    "activation": "gelu",
    **dict.fromkeys(("qkv_bias", "out_bias", "mlp_bias", "norm_bias", "tied"), True),
}
LLAMA_KIND = {
    "position": "rotary",
    "norm": "rms",
    "activation": "swiglu",
    **dict.fromkeys(("qkv_bias", "out_bias", "mlp_bias", "norm_bias", "tied"), False),
}
SMALL_KIND = {**LLAMA_KIND, "position": "learned", "activation": "relu", "n_heads": 3, "n_kv_heads": 3}
"""The model that the lab runs on its engine."""
ROTARY_KIND = {"position": "rotary", "out_bias": False, "norm_bias": False, "tied": False}
OTHER_BIASES = {"qkv_bias": False, "mlp_bias": False, "out_bias": True, "norm_bias": True}
LARGE = {
    "n_layers": 79,
    "d_model": 8209,
    "n_heads": 63,
    "n_kv_heads": 9,
    "head_dim": 129,
    "d_ff": 28697,
    "vocab_size": 128273,
    "context": 8209,
}
"""Odd sizes near those of a model of 70 billion parameters: neither 32 bits nor a float32 hold its counts."""
GPT2 = {"n_layers": 12, "d_model": 768, "n_heads": 12, "d_ff": 3072, "vocab_size": 50257, "context": 1024}
LLAMA_8B = {
    "n_layers": 32,
    "d_model": 4096,
    "n_heads": 32,
    "n_kv_heads": 8,
    "d_ff": 14336,
    "vocab_size": 128256,
    "context": 8192,
}
WIDE = {"d_model": 509, "d_ff": 2039, "vocab_size": 2003, "context": 23}
"""Wide enough that far fewer tokens take more FLOPs than 64 bits count."""
NARROW_HEAD = LLAMA_KIND | {"n_heads": 1, "n_kv_heads": 1, "head_dim": 2, "vocab_size": 65_537, "d_model": 61}
"""Nearly all FLOPs are in the last product: half of them are in scores and mixed at 300,000 tokens or more."""
SHARED = LLAMA_KIND | {"n_layers": 1, "n_heads": 3, "n_kv_heads": 1}
"""One layer, in which all queries share one head of keys."""
QUADRATIC = ("scores", "mixed")


def _model(rng: np.random.Generator, case: Case) -> Arrays:
    if "published" in case.params:
        return {"model": model_array(**case.params["published"])}
    return {"model": draw_model(rng, **case.params)}


def _parameters_expect(arrays: Arrays) -> Arrays:
    counted = weights_of(arrays["model"]).by_kind()
    return {name: np.array(count, dtype=np.int64) for name, count in counted.items()}


def _products_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    return {"model": draw_model(rng, **case.params["kind"]), **draw_sequences(rng, case)}


def _products_expect(arrays: Arrays) -> Arrays:
    times: dict[str, dict[tuple[int, int, int], int]] = {}
    for name, count, *shape in products_of(arrays["model"], int(arrays["batch"]), int(arrays["tokens"])):
        m, k, n = shape
        rows = times.setdefault(name, {})
        rows[m, k, n] = rows.get((m, k, n), 0) + count
    return {
        name: rows_as_text([count, *shape] for shape, count in sorted(rows.items())) for name, rows in times.items()
    }


def _training_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    low, high = case.params.get("sequences", (1, 9))
    model, sequences = draw_model(rng, **case.params["kind"]), int(rng.integers(low, high))
    context = sizes_of(model).context
    answers = {(some, context): products_at(model, some, context) for some in (sequences, 1)}
    return {"model": model, "tokens": np.array(sequences * context), **give({"forward_products": answers})}


def products_at(model: np.ndarray, sequences: int, tokens: int) -> list[Product]:
    """A forward pass over any number of sequences and tokens, as torch runs one and two of each.

    Each further sequence adds to a product's numbers what the second one does, and so does each further token.
    """
    few = {size: sum_products(products_of(model, *size)) for size in itertools.product((1, 2), repeat=2)}
    listed = []
    for (name, *one), *more in zip(*(few[size] for size in ((1, 1), (2, 1), (1, 2), (2, 2))), strict=True):
        times, m, k, n = (
            a + (sequences - 1) * (b - a) + (tokens - 1) * (c - a) + (sequences - 1) * (tokens - 1) * (d - b - c + a)
            for a, b, c, d in zip(one, *(row[1:] for row in more), strict=True)
        )
        listed.append((name, times, m, k, n))
    return listed


def _training_expect(arrays: Arrays) -> Arrays:
    context = sizes_of(arrays["model"]).context
    rows = products_of(arrays["model"], 1, context, backward=True)
    of_one = sum(2 * times * m * k * n for _, times, m, k, n in rows)
    return {"training_flops": encode_text(int(arrays["tokens"]) // context * of_one)}


def _share_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    model, (low, high) = draw_model(rng, **case.params["kind"]), case.params.get("tokens", (2, 200))
    tokens = rng.integers(low, high, ())
    if case.params.get("as wide"):
        tokens = np.array(sizes_of(model).d_model)
    answers = {(1, some): products_at(model, 1, some) for some in (int(tokens), 1)}
    return {"model": model, "tokens": tokens, **give({"forward_products": answers})}


def _share_expect(arrays: Arrays) -> Arrays:
    """The share of what `products_at` lists. At one token, what grows with T beside what grows with its square."""

    def parts(tokens: int) -> tuple[int, int]:
        both = [0, 0]
        for name, times, m, k, n in products_at(arrays["model"], 1, tokens):
            both[name in QUADRATIC] += 2 * times * m * k * n
        return both[0], both[1]

    rest, pairs = parts(int(arrays["tokens"]))
    rest_of_one, pairs_of_one = parts(1)
    return {
        "attention_share": np.array(pairs / (rest + pairs)),
        "attention_crossover": np.array(rest_of_one / pairs_of_one),
    }


CHECKS = (
    Check(
        name="parameters_gpt2",
        title="Parameters of GPT-2 models",
        points=7,
        cases=(
            Case("a small one", GPT2_KIND),
            Case(
                "layer norms without biases, and a head of its own",
                {**LLAMA_KIND, "norm": "layer", "activation": "gelu", "position": "learned"},
            ),
            Case("the small model of Task 5: relu, RMS norms, learned positions", SMALL_KIND),
            Case(
                "relu, layer norms and rotary positions, biases here and there",
                GPT2_KIND | ROTARY_KIND | {"activation": "relu"},
            ),
            Case("GPT-2", {"published": GPT2 | GPT2_KIND}),
            Case("the other biases", GPT2_KIND | ROTARY_KIND | OTHER_BIASES, hidden=True),
            Case("any biases", {"activation": "gelu", "norm": "layer"}, hidden=True),
        ),
        inputs=_model,
        run=calls.parameters,
        describe=describe_calls("parameter_table(config)"),
        expect=_parameters_expect,
        compare=agree,
        first_hint="Hold the part that is off against the list in the task: which matrix or bias is too many, or "
        "missing?",
        hint="Per layer: 4 matrices of attention, 2 of the MLP, 2 norms; one norm at the end. A bias has one number "
        "for each output of its matrix; a layer norm has one if norm_bias. Positions: context rows of D.",
        uses=("TransformerConfig", "parameter_table"),
    ),
    Check(
        name="parameters_llama",
        title="Parameters of Llama models",
        points=8,
        cases=(
            Case("grouped heads", {**LLAMA_KIND, "n_heads": 8, "n_kv_heads": 2}),
            Case("as many key/value heads as query heads", {**LLAMA_KIND, "n_heads": 4, "n_kv_heads": 4}),
            Case(
                "tied, with biases of queries, keys and values",
                {**LLAMA_KIND, "n_heads": 6, "n_kv_heads": 2, "tied": True, "qkv_bias": True},
            ),
            Case("one layer, one head of keys for all queries", SHARED),
            Case("SwiGLU with biases", {**LLAMA_KIND, "mlp_bias": True, "out_bias": True, "d_ff": 61}),
            Case("a large one of untidy sizes", {"published": LARGE | LLAMA_KIND | {"mlp_bias": True}}),
            Case("Llama 3 8B", {"published": LLAMA_8B | LLAMA_KIND}, hidden=True),
            Case("any model with grouped heads", {"n_heads": 12, "n_kv_heads": 3, "activation": "swiglu"}, hidden=True),
        ),
        inputs=_model,
        run=calls.parameters,
        describe=describe_calls("parameter_table(config)"),
        expect=_parameters_expect,
        compare=agree,
        first_hint="How wide is the output of each projection, and how many matrices has the MLP?",
        hint="Keys and values have K heads, queries and output N; all heads are H wide, and N·H need not be D. SwiGLU "
        "has three matrices: two biases of F and one of D if there are any.",
        uses=("TransformerConfig", "parameter_table"),
    ),
    Check(
        name="forward_products",
        title="Every matrix product of a forward pass",
        points=8,
        cases=(
            Case("a GPT-2", {"kind": GPT2_KIND}),
            Case(
                "a Llama with grouped heads, and sequences longer than its context",
                {"kind": {**LLAMA_KIND, "n_heads": 6, "n_kv_heads": 2, "context": 1}},
            ),
            Case("the small model of Task 5", {"kind": SMALL_KIND}),
            Case("one token; one layer, one head of keys for all queries", {"kind": SHARED, "batch": 1, "tokens": 1}),
            Case("any model of six layers", {"kind": {"n_layers": 6}}, hidden=True),
        ),
        inputs=_products_inputs,
        run=calls.forward_products,
        describe=describe_calls("forward_products(config, {batch}, {tokens})"),
        expect=_products_expect,
        compare=agree,
        first_hint="Write the shape of each factor beside the product that is off. Which of them does the whole batch "
        "share?",
        hint="Projections and MLP: which axis do all tokens of the batch lie along? scores and mixed belong to one "
        "head of one sequence in one layer: how many such products are there, and who multiplies with whom? The head "
        "runs once, tied or not.",
        uses=("TransformerConfig", "forward_products"),
    ),
    Check(
        name="training_flops",
        title="FLOPs of training on so many tokens",
        points=5,
        cases=(
            Case("a GPT-2", {"kind": GPT2_KIND}),
            Case("a Llama", {"kind": LLAMA_KIND}),
            Case("the small model of Task 5", {"kind": SMALL_KIND}),
            Case("no tokens", {"kind": LLAMA_KIND, "sequences": (0, 1)}),
            Case("one sequence of one token", {"kind": SHARED | {"context": 1}, "sequences": (1, 2)}),
            Case("more tokens than a float can count", {"kind": LLAMA_KIND | WIDE, "sequences": (2**54, 2**58)}),
            Case("any model", {"kind": {}}, hidden=True),
        ),
        inputs=_training_inputs,
        run=calls.training_flops,
        describe=describe_calls("training_flops(config, {tokens})"),
        expect=_training_expect,
        compare=agree,
        first_hint="How long is one sequence, and how many of them make up these tokens?",
        hint="tokens / context sequences of context tokens each: one long sequence would have more scores. Forward "
        "once, back twice as much. Return an int.",
        uses=("TransformerConfig", "forward_products", "training_flops"),
    ),
    Check(
        name="attention_share",
        title="Attention's share, and where it is one half",
        points=5,
        cases=(
            Case("a GPT-2", {"kind": GPT2_KIND}),
            Case("a Llama", {"kind": LLAMA_KIND}),
            Case("the small model of Task 5", {"kind": SMALL_KIND}),
            Case(
                "one narrow head, many words, and as many tokens as the model is wide",
                {"kind": NARROW_HEAD, "as wide": True},
            ),
            Case("one token", {"kind": SHARED, "tokens": (1, 2)}),
            Case("a sequence with more FLOPs than 64 bits count", {"kind": LLAMA_KIND, "tokens": (10**9, 10**10)}),
            Case("any model", {"kind": {}}, hidden=True),
        ),
        inputs=_share_inputs,
        run=calls.attention_share,
        describe=describe_calls("attention_share(config, {tokens})", "attention_crossover(config)"),
        expect=_share_expect,
        compare=agree,
        first_hint="Double the tokens on paper: which products double, and which grow fourfold?",
        hint="FLOPs are a·T + b·T²: which two products make up b? The share is that part of the whole, and the parts "
        "are equal at one T, which need not be whole.",
        uses=("TransformerConfig", "forward_products", "attention_share", "attention_crossover"),
    ),
)
