"""Run the learner's code for lab 11's checks: scripts of calls, workloads of requests, and functions.

Only arrays cross the sandbox, so the case and the log are JSON encoded as uint8 arrays (`encode_value`): calls to make
(a script) or requests to serve (a workload) arrive in `case`, and what each call returned leaves in `log`. Each
function that runs a case passes a line about each call or step to `show`, so that a notebook can print it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from mlsys_checks.sandboxed.spec import Arrays
from mlsys_checks.sandboxed.values import decode_value, describe_value, encode_value, integer, whole
from mlsys_lab.errors import InputError

Show = Callable[..., None]
"""Takes the parts of a line about a call or step: `print_run` prints them, grading ignores them."""
VOCAB_SIZE = 5
"""Tokens of prompts and outputs under a workload: 0 to VOCAB_SIZE - 1."""
MAX_LINES, MAX_CHARACTERS = 300, 1000
"""Lines that `print_run` prints, and characters of each of them."""
SHOWN = 60
"""Characters of a wrong value that a message shows."""
MANAGER_CALLS = {
    "blocks_for": "blocks_for({0})",
    "allocate_prefix": "allocate_prefix(seq{0}) of {1} tokens",
    "allocate_slots": "allocate_slots(seq{0}, {1}, {2})",
    "cache_full_blocks": "cache_full_blocks(seq{0}) after {1} more computed tokens",
    "free": "free(seq{0})",
}
"""How messages show the calls of a script on a block manager."""


def next_token(token_ids: Sequence[int]) -> int:
    """Return the token that the stand-in model generates after `token_ids`."""
    return (7 * sum(token_ids[-3:]) + len(token_ids)) % VOCAB_SIZE


def show_nothing(*parts: object) -> None:
    """Ignore a line about a call or step."""


def print_run(run: Callable[..., Arrays], names: dict[str, Any], arrays: Arrays) -> None:
    """Run a case on a notebook's `names`; print the case, then each call or step until the end or an exception."""
    for name, value in decode_value(arrays["case"]).items():
        if name != "script":
            print(f"{name} = {value}"[:MAX_CHARACTERS])
    left = iter(range(MAX_LINES))

    def show(*parts: object) -> None:
        if next(left, None) is not None:
            print(" ".join(map(str, parts))[:MAX_CHARACTERS])

    run(SimpleNamespace(**names), arrays, show)


def _require_equal(what: str, got: object, expected: object) -> None:
    """Raise InputError, which says `what` is wrong, unless two values are equal."""
    if got != expected:
        raise InputError(what, got=str(got)[:SHOWN], expected=str(expected)[:SHOWN])


def run_script(artifact: Any, arrays: Arrays, show: Show = show_nothing) -> Arrays:
    """Run a script of calls on a block pool or block manager; log what each call returned, and the state after it."""
    case = decode_value(arrays["case"])
    driver = (_PoolDriver if "pool" in case else _ManagerDriver)(artifact, case)
    answers, states = list[Any](), list[Any]()
    for number, (call, *arguments) in enumerate(case["script"]):
        answers.append(driver.make_call(call, *arguments))
        states.append(driver.read_state())
        show("call", number, driver.shown_call, "returned", answers[-1], "then", states[-1])
    return {"log": encode_value({"answers": answers, "states": states})}


