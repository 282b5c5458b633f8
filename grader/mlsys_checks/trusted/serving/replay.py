"""Reference block pool, block tables and schedulers of lab 11, on which the learner's logs are replayed.

The reference makes every decision except which free block a sequence gets: a replay takes that block from the log,
after checking that it may be allocated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import islice, pairwise
from typing import Any

from mlsys_checks.sandboxed.serving import next_token, simulate_server
from mlsys_checks.trusted.logs import BrokenRuleError, require_equal, require_form

REQUIRED_FRACTION = 0.8
"""Required fraction of the reference policy's goodput."""


class ReferencePool:
    """Reference counts, block hashes and the eviction order of cached blocks."""

    def __init__(self, num_blocks: int) -> None:
        self.ref_cnt = [0] * num_blocks
        self.uncached_free = dict.fromkeys(range(num_blocks))  # ref_cnt 0, not cached
        self.cached: dict[object, int] = {}
        self.hash_of: dict[int, object] = {}
        self.evictable: dict[int, None] = {}  # ref_cnt 0, cached, least recently freed first

    @property
    def num_free_blocks(self) -> int:
        """Number of blocks with reference count 0."""
        return len(self.uncached_free) + len(self.evictable)

    def allocate(self) -> int | None:
        """Allocate a block that the rules allow; return None if no block is free."""
        if not self.num_free_blocks:
            return None
        block = self.uncached_free.popitem()[0] if self.uncached_free else next(iter(self.evictable))
        self._assign(block)
        return block

    def allocate_logged(self, blocks: Sequence[int], where: str, *, in_order: bool = True) -> None:
        """Allocate these blocks of a log; `in_order`: uncached blocks must come first, then cached ones in order."""
        if len(set(blocks)) < len(blocks) or any(self.ref_cnt[block] for block in blocks):
            raise BrokenRuleError(f"{where} allocated a block that is in use", f"one of {blocks[:8]}", "a free block")
        oldest = set(islice(self.evictable, max(0, len(blocks) - len(self.uncached_free))))
        fitting = all(block in self.uncached_free or block in oldest for block in blocks)
        if in_order and not (fitting and oldest <= set(blocks)):
            expected = "a block without a hash if any is free, else the cached one that was freed longest ago"
            raise BrokenRuleError(f"{where} allocated the wrong block", f"{list(blocks)}", expected)
        for block in blocks:
            self._assign(block)

    def _assign(self, block: int) -> None:
        if block in self.hash_of:
            del self.evictable[block], self.cached[self.hash_of.pop(block)]
        self.uncached_free.pop(block, None)
        self.ref_cnt[block] = 1

    def touch(self, block: int) -> None:
        """Add a reference to a block."""
        self.evictable.pop(block, None)
        self.ref_cnt[block] += 1

    def free(self, block: int) -> None:
        """Drop a reference to a block."""
        self.ref_cnt[block] -= 1
        if not self.ref_cnt[block]:
            (self.evictable if block in self.hash_of else self.uncached_free)[block] = None

    def cache(self, block: int, block_hash: object) -> None:
        """Cache a block, unless it is cached or another block is cached under this hash."""
        if block_hash not in self.cached and block not in self.hash_of:
            self.cached[block_hash], self.hash_of[block] = block, block_hash

    def get_cached_block(self, block_hash: object) -> int | None:
        """Return the block with this hash, or None."""
        return self.cached.get(block_hash)

    def compare(self, where: str, num_free_blocks: int, ref_cnt: Sequence[int] = ()) -> None:
        """Compare the number of free blocks, and the reference counts if given, with the pool's."""
        for block, (got, expected) in enumerate(zip(ref_cnt, self.ref_cnt, strict=False)):
            require_equal(f"{where}: ref_cnt[{block}] is wrong", got, expected)
        require_equal(f"{where}: num_free_blocks is wrong", num_free_blocks, self.num_free_blocks)


def counts_schema(num_blocks: int) -> Any:
    """Return the schema of a pool's counts in a log."""
    return (range(num_blocks + 1), (range(1 << 31),) * num_blocks)


