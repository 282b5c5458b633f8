"""How lab 11's checks call the learner's code: scripts on blocks and tables, schedulers under a load, three functions.

Scripts, loads and logs cross as JSON, in the arrays `case` and `log`. A log says what came back from each call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mlsys_checks.sandboxed.spec import Arrays
from mlsys_checks.sandboxed.values import decode_value, describe_value, encode_value, integer, whole
from mlsys_lab.errors import InputError

VOCABULARY = 5
"""Tokens of prompts and outputs under a load: 0 to VOCABULARY - 1."""


def next_token(tokens: Sequence[int]) -> int:
    """The token that the stand-in for a model samples after these."""
    return (7 * sum(tokens[-3:]) + len(tokens)) % VOCABULARY


def play_blocks(artifact: Any, arrays: Arrays) -> Arrays:
    """Play a script of calls on a block manager, while one block of a second manager is allocated.

    `blocks` of the log are what allocate and find give, None for no block. Calls name a block by its place there.
    """
    case = decode_value(arrays["case"])
    kind, num_blocks = getattr(artifact, case["manager"]), case["num_blocks"]
    manager, other = kind(num_blocks), kind(num_blocks)
    _allocate(other)
    blocks: list[int | None] = []
    counts = [_count(manager, case)]
    for call, *arguments in case["script"]:
        if call == "allocate":
            blocks.append(_allocate(manager))
        elif call == "find":
            found = manager.find(*arguments)
            blocks.append(None if found is None else integer("find(key)", found))
        elif blocks[arguments[0]] is None:
            break
        else:
            getattr(manager, call)(blocks[arguments[0]], *arguments[1:])
        counts.append(_count(manager, case))
    if (found := integer("available", other.available)) != num_blocks - 1:
        raise InputError(
            "calls on one block manager change another", got=f"{found} blocks available", expected="all but 1"
        )
    return {"log": encode_value({"blocks": blocks, "counts": counts})}


def _allocate(manager: Any) -> int | None:
    """A block, or None where there is none."""
    try:
        block = integer("allocate()", manager.allocate())
    except ValueError:
        return None
    if block < 0:
        raise InputError("allocate() gives no block", got=str(block), expected="a block's number, or ValueError")
    return block


def _count(manager: Any, case: dict[str, Any]) -> Any:
    """How many blocks are available and the references of each; of a large pool how many are available, read often."""
    if case["reads"]:
        return [integer("available", manager.available) for _ in range(case["reads"])][-1]
    return count_blocks(manager)


def count_blocks(manager: Any) -> tuple[int, list[int]]:
    """How many blocks are available, which must be all that are not used, and the references of each."""
    available, count = integer("available", manager.available), len(manager.references)
    if (both := integer("used", manager.used) + available) != count:
        what = "blocks that are used and blocks that are available are not all blocks"
        raise InputError(what, got=f"{both} together", expected=str(count))
    return available, [integer("a reference count", manager.references[block]) for block in range(count)]


SHIFT = 3
"""Added to all tokens in the second tables, so that no block of theirs is known by a key of the first."""


def make_tables(artifact: Any, case: dict[str, Any], block_size: int = 0) -> Any:
    """Empty tables on a pool of their own."""
    manager = getattr(artifact, case["manager"])(case["num_blocks"])
    return getattr(artifact, case["tables"])(manager, block_size or case["block_size"])


def table_of(tables: Any, number: int) -> list[int]:
    """The block table of a sequence."""
    return [integer("a block of a table", block) for block in tables.table(number)]


class _Tables:
    """Tables while calls are made on them, sequences by their places in the case, and what was lent to the calls."""

    def __init__(self, artifact: Any, case: dict[str, Any], shift: int = 0) -> None:
        self.tables = make_tables(artifact, case)
        self.prompts = [[token + shift for token in prompt] for prompt in case["prompts"]]
        self.numbers: dict[int, Any] = {}
        self.lent: list[tuple[str, Any, Any]] = []

    def start(self, seq: int, count: int) -> None:
        """Start a sequence with the first tokens of its prompt."""
        tokens = self.prompts[seq][:count]
        self.lent.append(("start", tokens, tokens.copy()))
        self.numbers[seq] = self.tables.start(tokens)

    def try_reserve(self, counts: list[list[int]], spare: int) -> bool:
        """Make room for tokens of sequences: whether there was."""
        asked = {self.numbers[seq]: count for seq, count in counts}
        self.lent.append(("try_reserve", asked, asked.copy()))
        answer = self.tables.try_reserve(asked, spare=spare) if spare else self.tables.try_reserve(asked)
        if not isinstance(answer, bool | np.bool_):
            raise InputError("try_reserve gives no truth value", got=repr(answer)[:60], expected="True or False")
        return bool(answer)

    def commit(self, counts: list[list[int]]) -> None:
        """Commit the next tokens of sequences."""
        new = {}
        for seq, count in counts:
            first = self.tables.length(self.numbers[seq])
            new[self.numbers[seq]] = self.prompts[seq][first : first + count]
        self.lent.append(("commit", new, {number: tokens.copy() for number, tokens in new.items()}))
        self.tables.commit(new)

    def drop(self, seq: int) -> None:
        """Drop a sequence, and check that it is forgotten; any error says that it is."""
        number = self.numbers.pop(seq)
        self.tables.drop(number)
        for name in ("table", "length"):
            try:
                left = getattr(self.tables, name)(number)
            except Exception:  # whatever the learner's books raise for a number that they do not have
                continue
            if left:
                got = f"{name} of it gives {describe_value(left)}"
                raise InputError(
                    "a sequence that was dropped is not forgotten", got=got, expected="no blocks or tokens"
                )

    def lengths(self) -> list[tuple[int, int]]:
        """How many tokens of each sequence are computed."""
        return [(seq, integer("length", self.tables.length(number))) for seq, number in self.numbers.items()]


def play_tables(artifact: Any, arrays: Arrays) -> Arrays:
    """Play a script of calls on tables, and with other tokens on second tables, which must do the same.

    `num_blocks` of the log are what `pages` gives for pairs of block size and tokens.
    """
    case = decode_value(arrays["case"])
    first, second = _Tables(artifact, case), _Tables(artifact, case, SHIFT)
    steps = []
    for call, *arguments in case["script"]:
        answer, _ = getattr(first, call)(*arguments), getattr(second, call)(*arguments)
        steps.append(
            {
                "answer": answer,
                "lengths": first.lengths(),
                "tables": [(seq, table_of(first.tables, number)) for seq, number in first.numbers.items()],
                "counts": count_blocks(first.tables.blocks),
                "second": (second.lengths(), integer("available", second.tables.blocks.available)),
            }
        )
    if changed := [name for name, now, before in first.lent if now != before]:
        raise InputError(f"what {changed[0]} was given is changed", expected="as it was: copy what has to be kept")
    empty = make_tables(artifact, case)
    number = empty.start()
    empty.try_reserve({number: 1})
    empty.commit({number: [0]})
    num_blocks = [integer("pages", make_tables(artifact, case, size).pages(tokens)) for size, tokens in case["sizes"]]
    return {"log": encode_value({"steps": steps, "num_blocks": num_blocks})}


def serve(load: dict[str, Any], server: Any) -> None:
    """Let a load's requests arrive, run and leave by its clock: seconds of a step, a new token, a computed token.

    Requests go by their places in the load. The server has `add(i, now_s)`; `finish(i)`, which aborts a request;
    `step(now_s)`, which gives new and computed tokens of each sequence in a step; and `sample(now_s)`, which gives the
    requests that got their last token.
    """
    arrivals_s, leaves_s, (step_s, token_s, computed_s) = load["arrivals_s"], load["leaves_s"], load["clock"]
    waiting = sorted(range(len(arrivals_s)), key=lambda i: arrivals_s[i])
    present: list[int] = []
    now_s = 0.0
    while waiting or present:
        if not present:
            now_s = max(now_s, arrivals_s[waiting[0]])
        while waiting and arrivals_s[waiting[0]] <= now_s:
            present.append(waiting.pop(0))
            server.add(present[-1], now_s)
        for i in [i for i in present if leaves_s[i] <= now_s]:
            present.remove(i)
            server.finish(i)
        if present:
            parts = server.step(now_s)
            now_s += step_s + token_s * sum(new for new, _ in parts) + computed_s * sum(past for _, past in parts)
            for i in server.sample(now_s):
                present.remove(i)


def schedule(artifact: Any, arrays: Arrays) -> Arrays:
    """Serve a load with the learner's scheduler: a log of its steps, and the counts of blocks at the end."""
    load = decode_value(arrays["case"])
    server = _Recorder(artifact, load)
    serve(load, server)
    return {"log": encode_value({"steps": server.steps, "end": count_blocks(server.scheduler.tables.blocks)})}


