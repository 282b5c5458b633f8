"""Checks of lab 07: points, hints, and ranges from which cases are drawn. `cases` has the generators and oracles."""

from __future__ import annotations

from typing import Any

from mlsys_checks.sandboxed import collectives as calls
from mlsys_checks.sandboxed.spec import Case, Check, Lab, Range, draw_cases
from mlsys_checks.trusted.collectives import cases as draw
from mlsys_checks.trusted.collectives.cases import check_ranks
from mlsys_checks.trusted.compare import close
from mlsys_checks.trusted.repeats import repeat_first_case

SIZES = {"p": Range(2, 8), "size": Range(1, 14)}
LARGER = {"p": Range(3, 12), "size": Range(20, 400)}
SITUATIONS: dict[str, dict[str, Any]] = {
    "six ranks, two elements": {"p": 6, "form": "vector", "size": 2, "dtype": "int64"},
    "one rank": {"p": 1},
    "a transposed matrix of int32": {"form": "transposed", "dtype": "int32", "size": Range(5, 9), "p": Range(3, 6)},
    "a number without axes": {"form": "scalar", "p": Range(3, 6)},
    "a matrix without rows": {"form": "empty", "p": Range(2, 6)},
    "large whole numbers": {"form": "vector", "dtype": "int64", "large": 1, "size": Range(4, 9)},
    "float32": {"dtype": "float32"},
}
"""Sizes that random draws meet rarely, by name."""
UNLIKE: dict[str, dict[str, Any]] = {
    "one rank": {"p": 1},
    "five ranks": {"p": 5, "size": 9},
    "transposed matrices": {"form": "transposed", "unlike": 0, "size": Range(6, 9)},
}


def _make_ranks_check(
    name: str,
    call: str,
    example: dict[str, Any],
    *,
    sizes: dict[str, Any] = SIZES,
    larger: dict[str, Any] = LARGER,
    situations: dict[str, dict[str, Any]] = SITUATIONS,
    **parts: Any,
) -> Check:
    """Return a check of a function that all ranks call; the example and the situations override the sizes."""
    cases = (
        *(Case(kind, {**sizes, **of_kind}) for kind, of_kind in {"a small example": example, **situations}.items()),
        *draw_cases(sizes, public=4, hidden=2, **larger),
    )
    return check_ranks(
        name=name,
        cases=cases,
        inputs=draw.draw_ranks,
        run=getattr(calls, name),
        expect=getattr(draw, f"expect_{name}"),
        uses=(name,),
        describe=draw.render_run(call),
        **parts,
    )


TREES = {**SIZES, "p": Range(2, 10), "numbers": "root"}
PAIRS = {"pairs": Range(1, 3), "size": Range(0, 12), "unlike": 1, "numbers": "pairs"}
CIRCLES = {**SIZES, "unlike": 1, "numbers": "permutation"}
ISLANDS = {"islands": Range(1, 3), "island": Range(1, 4), "size": Range(1, 20)}
OF_ISLANDS = {name: {**sizes, "islands": Range(2, 3), "island": Range(2, 3)} for name, sizes in SITUATIONS.items()}
OF_ISLANDS |= {"one rank": {"islands": 1, "island": 1}, "one island": {"islands": 1, "island": Range(2, 5)}}
OF_ISLANDS |= {"islands of one rank": {"islands": Range(2, 5), "island": 1, "form": "matrix"}}
OF_ISLANDS = {name: {key: size for key, size in sizes.items() if key != "p"} for name, sizes in OF_ISLANDS.items()}
GRADIENTS = {"p": Range(2, 4), "count": Range(1, 7), "size": Range(1, 6), "without": Range(0, 3)}

