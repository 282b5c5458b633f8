"""Checks of lab 16: names, points, hints, and the ranges from which cases are drawn.

generators    cases, oracles and comparisons of the decoder, of training and of serving
predictions   those of what a run costs
"""

from __future__ import annotations

from functools import partial
from typing import Any

from mlsys_checks.sandboxed import capstone as calls
from mlsys_checks.sandboxed.spec import Case, Check, Lab, Range, draw_cases
from mlsys_checks.trusted.answers import agree
from mlsys_checks.trusted.capstone import generators as draw
from mlsys_checks.trusted.capstone import predictions as predict
from mlsys_checks.trusted.compare import close
from mlsys_checks.trusted.repeats import repeat_first_case
from mlsys_checks.trusted.traffic import check_ranks

MODEL: dict[str, Any] = {"layers": Range(1, 2), "kv_heads": Range(1, 3), "group": Range(1, 3)}
MODEL |= {"batch": Range(1, 4), "tokens": Range(1, 9)}
LARGER_MODEL: dict[str, Any] = {"layers": 3, "batch": Range(4, 6), "tokens": Range(10, 17)}
SMALL = {"layers": 1, "kv_heads": 1, "group": 1, "batch": 1, "tokens": 3, "tied": 0}
GROUPED = {**SMALL, "kv_heads": 2, "group": 3, "batch": 2, "tokens": 5}
TRAIN = {"batch": Range(0, 5), "tokens": Range(2, 6), "steps": Range(2, 4)}
STOPPED = {"batch": Range(0, 4), "tokens": Range(2, 5), "steps": 4, "stop": Range(1, 3)}
RANKS = {"p": Range(1, 6)}
HUGE = {"large": 1, "p": Range(30, 300)}
SWAP = {"p": 1, "levels": Range(0, 5)}
UPDATES = {"sequences": Range(1, 3), "steps": Range(2, 7), "layers": Range(1, 2), "longest": Range(1, 6)}
REQUESTS = {"requests": Range(3, 6), "tokens": Range(3, 12), "new": Range(4, 9)}


def write_call(name: str) -> str:
    """Code that runs the check's own program, a function of `calls`, on a case."""
    return (
        "from mlsys_checks.live import LiveNamespace\n"
        "from mlsys_checks.sandboxed import capstone as calls\n\n"
        "mine = LiveNamespace(globals())  # your functions and classes, which the check's own program calls\n"
        f"calls.{name}(mine, given)"
    )


def write_run(name: str) -> str:
    """Code that runs the check's own program on the ranks of a case."""
    return (
        "from mlsys_checks.live import LiveNamespace\n"
        "from mlsys_checks.sandboxed import capstone as calls\n"
        "from mlsys_checks.sandboxed.ranks import split_ranks\n"
        "from mlsys_lab.comm import run\n\n"
        "mine = LiveNamespace(train_rank.__globals__)  # what the check's own program calls\n"
        f"run(lambda rank, arrays: calls.{name}(mine, rank, arrays), split_ranks(given))"
    )