FIXED = ("prompt", "most", "arrived_s")
"""Attributes of a sequence that never change."""


class _Recorder:
    """The learner's scheduler, and a log of what it decides."""

    def __init__(self, artifact: Any, load: dict[str, Any]) -> None:
        kind, arguments = getattr(artifact, load["scheduler"]), []
        if load["scheduler"] == "PromisedScheduler":
            arguments = [artifact.Clock(*load["clock"]), artifact.Objective(*load["objective"])]
        self.scheduler = kind(make_tables(artifact, load), artifact.Limits(*load["limits"]), *arguments)
        self.load, self.steps = load, list[dict[str, Any]]()
        self.sequences: dict[int, Any] = {}
        self.fixed: dict[int, list[Any]] = {}
        self.batch: Any = None

    def add(self, i: int, now_s: float) -> None:
        """Add a request, and check that its sequence knows the length of its prompt."""
        self.scheduler.now_s = now_s
        self.sequences[i] = one = self.scheduler.add(self.load["prompts"][i], self.load["outputs"][i])
        if (found := integer("prompt", one.prompt)) != (length := len(self.load["prompts"][i])):
            raise InputError("a sequence does not know how long its prompt is", got=str(found), expected=str(length))
        self.fixed[i] = [getattr(one, name, None) for name in FIXED]

    def finish(self, i: int) -> None:
        """Finish a request, which then has its tokens still, and no number."""
        one = self.sequences.pop(i)
        before = list(one.tokens)
        self.scheduler.finish(one)
        if list(one.tokens) != before:
            raise InputError(
                "`finish` changes the tokens of a sequence", got=f"{len(one.tokens)}", expected=f"{len(before)}"
            )
        if one.number is not None:
            raise InputError("a sequence has a number after `finish`", got=describe_value(one.number), expected="None")
        self._require_idle()

    def step(self, now_s: float) -> list[tuple[int, int]]:
        """Schedule a step, write it down, and commit its tokens."""
        scheduler, tables = self.scheduler, self.scheduler.tables
        scheduler.now_s = now_s
        self._require_idle()
        for i in self.load["admits"] if not self.steps else ():
            if not scheduler.admit(self.sequences[i]):
                raise InputError(f"admit({i}) is False although there is room", got="False", expected="True")
        if len(self.steps) > self.load["max_steps"]:
            raise InputError("requests have not finished", got=f"{len(self.steps)} steps")
        self.batch = batch = self._schedule()
        parts = [(len(tokens), integer("length", tables.length(number))) for number, tokens in batch.new.items()]
        running = {one.number: i for i, one in self.sequences.items() if one.number is not None}
        if strangers := [number for number in batch.new if number not in running]:
            raise InputError(
                f"step {len(self.steps)} schedules a sequence that does not run", got=f"number {strangers[0]}"
            )
        fed = [
            (running[number], past, [integer("a token", token) for token in tokens])
            for (number, tokens), (_, past) in zip(batch.new.items(), parts, strict=True)
        ]
        self.steps.append(
            {
                "fed": fed,
                "sampled": self._find("writers"),
                "preempted": self._find("preempted"),
                "tables": [(i, table_of(tables, number)) for number, i in running.items()],
                "available": count_blocks(tables.blocks)[0],
            }
        )
        tables.commit(batch.new)
        return parts

    def sample(self, now_s: float) -> list[int]:
        """Append a token to the sequences that are sampled, and finish those that have all."""
        finished = []
        for i in dict.fromkeys(self._find("writers")):
            one = self.sequences[i]
            self.scheduler.write(one, [next_token(one.tokens)])
            if len(one.tokens) == len(self.load["prompts"][i]) + self.load["outputs"][i]:
                finished.append(i)
            for name, before in zip(FIXED, self.fixed[i], strict=True):
                if (now := getattr(one, name, None)) != before:
                    raise InputError(
                        f"`{name}` of a sequence changes on the way", got=str(now)[:60], expected=str(before)
                    )
        if [list(tokens) for tokens in self.batch.new.values()] != [tokens for _, _, tokens in self.steps[-1]["fed"]]:
            raise InputError("a batch changes when its sequences grow", expected="lists of its own")
        for i in finished:
            self.finish(i)
        return finished

    def _schedule(self) -> Any:
        """A batch in which every sequence has a token."""
        batch, step = self.scheduler.schedule(), f"step {len(self.steps)} schedules"
        if not all(hasattr(batch, name) for name in ("new", "writers", "preempted")):
            raise InputError("schedule() gives no Batch", got=describe_value(batch), expected="a Batch")
        if not batch.new:
            raise InputError(
                f"{step} no sequence", got=f"{len(self.sequences)} that wait or run", expected="one at least"
            )
        if empty := [number for number, tokens in batch.new.items() if not len(tokens)]:
            raise InputError(
                f"{step} a sequence without a token", got=f"number {empty[0]}", expected="one or more each"
            )
        return batch

    def _find(self, name: str) -> list[int]:
        """The requests whose sequences are in a list of the batch."""
        places, found = {id(one): i for i, one in self.sequences.items()}, []
        for one in getattr(self.batch, name):
            if id(one) not in places:
                raise InputError(f"batch.{name} holds something else than a sequence", got=describe_value(one))
            found.append(places[id(one)])
        return found

    def _require_idle(self) -> None:
        idle, what = not self.sequences, "sequences wait or run" if self.sequences else "all requests have finished"
        if bool(found := self.scheduler.idle) != idle:
            raise InputError(f"{what}, and scheduler.idle is wrong", got=describe_value(found), expected=str(idle))


