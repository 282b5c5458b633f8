"""Run the learner's code for lab 11's checks: block pools, block managers, schedulers and functions.

Only arrays cross the sandbox, so the case and the log are JSON encoded as uint8 arrays (`encode_value`): calls to make
(a script) or requests to serve (a workload) arrive in `case`, and what each call returned leaves in `log`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from mlsys_checks.sandboxed.spec import Arrays
from mlsys_checks.sandboxed.values import decode_value, describe_value, encode_value, integer, whole
from mlsys_lab.errors import InputError

VOCAB_SIZE = 5
"""Tokens of prompts and outputs under a workload: 0 to VOCAB_SIZE - 1."""


def next_token(token_ids: Sequence[int]) -> int:
    """Return the token that the stand-in model generates after `token_ids`."""
    return (7 * sum(token_ids[-3:]) + len(token_ids)) % VOCAB_SIZE


def run_pool_script(artifact: Any, arrays: Arrays) -> Arrays:
    """Run a script of calls on a block pool; a second pool with one allocated block detects state shared between pools.

    `blocks` of the log are the results of allocate and get_cached_block, None for no block. Calls refer to a block by
    its index in `blocks`.
    """
    case = decode_value(arrays["case"])
    kind, num_blocks = getattr(artifact, case["pool"]), case["num_blocks"]
    pool, other = kind(num_blocks), kind(num_blocks)
    _allocate(other)
    blocks: list[int | None] = []
    counts = [_read_counts(pool, case)]
    for call, *arguments in case["script"]:
        if call == "allocate":
            blocks.append(_allocate(pool))
        elif call == "get_cached_block":
            found = pool.get_cached_block(*arguments)
            blocks.append(None if found is None else integer("get_cached_block(block_hash)", found))
        elif blocks[arguments[0]] is None:
            break
        else:
            getattr(pool, call)(blocks[arguments[0]], *arguments[1:])
        counts.append(_read_counts(pool, case))
    if (found := integer("num_free_blocks", other.num_free_blocks)) != num_blocks - 1:
        what = f"calls on one {case['pool']} changed another one: do both use the same list or dictionary?"
        raise InputError(what, got=f"{found} free blocks", expected=f"{num_blocks - 1}")
    return {"log": encode_value({"blocks": blocks, "counts": counts})}


def _allocate(pool: Any) -> int | None:
    """Return an allocated block, or None if no block is free."""
    try:
        block = integer("allocate()", pool.allocate())
    except ValueError:
        return None
    if block < 0:
        expected = "a block, or ValueError if none is free"
        raise InputError("allocate() returned no block", got=str(block), expected=expected)
    return block


def _read_counts(pool: Any, case: dict[str, Any]) -> Any:
    """Return the number of free blocks and the reference counts.

    With `reads`, only the number, read `reads` times, so that a linear-time property runs into the time limit.
    """
    if case["reads"]:
        return [integer("num_free_blocks", pool.num_free_blocks) for _ in range(case["reads"])][-1]
    return read_pool_counts(pool)


def read_pool_counts(pool: Any) -> tuple[int, list[int]]:
    """Return the number of free blocks and every reference count; check that used and free blocks add up."""
    num_free, count = integer("num_free_blocks", pool.num_free_blocks), len(pool.ref_cnt)
    if not 0 <= num_free <= count:
        what = "num_free_blocks is out of range: is a block twice among the free ones, or freed while it is in use?"
        raise InputError(what, got=str(num_free), expected=f"0 to {count}")
    if (lowest := min(pool.ref_cnt)) < 0:
        what = f"ref_cnt[{pool.ref_cnt.index(lowest)}] is negative: is a block freed that a sequence no longer uses?"
        raise InputError(what, got=str(lowest), expected="0 or more")
    if (both := integer("num_used_blocks", pool.num_used_blocks) + num_free) != count:
        raise InputError("num_used_blocks + num_free_blocks is not num_blocks", got=str(both), expected=str(count))
    return num_free, [integer("a reference count", pool.ref_cnt[block]) for block in range(count)]


def make_manager(artifact: Any, case: dict[str, Any], block_size: int = 0) -> Any:
    """Create a block manager of the case's class and size."""
    return getattr(artifact, case["manager"])(case["num_blocks"], block_size or case["block_size"])


def table_of(seq: Any) -> list[int]:
    """Return the block table of a sequence."""
    return [integer("a block of a block table", block) for block in seq.block_table]


