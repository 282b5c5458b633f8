# %% [markdown]
# # Lab 10 · A KV cache: keep what has been computed
#
# A language model writes one token at a time. To write the next one it must attend to all that stand before it, but
# does it have to look at them again? What a token leaves for later ones is a key and a value in each layer, and these
# never change. Whoever keeps them pays for one token instead of for the whole text, and has from then on a memory
# that grows, prompts of all lengths side by side, and drafts that have to be taken back.
#
# **You will build**
#
# 1. a cache of keys and values for several sequences;
# 2. positions and masks for tokens that do not begin at 0;
# 3. one pass of a model over a ragged batch;
# 4. prompts fed in chunks, and greedy generation;
# 5. attention whose heads share keys, and a ring for models with a window;
# 6. a prediction of what a step takes, held against this machine;
# 7. the rule by which drafted tokens are accepted, and the step that checks them.
#
# **At the end you can answer**
#
# - What may be kept between two tokens, and what must be forgotten when tokens are taken back?
# - Why can prompts and single tokens of different lengths share a pass without any padding?
# - Why does a token of one sequence take about as long as a token each of ten?
# - How can a small model speed up a large one without changing a single probability?
#
# **Time:** about 230 minutes (each task says its share). **Points:** 100. **You need:** attention, and slices of
# torch tensors; FLOPs and bytes of a transformer (lab 05) for Task 7. Chapter 12, *Inference*, gives the background.
#
# **Readings it leans on:** *LLM Inference Series: 3. KV caching explained* (`lienhart-3`), *Transformer Inference
# Arithmetic* (`kipply-inference-arithmetic`), *How to Scale Your Model, Part 7: All About Transformer Inference*
# (`scaling-book-inference`).
#
# **How it works.** Put your code in place of each line that raises `NotImplementedError`, run the cell, then run the
# `check` cell below it. Cells that begin with `#| export` make up the module that is graded. Grading runs the same
# checks with other numbers and a few more cases.
#
# **The model** is the course's `Transformer`. Its `forward(tokens, positions=…, attend=…, rows=…)` takes tokens (B,
# T), where they stand, and a function `attend(layer, q, k, v)` that takes the place of attention in each layer: q (B,
# N, T, H), k and v (B, K, T, H) of these tokens alone, already turned by their positions, to (B, N, T, H). With
# `rows`, it gives logits of those tokens only.
#
# **Nothing may be computed twice,** and the checks see whether it is. Their model is an `AgingModel`: after each pass
# its weights for keys and values are others. Keys that were kept are those of the pass in which their token was fed;
# keys computed once more are not, and one pass too many makes the model too old. So what comes out is right only if
# every token went through the model once, in the pass that the task says.
#
# **Letters:** N query heads, K key/value heads, H size of a head, T new tokens, S all tokens that are kept, Q new
# tokens of all sequences together, R sequences, V vocabulary.

# %%
from mlsys_lab.checks import lab

check = lab("kv-cache")

# %%
#| export
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from mlsys_lab import stack
from mlsys_lab.configs import TransformerConfig
from mlsys_lab.models import Transformer
from mlsys_lab.models.aging import AgingModel

# %%
aging = AgingModel()
print("the same token, three passes:", *(f"{aging(torch.tensor([[7]]))[0, 0, 0].item():+.6f}" for _ in range(3)))

# %% [markdown]
# ## Task 1 · The cache
#
# *About 25 minutes.*
#
# A server has many sequences at once, and they come and go. The bookkeeping is given: `Sequences` numbers them, lends
# each a **row** from a fixed number of rows, and counts its tokens.


# %%
#| export
class Sequences:
    """Sequences of tokens, numbered from 0 as they come: each has a row, which others get once it is dropped."""

    def __init__(self, rows: int) -> None:
        self._free, self._rows, self._lengths, self._started = list(range(rows))[::-1], {}, {}, 0

    @property
    def sequences(self) -> list[int]:
        """Numbers of the sequences that are here."""
        return list(self._lengths)

    def start(self, prompt: Sequence[int] = ()) -> int:
        """Number of a new sequence, which is empty whatever the prompt is."""
        if not self._free:
            raise ValueError("every row of the cache is taken: drop a sequence first")
        number, self._started = self._started, self._started + 1
        self._rows[number], self._lengths[number] = self._free.pop(), 0
        return number

    def row(self, sequence: int) -> int:
        """The row, 0 to rows - 1, that a sequence has."""
        return self._rows[sequence]

    def length(self, sequence: int) -> int:
        """How many tokens of a sequence are kept: the position of the next one."""
        return self._lengths[sequence]

    def advance(self, sequence: int, count: int) -> None:
        """Count in new tokens, once their keys and values are kept in every layer."""
        self._lengths[sequence] += count

    def truncate(self, sequence: int, length: int) -> None:
        """Forget all but the first `length` tokens."""
        if not 0 <= length <= self.length(sequence):
            raise ValueError(f"cut to {length} tokens, but {self.length(sequence)} are kept")
        self._lengths[sequence] = length

    def drop(self, sequence: int) -> None:
        """Forget a sequence; its row is free again."""
        self._free.append(self._rows.pop(sequence))
        del self._lengths[sequence]


