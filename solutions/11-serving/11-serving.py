# %% [markdown]
# # Lab 11 · A serving engine: many requests, one model
#
# A decode step of Llama 3 8B takes about 4.8 ms on an H100, because it reads all weights once. If 64 requests share
# the step, it takes 6.5 ms and yields 64 tokens: 47 times the throughput of one request at a time. A program decides
# which requests share each step, which wait, and who owns which part of the KV cache. It is called the **scheduler**,
# and you build one that stands up to bursts of traffic, long prompts and full memory.
#
# ```text
#              admit                         schedule()
#  request ──► waiting ────────► running ───────────────► one step of the model ──► 1 token for each
#                 ▲                 │                     (prompt chunks + 1 token     sampled sequence
#                 └──── preempt ────┘                      per decoding sequence)
#                                   │ allocate, free
#  KV cache:  [ block 0 ][ block 1 ][ block 2 ][ block 3 ] …        each in use, cached or free
# ```
#
# **You will build**
#
# 1. a block pool, and block tables that say where the KV cache of each sequence lies (`40 min`);
# 2. continuous batching (`40 min`);
# 3. chunked prefill under a token budget (`35 min`);
# 4. prefix caching (`50 min`);
# 5. preemption (`40 min`);
# 6. a policy that meets latency objectives on traffic it has not seen (`35 min`).
#
# At the end your scheduler runs inside the course's engine and serves a model over HTTP.
#
# **At the end you can answer**
#
# - Why do blocks waste less memory than one row per sequence, and what decides how much?
# - What sets the longest gap between two tokens that a user sees?
# - Why does every request finish although any of them may be preempted?
#
# **Time:** about 240 minutes. **Points:** 100. **You need:** [lab 10](10-kv-cache.ipynb) (what a KV cache holds) and
# Python's lists and dictionaries; no torch until the last section. Background: chapter 13, *Serving*.
#
# **Readings:** *How continuous batching enables 23x throughput in LLM inference while reducing p50 latency*
# (`anyscale-continuous-batching`), *Reproducible Performance Metrics for LLM inference* (`anyscale-metrics`), *LLM
# Inference Performance Engineering: Best Practices* (`databricks-llm-inference`).
#
# **How it works.** Replace each line that raises `NotImplementedError`, run the cell, paste the example into a new cell
# to see whether it does what the text says, then run the `check` below. Cells that start with `#| export` are what is
# graded. Names and signatures are those of the course's engine, `mlsys_lab.inference.engine`.

# %%
from mlsys_lab.checks import lab

check = lab("serving")

# %%
#| export
import hashlib
import math
from array import array
from collections.abc import Callable, Hashable, Iterable
from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field

# %% [markdown]
# ## Task 1 · Block pool and block tables
#
# *About 40 minutes.*
#
# **Goal.** Lab 10 reserved a row as long as the longest possible sequence and left most of it empty. PagedAttention
# (Kwon et al. 2023) cuts the KV cache into *blocks* of `block_size` tokens and gives a sequence a block at a time:
# write the pool of blocks, and the manager that keeps each sequence's **block table**, the list of its blocks.
#
# A `Sequence` is given. Its first `num_computed_tokens` tokens have their keys and values in the blocks of
# `block_table`, in this order; the remaining tokens are *pending*.


# %%
#| export
@dataclass(eq=False)
class Sequence:
    """Prompt and output tokens of a request, and the blocks that hold its KV cache."""

    seq_id: int
    token_ids: list[int]  # prompt and output tokens so far
    num_prompt_tokens: int
    max_tokens: int  # at most this many output tokens
    arrival_s: float = 0.0
    block_table: list[int] = field(default_factory=list)
    block_hashes: list[Hashable] = field(default_factory=list)  # used from Task 4 on
    num_computed_tokens: int = 0
    num_cached_tokens: int = 0
    num_preemptions: int = 0

    @property
    def num_output_tokens(self) -> int:
        """Number of tokens generated so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_pending_tokens(self) -> int:
        """Number of tokens to compute before the next token can be sampled."""
        return len(self.token_ids) - self.num_computed_tokens


# %% [markdown]
# **Interface**
#
# | | returns | does |
# |---|---|---|
# | `pool.num_free_blocks` | int | number of blocks whose reference count is 0 |
# | `pool.allocate()` | int | takes a free block and sets its `ref_cnt` to 1; `ValueError` if none is free |
# | `pool.touch(block)` | – | adds a reference: one more sequence uses the block |
# | `pool.free(block)` | – | drops a reference; with the last one the block is free again |
# | `manager.blocks_for(num_tokens)` | int | blocks that `num_tokens` tokens fill, the last one perhaps partly |
# | `manager.allocate_slots(seq, num_new_tokens, num_free_reserved=0)` | bool | makes room for new tokens |
# | `manager.free(seq)` | – | gives back all blocks of a sequence |
#
# **Example**
#
# ```python
# pool = BlockPool(2)
# a = pool.allocate()
# pool.touch(a)  # two sequences use it now
# pool.free(a)
# pool.num_free_blocks  # → 1
# manager = BlockManager(num_blocks=4, block_size=16)
# seq = Sequence(0, [7] * 20, num_prompt_tokens=20, max_tokens=50)
# manager.allocate_slots(seq, 20), len(seq.block_table)  # → (True, 2)
# seq.num_computed_tokens = 20  # what a step of the model does
# manager.allocate_slots(seq, 12), len(seq.block_table)  # → (True, 2)
# manager.allocate_slots(seq, 13, num_free_reserved=2)  # → False
# manager.free(seq)
# seq.block_table, seq.num_computed_tokens, manager.pool.num_free_blocks  # → ([], 0, 4)
# ```
#
# (Why 12 more tokens need no block: 20 tokens leave 12 slots of the second block empty. Why 13 more are refused: the
# third block is there, but only 1 block would stay free.)
#
# **Requirements**
#
# - `allocate_slots` extends `seq.block_table` by just enough blocks to hold the computed tokens and `num_new_tokens`
#   more. Blocks that the sequence already holds are included in this count.
# - It returns `False` and changes nothing if fewer than `num_free_reserved` blocks would stay free.
# - `free(seq)` empties `block_table` and sets `num_computed_tokens` to 0. It frees the **last block first**; Task 4
#   depends on this order.
# - No operation on the pool searches all blocks. A loop over them does, and so do `in`, `min`, `index`, `count` and
#   `remove` on a list. A server manages hundreds of thousands of blocks and has milliseconds per step.
#
# **Size:** about 1, 5, 1, 3, 1, 5 and 3 lines.
#
# <details><summary>Details</summary>
#
# - Which free block is allocated next is up to you.
# - A sequence may hold more blocks than it needs right now. `allocate_slots` takes none of them back.
# - `num_new_tokens` may be 0.
#
# </details>


# %% nbgrader={"solution": true, "grade_id": "task-1-blocks"}
#| export
class BlockPool:
    """Reference counts of blocks 0 to `num_blocks` - 1."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.ref_cnt = [0] * num_blocks
        self.free_blocks = list(range(num_blocks))

    @property
    def num_free_blocks(self) -> int:
        """Number of blocks that can be allocated. About 1 line."""
        ### BEGIN SOLUTION
        return len(self.free_blocks)
        ### END SOLUTION

    @property
    def num_used_blocks(self) -> int:
        """Number of blocks that a sequence refers to."""
        return self.num_blocks - self.num_free_blocks

    def allocate(self) -> int:
        """Return a free block, now with one reference. About 5 lines."""
        ### BEGIN SOLUTION
        if not self.free_blocks:
            raise ValueError("no block is free")
        block = self.free_blocks.pop()
        self.ref_cnt[block] = 1
        return block
        ### END SOLUTION

    def touch(self, block: int) -> None:
        """Add a reference to a block. About 1 line."""
        ### BEGIN SOLUTION
        self.ref_cnt[block] += 1
        ### END SOLUTION

    def free(self, block: int) -> None:
        """Drop a reference to a block. About 3 lines."""
        ### BEGIN SOLUTION
        self.ref_cnt[block] -= 1
        if self.ref_cnt[block] == 0:
            self.free_blocks.append(block)
        ### END SOLUTION