def replay_pool_script(log: Any, case: dict[str, Any]) -> None:
    """Replay a script of calls on a block pool; a log may end at a call for a block that was not allocated."""
    count, script = int(case["num_blocks"]), [("at first",), *case["script"]]
    schema = range(count + 1) if case["reads"] else counts_schema(count)
    require_form(log, {"blocks": [{range(count), None}], "counts": [schema]})
    pool, blocks, answers = ReferencePool(count), list[Any](), iter(log["blocks"])
    for number, ((call, *arguments), counts) in enumerate(zip(script, log["counts"], strict=False), start=-1):
        where = "in a new pool" if number < 0 else f"after call {number}, {call}()"
        if call in ("allocate", "get_cached_block"):
            blocks.append(next(answers, None))
        if call == "allocate" and not pool.num_free_blocks:
            what = f"call {number}, allocate() returned a block although none is free"
            require_equal(what, blocks[-1] if blocks[-1] is not None else "ValueError", "ValueError")
        elif call == "allocate" and blocks[-1] is None:
            what, expected = f"call {number}, allocate() found no block", f"{pool.num_free_blocks} are free"
            raise BrokenRuleError(what, "ValueError", expected)
        elif call == "allocate":
            pool.allocate_logged(blocks[-1:], f"call {number}, allocate()")
        elif call == "get_cached_block":
            what = f"call {number}, get_cached_block({arguments[0]}) returned the wrong block"
            require_equal(what, blocks[-1], pool.get_cached_block(*arguments))
        elif number >= 0:
            block = blocks[arguments[0]]
            getattr(pool, call)(block, *arguments[1:])
            where = f"after call {number}, {call}({', '.join(map(str, (block, *arguments[1:])))})"
        pool.compare(where, *((counts,) if case["reads"] else counts))
    require_equal("the log does not end where the script ends", len(log["counts"]), len(script))


