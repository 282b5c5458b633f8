# %% [markdown]
# # Lab 11 · A serving engine: many readers, one model
#
# A model that writes for one reader leaves most of its machine idle. A server lets many share each step, and has to
# decide, before every step, which tokens of which texts go into it, who waits, and who gives up memory. This program,
# the scheduler, needs no model: it knows texts by their lengths and memory by its blocks. You build one that no trick
# of the load can bring down, and in the end it serves a model over HTTP.
#
# **You will build**
#
# 1. a block manager, and tables that say where each text's keys and values lie;
# 2. continuous batching: every step is put together anew;
# 3. prompts in chunks, under a budget of tokens a step;
# 4. blocks that texts with equal beginnings share;
# 5. preemption, for when memory runs out;
# 6. a policy that keeps a promise to readers, on loads that it has not seen.
#
# **At the end you can answer**
#
# - Why do blocks waste less than rows, and what decides how much?
# - Which number sets the longest gap between two tokens that a reader sees?
# - Why does everybody get an answer although anybody may lose all memory on the way?
#
# **Time:** about 240 minutes (each task says its share). **Points:** 100. **You need:** what a KV cache keeps (lab 10),
# Python's lists and dictionaries; no torch until the last cells. Chapter 13, *Serving*, gives the background.
#
# **Readings it leans on:** *How continuous batching enables 23x throughput in LLM inference while reducing p50 latency*
# (`anyscale-continuous-batching`), *Reproducible Performance Metrics for LLM inference* (`anyscale-metrics`), *LLM
# Inference Performance Engineering: Best Practices* (`databricks-llm-inference`).
#
# **How it works.** Put your code in place of each line that raises `NotImplementedError`, run the cell, then run the
# `check` cell below it. Cells that begin with `#| export` make up the module that is graded. Grading runs the same
# checks with other loads and a few more cases.
#
# **What the checks see** is a log: which blocks each text had in every step, and which of its tokens were fed. Whoever
# decides plays it again, writes every token into the block where your tables say that it lies, and looks whether each
# new token finds all those before it. So it does not matter how you keep your books, nor which free block you take.
#
# **Letters:** P tokens of a block (its page size); *kept* tokens are those whose keys and values lie in blocks.

# %%
from mlsys_lab.checks import lab

check = lab("serving")

# %%
#| export
import hashlib
import math
from array import array
from collections.abc import Callable, Hashable, Mapping
from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field

# %% [markdown]
# ## Task 1 · Blocks and tables
#
# *About 45 minutes.*
#
# In lab 10 each text had a row with room for the longest one. PagedAttention (Kwon et al. 2023) cuts memory into blocks
# of P tokens instead. A text's **table** names its blocks in the order of its tokens, wherever they lie, and grows by a
# block when the last one is full.
#
# **1a.** `BlockManager`: `references` says for each block how many tables hold it. `allocate` gives out a block that
# nobody holds, with one reference, and raises `ValueError` where there is none. `share` adds a reference to a block
# that has one, `release` takes one away; a block with no reference left can be given out again. `available` is the
# number of blocks without a reference.
#
# **1b.** `PageTables`: `start` is given, and numbers a text that has no block yet.
#
# - `pages(tokens)`: how many blocks so many tokens of one text fill, the last one perhaps in part.
# - `try_reserve(counts, spare)`: texts are about to get `counts[number]` tokens beyond those kept, some perhaps none.
#   Give each the blocks that it lacks for them: what an earlier call has set aside counts, no block is given too many,
#   and none is taken back. True; or False, **with nothing changed**, where fewer than `spare` blocks would be available
#   afterwards, even if nothing is lacking.
# - `commit(new)`: the model has run, and these tokens, by number, are kept from now on; of some texts perhaps none. It
#   takes no blocks. Lists and dictionaries that a call is given stay the caller's: they are not changed.
# - `drop(number)`: forget a text, and release its blocks, **the last one first** (why will show in Task 4). To ask for
#   what it had gives nothing then, or an error.
#
# **Size:** about 1, 5, 1, 3, 1, 6, 2 and 3 lines. **Cost:** no search through all blocks, here and in Task 4: a check
# has very many of them, and a step has 10 ms for everything. (`in`, `count`, `min` and `remove` search a list; `pop`
# does not.)


# %% nbgrader={"solution": true, "grade_id": "task-1-blocks"}
#| export
class BlockManager:
    """Reference counts of blocks 0 to count - 1."""

    def __init__(self, count: int) -> None:
        self.references = [0] * count
        self.free = list(range(count))

    @property
    def available(self) -> int:
        """How many blocks can be given out. About 1 line."""
        ### BEGIN SOLUTION
        return len(self.free)
        ### END SOLUTION

    @property
    def used(self) -> int:
        """How many blocks have a reference."""
        return len(self.references) - self.available

    def allocate(self) -> int:
        """Give out a block with one reference; ValueError where none is left. About 5 lines."""
        ### BEGIN SOLUTION
        if not self.free:
            raise ValueError("no block is left")
        block = self.free.pop()
        self.references[block] = 1
        return block
        ### END SOLUTION

    def share(self, block: int) -> None:
        """Add a reference to a block. About 1 line."""
        ### BEGIN SOLUTION
        self.references[block] += 1
        ### END SOLUTION

    def release(self, block: int) -> None:
        """Take a reference away; with the last one, the block can be given out again. About 3 lines."""
        ### BEGIN SOLUTION
        self.references[block] -= 1
        if self.references[block] == 0:
            self.free.append(block)
        ### END SOLUTION