class BlockManager:
    """Allocates the blocks of sequences, `block_size` tokens each, from one pool."""

    def __init__(self, num_blocks: int, block_size: int = 16) -> None:
        self.block_size, self.pool = block_size, BlockPool(num_blocks)

    def allocate_prefix(self, seq: Sequence) -> int:
        """Number of tokens found in the prefix cache: none before Task 4."""
        return 0

    def cache_full_blocks(self, seq: Sequence) -> None:
        """Add full blocks to the prefix cache: there is none before Task 4."""

    def blocks_for(self, num_tokens: int) -> int:
        """Number of blocks for `num_tokens` tokens of a sequence. About 1 line."""
        ### BEGIN SOLUTION
        return -(-num_tokens // self.block_size)
        ### END SOLUTION

    def allocate_slots(
        self, seq: Sequence, num_new_tokens: int, num_free_reserved: int = 0
    ) -> bool:
        """Allocate blocks for new tokens; False if there is no room. About 5 lines."""
        ### BEGIN SOLUTION
        num_tokens = seq.num_computed_tokens + num_new_tokens
        num_blocks = max(0, self.blocks_for(num_tokens) - len(seq.block_table))
        if num_blocks + num_free_reserved > self.pool.num_free_blocks:
            return False
        seq.block_table += [self.pool.allocate() for _ in range(num_blocks)]
        return True
        ### END SOLUTION

    def free(self, seq: Sequence) -> None:
        """Free all blocks of a sequence, the last one first. About 3 lines."""
        ### BEGIN SOLUTION
        while seq.block_table:
            self.pool.free(seq.block_table.pop())
        seq.num_computed_tokens = 0
        ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "blocks"}
check("blocks")

# %% nbgrader={"grade": true, "grade_id": "tables"}
check("tables")

# %% [markdown]
# **Predict, then measure.** Sequences of 1 to 512 tokens, each length once, in blocks of 16 tokens: how many slots
# are empty per sequence, on average? Write your number into the next cell before you run the one after it.

# %%
guess = None  # empty slots per sequence, block_size=16

# %%
lengths = range(1, 513)
empty = {}
for block_size in (1, 4, 16, 64):
    manager = BlockManager(200_000, block_size)
    for length in lengths:
        seq = Sequence(length, [0] * length, length, 1)
        assert manager.allocate_slots(seq, length)
    num_slots = block_size * manager.pool.num_used_blocks
    empty[block_size] = (num_slots - sum(lengths)) / len(lengths)
    wasted = 1 - sum(lengths) / num_slots
    print(f"block_size {block_size:2}: {empty[block_size]:5.1f} empty, {wasted:5.1%}")
row = 512 - sum(lengths) / len(lengths)
print(f"a row for each:  {row:5.1f} empty, {row / 512:5.1%}")
check.predict(guess, empty[16], "empty slots per sequence")

# %% [markdown]
# Only the last block of a sequence has empty slots, and its fill is spread evenly from 1 to `block_size`: on average
# `(block_size - 1) / 2` slots stay empty, however long the sequence is. With these lengths a row wastes half of what it
# reserves.
#
# ## Task 2 · Continuous batching
#
# *About 40 minutes.*
#
# **Goal.** Before Orca (Yu et al. 2022) batches were *static*: a batch ran until its longest answer was complete, and
# its **slots** (here: its places for a sequence, not the token slots of Task 1) sat idle once their answers had ended.
# Write a scheduler that composes a new batch for *every step*: a request leaves when it is done, and the next one takes
# its slot at once.


# %%
#| export
@dataclass(frozen=True)
class SchedulerConfig:
    """Limits of a step: running sequences, and tokens that the model computes."""

    max_num_seqs: int = 16
    max_num_batched_tokens: int = 256

    def __post_init__(self) -> None:
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError("max_num_batched_tokens: one token for each sequence")


@dataclass
class SchedulerOutput:
    """One step: tokens to compute, sequences to sample, sequences that lost blocks."""

    num_scheduled_tokens: dict[Sequence, int] = field(default_factory=dict)
    sampled: list[Sequence] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)  # used from Task 5 on
    draft_token_ids: dict[Sequence, list[int]] = field(default_factory=dict)  # unused

    @property
    def total_num_scheduled_tokens(self) -> int:
        """Number of tokens that the step computes, over all sequences."""
        return sum(self.num_scheduled_tokens.values())


# %% [markdown]
# `Scheduler.add`, `start` and `update_from_output` are given. Read them in the cell below; they show what a sequence
# goes through.
#
# **Interface**
#
# | | returns | does |
# |---|---|---|
# | `schedule_tokens(seq, num_tokens, output)` | – | adds a running sequence's next `num_tokens` tokens to `output` |
# | `admit(seq)` | bool | allocates blocks for a waiting sequence and calls `self.start(seq)`, if there is room |
# | `schedule()` | `SchedulerOutput` | composes the next step |
# | `finish(seq)` | – | removes a sequence, **running or waiting**, that is complete or aborted, and frees its blocks |
#
# **Example** (4 blocks of 4 tokens; each request needs 2 blocks)
#
# ```python
# manager = BlockManager(num_blocks=4, block_size=4)
# scheduler = Scheduler(manager, SchedulerConfig(max_num_seqs=8))
# a, b, c = [scheduler.add([1, 2, 3], max_tokens=3) for _ in range(3)]
# output = scheduler.schedule()
# [output.num_scheduled_tokens.get(seq, 0) for seq in (a, b, c)]  # → [3, 3, 0]
# output.sampled == [a, b]  # → True
# scheduler.update_from_output(output, [[9], [9]])  # the model generated token 9 for both
# scheduler.finish(b)
# output = scheduler.schedule()
# [output.num_scheduled_tokens.get(seq, 0) for seq in (a, b, c)]  # → [1, 0, 3]
# ```
#
# **Requirements**
#
# - All pending tokens of a running sequence are scheduled: its prompt at first, then one token per step.
# - A sequence is in `sampled` if the step computes all of its pending tokens: only then are there logits for its next
#   token.
# - Then, while fewer than `max_num_seqs` sequences run, the **first** waiting sequence is admitted and scheduled in
#   the same step. If there is no room for the first, no later one overtakes it.
# - Room means blocks for every token whose keys and values will ever be stored, allocated at admission:
#   `num_prompt_tokens + max_tokens - 1`, because the last output token is never fed back into the model.
# - `admit` starts with `allocate_prefix(seq)`, so that it also works on the prefix cache of Task 4. If it returns
#   `False`, the sequence holds no blocks and keeps its place in `waiting`.
#
# **Size:** about 3, 7, 7 and 2 lines.
#
# <details><summary>Details</summary>
#
# - `admit` may be called with any waiting sequence.
# - `max_num_batched_tokens` plays no role before Task 3.
# - A finished or aborted sequence keeps its `token_ids`: its output may not have been read yet.
#
# </details>


