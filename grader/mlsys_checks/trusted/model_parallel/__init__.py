"""Checks of lab 09: names, points, hints, and the ranges from which cases are drawn.

generators   cases of each check, oracles on one rank, limits on traffic
"""

from __future__ import annotations

from functools import partial
from typing import Any

from mlsys_checks.sandboxed import model_parallel as calls
from mlsys_checks.sandboxed.spec import Case, Check, Lab, Range, draw_cases
from mlsys_checks.trusted.compare import close
from mlsys_checks.trusted.model_parallel import generators as draw
from mlsys_checks.trusted.model_parallel.generators import write_ranks
from mlsys_checks.trusted.repeats import repeat_first_case
from mlsys_checks.trusted.traffic import check_ranks, compare_run

LINEAR = (
    'weight, bias = (nn.Parameter(torch.from_numpy(arrays[name]).clone()) for name in ("weight", "bias"))',
    "linear = nn.Linear(weight.shape[1], weight.shape[0]).double()",
    "linear.weight, linear.bias = weight, bias",
    'x = torch.from_numpy(arrays["x"]).clone().requires_grad_(bool(arrays["x_wants"]))',
)
BACKWARD = 'y.backward(torch.from_numpy(arrays["gradient"]))'
ELSEWHERE = '(x.sum() if arrays["x_wants"] else torch.zeros((), requires_grad=True)).backward()  # from elsewhere'
GRADIENTS = "y.detach(), x.grad, layer.weight.grad, layer.bias.grad"

LAYER = {"p": Range(1, 5), "t": Range(1, 5), "i": Range(1, 5), "o": Range(1, 5), "data": Range(0, 1)}
TWO = {"p": 2, "t": 3, "i": 2, "o": 2, "data": 0}
LARGER = {"p": Range(4, 7), "t": Range(3, 9)}


def _sides(inputs: Any, run: Any, expect: Any) -> dict[str, Any]:
    return {"inputs": inputs, "run": run, "expect": expect}


def _layer_cases(**wide: Any) -> tuple[Case, ...]:
    return (
        Case("two ranks", TWO),
        Case("an x that is data and needs no gradient", {**TWO, "data": 1}),
        Case("three ranks", {**TWO, "p": 3, "i": 4, "o": 3}),
        *draw_cases(LAYER, public=4, hidden=2, **LARGER, **wide),
    )