class _PoolDriver:
    """Make the calls of a script on a block pool.

    Calls refer to a block by its index among the results of allocate and get_cached_block; a call for a block that was
    not returned is left out. A second pool with one allocated block detects state shared between pools.
    """

    def __init__(self, artifact: Any, case: dict[str, Any]) -> None:
        kind, self.case = getattr(artifact, case["pool"]), case
        self.pool, self.other = kind(case["num_blocks"]), kind(case["num_blocks"])
        self.other.allocate()
        self.blocks: list[int | None] = []
        self.shown_call = ""

    def make_call(self, call: str, *arguments: Any) -> int | None:
        if call in ("touch", "free", "cache"):
            arguments = (self.blocks[arguments[0]], *arguments[1:])
        self.shown_call = f"{call}({', '.join(map(str, arguments))})"
        if arguments and arguments[0] is None:
            return None
        answer = self._allocate() if call == "allocate" else getattr(self.pool, call)(*arguments)
        if call not in ("allocate", "get_cached_block"):
            return None
        self.blocks.append(None if answer is None else integer(f"the block that {call} returned", answer))
        return self.blocks[-1]

    def _allocate(self) -> Any:
        """Return what allocate() returned, or None if it raised ValueError: no block is free."""
        try:
            block = self.pool.allocate()
        except ValueError:
            return None
        if block is None or block == -1:
            what = "allocate() returned no block. If none is free, it has to raise ValueError"
            raise InputError(what, got=describe_value(block), expected="the number of a block")
        return block

    def read_state(self) -> int | dict[str, Any]:
        """Return the number of free blocks, of a small pool with the reference counts."""
        if self.case["large"]:
            return integer("num_free_blocks", self.pool.num_free_blocks)
        what = f"{self.shown_call} changed num_free_blocks of another pool. Do both use the same list or dictionary?"
        _require_equal(what, self.other.num_free_blocks, self.case["num_blocks"] - 1)
        return read_pool_counts(self.pool)


def read_pool_counts(pool: Any) -> dict[str, Any]:
    """Return the number of free blocks and every reference count; check that used and free blocks add up."""
    num_free, count = integer("num_free_blocks", pool.num_free_blocks), len(pool.ref_cnt)
    if not 0 <= num_free <= count:
        what = "num_free_blocks is out of range. Is a block twice among the free ones, or freed while it is in use?"
        raise InputError(what, got=str(num_free), expected=f"0 to {count}")
    if (lowest := min(pool.ref_cnt)) < 0:
        what = f"ref_cnt[{pool.ref_cnt.index(lowest)}] is negative. Is a block freed that a sequence no longer uses?"
        raise InputError(what, got=str(lowest), expected="0 or more")
    both = integer("num_used_blocks", pool.num_used_blocks) + num_free
    _require_equal("num_used_blocks + num_free_blocks must be the number of all blocks", both, count)
    ref_cnt = [integer("a reference count", pool.ref_cnt[block]) for block in range(count)]
    return {"num_free_blocks": num_free, "ref_cnt": ref_cnt}


def make_manager(artifact: Any, case: dict[str, Any]) -> Any:
    """Create a block manager of the case's class and size."""
    return getattr(artifact, case["manager"])(case["num_blocks"], case["block_size"])


def table_of(seq: Any) -> list[int]:
    """Return the block table of a sequence."""
    return [integer("a block of a block table", block) for block in seq.block_table]


class _ManagerDriver:
    """Make the calls of a script on a block manager; sequences are numbered by their prompts in the case."""

    def __init__(self, artifact: Any, case: dict[str, Any]) -> None:
        self.artifact, self.manager, self.prompts = artifact, make_manager(artifact, case), case["prompts"]
        self.seqs: dict[int, Any] = {}
        self.shown_call = ""

    def make_call(self, call: str, *arguments: int) -> int | bool | None:
        self.shown_call = MANAGER_CALLS[call].format(*arguments)
        answer: int | bool | None = getattr(self, call)(*arguments)
        return answer

    def blocks_for(self, count: int) -> int:
        return integer(self.shown_call, self.manager.blocks_for(count))

    def allocate_prefix(self, i: int, count: int) -> int:
        """Create a sequence from the first `count` tokens of a prompt; return the number of cached tokens."""
        seq = self.seqs[i] = self.artifact.Sequence(i, self.prompts[i][:count], count, len(self.prompts[i]))
        return integer("allocate_prefix(seq)", self.manager.allocate_prefix(seq))

    def allocate_slots(self, i: int, count: int, reserved: int) -> bool:
        seq, arguments = self.seqs[i], (count, reserved) if reserved else (count,)
        answer = self.manager.allocate_slots(seq, *arguments)
        if not isinstance(answer, bool | np.bool_):
            what = f"allocate_slots(seq, {count}, {reserved}) returned no truth value. It says whether there was room"
            raise InputError(what, got=describe_value(answer), expected="True or False")
        return bool(answer)

    def cache_full_blocks(self, i: int, count: int) -> None:
        """Count the next `count` tokens of a sequence as computed, and cache the blocks that they fill."""
        seq, end = self.seqs[i], self.seqs[i].num_computed_tokens + count
        seq.token_ids.extend(self.prompts[i][len(seq.token_ids) : end])
        seq.num_computed_tokens = end
        self.manager.cache_full_blocks(seq)

    def free(self, i: int) -> None:
        seq = self.seqs.pop(i)
        self.manager.free(seq)
        what = "after free(seq), `block_table` and `num_computed_tokens` are wrong. free empties the one, and sets 0"
        _require_equal(what, (table_of(seq), seq.num_computed_tokens), ([], 0))

    def read_state(self) -> dict[str, Any]:
        """Return what each sequence holds, and the pool's counts; check that no call has changed the token ids."""
        for i, seq in self.seqs.items():
            what = f"{self.shown_call} changed `token_ids` of sequence {i}. The block manager may only read them"
            _require_equal(what, list(seq.token_ids), self.prompts[i][: len(seq.token_ids)])
        computed = [(i, integer("num_computed_tokens", seq.num_computed_tokens)) for i, seq in self.seqs.items()]
        tables = [(i, table_of(seq)) for i, seq in self.seqs.items()]
        return {"num_computed_tokens": computed, "block_tables": tables, **read_pool_counts(self.manager.pool)}