# %% nbgrader={"solution": true, "grade_id": "task-2-continuous"}
#| export
class Scheduler:
    """Waiting and running sequences, each list in the order of arrival."""

    def __init__(self, block_manager: BlockManager, config: SchedulerConfig) -> None:
        self.block_manager, self.config = block_manager, config
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.num_added = self.num_steps = 0
        self.now_s = 0.0  # when the step starts; set by the simulation

    @property
    def is_idle(self) -> bool:
        """Whether no sequence waits or runs."""
        return not self.waiting and not self.running

    def add(
        self,
        prompt_token_ids: Iterable[int],
        max_tokens: int,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> Sequence:
        """Queue a sequence; ValueError if it needs more blocks than there are."""
        token_ids = list(prompt_token_ids)
        num_slots, manager = len(token_ids) + max_tokens - 1, self.block_manager
        if manager.blocks_for(num_slots) > manager.pool.num_blocks:
            raise ValueError(f"{num_slots} tokens can outgrow the KV cache")
        if priority or cache_salt:
            raise ValueError("this scheduler knows no priorities and no adapters")
        seq = Sequence(
            self.num_added, token_ids, len(token_ids), max_tokens, self.now_s
        )
        self.num_added += 1
        self.waiting.append(seq)
        return seq

    def start(self, seq: Sequence) -> None:
        """Move a sequence, which has its blocks, from `waiting` to `running`."""
        self.waiting.remove(seq)
        self.running.append(seq)
        seq.num_cached_tokens += seq.num_computed_tokens

    def update_from_output(
        self, output: SchedulerOutput, token_ids: Tokens[Iterable[int]]
    ) -> None:
        """Count scheduled tokens as computed; append the tokens sampled for each."""
        self.num_steps += 1
        for seq, num_tokens in output.num_scheduled_tokens.items():
            seq.num_computed_tokens += num_tokens
            self.block_manager.cache_full_blocks(seq)
        for seq, sampled in zip(output.sampled, token_ids, strict=True):
            seq.token_ids += sampled

    def schedule_tokens(
        self, seq: Sequence, num_tokens: int, output: SchedulerOutput
    ) -> None:
        """Schedule the next pending tokens of a running sequence. About 3 lines."""
        ### BEGIN SOLUTION
        output.num_scheduled_tokens[seq] = num_tokens
        if num_tokens == seq.num_pending_tokens:
            output.sampled.append(seq)
        ### END SOLUTION

    def admit(self, seq: Sequence) -> bool:
        """Let a waiting sequence run if its blocks can be allocated. About 7 lines."""
        ### BEGIN SOLUTION
        self.block_manager.allocate_prefix(seq)
        num_slots = seq.num_prompt_tokens + seq.max_tokens - 1
        num_new_tokens = num_slots - seq.num_computed_tokens
        if not self.block_manager.allocate_slots(seq, num_new_tokens):
            self.block_manager.free(seq)
            return False
        self.start(seq)
        return True
        ### END SOLUTION

    def schedule(self) -> SchedulerOutput:
        """Compose the next step. About 7 lines."""
        ### BEGIN SOLUTION
        output = SchedulerOutput()
        for seq in self.running:
            self.schedule_tokens(seq, seq.num_pending_tokens, output)
        while self.waiting and len(self.running) < self.config.max_num_seqs:
            if not self.admit(self.waiting[0]):
                break
            seq = self.running[-1]
            self.schedule_tokens(seq, seq.num_pending_tokens, output)
        return output
        ### END SOLUTION

    def finish(self, seq: Sequence) -> None:
        """Remove a sequence that runs or waits, and free its blocks. About 2 lines."""
        ### BEGIN SOLUTION
        (self.running if seq in self.running else self.waiting).remove(seq)
        self.block_manager.free(seq)
        ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "continuous"}
check("continuous")

# %% [markdown]
# To see your scheduler at work, `simulate` serves a list of requests with it: in place of a model, `step_time` says
# how long each step takes, and every generated token is 0. Exactly this loop, with a model in it, is the engine.


# %%
#| export
@dataclass(frozen=True)
class Request:
    """A prompt that arrives at `arrival_s` and is aborted at `abort_s`."""

    prompt_token_ids: Tokens[int]
    max_tokens: int
    arrival_s: float = 0.0
    abort_s: float = math.inf


Parts = Tokens[tuple[int, int]]
"""Of each sequence in a step: tokens to compute, and tokens computed before."""


def simulate(
    scheduler: Scheduler,
    requests: Tokens[Request],
    step_time: Callable[[Parts], float] = lambda parts: 1.0,
) -> tuple[list[dict[int, int]], list[list[float]]]:
    """Serve requests: tokens of each request step by step, and times of its outputs."""
    arriving = sorted(range(len(requests)), key=lambda i: requests[i].arrival_s)
    open_: dict[int, Sequence] = {}
    steps, times_s, now_s = [], [[] for _ in requests], 0.0
    while arriving or open_:
        if not open_:
            now_s = max(now_s, requests[arriving[0]].arrival_s)
        scheduler.now_s = now_s
        while arriving and requests[arriving[0]].arrival_s <= now_s:
            i = arriving.pop(0)
            request = requests[i]
            open_[i] = scheduler.add(request.prompt_token_ids, request.max_tokens)
        for i in [i for i in open_ if requests[i].abort_s <= now_s]:
            scheduler.finish(open_.pop(i))
        if not open_:
            continue
        output = scheduler.schedule()
        counts = output.num_scheduled_tokens
        if not counts or len(steps) == 20_000:
            raise RuntimeError(f"step {len(steps)}: {len(counts)} of {len(open_)} run")
        steps.append({i: counts[seq] for i, seq in open_.items() if seq in counts})
        now_s += step_time([(n, seq.num_computed_tokens) for seq, n in counts.items()])
        scheduler.update_from_output(output, [[0]] * len(output.sampled))
        for i in [i for i, seq in open_.items() if seq in output.sampled]:
            times_s[i].append(now_s)
            if open_[i].num_output_tokens == requests[i].max_tokens:
                scheduler.finish(open_.pop(i))
    return steps, times_s


# %% [markdown]
# **See it.** Twelve requests on four slots. Each row is a request, each column a step; bright cells are prefill.

# %%
import plotly.graph_objects as go

from mlsys_lab.widgets import show


def show_timeline(steps, title):
    """Draw a run: tokens computed, by request and step."""
    requests = range(1 + max(max(step) for step in steps))
    counts = [[step.get(i, 0) for step in steps] for i in requests]
    colours = [[math.log2(1 + count) for count in row] for row in counts]
    hover = "%{customdata} tokens<extra></extra>"
    heatmap = go.Heatmap(
        z=colours, customdata=counts, showscale=False, hovertemplate=hover
    )
    figure = go.Figure(heatmap)
    figure.update_layout(title=title, xaxis_title="step", yaxis_title="request")
    figure.update_layout(height=320, margin_t=40)
    figure.update_yaxes(autorange="reversed")
    show(figure, alt=f"{title}: a request waits, is prefilled, then decodes")


SLOTS = 4
outputs = [4, 24, 6, 8, 5, 30, 7, 4, 9, 6, 20, 5]
some = [Request([0] * (3 + 5 * i % 17), n) for i, n in enumerate(outputs)]
scheduler = Scheduler(BlockManager(200, 4), SchedulerConfig(SLOTS, 64))
steps, _ = simulate(scheduler, some)
static = sum(max(outputs[i : i + SLOTS]) for i in range(0, len(outputs), SLOTS))
print(f"continuous batching: {len(steps)} steps; static batches: {static}")
print(f"if no slot were ever idle: {sum(outputs) / SLOTS:.0f}")
show_timeline(steps, "Continuous batching")