class PageTables:
    """Which blocks of `page` tokens each text has, by its number."""

    def __init__(self, blocks: BlockManager, page: int) -> None:
        self.blocks, self.page = blocks, page
        self.tables: dict[int, list[int]] = {}
        self.kept: dict[int, list[int]] = {}  # tokens whose keys and values lie in the blocks
        self.started = 0

    def start(self, tokens: Tokens[int] = ()) -> int:
        """Number of a new text, which keeps nothing yet, whatever its tokens are."""
        number, self.started = self.started, self.started + 1
        self.tables[number], self.kept[number] = [], []
        return number

    def length(self, number: int) -> int:
        """How many tokens of a text are kept."""
        return len(self.kept[number])

    def table(self, number: int) -> list[int]:
        """Blocks of a text, in the order of its tokens."""
        return self.tables[number]

    def pages(self, tokens: int) -> int:
        """How many blocks so many tokens of one text need. About 1 line."""
        ### BEGIN SOLUTION
        return -(-tokens // self.page)
        ### END SOLUTION

    def try_reserve(self, counts: Mapping[int, int], spare: int = 0) -> bool:
        """Give texts blocks for so many tokens beyond those kept; False, with nothing changed, without room.

        About 6 lines.
        """
        ### BEGIN SOLUTION
        lacking = {n: self.pages(self.length(n) + count) - len(self.table(n)) for n, count in counts.items()}
        if sum(max(0, blocks) for blocks in lacking.values()) + spare > self.blocks.available:
            return False
        for number, blocks in lacking.items():
            self.tables[number] += [self.blocks.allocate() for _ in range(blocks)]
        return True
        ### END SOLUTION

    def commit(self, new: Mapping[int, Tokens[int]]) -> None:
        """Count in new tokens of texts. About 2 lines."""
        ### BEGIN SOLUTION
        for number, tokens in new.items():
            self.kept[number] += tokens
        ### END SOLUTION

    def drop(self, number: int) -> None:
        """Forget a text and release its blocks, the last one first. About 3 lines."""
        ### BEGIN SOLUTION
        for block in reversed(self.tables.pop(number)):
            self.blocks.release(block)
        del self.kept[number]
        ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "blocks"}
check("blocks")

# %% nbgrader={"grade": true, "grade_id": "tables"}
check("tables")

# %% [markdown]
# **Predict, then measure.** Texts of all lengths, in blocks of P tokens: how many places are empty, in a text on
# average? And how many of a row for the longest text?

# %%
guess = None  # empty places a text, in blocks of 16 tokens

lengths = [37 * number % 512 + 1 for number in range(512)]  # 1 to 512, each once
for page in (1, 4, 16, 64):
    tables = PageTables(BlockManager(200_000), page)
    for length in lengths:
        number = tables.start()
        assert tables.try_reserve({number: length})
        tables.commit({number: [0] * length})
    empty = (page * tables.blocks.used - sum(lengths)) / len(lengths)
    print(f"P = {page:2}: {empty:5.1f} places empty, {empty / (empty + sum(lengths) / len(lengths)):5.1%}")
print(f"a row each: {512 - sum(lengths) / len(lengths):5.1f}, {1 - sum(lengths) / len(lengths) / 512:.1%}")
print("Write down your guess, too." if guess is None else f"yours: {guess}, (P - 1) / 2 is {(16 - 1) / 2}")

# %% [markdown]
# ## Task 2 · Continuous batching
#
# *About 40 minutes.*
#
# Texts **wait** in the order in which they came, or **run**. Given are what a scheduler is told (`Limits`), what it
# knows of a text (`Sequence`), and what it decides (`Batch`): tokens to be fed, by number in the tables, and the
# **writers**, texts all of whose tokens will then be kept, so that the step gives their next one.


# %%
#| export
@dataclass(frozen=True)
class Limits:
    """What a step may hold: texts that run, and tokens, at least one for each of them."""

    sequences: int
    tokens: int

    def __post_init__(self) -> None:
        if self.tokens < self.sequences:
            raise ValueError(f"a step of {self.tokens} tokens has none for some of {self.sequences} sequences")


@dataclass(eq=False)
class Sequence:
    """A text: its prompt and what is written so far, `most` tokens in the end; its number in the tables, if it runs."""

    tokens: list[int]
    most: int
    arrived_s: float = 0.0
    number: int | None = None
    prompt: int = 0  # how many of the tokens were there when it came
    drafts: tuple[int, ...] = ()  # guesses of next tokens, which an engine may check: none here


@dataclass
class Batch:
    """A step: new tokens by number, texts whose next token it gives, and texts that had to give way."""

    new: dict[int, list[int]] = field(default_factory=dict)
    writers: list[Sequence] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)
    # What an engine can move besides, from page to page and to the host's memory and back: nothing here.
    copies: tuple[()] = ()
    saves: tuple[()] = ()
    restores: tuple[()] = ()

    @property
    def tokens(self) -> int:
        """How many tokens are fed."""
        return sum(map(len, self.new.values()))


# %% [markdown]
# This is how an engine uses a scheduler; `drive` does so with a clock in place of a model, and texts whose every token
# is 0. It ends when all requests have been answered.


# %%
#| export
@dataclass(frozen=True)
class Request:
    """A prompt that comes at a time, tokens to write after it, and when its reader will have gone."""

    comes_s: float
    prompt: Tokens[int]
    writes: int
    leaves_s: float = math.inf


def drive(
    scheduler: "Scheduler",
    requests: Tokens[Request],
    clock: Callable[[Tokens[tuple[int, int]]], float] = lambda parts: 1.0,
    most_steps: int = 20_000,
) -> tuple[list[dict[int, int]], list[list[float]]]:
    """Serve requests: how many tokens each was fed, step by step, and the times of the tokens written for each.

    `clock` gives the seconds of a step over parts (new tokens, tokens kept before), one for each text in it.
    """
    coming = sorted(range(len(requests)), key=lambda i: requests[i].comes_s)
    here: dict[int, Sequence] = {}
    steps, times_s, now_s = [], [[] for _ in requests], 0.0
    while coming or here:
        if not here:
            now_s = max(now_s, requests[coming[0]].comes_s)
        scheduler.now_s = now_s
        while coming and requests[coming[0]].comes_s <= now_s:
            i = coming.pop(0)
            here[i] = scheduler.add(requests[i].prompt, requests[i].writes)
        for i in [i for i in here if requests[i].leaves_s <= now_s]:
            scheduler.finish(here.pop(i))
        if not here:
            continue
        batch = scheduler.schedule()
        if not batch.new or len(steps) == most_steps:
            raise RuntimeError(f"step {len(steps)} feeds {len(batch.new)} of {len(here)} texts that wait or run")
        steps.append({i: len(batch.new[one.number]) for i, one in here.items() if one.number in batch.new})
        now_s += clock([(len(new), scheduler.tables.length(number)) for number, new in batch.new.items()])
        scheduler.tables.commit(batch.new)  # here a model would run
        for i in [i for i, one in here.items() if one in batch.writers]:
            scheduler.write(here[i], [0])
            times_s[i].append(now_s)
            if len(here[i].tokens) == here[i].most:
                scheduler.finish(here.pop(i))
    return steps, times_s


