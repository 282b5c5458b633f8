"""Checks of lab 08: data-parallel steps, buckets, accumulation, sharded optimizers and layers, checkpoints.

No check asks the learner's code what a rank keeps. A rank that receives only its chunk of the gradients cannot have the
other ranks' states; weights that are scaled between forward and backward pass are wrong if they were kept; and the
memory that a rank holds is counted.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from mlsys_checks.sandboxed import data_parallel as calls
from mlsys_checks.sandboxed.spec import Case, Check, Lab, Range, draw_cases
from mlsys_checks.trusted.answers import agree
from mlsys_checks.trusted.compare import close
from mlsys_checks.trusted.data_parallel import generators as draw
from mlsys_checks.trusted.data_parallel.sending import compare_sending, explain
from mlsys_checks.trusted.repeats import repeat_first_case
from mlsys_checks.trusted.traffic import check_ranks, compare_run

BUDGET_BYTES = 160 << 10
"""Memory of a rank for its shards of the deep stack, their gradients, and a few complete layers."""
SHAPES = {"count": Range(2, 4), "transposed": Range(0, 1), "float32": Range(0, 1)}
MANY_SHAPES = {"count": Range(5, 8), "largest": 7}
TWO = {"p": 2, "shapes": [(2,), (3,)], "passes": 1}
ONE_EACH = TWO | {"shapes": [(2,)] * 6, "bucket_bytes": 16}
DRAWN: dict[str, Any] = {"p": Range(1, 3), "count": Range(3, 5), "bucket_bytes": Range(0, 40), "passes": Range(1, 2)}
DRAWN |= {"shuffled": 1, "unused": Range(0, 3), "transposed": Range(0, 1)}
SMALL = {"shapes": [(2,), (2,)], "bucket_bytes": 16}
BATCHES = {"shapes": [(3,)] * 4, "bucket_bytes": Range(0, 64), "p": Range(1, 3), "max_tokens": Range(1, 4)}
BATCHES |= {"shuffled": 1, "unused": Range(0, 4)}
LAYERS = {"p": Range(1, 4), "depth": Range(1, 2), "width": Range(1, 3), "axes": Range(1, 3), "form": Range(0, 3)}
LAYERS |= {"transposed": Range(0, 1), "passes": Range(1, 2), "backward": Range(1, 2), "residual": Range(0, 1)}
LAYERS |= {"needs_grad": Range(0, 1)}


def _sides(inputs: Any, run: Any, expect: Any) -> dict[str, Any]:
    return {"inputs": inputs, "run": run, "expect": expect}


def write_call(name: str, *arguments: str) -> str:
    """Code that runs the check's own program, a function of `calls`, on the ranks of a case."""
    passed = ", ".join(("mine", "rank", *arguments, "arrays"))
    return (
        "from mlsys_checks.live import LiveNamespace\n"
        "from mlsys_checks.sandboxed import data_parallel as calls\n"
        "from mlsys_checks.sandboxed.ranks import split_ranks\n\n"
        "mine = LiveNamespace(globals())  # your functions and classes, which the check's own program calls\n"
        f"run(lambda rank, arrays: calls.{name}({passed}), split_ranks(given))"
    )


SIGNS = 'arrays["deferred"].item'
"""The signs by which the check multiplies gradients on their way."""