# %% [markdown]
# A static batch pays for its longest output in all four slots. Continuous batching pays for idle slots only at the
# end, when no request waits any more.
#
# ## Task 3 · Chunked prefill
#
# *About 35 minutes.*
#
# **Goal.** A step takes longer the more tokens it computes. If a prompt of thousands of tokens is prefilled in one
# step, every decoding sequence waits for it. Sarathi-Serve (Agrawal et al. 2024) gives each step a **token budget**,
# `max_num_batched_tokens`, and computes long prompts in chunks: write that scheduler.
#
# **Interface**
#
# | | returns | does |
# |---|---|---|
# | `schedule_decodes(output)` | – | schedules running sequences with **one** pending token |
# | `schedule_prefills(output)` | – | spends what is left of the budget on prompts: running ones, then waiting ones |
# | `steps_to_first(num_prompt_tokens, num_decoding, max_num_batched_tokens)` | int | steps until the first output |
#
# `steps_to_first` is for a server where `num_decoding` sequences decode throughout and no other prompt is prefilled;
# the budget is larger than `num_decoding`.
#
# **Example** (budget 4: while `a` decodes, the prompt of `b` is prefilled 3 tokens per step)
#
# ```python
# config = SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=4)
# scheduler = ChunkedScheduler(BlockManager(num_blocks=20, block_size=4), config)
# a = scheduler.add([1, 2], max_tokens=9)
# scheduler.update_from_output(scheduler.schedule(), [[9]])
# b = scheduler.add([5] * 7, max_tokens=2)
# output = scheduler.schedule()
# list(output.num_scheduled_tokens.values()), output.sampled == [a]  # → ([1, 3], True)
# scheduler.update_from_output(output, [[9]])
# output = scheduler.schedule()
# list(output.num_scheduled_tokens.values()), output.sampled == [a]  # → ([1, 3], True)
# scheduler.update_from_output(output, [[9]])
# output = scheduler.schedule()
# list(output.num_scheduled_tokens.values()), output.sampled == [a, b]  # → ([1, 1], True)
# steps_to_first(num_prompt_tokens=7, num_decoding=1, max_num_batched_tokens=4)  # → 3
# ```
#
# **Requirements**
#
# - Every running sequence with one pending token is scheduled first, so that no prefill delays a decode.
# - Then running sequences with more pending tokens continue, in the order of arrival. Each gets all of its pending
#   tokens or all that is left of the budget, whichever is smaller.
# - Then waiting sequences are admitted by the rules of Task 2, but only while some budget is left.
# - A step never exceeds `max_num_batched_tokens`, and leaves no budget unused while a sequence could use it.
#
# **Size:** about 3, 9 and 1 lines.
#
# <details><summary>Details</summary>
#
# - How many running sequences can have part of their prompt left at the start of a step? The answer may simplify
#   `schedule_prefills`.
# - A sequence with one prompt token left to compute has one pending token, so `schedule_decodes` schedules it.
#
# </details>


# %% nbgrader={"solution": true, "grade_id": "task-3-chunks"}
#| export
class ChunkedScheduler(Scheduler):
    """Steps of at most `max_num_batched_tokens` tokens: decodes, then prompt chunks."""

    def schedule(self) -> SchedulerOutput:
        """Compose the next step."""
        output = SchedulerOutput()
        self.schedule_decodes(output)
        self.schedule_prefills(output)
        return output

    def schedule_decodes(self, output: SchedulerOutput) -> None:
        """Schedule running sequences with one pending token. About 3 lines."""
        ### BEGIN SOLUTION
        for seq in self.running:
            if seq.num_pending_tokens == 1:
                self.schedule_tokens(seq, 1, output)
        ### END SOLUTION

    def schedule_prefills(self, output: SchedulerOutput) -> None:
        """Spend the rest of the budget on prompts. About 9 lines."""
        ### BEGIN SOLUTION
        budget = self.config.max_num_batched_tokens - output.total_num_scheduled_tokens
        for seq in self.running:
            if seq not in output.num_scheduled_tokens:
                self.schedule_tokens(seq, min(seq.num_pending_tokens, budget), output)
                budget -= output.num_scheduled_tokens[seq]
        while self.waiting and len(self.running) < self.config.max_num_seqs and budget:
            if not self.admit(self.waiting[0]):
                break
            seq = self.running[-1]
            self.schedule_tokens(seq, min(seq.num_pending_tokens, budget), output)
            budget -= output.num_scheduled_tokens[seq]
        ### END SOLUTION


def steps_to_first(
    num_prompt_tokens: int, num_decoding: int, max_num_batched_tokens: int
) -> int:
    """Steps until a prompt's first output token. About 1 line."""
    ### BEGIN SOLUTION
    return -(-num_prompt_tokens // (max_num_batched_tokens - num_decoding))
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "chunked"}
check("chunked")

# %% nbgrader={"grade": true, "grade_id": "steps_to_first"}
check("steps_to_first")

# %% [markdown]
# **Predict, then measure.** Eight users are being served when a prompt of 3,000 tokens arrives. A step takes 4.8 ms to
# read the weights, 27 µs for each new token, and 40 ns for each cached token that it reads: about Llama 3 8B on an
# H100. Of the budgets 64, 128, 256, 512, 1024 and 4096, which is the largest with which none of the users waits
# longer than 30 ms for the next token?


# %%
#| export
@dataclass(frozen=True)
class StepTime:
    """Seconds of a step: per step, per new token, per token computed before."""

    step_s: float
    token_s: float
    computed_s: float

    def __call__(self, parts: Parts) -> float:
        """Seconds of a step over parts (new tokens, tokens computed before)."""
        num_new, num_computed = (sum(part[i] for part in parts) for i in (0, 1))
        return self.step_s + self.token_s * num_new + self.computed_s * num_computed


LLAMA_8B = StepTime(step_s=4.8e-3, token_s=27e-6, computed_s=40e-9)

# %%
guess = None  # max_num_batched_tokens

# %%
BUDGETS = (64, 128, 256, 512, 1024, 4096)
traffic = [Request([0] * 10, 200) for _ in range(8)] + [Request([0] * 3000, 4, 0.2)]
gaps_ms, first_ms = {}, {}
for budget in BUDGETS:
    config = SchedulerConfig(16, budget)
    scheduler = ChunkedScheduler(BlockManager(1000, 16), config)
    steps, times_s = simulate(scheduler, traffic, LLAMA_8B)
    pairs = zip(times_s[0], times_s[0][1:], strict=False)
    gaps_ms[budget] = 1e3 * max(after - before for before, after in pairs)
    first_ms[budget] = 1e3 * (times_s[8][0] - 0.2)
    num_steps = sum(8 in step for step in steps) - 3  # 3 more for its other tokens
    print(f"budget {budget:4}: longest gap {gaps_ms[budget]:5.1f} ms,", end=" ")
    print(f"first token after {first_ms[budget]:5.1f} ms in {num_steps} steps", end=" ")
    print(f"({steps_to_first(3000, 8, budget)} by your formula)")
largest = max(budget for budget in BUDGETS if gaps_ms[budget] <= 30)
check.predict(guess, largest, "tokens of budget", within=0)
figure = go.Figure()
curves = {"longest gap of a user": gaps_ms, "first token of the newcomer": first_ms}
for name, curve in curves.items():
    x, y = list(curve), list(curve.values())
    figure.add_scatter(x=x, y=y, mode="lines+markers", name=name)
figure.update_layout(xaxis_title="token budget", yaxis_title="ms", margin_t=30)
figure.update_xaxes(type="log", dtick=math.log10(2))
show(figure, alt="The gap rises with the budget; the first token comes earlier")