TENSOR = (
    check_ranks(
        name="take_part",
        title="Shards of a parameter",
        points=3,
        cases=(
            Case("columns for two ranks", {"p": 2, "axes": 2, "length": 2, "dim": 1}),
            Case("rows for two ranks", {"p": 2, "axes": 2, "length": 2, "dim": 0}),
            Case("the last of three dimensions", {"p": 2, "axes": 3, "length": 2, "dim": 2}),
            *draw_cases(
                {"p": Range(1, 5), "axes": Range(1, 3), "length": Range(1, 4)}, public=4, hidden=2, p=Range(4, 8)
            ),
        ),
        **_sides(draw.draw_parameter, calls.take_part, draw.expect_shards),
        first_hint="Along which dimension is the parameter cut, which shard is this rank's? Is it a view or a copy?",
        hint="chunk along dim gives p views. Detach from the full parameter, clone this rank's view, and make an "
        "nn.Parameter of it.",
        uses=("shard_parameter",),
        snippet=write_ranks(
            ['parameter = torch.from_numpy(arrays["parameter"])'],
            'shard_parameter(parameter, int(arrays["dim"]), group).detach()',
        ),
    ),
    check_ranks(
        name="column_linear",
        title="A column-parallel layer",
        points=6,
        cases=_layer_cases(o=Range(3, 8)),
        **_sides(draw.draw_columns, calls.column_linear, draw.expect_columns),
        first_hint="Which gradient does a rank know only in part: that of x, of its weight, or of its bias?",
        hint="The forward pass is a product of this rank alone. But every rank uses x, so the gradients of its copies "
        "must be summed: the copy region is the identity forward and an all-reduce backward.",
        uses=("ColumnParallelLinear", "CopyToTensorParallelRegion"),
        snippet=write_ranks(
            [
                *LINEAR,
                "layer = ColumnParallelLinear(linear, group)",
                "y = layer(copy_to_tensor_parallel_region(x, group))",
                BACKWARD,
                ELSEWHERE,
            ],
            GRADIENTS,
        ),
    ),
    check_ranks(
        name="row_linear",
        title="A row-parallel layer",
        points=6,
        cases=_layer_cases(i=Range(3, 8)),
        **_sides(draw.draw_rows, calls.row_linear, draw.expect_rows),
        first_hint="What is the sum of the ranks' products, how often is the bias in it, and what is the gradient of "
        "each product?",
        hint="The reduce region sums this rank's product alone over the ranks, and passes the gradient through "
        "unchanged; the bias is added to its result.",
        uses=("RowParallelLinear", "ReduceFromTensorParallelRegion"),
        snippet=write_ranks(
            [*LINEAR, "layer = RowParallelLinear(linear, group)", "y = layer(x)", BACKWARD, ELSEWHERE], GRADIENTS
        ),
    ),
    check_ranks(
        name="parallel_mlp",
        title="An MLP of both layers",
        points=5,
        cases=(
            Case("two ranks", {"p": 2, "t": 3, "d": 2, "f": 2, "o": 3}),
            Case("three ranks, equal widths", {"p": 3, "t": 2, "d": 6, "f": 2, "o": 6}),
            *draw_cases(
                {"p": Range(1, 4), "t": Range(1, 5), "d": Range(1, 6), "f": Range(1, 5), "o": Range(1, 6)},
                public=3,
                hidden=1,
                p=Range(4, 6),
            ),
        ),
        **_sides(draw.draw_mlp, calls.parallel_mlp, draw.expect_mlp),
        first_hint="Which layer is sharded by columns, which by rows, where is the ReLU, and through what does x go "
        "first?",
        hint="x goes through the copy region, the column-parallel layer and the ReLU; what this rank has then is the "
        "input of the row-parallel layer.",
        uses=("ParallelMLP",),
        snippet=write_ranks(
            [
                'full = torch.nn.ModuleDict({name: nn.Linear(1, 1) for name in ("up", "down")})',
                "for name, parameter in full.named_parameters():",
                "    parameter.data = torch.from_numpy(arrays[name]).clone()",
                'mlp = ParallelMLP(full["up"], full["down"], group)',
                'x = torch.from_numpy(arrays["x"][0]).clone().requires_grad_()',
                "y = mlp(x)",
                'y.backward(torch.from_numpy(arrays["gradient"][0]))',
                "x.sum().backward()  # from elsewhere",
            ],
            "y.detach(), x.grad",
        ),
    ),
)

LOGITS = {"p": Range(1, 5), "t": Range(1, 9), "width": Range(1, 8)}
LOSS = check_ranks(
    name="cross_entropy",
    title="Vocabulary-parallel cross-entropy",
    points=14,
    cases=(
        Case("two ranks", {"p": 2, "t": 4, "width": 3}),
        Case("a wide vocabulary", {"p": 2, "t": 3, "width": 20}),
        Case("large logits", {"p": 2, "t": 3, "width": 3, "spread": 400.0}),
        Case("tokens whose logits lie far apart", {"p": 2, "t": 3, "width": 3, "offset": -30000.0}),
        Case("one logit of each token stands out", {"p": 3, "t": 5, "width": 3, "towers": True}),
        Case("a padded vocabulary", {"p": 2, "t": 3, "width": 4, "padded": 2}),
        *draw_cases(LOGITS, public=4, hidden=2, p=Range(3, 6), width=Range(5, 30), spread=300.0, towers=True, padded=3),
    ),
    **_sides(draw.draw_logits, calls.cross_entropy, draw.expect_loss),
    compare=partial(compare_run, compare=draw.compare_loss),
    first_hint="Which of a token's three numbers does each rank know in part, and relative to which maximum?",
    hint="Gather the ranks' maxima and take the largest of each token. The sums of exponentials and the target's logit "
    "(zero on ranks that do not have it) go through one all-reduce. Backward: softmax of this rank's columns, less one "
    "at local targets, times the incoming gradient, over T.",
    uses=("vocab_parallel_cross_entropy",),
    snippet=write_ranks(
        [
            'logits = torch.from_numpy(arrays["logits"]).clone().requires_grad_()',
            'loss = vocab_parallel_cross_entropy(logits, torch.from_numpy(arrays["targets"]), group)',
            '(loss * float(arrays["gradient"])).backward(retain_graph=True)',
            '(loss * float(arrays["again"])).backward()',
        ],
        "loss.item(), logits.grad",
    ),
)