# %% [markdown]
# Before Orca (Yu et al. 2022) a batch ran until its longest answer was written. Now every step is put together anew:
#
# - Whoever runs is fed what is **pending**: all of its tokens that are not kept. Once its prompt is in, that is one.
# - Then, as long as fewer than `limits.sequences` run, the **first** that waits is admitted, if there is room for it,
#   and is fed in this very step. Nobody overtakes: if there is no room for the first, nobody comes in.
# - Room means blocks for all that it may ever keep, reserved when it is admitted, so that nobody runs short on the way.
#   A text of `most` tokens keeps one fewer: its last token is written and never fed.
# - `limits.tokens` has no say before Task 3.
#
# **Write** four methods. `tables.start` may come back with some of a text's tokens kept already (from Task 4 on).
#
# - `feed` puts the next `count` pending tokens of a text into a batch, in a list that does not grow with the text, and
#   the text among the writers if these are all of them (a prompt of which part is kept already begins there).
# - `admit` lets a text run that waits, **whichever it is**, or says False: then it waits where it was, and holds no
#   block. (A number may be used up, and known blocks of Task 4 then count as released just now.)
# - `schedule` puts a step together.
# - `finish` is for a text that has written all, or is given up, **running or waiting**. It has no number afterwards,
#   and its tokens still: somebody may be reading them.
#
# **Size:** about 5, 8, 7 and 6 lines. **Cost:** a text at a time, not a token at a time.


# %% nbgrader={"solution": true, "grade_id": "task-2-continuous"}
#| export
class Scheduler:
    """Texts that wait and texts that run, each in the order in which they came, on the blocks of `tables`."""

    def __init__(self, tables: PageTables, limits: Limits) -> None:
        self.tables, self.limits = tables, limits
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.now_s = 0.0  # set before each step by whoever has a clock
        self.steps = 0  # counted by whoever runs them

    @property
    def idle(self) -> bool:
        """Whether nobody waits or runs."""
        return not self.waiting and not self.running

    def add(self, prompt: Tokens[int], max_tokens: int) -> Sequence:
        """Let a text wait that writes up to `max_tokens` tokens, at least one; ValueError if it outgrows all memory."""
        sequence = Sequence(list(prompt), len(prompt) + max_tokens, self.now_s, prompt=len(prompt))
        if self.tables.pages(sequence.most - 1) > len(self.tables.blocks.references):
            raise ValueError(f"a text of {sequence.most} tokens outgrows the cache")
        self.waiting.append(sequence)
        return sequence

    def write(self, sequence: Sequence, tokens: Tokens[int]) -> None:
        """Add what the model wrote."""
        sequence.tokens += tokens

    def pending(self, sequence: Sequence) -> int:
        """How many tokens of a running text are not kept yet."""
        return len(sequence.tokens) - self.tables.length(sequence.number)

    def feed(self, batch: Batch, sequence: Sequence, count: int) -> None:
        """Put a running text's next `count` tokens, one or more, into the batch. About 5 lines."""
        ### BEGIN SOLUTION
        first = self.tables.length(sequence.number)
        batch.new[sequence.number] = sequence.tokens[first : first + count]
        if first + count == len(sequence.tokens):
            batch.writers.append(sequence)
        ### END SOLUTION

    def admit(self, sequence: Sequence) -> bool:
        """Let a waiting text run if there is room for it: whether there was. About 8 lines."""
        ### BEGIN SOLUTION
        number = self.tables.start(sequence.tokens)
        if not self.tables.try_reserve({number: sequence.most - 1 - self.tables.length(number)}):
            self.tables.drop(number)
            return False
        sequence.number = number
        self.waiting.remove(sequence)
        self.running.append(sequence)
        return True
        ### END SOLUTION

    def schedule(self) -> Batch:
        """Put the next step together. About 7 lines."""
        ### BEGIN SOLUTION
        batch = Batch()
        for sequence in self.running:
            self.feed(batch, sequence, self.pending(sequence))
        while self.waiting and len(self.running) < self.limits.sequences and self.admit(self.waiting[0]):
            self.feed(batch, self.running[-1], self.pending(self.running[-1]))
        return batch
        ### END SOLUTION

    def finish(self, sequence: Sequence) -> None:
        """Forget a text that runs or waits; its room is free at once. About 6 lines."""
        ### BEGIN SOLUTION
        if sequence.number is None:
            self.waiting.remove(sequence)
        else:
            self.running.remove(sequence)
            self.tables.drop(sequence.number)
            sequence.number = None
        ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "continuous"}
check("continuous")

# %% [markdown]
# **See it.** Twelve requests on four slots. Each row is a request, each column a step; bright places read a prompt. How
# many steps would batches take that run until their longest answer is written?

# %%
import plotly.graph_objects as go

from mlsys_lab.widgets import show


def timeline(steps, title):
    """A picture of a run: tokens fed, by request and step."""
    requests = range(1 + max(max(step) for step in steps))
    fed = [[step.get(request, 0) for step in steps] for request in requests]
    shown = [[math.log2(1 + count) for count in row] for row in fed]
    colours = go.Heatmap(z=shown, customdata=fed, showscale=False, hovertemplate="%{customdata} tokens<extra></extra>")
    figure = go.Figure(colours)
    figure.update_layout(title=title, xaxis_title="step", yaxis_title="request", height=320, margin_t=40)
    figure.update_yaxes(autorange="reversed")
    show(figure, alt=f"{title}: each request waits, reads its prompt, then writes a token a step")