# %% [markdown]
# The longest gap is the longest step, 4.8 ms + 27 µs × budget: the budget is a knob for inter-token latency. It is
# paid for in time to first token, because each chunk pays the 4.8 ms again.
#
# ## Task 4 · Prefix caching
#
# *About 50 minutes.*
#
# **Goal.** The keys and values of a token depend on that token and on all tokens before it, on nothing else. So
# sequences with the same prefix (a system prompt, the chat so far) can use the same **full** blocks: find them by a
# hash, and keep them after their last user has gone, until their memory is needed.
#
# **Interface**
#
# | | returns | does |
# |---|---|---|
# | `hash_blocks(token_ids, block_size)` | list | a hash for each full block, of all tokens up to the block's end |
# | `pool.allocate()` | int | a free block without a hash; if there is none, **evicts** a cached one |
# | `pool.touch(block)`, `pool.free(block)` | – | as in Task 1; `touch` also works on a cached block that is free |
# | `pool.cache(block, block_hash)` | – | lets a block in use be found by its hash |
# | `pool.get_cached_block(block_hash)` | int or None | the block with this hash |
# | `manager.allocate_prefix(seq)` | int | gives a sequence the cached blocks of its prefix; returns their tokens |
# | `manager.cache_full_blocks(seq)` | – | adds the blocks that computed tokens have filled to the cache |
#
# **Example**
#
# ```python
# len(hash_blocks([1, 2, 3, 4, 5], block_size=2))  # → 2
# hash_blocks([1, 2, 7, 7], 2)[1] == hash_blocks([1, 3, 7, 7], 2)[1]  # → False
# manager = PrefixBlockManager(num_blocks=4, block_size=2)
# a = Sequence(0, [1, 2, 3, 4, 5], num_prompt_tokens=5, max_tokens=1)
# manager.allocate_prefix(a), manager.allocate_slots(a, 5)  # → (0, True)
# a.num_computed_tokens = 5
# manager.cache_full_blocks(a)  # two full blocks; the third is not full
# manager.free(a)
# manager.pool.num_free_blocks  # → 4
# b = Sequence(1, [1, 2, 3, 4], num_prompt_tokens=4, max_tokens=1)
# manager.allocate_prefix(b), len(b.block_table)  # → (2, 1)
# ```
#
# (Why `b` gets only one block although both are cached: its last token must be computed, or there are no logits to
# sample its next token from.)
#
# **Requirements**
#
# - Two blocks have equal hashes if and only if **all tokens up to the end of the block** are equal. Chain them, as
#   `hash_block` does: hash the block's tokens together with the hash of the block before it.
# - A cached block whose reference count drops to 0 stays cached and counts as free. `allocate` takes blocks without a
#   hash first; then it evicts the cached block that was **freed longest ago**; from then on, that block can no longer
#   be found.
# - `cache` does nothing if another block has this hash already, or if the block has a hash.
# - `allocate_prefix` takes cached blocks from the first on and stops at the first miss. It never covers the last
#   token of the sequence. It sets `block_table` and `num_computed_tokens`.
# - `cache_full_blocks` caches only blocks that have filled up since its last call. Keep the hashes of the blocks so far
#   in `block_hashes`, so that no block is hashed twice.
# - As in Task 1, no operation searches all blocks. A hash costs as much for the last block of a long sequence as for
#   the first: it reads the tokens of its own block and the hash before it.
#
# **Size:** about 6, 1, 6, 2, 6, 3, 1, 9 and 6 lines.
#
# <details><summary>Details</summary>
#
# - Any hashable object will do as a hash, but not Python's `hash`: sequences with equal `hash` values are easy to
#   find, and a user who sends one would be answered from the KV cache of another.
# - Python's dictionaries keep the order of insertion: `next(iter(d))` is the oldest key.
# - `free(seq)` frees the last block first (Task 1), so that it is evicted before the blocks that lead to it.
#
# </details>


# %% nbgrader={"solution": true, "grade_id": "task-4-prefixes"}
#| export
def hash_block(parent_hash: bytes, token_ids: Tokens[int]) -> bytes:
    """SHA-256 of the hash of the block before, and of the tokens of a block."""
    return hashlib.sha256(parent_hash + array("q", token_ids).tobytes()).digest()


def hash_blocks(token_ids: Tokens[int], block_size: int) -> list[Hashable]:
    """Hashes of the full blocks of a sequence, in their order. About 6 lines."""
    ### BEGIN SOLUTION
    hashes, parent_hash = [], b""
    for end in range(block_size, len(token_ids) + 1, block_size):
        parent_hash = hash_block(parent_hash, token_ids[end - block_size : end])
        hashes.append(parent_hash)
    return hashes
    ### END SOLUTION


class PrefixBlockPool(BlockPool):
    """A pool whose blocks can be found by their hash until they are evicted."""

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self.cached: dict[Hashable, int] = {}  # block of each hash
        self.hash_of: dict[int, Hashable] = {}  # hash of each cached block
        self.evictable: dict[int, None] = {}  # cached and free, freed longest ago first

    @property
    def evictable_blocks(self) -> list[int]:
        """Cached blocks that no sequence refers to."""
        return list(self.evictable)

    @property
    def num_free_blocks(self) -> int:
        """Number of blocks that can be allocated, cached ones too. About 1 line."""
        ### BEGIN SOLUTION
        return len(self.free_blocks) + len(self.evictable)
        ### END SOLUTION

    def allocate(self) -> int:
        """Allocate a block without a hash, or evict a cached one. About 6 lines."""
        ### BEGIN SOLUTION
        if not self.free_blocks and self.evictable:
            block = next(iter(self.evictable))
            del self.evictable[block]
            del self.cached[self.hash_of.pop(block)]
            self.free_blocks.append(block)
        return super().allocate()
        ### END SOLUTION

    def touch(self, block: int) -> None:
        """Add a reference to a block that is in use or cached. About 2 lines."""
        ### BEGIN SOLUTION
        self.evictable.pop(block, None)
        super().touch(block)
        ### END SOLUTION

    def free(self, block: int) -> None:
        """Drop a reference; a cached block stays cached. About 6 lines."""
        ### BEGIN SOLUTION
        if self.ref_cnt[block] == 1 and block in self.hash_of:
            self.ref_cnt[block] = 0
            self.evictable[block] = None
        else:
            super().free(block)
        ### END SOLUTION

    def cache(self, block: int, block_hash: Hashable) -> None:
        """Let a block in use be found by its hash. About 3 lines."""
        ### BEGIN SOLUTION
        if block_hash not in self.cached and block not in self.hash_of:
            self.cached[block_hash] = block
            self.hash_of[block] = block_hash
        ### END SOLUTION

    def get_cached_block(self, block_hash: Hashable) -> int | None:
        """Return the block with this hash, None if it is not cached. About 1 line."""
        ### BEGIN SOLUTION
        return self.cached.get(block_hash)
        ### END SOLUTION