class _ManagerDriver:
    """Make the calls of a script on a block manager; sequences are numbered by their prompts in the case."""

    def __init__(self, artifact: Any, case: dict[str, Any]) -> None:
        self.artifact, self.manager, self.prompts = artifact, make_manager(artifact, case), case["prompts"]
        self.seqs: dict[int, Any] = {}

    def allocate_prefix(self, i: int, count: int) -> int:
        """Create a sequence from the first `count` tokens of a prompt; return the number of cached tokens."""
        seq = self.seqs[i] = self.artifact.Sequence(i, self.prompts[i][:count], count, len(self.prompts[i]))
        return integer("allocate_prefix(seq)", self.manager.allocate_prefix(seq))

    def allocate_slots(self, i: int, count: int, reserved: int) -> bool:
        seq, arguments = self.seqs[i], (count, reserved) if reserved else (count,)
        answer = self.manager.allocate_slots(seq, *arguments)
        if not isinstance(answer, bool | np.bool_):
            what, got = "allocate_slots returned no truth value", describe_value(answer)
            raise InputError(what, got=got, expected="True or False")
        return bool(answer)

    def mark_computed(self, i: int, count: int) -> None:
        """Mark the next `count` tokens of a sequence as computed, and cache the blocks that they fill."""
        seq, end = self.seqs[i], self.seqs[i].num_computed_tokens + count
        seq.token_ids.extend(self.prompts[i][len(seq.token_ids) : end])
        seq.num_computed_tokens = end
        self.manager.cache_full_blocks(seq)

    def free(self, i: int) -> None:
        seq = self.seqs.pop(i)
        self.manager.free(seq)
        if left := table_of(seq):
            raise InputError("after free(seq), block_table is not empty", got=str(left)[:60], expected="[]")
        if seq.num_computed_tokens:
            got = str(seq.num_computed_tokens)
            raise InputError("after free(seq), num_computed_tokens is not 0", got=got, expected="0")

    def computed_lengths(self) -> list[tuple[int, int]]:
        """Return the number of computed tokens of each sequence; check that no call has changed its token ids."""
        for i, seq in self.seqs.items():
            if list(seq.token_ids) != self.prompts[i][: len(seq.token_ids)]:
                raise InputError("a call on the block manager changed `token_ids` of a sequence")
        return [(i, integer("num_computed_tokens", seq.num_computed_tokens)) for i, seq in self.seqs.items()]


def run_manager_script(artifact: Any, arrays: Arrays) -> Arrays:
    """Run a script of calls on a block manager.

    `num_blocks` of the log are the results of `blocks_for` for each pair of block size and number of tokens.
    """
    case = decode_value(arrays["case"])
    driver, steps = _ManagerDriver(artifact, case), []
    for call, *arguments in case["script"]:
        step = {"answer": getattr(driver, call)(*arguments), "lengths": driver.computed_lengths()}
        step["tables"] = [(i, table_of(seq)) for i, seq in driver.seqs.items()]
        steps.append(step | {"counts": read_pool_counts(driver.manager.pool)})
    num_blocks = [
        integer(f"blocks_for({tokens})", make_manager(artifact, case, size).blocks_for(tokens))
        for size, tokens in case["sizes"]
    ]
    return {"log": encode_value({"steps": steps, "num_blocks": num_blocks})}


class Server(Protocol):
    """What `simulate_server` simulates."""

    def add(self, i: int, now_s: float) -> None:
        """Add a request that has arrived."""

    def finish(self, i: int) -> None:
        """Abort a request."""

    def step(self, now_s: float) -> list[tuple[int, int]]:
        """Schedule a step; return (new tokens, computed tokens) of each scheduled sequence."""

    def sample(self, now_s: float) -> list[int]:
        """Sample the scheduled sequences; return the requests that have finished."""


def simulate_server(workload: dict[str, Any], server: Server) -> None:
    """Simulate a server under a workload: requests arrive, run and are aborted, and each step takes its modelled time.

    A request is its index in the workload. `step_time` of the workload is (seconds per step, per new token, per
    computed token).
    """
    arrivals_s, leaves_s, step_time = (workload[one] for one in ("arrivals_s", "leaves_s", "step_time"))
    step_s, token_s, computed_s = step_time
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


def run_scheduler(artifact: Any, arrays: Arrays) -> Arrays:
    """Run the learner's scheduler under a workload; return a log of its steps and the block counts at the end."""
    workload = decode_value(arrays["case"])
    server = _Recorder(artifact, workload)
    simulate_server(workload, server)
    return {"log": encode_value({"steps": server.steps, "end": read_pool_counts(server.scheduler.block_manager.pool)})}