CHECKS = (
    check_ranks(
        name="copy_from_first",
        title="All ranks start alike",
        points=4,
        cases=(
            Case("two ranks", {"p": 2, "shapes": [(2,), (1, 3)]}),
            Case("a frozen, transposed matrix", {"p": 2, "shapes": [(2,), (2, 3)], "transposed": 1, "frozen": 1}),
            *draw_cases(SHAPES | {"p": Range(1, 4), "frozen": 1}, public=3, hidden=1, p=Range(5, 7), **MANY_SHAPES),
        ),
        **_sides(draw.draw_start, calls.broadcast_tensors, draw.expect_start),
        first_hint="Whose values must be in the data of every rank's parameters in the end?",
        hint="A broadcast returns rank 0's array on every rank. Copy it into the tensor's own data, in place; "
        "assigning to a name inside your function changes no parameter.",
        uses=("Tensor", "broadcast_tensors"),
        snippet=write_call("broadcast_tensors"),
    ),
    check_ranks(
        name="loss_weights",
        title="Weights of the ranks' mean losses",
        points=7,
        cases=(
            Case("two ranks, six tokens and two", {"tokens": [[6], [2]]}),
            Case("a rank without micro-batches", {"tokens": [[2, 1], []]}),
            Case("billions of tokens", {"tokens": [[2_500_000_001, 8], [1_000_000_007], []]}),
            *draw_cases(
                {"p": Range(1, 4), "max_tokens": Range(1, 9)}, public=3, hidden=1, p=5, max_tokens=Range(100, 10**6)
            ),
        ),
        **_sides(draw.draw_counts, calls.loss_weights, draw.expect_weights),
        first_hint="How many tokens do all ranks have together? The weights of all micro-batches add up to p.",
        hint="One all_reduce of this rank's own sum gives T. The mean over ranks divides by p, so a micro-batch of t "
        "tokens needs the weight t·p/T.",
        uses=("loss_weights",),
        snippet=write_call("loss_weights"),
    ),
    check_ranks(
        name="backward_together",
        title="Gradients of the mean over all tokens, on your engine",
        points=6,
        cases=(
            Case("six tokens and two", {"tokens": [6, 2], "shapes": [(2, 2), (3,), (1,)]}),
            *draw_cases(
                SHAPES | {"p": Range(1, 4), "unused": Range(0, 9)}, public=6, hidden=1, p=Range(5, 6), **MANY_SHAPES
            ),
        ),
        **_sides(draw.draw_losses, calls.backward_and_average, draw.expect_gradients),
        first_hint="Three things happen one after the other: weight the loss, backward pass, average. Which changes "
        "the values?",
        hint="loss_weights gives this rank's factor: multiply the loss by it before backward(). Then concatenate all "
        "gradients, flattened (zeros for None), all_reduce, divide by group.size, split, reshape.",
        uses=("Tensor", "backward_and_average"),
        snippet=write_call("backward_and_average"),
    ),
    Check(
        name="assign_buckets",
        title="Which gradients are sent together",
        points=5,
        cases=(
            Case("two buckets", {"sizes": [2, 3, 1, 4], "room": 5}),
            Case("one that is larger alone", {"sizes": [1, 9, 1, 2], "room": 4}),
            Case("no parameters", {"sizes": [], "room": 5}),
            Case("bucket_bytes is 0, and some have no elements", {"sizes": [0, 3, 0, 0, 2], "room": 0}),
            *draw_cases({"count": Range(1, 12)}, public=6, hidden=2, count=Range(100, 1000)),
        ),
        **_sides(draw.draw_sizes, calls.assign_buckets, draw.expect_buckets),
        compare=close,
        first_hint="From which end does the backward pass come? When has a bucket no room for the next parameter?",
        hint="Walk through the parameters backwards. Start a new bucket if there is none yet, or if its bytes and "
        "those of the next parameter together exceed bucket_bytes; exactly full is allowed.",
        uses=("assign_buckets",),
        snippet="parameters = [torch.empty(size // 4, dtype=torch.float32) for size in sizes.tolist()]\n"
        "buckets = assign_buckets(parameters, bucket_bytes)\n"
        "[[any(p is one for one in bucket) for bucket in buckets].index(True) for p in parameters]",
    ),
    check_ranks(
        name="ddp",
        title="Buckets that are averaged during the backward pass",
        points=16,
        cases=(
            Case("two ranks, one bucket", TWO | {"bucket_bytes": 1000}),
            Case("a rank's last layer is the other's first", ONE_EACH | {"reversed": 1}),
            Case("float16", TWO | {"bucket_bytes": 4, "spread": 0.0, "dtype": "float16"}),
            *draw_cases(DRAWN, public=6, hidden=1, p=Range(5, 6), count=12, bucket_bytes=Range(0, 16)),
            Case("larger buckets", DRAWN | {"p": 5, "count": 9, "bucket_bytes": 400, "unused": 0}, hidden=True),
        ),
        **_sides(draw.draw_batches, calls.ddp, draw.expect_ddp),
        compare=explain(
            compare=compare_sending,
            wrong="a bucket is averaged twice or before its last gradient is complete, a sum over ranks is not divided "
            "by their number, or parameters that were ready in an earlier step still count",
            sent="a bucket is not averaged by one all-reduce in the parameters' dtype, in the hook that completes it "
            "or, if a parameter is unused, in finish_gradient_synchronization(); or under no_sync()",
        ),
        first_hint="Follow one bucket: which hook completes it, which buckets must have been averaged before, and what "
        "happens if a hook is never called?",
        hint="Collect in the hook which parameters are ready. While all parameters of the next bucket in order are "
        "among them, average it. finish_gradient_synchronization() averages the remaining ones, with zeros for a grad "
        "that is None, and forgets what was ready.",
        uses=("DDP",),
        snippet=write_call("ddp", SIGNS),
    ),
    check_ranks(
        name="accumulate",
        title="Micro-batches that communicate once",
        points=11,
        cases=(
            Case("three micro-batches", SMALL | {"tokens": [[1, 4, 2], [3, 3, 1]]}),
            Case("a micro-batch of padding only, a rank of padding only", SMALL | {"tokens": [[2, 0], [0, 0], [3]]}),
            Case("a rank without micro-batches", SMALL | {"tokens": [[2, 1], []]}),
            Case("one function for three micro-batches", SMALL | {"tokens": [[2, 2, 2], [3]], "is_repeated": 1}),
            Case("losses of zero, and NaN", SMALL | {"tokens": [[2, 1], [3, 1]], "values": [0.0, np.nan]}),
            *draw_cases(BATCHES, public=4, hidden=1, p=5, max_tokens=20, batches=8),
        ),
        **_sides(draw.draw_batches, calls.accumulate_gradients, draw.expect_accumulated),
        compare=explain(
            compare=compare_sending,
            wrong="a loss is multiplied by another weight than the one that loss_weights(tokens, group) gives it, or "
            "gradients are averaged before the last backward pass",
            sent="a backward pass before the last one does not run under ddp.no_sync(), or the last one does, or "
            "loss_weights() or finish_gradient_synchronization() is not called exactly once",
        ),
        first_hint="Which weight does each loss need, after which one may gradients be sent, and what is the mean over "
        "no tokens?",
        hint="Leave out micro-batches whose weight is 0. Run all that remain but the last under no_sync(), multiply "
        "each loss by its weight before backward(), and finish. If torch says that something was modified in place, a "
        "loss was computed before the backward pass of the one before.",
        uses=("accumulate_gradients",),
        snippet=write_call("accumulate_gradients", SIGNS),
    ),
    check_ranks(
        name="sharded_optimizer",
        title="ZeRO-1: every rank keeps a shard of the states",
        points=13,
        cases=(
            Case("two ranks", {"p": 2, "shapes": [(2,), (2, 2)]}),
            *draw_cases(
                SHAPES | {"p": Range(1, 4), "unused": Range(0, 5), "frozen": Range(0, 1)},
                public=6,
                hidden=1,
                p=Range(5, 6),
                **MANY_SHAPES,
            ),
        ),
        **_sides(draw.draw_training, calls.sharded_optimizer, draw.expect_steps),
        first_hint="Which elements does this rank's optimizer update, whose gradients does it need, and which ranks "
        "need its weights?",
        hint="Concatenate all parameters, flattened; a copy of this rank's chunk goes to optimizer_class. Gradients: "
        "concatenated alike, reduce_scatter, divided by group.size. After the step: all_gather the shards, split.",
        uses=("ShardedOptimizer",),
        snippet=write_call("sharded_optimizer"),
    ),
    check_ranks(
        name="clip_gradient",
        title="Clipping by the norm over all ranks",
        points=6,
        cases=(
            Case("two ranks, clipped to half", {"lengths": [3, 4], "percent": 50}),
            Case("no limit", {"lengths": [2, 3], "percent": np.inf}),
            Case("tiny numbers", {"lengths": [3, 2], "percent": 50, "unit": 1e-40}),
            *draw_cases(
                {"p": Range(1, 4), "largest": Range(0, 6), "percent": Range(0, 130)},
                public=6,
                hidden=1,
                p=Range(5, 6),
                largest=30,
            ),
        ),
        **_sides(draw.draw_clipped, calls.clip_grad_norm, draw.expect_clipped),
        compare=partial(compare_run, compare=close),  # nothing cancels, and tiny numbers must be as near
        first_hint="What do the other ranks need to know of each shard so that all of them get the same norm?",
        hint="Add up the squares of all shards' gradients, all_reduce this one number (a tensor of one element), take "
        "its root. Scale only if the norm exceeds max_norm, in place.",
        uses=("clip_grad_norm",),
        snippet=write_call("clip_grad_norm"),
    ),
    check_ranks(
        name="sharded_layer",
        title="ZeRO-3: weights that are complete only while they are used",
        points=16,
        cases=(
            Case("two ranks, one layer", {"p": 2, "depth": 1, "width": 2, "axes": 2, "needs_grad": 1}),
            Case("a deep stack", {"p": 3, "depth": 12, "width": 32, "axes": 2}),
            *draw_cases(LAYERS, public=8, hidden=1, p=5, width=7),
        ),
        **_sides(draw.draw_layers, calls.fsdp_unit, draw.expect_layers),
        compare=explain(
            wrong="the backward pass uses parameters that the forward pass gathered, or summed gradients of the "
            "parameters are not divided by the number of ranks, or the gradient of x is divided too",
            sent="a unit runs more than one all-gather forward, and one all-gather and one reduce-scatter backward",
        ),
        first_hint="Which of forward and backward pass needs complete weights, and what does autograd hold in between?",
        hint="forward saves x and the unit, nothing that was gathered. backward: unshard(), detach x and parameters, "
        "let them require gradients, compute under enable_grad, get their gradients, and reduce_scatter those of "
        "the parameters, concatenated, divided by the number of ranks.",
        uses=("FSDPUnit",),
        time_limit_s=10.0,
        memory_bytes=BUDGET_BYTES,
        snippet=write_call("fsdp_unit"),
    ),
    Check(
        name="step_cost",
        title="Bytes kept and elements sent",
        points=4,
        cases=(
            Case("four ranks", {"p": 4, "digits": 6}),
            Case("more bytes than int64 counts", {"p": 48, "digits": 17}),
            *draw_cases({"p": Range(1, 64), "digits": 6}, public=2, hidden=1),
        ),
        **_sides(draw.draw_cost, calls.zero_step_cost, draw.expect_cost),
        compare=agree,
        first_hint="Which of 2, 2 and 12 bytes does each stage shard? How many halves of an all-reduce does it run?",
        hint="A reduce-scatter sends n - n/p elements from each rank, and so does an all-gather. Stages 0 to 2 run one "
        "of each, stage 3 gathers twice.",
        uses=("zero_step_cost",),
        snippet="[zero_step_cost(num_params, world_size, stage) for stage in range(4)]",
    ),
    check_ranks(
        name="resume",
        title="Training that continues as if it had never stopped",
        points=6,
        cases=(
            Case("two ranks", {"p": 2, "shapes": [(2,), (3,)], "stop": 2}),
            Case("saved before the first step", {"p": 2, "shapes": [(2,), (1,)], "stop": 0}),
            *draw_cases(
                SHAPES | {"float32": 0, "p": Range(1, 3), "stop": Range(0, 2), "frozen": 1}, public=4, hidden=1, p=5
            ),
        ),
        **_sides(draw.draw_training, calls.resume, draw.expect_run),
        compare=explain(
            wrong="a tensor that was saved or loaded without clone() has changed since, or weights, an entry of the "
            "optimizer's state, the random state or frozen parameters were not restored",
            sent="save_state sends something, or load_state more than one gather_weights()",
        ),
        first_hint="Weights, momentum, its count of steps, position, random numbers: which of them is not as before?",
        hint="Save a copy of each tensor, or later steps change it. To load: copy into the shard, put copies of the "
        "states under the new shard, set the random state, and gather the weights.",
        uses=("save_state", "load_state"),
        snippet=write_call("resume"),
    ),
    Check(
        name="reshard",
        title="A checkpoint for another number of ranks",
        points=6,
        cases=(
            Case("from two to three", {"n": 7, "old": 2, "size": 3}),
            Case("states of many dtypes", {"n": 24, "old": 2, "size": 5, "kinds": 1}),
            *draw_cases(
                {"n": Range(1, 9), "old": Range(1, 4), "size": Range(1, 5), "kinds": Range(0, 1)},
                public=6,
                hidden=1,
                n=Range(60, 200),
                old=Range(5, 9),
                size=Range(5, 11),
            ),
        ),
        **_sides(draw.draw_states, calls.reshard, draw.expect_states),
        compare=close,
        first_hint="There are three kinds of entries: one per rank, the same on all ranks, and sharded ones.",
        hint="Go through the names. Sharded entries: torch.cat over the states in order, then split_chunks again. All "
        "others are copied; random states come from the old rank r modulo the number of old ranks.",
        uses=("reshard",),
        snippet="from mlsys_checks.live import LiveNamespace\n"
        "from mlsys_checks.sandboxed import data_parallel as calls\n\n"
        "calls.reshard(LiveNamespace(globals()), given)  # your function, which the check's own program calls",
    ),
)
LAB = Lab("data-parallel", repeat_first_case(CHECKS))