class PrefixBlockManager(BlockManager):
    """A block manager whose sequences use the cached blocks of their prefix."""

    def __init__(self, num_blocks: int, block_size: int = 16) -> None:
        super().__init__(num_blocks, block_size)
        self.pool = PrefixBlockPool(num_blocks)

    def allocate_prefix(self, seq: Sequence) -> int:
        """Give a sequence the cached blocks of its prefix. About 9 lines."""
        ### BEGIN SOLUTION
        for block_hash in hash_blocks(seq.token_ids[:-1], self.block_size):
            block = self.pool.get_cached_block(block_hash)
            if block is None:
                break
            self.pool.touch(block)
            seq.block_table.append(block)
            seq.block_hashes.append(block_hash)
        seq.num_computed_tokens = len(seq.block_table) * self.block_size
        return seq.num_computed_tokens
        ### END SOLUTION

    def cache_full_blocks(self, seq: Sequence) -> None:
        """Cache the blocks that filled up since the last call. About 6 lines."""
        ### BEGIN SOLUTION
        size = self.block_size
        for i in range(len(seq.block_hashes), seq.num_computed_tokens // size):
            parent_hash = seq.block_hashes[-1] if seq.block_hashes else b""
            token_ids = seq.token_ids[i * size : (i + 1) * size]
            seq.block_hashes.append(hash_block(parent_hash, token_ids))
            self.pool.cache(seq.block_table[i], seq.block_hashes[-1])
        ### END SOLUTION

    def free(self, seq: Sequence) -> None:
        """Free all blocks of a sequence, and forget their hashes."""
        super().free(seq)
        seq.block_hashes.clear()


# %% nbgrader={"grade": true, "grade_id": "keys"}
check("keys")

# %% nbgrader={"grade": true, "grade_id": "prefix_blocks"}
check("prefix_blocks")

# %% nbgrader={"grade": true, "grade_id": "prefixes"}
check("prefixes")

# %% [markdown]
# Your `ChunkedScheduler` runs on the new block manager as it is. Does every sequence still find its own tokens?

# %% nbgrader={"grade": true, "grade_id": "shared"}
check("shared")

# %% [markdown]
# **See it.** Forty questions about one document of 400 tokens, with and without the prefix cache.

# %%
document = list(range(1000, 1400))
questions = [
    Request([*document, *range(7 * i, 7 * i + 24)], 20, 0.02 * i) for i in range(40)
]
figure = go.Figure()
for name, kind in (("no cache", BlockManager), ("prefix cache", PrefixBlockManager)):
    manager, in_use = kind(2000, 16), []

    def step_time(parts, manager=manager, in_use=in_use):
        """Seconds of a step; notes the number of blocks in use."""
        in_use.append(manager.pool.num_used_blocks)
        return LLAMA_8B(parts)

    scheduler = ChunkedScheduler(manager, SchedulerConfig(64, 512))
    steps, times_s = simulate(scheduler, questions, step_time)
    computed = sum(sum(step.values()) for step in steps)
    pairs = zip(times_s, questions, strict=True)
    first_ms = sorted(1e3 * (times[0] - request.arrival_s) for times, request in pairs)
    print(f"{name:12} {computed:6,} tokens computed, at most {max(in_use):3} blocks,")
    print(f"{'':12} median time to first token {first_ms[20]:.0f} ms")
    figure.add_scatter(y=in_use, mode="lines", name=name)
figure.update_layout(xaxis_title="step", yaxis_title="blocks in use", margin_t=30)
show(figure, alt="Blocks in use step by step: far fewer with the prefix cache")

# %% [markdown]
# The document is computed and stored once. What remains per request is its question and its answer.
#
# ## Task 5 · Preemption
#
# *About 40 minutes.*
#
# **Goal.** Reserving blocks for the longest possible answer leaves most of them empty, because most answers end
# early. So admit a sequence when there is room for what it has *now*, and allocate further blocks one by one. When
# none is free, a sequence is **preempted**: it loses its blocks, waits again, and is recomputed when it is
# readmitted.
#
# **Interface**
#
# | | returns | does |
# |---|---|---|
# | `admit(seq)` | bool | as before, but allocates blocks for the tokens that the sequence has now |
# | `preempt(seq, output)` | – | frees the blocks of a running sequence, queues it, adds it to `output.preempted` |
# | `schedule_decodes(output)` | – | as before; preempts if there is no block for a token |
#
# **Example** (3 blocks of 2 tokens: after two steps there is no block for another token of `b`)
#
# ```python
# manager = PrefixBlockManager(num_blocks=3, block_size=2)
# scheduler = PreemptiveScheduler(manager, SchedulerConfig(max_num_seqs=2))
# a = scheduler.add([1, 2], max_tokens=4)
# b = scheduler.add([3], max_tokens=3)
# scheduler.update_from_output(scheduler.schedule(), [[5], [5]])
# scheduler.update_from_output(scheduler.schedule(), [[5], [5]])
# len(a.block_table), len(b.block_table), manager.pool.num_free_blocks  # → (2, 1, 0)
# output = scheduler.schedule()
# output.preempted == [b], list(output.num_scheduled_tokens) == [a]  # → (True, True)
# b.token_ids, b.block_table, b.num_computed_tokens  # → ([3, 5, 5], [], 0)
# ```
#
# (In the third step `a` fits into its second block. `b` needs a second block, finds none, and is itself the last
# running sequence.)
#
# **Requirements**
#
# - `admit` allocates blocks for all tokens of the sequence so far, and succeeds only if one more block **for each
#   running sequence** stays free: each will need one soon.
# - `schedule_decodes` goes through the decoding sequences in the order of arrival. If there is no block for the next
#   token of one, the **last running** sequence is preempted, then the next to last, until a block is free or the
#   sequence itself was preempted.
# - A preempted sequence waits **before** all others: all of them arrived later.
# - It keeps its tokens, output included; all of them are pending again. (On readmission they are recomputed, except
#   those whose blocks are still in the prefix cache.)
#
# **Size:** about 6, 5 and 8 lines.
#
# <details><summary>Details</summary>
#
# - The order of `output.preempted` is up to you. `preempt` adds 1 to `seq.num_preemptions`, which the server displays.
# - `num_prompt_tokens` stays as it is, although the output so far is recomputed like a prompt.
# - The loop over decoding sequences must skip one that this step has preempted, which a list made before the loop
#   still holds. It waits first in line, and the same step may admit it again if its blocks fit.
#
# </details>


# %% nbgrader={"solution": true, "grade_id": "task-5-preemption"}
#| export
class PreemptiveScheduler(ChunkedScheduler):
    """Allocates blocks as they are needed, and preempts when there are none."""

    def admit(self, seq: Sequence) -> bool:
        """Let a waiting sequence run if its present tokens fit. About 6 lines."""
        ### BEGIN SOLUTION
        self.block_manager.allocate_prefix(seq)
        num_tokens, num_running = seq.num_pending_tokens, len(self.running)
        if not self.block_manager.allocate_slots(seq, num_tokens, num_running):
            self.block_manager.free(seq)
            return False
        self.start(seq)
        return True
        ### END SOLUTION

    def preempt(self, seq: Sequence, output: SchedulerOutput) -> None:
        """Free a sequence's blocks and put it first in the queue. About 5 lines."""
        ### BEGIN SOLUTION
        self.block_manager.free(seq)
        self.running.remove(seq)
        self.waiting.insert(0, seq)
        output.preempted.append(seq)
        seq.num_preemptions += 1
        ### END SOLUTION

    def schedule_decodes(self, output: SchedulerOutput) -> None:
        """Schedule decodes; preempt the last if there is no block. About 8 lines."""
        ### BEGIN SOLUTION
        for seq in list(self.running):
            if seq.num_pending_tokens != 1:
                continue
            while seq in self.running:
                if self.block_manager.allocate_slots(seq, 1):
                    self.schedule_tokens(seq, 1, output)
                    break
                self.preempt(self.running[-1], output)
        ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "preemptive"}
check("preemptive")

# %% [markdown]
# The oldest sequence is never preempted, so it runs in every step until it is done; then the next one is the oldest.
# So every request finishes.
#
# **See it.** The same requests on the same 24 blocks, with blocks reserved for the longest answer and with blocks
# allocated as needed. In the picture, look for a row that stops and starts again.

# %%
lengths = [5 + 11 * i % 23 for i in range(16)]
long = [Request([100 * i + j for j in range(6)], n) for i, n in enumerate(lengths)]
blocks_in_use, timelines = {}, {}
for name, scheduler in {
    "reserved": ChunkedScheduler(BlockManager(24, 4), SchedulerConfig(8, 32)),
    "as needed": PreemptiveScheduler(PrefixBlockManager(24, 4), SchedulerConfig(8, 32)),
}.items():
    used = []

    def step_time(parts, manager=scheduler.block_manager, used=used):
        """One second a step; notes the number of blocks with a token in them."""
        used.append(sum(manager.blocks_for(new + computed) for new, computed in parts))
        return 1.0

    timelines[name], _ = simulate(scheduler, long, step_time)
    blocks_in_use[name] = used
    mean = sum(used) / len(used)
    print(f"{name:10} {len(used):3} steps, {mean / 24:.0%} of the blocks hold tokens")