class ReferenceBlockManager:
    """Block tables and numbers of computed tokens of sequences, on a reference pool."""

    def __init__(self, num_blocks: int, block_size: int, *, enable_prefix_caching: bool) -> None:
        self.pool, self.block_size = ReferencePool(num_blocks), block_size
        self.enable_prefix_caching = enable_prefix_caching
        self.tables: dict[int, list[int]] = {}
        self.computed: dict[int, int] = {}
        self.capacity: dict[int, int] = {}

    def apply(self, prompts: Sequence[Sequence[int]], call: str, i: int, *arguments: Any, **logged: Any) -> Any:
        """Make a call of a script and return its result; `logged` goes to `allocate_missing_blocks`."""
        if call == "allocate_prefix":
            self.allocate_prefix(i, prompts[i][: arguments[0]])
            return self.computed[i]
        if call == "allocate_slots":
            count, reserved = arguments
            missing = self.num_missing_blocks({i: count})
            if missing[i] + reserved > self.pool.num_free_blocks:
                return False
            self.allocate_missing_blocks(missing, **logged)
            self.capacity[i] = max(self.capacity[i], self.computed[i] + count)
            return True
        if call == "mark_computed":
            self.mark_computed(i, prompts[i], *arguments)
        else:
            self.free(i)
        return None

    def blocks_for(self, tokens: int) -> int:
        """Return the number of blocks for this number of tokens."""
        return -(-tokens // self.block_size)

    def find_prefix(self, tokens: Sequence[int]) -> list[int]:
        """Return the cached blocks of a prompt's prefix, which never includes its last token."""
        found: list[int] = []
        for end in range(self.block_size, len(tokens) if self.enable_prefix_caching else 0, self.block_size):
            block = self.pool.get_cached_block(tuple(tokens[:end]))
            if block is None:
                break
            found.append(block)
        return found

    def allocate_prefix(self, seq: int, tokens: Sequence[int]) -> None:
        """Add a sequence with the cached blocks of its prefix."""
        self.tables[seq] = self.find_prefix(tokens)
        self.computed[seq] = self.capacity[seq] = len(self.tables[seq]) * self.block_size
        for block in self.tables[seq]:
            self.pool.touch(block)

    def num_missing_blocks(self, counts: Mapping[int, int]) -> dict[int, int]:
        """Return how many blocks each sequence lacks for `counts[seq]` tokens after its computed tokens."""
        needed = {seq: self.blocks_for(self.computed[seq] + count) for seq, count in counts.items()}
        return {seq: max(0, blocks - len(self.tables[seq])) for seq, blocks in needed.items()}

    def allocate_missing_blocks(
        self,
        missing: Mapping[int, int],
        logged: Mapping[int, list[int]] | None = None,
        where: str = "",
        *,
        in_order: bool = True,
    ) -> None:
        """Allocate the missing blocks: the new blocks of the logged tables, or any allowed ones without a log."""
        if logged is None:
            for seq, count in missing.items():
                self.tables[seq] += [block for _ in range(count) if (block := self.pool.allocate()) is not None]
            return
        new = {seq: logged.get(seq, [])[len(self.tables[seq]) :] for seq in missing}
        for seq, blocks in new.items():
            what = f"{where}: the wrong number of blocks was allocated for sequence {seq}"
            require_equal(what, len(blocks), missing[seq])
        self.pool.allocate_logged([block for blocks in new.values() for block in blocks], where, in_order=in_order)
        for seq, blocks in new.items():
            self.tables[seq] += blocks

    def mark_computed(self, seq: int, tokens: Sequence[int], count: int) -> None:
        """Mark the next `count` tokens of a sequence as computed, and cache the blocks that they fill."""
        before, self.computed[seq] = self.computed[seq], self.computed[seq] + count
        filled = range(before // self.block_size, self.computed[seq] // self.block_size)
        for i in filled if self.enable_prefix_caching else ():
            self.pool.cache(self.tables[seq][i], tuple(tokens[: (i + 1) * self.block_size]))

    def free(self, seq: int) -> None:
        """Free the blocks of a sequence, the last one first."""
        for block in reversed(self.tables.pop(seq)):
            self.pool.free(block)
        del self.computed[seq]

    def compare(self, where: str, logged: Mapping[int, list[int]]) -> None:
        """Compare the block tables of a log with these."""
        for seq in sorted({*logged, *self.tables}):
            require_equal(f"{where}: block_table of sequence {seq} is wrong", logged.get(seq), self.tables.get(seq))


def make_reference_manager(case: Mapping[str, Any]) -> ReferenceBlockManager:
    """Create the reference of a case's block manager."""
    prefix = case["manager"] == "PrefixBlockManager"
    return ReferenceBlockManager(case["num_blocks"], case["block_size"], enable_prefix_caching=prefix)


def replay_manager_script(log: Any, case: dict[str, Any]) -> None:
    """Replay a script of calls on a block manager."""
    count, prompts, script = case["num_blocks"], case["prompts"], case["script"]
    seqs, length = range(len(prompts)), range(max(map(len, prompts)) + 1)
    step: dict[str, Any] = {"answer": {bool, None, length}, "lengths": [(seqs, length)]}
    step |= {"tables": [(seqs, [range(count)])], "counts": counts_schema(count)}
    require_form(log, {"steps": (step,) * len(script), "num_blocks": (int,) * len(case["sizes"])})
    tables = make_reference_manager(case)
    for (size, tokens), blocks in zip(case["sizes"], log["num_blocks"], strict=True):
        require_equal(f"blocks_for({tokens}) is wrong for block_size {size}", blocks, -(-tokens // size))
    for number, ((call, i, *arguments), step) in enumerate(zip(script, log["steps"], strict=True)):
        name = "cache_full_blocks" if call == "mark_computed" else call
        shown = map(str, arguments if call == "allocate_slots" else ())
        logged, where = dict(step["tables"]), f"call {number}, {name}({', '.join([f'sequence {i}', *shown])})"
        refused = call == "allocate_slots" and step["answer"] is False
        answer = tables.apply(prompts, call, i, *arguments, logged=None if refused else logged, where=where)
        require_equal(f"{where} returned the wrong value", step["answer"], answer)
        require_equal(f"after {where}: num_computed_tokens is wrong", dict(step["lengths"]), tables.computed)
        tables.compare(f"after {where}", logged)
        tables.pool.compare(f"after {where}", *step["counts"])


def _shown_counts(counts: Mapping[int, int]) -> str:
    return ", ".join(f"sequence {i}: {counts[i]}" for i in sorted(counts)) or "nothing"


class _Replay:
    """Server that replays a log and compares each step with the rules of the workload's scheduler.

    An SLOScheduler may choose its own policy: only its use of blocks is checked, and that every request finishes.
    """

    def __init__(self, log: Any, workload: dict[str, Any]) -> None:
        self.scheduler_name, (self.max_num_seqs, self.budget) = workload["scheduler"], workload["config"]
        self.admits, self.outputs = list(workload["admits"]), workload["outputs"]
        self.tokens = [list(prompt) for prompt in workload["prompts"]]
        self.final_lens = [len(one) + count for one, count in zip(self.tokens, self.outputs, strict=True)]
        self.tables = make_reference_manager(workload)
        self.waiting: list[int] = []
        self.running: list[int] = []
        self.times_s: list[list[float]] = [[] for _ in self.tokens]
        self.where, self.step_number = "at first", 0
        self._validate_schema(log, workload["max_steps"])
        self.steps: list[Any] = log["steps"]

    def _validate_schema(self, log: Any, max_steps: int) -> None:
        """Check that every value of a log is in its range, and that no request is twice in one list."""
        requests, count = range(len(self.tokens)), len(self.tables.pool.ref_cnt)
        longest = max(self.final_lens)
        step: dict[str, Any] = {"scheduled": [(requests, range(longest), range(1, longest + 1))], "sampled": [requests]}
        step |= {"preempted": [requests], "tables": [(requests, [range(count)])], "num_free": range(count + 1)}
        require_form(log, {"steps": [step], "end": counts_schema(count)})
        if len(log["steps"]) > max_steps:
            raise BrokenRuleError("the log has too many steps", len(log["steps"]), f"at most {max_steps}")
        for number, step in enumerate(log["steps"]):
            for name in ("scheduled", "tables", "sampled", "preempted"):
                found = [one if isinstance(one, int) else one[0] for one in step[name]]
                if len(set(found)) < len(found):
                    raise BrokenRuleError(f"step {number}: a sequence is twice in `{name}`")
            if not step["scheduled"]:
                raise BrokenRuleError(f"step {number} schedules no sequence")

    def add(self, i: int, now_s: float) -> None:
        self.waiting.append(i)

    def finish(self, i: int) -> None:
        if i in self.waiting:
            self.waiting.remove(i)
        else:
            self.running.remove(i)
            self.tables.free(i)

    def step(self, now_s: float) -> list[tuple[int, int]]:
        if self.step_number == len(self.steps):
            raise BrokenRuleError("the log ends although sequences wait or run", f"{self.step_number} steps")
        step, self.where = self.steps[self.step_number], f"step {self.step_number}"
        self.step_number += 1
        counts, tables = {i: count for i, _, count in step["scheduled"]}, dict(step["tables"])
        if self.scheduler_name == "SLOScheduler":
            self._apply_logged_step(step["scheduled"], tables)
        else:
            expected, preempted = self._expected_step(tables)
            what = f"{self.where} preempts the wrong sequences"
            require_equal(what, sorted(step["preempted"]), sorted(preempted))
            if counts != expected:
                what = f"{self.where} schedules the wrong numbers of tokens ({self._state})"
                raise BrokenRuleError(what, _shown_counts(counts), _shown_counts(expected))
            self.tables.compare(self.where, tables)
        free = self.tables.pool.num_free_blocks
        require_equal(f"{self.where}: num_free_blocks is wrong", step["num_free"], free)
        parts = []
        for i, first, count in step["scheduled"]:
            computed = self.tables.computed.get(i)
            require_equal(f"{self.where}: num_computed_tokens of sequence {i} is wrong", first, computed)
            if first + count > len(self.tokens[i]):
                what = f"{self.where} schedules more tokens of sequence {i} than are pending"
                raise BrokenRuleError(what, count, f"at most {len(self.tokens[i]) - first}")
            if self.tables.blocks_for(first + count) > len(self.tables.tables[i]):
                what = f"{self.where}: sequence {i} has too few blocks for its tokens"
                raise BrokenRuleError(what, len(self.tables.tables[i]), self.tables.blocks_for(first + count))
            parts.append((count, first))
        for i, count in counts.items():
            self.tables.mark_computed(i, self.tokens[i], count)
        return parts

    @property
    def _state(self) -> str:
        limits = f"max_num_seqs {self.max_num_seqs}"
        if self.scheduler_name != "Scheduler":
            limits += f", budget {self.budget}"
        return f"{limits}; running afterwards {self.running}, waiting {self.waiting}"

    def sample(self, now_s: float) -> list[int]:
        expected, finished = [i for i in self.running if not self._pending(i)], []
        sampled = sorted(self.steps[self.step_number - 1]["sampled"])
        what = f"{self.where}: `sampled` must be the sequences whose pending tokens are all computed"
        require_equal(what, sampled, sorted(expected))
        for i in expected:
            self.tokens[i].append(next_token(self.tokens[i]))
            self.times_s[i].append(now_s)
            if len(self.tokens[i]) == self.final_lens[i]:
                self.finish(i)
                finished.append(i)
        return finished

    def _pending(self, i: int) -> int:
        return len(self.tokens[i]) - self.tables.computed[i]

    def _expected_step(self, tables: Mapping[int, list[int]]) -> tuple[dict[int, int], list[int]]:
        """Return what a step must do: tokens of each scheduled request, and the preempted requests."""
        while self.admits:
            self._admit(self.admits.pop(0), tables)
        left = math.inf if self.scheduler_name == "Scheduler" else self.budget
        preempted, missing = self._preempt([i for i in self.running if self._pending(i) == 1])
        self.tables.allocate_missing_blocks(missing, tables, self.where, in_order=False)
        expected = dict.fromkeys(missing, 1)
        left -= len(expected)
        for i in [i for i in self.running if i not in expected]:
            if count := int(min(self._pending(i), left)):
                expected[i], left = count, left - count
        while self.waiting and len(self.running) < self.max_num_seqs and left and self._has_room(self.waiting[0]):
            i = self.waiting[0]
            self._admit(i, tables)
            expected[i] = int(min(self._pending(i), left))
            left -= expected[i]
        return expected, preempted

    def _preempt(self, decoding: list[int]) -> tuple[list[int], dict[int, int]]:
        """Preempt the latest sequences until every remaining decoding sequence can get its block.

        Returns the preempted sequences, and the number of missing blocks of the remaining ones. These blocks are
        counted here and allocated later, because a scheduler may preempt before it allocates any.
        """
        preempted: list[int] = []
        missing: dict[int, int] = {}
        for i in decoding:
            while i in self.running:
                more = self.tables.num_missing_blocks({i: 1})[i]
                enough = sum(missing.values()) + more <= self.tables.pool.num_free_blocks
                if enough or self.scheduler_name != "PreemptiveScheduler":
                    missing[i] = more
                    break
                preempted.append(self.running.pop())
                self.tables.free(preempted[-1])
                self.waiting.insert(0, preempted[-1])
        return preempted, missing

    def _need(self, i: int) -> int:
        """Return the number of blocks that a request needs for admission, cached ones included."""
        preemptive = self.scheduler_name == "PreemptiveScheduler"
        return self.tables.blocks_for(len(self.tokens[i]) if preemptive else self.final_lens[i] - 1)

    def _has_room(self, i: int) -> bool:
        in_use = sum(self.tables.pool.ref_cnt[block] > 0 for block in self.tables.find_prefix(self.tokens[i]))
        spare = len(self.running) if self.scheduler_name == "PreemptiveScheduler" else 0
        return self._need(i) - in_use + spare <= self.tables.pool.num_free_blocks

    def _admit(self, i: int, tables: Mapping[int, list[int]]) -> None:
        if i not in tables:
            raise BrokenRuleError(f"{self.where}: sequence {i} still waits", "waiting", "running: there is room for it")
        self.tables.allocate_prefix(i, self.tokens[i])
        found = self.tables.tables[i]
        what = f"{self.where}: block_table of sequence {i} does not start with the cached blocks of its prefix"
        require_equal(what, tables[i][: len(found)], found)
        self.waiting.remove(i)
        self.running.append(i)
        self.tables.allocate_missing_blocks({i: self._need(i) - len(found)}, tables, self.where, in_order=False)

    def _apply_logged_step(self, scheduled: Sequence[tuple[int, int, int]], tables: Mapping[int, list[int]]) -> None:
        """Apply the admissions and preemptions of a logged step; check that its blocks are free.

        A preempted sequence must be recomputed: it has no computed tokens.
        """
        if strangers := sorted(set(tables) - {*self.waiting, *self.running}):
            raise BrokenRuleError(f"{self.where}: sequence {strangers[0]} has finished or not arrived", "running")
        if len(tables) > self.max_num_seqs:
            raise BrokenRuleError(f"{self.where}: more than max_num_seqs sequences run", len(tables), self.max_num_seqs)
        held, firsts = self.tables.tables, {i: first for i, first, _ in scheduled}
        for i in list(self.running):
            goes_on = tables.get(i, [])[: len(held[i])] == held[i] and i in tables
            if not goes_on or firsts.get(i, math.inf) < self.tables.computed[i]:
                self.finish(i)
                self.waiting.append(i)
        for i in [i for i in self.waiting if i in tables]:
            self.waiting.remove(i)
            self.running.append(i)
            self.tables.allocate_prefix(i, ())
        missing = {i: len(tables[i]) - len(held[i]) for i in self.running}
        self.tables.allocate_missing_blocks(missing, tables, self.where, in_order=False)


def replay_schedule(log: Any, workload: dict[str, Any]) -> list[list[float]]:
    """Replay a log of a workload to the end; return the times of each request's tokens."""
    replay = _Replay(log, workload)
    simulate_server(workload, replay)
    require_equal("the log goes on after all requests have finished", len(replay.steps), replay.step_number)
    replay.tables.pool.compare("at the end", *log["end"])
    return replay.times_s


def replay_goodput(log: Any, workload: dict[str, Any]) -> None:
    """Replay a log of a workload, and compare its goodput with the reference policy's."""
    times_s, reference = replay_schedule(log, workload), _ReferencePolicy(workload)
    simulate_server(workload, reference)
    good, own = goodput(workload, times_s), goodput(workload, reference.times_s)
    if good < REQUIRED_FRACTION * own:
        ttft_s, tpot_s = workload["slo"]
        first = sum(
            times[0] - arrival_s <= ttft_s for times, arrival_s in zip(times_s, workload["arrivals_s"], strict=True)
        )
        gaps_s = [after - before for times in times_s for before, after in pairwise(times)]
        over = sum(gap_s > tpot_s for gap_s in gaps_s) / max(1, len(gaps_s))
        what = (
            f"too few requests meet both objectives: {first} of {len(times_s)} get their first token in time, and "
            f"{over:.0%} of the gaps between tokens are longer than the TPOT"
        )
        expected = f"{math.ceil(REQUIRED_FRACTION * own)}, {REQUIRED_FRACTION:.0%} of our own policy's {own}"
        raise BrokenRuleError(what, f"{good} requests", expected)


def goodput(workload: dict[str, Any], times_s: Sequence[Sequence[float]]) -> int:
    """Return the number of requests that met both objectives, given the times of their tokens."""
    ttft_s, tpot_s = workload["slo"]
    good = 0
    for arrival_s, times in zip(workload["arrivals_s"], times_s, strict=True):
        mean_s = (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else 0.0
        good += times[0] - arrival_s <= ttft_s and mean_s <= tpot_s
    return good


class _ReferencePolicy:
    """Server with unlimited memory: token budget from the TPOT limit, late requests last, short prompts first."""

    def __init__(self, workload: dict[str, Any]) -> None:
        self.workload, self.prompt_lens = workload, [len(prompt) for prompt in workload["prompts"]]
        self.computed = [0] * len(self.prompt_lens)
        self.times_s: list[list[float]] = [[] for _ in self.prompt_lens]
        self.waiting: list[int] = []
        self.running: list[int] = []

    def add(self, i: int, now_s: float) -> None:
        self.waiting.append(i)

    def finish(self, i: int) -> None:
        (self.running if i in self.running else self.waiting).remove(i)

    def step(self, now_s: float) -> list[tuple[int, int]]:
        (step_s, token_s, computed_s), (ttft_s, tpot_s) = self.workload["step_time"], self.workload["slo"]
        arrivals_s, prompt_lens, (max_num_seqs, _) = (
            self.workload["arrivals_s"],
            self.prompt_lens,
            self.workload["config"],
        )
        new = {i: 1 for i in self.running if self.times_s[i]}
        left_s = tpot_s - step_s - computed_s * sum(self.computed[i] for i in new)
        budget = max(int(left_s / token_s), max_num_seqs) - len(new)
        self.waiting.sort(
            key=lambda i: (now_s + step_s + token_s * prompt_lens[i] > arrivals_s[i] + ttft_s, prompt_lens[i])
        )
        for i in [*(i for i in self.running if i not in new), *self.waiting]:
            if not budget or (i not in self.running and len(self.running) == max_num_seqs):
                break
            new[i] = min(prompt_lens[i] - self.computed[i], budget)
            budget -= new[i]
            if i in self.waiting:
                self.waiting.remove(i)
                self.running.append(i)
        parts = [(count, self.computed[i]) for i, count in new.items()]
        for i, count in new.items():
            self.computed[i] += count
        return parts

    def sample(self, now_s: float) -> list[int]:
        for i in self.running:
            if self.computed[i] >= self.prompt_lens[i]:
                self.times_s[i].append(now_s)
        finished = [i for i in self.running if len(self.times_s[i]) == self.workload["outputs"][i]]
        self.running = [i for i in self.running if i not in finished]
        return finished