SLOTS = 4
answers = [4, 24, 6, 8, 5, 30, 7, 4, 9, 6, 20, 5]
some = [Request(0, [0] * (3 + 5 * number % 17), count) for number, count in enumerate(answers)]
steps, _ = drive(Scheduler(PageTables(BlockManager(200), 4), Limits(SLOTS, 64)), some)
static = sum(max(answers[first : first + SLOTS]) for first in range(0, len(answers), SLOTS))
print(f"{len(steps)} steps, {static} if batches were run to their ends, {sum(answers) / SLOTS:.0f} if none were idle")
timeline(steps, "Continuous batching")

# %% [markdown]
# ## Task 3 · Prompts in chunks
#
# *About 40 minutes.*
#
# A step lasts as long as its tokens ask for. Where a prompt of thousands comes in whole, all who write wait for it.
# Sarathi-Serve (Agrawal et al. 2024) gives each step a **budget**, `limits.tokens`, which no step exceeds:
#
# 1. Of the texts that run, those that have **one** token pending get it first: nobody who writes is kept waiting.
# 2. What is left of the budget goes to the others that run, in the order in which they came: each gets all that is
#    pending of it, or all that is left. (How many such can there be at a time?)
# 3. What is left then goes to those who wait, who are admitted as in Task 2, but only while there is something left.
#
# **Write** `feed_writers` for 1, and `feed_prompts` for 2 and 3; `schedule` calls both.
#
# **3b.** `steps_to_first(prompt, writers, tokens)`: in how many steps a prompt of so many tokens is read, and its first
# token written, while `writers` others write all the time and nobody else reads. `tokens` is the budget, above
# `writers`.
#
# **Size:** about 3, 9 and 1 lines. **Cost:** a step has at most `limits.tokens` tokens, and not fewer while anybody
# could be fed.


# %% nbgrader={"solution": true, "grade_id": "task-3-chunks"}
#| export
class ChunkedScheduler(Scheduler):
    """A scheduler whose steps have `limits.tokens` tokens at most: those who write first, then chunks of prompts."""

    def schedule(self) -> Batch:
        """Put the next step together."""
        batch = Batch()
        self.feed_writers(batch)
        self.feed_prompts(batch)
        return batch

    def feed_writers(self, batch: Batch) -> None:
        """Feed those that run with one token pending. About 3 lines."""
        ### BEGIN SOLUTION
        for sequence in self.running:
            if self.pending(sequence) == 1:
                self.feed(batch, sequence, 1)
        ### END SOLUTION

    def feed_prompts(self, batch: Batch) -> None:
        """Fill what is left of the budget: others that run, then those who wait. About 9 lines."""
        ### BEGIN SOLUTION
        for sequence in self.running:
            count = min(self.pending(sequence), self.limits.tokens - batch.tokens)
            if sequence.number not in batch.new:
                self.feed(batch, sequence, count)
        while self.waiting and len(self.running) < self.limits.sequences and batch.tokens < self.limits.tokens:
            if not self.admit(self.waiting[0]):
                break
            newest = self.running[-1]
            self.feed(batch, newest, min(self.pending(newest), self.limits.tokens - batch.tokens))
        ### END SOLUTION


def steps_to_first(prompt: int, writers: int, tokens: int) -> int:
    """Steps until a prompt's first token, beside so many writers, under a budget of tokens. About 1 line."""
    ### BEGIN SOLUTION
    return -(-prompt // (tokens - writers))
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "chunked"}
check("chunked")

# %% nbgrader={"grade": true, "grade_id": "steps_to_first"}
check("steps_to_first")

# %% [markdown]
# **Predict, then measure.** Eight readers are served when a prompt of 3,000 tokens comes. The clock is a line: so many
# seconds for each step, each new token, and each token that is kept, about those of LLaMA 3 8B on an H100. With which
# budget does no reader wait longer than 30 ms for a token, and when is the newcomer's first one there?


# %%
#| export
@dataclass(frozen=True)
class Clock:
    """Seconds of a step: for itself, for each new token, and for each token that was kept before."""

    step_s: float
    token_s: float
    cached_s: float

    def __call__(self, parts: Tokens[tuple[int, int]]) -> float:
        """Seconds of a step over parts (new tokens, tokens kept before)."""
        new, past = (sum(part[which] for part in parts) for which in (0, 1))
        return self.step_s + self.token_s * new + self.cached_s * past


# %%
guess = None  # tokens of a budget

LLAMA_8B = Clock(step_s=4.8e-3, token_s=27e-6, cached_s=4e-8)
readers = [Request(0, [0] * 10, 200) for _ in range(8)] + [Request(0.2, [0] * 3000, 4)]
gaps_ms, first_ms = {}, {}
for tokens in (64, 128, 256, 512, 1024, 4096):
    tables = PageTables(BlockManager(1000), 16)
    steps, times_s = drive(ChunkedScheduler(tables, Limits(16, tokens)), readers, LLAMA_8B)
    gaps_ms[tokens] = 1e3 * max(after - before for before, after in zip(times_s[0], times_s[0][1:], strict=False))
    first_ms[tokens] = 1e3 * (times_s[8][0] - 0.2)
    read = sum(8 in step for step in steps) - 3  # three more write its other tokens
    print(
        f"budget {tokens:4}: longest gap {gaps_ms[tokens]:5.1f} ms, first token after {first_ms[tokens]:5.1f} ms,",
        end=" ",
    )
    print(f"in {read} steps, {steps_to_first(3000, 8, tokens)} predicted")
print("Write down your guess, too." if guess is None else f"yours: {guess}")
figure = go.Figure()
for name, found in {"longest gap of a reader": gaps_ms, "first token of the newcomer": first_ms}.items():
    figure.add_scatter(x=list(found), y=list(found.values()), mode="lines+markers", name=name)