show_timeline(timelines["as needed"], "Blocks allocated as needed")
curves = [go.Scatter(y=y, mode="lines", name=name) for name, y in blocks_in_use.items()]
figure = go.Figure(curves)
figure.update_layout(xaxis_title="step", yaxis_title="blocks with tokens", height=300)
show(figure, alt="Blocks with tokens: more if allocated as needed, in fewer steps")

# %% [markdown]
# ## Task 6 · Latency objectives
#
# *About 35 minutes.*
#
# **Goal.** A service-level objective (SLO) limits the **time to first token** (TTFT) and the **time per output token**
# (TPOT: the mean gap between output tokens). What counts is **goodput** (DistServe, Zhong et al. 2024): the number of
# requests per second that meet both. Write a policy that keeps goodput high when long prompts arrive among decodes, and
# when more requests arrive than the machine can serve.
#
# **Interface**
#
# | | returns | does |
# |---|---|---|
# | `token_budget(step_time, num_decoding, num_computed, tpot_s)` | int | largest budget of a step of at most `tpot_s` |
# | `SLOScheduler(block_manager, config, step_time, slo)` | – | a `PreemptiveScheduler` with its own budget and order |
#
# `token_budget` plans a step in which `num_decoding` sequences decode one token each; each of them has `num_computed`
# tokens in the cache. The rest of the budget goes to one prompt, of which no token is computed yet.
# `step_time(parts)` returns the seconds of a step; `parts` has (new tokens, tokens computed before) for each sequence.
#
# **Example** (10 ms per step, 1 ms per token)
#
# ```python
# step_time = StepTime(step_s=0.010, token_s=0.001, computed_s=0)
# token_budget(step_time, num_decoding=4, num_computed=100, tpot_s=0.0305)  # → 20
# token_budget(step_time, num_decoding=4, num_computed=100, tpot_s=0.005)  # → 5
# ```
#
# (20 = 4 decodes + a chunk of 16 tokens: 30 ms. No budget meets 5 ms; then the chunk is a single token.)
#
# **Requirements**
#
# - `token_budget` counts the decodes and the chunk; the chunk is at least 1. `step_time` may be any function that
#   grows with the chunk, not only a linear one.
# - `SLOScheduler` may override any method and change `self.config` and the order of `self.waiting` in every step.
#   `max_num_seqs` still holds, and every request must finish, late or not.
# - On each of the check's loads you need 80 % of the goodput of our own policy.
#
# Our policy is no secret. Budget: `token_budget` in each step, with the mean of the decoding sequences' computed
# tokens. Order: if requests are served in order of arrival, a burst makes *every* later request late, because each
# waits patiently for requests that have already missed their objective. So first come the requests that can still meet
# their TTFT, and among these the ones whose prompts take the least time, so that they delay the others least. A
# sequence knows its `arrival_s`; `self.now_s` is when the step starts.
#
# **Size:** about 6 and 11 lines.
#
# <details><summary>Details</summary>
#
# - There are enough blocks in this task.
# - A budget must be at least `max_num_seqs`, even if no budget meets the objective.
# - `step_time` costs next to nothing, but a policy that looks at each sequence many times per step is slow.
#
# </details>


# %%
#| export
@dataclass(frozen=True)
class SLO:
    """Latency objectives: seconds to the first token, mean seconds per further one."""

    ttft_s: float
    tpot_s: float


# %% nbgrader={"solution": true, "grade_id": "task-6-promise"}
#| export
def token_budget(
    step_time: Callable[[Parts], float],
    num_decoding: int,
    num_computed: int,
    tpot_s: float,
) -> int:
    """Largest token budget of a step that takes at most `tpot_s`. About 6 lines."""
    ### BEGIN SOLUTION
    decodes, chunk = [(1, num_computed)] * num_decoding, 1
    while step_time([*decodes, (2 * chunk, 0)]) <= tpot_s:
        chunk *= 2
    longer = range(chunk + 1, 2 * chunk)
    chunk += sum(step_time([*decodes, (n, 0)]) <= tpot_s for n in longer)
    return num_decoding + chunk
    ### END SOLUTION


class SLOScheduler(PreemptiveScheduler):
    """Keeps goodput high: a budget for each step, and late requests last."""

    def __init__(
        self,
        block_manager: BlockManager,
        config: SchedulerConfig,
        step_time: Callable[[Parts], float],
        slo: SLO,
    ) -> None:
        super().__init__(block_manager, config)
        self.step_time, self.slo = step_time, slo

    def schedule(self) -> SchedulerOutput:
        """Compose the next step. About 11 lines."""
        ### BEGIN SOLUTION
        decoding = [seq for seq in self.running if seq.num_pending_tokens == 1]
        num_computed = sum(seq.num_computed_tokens for seq in decoding)
        mean = num_computed // max(1, len(decoding))
        budget = token_budget(self.step_time, len(decoding), mean, self.slo.tpot_s)
        max_num_seqs = self.config.max_num_seqs
        self.config = SchedulerConfig(max_num_seqs, max(budget, max_num_seqs))
        self.waiting.sort(key=lambda seq: (self.is_late(seq), len(seq.token_ids)))
        return super().schedule()

    def is_late(self, seq: Sequence) -> bool:
        """Whether a waiting sequence misses its TTFT even if it is prefilled now."""
        prefill_s = self.step_time([(len(seq.token_ids), 0)])
        return self.now_s + prefill_s > seq.arrival_s + self.slo.ttft_s
        ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "token_budget"}
check("token_budget")

# %% nbgrader={"grade": true, "grade_id": "promise"}
check("promise")

# %% [markdown]
# **See it.** Goodput and median TTFT against the request rate: in order of arrival with a wide budget, and with your
# policy.

# %%
import random

TIGHT, SLOW = SLO(ttft_s=0.3, tpot_s=0.035), StepTime(5e-3, 2e-4, 2e-7)
goodput, ttft_ms = {"in order": {}, "yours": {}}, {"in order": {}, "yours": {}}
for rate in (10, 20, 30, 45, 60, 90):
    rng, now_s, load = random.Random(rate), 0.0, []
    for _ in range(80):
        now_s += rng.expovariate(rate)
        prompt = [rng.randrange(5) for _ in range(rng.randint(20, 150))]
        load.append(Request(prompt, rng.randint(5, 20), now_s))
    for name in goodput:
        manager, config = PrefixBlockManager(400, 16), SchedulerConfig(12, 2000)
        in_order = PreemptiveScheduler(manager, config)
        yours = SLOScheduler(manager, config, SLOW, TIGHT)
        _, times_s = simulate(yours if name == "yours" else in_order, load, SLOW)
        pairs = list(zip(load, times_s, strict=True))
        ttfts_s = [times[0] - request.arrival_s for request, times in pairs]
        tpots_s = [(times[-1] - times[0]) / (len(times) - 1) for times in times_s]
        latencies = zip(ttfts_s, tpots_s, strict=True)
        good = sum(a <= TIGHT.ttft_s and b <= TIGHT.tpot_s for a, b in latencies)
        goodput[name][rate] = rate * good / len(load)
        ttft_ms[name][rate] = 1e3 * sorted(ttfts_s)[40]
    found = [f"{name} {goodput[name][rate]:5.1f}" for name in goodput]
    print(f"{rate:3} requests/s: goodput {', '.join(found)} requests/s")