STAGES = {"p": Range(1, 4), "m": Range(1, 6), "width": 0, "hidden": 5, "order": Range(0, len(draw.ORDERS) - 1)}
THREE = {**STAGES, "p": 3, "m": 4}
WIDE = {**STAGES, "p": 2, "m": 16, "width": 1, "hidden": 1200, "rows": 4, "order": 0}
"""Hidden activations of 38,400 bytes for each micro-batch, far wider than what a rank sends."""
STAGE_BYTES = 340_000
"""Weights and gradients (38 KB), two micro-batches in flight and work on one: 194 KB under 1F1B. Running all sixteen
forward passes first takes more than 600 KB."""
PIPELINE = (
    Check(
        name="schedule",
        title="The 1F1B schedule",
        points=10,
        cases=(
            Case("two ranks, three micro-batches", {"ranks": 2, "micro_batches": 3}),
            Case("four ranks, eight micro-batches", {"ranks": 4, "micro_batches": 8}),
            Case("fewer micro-batches than ranks", {"ranks": 5, "micro_batches": 2}),
            Case("as many micro-batches as ranks", {"ranks": 3, "micro_batches": 3}),
            Case("one rank", {"ranks": 1, "micro_batches": 4}),
            *draw_cases(
                {"ranks": Range(1, 6), "micro_batches": Range(1, 12)}, public=12, hidden=6, micro_batches=Range(9, 25)
            ),
        ),
        **_sides(draw.draw_schedule, calls.schedule, draw.expect_schedule),
        compare=draw.compare_schedules,
        first_hint="How many micro-batches can rank r have admitted when the first one returns, and what follows then?",
        hint="Rank r warms up with ranks - 1 - r forward passes, or all of them if there are fewer. Each further "
        "forward pass is followed by the oldest backward pass; the remaining ones come last.",
        uses=("one_forward_one_backward",),
        snippet="[[(('forward', 'backward').index(kind), i) for kind, i, *_ in actions]\n"
        " for actions in one_forward_one_backward(ranks, micro_batches)]",
    ),
    partial(check_ranks, memory_bytes=STAGE_BYTES)(
        name="run_stage",
        title="A pipeline step",
        points=11,
        cases=(
            Case("two ranks, 1F1B", {**STAGES, "p": 2, "m": 3, "order": 0}),
            *(Case(f"three ranks, {kind}", {**THREE, "order": i}) for i, kind in enumerate(draw.ORDERS)),
            Case("wide layers, many micro-batches", WIDE),
            *draw_cases(STAGES, public=3, hidden=2, m=Range(8, 17)),
        ),
        **_sides(draw.draw_stages, calls.run_stage, draw.expect_stages),
        first_hint="Follow one micro-batch: where does its x come from, where its gradient, which rank waits for which "
        "one, and what is released when?",
        hint="A received activation needs requires_grad_(), or x.grad stays None. Send by isend, and wait for all "
        "requests after the last action. Take x and the output out of what you keep when their micro-batch goes back.",
        uses=("Pipeline", "Action"),
        snippet=write_ranks(
            [
                'first, second = (torch.from_numpy(arrays[name]) for name in ("first", "second"))',
                "first, second = first.clone().requires_grad_(), second.clone().requires_grad_()",
                'kinds = ("forward", "backward")',
                'orders = [arrays[f"actions{r}"].tolist() for r in range(group.size)]',
                "schedule = [[Action(kinds[kind], i) for kind, i in order] for order in orders]",
                "nothing = [None] * (len(orders[0]) // 2)",
                'inputs = [torch.from_numpy(arrays[name]) for name in arrays if name[0] == "x"] or nothing',
                'targets = [torch.from_numpy(arrays[name]) for name in arrays if name[:6] == "target"] or nothing',
                "chunk = lambda x: (x @ first).tanh() @ second",
                "loss = lambda output, target: (output * target).sum(1).square().mean()",
                "mean = Pipeline([chunk], group).step(schedule, inputs, targets, loss)",
            ],
            "mean, first.grad, second.grad",
        ),
    ),
)

