"""Tasks 1 and 4: pools, tables and keys from arrays, and what each call of a script gives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from mlsys_checks.sandboxed.spec import Arrays
from mlsys_checks.sandboxed.values import describe_value, whole
from mlsys_lab.errors import InputError

ALLOCATE, SHARE, RELEASE, REGISTER, FIND = range(5)
"""What a script of blocks does; SHARE, RELEASE and REGISTER name a block by the place at which it was given."""
START, RESERVE, COMMIT, DROP = range(4)
"""What a script of tables does."""
TABLES = (("PageTables", "BlockManager"), ("PrefixTables", "PrefixBlocks"))
"""Classes that cross as their places here."""


def ragged(flat: np.ndarray, lengths: np.ndarray) -> list[list[int]]:
    """Lists of these lengths, which lie one after the other."""
    return [part.tolist() for part in np.split(flat, np.cumsum(lengths)[:-1])] if len(lengths) else []


def rows(found: list[Any], width: int) -> np.ndarray:
    """Rows of whole numbers, of which there may be none: (len(found), width) int64."""
    return np.array(found, dtype=np.int64).reshape(-1, width)


def _references(manager: Any) -> list[int]:
    found = [manager.references[block] for block in range(len(manager.references))]  # a list, an array, a dictionary
    return found if all(type(one) is int for one in found) else [int(whole("a reference count", one)) for one in found]


def counts_of(manager: Any) -> tuple[np.ndarray, list[int]]:
    """How many blocks are available, which must be all that are not used, and the references of each."""
    available, references = whole("available", manager.available), _references(manager)
    if (together := int(whole("used", manager.used)) + int(available)) != len(references):
        what = "blocks that are used and blocks that are available are not all blocks"
        raise InputError(what, got=f"{together} together", expected=f"{len(references)}")
    return available, references


def blocks(artifact: Any, arrays: Arrays) -> Arrays:
    """Play a script on a block manager: what each step gives, and counts after it; -1 where there is no block.

    Another pool, of which one block is given out before, is left alone. References are counted after each step only if
    `often` says so: there are many of a large pool. `asks` says how often `available` is read after each step.
    """
    _, name = TABLES[int(arrays["prefix"])]
    kind, count, often = getattr(artifact, name), int(arrays["count"]), bool(arrays["often"])
    more = range(int(arrays["asks"]) - 1)
    manager, other, script = kind(count), kind(count), arrays["script"].tolist()
    _allocate(other)
    given: list[int] = []
    answers, available = [], [whole("available", manager.available)]
    references = [_references(manager)]
    for what, which, key in script:
        answer = -1
        if what == ALLOCATE:
            answer = _allocate(manager)
            given.append(answer)
        elif what == FIND:
            found = manager.find(key)
            answer = -1 if found is None else int(whole("find(key)", found))
            given.append(answer)
        elif what == REGISTER:
            manager.register(given[which], key)
        else:
            (manager.share if what == SHARE else manager.release)(given[which])
        answers.append(answer)
        for _ in more:
            _ = manager.available
        available.append(whole("available", manager.available))
        if often:
            references.append(_references(manager))
    counts = _told(available, references if often else [*references, _references(manager)])
    _leave_alone(other, count - 1)
    return counts | {"given": np.array(answers, dtype=np.int64)}


def _allocate(manager: Any) -> int:
    """A block, or -1 where there is none."""
    try:
        block = int(whole("allocate()", manager.allocate()))
    except ValueError:
        return -1
    if block < 0:
        raise InputError("allocate() gives no block", got=str(block), expected="a block's number, or ValueError")
    return block


def _leave_alone(other: Any, available: int) -> None:
    if (found := int(whole("available", other.available))) != available:
        what = "calls on one pool change another"
        raise InputError(what, got=f"{found} blocks available there", expected=f"{available}, as before")


def _told(available: list[np.ndarray], references: list[list[int]]) -> Arrays:
    if len({len(one) for one in references}) > 1:
        raise InputError("`references` changes its length", expected="a count for each block")
    return {"available": np.stack(available), "references": np.array(references, dtype=np.int64)}


def told_of(counts: list[tuple[np.ndarray, list[int]]]) -> Arrays:
    """Counts of several moments, as a log has them."""
    return _told(*map(list, zip(*counts, strict=True)))


def make_tables(artifact: Any, arrays: Arrays) -> Any:
    """Empty tables on a pool of their own, as the case asks for them."""
    tables, manager = (getattr(artifact, name) for name in TABLES[int(arrays["prefix"])])
    count, page = arrays["pool"].tolist()
    return tables(manager(count), page)


APART = 3
"""How much larger the tokens of texts in other tables are, so that nothing of them is known in these."""


class _Played:
    """Tables while calls are made on them, and what they were lent for it."""

    def __init__(self, kept: Any, texts: list[list[int]]) -> None:
        self.kept, self.texts = kept, texts
        self.numbers: dict[int, Any] = {}
        self.lent: list[tuple[str, Any, Any]] = []

    def call(self, calls: list[list[int]]) -> bool:
        """Make a call, and say what it gives."""
        (what, text, number, spare), kept = calls[0], self.kept
        if what == START:
            begun = self.texts[text][:number]
            self.lent.append(("start", begun, begun.copy()))
            self.numbers[text] = kept.start(begun)
        elif what == RESERVE:
            asked = {self.numbers[text]: count for _, text, count, _ in calls}
            self.lent.append(("try_reserve", asked, asked.copy()))
            answer = kept.try_reserve(asked, spare=spare) if spare else kept.try_reserve(asked)
            if not isinstance(answer, bool | np.bool_):
                raise InputError("try_reserve gives no truth value", got=repr(answer)[:60], expected="True or False")
            return bool(answer)
        elif what == COMMIT:
            parts = {text: (kept.length(self.numbers[text]), count) for _, text, count, _ in calls}
            new = {self.numbers[text]: self.texts[text][at : at + count] for text, (at, count) in parts.items()}
            self.lent.append(("commit", new, {number: part.copy() for number, part in new.items()}))
            kept.commit(new)
        else:
            kept.drop(gone := self.numbers.pop(text))
            _require_forgotten(kept, gone)
        return True

    def lengths(self) -> list[tuple[int, int]]:
        """How many tokens are kept of each text, by its place in the case."""
        return [(text, int(whole("length", self.kept.length(one)))) for text, one in self.numbers.items()]


def tables(artifact: Any, arrays: Arrays) -> Arrays:
    """Play a script on tables: what each call gives, and lengths, tables and counts after it.

    The same calls are made on other tables, with other tokens: `apart` has their lengths and what is available there,
    which must be as here. Lists and dictionaries that calls are given are left alone.
    """
    texts = ragged(arrays["tokens"], arrays["lengths"])
    played = _Played(make_tables(artifact, arrays), texts)
    other = _Played(make_tables(artifact, arrays), [[token + APART for token in text] for text in texts])
    given, lengths, held, counts, apart = [], [], [], [], list[tuple[int, int, int]]()
    for step, calls in enumerate(script_of(arrays["script"])):
        given.append(played.call(calls))
        other.call(calls)
        lengths += [(step, text, length) for text, length in played.lengths()]
        held += [(step, text, block) for text, one in played.numbers.items() for block in table_of(played.kept, one)]
        counts.append(counts_of(played.kept.blocks))
        available = int(whole("available", other.kept.blocks.available))
        apart += [(step, -1, available), *((step, text, length) for text, length in other.lengths())]
    if changed := [name for name, now, before in played.lent if now != before]:
        raise InputError(f"what {changed[0]} was given is changed", expected="as it was: copy what has to be kept")
    _start_empty(make_tables(artifact, arrays))
    sizes = {
        page: make_tables(artifact, {**arrays, "pool": np.array([1, page])}) for page in arrays["pages"][:, 0].tolist()
    }
    pages = [int(whole("pages", sizes[page].pages(count))) for page, count in arrays["pages"].tolist()]
    log = {"given": np.array(given), "lengths": rows(lengths, 3), "held": rows(held, 3), "pages": np.array(pages)}
    return told_of(counts) | log | {"apart": rows(apart, 3)}


def _start_empty(kept: Any) -> None:
    """Give a text that is started without tokens a block and a token."""
    number = kept.start()
    kept.try_reserve({number: 1})
    kept.commit({number: [0]})


def _require_forgotten(kept: Any, one: int) -> None:
    """Look whether tables still have blocks or tokens of a text that was dropped; any error says that they have not."""
    for name in ("table", "length"):
        try:
            left = getattr(kept, name)(one)
        except Exception:  # whatever the learner's books raise for a number that they do not have
            continue
        if left:
            got = f"{name} of it gives {describe_value(left)}"
            raise InputError("a text that was dropped is not forgotten", got=got, expected="no blocks and no tokens")


def script_of(script: np.ndarray) -> Iterator[list[list[int]]]:
    """Calls of a script, (rows, 5) of step, what, text, count, spare: rows of one step are one call."""
    for step in range(int(script[-1, 0]) + 1):
        yield script[script[:, 0] == step, 1:].tolist()


def table_of(kept: Any, one: int) -> list[int]:
    """Blocks of a text."""
    return [int(whole("a block of a table", block)) for block in kept.table(one)]


WIDE = "counts, in blocks twice as large"
"""How many keys texts have at another size of blocks."""


def mixed_kinds(texts: list[list[int]]) -> list[list[int] | tuple[int, ...]]:
    """The texts, every other one a tuple."""
    return [tuple(text) if place % 2 else text for place, text in enumerate(texts)]


def _number(key: Any, seen: dict[Any, int]) -> int:
    """Number of a key among those that were seen, which one that is new joins."""
    try:
        return seen.setdefault(key, len(seen))
    except (TypeError, RecursionError) as error:  # no hash, or nested as deep as the text is long
        raise InputError("a key cannot be looked up", got=str(error)[:60], expected="a dictionary's key") from None


def keys(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `keys` for several texts: a number for each key, in which two are equal where the keys are.

    Every other text is a tuple, which has the keys of a list. And how many keys each has in blocks twice as large,
    which keys that are kept by their texts do not tell.
    """
    seen: dict[Any, int] = {}
    texts = mixed_kinds(ragged(arrays["tokens"], arrays["lengths"]))
    found = [artifact.keys(text, int(arrays["page"])) for text in texts]
    if not all(isinstance(one, list | tuple) for one in found):
        raise InputError("keys gives no list", got=describe_value(found[0]), expected="a key for each full block")
    alike = [[_number(key, seen) for key in one] for one in found]
    counts = np.array([len(one) for one in found], dtype=np.int64)
    wide = np.array([len(artifact.keys(text, 2 * int(arrays["page"]))) for text in texts], dtype=np.int64)
    flat = np.array([number for one in alike for number in one], dtype=np.int64)
    return {"counts": counts, "alike": flat, WIDE: wide}