class Server:
    """A server that `simulate_server` simulates: its waiting and running requests, and the times of their tokens."""

    def __init__(self, workload: dict[str, Any]) -> None:
        self.workload = workload
        self.waiting: list[int] = []
        self.running: list[int] = []
        self.times_s: list[list[float]] = [[] for _ in workload["prompts"]]

    def add(self, i: int, now_s: float) -> None:
        """Add a request that has arrived."""
        self.waiting.append(i)

    def finish(self, i: int) -> None:
        """Remove a request that has finished or is aborted."""
        (self.running if i in self.running else self.waiting).remove(i)

    def step(self, now_s: float) -> list[tuple[int, int]]:
        """Schedule a step; return (new tokens, computed tokens) of each scheduled sequence."""
        raise NotImplementedError

    def sample(self, now_s: float) -> list[int]:
        """Sample the scheduled sequences; return the requests that have finished."""
        raise NotImplementedError


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


def run_scheduler(artifact: Any, arrays: Arrays, show: Show = show_nothing) -> Arrays:
    """Run the learner's scheduler under a workload; return a log of its steps and the block counts at the end."""
    workload = decode_value(arrays["case"])
    server = _Recorder(artifact, workload, show)
    simulate_server(workload, server)
    return {"log": encode_value({"steps": server.steps, "end": read_pool_counts(server.scheduler.block_manager.pool)})}


