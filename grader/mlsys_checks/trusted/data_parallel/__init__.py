"""Checks of lab 08: data-parallel steps, buckets, accumulation, sharded optimizers and layers, checkpoints.

No check asks the learner's code what a rank keeps. A rank that receives only its chunk of the gradients cannot have the
other ranks' states; weights that are scaled between forward and backward pass are wrong if they were kept; and the
memory that a rank holds is counted.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from mlsys_checks.sandboxed import data_parallel as calls
from mlsys_checks.sandboxed.spec import Case, Check, Lab, Range, draw_cases
from mlsys_checks.trusted.answers import agree
from mlsys_checks.trusted.compare import close
from mlsys_checks.trusted.data_parallel import generators as draw
from mlsys_checks.trusted.data_parallel.sending import compare_sending
from mlsys_checks.trusted.repeats import repeat_first_case
from mlsys_checks.trusted.traffic import check_ranks, compare_run

BUDGET_BYTES = 160 << 10
"""Memory of a rank for its shards of the deep stack, their gradients, and a few complete layers."""
SPLIT = "from mlsys_checks.sandboxed.ranks import split_ranks\n\n\n"
WEIGHTS = "from mlsys_checks.sandboxed.data_parallel import leaves\n" + SPLIT
"""How code begins that runs a case on its ranks, and makes a rank's weights by `leaves`."""
MOMENTUM = WEIGHTS.replace("leaves", "Momentum, leaves")
CALLS = (
    "from types import SimpleNamespace\n\nfrom mlsys_checks.sandboxed import data_parallel as calls\n"
    "from mlsys_checks.sandboxed.ranks import split_ranks\n\n"
    "mine = SimpleNamespace(**globals())  # your functions and classes, which the check's own program calls\n"
)
"""How code begins that runs the program of a check, where this is long."""
RUN = "\n\nrun(program, split_ranks(given))"

ODD_SHAPES = {"shapes": [(2, 3), (0,), ()], "transposed": 1}
SMALL = {"weights": 2, "width": 2, "bucket_bytes": 16}
BATCHES = {"p": Range(1, 3), "most": Range(1, 4), "weights": Range(2, 3), "width": Range(1, 3), "unused": 1}
BATCHES |= {"bucket_bytes": Range(1, 64)}

