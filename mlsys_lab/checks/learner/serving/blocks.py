"""Tasks 1 and 4: pools, tables and keys from arrays, and what each call of a script gives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from mlsys_lab.checks.learner.spec import Arrays
from mlsys_lab.checks.learner.values import describe_value, whole
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
    found = list(manager.references)
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
    `often` says so: there are many of a large pool.
    """
    _, name = TABLES[int(arrays["prefix"])]
    kind, count, often = getattr(artifact, name), int(arrays["count"]), bool(arrays["often"])
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
            found = manager.find(("key", key))
            answer = -1 if found is None else int(whole("find(key)", found))
            given.append(answer)
        elif what == REGISTER:
            manager.register(given[which], ("key", key))
        else:
            (manager.share if what == SHARE else manager.release)(given[which])
        answers.append(answer)
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


def tables(artifact: Any, arrays: Arrays) -> Arrays:
    """Play a script on tables: what each call gives, and lengths, tables and counts after it.

    Other tables, in which a text of no tokens is given a block and a token, are left alone, and so are lists and
    dictionaries that calls are given.
    """
    kept, other = make_tables(artifact, arrays), make_tables(artifact, arrays)
    texts, script = ragged(arrays["tokens"], arrays["lengths"]), list(script_of(arrays["script"]))
    numbers: dict[int, int] = {}
    given, lengths, held, counts, lent = [], [], [], [], list[tuple[str, Any, Any]]()
    for step, calls in enumerate(script):
        what = calls[0][0]
        answer = True
        if what == START:
            begun = texts[calls[0][1]][: calls[0][2]]
            lent.append(("start", begun, begun.copy()))
            numbers[calls[0][1]] = kept.start(begun)
        elif what == RESERVE:
            asked = {numbers[text]: count for _, text, count, _ in calls}
            lent.append(("try_reserve", asked, asked.copy()))
            answer = kept.try_reserve(asked, spare=calls[0][3]) if calls[0][3] else kept.try_reserve(asked)
            if not isinstance(answer, bool | np.bool_):
                raise InputError("try_reserve gives no truth value", got=repr(answer)[:60], expected="True or False")
        elif what == COMMIT:
            parts = {text: (kept.length(numbers[text]), count) for _, text, count, _ in calls}
            new = {numbers[text]: texts[text][at : at + count] for text, (at, count) in parts.items()}
            lent.append(("commit", new, {number: part.copy() for number, part in new.items()}))
            kept.commit(new)
        else:
            kept.drop(numbers.pop(calls[0][1]))
        if not step:
            apart = other.start()
            other.try_reserve({apart: 1})
            other.commit({apart: [0]})
        given.append(bool(answer))
        lengths += [(step, text, int(whole("length", kept.length(one)))) for text, one in numbers.items()]
        held += [(step, text, block) for text, one in numbers.items() for block in table_of(kept, one)]
        counts.append(counts_of(kept.blocks))
    if changed := [name for name, now, before in lent if now != before]:
        raise InputError(f"what {changed[0]} was given is changed", expected="as it was: copy what has to be kept")
    _leave_alone(other.blocks, int(arrays["pool"][0]) - 1)
    if len(table_of(other, apart)) != 1:
        raise InputError("calls on one pool's tables change another's", expected="books of their own")
    pages = [int(whole("pages", kept.pages(count))) for count in arrays["pages"].tolist()]
    log = {"given": np.array(given), "lengths": rows(lengths, 3), "held": rows(held, 3), "pages": np.array(pages)}
    return told_of(counts) | log


def script_of(script: np.ndarray) -> Iterator[list[list[int]]]:
    """Calls of a script, (rows, 5) of step, what, text, count, spare: rows of one step are one call."""
    for step in range(int(script[-1, 0]) + 1):
        yield script[script[:, 0] == step, 1:].tolist()


def table_of(kept: Any, one: int) -> list[int]:
    """Blocks of a text."""
    return [int(whole("a block of a table", block)) for block in kept.table(one)]


def keys(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `keys` for several texts: a number for each key, in which two are equal where the keys are."""
    seen: dict[Any, int] = {}
    texts = ragged(arrays["tokens"], arrays["lengths"])
    found = [artifact.keys(text, int(arrays["page"])) for text in texts]
    if not all(isinstance(one, list | tuple) for one in found):
        raise InputError("keys gives no list", got=describe_value(found[0]), expected="a key for each full block")
    alike = [[seen.setdefault(key, len(seen)) for key in one] for one in found]
    counts = np.array([len(one) for one in found], dtype=np.int64)
    return {"counts": counts, "alike": np.array([number for one in alike for number in one], dtype=np.int64)}
