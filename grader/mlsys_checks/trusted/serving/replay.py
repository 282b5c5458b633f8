"""A scheduler's log, played again step by step: what each rule asks for, where every token lies, and who holds what.

Decisions follow from the rules alone: blocks that the log names are held against them, none is taken on trust. A log is
held against its grammar before it is played, so that no number in it can turn the clock or a count back.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import IntEnum

import numpy as np

from mlsys_checks.sandboxed.serving.blocks import ragged
from mlsys_checks.sandboxed.serving.schedulers import following
from mlsys_checks.sandboxed.spec import Arrays
from mlsys_checks.trusted.serving.pool import (
    BrokenRuleError,
    Memory,
    Pool,
    by_step,
    group,
    require_form,
    require_rows,
)


class Rules(IntEnum):
    """Which scheduler's rules hold; their numbers are those of `calls.SCHEDULERS`."""

    CONTINUOUS = 0
    CHUNKED = 1
    PREEMPTIVE = 2
    FREE = 3
    """Any order, any budget: only memory, and that everybody ends."""


class Replay:
    """Requests of a case, what of each is kept and where, and the clock, while a log is played again."""

    def __init__(self, asked: Arrays) -> None:
        self.rules, self.prefix = Rules(int(asked["scheduler"])), bool(asked["prefix"])
        count, self.page = map(int, asked["pool"])
        self.sequences, self.tokens = map(int, asked["limits"])
        self.clock_s, self.comes_s, self.leaves_s = (asked[name].tolist() for name in ("clock", "comes_s", "leaves_s"))
        self.texts = ragged(asked["prompts"], asked["lengths"])
        self.most = [len(text) + writes for text, writes in zip(self.texts, asked["writes"].tolist(), strict=True)]
        self.coming = sorted(range(len(self.texts)), key=self.comes_s.__getitem__)
        self.admits = asked["admits"].tolist()
        self.waiting: list[int] = []
        self.running: list[int] = []
        self.tables: dict[int, list[int]] = {}
        self.kept: dict[int, int] = {}
        self.pool, self.memory = Pool(count), Memory(self.page)
        self.most_steps, self.now_s = int(asked["most_steps"]), 0.0
        self.times_s: list[list[float]] = [[] for _ in self.texts]

    def play(self, got: Arrays) -> None:
        """Play a log to its end; BrokenRuleError where a rule is broken."""
        steps = self._require_grammar(got)
        if len(got["references"]) != steps + 1 or len(got["tokens"]) != got["fed"][:, 3].sum():
            raise BrokenRuleError("the log does not agree with itself")
        fed, *noted = (by_step(got[name], steps) for name in ("fed", "held", "writers", "preempted"))
        tokens = iter(got["tokens"].tolist())
        for step in range(steps):
            held, writers, preempted = (part[step] for part in noted)
            self.arrive()
            where = f"step {step}"
            self._step(
                where, {i: (first, count) for i, first, count in fed[step]}, group(held), [i for (i,) in preempted]
            )
            self.pool.compare(where, got["available"][step], got["references"][step])
            self._run(where, fed[step], [[next(tokens) for _ in range(count)] for _, _, count in fed[step]])
            self._write(where, [i for (i,) in writers])
        self.arrive()
        if self.coming or self.waiting or self.running:
            raise BrokenRuleError("the log ends although somebody waits or runs")
        self.pool.compare("at the end", got["available"][steps], got["references"][steps])

    def _require_grammar(self, got: Arrays) -> int:
        """Hold a log against its grammar; returns how many steps it has."""
        require_form(got, {"available": (None,), "references": (None, None), "fed": (None, 4), "tokens": (None,)})
        require_form(got, {"held": (None, 3), "writers": (None, 2), "preempted": (None, 2)})
        steps, longest = len(got["available"]) - 1, max(self.most)
        if not 0 <= steps <= self.most_steps:
            raise BrokenRuleError("the log has too many steps, or no end", steps, f"at most {self.most_steps}")
        requests = {"request": range(len(self.texts))}
        sizes = {"place of a first token": range(longest), "number of tokens": range(1, longest + 1)}
        blocks = {"block": range(len(self.pool.references))}
        require_rows(got, "fed", steps, requests | sizes)
        if len(set(got["fed"][:, 0].tolist())) < steps:
            raise BrokenRuleError("a step of the log feeds no request", expected="at least one request in each step")
        require_rows(got, "held", steps, requests | blocks, is_event=False)
        for name in ("writers", "preempted"):
            require_rows(got, name, steps, requests)
        return steps

    def arrive(self) -> None:
        """Let requests come and go until there is one that a step can feed."""
        while True:
            if not self.waiting and not self.running and self.coming:
                self.now_s = max(self.now_s, self.comes_s[self.coming[0]])
            while self.coming and self.comes_s[self.coming[0]] <= self.now_s:
                self.waiting.append(self.coming.pop(0))
            for i in [i for i in (*self.waiting, *self.running) if self.leaves_s[i] <= self.now_s]:
                self.end(i)
            if self.waiting or self.running or not self.coming:
                return

    def end(self, i: int) -> None:
        """Forget a request."""
        if i in self.waiting:
            self.waiting.remove(i)
        else:
            self.running.remove(i)
            self._give_back(i)

    def _give_back(self, i: int) -> None:
        for block in reversed(self.tables.pop(i)):
            self.pool.release(block)
        del self.kept[i]

    def _pending(self, i: int) -> int:
        return len(self.texts[i]) - self.kept[i]

    def _pages(self, tokens: int) -> int:
        return -(-tokens // self.page)

    # --- what a step decides ------------------------------------------------------------------------------------------

    def _step(
        self, where: str, fed: dict[int, tuple[int, int]], held: dict[int, list[int]], preempted: list[int]
    ) -> None:
        """Decide by the rules, and hold the log against it: who is fed how much, who gives way, who holds what."""
        if self.rules is Rules.FREE:
            self._follow(where, fed, held)
            return
        while self.admits:
            self._admit(where, self.admits.pop(0), held)
        left = math.inf if self.rules is Rules.CONTINUOUS else self.tokens
        gone, lacking = self._give_way([i for i in self.running if self._pending(i) == 1])
        for i, blocks in lacking.items():
            self._grow(where, i, held, blocks)
        expected = dict.fromkeys(lacking, 1)
        left -= len(expected)
        for i in [i for i in self.running if i not in expected]:
            count = int(min(self._pending(i), left))
            if count:
                expected[i], left = count, left - count
        while self.waiting and len(self.running) < self.sequences and left and self._has_room(self.waiting[0]):
            i = self.waiting[0]
            self._admit(where, i, held)
            count = int(min(self._pending(i), left))
            expected[i], left = count, left - count
        if sorted(preempted) != sorted(gone):
            raise BrokenRuleError(f"{where}: the wrong requests give way", preempted or "none", gone or "none")
        if strangers := sorted(set(held) - set(self.running)):
            raise BrokenRuleError(f"{where}: request {strangers[0]} runs", "admitted", "it waits")
        self._compare_fed(where, {i: count for i, (_, count) in fed.items()}, expected)
        self._compare_tables(where, held)

    def _compare_fed(self, where: str, fed: dict[int, int], expected: dict[int, int]) -> None:
        for i in sorted({*fed, *expected}):
            if fed.get(i, 0) != expected.get(i, 0):
                what = f"{where}: request {i} is fed the wrong number of tokens"
                raise BrokenRuleError(what, f"{fed.get(i, 0)}; all: {fed}", f"{expected.get(i, 0)}; all: {expected}")

    def _compare_tables(self, where: str, held: dict[int, list[int]]) -> None:
        for i in self.running:
            if held.get(i, []) != self.tables[i]:
                what = f"{where}: request {i} has the wrong blocks"
                raise BrokenRuleError(what, held.get(i, []), f"{self.tables[i]}, and none else")

    def _give_way(self, writers: list[int]) -> tuple[list[int], dict[int, int]]:
        """Let those who came last give way until writers find blocks for their tokens: who went, what others lack.

        Blocks are counted here and named later: a scheduler may look who gives way before it gives out the first.
        """
        gone: list[int] = []
        lacking: dict[int, int] = {}
        for i in writers:
            while i in self.running:
                more = max(0, self._pages(self.kept[i] + 1) - len(self.tables[i]))
                if self.rules is not Rules.PREEMPTIVE or sum(lacking.values()) + more <= self.pool.available:
                    lacking[i] = more
                    break
                gone.append(self.running.pop())
                self._give_back(gone[-1])
                self.waiting.insert(0, gone[-1])
        return gone, lacking

    def _grow(self, where: str, i: int, held: dict[int, list[int]], lacking: int) -> None:
        """Take the blocks that the log gives to a text beyond those that it has."""
        new = held.get(i, [])[len(self.tables[i]) :]
        if len(new) != lacking:
            got = f"{len(held.get(i, []))} blocks" if i in held else "it does not run"
            raise BrokenRuleError(f"{where}: request {i} runs", got, f"with {len(self.tables[i]) + lacking} blocks")
        self.pool.take(new, f"{where}, request {i}", in_order=False)
        self.tables[i] += new

    def _asked(self, i: int) -> int:
        """Blocks that a text needs to be admitted, shared ones included."""
        return self._pages(len(self.texts[i]) if self.rules is Rules.PREEMPTIVE else self.most[i] - 1)

    def _found(self, i: int) -> list[int]:
        return self.pool.find(self.texts[i], self.page) if self.prefix else []

    def _has_room(self, i: int) -> bool:
        in_use = sum(self.pool.references[block] > 0 for block in self._found(i))
        spare = len(self.running) if self.rules is Rules.PREEMPTIVE else 0
        return self._asked(i) - in_use + spare <= self.pool.available

    def _admit(self, where: str, i: int, held: dict[int, list[int]]) -> None:
        found = self._found(i)
        if held.get(i, found)[: len(found)] != found:
            what = f"{where}: request {i} does not begin with the blocks that are known of it"
            raise BrokenRuleError(what, held[i], f"{found} first")
        for block in found:
            self.pool.share(block)
        self.tables[i], self.kept[i] = found, len(found) * self.page
        self.waiting.remove(i)
        self.running.append(i)
        self._grow(where, i, held, self._asked(i) - len(found))

    def _follow(self, where: str, fed: dict[int, tuple[int, int]], held: dict[int, list[int]]) -> None:
        """Do as the log does, whoever it admits or sends back: what it holds must have been free, or shared rightly."""
        if strangers := sorted(set(held) - {*self.waiting, *self.running}):
            raise BrokenRuleError(f"{where}: request {strangers[0]} is not there", "it runs")
        if len(held) > self.sequences:
            raise BrokenRuleError(f"{where}: too many requests run", len(held), self.sequences)
        for i in [i for i in self.running if i not in held or (i in fed and fed[i][0] < self.kept[i])]:
            self.end(i)
            self.waiting.append(i)
        for i in [i for i in self.waiting if i in held]:
            self.waiting.remove(i)
            self.running.append(i)
            self.kept[i] = fed[i][0] if i in fed else 0
        references = [0] * len(self.pool.references)
        for i in self.running:
            self.tables[i] = held[i]
            for block in held[i]:
                references[block] += 1
        self.pool.hold(references)

    # --- what the model does ------------------------------------------------------------------------------------------

    def _run(self, where: str, fed: list[list[int]], tokens: Sequence[list[int]]) -> None:
        """Read what is kept of all who are fed, then write and commit their new tokens."""
        for (i, first, count), part in zip(fed, tokens, strict=True):
            text, table = self.texts[i], self.tables.get(i, [])
            if first != self.kept.get(i) or part != text[first : first + count]:
                what = f"{where}: request {i} is fed the wrong tokens"
                raise BrokenRuleError(what, f"{part} from {first} on", f"those from {self.kept.get(i)} on")
            if first + count > len(table) * self.page:
                raise BrokenRuleError(f"{where}: request {i} has no block for its tokens", f"{len(table)} blocks")
            self.memory.read(f"{where}: request {i}", table, text, first)
        for i, first, count in fed:
            written = self.tables[i][first // self.page : self._pages(first + count)]
            if shared := [block for block in written if self.pool.references[block] > 1]:
                raise BrokenRuleError(
                    f"{where}: request {i} writes into a block that others hold", f"block {shared[0]}"
                )
            self.memory.write(self.tables[i], self.texts[i], first, first + count)
        parts = [(count, first) for _, first, count in fed]
        self.now_s += float(np.dot(self.clock_s, [1, *map(sum, zip(*parts, strict=True))]))
        for i, first, count in fed:
            self.kept[i] += count
            for place in range(first // self.page, self.kept[i] // self.page) if self.prefix else ():
                if self.rules is not Rules.FREE:
                    self.pool.register(self.tables[i][place], tuple(self.texts[i][: (place + 1) * self.page]))

    def _write(self, where: str, writers: list[int]) -> None:
        expected = [i for i in self.running if not self._pending(i)]
        if sorted(writers) != sorted(expected):
            raise BrokenRuleError(f"{where}: the wrong requests write", sorted(writers), sorted(expected))
        for i in expected:
            self.texts[i].append(following(self.texts[i]))
            self.times_s[i].append(self.now_s)
            if len(self.texts[i]) == self.most[i]:
                self.end(i)
