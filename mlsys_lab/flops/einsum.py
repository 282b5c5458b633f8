"""A small algebra of einsums: from subscripts and sizes to shape, FLOPs, bytes, intensity and order of contraction."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from mlsys_lab.errors import InputError
from mlsys_lab.validation import is_integer, require_positive

MOST_OPERANDS = 12
"""Most operands of an einsum, since the best order is sought among (3^n + 1)/2 - 2^n divisions of subsets."""


@dataclass(frozen=True)
class Einsum:
    """One einsum, all operands multiplied at once, every index of a known size.

    >>> einsum = Einsum.parse("bd,df->bf", b=512, d=1024, f=4096)
    >>> einsum.shape, einsum.flops, round(einsum.intensity())
    ((512, 4096), 4294967296, 315)
    """

    inputs: tuple[str, ...]
    output: str
    sizes: Mapping[str, int]

    @classmethod
    def parse(cls, subscripts: str, sizes: Mapping[str, int] | None = None, **more: int) -> Einsum:
        """Make an `Einsum` from numpy's notation with an explicit output; sizes as a mapping, as keywords, or both.

        `InputError` for what is no such string, an index without a size, a size that is not a whole number from 0, an
        output index that no input has. No ellipsis. An index that stands twice in one operand is its diagonal.
        """
        text = subscripts.replace(" ", "")
        if not re.fullmatch(r"[A-Za-z]*(,[A-Za-z]*)*->[A-Za-z]*", text):
            raise InputError(
                "not an einsum", got=repr(subscripts), expected="letters as in 'ij,jk->ik', with the output"
            )
        left, _, output = text.partition("->")
        inputs = tuple(left.split(","))
        known = {**(sizes or {}), **more}
        letters = dict.fromkeys(left.replace(",", ""))
        if strangers := [letter for letter in output if letter not in letters]:
            raise InputError(
                "an index of the output is in no input", got=strangers[0], expected=f"of {''.join(letters)}"
            )
        if len(set(output)) < len(output):
            raise InputError("an index stands twice in the output", got=output)
        for letter in letters:
            if letter not in known:
                raise InputError(f"index {letter!r} of {text} has no size")
            size = known[letter]
            if not is_integer(size, at_least=0):
                raise InputError(f"size of index {letter!r}", got=repr(size), expected="a whole number, at least 0")
        return cls(inputs, output, {letter: known[letter] for letter in letters})

    def __str__(self) -> str:
        return ",".join(self.inputs) + "->" + self.output

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the result, one length for each index of the output."""
        return tuple(self.sizes[letter] for letter in self.output)

    @property
    def summed_indices(self) -> tuple[str, ...]:
        """Indices that are summed over, in order of appearance."""
        return tuple(letter for letter in self.sizes if letter not in self.output)

    @property
    def flops(self) -> int:
        """FLOPs of doing the einsum at once, a multiply-add counting two.

        For every combination of all indices there are one multiplication fewer than there are operands, and one
        addition into the result if anything is summed; the first addition, to zero, counts.
        """
        return (len(self.inputs) - 1 + bool(self.summed_indices)) * math.prod(self.sizes.values())

    def elements(self) -> int:
        """Number of elements of all operands and the result together."""
        return sum(math.prod(self.sizes[letter] for letter in operand) for operand in (*self.inputs, self.output))

    def size_bytes(self, element_bytes: float = 2) -> float:
        """Least bytes moved: each operand read once, the result written once."""
        return self.elements() * element_bytes

    def intensity(self, element_bytes: float = 2) -> float:
        """Arithmetic intensity in FLOP/byte; InputError where no bytes are moved."""
        require_positive(elements=self.elements(), element_bytes=element_bytes)
        return self.flops / self.size_bytes(element_bytes)

    def shard(self, mesh: Mapping[str, int], axes: Mapping[str, str]) -> Einsum:
        """The einsum that each device of a mesh computes when indices are divided along the mesh's axes.

        `mesh` is the size of each mesh axis, `axes` the mesh axes along which an index is divided ("X", or "XY" for
        both). Devices along an axis that is not used do the same work: `replication` times in all. `InputError` where
        an axis is unknown or used twice, or a size does not divide.

        >>> whole = Einsum.parse("bd,df->bf", b=64, d=32, f=16)
        >>> part = whole.shard({"X": 4, "Y": 8, "Z": 4}, {"b": "X", "d": "Y"})
        >>> whole.flops / part.flops, replication({"X": 4, "Y": 8, "Z": 4}, {"b": "X", "d": "Y"})
        (32.0, 4)
        """
        replication(mesh, axes)
        sizes = dict(self.sizes)
        for letter, names in axes.items():
            if letter not in sizes:
                raise InputError(f"no index {letter!r} in {self}")
            ways = math.prod(mesh[name] for name in names)
            if sizes[letter] % ways:
                raise InputError(f"index {letter!r} of size {sizes[letter]} does not divide {ways} ways")
            sizes[letter] //= ways
        return Einsum(self.inputs, self.output, sizes)

    def contraction(self, order: Sequence[tuple[int, int]] | None = None) -> Contraction:
        """Contract two operands at a time: in the given order, as numpy's `einsum_path` writes it, or the cheapest.

        An order is a list of pairs of positions; both operands leave the list and their product joins its end. An
        intermediate keeps the indices that an operand still to come, or the output, has.
        """
        if order is None:
            order = self._best_order()
        steps: list[Einsum] = []
        waiting = list(self.inputs)
        for left, right in order:
            if left == right or not {left, right} <= set(range(len(waiting))):
                raise InputError(
                    "no such pair of operands", got=(left, right), expected=f"two of 0 to {len(waiting) - 1}"
                )
            first, second = waiting[left], waiting[right]
            waiting = [operand for at, operand in enumerate(waiting) if at not in (left, right)]
            step = self._pair(first, second, waiting)
            steps.append(step)
            waiting.append(step.output)
        if len(waiting) > 1:
            raise InputError("an order that leaves operands over", got=f"{len(waiting)} at its end", expected="one")
        if not steps:
            steps = [self]
        return Contraction(tuple(tuple(pair) for pair in order), tuple(steps))

    def contract_left_to_right(self) -> Contraction:
        """Contract two operands at a time, in the order in which they are written."""
        count = len(self.inputs)
        return self.contraction([(0, 1)] + [(0, left) for left in range(count - 2, 0, -1)] if count > 1 else [])

    def _pair(self, first: str, second: str, rest: Sequence[str]) -> Einsum:
        wanted = set("".join(rest)) | set(self.output)
        letters = dict.fromkeys(first + second)
        kept = self.output if not rest else "".join(letter for letter in letters if letter in wanted)
        return Einsum((first, second), kept, {letter: self.sizes[letter] for letter in letters})

    def _best_order(self) -> list[tuple[int, int]]:
        """The cheapest order of pairwise contractions, by dynamic programming over subsets; ties go to the first."""
        count = len(self.inputs)
        if count > MOST_OPERANDS:
            raise InputError("too many operands to try all orders", got=count, expected=f"at most {MOST_OPERANDS}")
        everything = (1 << count) - 1
        operands, output = [self._bits(operand) for operand in self.inputs], self._bits(self.output)
        kept = {1 << at: operand for at, operand in enumerate(operands)}
        cost = {1 << at: 0 for at in range(count)}
        split: dict[int, tuple[int, int]] = {}
        points: dict[int, int] = {}  # combinations of a set of indices
        for subset in range(1, everything + 1):
            if subset in cost:
                continue
            wanted = output
            for at, operand in enumerate(operands):
                if not subset >> at & 1:
                    wanted |= operand
            for part in _halves(subset):
                other = subset ^ part
                indices = kept[part] | kept[other]
                if indices not in points:
                    points[indices] = math.prod(
                        size for at, size in enumerate(self.sizes.values()) if indices >> at & 1
                    )
                total = cost[part] + cost[other] + points[indices] * (2 if indices & ~wanted else 1)
                if subset not in cost or total < cost[subset]:
                    cost[subset], split[subset], kept[subset] = total, (part, other), indices & wanted
        return _to_positions(everything, split, count)

    def _bits(self, letters: str) -> int:
        """Encode a set of indices as the bits of a number, in the order of `sizes`."""
        return sum(1 << at for at, letter in enumerate(self.sizes) if letter in letters)