CHECKS = (
    check_ranks(
        name="copy_from_first",
        title="All ranks start alike",
        points=4,
        cases=(
            Case("two ranks", {"p": 2, "shapes": [(2,), (1, 3)]}),
            Case("a transposed matrix, no elements, no axes", {"p": 3, **ODD_SHAPES}),
            *draw_cases(
                {"p": Range(1, 4), "count": Range(2, 4), "float32": Range(0, 1), "frozen": 1},
                public=3,
                hidden=1,
                p=Range(5, 7),
                count=Range(4, 9),
                largest=9,
            ),
        ),
        inputs=draw.draw_start,
        run=calls.broadcast_tensors,
        expect=draw.expect_start,
        first_hint="Whose values must be in the data of every rank's parameters in the end?",
        hint="A broadcast returns rank 0's array on every rank. Copy it into the tensor's own data, in place; "
        "assigning to a name inside your function changes no parameter.",
        uses=("Tensor", "broadcast_tensors"),
        snippet=WEIGHTS + "def program(rank, arrays):\n"
        "    tensors = leaves(arrays)\n"
        "    broadcast_tensors(tensors, rank)\n"
        "    return [one.detach() for one in tensors]\n" + RUN,
    ),
    check_ranks(
        name="loss_weights",
        title="Weights of the ranks' mean losses",
        points=7,
        cases=(
            Case("two ranks, six tokens and two", {"tokens": [[6], [2]]}),
            Case("two micro-batches each", {"tokens": [[3, 5], [4, 4], [1, 7]]}),
            Case("a rank without micro-batches", {"tokens": [[2, 1], []]}),
            Case("billions of tokens", {"tokens": [[2_500_000_001, 8], [1_000_000_007], []]}),
            *draw_cases(
                {"p": Range(1, 4), "most": Range(1, 9)}, public=3, hidden=1, p=Range(5, 6), most=Range(100, 10**6)
            ),
        ),
        inputs=draw.draw_counts,
        run=calls.loss_weights,
        expect=draw.expect_weights,
        first_hint="How many tokens do all ranks have together? The weights of all micro-batches add up to p.",
        hint="One all_reduce of this rank's own sum gives T. The mean over ranks divides by p, so a micro-batch of t "
        "tokens needs the weight t·p/T.",
        uses=("loss_weights",),
        snippet=SPLIT + "def program(rank, arrays):\n"
        '    return loss_weights(arrays["tokens"][0].tolist(), rank)\n' + RUN,
    ),
    check_ranks(
        name="backward_together",
        title="Gradients of the mean over all tokens, on your engine",
        points=6,
        cases=(
            Case("six tokens and two", {"tokens": [6, 2], "shapes": [(2, 2), (3,), (1,)]}),
            Case(
                "parameters that no rank uses, two of a shape",
                {"tokens": [3, 1], "shapes": [(2,), (2,), (3,)], "not_used": [(0, 0), (1, 0), (0, 1), (1, 1)]},
            ),
            Case("a rank uses no parameter", {"tokens": [2, 3], "shapes": [(2,), (1,)], "not_used": [(1, 0), (1, 1)]}),
            Case("a transposed matrix, no elements, no axes", {"tokens": [1, 3], **ODD_SHAPES, "not_used": [(0, 1)]}),
            *draw_cases(
                {"p": Range(1, 4), "count": Range(2, 4), "float32": Range(0, 1), "unused": Range(0, 4)},
                public=3,
                hidden=1,
                p=Range(5, 6),
                count=Range(5, 7),
                largest=7,
            ),
        ),
        inputs=draw.draw_losses,
        run=calls.backward_and_average,
        expect=draw.expect_gradients,
        first_hint="Three things happen one after the other: weight the loss, backward pass, average. Which changes "
        "the values?",
        hint="loss_weights gives this rank's factor: multiply the loss by it before backward(). Then concatenate all "
        "gradients, flattened (zeros for None), all_reduce, divide by group.size, split, reshape.",
        uses=("Tensor", "backward_and_average"),
        snippet=WEIGHTS + "def program(rank, arrays):\n"
        "    weights = [Tensor(one.detach(), requires_grad=True) for one in leaves(arrays)]\n"
        "    loss = Tensor(torch.zeros((), dtype=weights[0].data.dtype), requires_grad=True)\n"
        "    for i, weight in enumerate(weights):\n"
        '        if arrays["used"][i]:\n'
        '            loss = loss + (weight * weight * Tensor(torch.from_numpy(arrays[f"x{i}"]))).sum()\n'
        '    backward_and_average(loss, int(arrays["tokens"]), weights, rank)\n'
        "    return [weight.grad for weight in weights]\n" + RUN,
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
        inputs=draw.draw_sizes,
        run=calls.assign_buckets,
        expect=draw.expect_buckets,
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
            Case("two ranks, one bucket", {"p": 2, "shapes": [(2,), (3,)], "bucket_bytes": 1000}),
            Case("buckets of two layers", {"p": 2, "shapes": [(2,), (1,), (3,), (2,), (1,)], "bucket_bytes": 40}),
            Case(
                "a rank uses none of a bucket",
                {"p": 3, "shapes": [(2,), (2,), (1,)], "bucket_bytes": 16, "not_used": [(0, 2), (2, 1)]},
            ),
            Case(
                "one rank's last layer is the other's first",
                {"p": 2, "shapes": [(2,), (3,), (2,), (1,), (2,)], "bucket_bytes": 8, "reversed": True},
            ),
            Case(
                "layers that no rank uses, other ones in each step",
                {
                    "p": 2,
                    "steps": 4,
                    "shapes": [(2,), (2,), (1,), (3,)],
                    "bucket_bytes": 40,
                    "not_used": [(0, 0, 0), (1, 0, 0), (1, 2, 1), (1, 1, 2), (1, 0, 2)],
                },
            ),
            Case(
                "parameters that start as zeros, a gradient that stays zero",
                {"p": 2, "shapes": [(2,), (), (), (2,)], "bucket_bytes": 16, "spread": 0.0, "zeros": [3]},
            ),
            Case("a transposed matrix, no elements, no axes", {"p": 2, "bucket_bytes": 32, **ODD_SHAPES}),
            Case(
                "float16",
                {"p": 2, "steps": 1, "shapes": [(3,), (2,)], "bucket_bytes": 4, "spread": 0.0, "dtype": "float16"},
            ),
            *draw_cases(
                {
                    "p": Range(1, 3),
                    "count": Range(3, 5),
                    "bucket_bytes": Range(1, 64),
                    "shuffled": 1,
                    "unused": Range(0, 2),
                },
                public=4,
                hidden=1,
                p=Range(5, 6),
                count=Range(7, 10),
            ),
        ),
        inputs=draw.draw_chain,
        run=calls.ddp,
        expect=draw.expect_chain,
        compare=compare_sending,
        first_hint="Follow one bucket: which hook completes it, which buckets must have been averaged before, and what "
        "happens if a hook is never called?",
        hint="Collect in the hook which parameters are ready. While all parameters of the next bucket in order are "
        "among them, average it. finish_gradient_synchronization() averages the remaining ones, with zeros for a grad "
        "that is None, and forgets what was ready.",
        uses=("DDP",),
        snippet=WEIGHTS + "def program(rank, arrays):\n"
        "    weights = leaves(arrays)\n"
        "    h = torch.ones((), dtype=weights[0].dtype, requires_grad=True) * 1\n"
        '    ddp = DDP(weights, rank, int(arrays["bucket_bytes"]))\n'
        '    signs = arrays["deferred"].tolist()  # the check multiplies gradients by these on their way\n'
        '    for i in arrays["order"].tolist():\n'
        "        h.register_hook(lambda gradient, i=i: gradient * signs[i])\n"
        '        if arrays["used"][0, i]:\n'
        '            h = h * (1 + (weights[i] * torch.from_numpy(arrays[f"x{i}"])[0]).sum())\n'
        "    (h * signs[len(weights)]).backward()\n"
        "    ddp.finish_gradient_synchronization()\n"
        "    return [weight.grad for weight in weights]\n" + RUN,
    ),
    check_ranks(
        name="accumulate",
        title="Micro-batches that communicate once",
        points=11,
        cases=(
            Case("three micro-batches", SMALL | {"tokens": [[1, 4, 2], [3, 3, 1]], "bucket_bytes": 1}),
            Case("unequal numbers", SMALL | {"tokens": [[2], [1, 3], [4, 1, 1]], "bucket_bytes": 64}),
            Case("a micro-batch of padding only, a rank of padding only", SMALL | {"tokens": [[2, 0], [0, 0], [3]]}),
            Case("a rank without micro-batches", SMALL | {"tokens": [[2, 1], []], "weights": 1, "width": 3}),
            Case(
                "the last micro-batch does not use a parameter",
                SMALL | {"tokens": [[2, 3], [1, 2]], "weights": 3, "unused_in": [(0, 1, 2), (1, 1, 0)]},
            ),
            Case("one function for three micro-batches", SMALL | {"tokens": [[2, 2, 2], [3]], "alike": True}),
            Case("three tokens among billions, and far off", SMALL | {"tokens": [[2, 1], [3]], "outlier": True}),
            Case("losses of zero, and NaN", SMALL | {"tokens": [[2, 1], [3, 1]], "values": [0.0, np.nan]}),
            *draw_cases(BATCHES, public=2, hidden=1, p=5, weights=5, most=20),
        ),
        inputs=draw.draw_batches,
        run=calls.accumulate_gradients,
        expect=draw.expect_batches,
        compare=compare_sending,
        first_hint="Which weight does each loss need, after which one may gradients be sent, and what is the mean over "
        "no tokens?",
        hint="Leave out micro-batches whose weight is 0. Run all that remain but the last under no_sync(), multiply "
        "each loss by its weight before backward(), and finish. If torch says that something was modified in place, a "
        "loss was computed before the backward pass of the one before.",
        uses=("DDP", "accumulate_gradients"),
        snippet=CALLS
        + "program = lambda rank, given: calls.accumulate_gradients(mine, rank, given['deferred'].item, given)\n"
        "run(program, split_ranks(given))",
    ),
    check_ranks(
        name="sharded_optimizer",
        title="ZeRO-1: every rank keeps a shard of the states",
        points=13,
        cases=(
            Case("two ranks", {"p": 2, "shapes": [(2,), (2, 2)]}),
            Case("more ranks than elements", {"p": 4, "shapes": [(2,), (1,)]}),
            Case(
                "in each step another gradient is None",
                {"p": 2, "shapes": [(3,), (2,)], "not_used": [(1, 0, 1), (0, 1, 2)]},
            ),
            Case("a transposed matrix, no elements, no axes", {"p": 2, **ODD_SHAPES, "not_used": [(0, 0)]}),
            *draw_cases(
                {"p": Range(1, 4), "count": Range(2, 4), "float32": Range(0, 1), "unused": Range(0, 3)},
                public=4,
                hidden=1,
                p=Range(5, 6),
                count=Range(5, 7),
                largest=7,
            ),
        ),
        inputs=draw.draw_steps,
        run=calls.sharded_optimizer,
        expect=draw.expect_steps,
        first_hint="Which elements does this rank's optimizer update, whose gradients does it need, and which ranks "
        "need its weights?",
        hint="Concatenate all parameters, flattened; a copy of this rank's chunk goes to optimizer_class. Gradients: "
        "concatenated alike, reduce_scatter, divided by group.size. After the step: all_gather the shards, split.",
        uses=("ShardedOptimizer",),
        snippet=MOMENTUM + "def program(rank, arrays):\n"
        "    weights = leaves(arrays)\n"
        '    optimizer = ShardedOptimizer(weights, Momentum, rank, lr=float(arrays["lr"]), most=10**6)\n'
        "    for i, weight in enumerate(weights):\n"
        '        if arrays["used"][0, i]:\n'
        '            weight.grad = torch.from_numpy(arrays[f"g{i}"])[0].to(weight.dtype)\n'
        "    optimizer.reduce_gradients()\n"
        "    optimizer.step()\n"
        "    return [weight.detach() for weight in weights]\n" + RUN,
    ),
    check_ranks(
        name="clip_gradient",
        title="Clipping by the norm over all ranks",
        points=6,
        cases=(
            Case("two ranks, clipped to half", {"lengths": [3, 4], "percent": 50}),
            Case("within the limit", {"lengths": [3, 2, 2], "percent": 120}),
            Case("a gradient of zeros, and a limit of 0", {"lengths": [2, 1], "spread": 0.0, "limit": 0.0}),
            Case("no limit", {"lengths": [2, 3], "limit": np.inf}),
            Case("a limit of 0", {"lengths": [2, 3], "limit": 0.0}),
            Case("tiny numbers", {"lengths": [3, 2], "percent": 50, "unit": 1e-40}),
            *draw_cases(
                {"p": Range(1, 4), "largest": Range(2, 6), "percent": Range(10, 130), "spread": 0.2},
                public=3,
                hidden=1,
                p=Range(5, 6),
                largest=30,
            ),
        ),
        inputs=draw.draw_clipped,
        run=calls.clip_grad_norm,
        expect=draw.expect_clipped,
        compare=partial(compare_run, compare=close),  # nothing cancels, and tiny numbers must be as near
        first_hint="What do the other ranks need to know of each shard so that all of them get the same norm?",
        hint="Add up the squares of all shards' gradients, all_reduce this one number (a tensor of one element), take "
        "its root. Scale only if the norm exceeds max_norm, in place.",
        uses=("clip_grad_norm",),
        snippet=SPLIT + "def program(rank, arrays):\n"
        '    part = torch.from_numpy(arrays["part"])\n'
        "    shard = torch.zeros_like(part)\n"
        "    shard.grad = part.clone()\n"
        '    return clip_grad_norm([shard], float(arrays["max_norm"]), rank), shard.grad\n' + RUN,
    ),
    check_ranks(
        name="sharded_layer",
        title="ZeRO-3: weights that are complete only while they are used",
        points=16,
        cases=(
            Case("two ranks, one layer", {"p": 2, "depth": 1, "width": 2, "steps": 1}),
            Case("more ranks than elements, a bias without axes", {"p": 5, "depth": 2, "width": 1}),
            Case(
                "some parameters require no gradient; one is empty, one transposed",
                {"p": 2, "depth": 2, "width": 2, "form": 1},
            ),
            Case("residual connections", {"p": 2, "depth": 2, "width": 2, "residual": True}),
            Case(
                "an x of one axis that requires no gradient", {"p": 2, "depth": 1, "width": 2, "axes": 1, "x_wants": 0}
            ),
            Case("one rank, layers of one parameter", {"p": 1, "depth": 2, "width": 2, "form": 2}),
            Case("a deep stack", {"p": 3, "depth": 12, "width": 32, "steps": 1, "x_wants": 0}),
            *draw_cases(
                {
                    "p": Range(1, 3),
                    "depth": Range(1, 2),
                    "width": Range(1, 3),
                    "axes": Range(2, 3),
                    "passes": Range(1, 2),
                    "backward": Range(1, 2),
                },
                public=4,
                hidden=1,
                p=5,
                width=7,
                axes=2,
                form=3,
            ),
        ),
        inputs=draw.draw_layers,
        run=calls.fsdp_unit,
        expect=draw.expect_layers,
        first_hint="Which of forward and backward pass needs complete weights, and what does autograd hold in between?",
        hint="forward saves x and the unit, nothing that was gathered. backward: unshard(), detach x and parameters, "
        "let them require gradients, compute under enable_grad, get their gradients, and reduce_scatter those of "
        "the parameters, concatenated, divided by the number of ranks.",
        uses=("FSDPUnit",),
        time_limit_s=10.0,
        memory_bytes=BUDGET_BYTES,
        snippet=CALLS + "run(lambda rank, given: calls.fsdp_unit(mine, rank, given), split_ranks(given))",
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
        inputs=draw.draw_cost,
        run=calls.zero_step_cost,
        expect=draw.expect_cost,
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
            Case("two ranks", {"p": 2, "shapes": [(2,), (3,)], "steps": 4, "stop": 2}),
            Case("a frozen parameter", {"p": 3, "shapes": [(3,), (2, 2)], "steps": 3, "stop": 1, "frozen": 1}),
            Case("more ranks than elements", {"p": 3, "shapes": [(2,)], "steps": 2, "stop": 1}),
            Case("saved before the first step", {"p": 2, "shapes": [(2,), (1,)], "steps": 2, "stop": 0}),
            *draw_cases(
                {"p": Range(1, 3), "count": Range(1, 3), "steps": 3, "stop": Range(1, 2), "eager": Range(0, 1)},
                public=1,
                hidden=1,
                p=5,
                momenta=Range(2, 4),
            ),
        ),
        inputs=draw.draw_run,
        run=calls.resume,
        expect=draw.expect_run,
        first_hint="Weights, momentum, its count of steps, position, random numbers: which of them is not as before?",
        hint="Save a copy of each tensor, or later steps change it. To load: copy into the shard, put copies of the "
        "states under the new shard, set the random state, and gather the weights.",
        uses=("ShardedOptimizer", "save_state", "load_state"),
        snippet=CALLS + "run(lambda rank, given: calls.resume(mine, rank, given), split_ranks(given))",
    ),
    Check(
        name="reshard",
        title="A checkpoint for another number of ranks",
        points=6,
        cases=(
            Case("from two to three", {"n": 7, "old": 2, "size": 3}),
            Case("from more ranks than elements", {"n": 2, "old": 4, "size": 3}),
            Case("as many as before", {"n": 5, "old": 2, "size": 2}),
            Case("states of many dtypes", {"n": 24, "old": 2, "size": 5, "kinds": 1}),
            *draw_cases(
                {"n": Range(1, 9), "old": Range(1, 4), "size": Range(1, 5), "kinds": Range(0, 1)},
                public=3,
                hidden=1,
                n=Range(60, 200),
                old=Range(5, 9),
                size=Range(5, 11),
            ),
        ),
        inputs=draw.draw_states,
        run=calls.reshard,
        expect=draw.expect_states,
        compare=close,
        first_hint="There are three kinds of entries: one per rank, the same on all ranks, and sharded ones.",
        hint="Go through the names. Sharded entries: torch.cat over the states in order, then split_chunks again. All "
        "others are copied; random states come from the old rank r modulo the number of old ranks.",
        uses=("reshard",),
        snippet='ranks = sum(name.startswith("weights of ") for name in given)\n'
        'names = [name.removesuffix(" of 0") for name in given if name.endswith(" of 0")]\n'
        'states = [{name: torch.from_numpy(given[f"{name} of {rank}"]) for name in names} for rank in range(ranks)]\n'
        "for state in states:\n"
        '    state |= {name: one.bfloat16() for name, one in state.items() if name == "bfloat16"}\n'
        'reshard(states, int(given["size"]))',
    ),
)
LAB = Lab("data-parallel", repeat_first_case(CHECKS))
