"""The einsum algebra against loops, numpy's shapes, and all orders of contraction."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlsys_lab.errors import InputError
from mlsys_lab.flops.einsum import MOST_OPERANDS, Einsum, replication

MESH = {"X": 4, "Y": 8, "Z": 2}


@st.composite
def einsums(draw, most_operands=3, most_letters=5, largest=4):
    letters = "abcde"[: draw(st.integers(1, most_letters))]
    operand = st.text(letters, max_size=3)
    inputs = draw(st.lists(operand, min_size=1, max_size=most_operands))
    present = sorted(set("".join(inputs)))
    output = "".join(draw(st.permutations(present))[: draw(st.integers(0, len(present)))])
    return ",".join(inputs) + "->" + output, {letter: draw(st.integers(1, largest)) for letter in present}


def loops(subscripts, sizes, arrays):
    """The einsum by loops over all indices: the result, and how many multiplications and additions it took."""
    inputs, output = subscripts.split("->")
    operands = inputs.split(",")
    letters = sorted(sizes)
    result = np.zeros([sizes[letter] for letter in output])
    summed = set(letters) - set(output)
    flops = 0
    for values in itertools.product(*(range(sizes[letter]) for letter in letters)):
        at = dict(zip(letters, values, strict=True))
        factors = [array[tuple(at[c] for c in operand)] for operand, array in zip(operands, arrays, strict=True)]
        product = factors[0]
        for factor in factors[1:]:
            product, flops = product * factor, flops + 1
        where = tuple(at[c] for c in output)
        if summed:
            result[where], flops = result[where] + product, flops + 1
        else:
            result[where] = product
    return result, flops


@given(einsums())
def test_flops_are_those_of_loops_and_the_shape_is_numpy_s(drawn):
    subscripts, sizes = drawn
    einsum = Einsum.parse(subscripts, sizes)
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=[sizes[c] for c in operand]) for operand in einsum.inputs]
    result, flops = loops(subscripts, sizes, arrays)
    expected = np.einsum(subscripts, *arrays)
    assert einsum.shape == expected.shape
    assert einsum.flops == flops
    np.testing.assert_allclose(result, expected, atol=1e-9)
    assert einsum.elements() == sum(a.size for a in arrays) + expected.size


def all_orders(inputs, output):
    """Every order of contracting pairs, with its steps as (indices of both, whether anything is summed)."""
    if len(inputs) == 1:
        yield []
    for left, right in itertools.combinations(range(len(inputs)), 2):
        rest = [operand for at, operand in enumerate(inputs) if at not in (left, right)]
        both = inputs[left] | inputs[right]
        kept = both & set(output).union(*rest)
        for steps in all_orders([*rest, kept], output):
            yield [(both, both != kept), *steps]


@given(einsums(most_operands=5))
def test_the_best_order_is_the_best_of_all_and_never_costs_more_than_left_to_right(drawn):
    einsum = Einsum.parse(*drawn)
    best = einsum.contraction()
    costs = [
        sum((1 + summed) * math.prod(einsum.sizes[c] for c in both) for both, summed in steps)
        for steps in all_orders([set(operand) for operand in einsum.inputs], set(einsum.output))
    ]
    if len(einsum.inputs) > 1:
        assert best.flops == min(costs)
    assert best.flops <= einsum.contract_left_to_right().flops
    assert best.steps[-1].shape == einsum.shape


@given(einsums(most_operands=4))
def test_the_steps_compute_the_einsum(drawn):
    einsum = Einsum.parse(*drawn)
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=[einsum.sizes[c] for c in operand]) for operand in einsum.inputs]
    for contraction in (einsum.contraction(), einsum.contract_left_to_right()):
        waiting = list(arrays)
        if contraction.order:
            for (left, right), step in zip(contraction.order, contraction.steps, strict=True):
                pair = waiting[left], waiting[right]
                waiting = [array for at, array in enumerate(waiting) if at not in (left, right)]
                waiting.append(np.einsum(str(step), *pair))
        else:
            waiting = [np.einsum(str(contraction.steps[0]), *waiting)]
        np.testing.assert_allclose(waiting[0], np.einsum(str(einsum), *arrays), atol=1e-9)


def test_a_chain_of_matrices_by_hand():
    chain = Einsum.parse("ij,jk,kl->il", i=10, j=100, k=5, l=50)
    assert chain.flops == 3 * 10 * 100 * 5 * 50
    left, best = chain.contract_left_to_right(), chain.contraction()
    assert left.flops == best.flops == 2 * (10 * 100 * 5 + 10 * 5 * 50)
    other = chain.contraction([(1, 2), (0, 1)])
    assert other.flops == 2 * (100 * 5 * 50 + 10 * 100 * 50)
    assert [str(step) for step in other.steps] == ["jk,kl->jl", "ij,jl->il"]
    assert (best.largest, other.largest) == (10 * 50, 100 * 50)
    assert best.size_bytes(4) == 4 * (1000 + 500 + 50 + 50 + 250 + 500)


def test_the_longest_chain_costs_what_the_textbook_s_recurrence_says():
    letters = "abcdefghijklmnop"[: MOST_OPERANDS + 1]
    sizes = {letter: 2 + at * 7 % 13 for at, letter in enumerate(letters)}
    n = list(sizes.values())
    chain = ",".join(a + b for a, b in itertools.pairwise(letters)) + f"->{letters[0]}{letters[-1]}"
    least = {(i, i + 1): 0 for i in range(MOST_OPERANDS)}  # matrices i to j - 1, as in Cormen et al., §15.2
    for length in range(2, MOST_OPERANDS + 1):
        for i in range(MOST_OPERANDS - length + 1):
            j = i + length
            least[i, j] = min(least[i, k] + least[k, j] + 2 * n[i] * n[k] * n[j] for k in range(i + 1, j))
    best = Einsum.parse(chain, sizes).contraction()
    assert best.flops == least[0, MOST_OPERANDS]
    assert len(best.steps) == MOST_OPERANDS - 1 and best.steps[-1].shape == (n[0], n[-1])


def test_low_rank_adapters_are_cheap_in_one_order_only():
    lora = Einsum.parse("bd,dr,rf->bf", b=2048, d=4096, r=8, f=4096)
    assert [str(step) for step in lora.contraction().steps] == ["bd,dr->br", "br,rf->bf"]
    through_the_matrix = lora.contraction([(1, 2), (0, 1)])
    assert through_the_matrix.flops / lora.contraction().flops > 250


def test_intensities_by_hand():
    assert Einsum.parse("n,n->", n=10**7).intensity() == pytest.approx(0.5)
    assert Einsum.parse("bd,bdf->bf", b=64, d=4096, f=4096).intensity(1) == pytest.approx(2, rel=1e-3)
    assert Einsum.parse("ijkl,ijmno->klmno", i=2, j=3, k=4, l=5, m=6, n=7, o=8).flops == 80640
    assert Einsum.parse("ii->i", i=5).flops == 0
    assert Einsum.parse("i->", i=0).flops == 0


def test_devices_of_a_mesh_share_the_work():
    whole = Einsum.parse("bd,df->bf", b=64, d=32, f=16)
    part = whole.shard(MESH, {"b": "XZ", "d": "Y"})
    assert (part.sizes, whole.flops / part.flops) == ({"b": 8, "d": 4, "f": 16}, 64)
    assert replication(MESH, {"b": "XZ", "d": "Y"}) == 1
    assert replication(MESH, {"b": "X"}) == 16
    for axes, said in [
        ({"b": "X", "d": "X"}, "divides two indices"),
        ({"b": "W"}, "no such axis of the mesh: got W, expected of X, Y, Z"),
        ({"q": "X"}, "no index 'q' in bd,df->bf"),
    ]:
        with pytest.raises(InputError, match=said):
            whole.shard(MESH, axes)
    with pytest.raises(InputError, match="index 'f' of size 9 does not divide 4 ways"):
        Einsum.parse("df->d", d=3, f=9).shard(MESH, {"f": "X"})


@pytest.mark.parametrize(
    ("subscripts", "sizes", "said"),
    [
        ("ij,jk", {"i": 2, "j": 2, "k": 2}, "not an einsum: got 'ij,jk', expected letters as in 'ij,jk->ik'"),
        ("i...->i", {"i": 2}, "not an einsum"),
        ("ij->k", {"i": 2, "j": 2}, "an index of the output is in no input: got k, expected of ij"),
        ("ij->ii", {"i": 2, "j": 2}, "stands twice in the output"),
        ("ij->i", {"i": 2}, "index 'j' of ij->i has no size"),
        ("ij->i", {"i": 2, "j": -1}, "size of index 'j': got -1, expected a whole number, at least 0"),
        ("ij->i", {"i": 2, "j": 2.0}, r"size of index 'j': got 2\.0"),
    ],
)
def test_what_is_no_einsum_is_one_line(subscripts, sizes, said):
    with pytest.raises(InputError, match=said):
        Einsum.parse(subscripts, sizes)


def test_an_order_that_does_not_fit_is_one_line():
    chain = Einsum.parse("ij,jk,kl->il", i=2, j=2, k=2, l=2)
    for order, said in [
        ([(0, 3)], "no such pair"),
        ([(1, 1)], "no such pair"),
        ([(0, 1)], "leaves operands over: got 2"),
    ]:
        with pytest.raises(InputError, match=said):
            chain.contraction(order)
    many = Einsum.parse(",".join("a" * (MOST_OPERANDS + 1)) + "->a", a=2)
    with pytest.raises(InputError, match=f"too many operands to try all orders: got {MOST_OPERANDS + 1}"):
        many.contraction()
    assert len(many.contract_left_to_right().steps) == MOST_OPERANDS
