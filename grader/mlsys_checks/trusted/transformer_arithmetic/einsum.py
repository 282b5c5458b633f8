"""Task 1: what an einsum means and costs. Oracle: its loop nest, run and counted; NumPy says what is no einsum."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from math import prod

import numpy as np

from mlsys_checks.sandboxed.spec import Arrays, Case, Check
from mlsys_checks.sandboxed.transformer_arithmetic import einsum as calls
from mlsys_checks.sandboxed.values import encode_text
from mlsys_checks.trusted.answers import agree
from mlsys_checks.trusted.transformer_arithmetic.given import give

RANK = 6
MOST_LOOPS = 10_000
"""Turns of a loop nest that is run to be counted."""
Einsum = tuple[str, list[tuple[int, ...]]]


def _arrays(einsums: Sequence[Einsum], *, made: str = calls.TUPLES) -> Arrays:
    """Each einsum as characters, and its shapes as rows filled up with -1; `made` says what they are to be made."""
    arrays = {}
    for i, (spec, shapes) in enumerate(einsums):
        arrays[f"spec {i}"] = np.frombuffer(spec.encode(), np.uint8).copy()
        arrays[f"{made} {i}"] = np.array([[*shape, *[-1] * (RANK - len(shape))] for shape in shapes], dtype=np.int64)
    return arrays


def _drawn(rng: np.random.Generator, spec: str, ranges: Mapping[str, tuple[int, int]], odd: bool) -> Einsum:
    """An einsum of sizes out of each letter's range, or out of that of "" where it has none."""
    left = spec.split("->")[0]
    sizes = {x: int(rng.integers(*ranges[x if x in ranges else ""])) | odd for x in sorted(set(left) - {","})}
    return spec, [tuple(sizes[letter] for letter in letters) for letters in left.split(",")]


def draw_einsums(rng: np.random.Generator, case: Case) -> Arrays:
    """The einsums of a case, as they cross, of sizes out of its ranges."""
    ranges, odd = case.params["sizes"], case.params.get("odd", False)
    if not isinstance(ranges, Mapping):
        ranges = {"": ranges}
    drawn = [_drawn(rng, spec, ranges, odd) for spec in case.params["specs"]]
    return _arrays(drawn, made=case.params.get("made", calls.TUPLES))


# --- einsum_parse ---------------------------------------------------------------------------------------------------


def _parse_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    if "wrong" in case.params:
        return _arrays(case.params["wrong"])
    return draw_einsums(rng, case)


def _parse_expect(arrays: Arrays) -> Arrays:
    expected = {}
    for spec, shapes in calls.einsums(arrays):
        name = f"parse_einsum({calls.arguments(spec, shapes)})"
        try:
            np.einsum(spec, *(np.empty(shape) for shape in shapes))
            refused = any(1 in shape for shape in shapes) and not _consistent(spec, shapes)
        except ValueError:
            refused = True
        if refused:
            expected[name] = encode_text("ValueError")
        else:
            expected[name] = calls.write_reading(*read_einsum(spec, shapes))
    return expected


def read_einsum(spec: str, shapes: Sequence[Sequence[int]]) -> tuple[list[str], str, dict[str, int]]:
    """The operands' letters, the output's letters and the size of each letter, where they fit together."""
    left, output = spec.split("->")
    return left.split(","), output, dict(zip(left.replace(",", ""), itertools.chain(*shapes), strict=True))


def _consistent(spec: str, shapes: Sequence[Sequence[int]]) -> bool:
    """Whether each letter has one size: NumPy lets an axis of size 1 pass for any other."""
    places = zip(spec.split("->")[0].replace(",", ""), itertools.chain(*shapes), strict=True)
    return all(
        len({size for letter, size in places_of}) == 1 for _, places_of in itertools.groupby(sorted(places), _first)
    )


def _first(place: tuple[str, int]) -> str:
    return place[0]


# --- einsum_cost ----------------------------------------------------------------------------------------------------