def _halves(subset: int) -> Iterator[int]:
    """Yield every way to divide a set of bits in two, as the part that holds the lowest bit."""
    lowest, part = subset & -subset, (subset - 1) & subset
    while part:
        if part & lowest:
            yield part
        part = (part - 1) & subset


def _to_positions(everything: int, split: Mapping[int, tuple[int, int]], count: int) -> list[tuple[int, int]]:
    """Convert a tree of subsets into numpy's pairs of positions in the list of waiting operands."""
    order: list[tuple[int, int]] = []
    waiting = [1 << at for at in range(count)]

    def combine(subset: int) -> None:
        if subset not in split:
            return
        for part in split[subset]:
            combine(part)
        first, second = (waiting.index(part) for part in split[subset])
        order.append((first, second))
        waiting[:] = [part for part in waiting if part not in split[subset]] + [subset]

    combine(everything)
    return order


@dataclass(frozen=True)
class Contraction:
    """An einsum done in steps, each of which contracts two operands."""

    order: tuple[tuple[int, ...], ...]
    steps: tuple[Einsum, ...]

    @property
    def flops(self) -> int:
        """FLOPs of all steps together, a multiply-add counting two."""
        return sum(step.flops for step in self.steps)

    @property
    def largest(self) -> int:
        """Number of elements of the largest result of a step."""
        return max(math.prod(step.shape) for step in self.steps)

    def size_bytes(self, element_bytes: float = 2) -> float:
        """Bytes that all steps move, each reading its operands and writing its result."""
        return sum(step.size_bytes(element_bytes) for step in self.steps)


def replication(mesh: Mapping[str, int], axes: Mapping[str, str]) -> int:
    """Number of devices of a mesh that hold a copy of each part of an array whose indices are divided along `axes`.

    >>> replication({"X": 4, "Y": 8, "Z": 2}, {"i": "X"})
    16
    """
    require_positive(**mesh)
    used = "".join(axes.values())
    if strangers := [name for name in used if name not in mesh]:
        raise InputError("no such axis of the mesh", got=strangers[0], expected=f"of {', '.join(mesh)}")
    if len(set(used)) < len(used):
        raise InputError("an axis of the mesh divides two indices", got=used)
    return math.prod(size for name, size in mesh.items() if name not in used)