figure.update_layout(xaxis_title="budget, tokens a step", yaxis_title="ms", margin_t=30)
figure.update_xaxes(type="log", dtick=math.log10(2))
show(figure, alt="The longest gap rises with the budget; the first token of a long prompt comes earlier")

# %% [markdown]
# ## Task 4 · Beginnings that are shared
#
# *About 45 minutes.*
#
# Keys and values of a token depend on it and on all tokens before it, and on nothing else. So a **full** block can be
# used by every text that begins with the same tokens, up to the block's end: a system prompt, the chat so far, or the
# text itself after it was preempted. It is found by a **key** that says all of that.
#
# **4a.** `keys(tokens, page)`: a key for each full block of a text, from the first on: equal if and only if all tokens
# up to the block's end are. Anything that can be a dictionary's key will do, in texts of many blocks as well. (Hash the
# block's tokens together with the key before it, and a long text costs no more a block than a short one; `digest` is
# given. All tokens so far, in a tuple, cost the more the longer the text is. Python's own `hash` will not do: texts for
# which it agrees are soon found, and whoever sends one is answered from the keys and values of another.)
#
# **4b.** `PrefixBlocks`: a block that is **known** by a key stays known when its last reference goes. It counts among
# the available ones, but is given out only when no **blank** block is left (one without reference and key): first the
# one that was released longest ago, which is then no longer known. `register(block, key)` makes a block known, unless
# another is known by that key already, or the block by another. `find(key)` gives the block, or None. `share` takes a
# block that has references, and a known one without.
#
# **4c.** `PrefixTables`: `start(tokens)` begins with all blocks that are known, from the first block of the tokens on
# until one is not known, and counts their tokens as kept; but **never with all of the tokens**: of the last one the
# logits are wanted, so that a block which ends the text is left out. `commit` makes each block known that it fills,
# once: before that the keys are not there, and a copy of a known block is not tried again when that one is forgotten.
#
# **Size:** about 6, 1, 6, 2, 6, 3, 1, 8 and 6 lines. **Cost:** a lookup for each block; nothing is copied.


# %% nbgrader={"solution": true, "grade_id": "task-4-prefixes"}
#| export
def digest(before: bytes, tokens: Tokens[int]) -> bytes:
    """SHA-256 of some bytes and some tokens."""
    return hashlib.sha256(before + array("q", tokens).tobytes()).digest()


def keys(tokens: Tokens[int], page: int) -> list[Hashable]:
    """Keys of a text's full blocks, each for all tokens up to its end. About 6 lines."""
    ### BEGIN SOLUTION
    found, before = [], b""
    for end in range(page, len(tokens) + 1, page):
        before = digest(before, tokens[end - page : end])
        found.append(before)
    return found
    ### END SOLUTION


