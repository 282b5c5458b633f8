# %% [markdown]
# # Lab 10 · A KV cache: keep what has been computed
#
# A model reads a prompt of 500 tokens and generates 500 more. Without a cache it processes the whole sequence again
# for each new token: 374,750 tokens in all. With a **KV cache** it processes 999, because the keys and values of a
# token never change once they are computed. The price is memory: Llama 3 8B keeps 131,072 bytes for each token, 1.07
# GB for a sequence of 8,192 tokens. You build the cache, and everything that a server does with it.
#
# ```text
#   new tokens             one pass of the model                keys and values of one layer
#  seq 0: a b c          tokens     a  b  c  d  e                   row 0:  k0 k1 k2 ·  ·  ·  ·   seq 0
#  seq 4: d e    ─pack─► positions  0  1  2  5  6  ──attention──►   row 1:  k0 k1 k2 k3 k4 k5 k6  seq 4
#                        logits           ▲     ▲                   row 2:  ·  ·  ·  ·  ·  ·  ·   free
# ```
#
# **You will build**
#
# 1. a cache with a row for each sequence (`25 min`);
# 2. positions and masks for tokens that follow cached ones (`20 min`);
# 3. one pass of a model over a ragged batch (`45 min`);
# 4. chunked prefill and greedy decoding (`30 min`);
# 5. grouped-query attention (`15 min`);
# 6. a ring buffer for models with a sliding window (`35 min`);
# 7. the cost of a step, predicted and measured on this machine (`30 min`);
# 8. speculative decoding (`30 min`).
#
# **At the end you can answer**
#
# - What may stay in the cache between two steps, and what must leave it?
# - Why can prompts and single tokens share a pass without padding?
# - Why does decoding one sequence take about as long as decoding ten?
# - How can a small model speed up a large one without changing a single probability?
#
# **Time:** about 230 minutes. **Points:** 100. **You need:** attention, torch's slices, and the FLOPs and bytes of a
# transformer ([lab 05](05-transformer-arithmetic.ipynb)) for Task 7. Background: chapter 12, *Inference*.
#
# **Readings:** *LLM Inference Series: 3. KV caching explained* (`lienhart-3`), *Transformer Inference Arithmetic*
# (`kipply-inference-arithmetic`), *How to Scale Your Model, Part 7: All About Transformer Inference*
# (`scaling-book-inference`).
#
# **How it works.** Replace each line that raises `NotImplementedError`, run the cell, paste the example into a new cell
# to see whether it does what the text says, then run the `check` below. Cells that start with `#| export` are what is
# graded. Names and signatures are those of the course's package, `mlsys_lab.inference`, where it has the same thing.
#
# **Letters:** N query heads, K KV heads, H head dimension, T new tokens and S cached tokens (new ones included) of a
# sequence, Q new tokens of all sequences, R sequences, V vocabulary.

# %%
from mlsys_lab.checks import lab

check = lab("kv-cache")

# %%
#| export
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from mlsys_lab.configs import TransformerConfig
from mlsys_lab.models import Transformer
from mlsys_lab.models.aging import AgingModel

# %% [markdown]
# **The model** is the course's `Transformer`. Its `forward(tokens, positions=…, attend=…, rows=…)` takes tokens (B, T)
# and their positions. In each layer it calls your `attend(layer, q, k, v)` in place of attention, with the queries (B,
# N, T, H), keys and values (B, K, T, H) of these tokens alone, to which the rotary position embedding (RoPE) has
# already been applied, and takes back (B, N, T, H). With `rows` it returns logits for those tokens only. (This callback
# is not the function `attend(q, keys, values, mask)` of Task 3, which handles one sequence.)
#
# The checks of whole passes use an `AgingModel`: **after each pass its key and value weights are different ones.** So a
# token that is computed twice gives other keys the second time, and the logits show it. They are right only if every
# token goes through the model once, in the pass that the task says.

# %%
aging, token = AgingModel(), torch.tensor([[7]])
logits = [aging(token)[0, 0, 0].item() for _ in range(3)]
print("the same token in three passes:", *(f"{logit:+.6f}" for logit in logits))

# %% [markdown]
# ## Task 1 · The cache
#
# *About 25 minutes.*
#
# **Goal.** Store the keys and values of several sequences, layer by layer, and return all those of a sequence when new
# ones arrive. A server's sequences come and go, so each one borrows a **row** of memory from a fixed number of rows.
#
# The bookkeeping is given: `Cache` numbers the sequences, lends each one a row, and counts its tokens.


# %%
#| export
class Cache:
    """Rows and lengths of sequences, which are numbered from 0 in order of arrival."""

    def __init__(self, sequences: int) -> None:
        self._free_rows = list(range(sequences))[::-1]
        self._rows, self._lengths, self._num_started = {}, {}, 0

    @property
    def sequences(self) -> list[int]:
        """Numbers of the sequences in the cache."""
        return list(self._lengths)

    def start(self, prompt: Sequence[int] = ()) -> int:
        """Start a new, empty sequence and return its number."""
        if not self._free_rows:
            raise ValueError("every row of the cache is taken: drop a sequence first")
        sequence, self._num_started = self._num_started, self._num_started + 1
        self._rows[sequence], self._lengths[sequence] = self._free_rows.pop(), 0
        return sequence

    def row(self, sequence: int) -> int:
        """Row of a sequence, from 0 to the number of rows - 1."""
        return self._rows[sequence]

    def length(self, sequence: int) -> int:
        """Number of cached tokens of a sequence: the position of its next one."""
        return self._lengths[sequence]

    def advance(self, sequence: int, num_tokens: int) -> None:
        """Count new tokens, once every layer has stored their keys and values."""
        self._lengths[sequence] += num_tokens

    def truncate(self, sequence: int, length: int) -> None:
        """Keep the first `length` tokens of a sequence."""
        if not 0 <= length <= self.length(sequence):
            raise ValueError(
                f"{length} of {self.length(sequence)} tokens cannot be kept"
            )
        self._lengths[sequence] = length

    def drop(self, sequence: int) -> None:
        """Remove a sequence, and free its row."""
        self._free_rows.append(self._rows.pop(sequence))
        del self._lengths[sequence]


