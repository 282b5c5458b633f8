"""Reference block pool, block tables and schedulers of lab 11, on which the learner's logs are replayed.

The reference makes every decision except which free block a sequence gets: a replay takes that block from the log,
after checking that it may be allocated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from mlsys_checks.sandboxed.serving import MANAGER_CALLS, Server, next_token, simulate_server
from mlsys_checks.trusted.logs import BrokenRuleError, require_equal, require_form

REQUIRED_FRACTION = 0.8
"""Required fraction of the reference policy's goodput."""
RESULTS = {
    "allocate": "It returns a free block, and raises ValueError (here None) only if there is none",
    "get_cached_block": "It returns the block cached with this hash, or None if there is none or it was evicted",
    "blocks_for": "Tokens fill as many blocks as tokens / block_size, rounded up",
    "allocate_prefix": "It returns the tokens in cached blocks up to the first miss, without the prompt's last token",
    "allocate_slots": "It returns False if, and only if, fewer than num_free_reserved blocks would stay free",
}
"""What calls of a script return."""


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

    def allocate_logged(self, blocks: Sequence[int], where: str, in_order: bool = True) -> None:
        """Allocate these blocks of a log; `in_order`: uncached blocks must come first, then cached ones in order."""
        if len(set(blocks)) < len(blocks) or any(self.ref_cnt[block] for block in blocks):
            what = f"{where} allocated a block that is in use. Is a block twice among the free ones?"
            raise BrokenRuleError(what, f"one of {blocks[:8]}", "a block whose ref_cnt is 0")
        oldest = set(islice(self.evictable, max(0, len(blocks) - len(self.uncached_free))))
        fitting = all(block in self.uncached_free or block in oldest for block in blocks)
        if in_order and not (fitting and oldest <= set(blocks)):
            what = f"{where} allocated the wrong block. Cached ones are evicted if no free block is without a hash"
            raise BrokenRuleError(what, list(blocks), "a block without a hash, else the one freed longest ago")
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

    def compare(self, where: str, counts: Mapping[str, Any]) -> None:
        """Compare logged counts with the pool's: the number of free blocks and, except of a large pool, `ref_cnt`."""
        for block, (got, expected) in enumerate(zip(counts.get("ref_cnt", ()), self.ref_cnt, strict=False)):
            what = f"{where}, ref_cnt[{block}] is wrong. allocate sets it to 1, touch adds 1 and free subtracts 1"
            require_equal(what, got, expected)
        what = f"{where}, num_free_blocks is wrong. It is the number of blocks whose ref_cnt is 0"
        require_equal(what, counts["num_free_blocks"], self.num_free_blocks)


def counts_schema(num_blocks: int) -> dict[str, Any]:
    """Return the schema of a pool's counts in a log."""
    return {"num_free_blocks": range(num_blocks + 1), "ref_cnt": (range(1 << 31),) * num_blocks}


class PoolScript:
    """A reference pool under the calls of a script, which refer to a block by its index in `blocks`."""

    def __init__(self, case: Mapping[str, Any]) -> None:
        self.pool, self.is_large = ReferencePool(case["num_blocks"]), bool(case.get("large"))
        self.blocks: list[Any] = []  # results of allocate and get_cached_block
        state = range(case["num_blocks"] + 1) if self.is_large else counts_schema(case["num_blocks"])
        self.schema = {"answers": [{range(case["num_blocks"]), None}], "states": [state]}

    def make_call(self, call: str, *arguments: int, logged: Sequence[Any] = (), where: str = "") -> int | None:
        """Make a call and return its result; an allocated block is that of the logged answer, if any."""
        if call == "allocate" and self.pool.num_free_blocks and logged and logged[0] is not None:
            self.pool.allocate_logged(logged[:1], where)
            found: int | None = logged[0]
        else:
            found = getattr(self.pool, call)(*self._resolve(call, arguments))
        if call in ("allocate", "get_cached_block"):
            self.blocks.append(found)
        return found

    def _resolve(self, call: str, arguments: Sequence[int]) -> Sequence[int]:
        return (self.blocks[arguments[0]], *arguments[1:]) if call in ("touch", "free", "cache") else arguments

    def shown(self, call: str, arguments: Sequence[int]) -> str:
        """Return a call as code."""
        return f"{call}({', '.join(map(str, self._resolve(call, arguments)))})"

    def compare_state(self, where: str, state: Any) -> None:
        """Compare a logged state with the pool's."""
        self.pool.compare(where, {"num_free_blocks": state} if self.is_large else state)