class _Recorder(Server):
    """Run the learner's scheduler and log its decisions.

    `show` gets a line for each step or, if the workload has objectives, for each request that finishes.
    """

    def __init__(self, artifact: Any, workload: dict[str, Any], show: Show) -> None:
        super().__init__(workload)
        kind, arguments = getattr(artifact, workload["scheduler"]), []
        if workload["scheduler"] == "SLOScheduler":
            arguments = [artifact.StepTime(*workload["step_time"]), artifact.SLO(*workload["slo"])]
        config = artifact.SchedulerConfig(*workload["config"])
        self.scheduler = kind(make_manager(artifact, workload), config, *arguments)
        self.show, self.steps = show, list[dict[str, Any]]()
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
        self._check_is_idle(f"after finish(sequence {i})")
        kept = {"token_ids": token_ids, "num_prompt_tokens": len(self.workload["prompts"][i])}
        if self.workload["scheduler"] == "PreemptiveScheduler":
            kept["num_preemptions"] = sum(i in step["preempted"] for step in self.steps)
        for name, expected in kept.items():
            what = (
                f"after finish(sequence {i}), its `{name}` is wrong. Only preempt changes num_preemptions, finish none"
            )
            _require_equal(what, getattr(seq, name), expected)

    def step(self, now_s: float) -> list[tuple[int, int]]:
        scheduler, where = self.scheduler, f"step {len(self.steps)}"
        scheduler.now_s = now_s
        self._check_is_idle(f"before {where}")
        for i in self.workload["admits"] if not self.steps else ():
            what = f"admit(sequence {i}) has to return True, because there is room for a sequence that waits"
            _require_equal(what, scheduler.admit(self.seqs[i]), True)
        if len(self.steps) > self.workload["max_steps"]:
            what = "some requests never finish. Is each sequence scheduled again after every step?"
            raise InputError(what, got=f"{len(self.steps)} steps", expected=f"at most {self.workload['max_steps']}")
        self.output = scheduler.schedule()
        self._check_output(where)
        counts, running = self.output.num_scheduled_tokens, {id(seq) for seq in scheduler.running}
        if strangers := [self._index("num_scheduled_tokens", seq) for seq in counts if id(seq) not in running]:
            what = f"{where} schedules sequence {strangers[0]}, which is not in `running` after schedule()"
            raise InputError(what, expected="only sequences that run, none that was preempted in this step")
        step: dict[str, Any] = {"scheduled": []}
        for seq, n in counts.items():
            past = integer("num_computed_tokens", seq.num_computed_tokens)
            step["scheduled"].append((self._index("num_scheduled_tokens", seq), past, int(n)))
        for name in ("sampled", "preempted"):
            step[name] = [self._index(name, seq) for seq in getattr(self.output, name)]
        step["tables"] = [(i, table_of(seq)) for i, seq in self.seqs.items() if id(seq) in running]
        step["num_free"] = read_pool_counts(scheduler.block_manager.pool)["num_free_blocks"]
        self.steps.append(step)
        if "slo" not in self.workload:
            self.show(where, "at", now_s, "s", step)
        return [(n, past) for _, past, n in step["scheduled"]]

    def sample(self, now_s: float) -> list[int]:
        self.scheduler.update_from_output(self.output, [[next_token(seq.token_ids)] for seq in self.output.sampled])
        sampled = list(dict.fromkeys(self.steps[-1]["sampled"]))
        lengths = {i: len(self.workload["prompts"][i]) + self.workload["outputs"][i] for i in sampled}
        finished = [i for i in sampled if len(self.seqs[i].token_ids) == lengths[i]]
        for i in sampled:
            self.times_s[i].append(now_s)
        for i in finished:
            self.finish(i)
            if "slo" in self.workload:
                ttft_s = self.times_s[i][0] - self.workload["arrivals_s"][i]
                tpot_s = (now_s - self.times_s[i][0]) / max(1, len(self.times_s[i]) - 1)
                self.show("request", i, f"TTFT {ttft_s:.3f} s, TPOT {tpot_s:.4f} s")
        return finished

    def _check_output(self, where: str) -> None:
        output = self.output
        if not all(hasattr(output, name) for name in ("num_scheduled_tokens", "sampled", "preempted")):
            what = f"in {where}, schedule() returned no SchedulerOutput"
            raise InputError(what, got=describe_value(output), expected="a SchedulerOutput")
        if not output.num_scheduled_tokens:
            what = f"{where} schedules no sequence, although {len(self.seqs)} wait or run"
            raise InputError(what, got="{}", expected="num_scheduled_tokens of one sequence or more")
        for seq, n in output.num_scheduled_tokens.items():
            if integer("a number of tokens", n) < 1:
                what = f"{where} schedules sequence {self._index('num_scheduled_tokens', seq)} with no token"
                raise InputError(what, got=str(n), expected="1 token or more, or no entry")
            if self.workload["scheduler"] == "Scheduler" and hasattr(self.scheduler, "schedule_tokens"):
                self._schedule_part(seq)

    def _schedule_part(self, seq: Any) -> None:
        """Schedule one of several pending tokens in an output of its own: the sequence may not be sampled."""
        part, pending = type(self.output)(), seq.num_pending_tokens
        self.scheduler.schedule_tokens(seq, 1, part)
        if part.sampled and pending > 1:
            what = f"schedule_tokens(seq, 1, output) of a sequence with {pending} pending tokens samples it"
            raise InputError(what, got="in `sampled`", expected="in `sampled` only if all pending tokens are scheduled")

    def _index(self, name: str, seq: Any) -> int:
        if id(seq) in self.indices:
            return self.indices[id(seq)]
        what = f"`{name}` holds something that is no sequence waiting or running"
        raise InputError(what, got=describe_value(seq), expected="Sequence objects that add() returned")

    def _check_is_idle(self, when: str) -> None:
        what = (
            f"{when}, is_idle is wrong: {len(self.seqs)} sequences wait or run. finish removes, admit moves a sequence"
        )
        _require_equal(what, bool(self.scheduler.is_idle), not self.seqs)