# %% [markdown]
# (`start` receives the prompt for the sake of caches that already hold a prefix of it, as those of lab 11.)
#
# **Interface**
#
# | | returns | does |
# |---|---|---|
# | `Contiguous(model, *, sequences, capacity)` | – | allocates rows of `capacity` tokens, in all layers of the model |
# | `update(layer, sequence, k, v)` | keys (K, S, H), values (K, S, H), positions (S,) int64 | stores k, v (K, T, H) |
#
# A pass calls `update` for one layer after the other, with the same sequence and T. Only when all layers are done does
# it call `advance(sequence, T)`. So S = `length(sequence)` + T.
#
# **Example** (2 layers, 4 KV heads of 6 numbers)
#
# ```python
# model = AgingModel(n_layers=2)
# cache = Contiguous(model, sequences=3, capacity=8)
# a, b = cache.start(), cache.start()
# k, v = torch.randn(2, 4, 5, 6, dtype=torch.float64)
# keys, values, positions = cache.update(0, b, k, v)
# keys.shape, positions.tolist(), cache.length(b)  # → (torch.Size([4, 5, 6]), [0, 1, 2, 3, 4], 0)
# _ = cache.update(1, b, k, v)
# cache.advance(b, 5)
# keys, values, positions = cache.update(0, b, k[:, :1], v[:, :1])  # one more token
# keys.shape, bool((keys[:, :5] == k).all())  # → (torch.Size([4, 6, 6]), True)
# ```
#
# **Requirements**
#
# - New tokens go after the `length(sequence)` cached ones, in this sequence's row of this layer. Whatever lies beyond
#   `length` is stale: a truncated token, a former sequence, or a pass that failed and is repeated.
# - `update` does not change the length.
# - It copies k and v: the caller reuses their memory. What it returns may be a view of the cache.
# - The memory has the dtype of the model (that of `model.embedding.weight`), and room for `capacity` tokens per row.
#
# **Size:** about 5 and 7 lines. (Concatenating old and new tokens would be shorter, and would pass the check, but each
# new token would copy all of the old ones.)
#
# <details><summary>Details</summary>
#
# - `model.config` has `n_layers`, `n_kv_heads` (K) and `head_dim` (H).
# - After a pass that failed, the sequence may go on with other tokens, be truncated, or be dropped.
#
# </details>