class PrefixBlocks(BlockManager):
    """Blocks that are known by what is in them, until they are given to somebody else."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.known: dict[Hashable, int] = {}
        self.key_of: dict[int, Hashable] = {}
        self.cached: dict[int, None] = {}  # known blocks without a reference, released longest ago first

    @property
    def available(self) -> int:
        """How many blocks can be given out, known ones too. About 1 line."""
        ### BEGIN SOLUTION
        return len(self.free) + len(self.cached)
        ### END SOLUTION

    def allocate(self) -> int:
        """Give out a blank block, or the known one that was released longest ago. About 6 lines."""
        ### BEGIN SOLUTION
        if not self.free and self.cached:
            oldest = next(iter(self.cached))
            del self.cached[oldest]
            del self.known[self.key_of.pop(oldest)]
            self.free.append(oldest)
        return super().allocate()
        ### END SOLUTION

    def share(self, block: int) -> None:
        """Add a reference to a block that is used or known. About 2 lines."""
        ### BEGIN SOLUTION
        self.cached.pop(block, None)
        super().share(block)
        ### END SOLUTION

    def release(self, block: int) -> None:
        """Take a reference away; a known block stays known. About 6 lines."""
        ### BEGIN SOLUTION
        if self.references[block] == 1 and block in self.key_of:
            self.references[block] = 0
            self.cached[block] = None
        else:
            super().release(block)
        ### END SOLUTION

    def register(self, block: int, key: Hashable) -> None:
        """Make a used block known, unless another has the key or the block has another. About 3 lines."""
        ### BEGIN SOLUTION
        if key not in self.known and block not in self.key_of:
            self.known[key] = block
            self.key_of[block] = key
        ### END SOLUTION

    def find(self, key: Hashable) -> int | None:
        """The block that is known by a key, or None. About 1 line."""
        ### BEGIN SOLUTION
        return self.known.get(key)
        ### END SOLUTION


class PrefixTables(PageTables):
    """Tables of texts that share the blocks of equal beginnings."""

    def start(self, tokens: Tokens[int] = ()) -> int:
        """Number of a new text that keeps what is known of its tokens, never all of them. About 8 lines."""
        ### BEGIN SOLUTION
        number = super().start()
        for key in keys(tokens[:-1], self.page):
            block = self.blocks.find(key)
            if block is None:
                break
            self.blocks.share(block)
            self.tables[number].append(block)
        self.kept[number] += tokens[: len(self.tables[number]) * self.page]
        return number
        ### END SOLUTION

    def commit(self, new: Mapping[int, Tokens[int]]) -> None:
        """Count in new tokens of texts, and make known the blocks that they fill. About 6 lines."""
        ### BEGIN SOLUTION
        full = {number: self.length(number) // self.page for number in new}
        super().commit(new)
        for number, before in full.items():
            if self.length(number) // self.page > before:
                for place, key in list(enumerate(keys(self.kept[number], self.page)))[before:]:
                    self.blocks.register(self.tables[number][place], key)
        ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "keys"}
check("keys")

# %% nbgrader={"grade": true, "grade_id": "prefix_blocks"}
check("prefix_blocks")

# %% nbgrader={"grade": true, "grade_id": "prefixes"}
check("prefixes")

# %% [markdown]
# Your scheduler runs on these tables as it is. Does each text still find its own tokens, and nobody else's?

# %% nbgrader={"grade": true, "grade_id": "shared"}
check("shared")

# %% [markdown]
# **See it.** Forty questions about one document. How many tokens are fed with sharing and without, and how many blocks
# are in use?

# %%
document = list(range(1000, 1400))
questions = [Request(0.02 * number, [*document, *range(7 * number, 7 * number + 24)], 20) for number in range(40)]
figure = go.Figure()
for name, blocks, kind in (("each its own", BlockManager, PageTables), ("shared", PrefixBlocks, PrefixTables)):
    tables, in_use = kind(blocks(2000), 16), []

    def clock(parts, tables=tables, in_use=in_use):
        """The line, which notes the blocks in use."""
        in_use.append(tables.blocks.used)
        return LLAMA_8B(parts)

    steps, times_s = drive(ChunkedScheduler(tables, Limits(64, 512)), questions, clock)
    fed = sum(sum(step.values()) for step in steps)
    first_s = sorted(times[0] - one.comes_s for times, one in zip(times_s, questions, strict=True))
    print(f"{name:12} {fed:6,} tokens fed, up to {max(in_use):3} blocks, half the first in {1e3 * first_s[20]:.0f} ms")
    figure.add_scatter(y=in_use, mode="lines", name=name)
figure.update_layout(xaxis_title="step", yaxis_title="blocks in use", margin_t=30)
show(figure, alt="Blocks in use step by step: with a shared document a fraction of those without")

# %% [markdown]
# ## Task 5 · When memory is short
#
# *About 40 minutes.*
#
# To reserve for the longest answer leaves most blocks empty, for most answers end early. So be bold: admit a text when
# there is room for what it has, and find a block when one is needed. One day there is none. Then somebody must **give
# way**: it loses its blocks, waits again, and will have to be read anew, with all that it has written (**recompute**).
#
# - **Admission** asks for blocks for all tokens that a text has so far, and reserves them; besides, one block must stay
#   available for each text that runs already, which will soon need it.
# - **Writers** are fed in the order in which they came. Where there is no block for one's token, the text that came
#   **last** of all that run gives way, then the next to last, until there is a block, or it was the writer's own turn.
#   (To count what all writers lack, and to let the last go until there is room for it, comes to the same.)
# - Whoever gave way waits at its place in the order in which all came: **before** all others that wait, for these came
#   later. All else is as in Task 3.
#
# So the first that came is never touched, and goes on in every step; when it ends, the next one is the first. Hence
# everybody ends.
#
# **Write** `admit`, `preempt` (with a note in `batch.preempted`, in any order), and `feed_writers`.
#
# **Size:** about 9, 6 and 10 lines. **Cost:** whoever gives way is read twice. Who loses least by it?


# %% nbgrader={"solution": true, "grade_id": "task-5-preemption"}
#| export
class PreemptiveScheduler(ChunkedScheduler):
    """A scheduler that reserves no more than a text has, and takes blocks from the last where they run out."""

    def admit(self, sequence: Sequence) -> bool:
        """Let a waiting text run if there is room for what it has, and a block for each that runs. About 9 lines."""
        ### BEGIN SOLUTION
        number = self.tables.start(sequence.tokens)
        count = len(sequence.tokens) - self.tables.length(number)
        if not self.tables.try_reserve({number: count}, spare=len(self.running)):
            self.tables.drop(number)
            return False
        sequence.number = number
        self.waiting.remove(sequence)
        self.running.append(sequence)
        return True
        ### END SOLUTION

    def preempt(self, sequence: Sequence, batch: Batch) -> None:
        """Take all blocks of a running text, and let it wait before all others. About 6 lines."""
        ### BEGIN SOLUTION
        self.tables.drop(sequence.number)
        sequence.number = None
        self.running.remove(sequence)
        self.waiting.insert(0, sequence)
        batch.preempted.append(sequence)
        ### END SOLUTION

    def feed_writers(self, batch: Batch) -> None:
        """Feed those with one token pending; where there is no block, the last that runs gives way. About 10 lines."""
        ### BEGIN SOLUTION
        for sequence in list(self.running):
            if sequence.number is None or self.pending(sequence) != 1:
                continue
            while sequence.number is not None and not self.tables.try_reserve({sequence.number: 1}):
                self.preempt(self.running[-1], batch)
            if sequence.number is not None:
                self.feed(batch, sequence, 1)
        ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "preemptive"}
check("preemptive")

# %% [markdown]
# **See it.** The same load and the same memory, with room for the longest answer reserved, and without. How many steps
# does each take? In the picture, look for a row that breaks off and begins anew.

# %%
lengths = [5 + 11 * number % 23 for number in range(16)]
long = [Request(0, [100 * number + place for place in range(6)], count) for number, count in enumerate(lengths)]
in_use, ended = {}, {}
for name, scheduler in {
    "reserved": ChunkedScheduler(PageTables(BlockManager(24), 4), Limits(8, 32)),
    "taken as needed": PreemptiveScheduler(PrefixTables(PrefixBlocks(24), 4), Limits(8, 32)),
}.items():
    used = []

    def clock(parts, tables=scheduler.tables, used=used):
        """One second a step; notes blocks with a token in them."""
        used.append(sum(tables.pages(past + new) for new, past in parts))
        return 1.0

    ended[name], _ = drive(scheduler, long, clock)
    in_use[name] = used
    print(f"{name:16} {len(used):3} steps, {sum(used) / len(used) / 24:.0%} of the blocks have tokens in them")
timeline(ended["taken as needed"], "Blocks are taken as needed")
figure = go.Figure([go.Scatter(y=used, mode="lines", name=name) for name, used in in_use.items()])
figure.update_layout(xaxis_title="step", yaxis_title="blocks with tokens", height=300, margin_t=30)
show(figure, alt="Blocks with tokens in them, step by step: more where blocks are taken as needed, and fewer steps")

# %% [markdown]
# ## Task 6 · A promise, kept
#
# *About 30 minutes.*
#
# A service promises its readers a **time to first token** (TTFT), and a **time per output token** (TPOT: the mean gap
# between an answer's tokens). What counts is **goodput** (DistServe, Zhong et al. 2024): requests that got both.
#
# **6a.** `token_budget(clock, writers, past, tpot_s)`: the most tokens that a step may have and still last `tpot_s` at
# most, if `writers` texts write one each, with `past` tokens kept of every one, and all others are a chunk of one
# prompt, of which nothing is kept; `writers` + 1 if there is no such number above that. `clock(parts)` gives seconds of
# a step over parts (new, kept before), one for each text; it may be any function that rises with the chunk, by however
# little, and beyond `tpot_s` in the end. To ask it costs next to nothing.
#
# **6b.** `PromisedScheduler` knows the clock of its machine and the promise. Override of your schedulers' methods
# whatever you like. `limits.sequences` still holds, and everybody still gets all tokens, late or not; but the budget is
# yours to set in each step (a token at least for each that may run, even where no budget keeps the promise), and so is
# the order of `self.waiting`. Each text has its `arrived_s` and the length of its `prompt`; `self.now_s` is the time at
# which the step begins. There is enough memory.
#
# Two things spoil goodput. A step with a large part of a prompt is a gap for everybody who writes. And when too many
# come at once, whoever is served in the order of arrival comes late, and lets all after it come late, too: a crowd that
# waits patiently and is disappointed one after the other. Who can still be served in time?
#
# The check plays loads that you have not seen: long prompts among many who write, and rushes of more than the machine
# can do. You need 80 % of the requests that the judge's own policy serves well, on each load. It has no secrets: a
# budget for each step, by what the clock says (writers differ in what is kept: their mean will do for `past`); of those
# who wait first the ones who can still be in time, and of these the ones who cost the others least.
#
# **Size:** about 6 and 8 lines. **Cost:** planning costs time as well; look at each text once a step.


# %%
#| export
@dataclass(frozen=True)
class Objective:
    """What readers are promised, in seconds: a time to the first token, and a mean time for each further one."""

    ttft_s: float
    tpot_s: float


# %% nbgrader={"solution": true, "grade_id": "task-6-promise"}
#| export
def token_budget(clock: Callable[[Tokens[tuple[int, int]]], float], writers: int, past: int, tpot_s: float) -> int:
    """Most tokens of a step that lasts `tpot_s` at most, beside so many writers. About 6 lines."""
    ### BEGIN SOLUTION
    chunk = 1
    while clock([(1, past)] * writers + [(2 * chunk, 0)]) <= tpot_s:
        chunk *= 2
    within = range(chunk, 2 * chunk)
    parts = [(1, past)] * writers
    return writers + chunk + sum(clock([*parts, (more, 0)]) <= tpot_s for more in within[1:])
    ### END SOLUTION


class PromisedScheduler(PreemptiveScheduler):
    """A scheduler that knows its machine's clock and what was promised."""

    def __init__(self, tables: PageTables, limits: Limits, clock: Clock, objective: Objective) -> None:
        super().__init__(tables, limits)
        self.clock, self.objective = clock, objective

    def schedule(self) -> Batch:
        """Put a step together that keeps as many promises as can be. About 8 lines."""
        ### BEGIN SOLUTION
        past = [self.tables.length(one.number) for one in self.running if self.pending(one) == 1]
        mean = sum(past) // max(1, len(past))
        budget = token_budget(self.clock, len(past), mean, self.objective.tpot_s)
        self.limits = Limits(self.limits.sequences, max(budget, self.limits.sequences))
        self.waiting.sort(key=lambda one: (self.is_late(one), len(one.tokens)))
        return super().schedule()

    def is_late(self, sequence: Sequence) -> bool:
        """Whether a waiting text will miss its first token's time, even if it were read at once."""
        read_s = self.clock([(len(sequence.tokens), 0)])
        return self.now_s + read_s > sequence.arrived_s + self.objective.ttft_s
        ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "token_budget"}
