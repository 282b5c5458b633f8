"""How lab 11's checks call the learner's code: pools, tables and schedulers from arrays, and a log of each step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from mlsys_lab.checks.learner.spec import Arrays
from mlsys_lab.checks.learner.values import describe_value, number, whole
from mlsys_lab.errors import InputError

ALLOCATE, SHARE, RELEASE, REGISTER, FIND = range(5)
"""What a script of blocks does; SHARE, RELEASE and REGISTER name a block by the place at which it was given."""
START, RESERVE, COMMIT, DROP = range(4)
"""What a script of tables does."""
TABLES = (("PageTables", "BlockManager"), ("PrefixTables", "PrefixBlocks"))
SCHEDULERS = ("Scheduler", "ChunkedScheduler", "PreemptiveScheduler", "PromisedScheduler")
"""Classes that cross as their places here."""
WRITTEN = 5
"""Tokens that the stand-in for a model can write: 0 to WRITTEN - 1."""


def following(tokens: list[int]) -> int:
    """The token that the stand-in for a model writes after a text."""
    return (7 * sum(tokens[-3:]) + len(tokens)) % WRITTEN


def ragged(flat: np.ndarray, lengths: np.ndarray) -> list[list[int]]:
    """Lists of these lengths, which lie one after the other."""
    return [part.tolist() for part in np.split(flat, np.cumsum(lengths)[:-1])] if len(lengths) else []


def rows(found: list[Any], width: int) -> np.ndarray:
    """Rows of whole numbers, of which there may be none: (len(found), width) int64."""
    return np.array(found, dtype=np.int64).reshape(-1, width)


# --- Tasks 1 and 4: blocks and tables ---------------------------------------------------------------------------------


def _references(manager: Any) -> list[int]:
    found = list(manager.references)
    return found if all(type(one) is int for one in found) else [int(whole("a reference count", one)) for one in found]


def _counts(manager: Any) -> tuple[np.ndarray, list[int]]:
    return whole("available", manager.available), _references(manager)


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


def _told_of(counts: list[tuple[np.ndarray, list[int]]]) -> Arrays:
    return _told(*map(list, zip(*counts, strict=True)))


def make_tables(artifact: Any, arrays: Arrays) -> Any:
    """Empty tables on a pool of their own, as the case asks for them."""
    tables, manager = (getattr(artifact, name) for name in TABLES[int(arrays["prefix"])])
    count, page = arrays["pool"].tolist()
    return tables(manager(count), page)


def tables(artifact: Any, arrays: Arrays) -> Arrays:
    """Play a script on tables: what each call gives, and lengths, tables and counts after it.

    Other tables, of which one text has a block, are left alone, and so are lists and dictionaries that calls are given.
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
        given.append(bool(answer))
        lengths += [(step, text, int(whole("length", kept.length(one)))) for text, one in numbers.items()]
        held += [(step, text, block) for text, one in numbers.items() for block in _table(kept, one)]
        counts.append(_counts(kept.blocks))
    if changed := [name for name, now, before in lent if now != before]:
        raise InputError(f"what {changed[0]} was given is changed", expected="as it was: copy what has to be kept")
    _leave_alone(other.blocks, int(arrays["pool"][0]) - 1)
    if len(_table(other, apart)) != 1:
        raise InputError("calls on one pool's tables change another's", expected="books of their own")
    pages = [int(whole("pages", kept.pages(count))) for count in arrays["pages"].tolist()]
    log = {"given": np.array(given), "lengths": rows(lengths, 3), "held": rows(held, 3), "pages": np.array(pages)}
    return _told_of(counts) | log


def script_of(script: np.ndarray) -> Iterator[list[list[int]]]:
    """Calls of a script, (rows, 5) of step, what, text, count, spare: rows of one step are one call."""
    for step in range(int(script[-1, 0]) + 1):
        yield script[script[:, 0] == step, 1:].tolist()


def _table(kept: Any, one: int) -> list[int]:
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


# --- Tasks 2 to 6: schedulers -----------------------------------------------------------------------------------------


def make_scheduler(artifact: Any, arrays: Arrays) -> Any:
    """The case's scheduler, with nothing to do yet."""
    limits = artifact.Limits(*arrays["limits"].tolist())
    name, kept = SCHEDULERS[int(arrays["scheduler"])], make_tables(artifact, arrays)
    if name == SCHEDULERS[-1]:
        promise = artifact.Objective(*arrays["objective"].tolist())
        return artifact.PromisedScheduler(kept, limits, artifact.Clock(*arrays["clock"].tolist()), promise)
    return getattr(artifact, name)(kept, limits)