# %% nbgrader={"solution": true, "grade_id": "task-1-cache"}
#| export
class Contiguous(Cache):
    """Keys and values in a row of `capacity` tokens for each sequence and layer."""

    def __init__(self, model: Transformer, *, sequences: int, capacity: int) -> None:
        """Allocate memory in the dtype of the model's weights. About 5 lines."""
        ### BEGIN SOLUTION
        super().__init__(sequences)
        c, dtype = model.config, model.embedding.weight.dtype
        shape = (c.n_layers, sequences, c.n_kv_heads, capacity, c.head_dim)
        self.keys = torch.zeros(shape, dtype=dtype)
        self.values = torch.zeros(shape, dtype=dtype)
        ### END SOLUTION

    def update(
        self, layer: int, sequence: int, k: torch.Tensor, v: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Store k, v (K, T, H); return keys, values and positions. About 7 lines."""
        ### BEGIN SOLUTION
        row, length = self.row(sequence), self.length(sequence)
        end = length + k.shape[1]
        keys, values = self.keys[layer, row], self.values[layer, row]
        keys[:, length:end] = k  # of (K, capacity, H)
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
# **Goal.** A pass gets only new tokens, so it needs their positions as well. Projections and MLP treat each token by
# itself; hence new tokens of all sequences can lie side by side in **one** row of Q tokens, without padding, and
# only attention has to keep sequences apart.
#
# **Interface**
#
# | | returns |
# |---|---|
# | `pack(cache, new)` | `tokens` (1, Q), `positions` (1, Q), `last` (R,): each sequence's last token, an index into Q |
# | `causal_mask(query_positions, key_positions)` | boolean mask (T, S): which keys each query sees |
#
# `new` maps sequence numbers to their new tokens, in the order in which they are packed. `query_positions` are (T,),
# `key_positions` (S,).
#
# **Example** (sequence 1 has 7 cached tokens)
#
# ```python
# cache = Cache(2)
# a, b = cache.start(), cache.start()
# cache.advance(b, 7)
# tokens, positions, last = pack(cache, {b: [30, 31], a: [10, 11, 12]})
# tokens.tolist()  # → [[30, 31, 10, 11, 12]]
# positions.tolist()  # → [[7, 8, 0, 1, 2]]
# last.tolist()  # → [1, 4]
# mask = causal_mask(torch.tensor([7, 8]), torch.tensor([8, 0, 7]))
# mask.tolist()  # → [[False, True, True], [True, True, True]]
# ```
#
# **Requirements**
#
# - All results of `pack` are int64.
# - A token sees itself and all tokens before it, by **position**: keys and queries may come in any order, with gaps.
# - Compare positions as integers. Floats cannot tell large ones apart.
#
# **Size:** about 7 and 1 lines.


# %% nbgrader={"solution": true, "grade_id": "task-2-positions"}
#| export
def pack(
    cache: Cache, new: Mapping[int, Sequence[int]]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Lay new tokens side by side: tokens, positions, last rows. About 7 lines."""
    ### BEGIN SOLUTION
    tokens, positions, last = [], [], []
    for sequence, part in new.items():
        length = cache.length(sequence)
        tokens += part
        positions += range(length, length + len(part))
        last.append(len(tokens) - 1)
    return torch.tensor([tokens]), torch.tensor([positions]), torch.tensor(last)
    ### END SOLUTION


def causal_mask(
    query_positions: torch.Tensor, key_positions: torch.Tensor
) -> torch.Tensor:
    """Which keys (S,) each query (T,) sees: boolean (T, S). About 1 line."""
    ### BEGIN SOLUTION
    return key_positions[None, :] <= query_positions[:, None]
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
# **Goal.** Run the new tokens of several sequences, a prompt here and a single token there, through the model in one
# pass. This function, `extend`, is the heart of every inference engine: all later tasks, and lab 11, run on it.
#
# **Interface**
#
# | | returns |
# |---|---|
# | `attend(q, keys, values, mask)` | (N, T, H) |
# | `extend(model, cache, new, *, every_token=False)` | logits (R, V), or (Q, V) with `every_token` |
#
# `attend` takes q (N, T, H), keys and values (N, S, H), and a boolean mask (T, S). Attention means: scores
# $q \cdot k / \sqrt H$, a softmax over the visible keys, and the mean of the values with these weights.
#
# `extend` runs the new tokens through the model and returns the logits after the last one of each sequence, or after
# every one. In each layer, the function that you pass to the model gets q (1, N, Q, H), k and v (1, K, Q, H) of all
# sequences. It splits them by sequence, calls `cache.update`, and joins the results. `attend_sequence` is given: it
# computes the attention of one sequence, also for the models of Tasks 5 and 6.
#
# **Example**
#
# ```python
# q = torch.zeros(1, 1, 2)  # equal scores: the mean of the visible values
# keys, values = torch.zeros(1, 3, 2), torch.tensor([[[1.0, 2.0], [3.0, 4.0], [90.0, 90.0]]])
# attend(q, keys, values, torch.tensor([[True, True, False]])).tolist()  # → [[[2.0, 3.0]]]
# model = Transformer(AgingModel().config).double()
# cache = Contiguous(model, sequences=2, capacity=8)
# a, b = cache.start(), cache.start()
# extend(model, cache, {a: [3, 1, 4, 1]}).shape  # → torch.Size([1, 19])
# logits = extend(model, cache, {a: [5], b: [2, 7]}, every_token=True)
# logits.shape, cache.length(a), cache.length(b)  # → (torch.Size([3, 19]), 5, 2)
# whole = model(torch.tensor([[3, 1, 4, 1, 5]]))[0, -1]
# torch.allclose(logits[0], whole)  # → True
# ```
#
# **Requirements**
#
# - `extend` makes exactly one pass, over the Q tokens of all sequences, without padding. Its rows follow the order of
#   `new`.
# - Sequences advance **after** the pass: if it fails, wherever that is, all lengths stay as they were.
# - No gradients: use `torch.no_grad()`. Leave the model, `new` and torch's settings as they were.
# - `attend` returns the dtype of its inputs, without overflow for large scores.
#
# **Size:** about 2 and 18 lines.
#
# <details><summary>Details</summary>
#
# - Each query sees at least one key, and all numbers are finite.
# - The model computes logits of fewer tokens if you pass `rows`; you may also select rows afterwards.
#
# </details>


# %% nbgrader={"solution": true, "grade_id": "task-3-ragged"}
#| export
def attend_sequence(
    model: Transformer,
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    query_positions: torch.Tensor,
    key_positions: torch.Tensor,
) -> torch.Tensor:
    """Attention of one sequence: q (N, T, H) over keys, values (K, S, H)."""
    mask = causal_mask(query_positions, key_positions)
    if model.window is not None:
        mask = sliding_window_mask(query_positions, key_positions, model.window)
    attention = attend if len(q) == len(keys) else attend_grouped
    return attention(q, keys, values, mask)


def attend(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """Attention of q (N, T, H) over keys, values (N, S, H). About 2 lines."""
    ### BEGIN SOLUTION
    scores = q @ keys.mT / math.sqrt(q.shape[-1])  # (N, T, S)
    return scores.masked_fill(~mask, -math.inf).softmax(-1) @ values
    ### END SOLUTION


def extend(
    model: Transformer,
    cache: Cache,
    new: Mapping[int, Sequence[int]],
    *,
    every_token: bool = False,
) -> torch.Tensor:
    """Compute new tokens in one pass; return logits. About 18 lines."""
    ### BEGIN SOLUTION
    tokens, positions, last = pack(cache, new)
    counts = [len(part) for part in new.values()]

    def attend_step(
        layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        outputs = []
        parts = [x[0].split(counts, dim=1) for x in (q, k, v)]
        queries = positions[0].split(counts)
        for seq, at, q_part, k_part, v_part in zip(new, queries, *parts, strict=True):
            keys, values, key_positions = cache.update(layer, seq, k_part, v_part)
            outputs.append(
                attend_sequence(model, q_part, keys, values, at, key_positions)
            )
        return torch.cat(outputs, dim=1)[None]

    rows = None if every_token else last
    with torch.no_grad():
        logits = model(tokens, positions=positions, attend=attend_step, rows=rows)
    for seq, count in zip(new, counts, strict=True):
        cache.advance(seq, count)
    return logits.flatten(0, -2)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "attend"}
check("attend")

# %% nbgrader={"grade": true, "grade_id": "extend"}
check("extend")

# %% [markdown]
# ## Task 4 · Chunked prefill and greedy decoding
#
# *About 30 minutes.*
#
# **Goal.** **Prefill** runs the prompt through the model; **decode** then generates one token per pass. A long prompt
# in a single pass would keep all other sequences waiting, so servers prefill it in **chunks**.
#
# **Interface**
#
# | | returns | does |
# |---|---|---|
# | `prefill(model, cache, sequence, prompt, chunk)` | logits (V,) | computes what is not cached of a prompt |
# | `greedy_decode(model, cache, prompt, max_tokens, chunk=512)` | list | generates `max_tokens` tokens |
#
# **Example** (10 tokens in chunks of 4: two full ones, and 2 tokens)
#
# ```python
# model = AgingModel()
# cache = Contiguous(model, sequences=2, capacity=40)
# sequence, prompt = cache.start(), [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]
# logits = prefill(model, cache, sequence, prompt, chunk=4)
# logits.shape, cache.length(sequence)  # → (torch.Size([19]), 10)
# output = greedy_decode(model, cache, prompt, max_tokens=6)
# len(output), cache.sequences == [sequence]  # → (6, True)
# ```
#
# **Requirements**
#
# - The prompt has at least one token, and `max_tokens` is at least 1.
# - `prefill` starts after the `cache.length(sequence)` tokens of the prompt that are cached. Its passes have `chunk`
#   tokens; the last one may be shorter. The logits are those after the last prompt token.
# - If **all** of the prompt is cached, no query is left, and so no logits. Remove the last token from the cache, and
#   compute it again.
# - `greedy_decode` passes the prompt to `start`, takes the most likely token each time, and drops its sequence at the
#   end. All other sequences stay as they are.
# - The last token is not fed back: the logits after it are not needed.
# - All passes go through `extend`, and those of the prompt through `prefill`, which the check replaces to log them.
#
# **Size:** about 4 and 7 lines.


# %% nbgrader={"solution": true, "grade_id": "task-4-generate"}
#| export
def prefill(
    model: Transformer, cache: Cache, sequence: int, prompt: Sequence[int], chunk: int
) -> torch.Tensor:
    """Compute what is not cached of a prompt: logits after it. About 4 lines."""
    ### BEGIN SOLUTION
    cache.truncate(sequence, min(cache.length(sequence), len(prompt) - 1))
    for start in range(cache.length(sequence), len(prompt), chunk):
        logits = extend(model, cache, {sequence: prompt[start : start + chunk]})
    return logits[0]
    ### END SOLUTION


def greedy_decode(
    model: Transformer,
    cache: Cache,
    prompt: Sequence[int],
    max_tokens: int,
    chunk: int = 512,
) -> list[int]:
    """Generate `max_tokens` tokens, the most likely one each time. About 7 lines."""
    ### BEGIN SOLUTION
    sequence = cache.start(prompt)
    logits = prefill(model, cache, sequence, prompt, chunk)
    output = [int(logits.argmax())]
    while len(output) < max_tokens:
        logits = extend(model, cache, {sequence: output[-1:]})[0]
        output.append(int(logits.argmax()))
    cache.drop(sequence)
    return output
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "prefill"}
check("prefill")

# %% nbgrader={"grade": true, "grade_id": "generate"}
check("generate")

# %% [markdown]
# **Predict, then measure.** How many passes does `greedy_decode` make for a prompt of 50 tokens in chunks of 16, and
# 10 output tokens? Write your number into the next cell before you run the one after it.

# %%
guess = None  # passes of the model


# %%
class CountingModel(AgingModel):
    """Counts its passes."""

    num_passes = 0

    def forward(self, tokens, **kwargs):
        """Logits, as always."""
        self.num_passes += 1
        return super().forward(tokens, **kwargs)


counting = CountingModel()
cache = Contiguous(counting, sequences=1, capacity=64)
_ = greedy_decode(counting, cache, [7] * 50, max_tokens=10, chunk=16)
check.predict(guess, counting.num_passes, "passes", within=0)

# %% [markdown]
# The pass over the last chunk already gives the logits for the first output token. Every further token takes a pass.
#
# **See it.** Milliseconds per token with and without your cache. Are the tokens the same?

# %%
import time

import plotly.graph_objects as go

from mlsys_lab.configs import preset
from mlsys_lab.widgets import show

torch.manual_seed(0)
sizes = {"n_layers": 4, "d_model": 256, "n_heads": 8, "d_ff": 704, "vocab_size": 512}
small = Transformer(TransformerConfig("a small LLaMA", context=512, **sizes))
prompt = torch.randint(0, 512, (8,)).tolist()


def decode_and_time(is_cached, count=240):
    """Tokens after the prompt, and the seconds that each one took."""
    cache = Contiguous(small, sequences=1, capacity=512)
    sequence, tokens, times_s = cache.start(), list(prompt), []
    with torch.no_grad():
        for _ in range(count):
            start = time.perf_counter()
            if is_cached:
                new = tokens[cache.length(sequence) :]
                logits = extend(small, cache, {sequence: new})[0]
            else:
                logits = small(torch.tensor([tokens]))[0, -1]
            tokens.append(int(logits.argmax()))
            times_s.append(time.perf_counter() - start)
    return tokens, times_s


figure, outputs, totals_s = go.Figure(), [], []
for is_cached in (False, True):
    tokens, times_s = decode_and_time(is_cached)
    outputs.append(tokens)
    totals_s.append(sum(times_s))
    smooth = [sorted(times_s[i : i + 9])[4] * 1e3 for i in range(len(times_s) - 9)]
    name = "with the cache" if is_cached else "without a cache"
    figure.add_scatter(y=smooth, mode="lines", name=name)
figure.update_layout(xaxis_title="output token", yaxis_title="ms (median of nine)")
show(figure, alt="Time per output token: rising without a cache, flat with it")
print("same tokens" if outputs[0] == outputs[1] else "DIFFERENT tokens", end=", ")
print(f"{totals_s[0] / totals_s[1]:.1f} times as fast")

# %% [markdown]
# Without a cache, the time per token grows with the sequence. With it, the curve is nearly flat: in a model this size,
# attention over a few hundred keys is cheap next to the matrices.
#
# ## Task 5 · Grouped-query attention
#
# *About 15 minutes.*
#
# **Goal.** The KV cache limits how many sequences fit into memory, and every decode step reads it. In **grouped-query
# attention** G = N/K query heads share one KV head, so that the cache is G times smaller; with K = 1 this is
# multi-query attention.
#
# **Interface.** `attend_grouped(q, keys, values, mask)`: as `attend`, but keys and values are (K, S, H). Query head n
# uses KV head ⌊n / G⌋.
#
# **Example** (4 query heads, 2 KV heads, one cached token: each query gets the value of its KV head)
#
# ```python
# q, keys = torch.zeros(4, 1, 2), torch.zeros(2, 1, 2)
# values = torch.tensor([[[1.0, 1.0]], [[5.0, 5.0]]])
# output = attend_grouped(q, keys, values, torch.tensor([[True]]))
# output[:, 0, 0].tolist()  # → [1.0, 1.0, 5.0, 5.0]
# ```
#
# **Requirements**
#
# - Do not repeat the keys G times: that would undo the saving. Let the T queries of the G heads of a group be G·T
#   queries of a *single* head, and use `attend`. Which row of the mask does each of them need?
#
# **Size:** about 4 lines.


# %% nbgrader={"solution": true, "grade_id": "task-5-grouped"}
#| export
def attend_grouped(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """Attention of q (N, T, H) over keys, values (K, S, H). About 4 lines."""
    ### BEGIN SOLUTION
    groups = q.unflatten(0, (len(keys), -1))  # (K, G, T, H)
    rows = mask.repeat(groups.shape[1], 1)  # (G·T, S)
    output = attend(groups.flatten(1, 2), keys, values, rows)  # (K, G·T, H)
    return output.reshape(q.shape)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "attend_grouped"}
check("attend_grouped")

# %% [markdown]
# **See it.** KV cache of a sequence of 8,192 tokens in bf16, as published, and if each query head had its own KV head.

# %%
for name in ("llama2-7b", "llama2-70b", "llama3-8b", "llama3-70b"):
    c = preset(name)
    per_head = 4 * c.n_layers * c.head_dim * 8192 / 1e9
    shared, own = per_head * c.n_kv_heads, per_head * c.n_heads
    print(f"{name:10} {shared:5.1f} GB per sequence, {own:5.1f} GB with K = N")

# %% [markdown]
# ## Task 6 · Sliding windows
#
# *About 35 minutes.*
#
# **Goal.** In some models a token sees only itself and the `window` - 1 tokens before it (Mistral 7B). Nothing further
# back is ever read again, so the cache can be a **ring buffer**: token p goes to slot p modulo the number of slots,
# and replaces the oldest one.
#
# **Interface**
#
# | | returns |
# |---|---|
# | `sliding_window_mask(query_positions, key_positions, window)` | boolean mask (T, S), as `causal_mask` |
# | `SlidingWindow(model, *, sequences, chunk)` | – |
# | `update(layer, sequence, k, v)` | keys, values and positions that some token of this pass sees |
#
# The cache is for models with a `model.window`, and for passes of up to `chunk` tokens per sequence.
#
# **Example** (window 4, chunks of 3)
#
# ```python
# mask = sliding_window_mask(torch.tensor([5]), torch.tensor([1, 2, 3, 4, 5, 6]), window=4)
# mask.tolist()  # → [[False, True, True, True, True, False]]
# cache = SlidingWindow(AgingModel(window=4, n_layers=1), sequences=1, chunk=3)
# a, k = cache.start(), torch.zeros(4, 3, 6, dtype=torch.float64)
# _ = [(cache.update(0, a, k, k), cache.advance(a, 3)) for _ in range(3)]  # tokens 0 to 8
# keys, values, positions = cache.update(0, a, k, k)
# sorted(positions.tolist())  # → [6, 7, 8, 9, 10, 11]
# ```
#
# (The last pass brings tokens 9, 10 and 11. Token 9 sees 6, 7, 8 and itself.)
#
# **Requirements**
#
# - How many slots does a ring need? A pass first stores all of its T tokens; afterwards its *first* token still has to
#   see `window` - 1 tokens further back.
# - `update` returns the keys, values and positions of the last `window` - 1 cached tokens (all, if there are fewer) and
#   of the new ones, in any order.
# - Between two passes that succeed, up to as many tokens as the first one brought may be truncated. After a pass that
#   failed none may, until a pass has succeeded.
# - A long sequence takes no more memory than a short one. Everything else is as in Task 1.
#
# **Size:** about 2, 6 and 8 lines.


# %% nbgrader={"solution": true, "grade_id": "task-6-window"}
#| export
def sliding_window_mask(
    query_positions: torch.Tensor, key_positions: torch.Tensor, window: int
) -> torch.Tensor:
    """Which keys (S,) each query (T,) sees: boolean (T, S). About 2 lines."""
    ### BEGIN SOLUTION
    distance = query_positions[:, None] - key_positions[None, :]
    return (distance >= 0) & (distance < window)
    ### END SOLUTION


class SlidingWindow(Cache):
    """Keys and values in a ring for each sequence and layer of a windowed model."""

    def __init__(self, model: Transformer, *, sequences: int, chunk: int) -> None:
        """Allocate rings for passes of up to `chunk` tokens. About 6 lines."""
        ### BEGIN SOLUTION
        super().__init__(sequences)
        c, dtype = model.config, model.embedding.weight.dtype
        self.window, self.num_slots = model.window, model.window - 1 + chunk
        shape = (c.n_layers, sequences, c.n_kv_heads, self.num_slots, c.head_dim)
        self.keys = torch.zeros(shape, dtype=dtype)
        self.values = torch.zeros(shape, dtype=dtype)
        ### END SOLUTION

    def update(
        self, layer: int, sequence: int, k: torch.Tensor, v: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Store k, v (K, T, H); return what the new tokens see. About 8 lines."""
        ### BEGIN SOLUTION
        row, length = self.row(sequence), self.length(sequence)
        end = length + k.shape[1]
        keys, values = self.keys[layer, row], self.values[layer, row]  # (K, slots, H)
        new = torch.arange(length, end) % self.num_slots
        keys[:, new], values[:, new] = k, v
        positions = torch.arange(max(0, length - self.window + 1), end)
        slots = positions % self.num_slots
        return keys[:, slots], values[:, slots], positions
        ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "in_window"}
check("in_window")

# %% nbgrader={"grade": true, "grade_id": "ring"}
check("ring")

# %% [markdown]
# Now all parts work together: your `extend`, on models with a window, with grouped heads or with both, on either cache.
# The other checks supply each function with correct versions of what it builds on, so that a mistake costs points only
# once. This one does not: it fails as long as anything of Tasks 1 to 6 is wrong.

# %% nbgrader={"grade": true, "grade_id": "windowed"}
check("windowed")

# %% [markdown]
# ## Task 7 · Predict a step, then measure it
#
# *About 30 minutes.*
#
# **Goal.** What is the shortest time that a step can take? Count its FLOPs and its bytes and divide each by the
# machine's rate: the larger time is a lower bound. It tells how many sequences to batch, and how large a chunk may be.
#
# A step is a list of **parts** (new tokens, cached tokens), one per sequence: `[(1, 100), (1, 40)]` decodes two
# sequences, `[(256, 512)]` prefills a chunk. What a step costs, for a model with gated MLP (three matrices of
# `d_model × d_ff`), attention matrices for queries and output (`d_model` × N·H each) and for keys and values
# (`d_model` × K·H each), no biases, and norms of `d_model` weights, two per block and one at the end:
#
# | cost | how much | how often |
# |---|---|---|
# | FLOPs of the blocks' matrices | 2 per weight | each new token |
# | FLOPs of the LM head (`vocab_size × d_model`) | 2 per weight | each **part**: its last token only |
# | FLOPs of attention | *you derive it* | each pair of a new token and a token that it sees, in each layer |
# | bytes of weights | all matrices, norms and the head; no embedding table unless it is the head | once per step |
# | KV cache read | *you derive it* | each token cached before the step that a new one of its part sees, in each layer |
# | KV cache written | the same | each new token, in each layer |
#
# **Derive** the two missing rows on paper: one score $q \cdot k$ of a head and its contribution to the mean of the
# values take how many multiply-adds (2 FLOPs each; the softmax is not counted)? And what does a layer store per token?
# Which number of heads belongs where? If `config.tied`, the embedding table is the head.
#
# **Interface**
#
# | | returns |
# |---|---|
# | `step_cost(config, parts, *, weight_bytes=2, cache_bytes=2, window=None)` | `StepCost` |
# | `least_time(work, on)` | `TimeBound` of a `StepCost` on a `Machine` |
#
# `weight_bytes` and `cache_bytes` are bytes per number. `time_s` is the time of the slower of the two, arithmetic or
# memory, which overlap; `binds` is `"compute"` or `"memory"`.
#
# **Example** (one layer, hidden size 2, 2 query heads and 1 KV head of size 2, MLP of 4, vocabulary of 5)
#
# ```python
# sizes = {"n_layers": 1, "d_model": 2, "n_heads": 2, "n_kv_heads": 1, "head_dim": 2, "d_ff": 4}
# tiny = TransformerConfig("tiny", vocab_size=5, context=64, **sizes)
# step_cost(tiny, [(1, 9)]).flops  # → 276
# step_cost(tiny, [(1, 9)]).weight_bytes  # → 128
# step_cost(tiny, [(2, 9)]).cache_written_bytes  # → 16
# time = least_time(step_cost(tiny, [(1, 9)]), Machine(peak_flops_per_s=100, memory_bytes_per_s=100))
# time.time_s, time.binds  # → (2.76, 'compute')
# ```
#
# (By hand: the matrices have 24 weights for attention and 24 in the MLP, the head 10. 2 × 48 + 2 × 10 = 116 FLOPs.
# The remaining 160 belong to 10 visible tokens, the new one among them.)
#
# **Requirements**
#
# - FLOPs and bytes are integers, exact for models of any size. With a `window`, a token sees itself and `window` - 1
#   before it.
# - If both take equally long, either may bind.
#
# **Size:** about 12 and 4 lines.


# %%
#| export
@dataclass(frozen=True)
class StepCost:
    """FLOPs of a step, and bytes of weights and KV cache that it moves."""

    flops: int
    weight_bytes: int
    cache_read_bytes: int
    cache_written_bytes: int

    @property
    def memory_bytes(self) -> int:
        """All bytes that move to or from memory."""
        return self.weight_bytes + self.cache_read_bytes + self.cache_written_bytes


@dataclass(frozen=True)
class Machine:
    """Peak rates of a machine: FLOP/s, and bytes per second from memory."""

    peak_flops_per_s: float
    memory_bytes_per_s: float


class TimeBound(NamedTuple):
    """Seconds that a step takes at least, and what binds: "compute" or "memory"."""

    time_s: float
    binds: str


# %% nbgrader={"solution": true, "grade_id": "task-7-predict"}
#| export
def step_cost(
    config: TransformerConfig,
    parts: Sequence[tuple[int, int]],
    *,
    weight_bytes: int = 2,
    cache_bytes: int = 2,
    window: int | None = None,
) -> StepCost:
    """Cost of a step over parts (new, cached). About 12 lines."""
    ### BEGIN SOLUTION
    c, head = config, config.vocab_size * config.d_model
    projections = 2 * c.d_model * (c.n_heads + c.n_kv_heads) * c.head_dim
    matrices = c.n_layers * (projections + 3 * c.d_model * c.d_ff)
    weights = matrices + head + (2 * c.n_layers + 1) * c.d_model
    span = window or math.inf
    pairs = sum(min(cached + i, span) for n, cached in parts for i in range(1, n + 1))
    read = sum(min(cached, span - 1) for _, cached in parts)
    num_new = sum(n for n, _ in parts)
    flops = 2 * matrices * num_new + 2 * head * len(parts)
    flops += 4 * c.n_layers * c.n_heads * c.head_dim * pairs
    per_token = 2 * c.n_layers * c.n_kv_heads * c.head_dim * cache_bytes
    return StepCost(
        flops, weights * weight_bytes, read * per_token, num_new * per_token
    )
    ### END SOLUTION


def least_time(work: StepCost, on: Machine) -> TimeBound:
    """Least seconds of a step on a machine, and what binds. About 4 lines."""
    ### BEGIN SOLUTION
    compute_s = work.flops / on.peak_flops_per_s
    memory_s = work.memory_bytes / on.memory_bytes_per_s
    binds = "compute" if compute_s > memory_s else "memory"
    return TimeBound(max(compute_s, memory_s), binds)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "step_work"}
check("step_work")

# %% nbgrader={"grade": true, "grade_id": "predict_step"}
check("predict_step")

# %% [markdown]
# **Predict, then measure.** Llama 3 8B in bf16 on an H100 (989 TFLOP/s, 3.35 TB/s), 200 cached tokens per sequence: how
# many sequences must decode together before arithmetic takes longer than memory traffic? If reading the KV cache and
# attention took no time, it would be 989/3.35 = 295, the ridge point.

# %%
guess = None  # sequences

# %%
H100, LLAMA = Machine(989e12, 3.35e12), preset("llama3-8b")
first, batches = {}, sorted({int(1.05**i) for i in range(171)})  # 1 to 4,000
for cached in (200, 2000, 8000):
    bounds = [least_time(step_cost(LLAMA, [(1, cached)] * n), H100) for n in (1, 256)]
    alone_ms, many_ms = (1e3 * bound.time_s for bound in bounds)
    costs = ((n, step_cost(LLAMA, [(1, cached)] * n)) for n in batches)
    bound_by = (n for n, cost in costs if least_time(cost, H100).binds == "compute")
    first[cached] = next(bound_by, None)
    print(
        f"{cached:5} tokens: {alone_ms:.1f} ms alone, {many_ms:.1f} ms for 256;",
        end=" ",
    )
    found = f"compute binds from {first[cached]} sequences on"
    print(found if first[cached] else "memory binds, however many decode")
check.predict(guess, first[200] or 0, "sequences")

# %% [markdown]
# All sequences share the weights, but each brings its own keys and values, and these have a far lower intensity. With
# long sequences, reading them always takes longer than all arithmetic: no batch makes the step compute-bound.
#
# **Measure.** First this machine's peak rates: a product of large matrices, and a matrix times a vector, which reads
# each weight once. Then five steps of your `extend`, on a model of about 190 MB, more than most processor caches hold.

# %%
from mlsys_lab.benchmark import compare

sizes = {"n_layers": 4, "d_model": 1024, "n_heads": 16, "n_kv_heads": 4, "d_ff": 2816}
WIDE = TransformerConfig("a wide LLaMA", vocab_size=1024, context=1024, **sizes)
wide = Transformer(WIDE)
square, tall, vector = (torch.randn(*s) for s in ((1024, 1024), (4096, 4096), (4096,)))
steps = {
    "decode 1": [(1, 300)],
    "decode 4": [(1, 300)] * 4,
    "decode 16": [(1, 300)] * 16,
    "chunk of 64": [(64, 300)],
    "chunk of 256": [(256, 300)],
}


def prepare(parts):
    """A call that runs a step on sequences of these lengths, and truncates them."""
    cache = Contiguous(wide, sequences=len(parts), capacity=600)
    new = {cache.start(): [1] * count for count, _ in parts}
    for sequence, (_, cached) in zip(new, parts, strict=True):
        cache.advance(sequence, cached)  # zeros are as slow as other numbers

    def step():
        extend(wide, cache, new)
        for sequence, (_, cached) in zip(new, parts, strict=True):
            cache.truncate(sequence, cached)

    return step


calls = {"product": lambda: square @ square, "read": lambda: tall @ vector}
calls |= {name: prepare(parts) for name, parts in steps.items()}
timings = compare(calls, samples=7, warmup=1).timings
flops_per_s = 2 * 1024**3 / timings["product"].p50_s
here = Machine(flops_per_s, 4 * 4096**2 / timings["read"].p50_s)
print(
    f"here: {flops_per_s / 1e9:.0f} GFLOP/s, {here.memory_bytes_per_s / 1e9:.1f} GB/s"
)
times_ms = {"bound": [], "measured": []}
for name, parts in steps.items():
    cost = step_cost(WIDE, parts, weight_bytes=4, cache_bytes=4)
    bound, measured_s = least_time(cost, here), timings[name].p50_s
    times_ms["bound"].append(1e3 * bound.time_s)
    times_ms["measured"].append(1e3 * measured_s)
    print(f"{name:12} bound {1e3 * bound.time_s:6.1f} ms ({bound.binds}),", end=" ")
    print(f"measured {1e3 * measured_s:6.1f} ms: {bound.time_s / measured_s:.0%}")
bars = [go.Bar(name=name, x=list(steps), y=times) for name, times in times_ms.items()]
figure = go.Figure(bars)
figure.update_layout(yaxis_title="ms per step", margin_t=30)
show(figure, alt="Milliseconds of five kinds of steps: the bound, and measured")

# %% [markdown]
# The bound is a floor. Single tokens come close to it on a quiet machine, because they do little but read. What lies
# between is what the bound leaves out: a Python loop over sequences, attention in several passes over its scores,
# products of shapes that reach less than the peak. Which of the five steps is furthest off, and why?
#
# ## Task 8 · Speculative decoding
#
# *About 30 minutes.*
#
# **Goal.** A pass over five tokens takes hardly longer than a pass over one. So let a cheap **drafter** propose k
# tokens, and verify all of them in one pass, such that the output is distributed *exactly* as if the model had
# generated it alone (Leviathan et al. 2023, algorithm 1).
#
# Draft token $x_i$ was drawn from the drafter's distribution $q_i$; the model's own is $p_i$. The rule:
#
# 1. Accept $x_i$ if $u_i \, q_i(x_i) < p_i(x_i)$, where $u_i$ is a uniform random number in [0, 1).
# 2. At the first rejection, stop. Replace the draft token by one drawn from the **residual** $\max(0, p_i - q_i)$, and
#    drop the drafts after it. If the residual is zero everywhere (by rounding), draw from $p_i$.
# 3. If all k are accepted, draw a **bonus token** from $p_{k+1}$, which the same pass has computed.
#
# Why this gives $p$: derive it for one draft. With what probability is token $x$ proposed and accepted, and what must a
# rejection add, so that the sum is $p(x)$?
#
# **Interface**
#
# | | returns |
# |---|---|
# | `accept(drafts, proposed, wanted, uniforms)` | number of accepted drafts, and the token after them (two ints) |
# | `speculative_step(model, cache, sequence, token_ids, drafts, proposed, uniforms)` | list of 1 to k + 1 new tokens |
#
# `drafts` are (k,), `proposed` has the rows $q_i$ (k, V), `wanted` the rows $p_i$ (k + 1, V), `uniforms` are (k + 1,).
# The last one is for the token that is drawn.
#
# **To draw** from weights $w$ with a number $u$: the first token at which the running sum of $w$ *exceeds* $u$ times
# the total. (So weights need not sum to 1, and a token of weight 0 is never drawn.)
#
# **Example** (the case of chapter 12: token 0 is proposed twice as often as the model wants it)
#
# ```python
# p, q = torch.tensor([[0.3, 0.5, 0.2]] * 2), torch.tensor([[0.6, 0.3, 0.1]])
# accept(torch.tensor([0]), q, p, torch.tensor([0.4, 0.9]))  # → (1, 2)
# accept(torch.tensor([0]), q, p, torch.tensor([0.7, 0.9]))  # → (0, 2)
# accept(torch.tensor([0]), q, p, torch.tensor([0.7, 0.1]))  # → (0, 1)
# accept(torch.tensor([1]), q, p, torch.tensor([0.99, 0.1]))  # → (1, 0)
# ```
#
# (In the third line the residual is [0, 0.2, 0.1], its total 0.3: the running sum exceeds 0.1 × 0.3 at token 1.)
#
# **Requirements**
#
# - `speculative_step` finds all of `token_ids` in the cache except the last token. It computes that token and the
#   drafts in **one pass**; $p$ is the softmax of the logits.
# - Afterwards the cache holds `token_ids` and the accepted drafts, but not the last token of the result. What must be
#   truncated?
# - It calls `extend` and `accept`. Other sequences and `token_ids` stay as they are. k may be 0.
#
# **Size:** about 10 and 5 lines.


# %% nbgrader={"solution": true, "grade_id": "task-8-drafts"}
#| export
def accept(
    drafts: torch.Tensor,
    proposed: torch.Tensor,
    wanted: torch.Tensor,
    uniforms: torch.Tensor,
) -> tuple[int, int]:
    """Number of accepted drafts (k,), and the token after them. About 10 lines."""
    ### BEGIN SOLUTION
    num_accepted, weights = len(drafts), wanted[-1]
    for i, token in enumerate(drafts.tolist()):
        if uniforms[i] * proposed[i, token] >= wanted[i, token]:
            num_accepted, weights = i, (wanted[i] - proposed[i]).clamp(min=0)
            break
    if not weights.any():
        weights = wanted[num_accepted]
    sums = weights.cumsum(0)
    drawn = torch.searchsorted(sums, uniforms[-1] * sums[-1], right=True)
    return num_accepted, int(drawn)
    ### END SOLUTION


def speculative_step(
    model: Transformer,
    cache: Cache,
    sequence: int,
    token_ids: Sequence[int],
    drafts: torch.Tensor,
    proposed: torch.Tensor,
    uniforms: torch.Tensor,
) -> list[int]:
    """Verify drafts (k,) in one pass: the tokens gained. About 5 lines."""
    ### BEGIN SOLUTION
    new = [token_ids[-1], *drafts.tolist()]
    logits = extend(model, cache, {sequence: new}, every_token=True)
    num_accepted, token = accept(drafts, proposed, logits.softmax(-1), uniforms)
    cache.truncate(sequence, len(token_ids) + num_accepted)
    return [*new[1 : num_accepted + 1], token]
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "accept"}
check("accept")

# %% nbgrader={"grade": true, "grade_id": "verify"}
check("verify")

# %% [markdown]
# **Predict, then measure.** A drafter that is often wrong, with its distribution `q` next to the model's `p`, proposes
# three tokens per step. How many tokens does a step gain on average? A draft that is reached, because all before it
# were accepted, is accepted with probability $\alpha = \sum_x \min(p(x), q(x))$, which the next cell prints.

# %%
torch.manual_seed(2)
p, q = (torch.randn(8, dtype=torch.float64).softmax(0) for _ in "pq")
alpha = float(torch.minimum(p, q).sum())
print(f"acceptance rate {alpha:.0%}")
guess = None  # tokens per step

# %%
NUM_DRAFTS, NUM_STEPS = 3, 4000
first, num_tokens = torch.zeros(8), 0
for _ in range(NUM_STEPS):
    drafts = torch.multinomial(q, NUM_DRAFTS, replacement=True)
    proposed, wanted = q.repeat(NUM_DRAFTS, 1), p.repeat(NUM_DRAFTS + 1, 1)
    uniforms = torch.rand(NUM_DRAFTS + 1, dtype=torch.float64)
    num_accepted, token = accept(drafts, proposed, wanted, uniforms)
    first[int(drafts[0]) if num_accepted else token] += 1
    num_tokens += num_accepted + 1
by_formula = (1 - alpha ** (NUM_DRAFTS + 1)) / (1 - alpha)
print(f"(1 - alpha^4) / (1 - alpha) = {by_formula:.2f}")
check.predict(guess, num_tokens / NUM_STEPS, "tokens per step", within=0.05)
counts = {"the model's p": p, "your output": first / NUM_STEPS, "the drafter's q": q}
bars = [go.Bar(name=name, y=values.tolist()) for name, values in counts.items()]
figure = go.Figure(bars)
figure.update_layout(xaxis_title="token", yaxis_title="probability", margin_t=30)
show(figure, alt="Eight tokens: your output follows the model, not the drafter")

# %% [markdown]
# The i-th draft survives with probability $\alpha^i$, because it and all before it must be accepted; with the token
# that the model adds itself, the sum is $1 + \alpha + \alpha^2 + \alpha^3$. The output follows `p`, however wrong `q`
# is: a bad drafter costs time, never correctness.
#
# ## Stretch: no points
#
# - **A drafter for free.** Prompt lookup: propose the tokens that followed the last occurrence of the current bigram.
#   Put `speculative_step` around it, with one-hot rows for `proposed`, and count tokens per step on a text that repeats
#   itself. vLLM calls it n-gram speculation.
# - **Quantize the cache.** Store keys and values as int8 with a scale per token and head. How far do the logits of
#   Task 4's small model move, and how many more sequences fit?
# - **One call for the batch.** Replace the loop over sequences in `extend` by `torch.nn.attention.flex_attention` with
#   a mask of sequence numbers and positions, and time the steps of Task 7 again.
#
# ## What you can read now
#
# - Hugging Face transformers, `src/transformers/cache_utils.py`: `DynamicCache`, which concatenates, and `StaticCache`,
#   which is your `Contiguous`.
# - vLLM, `vllm/v1/worker/gpu_model_runner.py`: `_prepare_inputs` is your `pack`; `query_start_loc` and
#   `logits_indices` are your `last`.
# - vLLM, `vllm/v1/sample/rejection_sampler.py`: `rejection_sample`, your `accept` for a whole batch on the GPU.
# - PyTorch, `torch.nn.attention.flex_attention`: masks as functions of positions, as in Tasks 2 and 6.
# - The course's own `mlsys_lab/inference/cache/contiguous.py` and `mlsys_lab/inference/speculative/acceptance.py`.
#
# ## Test yourself
#
# <details><summary>A user edits a message in the middle of a chat. Which part of the cache is still right?</summary>
#
# Everything before the edit. Keys and values after it depend, from the second layer on, on the changed tokens, and
# their positions may have shifted. Truncate at the edit and prefill the rest.
#
# </details>
#
# <details><summary>Are a sequence's logits the same bits if it is alone in the batch? Is its text the same?</summary>
#
# Not always the same bits: matrix products of other shapes add in another order. Greedy text is the same unless two
# tokens are so close that this rounding decides, which happens in long outputs.
#
# </details>
#
# <details><summary>The cache holds keys that are already rotated. What would it take to shift a sequence by one
# position?</summary>
#
# Rotate each key by one position more; values carry no positions. Scores depend on distances only, so shifting keys
# and queries together changes nothing. If keys were stored unrotated, nothing would change in the cache, but each step
# would rotate all of them.
#
# </details>
#
# <details><summary>A window of 4,096 tokens in each of 32 layers: how far back can the last token be influenced from?
# Why is the ring sufficient all the same?</summary>
#
# In each layer 4,095 tokens further, 131,040 in all. What a token far back contributed is already part of the keys and
# values inside the window; the token itself is not read again.
#
# </details>
#
# <details><summary>When does drafting not pay?</summary>
#
# If the acceptance rate is low compared with the drafter's cost, or if the batch is large: with 64 sequences and four
# drafts each, a step computes 320 tokens, more than the 295 that an H100 can compute while it reads the weights, so
# each rejected draft costs real time.
#
# </details>
#
# When all checks pass, save the notebook and run `mlsys-lab check kv-cache` in a terminal.