check("token_budget")

# %% nbgrader={"grade": true, "grade_id": "promise"}
check("promise")

# %% [markdown]
# **See it.** Goodput against the rate of requests: in the order of arrival with a wide budget, and by your policy. And
# how long does the slower half wait for a first token?

# %%
import random

PROMISE, SLOW = Objective(ttft_s=0.3, tpot_s=0.035), Clock(5e-3, 2e-4, 2e-7)
good, waits_ms = {"in order": {}, "yours": {}}, {"in order": {}, "yours": {}}
for rate in (10, 20, 30, 45, 60, 90):
    draw, now_s, load = random.Random(rate), 0.0, []
    for _ in range(80):
        now_s += draw.expovariate(rate)
        load.append(Request(now_s, [draw.randrange(5) for _ in range(draw.randint(20, 150))], draw.randint(5, 20)))
    for name in good:
        tables, limits = PrefixTables(PrefixBlocks(400), 16), Limits(12, 2000)
        yours = (
            PromisedScheduler(tables, limits, SLOW, PROMISE) if name == "yours" else PreemptiveScheduler(tables, limits)
        )
        _, times_s = drive(yours, load, SLOW)
        first_s = [times[0] - one.comes_s for one, times in zip(load, times_s, strict=True)]
        gaps_s = [(times[-1] - times[0]) / (len(times) - 1) for times in times_s]
        kept = [f <= PROMISE.ttft_s and gap <= PROMISE.tpot_s for f, gap in zip(first_s, gaps_s, strict=True)]
        good[name][rate] = rate * sum(kept) / len(kept)
        waits_ms[name][rate] = 1e3 * sorted(first_s)[40]
    print(
        f"{rate:3} requests/s: good in order {good['in order'][rate]:5.1f} a second, yours {good['yours'][rate]:5.1f}"
    )
for title, found in (("good requests a second", good), ("ms to the first token, half wait longer", waits_ms)):
    figure = go.Figure()
    for name, curve in found.items():
        figure.add_scatter(x=list(curve), y=list(curve.values()), mode="lines+markers", name=name)
    figure.update_layout(xaxis_title="requests a second", yaxis_title=title, height=320, margin_t=30)
    show(figure, alt=f"{title} against requests a second, in the order of arrival and by your policy")