CHECKS = (
    Check(
        name="operations",
        title="Three operations with gradients on your engine",
        points=6,
        cases=(
            Case("softmax of three scores", {"name": "causal_softmax", "size": 3, "axes": 0, "scale": 0.5}),
            Case("norm of rows", {"name": "rms_norm", "size": 4}),
            Case("gate and up", {"name": "silu_mul", "size": 3}),
            Case("one token", {"name": "causal_softmax", "size": 1}),
            Case(
                "scores far apart", {"name": "causal_softmax", "size": 6, "spread": 5000.0, "scale": 1.0, "expanded": 0}
            ),
            Case("a row of zeros", {"name": "rms_norm", "size": 5, "first": 0.0}),
            Case("large gates", {"name": "silu_mul", "size": 5, "spread": 25.0}),
            *(Case(f"{name} in single precision", {"name": name, "size": 6, "single": 1}) for name in draw.OPERATIONS),
            *(Case(f"what {name} keeps", {"name": name, "size": 64}) for name in draw.OPERATIONS),
            *draw_cases({"size": Range(1, 7)}, public=3, hidden=3, size=Range(8, 20)),
        ),
        inputs=draw.draw_operation,
        run=calls.operations,
        expect=draw.expect_operation,
        compare=draw.compare_gradients,
        snippet=write_call("operations"),
        first_hint="Which array is wrong: the value, or the gradient of one operand? Only for large numbers?",
        hint="A softmax's gradient is w (g - Σ w g) for each query. A norm's has two terms, since the mean of squares "
        "depends on each entry of the row. Each operand needs an edge; do not write to x, y or g.",
        uses=("causal_softmax", "rms_norm", "silu_mul"),
    ),
    Check(
        name="decoder",
        title="Logits and loss of the decoder",
        points=13,
        cases=(
            Case("one layer, one head", SMALL),
            Case("three query heads for each key head", GROUPED),
            Case("two layers, tied", {**GROUPED, "layers": 2, "tied": 1}),
            Case("sequences of one token", {**GROUPED, "tokens": 1}),
            *draw_cases(MODEL, public=3, hidden=2, **LARGER_MODEL),
        ),
        inputs=draw.draw_decoder,
        run=calls.decoder,
        expect=draw.expect_decoder,
        compare=partial(close, scale=0.1),
        snippet=write_call("decoder"),
        first_hint="Is the model of one layer and one head right? Then it is the groups of heads, the order of "
        "axes, or the tied head.",
        hint="Query heads h·G to h·G + G - 1 share key head h: reshape to (B, T, K, G, H). Rotate queries and "
        "keys, not values, once the axes are in order. Both norms of a block come before what is added to x.",
        uses=("GPT",),
    ),
    Check(
        name="gradients",
        title="Gradients of all weights",
        points=6,
        cases=(
            Case("one layer, one head", SMALL),
            Case("grouped heads, tied", {**GROUPED, "layers": 2, "tied": 1}),
            *draw_cases(MODEL, public=2, hidden=2, **LARGER_MODEL),
        ),
        inputs=draw.draw_decoder,
        run=calls.gradients,
        expect=draw.expect_gradients,
        compare=draw.compare_gradients,
        snippet=write_call("gradients"),
        first_hint="Which weights have no gradient, or a wrong one? What lies between them and the loss?",
        hint="A gradient flows through Tensors only: an operation on `.data` cuts the graph. A weight that is used "
        "twice, such as a tied embedding, gets the sum of both.",
        uses=("GPT",),
    ),
    check_ranks(
        name="train_steps",
        title="Training on ranks that share every step",
        points=10,
        cases=(
            Case("one rank", {"p": 1, "batch": 2, "tokens": 3, "steps": 3}),
            Case("two ranks, three sequences", {"p": 2, "batch": 1, "tokens": 3, "steps": 3}),
            Case("four ranks, six sequences", {"p": 4, "batch": 2, "tokens": 4, "steps": 2}),
            *draw_cases({"p": Range(1, 4), **TRAIN}, public=2, hidden=2, tokens=Range(5, 9), steps=Range(4, 6)),
        ),
        inputs=draw.draw_run,
        run=calls.train_steps,
        expect=draw.expect_run,
        compare=draw.compare_training,
        snippet=write_run("train_steps"),
        first_hint="Is one rank right, and two ranks are wrong? Or is step 1 right, and step 2 wrong?",
        hint="The batch is split among the ranks in order, and a rank has no other text than its part. Weight its "
        "loss by `loss_weights`, reduce gradients, clip by the norm of all ranks, set the step's learning rate, step. "
        "The loss to report is the ranks' mean of their weighted losses.",
        uses=("train_rank",),
        time_limit_s=6.0,
    ),
    check_ranks(
        name="resume",
        title="A run that stops and continues",
        points=4,
        cases=(
            Case("two ranks", {"first": 2, "then": 2, "batch": 1, "tokens": 3, "steps": 4, "stop": 2}),
            Case("from three ranks to two", {"first": 3, "then": 2, "batch": 2, "tokens": 3, "steps": 4, "stop": 2}),
            Case("before the first step", {"first": 2, "then": 1, "batch": 1, "tokens": 3, "steps": 3, "stop": 0}),
            *draw_cases({"first": Range(1, 4), "then": Range(1, 4), **STOPPED}, public=1, hidden=2, steps=6),
        ),
        inputs=draw.draw_run,
        run=calls.resume,
        expect=draw.expect_resumed,
        compare=draw.compare_training,
        snippet=write_run("resume"),
        first_hint="Are the losses after the stop those of the right sequences? Do the weights come from the state?",
        hint="`load_state` gives the steps that are done: iterate over the batches from the first and skip those. The "
        "learning rate is that of the step's number in the whole run. Return `save_state(optimizer, step)`.",
        uses=("train_rank",),
        time_limit_s=6.0,
    ),
    check_ranks(
        name="train_budget",
        title="A model trained by four ranks, on hidden text",
        points=6,
        cases=(
            Case("a few steps", {"p": 4, "batch": 6, "tokens": 32, "steps": 8}),
            Case("a whole run", {"p": 4, "batch": 90, "tokens": 64, "steps": 16}),
        ),
        inputs=draw.draw_budget,
        run=calls.train_budget,
        expect=draw.expect_budget,
        compare=draw.compare_budget,
        snippet=write_run("train_budget"),
        first_hint="Do `decoder`, `gradients` and `train_steps` pass? This check trains what they test.",
        hint="The loss is that of the weights that rank 0 returns after the last step.",
        uses=("GPT", "train_rank"),
        time_limit_s=60.0,
    ),
    Check(
        name="predict_training",
        title="FLOPs and bytes of a training step",
        points=9,
        cases=(
            Case("one rank", {"p": 1, "tied": 0}),
            Case("four ranks", {"p": 4, "tied": 1}),
            Case("a model too large to run", {"large": 1, "p": 64}),
            Case("too many layers to run", {"layers": 100_000, "p": 3}),
            *draw_cases(RANKS, public=3, hidden=3, **HUGE),
        ),
        inputs=predict.draw_training,
        run=calls.predict_training,
        expect=predict.expect_training,
        compare=agree,
        describe=predict.render_call("predict_training", "config", "train", "*world_size"),
        first_hint="Which numbers are of all ranks, which of rank 0? Which of lab 05's bytes are for 2-byte numbers?",
        hint="`step_products` counts the whole batch. Weights and gradients have 4 bytes, twice what `states` counts; "
        "master copy and moments are 4 and 8 bytes already, of rank 0's shard. Activations of rank 0's sequences have "
        "twice the bytes but for the probabilities of the loss.",
        uses=("predict_training",),
    ),
    Check(
        name="predict_messages",
        title="What ranks send in a training step",
        points=6,
        cases=(
            Case("two ranks", {"p": 2}),
            Case("one rank", {"p": 1}),
            Case("a number of parameters that ranks do not divide", {"p": 7}),
            *draw_cases(RANKS, public=2, hidden=2, **HUGE),
        ),
        inputs=predict.draw_messages,
        run=calls.predict_messages,
        expect=predict.expect_messages,
        compare=agree,
        describe=predict.render_call("predict_messages", "*parameters", "*world_size"),
        first_hint="How many messages does one rank send in a reduce-scatter, and how many elements do all ranks send?",
        hint="`ring_elements` lists what each rank sends in an all-reduce: add up the ranks; a reduce-scatter is half "
        "of it. Next to gradients and weights go three numbers: tokens, squared norm, and loss.",
        uses=("predict_messages",),
    ),
    Check(
        name="predict_serving",
        title="FLOPs and bytes of prefill and decode steps",
        points=9,
        cases=(
            Case("three new tokens", {"p": 1, "new": 3}),
            Case("one new token", {"p": 1, "new": 1}),
            Case("a model too large to run", {"large": 1, "p": 1}),
            *draw_cases({"p": 1}, public=3, hidden=3, large=1),
        ),
        inputs=predict.draw_serving,
        run=calls.predict_serving,
        expect=predict.expect_serving,
        compare=agree,
        describe=predict.render_call("predict_serving", "config", "serving"),
        first_hint="How many decode steps are there, and how many tokens are cached in the first of them?",
        hint="The prefill gives the first new token, so there is one decode step less than new tokens. Everything is "
        "fp32, so weights and cache have 4 bytes. The prefill's count leaves the logits out.",
        uses=("predict_serving",),
    ),
    Check(
        name="predict_seconds",
        title="Seconds of a step from a calibration",
        points=6,
        cases=(
            Case("one rank", {"p": 1}),
            Case("four ranks that take turns", {"p": 4}),
            *draw_cases(RANKS, public=2, hidden=2, **HUGE),
        ),
        inputs=predict.draw_seconds,
        run=calls.predict_seconds,
        expect=predict.expect_seconds,
        compare=agree,
        describe=predict.render_call("predict_seconds", "config", "train", "*world_size", "calibration", "serving"),
        first_hint="Which of the four is wrong? For one rank, communication is 0 and there is one batch.",
        hint="Ranks take turns: add up the seconds of each rank's own batch, and p times those of the all-reduces: of "
        "all gradients and weights, and of three numbers of 4 bytes.",
        uses=("predict_seconds",),
    ),
    Check(
        name="block_cache",
        title="A KV cache in the scheduler's blocks",
        points=6,
        cases=(
            Case("one sequence", {"block_size": 3, "sequences": 1, "steps": 3, "layers": 1, "longest": 4}),
            Case("blocks of one token", {**UPDATES, "block_size": 1, "sequences": 2}),
            Case("single precision", {**UPDATES, "block_size": 4, "single": 1}),
            *draw_cases(
                {**UPDATES, "block_size": Range(1, 5)}, public=4, hidden=2, block_size=16, longest=Range(9, 40)
            ),
        ),
        inputs=draw.draw_updates,
        run=calls.block_cache,
        expect=draw.expect_updates,
        compare=close,
        snippet=write_call("block_cache"),
        first_hint="For one sequence whose blocks are 5 and 2 of three tokens: in which slot is token 4?",
        hint="Token i lies in block i // size of the sequence's own table, at i % size. Store the new tokens in the "
        "slots behind the computed ones, then load all slots; the store has tokens first, `update` heads first.",
        uses=("BlockCache",),
    ),
    Check(
        name="serve",
        title="Concurrent requests, token by token",
        points=9,
        cases=(
            Case("blocks of three tokens", {"block_size": 3, "requests": 3, "tokens": 8, "new": 5}),
            Case("blocks of one token", {**REQUESTS, "block_size": 1}),
            Case("blocks of sixteen tokens", {**REQUESTS, "block_size": 16, "tokens": 30, "new": 12}),
            *draw_cases({**REQUESTS, "block_size": Range(2, 6)}, public=1, hidden=1, requests=12, tokens=30),
        ),
        inputs=draw.draw_requests,
        run=calls.serve,
        expect=draw.expect_tokens,
        compare=close,
        snippet=write_call("serve"),
        first_hint="Is the first token of a request right, and a later one wrong? Does `block_cache` pass?",
        hint="Several sequences share a step, blocks and whole prefixes; a preempted one begins again at 0 computed "
        "tokens with other blocks. So keep nothing of a sequence between steps.",
        uses=("BlockCache",),
    ),
    Check(
        name="predict_swap",
        title="What another all-reduce costs",
        points=6,
        cases=(
            Case("a ring of four", {**SWAP, "levels": 2, "algorithm": "ring"}),
            Case("halving and doubling", {**SWAP, "levels": 3, "algorithm": "halving_doubling"}),
            Case("one rank", {**SWAP, "levels": 0}),
            *draw_cases(SWAP, public=3, hidden=2, large=1, levels=Range(6, 10)),
        ),
        inputs=predict.draw_swap,
        run=calls.predict_swap,
        expect=predict.expect_swap,
        compare=agree,
        describe=predict.render_call("predict_swap", "config", "*world_size", "*algorithm", "calibration"),
        first_hint="Which of the five is wrong? Both algorithms send as many elements, in different numbers of steps.",
        hint="A ring takes 2 (p - 1) steps, halving and doubling 2 log2 p, and each rank sends a message in each step. "
        "Without ZeRO each rank keeps 4 bytes of master copy and 8 of moments per parameter.",
        uses=("predict_swap",),
    ),
    Check(
        name="waterfall",
        title="Bars from the bound to the measurement",
        points=4,
        cases=(Case("a step", {}), *draw_cases({}, public=1, hidden=1)),
        inputs=predict.draw_bars,
        run=calls.waterfall,
        expect=predict.expect_bars,
        compare=agree,
        describe=predict.render_bars,
        first_hint="Does each bar start where the one before it ends?",
        hint="The ends are: FLOPs over peak, products_s, training_step_s without communication_s, training_step_s, and "
        "what was measured.",
        uses=("waterfall",),
    ),
)
BUDGET = "train_budget"
LAB = Lab("capstone", tuple(one if one.name == BUDGET else repeat_first_case([one])[0] for one in CHECKS))