CHECKS = (
    _make_ranks_check(
        "exchange",
        "exchange(rank, x, {partner})",
        {"pairs": 1, "unlike": 0, "form": "vector", "dtype": "int64", "size": 3},
        sizes=PAIRS,
        larger={"pairs": Range(3, 5), "size": Range(20, 300)},
        situations={
            "ranks 0 and 2, ranks 1 and 3": {"pairs": 2, "partner": [2, 3, 0, 1]},
            "three pairs": {"pairs": 3},
            "two shapes": {"pairs": 2, "size": 6},
        },
        title="Two ranks exchange arrays",
        points=4,
        first_hint="Write down what both ranks do, line by line, next to each other. Which one receives while the "
        "other sends?",
        hint="Both compare the same two numbers: the rank with the lower one sends first and then receives, the other "
        "receives first and then sends.",
    ),
    _make_ranks_check(
        "send_recv",
        "send_recv(rank, x, {destination}, {source})",
        {"p": 3, "unlike": 0, "form": "vector", "dtype": "int64", "size": 2},
        sizes=CIRCLES,
        situations={"two ranks": {"p": 2, "size": 6}, "seven ranks": {"p": 7}},
        title="Send to one rank and receive from another at once",
        points=6,
        first_hint="Every rank must be ready to receive from `source` while its own message to `destination` is in "
        "flight.",
        hint="isend first, which returns at once; then recv; then wait() on the request of the isend.",
    ),
    _make_ranks_check(
        "broadcast",
        "broadcast(rank, x, {root})",
        {"p": 3, "form": "vector", "size": 3, "dtype": "int64"},
        sizes=TREES,
        situations={
            **SITUATIONS,
            "NaN on all ranks but the root": {"p": 3, "dtype": "float64", "unset": 1, "form": "vector"},
            "nine ranks": {"p": 9, "size": 2},
        },
        title="Broadcast by a binomial tree",
        points=7,
        first_hint="Play it with six ranks on paper: which ranks have the array before each step, and where does "
        "each send it?",
        hint="With v = (rank - root) % p and d = 1, 2, 4, …: if v < d and v + d < p, send to (rank + d) % p; if "
        "d <= v < 2d, receive from (rank - d) % p.",
    ),
    _make_ranks_check(
        "reduce",
        "reduce(rank, x, {root})",
        {"p": 3, "form": "vector", "size": 3, "dtype": "int64"},
        sizes=TREES,
        situations={**SITUATIONS, "nine ranks": {"p": 9, "size": 2}},
        title="Reduce by the same tree",
        points=8,
        first_hint="A rank sends once, when it has added everything that it will ever receive. When is that?",
        hint="With v = (rank - root) % p and d = 1, 2, 4, …: if v has the bit d, send the sum to (rank - d) % p and "
        "return None; else, if v + d < p, receive from (rank + d) % p and add.",
    ),
    Check(
        name="split_chunks",
        title="Chunks of nearly equal lengths",
        points=4,
        cases=(
            Case("ten elements in four parts", {"form": "vector", "size": 10, "parts": 4}),
            Case("a transposed matrix", {"form": "matrix", "size": 12, "parts": 5}),
            Case("no elements", {"form": "empty", "size": 2, "parts": 3}),
            Case("one part", {"form": "vector", "size": 7, "parts": 1}),
            Case("a number without axes", {"form": "scalar", "size": 1, "parts": 2}),
            *draw_cases({"size": Range(1, 20), "parts": Range(1, 9)}, public=4, hidden=2, size=Range(30, 400)),
        ),
        inputs=draw.draw_chunks,
        run=calls.split_chunks,
        expect=draw.expect_chunks,
        compare=close,
        first_hint="How many elements does each chunk get at least, and how many are left over?",
        hint="Quotient and remainder of the division (Python's divmod has both): the length, and how many chunks are "
        "longer by one. torch.split takes a list of lengths.",
        uses=("split_chunks",),
        describe=draw.render_chunks,
    ),
    _make_ranks_check(
        "reduce_scatter",
        "reduce_scatter(rank, x)",
        {"p": 3, "form": "vector", "size": 5, "dtype": "int64"},
        situations={**SITUATIONS, "half precision": {"p": 2, "dtype": "float16", "form": "vector"}},
        title="Reduce-scatter by a ring",
        points=10,
        first_hint="Three ranks on paper: where does chunk 0 start, so that rank 0 is the last to add to it?",
        hint="Rank r first sends its own chunk r - 1. In step s = 2 … p it receives a partial sum, adds its own chunk "
        "r - s, and sends the result on in the next step. The last one is chunk r.",
    ),
    _make_ranks_check(
        "all_gather",
        "all_gather(rank, x)",
        {"p": 3, "form": "vector", "size": 2, "dtype": "int64", "unlike": 0},
        sizes={**SIZES, "unlike": 1},
        situations=UNLIKE,
        title="All-gather by a ring",
        points=8,
        first_hint="Whose array comes from the left in the first step? And in the second?",
        hint="In step s = 0, 1, … p - 2 rank r sends on the array of rank r - s, and receives that of rank r - s - 1.",
    ),
    Check(
        name="ring_elements",
        title="What each rank sends, predicted",
        points=4,
        cases=draw_cases({"p": 6}, public=2, hidden=1, p=13),
        inputs=draw.draw_counts,
        run=calls.ring_elements,
        expect=draw.expect_counts,
        compare=close,
        first_hint="Reduce-scatter sends every chunk but one, all-gather sends every chunk but another. Which two?",
        hint="2n less the length of this rank's own chunk and less the length of its right neighbour's.",
        uses=("ring_elements",),
        describe=draw.render_counts,
    ),
    _make_ranks_check(
        "all_reduce",
        "all_reduce(rank, x)",
        {"p": 2, "form": "vector", "size": 5, "dtype": "int64"},
        title="All-reduce by a ring",
        points=8,
        first_hint="After reduce_scatter rank r has chunk r. What do all ranks need now, and in which shape?",
        hint="The chunks of all ranks in order, joined, have the elements of x; reshape gives them its shape.",
    ),
    _make_ranks_check(
        "halving_doubling",
        "halving_doubling(rank, x)",
        {"p": 2, "form": "vector", "size": 6, "dtype": "int64"},
        situations={
            **SITUATIONS,
            "four ranks": {"p": 4, "form": "vector", "size": Range(5, 14)},
            "six ranks": {"p": 6, "form": "matrix", "dtype": "int32"},
            "eight ranks": {"p": 8, "form": "vector", "size": Range(8, 30)},
        },
        title="Recursive halving and doubling",
        points=11,
        first_hint="First two ranks, then four. Which of the two halves does rank 1 keep at distance 2, and which at "
        "1?",
        hint="At distance d the partner is rank ^ d; without the bit d a rank keeps the first half, with it the "
        "second. On the way back the piece that arrives goes behind the rank's own, or with the bit before it.",
    ),
    _make_ranks_check(
        "hierarchical",
        "hierarchical(rank, x, {island})",
        {"islands": 2, "island": 2, "form": "vector", "size": 8, "dtype": "int64"},
        sizes=ISLANDS,
        larger={"islands": Range(2, 4), "island": Range(2, 4), "size": Range(20, 400)},
        situations=OF_ISLANDS,
        title="Hierarchical all-reduce",
        points=8,
        first_hint="Which ranks are in an island with rank 5, and which have the same place as rank 5 in the others? "
        "Across, a ring all-reduce of the chunk sends less than an all-gather of whole chunks.",
        hint="Inside: the `island` ranks from rank - rank % island on. Across: rank % island, and every island-th "
        "after it. reduce_scatter inside, all_reduce of that chunk across, all_gather inside.",
    ),
    Check(
        name="crossover",
        title="Seconds on one switch, and where two algorithms cross",
        points=4,
        cases=draw_cases({"p": 9, "links": 1}, public=2, hidden=1, p=600, links=3),
        inputs=draw.draw_switch_costs,
        run=calls.costs,
        expect=draw.expect_costs,
        compare=draw.compare_costs,
        first_hint="How many messages of an algorithm follow one another, and how many bytes does a rank send in all "
        "of them? For crossover_bytes: which algorithm is faster at 0 bytes, and which at `largest`?",
        hint="Ring: p - 1 steps each way, n/p bytes each. Halving and doubling: log2 p steps each way, of n/2, n/4, … "
        "bytes. Two straight lines cross where the difference at 0 bytes has been made up.",
        uses=("LinkCost", "all_reduce_s", "crossover_bytes"),
        describe=draw.render_costs,
    ),
    Check(
        name="choose",
        title="Seconds on islands, and the fastest algorithm",
        points=6,
        cases=(
            Case("two nodes of four", {"topologies": 0, "example": 1}),
            Case("four topologies", {"topologies": 5}),
            Case("twelve topologies", {"topologies": 12}),
            Case("many topologies", {"topologies": 40}, hidden=True),
        ),
        inputs=draw.draw_island_costs,
        run=calls.costs,
        expect=draw.expect_costs,
        compare=draw.compare_costs,
        first_hint="Which step of the algorithm goes across, with how many bytes? With one island none does.",
        hint="List the distances 1, 2, 4 … p/2 and the link of each. Tree: n bytes at each; halving and doubling: "
        "n·d/p. The ring pays its slowest link in all of its 2(p - 1) steps.",
        uses=("LinkCost", "Islands", "predict_s", "select_algorithm"),
        describe=draw.render_costs,
    ),
    check_ranks(
        name="average_gradients",
        title="Gradients of your engine, averaged over ranks",
        points=12,
        cases=(
            Case("two ranks, one bucket", {**GRADIENTS, "p": 2, "count": 2, "fill": "all", "without": 0}),
            Case("one rank", {**GRADIENTS, "p": 1, "without": 3}),
            Case("a bucket filled to the last byte", {**GRADIENTS, "fill": "exact", "count": Range(4, 8)}),
            Case("one byte less", {**GRADIENTS, "fill": "short", "count": Range(4, 8), "dtype": "float32"}),
            Case("a parameter larger than a bucket", {**GRADIENTS, "fill": "larger", "count": Range(4, 8)}),
            Case("a bucket for each parameter", {**GRADIENTS, "fill": "none", "count": Range(2, 5)}),
            Case("gradients missing", {**GRADIENTS, "count": Range(3, 6), "without": 5}),
            Case("a rank without any gradient", {**GRADIENTS, "count": Range(2, 5), "absent": 1}),
            *draw_cases(GRADIENTS, public=3, hidden=2, p=Range(3, 5), count=Range(8, 20), size=Range(10, 90)),
        ),
        inputs=draw.draw_gradients,
        run=calls.average_gradients,
        expect=draw.expect_gradients,
        first_hint="All ranks must make the same all-reduces in the same order, whichever gradients each of them has.",
        hint="Fill the buckets by the parameters' sizes, from the last to the first. For each: join the flat gradients "
        "(for None zeros of the weight's dtype), all_reduce, divide by the number of ranks, split, reshape, set grad.",
        uses=("Tensor", "average_gradients"),
        describe=draw.render_gradients,
    ),
)
LAB = Lab("collectives", repeat_first_case(CHECKS))