class Log:
    """What a scheduler decided, step by step, with requests named by their places in the case."""

    def __init__(self) -> None:
        self.fed: list[tuple[int, ...]] = []
        self.tokens: list[int] = []
        self.held: list[tuple[int, ...]] = []
        self.counts: list[tuple[np.ndarray, list[int]]] = []
        self.noted: dict[str, list[tuple[int, int]]] = {"writers": [], "preempted": []}
        self.steps = 0

    def add(self, scheduler: Any, here: Mapping[int, Any], batch: Any) -> None:
        """Note a step that has been put together and not been run."""
        kept, requests = scheduler.tables, {id(one): i for i, one in here.items()}
        numbers = {one.number: i for i, one in here.items() if one.number is not None}
        for number_of, part in batch.new.items():
            if number_of not in numbers:
                raise InputError(f"step {self.steps} feeds a text that does not run", got=f"number {number_of}")
            self.fed.append((self.steps, numbers[number_of], int(kept.length(number_of)), len(part)))
            self.tokens += [int(whole("a token", token)) for token in part]
        for name, noted in self.noted.items():
            for one in getattr(batch, name):
                if id(one) not in requests:
                    raise InputError(f"batch.{name} holds something else than a text", got=describe_value(one))
                noted.append((self.steps, requests[id(one)]))
        self.held += [(self.steps, i, block) for one, i in numbers.items() for block in _table(kept, one)]
        self.counts.append(_counts(kept.blocks))
        self.steps += 1

    def arrays(self, scheduler: Any) -> Arrays:
        """The log, with counts once more at the end."""
        log = {"fed": rows(self.fed, 4), "tokens": np.array(self.tokens, dtype=np.int64), "held": rows(self.held, 3)}
        noted = {name: rows(found, 2) for name, found in self.noted.items()}
        return _told_of([*self.counts, _counts(scheduler.tables.blocks)]) | log | noted


def schedule(artifact: Any, arrays: Arrays) -> Arrays:
    """Drive a scheduler through the requests of a case, by a clock along a line: a log of its steps."""
    scheduler, log = make_scheduler(artifact, arrays), Log()
    prompts, writes = ragged(arrays["prompts"], arrays["lengths"]), arrays["writes"].tolist()
    comes_s, leaves_s = arrays["comes_s"].tolist(), arrays["leaves_s"].tolist()
    step_s, token_s, cached_s = arrays["clock"].tolist()
    coming = sorted(range(len(prompts)), key=lambda i: comes_s[i])
    here: dict[int, Any] = {}
    now_s = 0.0
    while coming or here:
        if not here:
            now_s = max(now_s, comes_s[coming[0]])
        scheduler.now_s = now_s
        while coming and comes_s[coming[0]] <= now_s:
            here[coming[0]] = scheduler.add(prompts[coming[0]], writes[coming[0]])
            coming.pop(0)
        for i in [i for i in here if leaves_s[i] <= now_s]:
            scheduler.finish(here.pop(i))
        if not here:
            continue
        batch = _batch_of(scheduler, len(here), log.steps)
        log.add(scheduler, here, batch)
        if log.steps > int(arrays["most_steps"]):
            raise InputError(f"requests have not ended after {log.steps} steps", got=f"{len(here)} that wait or run")
        parts = [(len(part), int(scheduler.tables.length(one))) for one, part in batch.new.items()]
        now_s += step_s + token_s * sum(new for new, _ in parts) + cached_s * sum(past for _, past in parts)
        scheduler.tables.commit(batch.new)
        for i in [i for i, one in here.items() if any(one is writer for writer in batch.writers)]:
            scheduler.write(here[i], [following(here[i].tokens)])
            if len(here[i].tokens) == len(prompts[i]) + writes[i]:
                scheduler.finish(here.pop(i))
    return log.arrays(scheduler)


def _batch_of(scheduler: Any, here: int, step: int) -> Any:
    batch = scheduler.schedule()
    if not all(hasattr(batch, name) for name in ("new", "writers", "preempted")):
        raise InputError("schedule() gives no Batch", got=describe_value(batch), expected="a Batch")
    if not batch.new:
        raise InputError(f"step {step} feeds nobody", got=f"{here} texts that wait or run", expected="one at least")
    if empty := [one for one, part in batch.new.items() if not len(part)]:
        raise InputError(f"step {step} feeds a text no token", got=f"number {empty[0]}", expected="one or more each")
    return batch


def steps_to_first(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `steps_to_first` for rows of prompt, writers and tokens."""
    found = [whole("steps_to_first", artifact.steps_to_first(*row)) for row in arrays["asked"].tolist()]
    return {"steps": np.stack(found)}


def token_budget(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `token_budget` with a clock: the slower of two lines, and some time for each token that another looks at."""
    compute_s, memory_s = (artifact.Clock(*line) for line in arrays["clocks"].tolist())
    pair_s = float(arrays["pair_s"])

    def clock(parts: Any) -> float:
        parts = list(parts)
        pairs = sum(int(new) * int(past) + int(new) * (int(new) + 1) // 2 for new, past in parts)
        return max(float(compute_s(parts)), float(memory_s(parts))) + pair_s * pairs

    writers, past = arrays["asked"].tolist()
    got = artifact.token_budget(clock, writers, past, float(number("tpot_s", arrays["tpot_s"])))
    return {"tokens": whole("token_budget", got)}