def run_steps_to_first(artifact: Any, arrays: Arrays, show: Show = show_nothing) -> Arrays:
    """Call `steps_to_first` for each row: prompt tokens, decoding sequences, token budget."""
    found = []
    for row in decode_value(arrays["case"])["rows"]:
        found.append(whole("steps_to_first", artifact.steps_to_first(*row)))
        show(f"steps_to_first{tuple(row)}", "returned", found[-1])
    return {"steps": np.stack(found)}


class _CountedTokens(list[int]):
    """Token ids that count how many of them are read by index or slice."""

    reads = 0

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        self.reads += len(found) if isinstance(index, slice) else 1
        return found


def run_hash_blocks(artifact: Any, arrays: Arrays, show: Show = show_nothing) -> Arrays:
    """Call `hash_blocks` on prompts at two block sizes; return the numbers of hashes and which hashes are equal.

    Every second prompt is a tuple, because hash_blocks must accept lists and tuples.
    """
    case, seen = decode_value(arrays["case"]), dict[Any, int]()
    size, equal, counts = case["block_size"], list[int](), list[int]()
    for i, prompt in enumerate(case["prompts"]):
        token_ids = tuple(prompt) if i % 2 else _CountedTokens(prompt)
        hashes = artifact.hash_blocks(token_ids, size)
        shown = f"hash_blocks({str(prompt)[:SHOWN]}, {size})"
        if isinstance(token_ids, _CountedTokens) and token_ids.reads > 8 * len(prompt) + 64:
            what = f"hash_blocks of {len(prompt):,} tokens reads the same tokens again and again"
            raise InputError(what, got=f"{token_ids.reads:,} tokens read", expected="each about once")
        if not isinstance(hashes, list | tuple):
            what = f"{shown} returned no list"
            raise InputError(what, got=describe_value(hashes), expected="a list with a hash for each full block")
        try:
            equal += [seen.setdefault(one, len(seen)) for one in hashes]
        except (TypeError, RecursionError) as error:  # no hash, or nested as deep as the sequence is long
            what = f"what {shown} returned cannot be looked up in a dictionary"
            raise InputError(what, got=str(error)[:SHOWN], expected="hashable objects") from None
        show(
            shown,
            "returned hashes that are numbered",
            equal[len(equal) - len(hashes) :],
            "if equal ones share a number",
        )
        counts += [len(hashes), len(artifact.hash_blocks(token_ids, 2 * size))]
    return {"numbers of hashes": np.array(counts, np.int64), "which hashes are equal": np.array(equal, np.int64)}


def run_token_budget(artifact: Any, arrays: Arrays, show: Show = show_nothing) -> Arrays:
    """Call `token_budget` with each step time.

    Step time = max(compute, memory), both linear in tokens, plus a time per query-key pair.
    """
    found = []
    for step_time, *arguments in decode_value(arrays["case"])["calls"]:
        budget = artifact.token_budget(_make_step_time(artifact, **step_time), *arguments)
        found.append(whole("token_budget", budget))
        show(f"token_budget(step_time, {str(arguments)[1:-1]}) returned", budget, "with step_time", step_time)
    return {"tokens": np.stack(found)}


def _make_step_time(artifact: Any, compute: list[float], memory: list[float], pair_s: float, factor: int) -> Any:
    compute_s, memory_s = artifact.StepTime(*compute), artifact.StepTime(*memory)

    def step_time(parts: Any) -> float:
        parts = list(parts)
        pairs = sum(int(new) * int(past) + int(new) * (int(new) + 1) // 2 for new, past in parts)
        return factor * (max(float(compute_s(parts)), float(memory_s(parts))) + pair_s * pairs)

    return step_time