# %% [markdown]
# ## Your engine serves a model
#
# The package's engine asks a scheduler what yours answers, in slightly other words; `build` makes one for it. Its cache
# looks blocks up in your tables, its HTTP server speaks as OpenAI's does. First without a model, to see that all parts
# fit.


# %%
#| export
class EngineBlocks(PrefixBlocks):
    """Your blocks, with what the server's page shows of them."""

    @property
    def kept(self) -> list[int]:
        """Known blocks that nobody holds."""
        return list(self.cached)


class EngineTables(PrefixTables):
    """Your tables, as the engine's cache calls them."""

    def reserve(self, counts: Mapping[int, int]) -> list[tuple[int, int]]:
        """Blocks to be copied before texts are fed: none, for the scheduler has reserved what they need."""
        if not self.try_reserve(counts):
            raise ValueError("no block is left")
        return []


class EngineScheduler(PreemptiveScheduler):
    """Your scheduler, as the engine calls it; its texts have the names and counts that the server's page shows."""

    added = 0

    def add(self, prompt: Tokens[int], max_tokens: int, *, priority: int = 0) -> Sequence:
        """Let a text wait; all have one priority."""
        sequence = super().add(prompt, max_tokens)
        sequence.rank, sequence.hits = (self.steps, self.added), 0
        self.added += 1
        return sequence

    def admit(self, sequence: Sequence) -> bool:
        """Let a waiting text run, and count what is kept of it already."""
        admitted = super().admit(sequence)
        if admitted:
            sequence.hits += self.tables.length(sequence.number)
        return admitted

    def schedule(self) -> Batch:
        """Put the next step together, and count it."""
        self.steps += 1
        return super().schedule()


def build(pages: int, page: int, limits: Limits) -> EngineScheduler:
    """Make a scheduler on so many blocks of so many tokens."""
    return EngineScheduler(EngineTables(EngineBlocks(pages), page), limits)


# %%
steps, _ = drive(build(64, 16, Limits(4, 64)), [Request(0, list(range(40)), 5), Request(0, list(range(30)), 3)])
print(f"{len(steps)} steps without a model")

# %% [markdown]
# Now `mlsys-lab serve --scheduler` starts a server on a free port, with the cells of this notebook that are exported as
# its scheduler. Six readers ask at once, the prompts of which begin alike. And are the answers those that the model
# gives to each alone, on the cache of lab 10: yours, if you have handed it in?

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

BEGINNING = "A server has many readers, and each step of the model reads all of its weights. "
prompts = [BEGINNING + end for end in ("So", "A batch", "The cache", "Memory", "One token", "The scheduler")]
TOKENS = 24


def ask(path, **fields):
    """What the server answers: JSON where there is something to post, else text."""
    body = json.dumps(fields).encode() if fields else None
    request = urllib.request.Request(address + path, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer) if fields else answer.read().decode()


drive(build(64, 16, Limits(4, 64)), [Request(0, [1, 2, 3], 2)])  # what is still to do shows here
folder = tempfile.TemporaryDirectory()
mine = Path(folder.name) / "mine.py"
cells = get_ipython().user_ns["In"]  # all that has been run in this notebook, in its order
mine.write_text("\n".join(cell for cell in cells if cell.startswith("#| export")), encoding="utf-8")
start = [sys.executable, "-c", "import sys; from mlsys_lab.cli import main; sys.exit(main())", "serve"]
command = [*start, "--port", "0", "--blocks", "40", "--scheduler", str(mine)]
server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
try:
    address = re.search(r"http://\S+", server.stdout.readline())[0]
    plain = {"model": "mlsys-lab-target", "max_tokens": TOKENS, "temperature": 0}
    with ThreadPoolExecutor(len(prompts)) as readers:
        answers = list(readers.map(lambda prompt: ask("/v1/completions", prompt=prompt, **plain), prompts))
    served = [answer["choices"][0]["text"] for answer in answers]
    print(
        *(line for line in ask("/metrics").splitlines() if re.match("mlsys_(engine_steps|generated)", line)), sep="\n"
    )
finally:
    server.terminate()
    server.wait(30)
    folder.cleanup()
for prompt, text in zip(prompts, served, strict=True):
    print(f"{prompt.removeprefix(BEGINNING)} …{text!r}")

from mlsys_lab import stack
from mlsys_lab.inference.pretrained import load_pair
from mlsys_lab.inference.text.chat import END

kv = stack.load("kv-cache")
pair = load_pair()
end = pair.tokenizer.special_id(END)


def write_alone(prompt):
    """The likeliest tokens after a prompt, one by one, on a cache for this text alone."""
    tokens = [end, *pair.tokenizer.encode(prompt)]
    cache, written = kv.Contiguous(pair.target, sequences=1, capacity=len(tokens) + TOKENS), []
    sequence = cache.start()
    while len(written) < TOKENS:
        token = int(kv.extend(pair.target, cache, {sequence: written[-1:] or tokens})[0].argmax())
        if token == end:
            break
        written.append(token)
    return pair.tokenizer.decode(written)


alone = [write_alone(prompt) for prompt in prompts]
print(f"{sum(one == other for one, other in zip(served, alone, strict=True))} of {len(prompts)} answers are the same")

# %% [markdown]
# To chat with it, write the exported cells to a file as above, and run `mlsys-lab serve --scheduler` with its name in a
# terminal: any client of OpenAI's API can talk to your scheduler.
#
# ## Answer for yourself
#
# - Blocks of 16 tokens or of 64: who gains, who loses?
# - A text is preempted just before its last token. What did that cost, and how could a scheduler know?
# - Somebody sends prompts that all differ in their first token. What becomes of sharing? And of those in the middle?
# - Your policy lets late ones wait for as long as others come. When is this wrong, and what would mend it?
# - Would a second machine be better used for half of the requests, or for all prompts?
#
# When all checks pass, save the notebook and run `mlsys-lab check serving` in a terminal.