class ReferenceBlockManager:
    """Block tables and numbers of computed tokens of sequences, on a reference pool."""

    def __init__(self, case: Mapping[str, Any]) -> None:
        self.pool, self.block_size = ReferencePool(case["num_blocks"]), case["block_size"]
        self.enable_prefix_caching = case["manager"] == "PrefixBlockManager"
        self.tables: dict[int, list[int]] = {}
        self.computed: dict[int, int] = {}

    def blocks_for(self, tokens: int) -> int:
        """Return the number of blocks for this number of tokens."""
        return -(-tokens // int(self.block_size))

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
        self.computed[seq] = len(self.tables[seq]) * self.block_size
        for block in self.tables[seq]:
            self.pool.touch(block)

    def num_missing_blocks(self, seq: int, count: int) -> int:
        """Return how many blocks a sequence lacks for `count` tokens after its computed tokens."""
        return max(0, self.blocks_for(self.computed[seq] + count) - len(self.tables[seq]))

    def allocate_missing_blocks(
        self, missing: Mapping[int, int], logged: Mapping[int, list[int]], where: str, in_order: bool = False
    ) -> None:
        """Allocate the missing blocks of each sequence: those at the end of its logged table."""
        new = {seq: logged.get(seq, [])[len(self.tables[seq]) :] for seq in missing}
        for seq, blocks in new.items():
            what = f"{where} allocated the wrong number of blocks for sequence {seq}. Those that it has already count"
            require_equal(what, len(blocks), missing[seq])
        self.pool.allocate_logged([block for blocks in new.values() for block in blocks], where, in_order)
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
            what = f"{where}, block_table of sequence {seq} is wrong. A call that returns False leaves it as it was"
            require_equal(what, logged.get(seq), self.tables.get(seq))


class ManagerScript(ReferenceBlockManager):
    """A reference block manager under the calls of a script, which refer to a sequence by its index in `prompts`."""

    def __init__(self, case: Mapping[str, Any]) -> None:
        super().__init__(case)
        self.prompts: list[list[int]] = case.get("prompts", [])
        seqs, blocks = range(len(self.prompts)), range(case["num_blocks"])
        state = {"num_computed_tokens": [(seqs, int)], "block_tables": [(seqs, [blocks])]}
        self.schema = {"answers": [{bool, int, None}], "states": [state | counts_schema(case["num_blocks"])]}

    def make_call(self, call: str, *arguments: int, logged: Sequence[Any] = (), where: str = "") -> int | None:
        """Make a call and return its result; blocks are allocated as in the logged state, if any."""
        if call == "blocks_for":
            return self.blocks_for(*arguments)
        i, *counts = arguments
        if call == "allocate_prefix":
            self.allocate_prefix(i, self.prompts[i][: counts[0]])
            return self.computed[i]
        if call == "allocate_slots":
            missing = self.num_missing_blocks(i, counts[0])
            has_room = missing + counts[1] <= self.pool.num_free_blocks
            if has_room and not logged:
                self.tables[i] += [block for _ in range(missing) if (block := self.pool.allocate()) is not None]
            elif has_room and logged[0]:
                self.allocate_missing_blocks({i: missing}, dict(logged[1]["block_tables"]), where, in_order=True)
            return has_room
        if call == "cache_full_blocks":
            self.mark_computed(i, self.prompts[i], *counts)
        else:
            self.free(i)
        return None

    def shown(self, call: str, arguments: Sequence[int]) -> str:
        """Return a call as code."""
        return MANAGER_CALLS[call].format(*arguments)

    def compare_state(self, where: str, state: Any) -> None:
        """Compare a logged state with the manager's."""
        what = f"{where}, num_computed_tokens is wrong, by sequence. Only allocate_prefix and free set it"
        require_equal(what, dict(state["num_computed_tokens"]), self.computed)
        self.compare(where, dict(state["block_tables"]))
        self.pool.compare(where, state)


def replay_script(log: Any, case: dict[str, Any]) -> None:
    """Replay a script of calls on a block pool or a block manager."""
    script: PoolScript | ManagerScript = PoolScript(case) if "pool" in case else ManagerScript(case)
    require_form(log, script.schema)
    for name, values in log.items():
        require_equal(f"the log has the wrong number of {name}", len(values), len(case["script"]))
    logged = zip(log["answers"], log["states"], strict=True)
    for number, ((call, *arguments), (answer, state)) in enumerate(zip(case["script"], logged, strict=True)):
        where = f"call {number}, {script.shown(call, arguments)}"
        expected = script.make_call(call, *arguments, logged=(answer, state), where=where)
        require_equal(f"{where}, returned the wrong value. {RESULTS.get(call, 'It returns nothing')}", answer, expected)
        script.compare_state(f"after {where}", state)


class _Replay(Server):
    """Server that replays a log and compares each step with the rules of the workload's scheduler.

    An SLOScheduler may choose its own policy: only its use of blocks is checked, and that every request finishes.
    """

    def __init__(self, log: Any, workload: dict[str, Any]) -> None:
        super().__init__(workload)
        self.max_num_seqs, self.budget = workload["config"]
        self.scheduler_name, self.admits = workload["scheduler"], list(workload["admits"])
        self.preempts = self.scheduler_name == "PreemptiveScheduler"
        self.tokens = [list(prompt) for prompt in workload["prompts"]]
        self.final_lens = [len(one) + count for one, count in zip(self.tokens, workload["outputs"], strict=True)]
        self.tables = ReferenceBlockManager(workload)
        self.where, self.step_number = "at first", 0
        self._validate_schema(log, workload["max_steps"])
        self.steps: list[Any] = log["steps"]

    def _validate_schema(self, log: Any, max_steps: int) -> None:
        """Check that every value of a log is in its range, and that no request is twice in one list."""
        requests, count, longest = range(len(self.tokens)), len(self.tables.pool.ref_cnt), max(self.final_lens)
        step: dict[str, Any] = {"scheduled": [(requests, range(longest), range(1, longest + 1))], "sampled": [requests]}
        step |= {"preempted": [requests], "tables": [(requests, [range(count)])], "num_free": range(count + 1)}
        require_form(log, {"steps": [step], "end": counts_schema(count)})
        if len(log["steps"]) > max_steps:
            raise BrokenRuleError("the log has too many steps", len(log["steps"]), f"at most {max_steps}")
        for number, step in enumerate(log["steps"]):
            for name in ("scheduled", "tables", "sampled", "preempted"):
                found = [one if isinstance(one, int) else one[0] for one in step[name]]
                if len(set(found)) < len(found):
                    raise BrokenRuleError(f"step {number}: a sequence is twice in `{name}`", found, "each at most once")
            if not step["scheduled"]:
                raise BrokenRuleError(f"step {number} schedules no sequence", "none", "one or more")

    def finish(self, i: int) -> None:
        """Remove a request, and free its blocks."""
        super().finish(i)
        if i in self.tables.tables:
            self.tables.free(i)

    def step(self, now_s: float) -> list[tuple[int, int]]:
        """Replay a step of the log."""
        if self.step_number == len(self.steps):
            raise BrokenRuleError("the log ends although sequences wait or run", f"{self.step_number} steps")
        step, self.where = self.steps[self.step_number], f"step {self.step_number}"
        self.step_number += 1
        tables = dict(step["tables"])
        if self.scheduler_name == "SLOScheduler":
            self._apply_logged_step(step["scheduled"], tables)
        else:
            self._compare_step(step, tables)
        what = f"{self.where} leaves the wrong number of free blocks. Sequences that leave `running` free their blocks"
        require_equal(what, step["num_free"], self.tables.pool.num_free_blocks)
        for i, first, count in step["scheduled"]:
            what = f"before {self.where}, num_computed_tokens of sequence {i} is wrong. update_from_output adds to it"
            require_equal(what, first, self.tables.computed.get(i))
            limit = min(len(self.tokens[i]), len(self.tables.tables[i]) * self.tables.block_size) - first
            if count > limit:
                what = f"{self.where} schedules more tokens of sequence {i} than are pending and have slots in blocks"
                raise BrokenRuleError(what, count, f"at most {limit}")
            self.tables.mark_computed(i, self.tokens[i], count)
        return [(count, first) for _, first, count in step["scheduled"]]

    def _compare_step(self, step: Mapping[str, Any], tables: Mapping[int, list[int]]) -> None:
        """Compare a logged step with what the scheduler must do."""
        expected, preempted = self._expected_step(tables)
        what = f"{self.where} preempts the wrong sequences. The last running one goes first, if a decode finds no block"
        require_equal(what, sorted(step["preempted"]), sorted(preempted))
        limits = f"max_num_seqs is {self.max_num_seqs}"
        limits += f", the budget {self.budget}" if self.scheduler_name != "Scheduler" else ""
        what = f"{self.where} schedules the wrong numbers of tokens, by sequence. {limits}; after the step, sequences "
        what += f"{self.running} have to run and {self.waiting} to wait"
        require_equal(what, {i: count for i, _, count in sorted(step["scheduled"])}, dict(sorted(expected.items())))
        self.tables.compare(f"after {self.where}", tables)

    def sample(self, now_s: float) -> list[int]:
        """Sample the sequences without pending tokens; return those that have finished."""
        expected = [i for i in self.running if not self._pending(i)]
        what = f"{self.where} has the wrong sequences in `sampled`: those whose pending tokens it computes all"
        require_equal(what, sorted(self.steps[self.step_number - 1]["sampled"]), sorted(expected))
        for i in expected:
            self.tokens[i].append(next_token(self.tokens[i]))
            self.times_s[i].append(now_s)
        finished = [i for i in expected if len(self.tokens[i]) == self.final_lens[i]]
        for i in finished:
            self.finish(i)
        return finished

    def _pending(self, i: int) -> int:
        return len(self.tokens[i]) - self.tables.computed[i]

    def _expected_step(self, tables: Mapping[int, list[int]]) -> tuple[dict[int, int], list[int]]:
        """Return what a step must do: tokens of each scheduled request, and the preempted requests."""
        while self.admits:
            self._admit(self.admits.pop(0), tables)
        left = math.inf if self.scheduler_name == "Scheduler" else self.budget
        preempted, missing = self._preempt([i for i in self.running if self._pending(i) == 1])
        self.tables.allocate_missing_blocks(missing, tables, self.where)
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
                more = self.tables.num_missing_blocks(i, 1)
                enough = sum(missing.values()) + more <= self.tables.pool.num_free_blocks
                if enough or not self.preempts:
                    missing[i] = more
                    break
                preempted.append(self.running.pop())
                self.tables.free(preempted[-1])
                self.waiting.insert(0, preempted[-1])
        return preempted, missing

    def _need(self, i: int) -> int:
        """Return the number of blocks that a request needs for admission, cached ones included."""
        return self.tables.blocks_for(len(self.tokens[i]) if self.preempts else self.final_lens[i] - 1)

    def _has_room(self, i: int) -> bool:
        in_use = sum(self.tables.pool.ref_cnt[block] > 0 for block in self.tables.find_prefix(self.tokens[i]))
        spare = len(self.running) if self.preempts else 0
        return self._need(i) - in_use + spare <= self.tables.pool.num_free_blocks

    def _admit(self, i: int, tables: Mapping[int, list[int]]) -> None:
        if i not in tables:
            what = f"{self.where} does not admit sequence {i}, although a slot and the blocks that it needs are free"
            raise BrokenRuleError(what, "waiting", "running")
        self.tables.allocate_prefix(i, self.tokens[i])
        found = self.tables.tables[i]
        what = f"{self.where} admits sequence {i} without all cached blocks of its prefix in front of its block_table"
        require_equal(what, tables[i][: len(found)], found)
        self.waiting.remove(i)
        self.running.append(i)
        self.tables.allocate_missing_blocks({i: self._need(i) - len(found)}, tables, self.where)

    def _apply_logged_step(self, scheduled: Sequence[tuple[int, int, int]], tables: Mapping[int, list[int]]) -> None:
        """Apply the admissions and preemptions of a logged step; check that its blocks are free.

        A preempted sequence must be recomputed: it has no computed tokens.
        """
        if strangers := sorted(set(tables) - {*self.waiting, *self.running}):
            what = f"{self.where} runs sequence {strangers[0]}, which has finished or has not arrived"
            raise BrokenRuleError(what, "in `running`", "not in `running`")
        if len(tables) > self.max_num_seqs:
            what = f"in {self.where}, more than max_num_seqs sequences run"
            raise BrokenRuleError(what, len(tables), f"at most {self.max_num_seqs}")
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
        self.tables.allocate_missing_blocks(missing, tables, self.where)


def replay_schedule(log: Any, workload: dict[str, Any]) -> list[list[float]]:
    """Replay a log of a workload to the end; return the times of each request's tokens."""
    replay = _Replay(log, workload)
    simulate_server(workload, replay)
    require_equal("the log goes on after all requests have finished", len(replay.steps), replay.step_number)
    replay.tables.pool.compare("at the end", log["end"])
    return replay.times_s


def replay_goodput(log: Any, workload: dict[str, Any]) -> None:
    """Replay a log of a workload, and compare its goodput with the reference policy's."""
    times_s, reference = replay_schedule(log, workload), _ReferencePolicy(workload)
    simulate_server(workload, reference)
    required = math.ceil(REQUIRED_FRACTION * goodput(workload, reference.times_s)[0])
    good, in_time, fluent = goodput(workload, times_s)
    if good < required:
        what = f"too few of {len(times_s)} requests meet both objectives: {in_time} meet the TTFT, {fluent} the TPOT. "
        what += "The order of `waiting` decides on TTFT, the token budget on TPOT"
        expected = f"at least {required}, {REQUIRED_FRACTION:.0%} of our own policy's goodput"
        raise BrokenRuleError(what, f"{good} requests", expected)


def goodput(workload: dict[str, Any], times_s: Sequence[Sequence[float]]) -> tuple[int, int, int]:
    """Return how many requests met both objectives, TTFT and TPOT, given the times of their tokens."""
    (ttft_s, tpot_s), arrivals_s = workload["slo"], workload["arrivals_s"]
    in_time = [times[0] - arrival_s <= ttft_s for arrival_s, times in zip(arrivals_s, times_s, strict=True)]
    fluent = [(times[-1] - times[0]) / max(1, len(times) - 1) <= tpot_s for times in times_s]
    return sum(map(min, in_time, fluent)), sum(in_time), sum(fluent)


class _ReferencePolicy(Server):
    """Server with unlimited memory: token budget from the TPOT limit, late requests last, short prompts first."""

    def __init__(self, workload: dict[str, Any]) -> None:
        super().__init__(workload)
        self.pending = [len(prompt) for prompt in workload["prompts"]]  # prompt tokens still to compute
        self.computed = [0] * len(self.pending)

    def step(self, now_s: float) -> list[tuple[int, int]]:
        """Schedule all decodes, then prompts while some budget is left."""
        (step_s, token_s, computed_s), (ttft_s, tpot_s) = self.workload["step_time"], self.workload["slo"]
        (max_num_seqs, _), arrivals_s, pending = self.workload["config"], self.workload["arrivals_s"], self.pending
        latest_s = now_s + step_s - ttft_s  # arrival of a prompt without tokens that can just be in time
        self.waiting.sort(key=lambda i: (latest_s + token_s * pending[i] > arrivals_s[i], pending[i]))
        new = {i: 1 for i in self.running if not pending[i]}
        left_s = tpot_s - step_s - computed_s * sum(self.computed[i] for i in new)
        budget = max(int(left_s / token_s), max_num_seqs) - len(new)
        for i in [*(i for i in self.running if pending[i]), *self.waiting]:
            if not budget or (i not in self.running and len(self.running) == max_num_seqs):
                break
            new[i] = min(pending[i], budget)
            budget -= new[i]
            if i in self.waiting:
                self.waiting.remove(i)
                self.running.append(i)
        parts = [(count, self.computed[i]) for i, count in new.items()]
        for i, count in new.items():
            self.computed[i] += count
            pending[i] = max(0, pending[i] - count)
        return parts

    def sample(self, now_s: float) -> list[int]:
        """Sample running requests whose prompts are computed; return those that have finished."""
        sampled = [i for i in self.running if not self.pending[i]]
        for i in sampled:
            self.times_s[i].append(now_s)
        finished = [i for i in sampled if len(self.times_s[i]) == self.workload["outputs"][i]]
        for i in finished:
            self.finish(i)
        return finished