def steps_to_first(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `steps_to_first` for rows of prompt tokens, decoding sequences and token budget."""
    found = [whole("steps_to_first", artifact.steps_to_first(*row)) for row in arrays["rows"].tolist()]
    return {"steps": np.stack(found)}


WIDE = "counts, in blocks twice as large"
"""How many keys sequences have at another block size."""


def mix_kinds(texts: list[list[int]]) -> list[list[int] | tuple[int, ...]]:
    """The token ids, every second sequence of them a tuple."""
    return [tuple(tokens) if i % 2 else tokens for i, tokens in enumerate(texts)]


def keys(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `keys` for several sequences, at two block sizes: how many each has, and a number that equal keys share."""
    case, seen = decode_value(arrays["case"]), dict[Any, int]()
    texts, block_size = mix_kinds(case["texts"]), case["block_size"]
    found = [artifact.keys(tokens, block_size) for tokens in texts]
    if not all(isinstance(one, list | tuple) for one in found):
        raise InputError("keys gives no list", got=describe_value(found[0]), expected="a key for each full block")
    try:
        equal = [seen.setdefault(key, len(seen)) for one in found for key in one]
    except (TypeError, RecursionError) as error:  # no hash, or nested as deep as the sequence is long
        raise InputError("a key cannot be looked up", got=str(error)[:60], expected="a dictionary's key") from None
    wide = [len(artifact.keys(tokens, 2 * block_size)) for tokens in texts]
    counts = [len(one) for one in found]
    return {name: np.array(one, np.int64) for name, one in (("counts", counts), ("equal", equal), (WIDE, wide))}


def token_budget(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `token_budget` with clocks that are the slower of two lines, and some time for each pair of tokens."""
    case = decode_value(arrays["case"])
    clocks = [_make_clock(artifact, **clock) for clock in case["clocks"]]
    found = [artifact.token_budget(clocks[clock], *arguments) for clock, *arguments in case["calls"]]
    return {"tokens": np.stack([whole("token_budget", one) for one in found])}


def _make_clock(artifact: Any, compute: list[float], memory: list[float], pair_s: float, factor: int) -> Any:
    compute_s, memory_s = artifact.Clock(*compute), artifact.Clock(*memory)

    def clock(parts: Any) -> float:
        parts = list(parts)
        pairs = sum(int(new) * int(past) + int(new) * (int(new) + 1) // 2 for new, past in parts)
        return factor * (max(float(compute_s(parts)), float(memory_s(parts))) + pair_s * pairs)

    return clock