class _Recorder:
    """Run the learner's scheduler and log its decisions."""

    def __init__(self, artifact: Any, workload: dict[str, Any]) -> None:
        kind, arguments = getattr(artifact, workload["scheduler"]), []
        if workload["scheduler"] == "SLOScheduler":
            arguments = [artifact.StepTime(*workload["step_time"]), artifact.SLO(*workload["slo"])]
        config = artifact.SchedulerConfig(*workload["config"])
        self.scheduler = kind(make_manager(artifact, workload), config, *arguments)
        self.workload, self.steps = workload, list[dict[str, Any]]()
        self.preemptions = [0] * len(workload["prompts"])  # of each request
        self.seqs: dict[int, Any] = {}
        self.indices: dict[int, int] = {}  # request of each sequence, by its id
        self.output: Any = None

    def add(self, i: int, now_s: float) -> None:
        self.scheduler.now_s = now_s
        self.seqs[i] = seq = self.scheduler.add(self.workload["prompts"][i], self.workload["outputs"][i])
        self.indices[id(seq)] = i

    def finish(self, i: int) -> None:
        seq, token_ids = self.seqs[i], list(self.seqs[i].token_ids)
        self.scheduler.finish(self.seqs.pop(self.indices.pop(id(seq))))
        self._check_is_idle()
        held = {"token_ids": token_ids, "num_prompt_tokens": len(self.workload["prompts"][i])}
        if self.workload["scheduler"] == "PreemptiveScheduler":
            held["num_preemptions"] = self.preemptions[i]
        for name, expected in held.items():
            if (found := getattr(seq, name)) != expected:
                got, wanted = (str(one)[:60] for one in (found, expected))
                raise InputError(f"after finish(sequence {i}), its {name} is wrong", got=got, expected=wanted)

    def step(self, now_s: float) -> list[tuple[int, int]]:
        scheduler = self.scheduler
        scheduler.now_s = now_s
        self._check_is_idle()
        for i in self.workload["admits"] if not self.steps else ():
            if scheduler.admit(self.seqs[i]) is not True:
                raise InputError(f"admit(sequence {i}) did not return True although there is room", expected="True")
        if len(self.steps) > self.workload["max_steps"]:
            what = "some requests never finish: is each sequence scheduled again after every step?"
            raise InputError(what, got=f"{len(self.steps)} steps")
        self._schedule()
        counts = self.output.num_scheduled_tokens
        scheduled = [(self._index("num_scheduled_tokens", seq), seq, n) for seq, n in counts.items()]
        running = {id(seq) for seq in scheduler.running}
        if strangers := [i for i, seq, _ in scheduled if id(seq) not in running]:
            what = f"step {len(self.steps)} schedules sequence {strangers[0]}, which is not in `running`"
            raise InputError(what)
        parts = [
            (integer("a number of tokens", n), integer("num_computed_tokens", seq.num_computed_tokens))
            for _, seq, n in scheduled
        ]
        self.steps.append(
            {
                "scheduled": [(i, past, n) for (i, _, _), (n, past) in zip(scheduled, parts, strict=True)],
                "sampled": self._indices("sampled"),
                "preempted": self._indices("preempted"),
                "tables": [(i, table_of(seq)) for i, seq in self.seqs.items() if id(seq) in running],
                "num_free": read_pool_counts(scheduler.block_manager.pool)[0],
            }
        )
        for i in self.steps[-1]["preempted"]:
            self.preemptions[i] += 1
        return parts

    def sample(self, now_s: float) -> list[int]:
        sampled = [self._index("sampled", seq) for seq in self.output.sampled]
        self.scheduler.update_from_output(self.output, [[next_token(seq.token_ids)] for seq in self.output.sampled])
        total = {i: len(self.workload["prompts"][i]) + self.workload["outputs"][i] for i in sampled}
        finished = [i for i in total if len(self.seqs[i].token_ids) == total[i]]
        for i in finished:
            self.finish(i)
        return finished

    def _schedule(self) -> None:
        self.output, step = self.scheduler.schedule(), f"step {len(self.steps)}"
        output = self.output
        if not all(hasattr(output, name) for name in ("num_scheduled_tokens", "sampled", "preempted")):
            got = describe_value(output)
            raise InputError("schedule() returned no SchedulerOutput", got=got, expected="a SchedulerOutput")
        if not output.num_scheduled_tokens:
            got = f"none of {len(self.seqs)} that wait or run"
            raise InputError(f"{step} schedules no sequence", got=got, expected="one or more in num_scheduled_tokens")
        for seq, n in output.num_scheduled_tokens.items():
            if integer("a number of tokens", n) < 1:
                what = f"{step} schedules sequence {self._index('num_scheduled_tokens', seq)} with no token"
                raise InputError(what, got=str(n), expected="1 token or more, or no entry")
            if self.workload["scheduler"] == "Scheduler" and hasattr(self.scheduler, "schedule_tokens"):
                self._schedule_part(seq)

    def _schedule_part(self, seq: Any) -> None:
        """Schedule one of several pending tokens in an output of its own: the sequence may not be sampled."""
        part, pending = type(self.output)(), seq.num_pending_tokens
        self.scheduler.schedule_tokens(seq, 1, part)
        if part.sampled and pending > 1:
            what = f"schedule_tokens(seq, 1, output) of a sequence with {pending} pending tokens samples it"
            raise InputError(what, expected="in `sampled` only if all pending tokens are scheduled")

    def _index(self, name: str, seq: Any) -> int:
        if id(seq) in self.indices:
            return self.indices[id(seq)]
        what = f"{name} holds something that is no sequence waiting or running"
        raise InputError(what, got=describe_value(seq), expected="Sequence objects that add() returned")

    def _indices(self, name: str) -> list[int]:
        return [self._index(name, seq) for seq in getattr(self.output, name)]

    def _check_is_idle(self) -> None:
        idle = not self.seqs
        what = "no sequence waits or runs" if idle else f"{len(self.seqs)} sequences wait or run"
        if bool(found := self.scheduler.is_idle) != idle:
            what += ", but `waiting` and `running` do not say so: finish() and admit() move sequences between them"
            raise InputError(what, got=f"is_idle {found}", expected=f"{idle}")