HEADS = {"p": Range(1, 5), "b": Range(1, 2), "n": Range(1, 3), "t": Range(1, 4), "h": Range(1, 4)}
HEADS |= {"division": Range(0, len(draw.DIVISIONS) - 1)}
FEW = {"p": 3, "b": 1, "n": 2, "t": 4, "h": 3, "division": 0}
LONG = {"p": 10, "b": 1, "n": 1, "t": 16, "h": 144, "division": 0}
RING_BYTES = 450_000
"""Room on each of ten ranks for queries, keys and values (55 KB), for its block (37 KB), one in flight and work on one:
a ring holds 300 KB, or 410 KB with copies of its blocks. Gathering all ten takes 510 KB at least."""
CONTEXT = (
    Check(
        name="zigzag",
        title="Zigzag order",
        points=3,
        cases=(
            Case("eight tokens for two ranks", {"ranks": 2, "length": 2}),
            *draw_cases({"ranks": Range(1, 6), "length": Range(1, 5)}, public=4, hidden=1, ranks=Range(6, 9)),
        ),
        **_sides(draw.draw_sequence, calls.zigzag, draw.expect_zigzag),
        compare=close,
        first_hint="Into how many chunks is the sequence cut, and which two of them does rank r have?",
        hint="There are twice as many chunks as ranks. The last chunk belongs to the rank that has the first one, the "
        "last but one to the rank that has the second.",
        uses=("zigzag_positions",),
        snippet="zigzag_positions(tokens, ranks)",
    ),
    partial(check_ranks, memory_bytes=RING_BYTES)(
        name="ring_attention",
        title="Ring attention",
        points=14,
        cases=(
            Case("two ranks", {**FEW, "p": 2, "n": 1, "t": 2}),
            *(Case(f"three ranks, {kind}", {**FEW, "division": i}) for i, kind in enumerate(draw.DIVISIONS)),
            Case("large scores", {**FEW, "spread": 30.0}),
            Case("scores that grow along the sequence", {**FEW, "slope": (0.1, 900.0), "division": 1}),
            Case("scores that fade along the sequence", {**FEW, "slope": (900.0, 0.1), "division": 2}),
            Case("a first score far below all others", {**FEW, "p": 2, "first": -1e12}),
            Case("a long sequence", LONG),
            *draw_cases(HEADS, public=4, hidden=2, p=Range(5, 9), spread=5.0),
        ),
        **_sides(draw.draw_heads, calls.ring_attention, draw.expect_heads),
        first_hint="Whose block is here at step s, which of its keys may a query see, and what are the earlier sums "
        "relative to?",
        hint="Post isend and irecv of the block before you compute on it (not in the last step), and wait afterwards. "
        "At step s the block is that of the rank s to the left. Mask by positions, take the new maximum, multiply both "
        "sums by exp(old - new), then add the block's terms.",
        uses=("ring_attention",),
        snippet=write_ranks(
            [
                'q, k, v = (torch.from_numpy(arrays[name]) for name in "qkv")',
                'positions = [torch.from_numpy(arrays[f"positions{r}"]) for r in range(group.size)]',
            ],
            "ring_attention(q, k, v, group, positions)",
        ),
    ),
)

