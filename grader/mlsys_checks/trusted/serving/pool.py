"""A pool of blocks as it must be, whatever numbers the learner's blocks have; what breaks a rule is raised in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice

import numpy as np

from mlsys_checks.sandboxed.spec import Arrays, Mismatch

Text = tuple[int, ...]


class BrokenRuleError(Exception):
    """A rule that a log breaks, as a mismatch."""

    def __init__(self, what: str, got: object = "", expected: object = "") -> None:
        super().__init__(what)
        self.mismatch = Mismatch(what, str(got), str(expected))


class Pool:
    """Reference counts of blocks, what is known of each, and in which order known ones were released."""

    def __init__(self, count: int) -> None:
        self.references = [0] * count
        self.blank = set(range(count))  # without reference and key
        self.known: dict[object, int] = {}
        self.key_of: dict[int, object] = {}
        self.released: dict[int, None] = {}  # known, without a reference, oldest first

    @property
    def available(self) -> int:
        """Number of blocks without a reference."""
        return len(self.blank) + len(self.released)

    def take(self, blocks: Sequence[int], where: str, *, in_order: bool = True) -> None:
        """Give out these blocks; with `in_order`, blank ones before known ones, and these by their release."""
        for block in blocks:
            if not 0 <= block < len(self.references):
                raise BrokenRuleError(f"{where}: there is no such block", block, f"0 to {len(self.references) - 1}")
            if self.references[block] or blocks.count(block) > 1:
                raise BrokenRuleError(f"{where}: a block is given out that somebody holds", f"block {block}")
        oldest = set(islice(self.released, max(0, len(blocks) - len(self.blank))))
        if in_order and not (oldest <= set(blocks) and all(one in self.blank or one in oldest for one in blocks)):
            expected = "blank blocks first, then known ones, those released longest ago first"
            raise BrokenRuleError(f"{where}: the wrong block is given out", f"blocks {list(blocks)}", expected)
        for block in blocks:
            if block in self.key_of:
                del self.released[block], self.known[self.key_of.pop(block)]
            self.blank.discard(block)
            self.references[block] = 1

    def share(self, block: int) -> None:
        """Add a reference."""
        self.released.pop(block, None)
        self.references[block] += 1

    def release(self, block: int) -> None:
        """Take a reference away."""
        self.references[block] -= 1
        if not self.references[block]:
            self.released.update({block: None}) if block in self.key_of else self.blank.add(block)

    def hold(self, references: list[int]) -> None:
        """Take these counts for those of a pool in which nothing is known."""
        self.references = references
        self.blank = {block for block, held in enumerate(references) if not held}

    def register(self, block: int, key: object) -> None:
        """Make a block known, unless it is, or another is by this key."""
        if key not in self.known and block not in self.key_of:
            self.known[key], self.key_of[block] = block, key

    def find(self, tokens: Sequence[int], page: int) -> list[int]:
        """Known blocks with which a text begins, as many as there are, never with its last token."""
        found: list[int] = []
        for end in range(page, len(tokens), page):
            block = self.known.get(tuple(tokens[:end]))
            if block is None:
                break
            found.append(block)
        return found

    def compare(self, where: str, available: np.ndarray, references: np.ndarray | list[int]) -> None:
        """Hold counts of the learner's pool against these; the pool's own references in place of some not counted."""
        if len(references) != len(self.references):
            raise BrokenRuleError("`references` has the wrong length", len(references), len(self.references))
        if (
            references is not self.references
            and (wrong := np.flatnonzero(references != np.array(self.references))).size
        ):
            block = int(wrong[0])
            got, expected = int(references[block]), self.references[block]
            raise BrokenRuleError(f"{where}: block {block} has the wrong number of references", got, expected)
        if available != self.available:
            raise BrokenRuleError(f"{where}: the wrong number of blocks is available", int(available), self.available)


class Memory:
    """What lies in each block: the text up to the last token that was written there."""

    def __init__(self, page: int) -> None:
        self.page = page
        self.texts: dict[int, Text] = {}

    def read(self, where: str, table: Sequence[int], text: Sequence[int], count: int) -> None:
        """Look for a text's first `count` tokens where its table says that they lie."""
        for place in range(-(-count // self.page)):
            end = min(count, (place + 1) * self.page)
            if self.texts.get(table[place], ())[:end] != tuple(text[:end]):
                got = f"block {table[place]} holds other tokens, or none"
                raise BrokenRuleError(
                    f"{where} does not find its kept tokens", got, f"tokens {place * self.page} to {end - 1}"
                )

    def write(self, table: Sequence[int], text: Sequence[int], first: int, end: int) -> None:
        """Write a text's tokens first to end - 1 into its blocks."""
        for place in range(first // self.page, -(-end // self.page)):
            self.texts[table[place]] = tuple(text[: min(end, (place + 1) * self.page)])


def by_step(found: np.ndarray, steps: int) -> list[list[list[int]]]:
    """Rows by the step that is their first number, which is left out; BrokenRuleError for one beyond the last step."""
    parts: list[list[list[int]]] = [[] for _ in range(steps)]
    for step, *row in found.tolist():
        if not 0 <= step < steps:
            raise BrokenRuleError("the log names a step that there was not", step, f"0 to {steps - 1}")
        parts[step].append(row)
    return parts


def require_form(got: Arrays, form: Mapping[str, tuple[int | None, ...]]) -> None:
    """Hold a log against the shapes that its arrays of whole numbers or truth values have, None for any length."""
    for name, shape in form.items():
        array = got.get(name)
        if array is None or array.dtype.kind not in "ib" or array.ndim != len(shape):
            raise BrokenRuleError(f"the log has no `{name}`")
        if any(length not in (None, found) for length, found in zip(shape, array.shape, strict=True)):
            raise BrokenRuleError(f"`{name}` of the log has the wrong shape", array.shape, shape)


def require_rows(got: Arrays, name: str, steps: int, ranges: Mapping[str, range], *, is_event: bool = True) -> None:
    """Hold rows of a log against its grammar: steps that do not go back, then numbers within their ranges.

    Where a row is an event of a request, whose number comes second, the request has at most one in a step.
    """
    found, columns = got[name], {"step": range(steps), **ranges}
    for (word, allowed), column in zip(columns.items(), found.T, strict=True):
        if (outside := column[(column < allowed.start) | (column >= allowed.stop)]).size:
            what = f"`{name}` of the log names a {word} that there cannot be"
            raise BrokenRuleError(what, int(outside[0]), f"{allowed.start} to {allowed.stop - 1}")
    if (np.diff(found[:, 0]) < 0).any():
        raise BrokenRuleError(f"`{name}` of the log goes back in time", expected="steps in their order")
    if is_event and (twice := [pair for pair, n in Counter(map(tuple, found[:, :2].tolist())).items() if n > 1]):
        step, request = twice[0]
        raise BrokenRuleError(f"step {step}: request {request} is named twice in `{name}`", expected="once at most")


def as_given(arrays: Arrays) -> Arrays:
    """Give what a log is held against: the inputs, from which it is played again."""
    return arrays


def judge(replay: Callable[[Arrays, Arrays], None]) -> Callable[[Arrays, Arrays], Mismatch | None]:
    """A check's `compare`, from a function that plays a log again and raises BrokenRuleError where it breaks a rule."""

    def compare(got: Arrays, expected: Arrays) -> Mismatch | None:
        try:
            replay(got, expected)
        except BrokenRuleError as broken:
            return broken.mismatch
        return None

    return compare


def group(pairs: Iterable[Sequence[int]]) -> dict[int, list[int]]:
    """Second numbers by first, in their order."""
    found: dict[int, list[int]] = {}
    for one, other in pairs:
        found.setdefault(one, []).append(other)
    return found