def loop_nest(spec: str, shapes: Sequence[Sequence[int]]) -> tuple[int, int]:
    """Run the loop nest over all letters: the multiplications and additions done, and the elements touched at least."""
    operands, output, sizes = read_einsum(spec, shapes)
    touched: set[tuple[int, tuple[int, ...]]] = set()
    operations, adds = 0, len(sizes) > len(output)
    for point in itertools.product(*(range(size) for size in sizes.values())):
        at = dict(zip(sizes, point, strict=True))
        operations += sum(1 for _ in operands[1:])
        operations += adds
        touched.update((i, tuple(at[x] for x in letters)) for i, letters in enumerate((*operands, output)))
    return operations, len(touched)


def count_nest(spec: str, shapes: Sequence[Sequence[int]]) -> tuple[int, int]:
    """What `loop_nest` counts, by the lengths of the loops where they are too many to run, or none of them runs."""
    operands, output, sizes = read_einsum(spec, shapes)
    loops = prod(sizes.values())
    if 0 < loops <= MOST_LOOPS:
        return loop_nest(spec, shapes)
    each = len(operands) - 1 + (len(sizes) > len(output))
    return each * loops, sum(prod(sizes[x] for x in letters) for letters in (*operands, output))


def _cost_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    arrays = draw_einsums(rng, case)
    readings = {(spec, tuple(shapes)): read_einsum(spec, shapes) for spec, shapes in calls.einsums(arrays)}
    return arrays | give({"parse_einsum": readings})


def _cost_expect(arrays: Arrays) -> Arrays:
    expected = {}
    for spec, shapes in calls.einsums(arrays):
        operations, elements = count_nest(spec, shapes)
        given = calls.arguments(spec, shapes)
        expected[f"einsum_flops({given})"] = encode_text(operations)
        expected[f"einsum_bytes({given})"] = np.array(2 * elements)
        for width in calls.widths(shapes):
            expected[f"einsum_bytes({given}, element_bytes={width})"] = np.array(width * elements)
    return expected


def describe_einsums(*names: str) -> Callable[[Arrays], str]:
    """A check's `describe`: a call of each function for each einsum."""

    def describe(arrays: Arrays) -> str:
        asked = [calls.arguments(spec, shapes) for spec, shapes in calls.einsums(arrays)]
        return "\n".join(f"{name}({arguments})" for arguments in asked for name in names)

    return describe


LONG_SCORES = {
    "specs": ("bnth,bnsh->bnts",),
    "sizes": {"t": (700_001, 999_999), "s": (700_001, 999_999), "": (301, 399)},
    "odd": True,
}
"""More than 2^63 turns of a nest, which 64 bits cannot count; its bytes a float cannot count one by one."""
EMPTY_OR_ONE = {"j": (0, 1), "x": (1, 2), "": (2, 9)}
"""Sizes: j has no entries, x has one, other letters have some."""