ROUTES = {"n": Range(1, 12), "experts": Range(1, 7), "k": Range(1, 4), "quarters": Range(0, 7)}
TOKENS = {
    "p": Range(1, 4),
    "local": Range(1, 3),
    "n": 6,
    "k": Range(1, 3),
    "quarters": Range(0, 6),
    "width": Range(1, 4),
}
PAIR = {**TOKENS, "p": 2, "local": 2, "k": 2, "quarters": 0, "width": 3}
EXPERTS = (
    check_ranks(
        name="all_to_all",
        title="All-to-all",
        points=3,
        cases=(
            Case("two ranks", {"p": 2, "rows": 3, "width": 2}),
            Case("three ranks", {"p": 3, "rows": 4, "width": 2}),
            *draw_cases(
                {"p": Range(1, 5), "rows": Range(0, 4), "width": Range(1, 3)}, public=4, hidden=1, p=Range(5, 8)
            ),
        ),
        **_sides(draw.draw_parts, calls.all_to_all, draw.expect_received),
        first_hint="Which part does this rank send in each step, from which rank does it receive? Is its own part "
        "a copy?",
        hint="In step s, isend to the rank s to the right, receive from the rank s to the left, then wait for the "
        "request. This rank's own part is cloned.",
        uses=("all_to_all",),
        snippet=write_ranks(
            ['parts = [torch.from_numpy(arrays[f"part{r}"]) for r in range(group.size)]'], "all_to_all(group, parts)"
        ),
    ),
    Check(
        name="route",
        title="Routing with a capacity",
        points=6,
        cases=(
            Case("four tokens, capacity 2", {"n": 4, "experts": 3, "k": 2, "quarters": 3}),
            Case("no limit", {"n": 5, "experts": 4, "k": 2, "quarters": 0}),
            Case("every first choice is the same", {"n": 7, "experts": 4, "k": 2, "quarters": 4, "liked": 1}),
            *draw_cases(ROUTES, public=10, hidden=4, n=Range(20, 60)),
            Case("more than 255 rows", {"n": 300, "experts": 3, "k": 2, "quarters": 4, "liked": 0}, hidden=True),
        ),
        **_sides(draw.draw_expert_ids, calls.route, draw.expect_routing),
        compare=close,
        first_hint="In which order do choices ask for capacity, and how many earlier ones want the same expert?",
        hint="Line up all first choices, then all second ones. A stable argsort by expert keeps this order for each "
        "expert; a row is kept if its position among its expert's rows is below the capacity.",
        uses=("Routing", "route"),
        snippet="routing = route(expert_ids, num_experts, *given['capacity_factor'].tolist())\n"
        "routing.token_indices, routing.topk_index, routing.tokens_per_expert, routing.num_dropped",
    ),
    check_ranks(
        name="dispatch",
        title="Dispatch and combine",
        points=9,
        cases=(
            Case("two ranks, an expert each", {**PAIR, "local": 1, "k": 1, "exactly": 3}),
            Case("two experts per rank and token", PAIR),
            Case("three ranks, dropped choices", {**PAIR, "p": 3, "quarters": 3, "exactly": 5}),
            Case("a rank without tokens", {**PAIR, "exactly": 4, "empty": True}),
            Case("every first choice is the same", {**PAIR, "liked": 3, "exactly": 5}),
            Case("more than 255 rows for an expert", {**PAIR, "k": 1, "liked": 1, "exactly": 260}),
            *draw_cases(TOKENS, public=4, hidden=2, p=Range(3, 6), n=12),
        ),
        **_sides(draw.draw_dispatch, calls.dispatch, draw.expect_combined),
        first_hint="In which order do rows leave, how does a rank know which expert each arriving row wants, and in "
        "which order do results return?",
        hint="Rows are sorted by expert, so those for one rank lie together. Send the counts per expert first, then "
        "the rows; run each expert on its rows; send the results back as they came. Weight and sum them by token.",
        uses=("Routing", "dispatch_and_combine"),
        snippet=write_ranks(
            [
                'names = ("token_indices", "topk_index", "tokens_per_expert")',
                'routing = Routing(*(torch.from_numpy(arrays[name]) for name in names), int(arrays["num_dropped"]))',
                'tokens, weights = (torch.from_numpy(arrays[name]) for name in ("tokens", "weights"))',
                'matrices = torch.from_numpy(arrays["matrices"])',
                "experts = [lambda rows, matrix=matrix: (rows @ matrix).tanh() for matrix in matrices]",
            ],
            "dispatch_and_combine(tokens, weights, routing, experts, group)",
        ),
    ),
)

