"""Task 1: which two of three operands to contract first. Oracle: each letter's owners decide what outlives a step."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from math import prod

import numpy as np

from mlsys_checks.sandboxed.spec import Arrays, Case, Check
from mlsys_checks.sandboxed.transformer_arithmetic import einsum as calls
from mlsys_checks.sandboxed.values import encode_text
from mlsys_checks.trusted.answers import agree
from mlsys_checks.trusted.transformer_arithmetic.einsum import (
    EMPTY_OR_ONE,
    Einsum,
    describe_einsums,
    draw_einsums,
    read_einsum,
)
from mlsys_checks.trusted.transformer_arithmetic.given import give


def _order_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    """Einsums, with what reading and counting the einsums of two gives that they may be contracted by."""
    arrays = draw_einsums(rng, case)
    readings, flops = {}, {}
    for spec, shapes in calls.einsums(arrays):
        for step, step_shapes in _steps(spec, shapes):
            operands, output, sizes = read_einsum(step, step_shapes)
            asked = (step, tuple(step_shapes))
            readings[asked] = (operands, output, sizes)
            flops[asked] = (1 + (len(sizes) > len(output))) * prod(sizes.values())
        readings[spec, tuple(shapes)] = read_einsum(spec, shapes)
    return arrays | give({"parse_einsum": readings, "einsum_flops": flops})


def _steps(spec: str, shapes: Sequence[tuple[int, ...]]) -> Iterator[Einsum]:
    """Yield every einsum of two that a product of three may be done by.

    For each pair to begin with: its product and that with the third, with the intermediate's letters in every order
    and either operand first.
    """
    operands, output, sizes = read_einsum(spec, shapes)
    terms = list(zip(operands, shapes, strict=True))
    for i, j in itertools.combinations(range(3), 2):
        pair, third = (terms[i], terms[j]), terms[3 - i - j]
        kept = {x for x in operands[i] + operands[j] if x in third[0] + output}
        for order in itertools.permutations(sorted(kept)):
            between = ("".join(order), tuple(sizes[x] for x in order))
            for factors, result in ((pair, between[0]), ((between, third), output)):
                for (a, of_a), (b, of_b) in (factors, factors[::-1]):
                    yield f"{a},{b}->{result}", [of_a, of_b]


def _order_expect(arrays: Arrays) -> Arrays:
    """Each letter's set of owners decides whether it outlives the first step."""
    expected = {}
    for spec, shapes in calls.einsums(arrays):
        left, output = spec.split("->")
        operands = [set(letters) for letters in left.split(",")]
        sizes = dict(zip(left.replace(",", ""), itertools.chain(*shapes), strict=True))
        costs = {}
        for first in ((0, 1), (0, 2), (1, 2)):
            (third,) = {0, 1, 2} - set(first)
            inside = operands[first[0]] | operands[first[1]]
            gone = {letter for letter in inside if letter not in operands[third] and letter not in output}
            later = (inside - gone) | operands[third]
            flops = prod(sizes[letter] for letter in inside) * (2 if gone else 1)
            costs[first] = flops + prod(sizes[letter] for letter in later) * (2 if later - set(output) else 1)
        best = min(costs, key=lambda pair: costs[pair])
        expected[f"best_first_pair({calls.arguments(spec, shapes)})"] = encode_text((best, costs[best]))
    return expected


LONG = 2**31
NEARLY_EQUAL = {
    "specs": ("ij,jk,kl->il",),
    "sizes": {"i": (3, 4), "j": (3, 4), "k": (LONG + 1, LONG + 2), "l": (LONG, LONG + 1)},
}
"""To begin with the last two costs 18 FLOPs less, of more than 2^64, which no float can tell."""

CHECKS = (
    Check(
        name="einsum_order",
        title="Which two of three to contract first",
        points=6,
        cases=(
            Case("a chain of matrices", {"specs": ("ij,jk,kl->il",), "sizes": (2, 60)}),
            Case("a low-rank update of a batch", {"specs": ("bd,dr,rf->bf", "btd,dr,rf->btf"), "sizes": (2, 90)}),
            Case("a letter that all three have", {"specs": ("bi,bij,bj->b", "bij,bjk,bk->bi"), "sizes": (2, 40)}),
            Case("the outer two belong together", {"specs": ("ab,cd,ba->cd", "ij,kl,jk->il"), "sizes": (2, 40)}),
            Case("all of one size", {"specs": ("ij,jk,kl->il", "i,j,k->ijk", "a,b,ab->"), "sizes": (4, 5)}),
            Case(
                "the smaller intermediate is the dearer one",
                {"specs": ("ij,jk,kl->il",), "sizes": {"i": (20, 23), "k": (20, 23), "j": (5, 7), "l": (100, 111)}},
            ),
            Case("nothing can be summed before the end", {"specs": ("ij,ij,ij->i", "a,a,ab->b"), "sizes": (2, 40)}),
            Case("two of the same letters, behind another", {"specs": ("a,ab,ab->", "ab,a,a->b"), "sizes": (3, 40)}),
            Case("letters that one operand alone has", {"specs": ("ija,jkb,klc->il",), "sizes": (2, 40)}),
            Case(
                "a letter that the last one alone has",
                {"specs": ("ij,jk,ka->ik",), "sizes": {"i": (2, 9), "j": (20, 40), "": (2, 40)}},
            ),
            Case("two that make a number", {"specs": ("a,a,bc->cb", "ij,kl,ij->kl"), "sizes": (2, 40)}),
            Case("one that is a number", {"specs": (",ij,jk->ik", "i,ij,->j"), "sizes": (2, 40)}),
            Case("an axis without entries", {"specs": ("ij,jk,kl->il", "jk,kl,lm->jm"), "sizes": EMPTY_OR_ONE}),
            Case("an axis with one entry", {"specs": ("ix,xk,k->ik", "ix,kx,x->ik"), "sizes": EMPTY_OR_ONE}),
            Case("two that cost nearly the same, more than 64 bits count", NEARLY_EQUAL),
            Case("others", {"specs": ("abc,cd,bde->ae", "bi,bi,bi->b", "ac,cb,ab->"), "sizes": (2, 50)}, hidden=True),
            Case("seven letters", {"specs": ("abcde,ef,fg->bcdg",), "sizes": (2, 50)}, hidden=True),
        ),
        inputs=_order_inputs,
        run=calls.order,
        describe=describe_einsums("best_first_pair"),
        expect=_order_expect,
        compare=agree,
        first_hint="Which letters does the first product still have, and who needs each of them later?",
        hint="A letter of the pair goes in the first step only if neither the third operand nor the output has it. "
        "Each step is an einsum of two, which einsum_flops counts. Keep the first pair where two are equal.",
        uses=("parse_einsum", "einsum_flops", "best_first_pair"),
    ),
)