# %% [markdown]
# `start` is given the prompt since some caches look there for a beginning that they hold already; this one does not.
#
# **Write** `Contiguous`, a cache with room for `capacity` tokens in each row, in the dtype of the model (that of
# `model.embedding.weight`). Of `model.config` you need `n_layers`, `n_kv_heads` (K) and `head_dim` (H).
#
# `update(layer, sequence, k, v)` keeps keys and values (K, T, H) of new tokens **after** the `length(sequence)` that
# are kept already, and returns all of them in order: keys (K, S, H), values (K, S, H) and the positions at which they
# stand, (S,) integers (`torch.int64`), with S = length + T, which is `capacity` at most. It is called for one layer
# after the other, and `advance` only when all layers are done: so `update` changes no length, and a pass that fails is
# not counted. It is made again, or another one, and the sequence may be cut or dropped before that. What lies behind
# `length`, in the same row, is somebody else's or has been taken back. The caller uses the memory of `k` and `v` for
# something else; what you return may be a view, but has to last until `advance`, or the pass after one that failed.
#
# **Size:** about 5 and 7 lines. **Cost:** $2KTH$ numbers written a layer. (To join old and new to a new array at each
# token is shorter, and copies everything kept, each time.)


# %% nbgrader={"solution": true, "grade_id": "task-1-cache"}
#| export
class Contiguous(Sequences):
    """Keys and values of `sequences` sequences at a time, of up to `capacity` tokens each, in all layers of a model."""

    def __init__(self, model: Transformer, *, sequences: int, capacity: int) -> None:
        """Make room in the dtype of the model's weights. About 5 lines."""
        ### BEGIN SOLUTION
        super().__init__(sequences)
        c, weight = model.config, model.embedding.weight
        shape = (c.n_layers, sequences, c.n_kv_heads, capacity, c.head_dim)
        self.keys = torch.zeros(shape, dtype=weight.dtype)
        self.values = torch.zeros(shape, dtype=weight.dtype)
        ### END SOLUTION

    def update(
        self, layer: int, sequence: int, k: torch.Tensor, v: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Keep k, v (K, T, H): all keys (K, S, H), values (K, S, H) and their positions (S,). About 7 lines."""
        ### BEGIN SOLUTION
        row, length = self.row(sequence), self.length(sequence)
        end = length + k.shape[1]
        keys, values = self.keys[layer, row], self.values[layer, row]  # (K, capacity, H)
        keys[:, length:end] = k
        values[:, length:end] = v
        return keys[:, :end], values[:, :end], torch.arange(end)
        ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "cache"}
check("cache")

# %% [markdown]
# ## Task 2 · Positions
#
# *About 20 minutes.*
#
# A pass gets only new tokens, and must be told where they stand. Sequence 4 has 7 tokens in the cache and gets 2 new
# ones, which stand at 7 and 8; sequence 0 has none and gets 3, at 0, 1 and 2. Since the projections and the MLP look
# at each token alone, all five can go through the model side by side, as **one** row of Q = 5 tokens: no padding.
# What keeps sequences apart is attention only.
#
# **2a.** `pack(cache, new)`, with `new` the tokens by sequence, in the order in which they are to lie: tokens (1, Q),
# positions (1, Q), and where in the row the last token of each sequence's part lies, (R,): only there are logits
# needed. All three are integers (`torch.int64`). There is a part at least, and each has a token at least.
#
# **2b.** `visible(queries, keys)`: which keys each query may see, from the positions of both, (T,) and (S,): a
# boolean mask (T, S). A token sees itself and all before it. Both can come in any order, with gaps, and some keys may
# stand behind every query. Compare positions as the integers (`torch.int64`) that they are: floats do not tell large
# ones apart.
#
# **Size:** about 4 and 1 lines. **Cost:** nothing beside a pass.


# %% nbgrader={"solution": true, "grade_id": "task-2-positions"}
#| export
def pack(cache: Sequences, new: Mapping[int, Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tokens (1, Q), positions (1, Q), and where each part's last token lies in the row, (R,). About 4 lines."""
    ### BEGIN SOLUTION
    tokens = [token for part in new.values() for token in part]
    positions = [cache.length(sequence) + i for sequence, part in new.items() for i in range(len(part))]
    ends = torch.tensor([len(part) for part in new.values()]).cumsum(0)
    return torch.tensor([tokens]), torch.tensor([positions]), ends - 1
    ### END SOLUTION


def visible(queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Which keys (S,) each query (T,) sees, by their positions: boolean (T, S). About 1 line."""
    ### BEGIN SOLUTION
    return keys[None, :] <= queries[:, None]
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "pack"}
check("pack")

# %% nbgrader={"grade": true, "grade_id": "visible"}
check("visible")

# %% [markdown]
# ## Task 3 · A ragged batch
#
# *About 45 minutes.*
#
# **3a.** `attend(q, keys, values, mask)`: attention of one sequence's new tokens, every head with keys of its own (N
# = K): scores $q \cdot k / \sqrt H$, a softmax over the keys that the mask lets a query see, their mean of the
# values. The result has the dtype of `q`, keys and values. Every query sees a key, and all numbers are finite.
#
# **3b.** `extend(model, cache, new)`: feed sequences their new tokens, **all in one pass**, and return the logits
# after each one's last token, (R, V), in the order of `new`; with `every_token`, those after each new token, (Q, V).
# (Other logits may be worked out, and left out.) Sequences have different lengths, and get different numbers of tokens.
# Use `torch.no_grad()` or what does the same, and leave the model and what you are given as they were. If the model's
# pass fails, at whatever place, no token is counted in.
#
# In each layer, `attend(layer, q, k, v)` gets q (1, N, Q, H), k and v (1, K, Q, H) of all sequences. Cut them into
# parts, one for each sequence, keep the part's keys and values, let its queries look at what the cache gives back,
# and join the results again. Given is `attend_part`, which lets a part's queries attend. Use it: with the functions
# of Tasks 5 and 6 it will serve models with shared heads and a window, too.
#
# **Size:** about 2 and 15 lines. **Cost:** $4NH$ FLOPs for each pair of a query and a key, $2KH$ numbers read for
# each key that is kept.


# %% nbgrader={"solution": true, "grade_id": "task-3-ragged"}
#| export
def attend_part(
    model: Transformer,
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    queries: torch.Tensor,
    places: torch.Tensor,
) -> torch.Tensor:
    """Attention of q (N, T, H) at positions `queries` to keys, values (K, S, H) at `places`: (N, T, H)."""
    mask = visible(queries, places) if model.window is None else in_window(queries, places, model.window)
    return (attend if len(q) == len(keys) else attend_grouped)(q, keys, values, mask)


def attend(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Attention of q (N, T, H) to keys and values (N, S, H) where the mask (T, S) is True: (N, T, H). About 2 lines."""
    ### BEGIN SOLUTION
    scores = q @ keys.mT / math.sqrt(q.shape[-1])  # (N, T, S)
    return scores.masked_fill(~mask, -math.inf).softmax(-1) @ values
    ### END SOLUTION


def extend(
    model: Transformer, cache: Sequences, new: Mapping[int, Sequence[int]], *, every_token: bool = False
) -> torch.Tensor:
    """Feed new tokens in one pass: logits after each sequence's last, (R, V), or after every one, (Q, V).

    About 15 lines.
    """
    ### BEGIN SOLUTION
    tokens, positions, last = pack(cache, new)
    counts = [len(part) for part in new.values()]

    def attend_step(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        split = [x[0].split(counts, dim=1) for x in (q, k, v)]
        at = positions[0].split(counts)
        heads = []
        for sequence, queries, q_part, k_part, v_part in zip(new, at, *split, strict=True):
            keys, values, places = cache.update(layer, sequence, k_part, v_part)
            heads.append(attend_part(model, q_part, keys, values, queries, places))
        return torch.cat(heads, dim=1)[None]

    with torch.no_grad():
        logits = model(tokens, positions=positions, attend=attend_step, rows=None if every_token else last)
    for sequence, count in zip(new, counts, strict=True):
        cache.advance(sequence, count)
    return logits.flatten(0, -2)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "attend"}
check("attend")

# %% nbgrader={"grade": true, "grade_id": "extend"}
check("extend")

# %% [markdown]
# ## Task 4 · Prompts in chunks
#
# *About 30 minutes.*
#
# **Prefill** feeds the prompt, **decode** one token after the other. A long prompt in one pass keeps all other
# sequences waiting, so servers cut it into **chunks**. A cache may also hold the beginning of a prompt already, since
# an earlier request had the same one: then only the rest is fed. And if it holds *all* of it? Then there is no token
# left to feed, and without a query there are no logits. Take the last one back, and feed it again.
#
# **4a.** `prefill(model, cache, sequence, prompt, chunk)`: feed what the cache does not hold of the prompt, in passes
# of `chunk` tokens, the last one shorter if need be, and return the logits after the prompt, (V,). The first
# `cache.length(sequence)` tokens of the prompt are in the cache, and no others. A prompt has a token at least.
#
# **4b.** `generate(model, cache, prompt, count, chunk)`: `count` ≥ 1 tokens that follow the prompt, each the
# likeliest one (greedy; of equals any), as a list. Start a sequence with the prompt, whose beginning the cache may
# hold, and drop it when all are written; others may be in the cache, and stay as they are. The last token is not fed,
# for nobody asks what comes after it: so prompt and tokens together can be one more than `model.config.context`.
#
# **Predict first.** How many passes does it take to read 100 tokens in chunks of 32 and to write 10?

# %%
passes = None  # your number

if passes is None:
    print("Write a number first, then go on.")
else:
    print("right" if passes == -(-100 // 32) + 10 - 1 else "no: what does the pass over the last chunk give already?")

# %% [markdown]
# **Size:** about 4 and 7 lines. **Cost:** a pass for each chunk and for each token but the first.


# %% nbgrader={"solution": true, "grade_id": "task-4-generate"}
#| export
def prefill(model: Transformer, cache: Sequences, sequence: int, prompt: Sequence[int], chunk: int) -> torch.Tensor:
    """Feed what is not yet kept of a prompt, `chunk` tokens a pass: logits (V,) after its last. About 4 lines."""
    ### BEGIN SOLUTION
    cache.truncate(sequence, min(cache.length(sequence), len(prompt) - 1))
    for start in range(cache.length(sequence), len(prompt), chunk):
        logits = extend(model, cache, {sequence: prompt[start : start + chunk]})
    return logits[0]
    ### END SOLUTION


def generate(model: Transformer, cache: Sequences, prompt: Sequence[int], count: int, chunk: int = 512) -> list[int]:
    """The `count` likeliest tokens, one after the other, that follow a prompt. About 7 lines."""
    ### BEGIN SOLUTION
    sequence = cache.start(prompt)
    logits = prefill(model, cache, sequence, prompt, chunk)
    written = [int(logits.argmax())]
    while len(written) < count:
        written.append(int(extend(model, cache, {sequence: written[-1:]})[0].argmax()))
    cache.drop(sequence)
    return written
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "prefill"}
check("prefill")

# %% nbgrader={"grade": true, "grade_id": "generate"}
check("generate")

# %% [markdown]
# **See it.** What does one token more cost, with your cache and without? And are the tokens the same?

# %%
import time

import plotly.graph_objects as go

from mlsys_lab.configs import preset
from mlsys_lab.widgets import show

torch.manual_seed(0)
TALL = TransformerConfig("a small Llama", n_layers=4, d_model=256, n_heads=8, d_ff=704, vocab_size=512, context=512)
small = Transformer(TALL)
prompt = torch.randint(0, TALL.vocab_size, (8,)).tolist()


def seconds_a_token(cached: bool, count: int = 240):
    """Tokens that follow the prompt, and the seconds that each took."""
    cache = Contiguous(small, sequences=1, capacity=TALL.context)
    sequence, text, times_s = cache.start(), list(prompt), []
    with torch.no_grad():
        for _ in range(count):
            start = time.perf_counter()
            new = text[cache.length(sequence) :]
            logits = extend(small, cache, {sequence: new})[0] if cached else small(torch.tensor([text]))[0, -1]
            text.append(int(logits.argmax()))
            times_s.append(time.perf_counter() - start)
    return text, times_s


figure = go.Figure()
texts, totals = [], []
for cached in (False, True):
    text, times_s = seconds_a_token(cached)
    texts.append(text)
    totals.append(sum(times_s))
    smooth = [sorted(times_s[i : i + 9])[4] * 1e3 for i in range(len(times_s) - 9)]
    figure.add_scatter(y=smooth, mode="lines", name="with the cache" if cached else "all anew")
figure.update_layout(xaxis_title="token", yaxis_title="ms (median of nine)", margin_t=30)
show(figure, alt="Milliseconds for each further token: rising without a cache, flat with it")
print(f"tokens are {'the same' if texts[0] == texts[1] else 'NOT the same'}; {totals[0] / totals[1]:.1f} times as fast")

# %% [markdown]
# ## Task 5 · Heads that share keys
#
# *About 15 minutes.*
#
# The cache is what limits how many sequences fit, and what decode reads at every step. **Grouped-query attention**
# lets G = N/K query heads share one head of keys and values: query head n looks at head $\lfloor n / G \rfloor$. With
# K = 1 it is **multi-query** attention.
#
# **Write** `attend_grouped(q, keys, values, mask)` for q (N, T, H) and keys, values (K, S, H). To repeat the keys G
# times would give up what they were shared for. Rather let the queries of a group stand below each other, as G·T
# queries of one head: which row of the mask does each of them need?
#
# **Size:** about 4 lines. **Cost:** as many FLOPs as before; a G-th of the bytes.


# %% nbgrader={"solution": true, "grade_id": "task-5-grouped"}
#| export
def attend_grouped(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Attention of q (N, T, H) to keys and values (K, S, H), head n to n // (N/K): (N, T, H). About 4 lines."""
    ### BEGIN SOLUTION
    groups = q.unflatten(0, (len(keys), -1))  # (K, G, T, H)
    below = mask.repeat(groups.shape[1], 1)  # (G·T, S)
    heads = attend(groups.flatten(1, 2), keys, values, below)  # (K, G·T, H)
    return heads.reshape(q.shape)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "attend_grouped"}
check("attend_grouped")

# %% [markdown]
# **See it.** What a text of 8,192 tokens keeps in bf16, as published, and if every query head had keys of its own.

# %%
for c in (preset(name) for name in ("llama2-7b", "llama2-70b", "llama3-8b", "llama3-70b")):
    own, shared = (4 * c.n_layers * heads * c.head_dim * 8192 / 1e9 for heads in (c.n_heads, c.n_kv_heads))
    print(f"{c.name:12} {shared:5.1f} GB a sequence, {own:5.1f} GB without sharing")

# %% [markdown]
# ## Task 6 · A window
#
# *About 35 minutes.*
#
# Some models look back over a **window** only: a token sees itself and the `window` − 1 before it (Mistral 7B). What
# lies further back, nobody will ever look at again. So a cache need not grow: a **ring** of slots will do, in which
# token p lies in slot p modulo the number of slots, where it replaces the oldest.
#
# **6a.** `in_window(queries, keys, window)`: as `visible`, for a model with a window.
#
# **6b.** `SlidingWindow(model, sequences=…, chunk=…)`, for a model that has a `model.window`, and passes of up to
# `chunk` tokens of a sequence. How many slots does a ring need? A pass first keeps all its tokens, and its *first*
# token still wants to see what is `window` − 1 back. `update` is as in Task 1, but it returns only what some token of
# this pass can see: the last `window` − 1 tokens kept before, or fewer if there are not so many, and the new ones,
# with their positions, in any order. Tokens can be taken back (`truncate`) right after a pass, in all as many as it
# brought. Here a long text must not take more memory than a short one.
#
# **Size:** about 2, 3 and 8 lines. **Cost:** window − 1 + T keys read, however long the text.


# %% nbgrader={"solution": true, "grade_id": "task-6-window"}
#| export
def in_window(queries: torch.Tensor, keys: torch.Tensor, window: int) -> torch.Tensor:
    """Which keys (S,) each query (T,) sees: its own and the window - 1 before it, (T, S). About 2 lines."""
    ### BEGIN SOLUTION
    back = queries[:, None] - keys[None, :]
    return (back >= 0) & (back < window)
    ### END SOLUTION


class SlidingWindow(Contiguous):
    """Keys and values of a model with a window: a ring for each sequence, for passes of up to `chunk` of its tokens."""

    def __init__(self, model: Transformer, *, sequences: int, chunk: int) -> None:
        """Make room for what passes of `chunk` tokens can see. About 3 lines."""
        ### BEGIN SOLUTION
        self.window, self.slots = model.window, model.window - 1 + chunk
        super().__init__(model, sequences=sequences, capacity=self.slots)
        ### END SOLUTION

    def update(
        self, layer: int, sequence: int, k: torch.Tensor, v: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Keep k, v (K, T, H): the keys (K, S, H), values and positions (S,) that new tokens see. About 8 lines."""
        ### BEGIN SOLUTION
        row, length = self.row(sequence), self.length(sequence)
        end = length + k.shape[1]
        keys, values = self.keys[layer, row], self.values[layer, row]  # (K, slots, H)
        new = torch.arange(length, end) % self.slots
        keys[:, new], values[:, new] = k, v
        places = torch.arange(max(0, length - self.window + 1), end)
        return keys[:, places % self.slots], values[:, places % self.slots], places
        ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "in_window"}
check("in_window")

# %% nbgrader={"grade": true, "grade_id": "ring"}
check("ring")

# %% [markdown]
# Now the parts work together: your `extend`, on models with a window, shared heads, or both, and on either cache.

# %% nbgrader={"grade": true, "grade_id": "windowed"}
check("windowed")

# %% [markdown]
# ## Task 7 · Predict a step, then measure it
#
# *About 30 minutes.*
#
# A step is a list of one or more **parts**, one for each sequence: (new tokens, at least one, and tokens kept before).
# [(1, 100), (1, 40)] decodes two sequences, [(256, 512)] feeds a chunk, [(5, 100)] checks four drafted tokens. What
# does a step compute, and what must it read at the least? For a model with rotary positions, RMS norms, SwiGLU and no
# biases, tied or not:
#
# - **FLOPs.** Every matrix of the blocks multiplies each new token, the head (V, D) only the last of each part: 2
#   FLOPs a weight. Scores and mixed values: 4·N·H in each layer for each pair of a query and a key that it sees.
#   Nothing else.
# - **Bytes.** All weights once, those of the norms too, but for the embedding table, in which tokens are only looked
#   up (unless the head is the same table). Of the cache, in each layer and part, keys and values of all tokens that
#   one of the part's queries sees, the new ones included. Each number has `element_bytes` bytes.
#
# With a `window`, a query sees its own token and the `window` − 1 before it; None is no window.
#
# **7a.** `step_work(config, parts, window, element_bytes)`: FLOPs and bytes, as integers, exact however large.
# `arithmetic` is lab 05: yours, if you have handed it in. Its `count_parameters(config)` counts all parameters: the
# blocks' matrices are what is left of them without the tables and the norms, of which each block has two of D
# weights, and the end of the model one.
#
# **7b.** `predict_step_s(config, parts, machine, window, element_bytes)`: the seconds that the slower of the two
# takes, and which one binds, `"compute"` or `"memory"` (either, where both take as long).
#
# **Size:** about 10 and 3 lines. **Cost:** none; that is the point.


# %%
#| export
arithmetic = stack.load("transformer-arithmetic")


@dataclass(frozen=True)
class Machine:
    """What a machine can do at best: FLOP/s, and bytes a second from memory."""

    flops_per_s: float
    bytes_per_s: float


# %% nbgrader={"solution": true, "grade_id": "task-7-predict"}
#| export
def step_work(
    config: TransformerConfig, parts: Sequence[tuple[int, int]], window: int | None = None, element_bytes: int = 2
) -> tuple[int, int]:
    """FLOPs and least bytes of a step over parts (new tokens, tokens kept before). About 10 lines."""
    ### BEGIN SOLUTION
    c, table = config, config.vocab_size * config.d_model
    norms = (2 * c.n_layers + 1) * c.d_model
    in_blocks = arithmetic.count_parameters(c) - norms - (table if c.tied else 2 * table)
    farthest = window or math.inf
    pairs = sum(min(past + i + 1, farthest) for new, past in parts for i in range(new))
    kept = sum(min(past, farthest - 1) + new for new, past in parts)
    tokens = sum(new for new, _ in parts)
    flops = 2 * in_blocks * tokens + 2 * table * len(parts) + 4 * c.n_layers * c.n_heads * c.head_dim * pairs
    numbers = in_blocks + norms + table + 2 * c.n_layers * c.n_kv_heads * c.head_dim * kept
    return flops, element_bytes * numbers
    ### END SOLUTION


def predict_step_s(
    config: TransformerConfig,
    parts: Sequence[tuple[int, int]],
    machine: Machine,
    window: int | None = None,
    element_bytes: int = 2,
) -> tuple[float, str]:
    """Least seconds of a step, and what binds: "compute" or "memory". About 3 lines."""
    ### BEGIN SOLUTION
    flops, moved = step_work(config, parts, window, element_bytes)
    compute_s, memory_s = flops / machine.flops_per_s, moved / machine.bytes_per_s
    return max(compute_s, memory_s), "compute" if compute_s > memory_s else "memory"
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "step_work"}
check("step_work")

# %% nbgrader={"grade": true, "grade_id": "predict_step"}
check("predict_step")

# %% [markdown]
# **Predict.** Llama 3 8B in bf16 on a device of 989 TFLOP/s and 3.35 TB/s, every sequence with 2,000 tokens. How many
# sequences must decode together until arithmetic takes as long as memory?

# %%
guess = None  # sequences

H100, LLAMA = Machine(989e12, 3.35e12), preset("llama3-8b")
batches = [2**i for i in range(12)]
for past in (200, 2000, 8000):
    at = {batch: predict_step_s(LLAMA, [(1, past)] * batch, H100) for batch in batches}
    first = next((str(batch) for batch, (_, bound) in at.items() if bound == "compute"), "none of these")
    print(
        f"{past:5} tokens each: {at[1][0] * 1e3:.1f} ms alone, {at[256][0] * 1e3:.1f} ms for 256; compute from {first}"
    )
print("Write down your guess, too." if guess is None else f"yours: {guess}")

# %% [markdown]
# Where it says *none of these*, no batch is large enough. All sequences share the weights, but each one brings keys and
# values of its own, and of a long text these alone take longer to read than all that is computed with them.

# %% [markdown]
# **Measure.** This machine's two limits first: a product of large matrices, and one of a matrix and a vector, which
# reads each weight once. Then your `extend` on a model that no processor cache holds, for steps of several kinds.

# %%
from mlsys_lab.benchmark import compare

WIDE = TransformerConfig(
    "a wide Llama", n_layers=4, d_model=1024, n_heads=16, n_kv_heads=4, d_ff=2816, vocab_size=1024, context=1024
)
wide = Transformer(WIDE)
square, tall, vector = torch.randn(1024, 1024), torch.randn(4096, 4096), torch.randn(4096)
steps = {
    "decode 1": [(1, 300)],
    "decode 4": [(1, 300)] * 4,
    "decode 16": [(1, 300)] * 16,
    "chunk of 64": [(64, 300)],
    "chunk of 256": [(256, 300)],
}


def prepare(parts):
    """A call that runs a step on sequences of these lengths, and takes it back."""
    cache = Contiguous(wide, sequences=len(parts), capacity=600)
    new = {cache.start(): [1] * count for count, _ in parts}
    for sequence, (_, past) in zip(new, parts, strict=True):
        cache.advance(sequence, past)  # whatever lies there: no product is faster for zeros

    def step():
        extend(wide, cache, new)
        for sequence, (_, past) in zip(new, parts, strict=True):
            cache.truncate(sequence, past)

    return step


calls = {"product": lambda: square @ square, "read": lambda: tall @ vector}
calls |= {name: prepare(parts) for name, parts in steps.items()}
timings = compare(calls, samples=7, warmup=1).timings
here = Machine(2 * 1024**3 / timings["product"].p50_s, 4 * 4096**2 / timings["read"].p50_s)
print(f"this machine: {here.flops_per_s / 1e9:.0f} GFLOP/s, {here.bytes_per_s / 1e9:.1f} GB/s")
predicted = {name: predict_step_s(WIDE, parts, here, element_bytes=4) for name, parts in steps.items()}
for name, (seconds, bound) in predicted.items():
    measured = timings[name].p50_s
    print(f"{name:13} {seconds * 1e3:6.1f} ms ({bound}), measured {measured * 1e3:6.1f} ms: {seconds / measured:.0%}")
times_ms = {"predicted": [1e3 * seconds for seconds, _ in predicted.values()]}
times_ms |= {"measured": [1e3 * timings[name].p50_s for name in steps]}
figure = go.Figure([go.Bar(name=name, x=list(steps), y=values) for name, values in times_ms.items()])
figure.update_layout(yaxis_title="ms a step", margin_t=30)
show(figure, alt="Milliseconds of five kinds of step, predicted by the bound and measured")

# %% [markdown]
# The prediction is a **floor**. Single tokens come near it if nothing else is running: they do little but read. What
# lies between is what a bound leaves out: a loop over sequences in Python, attention in several passes over its
# scores, products of shapes that reach less than the best rate. Which of the five is furthest off, and which of these
# is it?

# %% [markdown]
# ## Task 8 · Drafts
#
# *About 30 minutes.*
#
# A pass over five tokens takes hardly longer than over one. **Speculative decoding** uses that: something cheap
# drafts k tokens, and one pass of the model checks them all. The art is in accepting so that the text is distributed
# *exactly* as if the model had written it alone (Leviathan et al. 2023, algorithm 1).
#
# Draft i, token $x_i$, was drawn from $q_i$ (`proposed`, (k, V)). The model wants $p_i$ there (`wanted`, (k + 1, V):
# one row more, for the place after the last draft; k may be 0: nothing was drafted). Rows of both add to 1, but for
# rounding. With a number $u_i$ from [0, 1), the draft stays if $u_i \, q_i(x_i) < p_i(x_i)$: always, if the model likes
# it better than the drafter did. The first draft that does not stay ends them; in its place comes a token drawn from
# what $p$ has **beyond** $q$: $\max(0, p_i - q_i)$, scaled up to add to 1. If all stay, the pass has given $p_{k+1}$ as
# well: a **bonus** token is drawn from that.
#
# To draw from weights $w$ with a number $u$: the first token at which the running sum of $w$ is **more** than $u$ times
# the sum of all. (So a token without weight is never drawn, and what is beyond need not be scaled up first. The first
# is that of the lowest number; how you add up to there is left to you.) Draws are made from the *last* of the
# `uniforms`, (k + 1,). Where rounding leaves nothing at all beyond, only zeros, draw from $p_i$.
#
# **8a.** `accept(drafts, proposed, wanted, uniforms)`: how many drafts stay, and the token that follows them.
#
# **8b.** `verify(model, cache, sequence, text, drafts, proposed, uniforms)`: one step. The cache holds all of `text`
# but its last token. Feed that and the drafts **in one pass**; $p$ is the softmax of the logits. Return the tokens
# that text goes on with, the drafts that stay and the one after them, and leave the cache as it was given: holding
# all of the text so far but its last token, and other sequences as they were. What must it forget?
#
# **Size:** about 10 and 5 lines. **Cost:** one pass, for 1 to k + 1 tokens.


# %% nbgrader={"solution": true, "grade_id": "task-8-drafts"}
#| export
def accept(
    drafts: torch.Tensor, proposed: torch.Tensor, wanted: torch.Tensor, uniforms: torch.Tensor
) -> tuple[int, int]:
    """How many of the drafts (k,) stay, and the token that follows them. About 10 lines."""
    ### BEGIN SOLUTION
    accepted, beyond = len(drafts), wanted[-1]
    for i, token in enumerate(drafts.tolist()):
        if uniforms[i] * proposed[i, token] >= wanted[i, token]:
            accepted, beyond = i, (wanted[i] - proposed[i]).clamp(min=0)
            break
    if not beyond.any():
        beyond = wanted[accepted]
    sums = beyond.cumsum(0)
    return accepted, int(torch.searchsorted(sums, uniforms[-1] * sums[-1], right=True))
    ### END SOLUTION


def verify(
    model: Transformer,
    cache: Sequences,
    sequence: int,
    text: Sequence[int],
    drafts: torch.Tensor,
    proposed: torch.Tensor,
    uniforms: torch.Tensor,
) -> list[int]:
    """Check drafts (k,) in one pass: the tokens, 1 to k + 1, that the text goes on with. About 5 lines."""
    ### BEGIN SOLUTION
    new = [text[-1], *drafts.tolist()]
    wanted = extend(model, cache, {sequence: new}, every_token=True).softmax(-1)
    accepted, following = accept(drafts, proposed, wanted, uniforms)
    cache.truncate(sequence, len(text) + accepted)
    return [*new[1 : accepted + 1], following]
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "accept"}
check("accept")

# %% nbgrader={"grade": true, "grade_id": "verify"}
check("verify")

# %% [markdown]
# **See it.** A drafter that is rather wrong, and what your rule makes of it: the first token of each step, counted.
# And how many tokens does a step give, against the expected $\frac{1 - \alpha^{k+1}}{1 - \alpha}$, with $\alpha =
# \sum_x \min(p(x), q(x))$ the probability that a draft stays?

# %%
torch.manual_seed(2)
p, q = (torch.randn(8, dtype=torch.float64).softmax(0) for _ in "pq")
K, DRAWS = 3, 4000
first, gained = torch.zeros(8), 0
for _ in range(DRAWS):
    drafts = torch.multinomial(q, K, replacement=True)
    stay, following = accept(drafts, q.repeat(K, 1), p.repeat(K + 1, 1), torch.rand(K + 1, dtype=torch.float64))
    first[int(drafts[0]) if stay else following] += 1
    gained += stay + 1
alpha = float(torch.minimum(p, q).sum())
expected = (1 - alpha ** (K + 1)) / (1 - alpha)
print(f"{gained / DRAWS:.2f} tokens a step, {expected:.2f} expected at an acceptance of {alpha:.0%}")
shares = {"the model's p": p, "your rule": first / DRAWS, "the drafter's q": q}
figure = go.Figure([go.Bar(name=name, y=share.tolist()) for name, share in shares.items()])
figure.update_layout(xaxis_title="token", yaxis_title="probability", margin_t=30)
show(figure, alt="Probabilities of eight tokens: the counts of the rule agree with the model, not with the drafter")

# %% [markdown]
# ## Answer for yourself
#
# - A chat goes on: the user edits a message in the middle. What of the cache is still right, and what is not?
# - Would the logits of a sequence be the same bits if it were alone in the batch? And is the *text* the same?
# - With rotary positions the cache keeps keys that are turned already. What would have to be done to shift a whole
#   text by one position? And if keys were kept as they were before?
# - A window of 4,096 in each of 32 layers: how far back can the last token be influenced from? Why does the ring do
#   all the same?
# - Drafts cost a pass of a small model each. When is it better not to draft? What does a batch of 64 sequences
#   change?
#
# When all checks pass, save the notebook and run `mlsys-lab check kv-cache` in a terminal.