CHECKS = (
    Check(
        name="einsum_parse",
        title="Letters, sizes, and what does not fit",
        points=5,
        cases=(
            Case("products of two", {"specs": ("ij,jk->ik", "bij,bjk->bik", "i,j->ij", "ij,ij->"), "sizes": (1, 9)}),
            Case("one operand, and three", {"specs": ("ij->ji", "ijk->j", "ab,bc,cd->ad"), "sizes": (1, 9)}),
            Case("all is summed, also what one operand alone has", {"specs": ("ij,jk->", "i->"), "sizes": (1, 9)}),
            Case("an operand that is a number", {"specs": (",ij->ji", "i,->i"), "sizes": (1, 9)}),
            Case("capital letters, which are others than small ones", {"specs": ("bTt,tT->Tb",), "sizes": (1, 9)}),
            Case("an axis without entries", {"specs": ("ij,jk->ik", "ij->ji"), "sizes": {"j": (0, 1), "": (1, 9)}}),
            Case("shapes as lists", {"specs": ("ij,jk->ik", "ijk->j"), "sizes": (1, 9), "made": calls.LISTS}),
            Case(
                "letters and shapes that do not fit",
                {
                    "wrong": [
                        ("ij,jl->il", [(2, 3), (3, 5)]),
                        ("ij,jk->ik", [(2, 3), (4, 5)]),
                        ("ij,jk->ik", [(2, 3), (1, 5)]),
                        ("ij,jk->ik", [(2, 3, 4), (3, 5)]),
                        ("ij,jk->i", [(2, 3), (3,)]),
                        ("ij,jk->ik", [(2, 0), (3, 4)]),
                        ("ab,bc,ca->b", [(2, 3), (3, 4), (4, 5)]),
                        ("ij,jk->ik", [(2, 3)]),
                        ("ij,jk->ij", [(2, 3)]),
                        ("ij->ij", [(2, 3), (2, 3)]),
                        ("ij,jk->", []),
                        ("ij,jk->il", [(2, 3), (3, 5)]),
                        ("ij->ji", [(2, 3)]),
                    ]
                },
            ),
            Case(
                "large ones",
                {
                    "specs": ("btd,dnh->bnth", "BNTH,BNSH->BNTS", "ijklmo,mp,pj,qk->ipq"),
                    "sizes": dict.fromkeys("ijklmopq", (1, 4)) | {"": (1, 30)},
                },
                hidden=True,
            ),
            Case(
                "other mistakes",
                {
                    "wrong": [
                        ("abc,cb->a", [(2, 3, 4), (3, 4)]),
                        ("a->", [(2, 2)]),
                        ("abc->a", [(2, 3)]),
                        ("ab,bc->a", [(2, 3), (0, 4)]),
                        ("ab,b->ba", [(2, 3)]),
                        ("ab,ac,db->cd", [(2, 3), (2, 4), (5, 6)]),
                        ("aB,bA->Ba", [(2, 3), (3,)]),
                        ("abc,cb->a", [(2, 3, 4), (4, 3)]),
                        ("ab,bc,cd,de->ae", [(2, 3), (3, 4), (4, 5), (5,)]),
                    ]
                },
                hidden=True,
            ),
        ),
        inputs=_parse_inputs,
        run=calls.parse,
        describe=describe_einsums("parse_einsum"),
        expect=_parse_expect,
        compare=agree,
        first_hint="Read the failing line of letters aloud: which letter meets which size, and where twice?",
        hint="Split at '->', then at ','. Go through letters and sizes together and keep the first size of each "
        "letter: a later one must be equal to it, also where one of them is 1. Raise ValueError, nothing else.",
        uses=("parse_einsum",),
    ),
    Check(
        name="einsum_cost",
        title="FLOPs and bytes of an einsum",
        points=6,
        cases=(
            Case("matrix products", {"specs": ("ij,jk->ik", "bij,bjk->bik"), "sizes": (1, 7)}),
            Case("nothing summed, and everything", {"specs": ("i,j->ij", "ij,ij->", "ij,ij->ij"), "sizes": (1, 9)}),
            Case("summed in one operand alone", {"specs": ("i,ij->i", "ij,jk->jk"), "sizes": (1, 9)}),
            Case("one operand, and three", {"specs": ("ij->ji", "ijk->j", "ab,bc,cd->ad"), "sizes": (2, 6)}),
            Case("numbers, which have no axes", {"specs": (",ij->ij", ",->"), "sizes": (1, 9)}),
            Case("an axis without entries, or with one", {"specs": ("ij,jk->ik", "ix,xk->ik"), "sizes": EMPTY_OR_ONE}),
            Case("as large as in a model", {"specs": ("td,df->tf",), "sizes": (3001, 9999), "odd": True}),
            Case("scores of many sequences of a million tokens", LONG_SCORES),
            Case(
                "four operands, and many letters",
                {
                    "specs": ("ab,bc,cd,da->", "a,b,c,d->abcd", "abcdef,fe->abcde"),
                    "sizes": {"e": (2, 5), "f": (2, 5), "": (1, 5)},
                },
                hidden=True,
            ),
        ),
        inputs=_cost_inputs,
        run=calls.cost,
        describe=describe_einsums("einsum_flops", "einsum_bytes"),
        expect=_cost_expect,
        compare=agree,
        first_hint="Write the loop nest of the failing einsum: which loops are there, and what does the innermost line "
        "do?",
        hint="How often does the innermost line run? Each time it multiplies one factor after the other, and adds if a "
        "letter is missing from the output. Bytes: elements of every operand and of the output. Return ints.",
        uses=("parse_einsum", "einsum_flops", "einsum_bytes"),
    ),
)