SMALL = {"layers": 24, "d_model": 2048, "d_ff": 5632, "node": 8, "batch": 64, "tokens": 2048}
LARGE = {"layers": 80, "d_model": 8192, "d_ff": 28672, "node": 8, "batch": 256, "tokens": 4096}
NODES_OF_SIX = {"layers": 36, "d_model": 3072, "d_ff": 8192, "node": 6, "batch": 4, "tokens": 2048}
ONLY = {"layers": 7, "d_model": 1280, "d_ff": 3456, "node": 5, "batch": 15, "tokens": 1024, "devices": 175}
FULL = {"layers": 8, "d_model": 1024, "d_ff": 4096, "node": 8, "batch": 2, "tokens": 1024, "devices": 1}
FULL_BYTES = 16 * 2**27 + 34 * 2**20 * 8
"""Bytes of 2²⁷ parameters on one GPU, and of the activations of their eight layers."""
LAYOUTS = (
    Check(
        name="step_parts",
        title="Seconds of a step",
        points=6,
        cases=(
            Case("all three kinds", {"node": 8, "t": 4, "p": 4, "d": 8}),
            Case("data parallelism alone", {"node": 8, "t": 1, "p": 1, "d": 32}),
            Case("a pipeline within one node", {"node": 8, "t": 4, "p": 2, "d": 1}),
            *draw_cases({"node": Range(1, 8), "p": Range(1, 8)}, public=9, hidden=4, node=Range(8, 16), p=Range(2, 20)),
        ),
        **_sides(draw.draw_layout, calls.step_parts, draw.expect_seconds),
        compare=close,
        first_hint="Of each part: how many FLOPs or bytes per GPU, how often per step, and over which wires?",
        hint="Each replica runs m = batch / d micro-batches, each stage L/p layers. Of the gradients, the node's "
        "reduce-scatter and all-gather go over links; the g-th part that the d/g nodes all-reduce goes over the "
        "network, and so do a pipeline's activations.",
        uses=("step_seconds", "TransformerConfig", "Machine", "Layout"),
        snippet="step_seconds(\n    TransformerConfig(*sizes.tolist()),\n    Machine(*rates.tolist(), node),\n"
        "    Layout(*layout.tolist()),\n    batch,\n    tokens,\n)",
    ),
    Check(
        name="choose_layout",
        title="The fastest layout that fits",
        points=4,
        cases=(
            Case("a model that fits anywhere", {**SMALL, "devices": 16}),
            Case("a model that must be divided", {**LARGE, "devices": 128}),
            Case("nothing fits", {**LARGE, "devices": 8, "batch": 8}),
            Case("memory that is just enough", {**FULL, "memory_bytes": FULL_BYTES}),
            Case("fewer sequences than devices", {**LARGE, "layers": 8, "devices": 8, "batch": 1}),
            Case("nodes of six", {**NODES_OF_SIX, "devices": 12}),
            Case("no layout divides evenly", {**NODES_OF_SIX, "node": 8, "batch": 8, "devices": 12, "layers": 8}),
            Case("memory for the only layout that divides evenly", {**ONLY, "spare": draw.SLACK}),
            Case("a little less than the only layout needs", {**ONLY, "spare": -draw.SLACK}),
            Case("a large node", {**FULL, "layers": 4, "devices": 64, "node": 16, "batch": 1}),
            Case("a stage for each of many layers", {**FULL, "layers": 96, "devices": 96, "node": 1, "batch": 1}),
            *draw_cases({}, public=12, hidden=12),
        ),
        **_sides(draw.draw_any_cluster, calls.choose_layout, draw.expect_layouts),
        compare=draw.compare_layouts,
        first_hint="Which layouts divide evenly, which of them fit, and which of those takes least time?",
        hint="Go through all t and p that divide evenly; d follows from them. Keep the fastest of those whose "
        "parameters, states and activations together are within memory_bytes.",
        uses=("choose_layout", "step_seconds", "TransformerConfig", "Machine", "Layout"),
        snippet="best = choose_layout(\n    TransformerConfig(*sizes.tolist()), Machine(*rates.tolist(), node), "
        "devices, batch, tokens\n)\n(best.data, best.tensor, best.pipeline) if best else 0",
    ),
)

CHECKS = (*TENSOR, LOSS, *PIPELINE, *CONTEXT, *EXPERTS, *LAYOUTS)
LAB = Lab("model-parallel", repeat_first_case(CHECKS))