for title, curves in (("goodput, requests/s", goodput), ("median TTFT, ms", ttft_ms)):
    figure = go.Figure()
    for name, curve in curves.items():
        x, y = list(curve), list(curve.values())
        figure.add_scatter(x=x, y=y, mode="lines+markers", name=name)
    figure.update_layout(xaxis_title="requests/s", yaxis_title=title, height=320)
    show(figure, alt=f"{title} by request rate, in order of arrival and by your policy")

# %% [markdown]
# Beyond what the machine can serve, goodput in order of arrival collapses: every request is served, and nearly every
# one too late. Your policy gives up on some and serves the others in time.
#
# ## Your scheduler serves a model
#
# The course's engine takes any scheduler with this interface; `build` makes yours.


# %%
#| export
def build(
    num_blocks: int, block_size: int, config: SchedulerConfig
) -> PreemptiveScheduler:
    """Make the scheduler of an engine."""
    return PreemptiveScheduler(PrefixBlockManager(num_blocks, block_size), config)


# %%
requests = [Request(list(range(40)), 5), Request(list(range(30)), 3)]
steps, _ = simulate(build(64, 16, SchedulerConfig(4, 64)), requests)
print(f"{len(steps)} steps without a model")

# %% [markdown]
# `mlsys-lab serve --scheduler FILE` starts a server on a free port, with the exported cells of this notebook as its
# scheduler. Six prompts with a common prefix are sent at once. Then the same prompts are completed one at a time, on
# the cache of lab 10 (yours, if you have handed it in): does sharing a step change any answer?

# %%
import json
import re
import subprocess
import sys
import tempfile
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from IPython import get_ipython

PREFIX = "A server has many users, and each step of the model reads all weights. "
endings = ("So", "A batch", "The cache", "Memory", "One token", "The scheduler")
prompts = [PREFIX + ending for ending in endings]
TOKENS = 24


def ask(path, **fields):
    """What the server answers: JSON if there is something to post, else text."""
    body = json.dumps(fields).encode() if fields else None
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(address + path, body, headers)
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer) if fields else answer.read().decode()


def complete(prompt):
    """Greedy completion of a prompt by the server."""
    plain = {"model": "mlsys-lab-target", "max_tokens": TOKENS, "temperature": 0}
    return ask("/v1/completions", prompt=prompt, **plain)


# An unfinished task shows here:
simulate(build(64, 16, SchedulerConfig(4, 64)), [Request([1, 2, 3], 2)])
folder = tempfile.TemporaryDirectory()
mine = Path(folder.name) / "mine.py"
cells = get_ipython().user_ns["In"]  # every cell that has run, in this order
exported = [cell for cell in cells if cell.startswith("#| export")]
mine.write_text("\n".join(exported), encoding="utf-8")
start = "import sys; from mlsys_lab.cli import main; sys.exit(main())"
options = ["--port", "0", "--blocks", "40", "--scheduler", str(mine)]
command = [sys.executable, "-c", start, "serve", *options]
server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
try:
    address = re.search(r"http://\S+", server.stdout.readline())[0]
    with ThreadPoolExecutor(len(prompts)) as clients:
        answers = list(clients.map(complete, prompts))
    served = [answer["choices"][0]["text"] for answer in answers]
    for line in ask("/metrics").splitlines():
        if re.match("mlsys_(engine_steps|generated)", line):
            print(line)
finally:
    server.terminate()
    server.wait(30)
    folder.cleanup()
for prompt, text in zip(prompts, served, strict=True):
    print(f"{prompt.removeprefix(PREFIX)} …{text!r}")

from mlsys_lab import stack
from mlsys_lab.inference.pretrained import load_pair
from mlsys_lab.inference.text.chat import END

kv = stack.load("kv-cache")
pair = load_pair()
end = pair.tokenizer.special_id(END)


def generate_alone(prompt):
    """The likeliest tokens after a prompt, one by one, with a cache of its own."""
    tokens = [end, *pair.tokenizer.encode(prompt)]
    capacity = len(tokens) + TOKENS
    cache, output = kv.Contiguous(pair.target, sequences=1, capacity=capacity), []
    sequence = cache.start()
    while len(output) < TOKENS:
        logits = kv.extend(pair.target, cache, {sequence: output[-1:] or tokens})
        token = int(logits[0].argmax())
        if token == end:
            break
        output.append(token)
    return pair.tokenizer.decode(output)


alone = [generate_alone(prompt) for prompt in prompts]
same = sum(one == other for one, other in zip(served, alone, strict=True))
print(f"{same} of {len(prompts)} answers are the same")

# %% [markdown]
# The answers agree: continuous batching, chunks, shared blocks and preemption decide *when* a token is computed, never
# *which*, except that other shapes of a step round differently and may tip a tie between two tokens (lab 10, *Test
# yourself*). To chat with your scheduler, write the exported cells to a file as above and run `mlsys-lab serve
# --scheduler FILE` in a terminal; any client of OpenAI's API can talk to it.
#
# ## Stretch: no points
#
# - **Preempt the cheapest.** With a prefix cache, a preempted sequence finds most of its blocks again. Choose victims
#   by how many tokens they would have to recompute, and measure on the requests of Task 5 whether that saves steps.
#   Does every request still finish?
# - **Swap** instead of recomputing: copy the blocks to host memory (vLLM's paper, section 4.5). At which sequence
#   length is the copy faster?
#
# ## What you can read now
#
# - vLLM, `vllm/v1/core/sched/scheduler.py`: `Scheduler.schedule` and `update_from_output`. Running requests first,
#   then waiting ones, `token_budget` counted down, and preemption in the loop around `allocate_slots`.
# - vLLM, `vllm/v1/core/block_pool.py`: `BlockPool.get_new_blocks`, `touch`, `free_blocks`, `cache_full_blocks`; and
#   `vllm/v1/core/kv_cache_utils.py`: `hash_block_tokens`, and the linked list that stands in for your `evictable`.
# - nano-vllm, `nanovllm/engine/block_manager.py` and `scheduler.py`: the same ideas, in about 200 lines.
# - The course's own `mlsys_lab/inference/engine/scheduler.py`, which adds priorities.
#
# ## Test yourself
#
# <details><summary>Who gains and who loses if blocks hold 64 tokens in place of 16?</summary>
#
# Block tables become four times shorter, with a quarter of the hashes and of the bookkeeping. On average 31.5 slots per
# sequence stay empty in place of 7.5, and only prefixes of multiples of 64 tokens are shared. Long sequences gain,
# short ones lose.
#
# </details>
#
# <details><summary>A sequence is preempted just before its last token. What did that cost, and how could a scheduler
# know?</summary>
#
# All of its tokens are recomputed, as one prefill, to sample a single one. A scheduler knows `max_tokens`, not where
# the model will stop; it could predict output lengths, or prefer victims with few computed tokens.
#
# </details>
#
# <details><summary>All prompts differ in their first token. What becomes of prefix caching?</summary>
#
# Nothing is shared: each hash depends on all tokens before it. Text that differs between requests (a date, a user's
# name) belongs at the end of a prompt.
#
# </details>
#
# <details><summary>Your policy lets late requests wait as long as new ones arrive. When is this wrong?</summary>
#
# When a late answer is still worth something, or when overload lasts: late requests then never run. Remedies: reject
# them at once with an error (the client can retry elsewhere), or let waiting time raise their priority.
#
# </details>
#
# <details><summary>Is a second machine better used for half of the requests, or for all prefills?</summary>
#
# Separate prefill keeps decode steps free of chunks, so that TPOT no longer depends on prompts, but the KV cache must
# be transferred (0.13 MB per token for Llama 3 8B), and either machine may sit idle while the other is overloaded.
# With short prompts, two replicas are simpler and as fast.
#
# </details>
#
# When all checks pass, save the notebook and run `mlsys-lab check serving` in a terminal.