def steps_to_first(artifact: Any, arrays: Arrays) -> Arrays:
    """Return `steps_to_first` of each row: prompt tokens, decoding sequences, token budget."""
    found = [whole("steps_to_first", artifact.steps_to_first(*row)) for row in arrays["rows"].tolist()]
    return {"steps": np.stack(found)}


DOUBLE_SIZE_COUNT = "number of hashes, in blocks twice as large"
"""Name of the result that counts hashes at twice the block size."""


def alternate_list_tuple(prompts: list[list[int]]) -> list[list[int] | tuple[int, ...]]:
    """Return the prompts, every second one as a tuple, because hash_blocks must accept lists and tuples."""
    return [tuple(token_ids) if i % 2 else token_ids for i, token_ids in enumerate(prompts)]


class _CountedTokens(list[int]):
    """Token ids that count how many of them are read by index or slice."""

    reads = 0

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        self.reads += len(found) if isinstance(index, slice) else 1
        return found


def run_hash_blocks(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `hash_blocks` on prompts at two block sizes; return the numbers of hashes and which hashes are equal."""
    case, seen = decode_value(arrays["case"]), dict[Any, int]()
    prompts, block_size = alternate_list_tuple(case["prompts"]), case["block_size"]
    counted = _CountedTokens(prompts[0])
    found = [artifact.hash_blocks(token_ids, block_size) for token_ids in (counted, *prompts[1:])]
    if counted.reads > 8 * len(counted) + 64:
        got = f"{counted.reads:,} tokens of a sequence of {len(counted):,} are read"
        raise InputError("hash_blocks hashes the same tokens again and again", got=got, expected="each about once")
    if wrong := [one for one in found if not isinstance(one, list | tuple)]:
        got = describe_value(wrong[0])
        raise InputError("hash_blocks returned no list", got=got, expected="a list with a hash for each full block")
    try:
        equal = [seen.setdefault(one, len(seen)) for of_prompt in found for one in of_prompt]
    except (TypeError, RecursionError) as error:  # no hash, or nested as deep as the sequence is long
        what = "what hash_blocks returned cannot be looked up in a dictionary"
        raise InputError(what, got=str(error)[:60], expected="hashable objects") from None
    wide = [len(artifact.hash_blocks(token_ids, 2 * block_size)) for token_ids in prompts]
    counts = [len(one) for one in found]
    names = (("number of hashes", counts), ("which hashes are equal", equal), (DOUBLE_SIZE_COUNT, wide))
    return {name: np.array(one, np.int64) for name, one in names}


def token_budget(artifact: Any, arrays: Arrays) -> Arrays:
    """Return `token_budget` of each call.

    Step time = max(compute, memory), both linear in tokens, plus a time per query-key pair.
    """
    case = decode_value(arrays["case"])
    step_times = [_make_step_time(artifact, **one) for one in case["step_times"]]
    found = [artifact.token_budget(step_times[which], *arguments) for which, *arguments in case["calls"]]
    return {"tokens": np.stack([whole("token_budget", one) for one in found])}


def _make_step_time(artifact: Any, compute: list[float], memory: list[float], pair_s: float, factor: int) -> Any:
    compute_s, memory_s = artifact.StepTime(*compute), artifact.StepTime(*memory)

    def step_time(parts: Any) -> float:
        parts = list(parts)
        pairs = sum(int(new) * int(past) + int(new) * (int(new) + 1) // 2 for new, past in parts)
        return factor * (max(float(compute_s(parts)), float(memory_s(parts))) + pair_s * pairs)

    return step_time
