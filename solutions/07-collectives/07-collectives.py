# %% [markdown]
# # Lab 07 · Collectives from send and receive
#
# Eight GPUs train one model. After the backward pass each GPU holds gradients of its own, 16 GB of them for a model of
# 8 billion weights in bf16, and all eight need the sum: an **all-reduce**. If every GPU sends its gradients to GPU 0,
# which adds them and sends the sum back, that takes 498 ms at 450 GB/s per GPU. A ring of the same GPUs takes 62 ms.
# Here you build the ring, and what surrounds it, from nothing but messages between two **ranks**: the processes of a
# parallel program, here one for each GPU.
#
# ```text
#  send  recv  isend  irecv                       what a rank can do
#        │
#  exchange   send_recv                           Task 1   two ranks, no deadlock
#        │
#  broadcast   reduce                             Task 2   trees: few steps, whole arrays
#  split_chunks   reduce_scatter   all_gather     Task 3   rings: many steps, small chunks
#        │
#  all_reduce = reduce_scatter, then all_gather   Task 4   no algorithm sends less
#  halving_doubling   hierarchical                Tasks 5, 6   fewer steps; fewer bytes between nodes
#        │
#  predict, measure, choose                       Task 7   which one is fastest, and from which size on
#  average_gradients                              Task 8   data parallelism on your own engine
# ```
#
# **You will build**
#
# 1. exchanges between ranks that cannot deadlock (`25 min`);
# 2. broadcast and reduce along a binomial tree (`35 min`);
# 3. reduce-scatter and all-gather around a ring (`45 min`);
# 4. the ring all-reduce (`25 min`);
# 5. recursive halving and doubling (`35 min`);
# 6. a hierarchical all-reduce for nodes with fast links inside and slow ones between them (`25 min`);
# 7. a cost model that chooses between them, compared with the messages that your programs send (`30 min`);
# 8. data parallelism: gradients of lab 01's `Tensor`, averaged over ranks in buckets (`20 min`).
#
# **At the end you can answer**
#
# - Why can a program of two lines hang, and why only with large arrays?
# - How few bytes can the busiest GPU of an all-reduce send, and which algorithms achieve that?
# - Why is no algorithm best at every size, and where does the best one change?
# - What changes when nodes are connected by slow links, and why are gradients put into buckets?
#
# **Time:** about 240 minutes. **Points:** 100. **You need:** [lab 01](01-autograd.ipynb) for the last task; slices of
# torch tensors, and logarithms. Background: chapter 09, *Collectives*.
#
# **Readings:** *Demystifying NCCL: An In-depth Analysis of GPU Communication Protocols and Algorithms* (`hu2025nccl`),
# *The Ultra-Scale Playbook: Training LLMs on GPU Clusters* (`ultrascale-playbook`).
#
# **How it works.** Replace each line that raises `NotImplementedError`, run the cell, paste the example to see whether
# it does what the text says, then run the `check` below. Cells that start with `#| export` are what is graded. Names
# and signatures are those of the course's package, `mlsys_lab.comm`. Each function is judged with correct versions of
# the functions from earlier tasks, so a mistake costs the points of its own check only.

# %%
from mlsys_lab.checks import lab
from mlsys_lab.comm import DeadlockError, run, schedule

check = lab("collectives")

# %%
#| export
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from mlsys_lab import stack
from mlsys_lab.comm import Rank

# %% [markdown]
# ## Ranks, messages, steps
#
# A program is a function `(rank, x)` that all ranks run at the same time, each with an `x` of its own. `rank.rank` is
# this rank's number, counted from 0, and `rank.size` is the number of ranks, which formulas call $p$. There are four
# ways to communicate:
#
# | call | what it does |
# |---|---|
# | `rank.send(x, destination)` | sends a torch tensor, and waits until it has been received |
# | `rank.recv(source, like=None)` | returns the next tensor from `source`, which must have `like`'s shape and dtype |
# | `rank.isend(x, destination)` | starts to send, and returns a request at once |
# | `rank.irecv(source)` | starts to receive, and returns a request at once |
#
# `request.wait()` returns when the message is through; for a receive it returns the tensor. Every request needs its
# `wait()`, and a tensor must not change while it is being sent.
#
# `run(program, inputs)` starts one rank for each of `inputs`. It returns the results in order of rank, and a **ledger**
# of all messages:
#
# ```python
# from mlsys_lab.comm import run
# xs = [torch.tensor([1.0, 2.0]), torch.tensor([5.0])]
# program = lambda rank, x: rank.send(x, 1) if rank.rank == 0 else rank.recv(0)
# results, ledger = run(program, xs)
# results[0], results[1].tolist()  # → (None, [1.0, 2.0])
# ledger.steps, ledger.total_bytes, ledger.sent_bytes()  # → (1, 8, [8, 0])
# ```
#
# **Steps** measure latency: the number of messages on the longest chain in which each message must wait for the one
# before. A rank sends one message at a time and receives one at a time. Each task limits steps, messages and
# bytes; sending less is fine. In grading, every rank is a process, and the judge carries and counts the messages.
#
# Three rules hold in **every** task:
#
# - `x` may have any shape, including `()` and shapes without elements, such as `(0, 2)`. Your code must not change it.
# - Results have the dtype of `x`.
# - Results have memory of their own: changing a result changes neither `x` nor an earlier result.
#
# ## Task 1 · Two ranks, two messages
#
# *About 25 minutes.*
#
# Each rank needs its neighbour's array. What could be simpler than to send, and then to receive?


# %%
def send_then_receive(rank, x):
    rank.send(x, (rank.rank + 1) % rank.size)
    return rank.recv((rank.rank - 1) % rank.size)


try:
    run(send_then_receive, [torch.tensor([float(r)]) for r in range(3)])
except DeadlockError as error:
    print(error)

# %% [markdown]
# Every rank waits in its `send` for a `recv` that no rank has reached. A send that waits for its receiver is called a
# **rendezvous**, and every transport does this with large arrays, because the receiver has nowhere else to put them.
# Many transports copy small arrays into a buffer instead, so the program above passes its test and hangs in
# production.
#
# **Goal.** Write the two exchanges on which everything else in this lab is built, without a deadlock: between two
# partners, and along a ring, where no rank is the first.
#
# **Interface**
#
# | | returns | does |
# |---|---|---|
# | `exchange(rank, x, partner)` | the partner's array | two ranks call it with each other's number |
# | `send_recv(rank, x, destination, source)` | `source`'s array | sends to one rank, receives from another |
#
# **Example**
#
# ```python
# from mlsys_lab.comm import run
# xs = [torch.tensor([1, 2]), torch.tensor([7])]
# results, ledger = run(lambda rank, x: exchange(rank, x, 1 - rank.rank), xs)
# results[0].tolist(), results[1].tolist(), ledger.steps  # → ([7], [1, 2], 2)
# xs = [torch.tensor([r]) for r in range(3)]
# results, ledger = run(lambda rank, x: send_recv(rank, x, (rank.rank + 1) % 3, (rank.rank - 1) % 3), xs)
# [x.item() for x in results], ledger.steps  # → ([2, 0, 1], 1)
# ```
#
# **Requirements**
#
# - Each rank sends one message.
# - `exchange` takes at most 2 steps. `send` and `recv` are enough.
# - `send_recv` takes 1 step: sending and receiving overlap.
#
# **Size:** about 6 and 4 lines.
#
# <details><summary>Details</summary>
#
# - The two arrays have one dtype. Their shapes may differ.
# - `destination` and `source` may be any two ranks, or the same rank: rings of several sizes may run at once.
#
# </details>


# %% nbgrader={"solution": true, "grade_id": "task-1-exchange"}
#| export
def exchange(rank: Rank, x: torch.Tensor, partner: int) -> torch.Tensor:
    """Send x to rank `partner`, and return the array it sends. About 6 lines."""
    ### BEGIN SOLUTION
    if rank.rank < partner:
        rank.send(x, partner)
        return rank.recv(partner)
    received = rank.recv(partner)
    rank.send(x, partner)
    return received
    ### END SOLUTION


def send_recv(
    rank: Rank, x: torch.Tensor, destination: int, source: int
) -> torch.Tensor:
    """Send x to one rank while receiving from another. About 4 lines."""
    ### BEGIN SOLUTION
    request = rank.isend(x, destination)
    received = rank.recv(source)
    request.wait()
    return received
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "exchange"}
check("exchange")

# %% nbgrader={"grade": true, "grade_id": "send_recv"}
check("send_recv")

# %% [markdown]
# ## Task 2 · Trees
#
# *About 35 minutes.*
#
# **Goal.** In a **broadcast** one rank, the root, has an array that all ranks need. It could send the array $p - 1$
# times; but every rank that has received it can help, so in each step the number of ranks that have it can double.
# Write that binomial tree, and **reduce**, which runs the same tree backwards and adds.
#
# Number the ranks from the root: $v = (\text{rank} - \text{root}) \bmod p$. With six ranks:
#
# ```text
#  step    messages                      then these v have the array
#    0     0→1                           0 1
#    1     0→2  1→3                      0 1 2 3
#    2     0→4  1→5                      0 1 2 3 4 5
# ```
#
# For reduce, read the table from the bottom to the top and turn the arrows round. Every rank except the root first
# receives from all ranks that send to it, and then sends its sum once.
#
# **Interface**
#
# | | returns | does |
# |---|---|---|
# | `broadcast(rank, x, root=0)` | the root's array | the other ranks' `x` says shape and dtype, nothing else |
# | `reduce(rank, x, root=0)` | the sum of all `x` on the root, `None` on the other ranks | |
#
# **Example**
#
# ```python
# from mlsys_lab.comm import run
# xs = [torch.tensor([r]) for r in range(6)]
# results, ledger = run(lambda rank, x: broadcast(rank, x, root=2), xs)
# [x.item() for x in results], ledger.steps  # → ([2, 2, 2, 2, 2, 2], 3)
# results, ledger = run(reduce, xs)
# results[0].item(), results[1:]  # → (15, [None, None, None, None, None])
# ledger.steps, ledger.total_bytes  # → (3, 40)
# ```
#
# **Requirements**
#
# - All ranks together send at most $p - 1$ arrays, in at most $\lceil \log_2 p \rceil$ steps, for every $p$.
# - Any tree within these limits will do. Adding in another order changes floats only by rounding.
#
# **Size:** about 9 and 10 lines.
#
# <details><summary>Details</summary>
#
# - $p$ need not be a power of two, and may be 1.
# - In a broadcast the other ranks' `x` may hold anything, NaN included.
# - `recv(source, like=x)` refuses an array of another shape or dtype, in one clear line.
#
# </details>


# %% nbgrader={"solution": true, "grade_id": "task-2-trees"}
#| export
def broadcast(rank: Rank, x: torch.Tensor, root: int = 0) -> torch.Tensor:
    """Return the root's x on every rank, along a binomial tree. About 9 lines."""
    ### BEGIN SOLUTION
    number, distance, have = (rank.rank - root) % rank.size, 1, x
    while distance < rank.size:
        if number < distance and number + distance < rank.size:
            rank.send(have, (rank.rank + distance) % rank.size)
        if distance <= number < 2 * distance:
            have = rank.recv((rank.rank - distance) % rank.size, like=x)
        distance *= 2
    return have.clone()
    ### END SOLUTION


def reduce(rank: Rank, x: torch.Tensor, root: int = 0) -> torch.Tensor | None:
    """Return the sum of all ranks' x on the root, None elsewhere. About 10 lines."""
    ### BEGIN SOLUTION
    number, distance, total = (rank.rank - root) % rank.size, 1, x.clone()
    while distance < rank.size:
        if number & distance:
            rank.send(total, (rank.rank - distance) % rank.size)
            return None
        if number + distance < rank.size:
            total += rank.recv((rank.rank + distance) % rank.size, like=total)
        distance *= 2
    return total
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "broadcast"}
check("broadcast")

# %% nbgrader={"grade": true, "grade_id": "reduce"}
check("reduce")

# %% [markdown]
# Reduce followed by broadcast is an all-reduce already. For large arrays it is a slow one: every message carries the
# whole array, and in most steps many ranks are idle.
#
# ## Task 3 · Rings
#
# *About 45 minutes.*
#
# **Goal.** To keep every rank busy, cut the array into $p$ chunks and connect the ranks in a ring, in which each rank
# sends to its right neighbour. Write the two halves of the ring all-reduce: **reduce-scatter**, after which rank $r$
# has chunk $r$ of the sum, and **all-gather**, after which every rank has the arrays of all ranks.
#
# Follow one chunk through the reduce-scatter of three ranks. Chunk 0 must end on rank 0, which is therefore the last
# to add:
#
# ```text
#  chunk 0:   rank 1 ───────► rank 2 ───────► rank 0
#             sends its own   adds its own    adds its own: complete
# ```
#
# Chunks 1 and 2 travel in the same way, one and two ranks further round, at the same time. In every step each rank
# sends one partial sum and receives another. All-gather is simpler: in every step a rank passes on what it received in
# the step before, starting with its own array.
#
# **Interface**
#
# | | returns |
# |---|---|
# | `split_chunks(x, parts)` | list of `parts` flat pieces, lengths as equal as possible, longer ones first |
# | `reduce_scatter(rank, x)` | chunk number `rank.rank` of the sum of all `x`, flat |
# | `all_gather(rank, x)` | list of all ranks' `x`, in order of rank |
#
# **Example**
#
# ```python
# from mlsys_lab.comm import run
# [chunk.tolist() for chunk in split_chunks(torch.arange(10), 4)]  # → [[0, 1, 2], [3, 4, 5], [6, 7], [8, 9]]
# xs = [torch.arange(5) * 10**r for r in range(3)]
# results, ledger = run(reduce_scatter, xs)
# [chunk.tolist() for chunk in results]  # → [[0, 111], [222, 333], [444]]
# [size // 8 for size in ledger.sent_bytes()]  # → [3, 3, 4]
# results, ledger = run(all_gather, results)
# [part.tolist() for part in results[2]], ledger.steps  # → ([[0, 111], [222, 333], [444]], 2)
# ```
#
# **Requirements**
#
# - `reduce_scatter` and `all_gather` take $p - 1$ steps, and each rank sends $p - 1$ messages.
# - In `reduce_scatter` each rank sends every chunk except its own, and no message is longer than a chunk.
# - In `all_gather` each rank sends every array except its right neighbour's, or its left neighbour's if the ring turns
#   left. Shapes may differ from rank to rank.
# - Chunks of `split_chunks` may be views of `x`.
#
# **Size:** about 3, 6 and 5 lines.
#
# <details><summary>Details</summary>
#
# - With more parts than elements, the last chunks are empty: two elements in three parts are 1, 1 and 0.
# - "Flat" is the order of `x.reshape(-1)`, even if `x` is a transposed view.
# - A ring that turns left is as good.
#
# </details>


# %% nbgrader={"solution": true, "grade_id": "task-3-ring"}
#| export
def split_chunks(x: torch.Tensor, parts: int) -> list[torch.Tensor]:
    """Cut the flat elements of x into chunks, longer ones first. About 3 lines."""
    ### BEGIN SOLUTION
    length, longer = divmod(x.numel(), parts)
    lengths = [length + (i < longer) for i in range(parts)]
    return list(torch.split(x.reshape(-1), lengths))
    ### END SOLUTION


def reduce_scatter(rank: Rank, x: torch.Tensor) -> torch.Tensor:
    """Return this rank's chunk of the sum of all ranks' x. About 6 lines."""
    ### BEGIN SOLUTION
    p, right, left = rank.size, (rank.rank + 1) % rank.size, (rank.rank - 1) % rank.size
    chunks = split_chunks(x, p)
    partial = chunks[left]
    for step in range(2, p + 1):
        received = send_recv(rank, partial, right, left)
        partial = chunks[(rank.rank - step) % p] + received
    return partial.clone()
    ### END SOLUTION


def all_gather(rank: Rank, x: torch.Tensor) -> list[torch.Tensor]:
    """Return all ranks' x, in order of rank. About 5 lines."""
    ### BEGIN SOLUTION
    p, right, left = rank.size, (rank.rank + 1) % rank.size, (rank.rank - 1) % rank.size
    parts = {rank.rank: x.clone()}
    for step in range(p - 1):
        latest = parts[(rank.rank - step) % p]
        parts[(rank.rank - step - 1) % p] = send_recv(rank, latest, right, left)
    return [parts[i] for i in range(p)]
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "split_chunks"}
check("split_chunks")

# %% nbgrader={"grade": true, "grade_id": "reduce_scatter"}
check("reduce_scatter")

# %% nbgrader={"grade": true, "grade_id": "all_gather"}
check("all_gather")

# %% [markdown]
# ## Task 4 · All-reduce
#
# *About 25 minutes.*
#
# **Goal.** Reduce-scatter followed by all-gather is the ring all-reduce, and Patarasuk and Yuan (2009) showed that no
# algorithm sends less. Derive how many elements each rank sends, then build it and count.
#
# **Interface**
#
# | | returns |
# |---|---|
# | `ring_elements(n, p)` | list: elements that rank 0, 1, … $p - 1$ sends in an all-reduce of `n` elements |
# | `all_reduce(rank, x)` | the sum of all `x`, in the shape of `x`, on every rank |
#
# For `ring_elements`, add up what Task 3 says about each half, for a ring that turns right. Which two chunks does a
# rank *not* send?
#
# **Example**
#
# ```python
# from mlsys_lab.comm import run
# ring_elements(10, 4)  # → [14, 15, 16, 15]
# xs = [torch.arange(6).reshape(2, 3) * 10**r for r in range(4)]
# results, ledger = run(all_reduce, xs)
# results[3].tolist()  # → [[0, 1111, 2222], [3333, 4444, 5555]]
# ledger.steps, [size // 8 for size in ledger.sent_bytes()] == ring_elements(6, 4)  # → (6, True)
# ```
#
# **Requirements**
#
# - `ring_elements` gives whole numbers that are exact for every `n` and `p`, even if `p` does not divide `n`.
# - `all_reduce` takes $2(p - 1)$ steps, and each rank sends $2(p - 1)$ messages, none longer than a chunk.
#
# **Size:** about 3 lines and 1 line.


# %% nbgrader={"solution": true, "grade_id": "task-4-all-reduce"}
#| export
def ring_elements(n: int, p: int) -> list[int]:
    """Elements that each rank sends in a ring all-reduce. About 3 lines."""
    ### BEGIN SOLUTION
    lengths = [n // p + (i < n % p) for i in range(p)]
    return [2 * n - lengths[r] - lengths[(r + 1) % p] for r in range(p)]
    ### END SOLUTION


def all_reduce(rank: Rank, x: torch.Tensor) -> torch.Tensor:
    """Return the sum of all ranks' x on every rank, by a ring. About 1 line."""
    ### BEGIN SOLUTION
    return torch.cat(all_gather(rank, reduce_scatter(rank, x))).reshape(x.shape)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ring_elements"}
check("ring_elements")

# %% nbgrader={"grade": true, "grade_id": "all_reduce"}
check("all_reduce")

# %% [markdown]
# **See it.** Your messages in time. Each bar is a message, in the row of the rank that sends it; a step is one message
# long. Below the ring is the all-reduce by Task 2's trees. Which ranks are idle?

# %%
import plotly.graph_objects as go

from mlsys_lab.widgets import show

COLOURS = ("#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#a463f2", "#97bbf5")


def tree_all_reduce(rank, x):
    """Reduce to rank 0, then broadcast."""
    total = reduce(rank, x)
    return broadcast(rank, x if total is None else total)


def draw_timeline(ledger, title):
    """Draw the messages of a run: sender, receiver, step, bytes."""
    figure = go.Figure()
    for one in ledger.messages:
        figure.add_bar(
            y=[f"rank {one.source}"],
            x=[one.end - one.start],
            base=[one.start],
            orientation="h",
            text=[f"→{one.destination}"],
            marker_color=COLOURS[one.destination % len(COLOURS)],
            hovertext=[f"{one.source} → {one.destination}, {one.size_bytes} bytes"],
            hoverinfo="text",
            showlegend=False,
        )
    figure.update_yaxes(categoryorder="category descending")  # rank 0 on top
    figure.update_layout(title=title, barmode="overlay", xaxis_title="step")
    figure.update_layout(margin_t=60, height=320)
    show(figure, alt=f"{title}: a row for each rank, a bar for each message it sends")


inputs = [torch.arange(10) * 10**r for r in range(4)]
draw_timeline(run(all_reduce, inputs).ledger, "All-reduce of four ranks by a ring")
draw_timeline(run(tree_all_reduce, inputs).ledger, "The same sum by trees")

# %% [markdown]
# **Predict, then measure.** Eight ranks and a large array. By what factor does the busiest rank of the tree algorithm
# send more bytes than the busiest rank of the ring? (The table of Task 2 shows what rank 0 sends.)

# %%
guess = None  # bytes of the busiest rank: trees / ring

# %%
busiest = {}
for name, program in (("ring", all_reduce), ("trees", tree_all_reduce)):
    ledger = run(program, [torch.ones(1024)] * 8).ledger
    busiest[name] = max(ledger.sent_bytes())
    print(f"{name:6} {ledger.steps:2} steps, {busiest[name]:6,} bytes from the busiest")
    print(f"       {ledger.total_bytes:,} bytes from all ranks together")
check.predict(
    guess, busiest["trees"] / busiest["ring"], "times the bytes of the ring", within=0.1
)

# %% [markdown]
# Both algorithms send the same number of bytes in total: $2(p - 1)$ arrays. The ring spreads them evenly over the
# ranks, so that no port carries more than $2\frac{p-1}{p}$ arrays; in the tree the root sends one whole array in each
# step of the broadcast. The ring pays in steps: 14 against 6.
#
# ## Task 5 · Recursive halving and doubling
#
# *About 35 minutes.*
#
# **Goal.** The ring sends the least, but its $2(p - 1)$ steps grow with every rank that joins. Recursive halving and
# doubling (Rabenseifner 2004) sends as little in $2 \log_2 p$ steps, if $p$ is a power of two: write it as the
# recursion that its name promises.
#
# ```text
#  all-reduce of a piece over ranks at distance d:
#      exchange halves with the rank at distance d, and add: each of the two keeps one half
#      all-reduce that half over ranks at distance d / 2
#      exchange the finished halves, and join them
# ```
#
# It starts with the whole array and $d = p/2$, and ends at $d = 0$. The rank at distance $d$ is `rank.rank ^ d`; of the
# two, the one with `rank.rank & d == 0` keeps the first half.
#
# For other $p$, let $P = 2^k$ be the largest power of two that is at most $p$. Rank $P + i$ **folds**: it sends its
# whole array to rank $i$, waits while the first $P$ ranks do the above, and gets the sum back.
#
# **Interface:** `halving_doubling(rank, x)` returns the sum of all `x`, in the shape of `x`, on every rank.
#
# **Example**
#
# ```python
# from mlsys_lab.comm import run
# xs = [torch.arange(8) * 10**r for r in range(4)]
# results, ledger = run(halving_doubling, xs)
# results[3].tolist()  # → [0, 1111, 2222, 3333, 4444, 5555, 6666, 7777]
# ledger.steps, [size // 8 for size in ledger.sent_bytes()]  # → (4, [12, 12, 12, 12])
# ```
#
# (At distance 2 a rank sends 4 of the 8 elements and at distance 1 it sends 2: 6 on the way there, 6 on the way back.)
#
# **Requirements**
#
# - It works for every $p$, in $2 \log_2 P$ steps, and 2 more if ranks fold.
# - At distance $d$ a rank sends $d/P$ of the array to its partner before the recursive call, and again after it, up to
#   rounding.
# - If a piece has an odd length, either half may be the longer one.
#
# **Size:** about 19 lines, including a helper.


# %% nbgrader={"solution": true, "grade_id": "task-5-halving-doubling"}
#| export
def halving_doubling(rank: Rank, x: torch.Tensor) -> torch.Tensor:
    """Return the sum of all ranks' x on every rank, by halves. About 19 lines."""
    ### BEGIN SOLUTION
    power = 1 << (rank.size.bit_length() - 1)
    if rank.rank >= power:
        rank.send(x, rank.rank - power)
        return rank.recv(rank.rank - power, like=x)
    folded = rank.rank + power < rank.size
    own = x + rank.recv(rank.rank + power, like=x) if folded else x

    def add_up(piece: torch.Tensor, distance: int) -> torch.Tensor:
        if distance == 0:
            return piece
        partner, upper = rank.rank ^ distance, bool(rank.rank & distance)
        halves = split_chunks(piece, 2)
        kept = halves[upper] + send_recv(rank, halves[not upper], partner, partner)
        kept = add_up(kept, distance // 2)
        other = send_recv(rank, kept, partner, partner)
        return torch.cat([other, kept] if upper else [kept, other])

    total = add_up(own.reshape(-1), power // 2).reshape(x.shape).clone()
    if folded:
        rank.send(total, rank.rank + power)
    return total
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "halving_doubling"}
check("halving_doubling")

# %% [markdown]
# ## Task 6 · Hierarchical all-reduce
#
# *About 25 minutes.*
#
# **Goal.** Inside a node GPUs communicate over NVLink; between nodes each GPU has a network port that is about ten
# times slower. Call a node an *island* of $m$ ranks. Write an all-reduce that sends little between islands, and sends
# it through all ports at once.
#
# ```text
#  island 0:  0 1 2 3      1. inside:  reduce-scatter. Rank i of an island has chunk i of the island's sum.
#             │ │ │ │      2. across:  all-reduce of that chunk with rank i of every other island.
#  island 1:  4 5 6 7      3. inside:  all-gather.
# ```
#
# **Interface**
#
# | | returns |
# |---|---|
# | `hierarchical(rank, x, island)` | the sum of all `x`, in the shape of `x`; islands are `island` consecutive ranks |
# | `rank.group(ranks)` (given) | this rank as a member of a smaller group, numbered from 0 in the order of `ranks` |
#
# **Example**
#
# ```python
# from mlsys_lab.comm import run
# xs = [torch.full((8,), 10**r) for r in range(4)]
# results, ledger = run(lambda rank, x: hierarchical(rank, x, island=2), xs)
# results[0].tolist() == [1111] * 8, ledger.steps  # → (True, 4)
# ledger.link_bytes()[0, 2], ledger.link_bytes().get((0, 3), 0)  # → (32, 0)
# ```
#
# (Rank 0 sends 4 of its 8 elements to rank 2, at the same place in the other island, and none to rank 3.)
#
# **Requirements**
#
# - At most $2(m - 1) + 2(q - 1)$ steps, where $q$ is the number of islands.
# - No rank sends more to other islands than a ring all-reduce of the longest chunk over $q$ ranks would.
# - Every member of a group calls `rank.group` with the same ranks, and no other rank calls it.
#
# **Size:** about 6 lines.
#
# <details><summary>Details</summary>
#
# - `rank.size` is a multiple of `island`. There may be a single island, or islands of one rank.
# - Your functions of earlier tasks work in a group as they are: `rank.rank` and `rank.size` are then the group's.
#
# </details>


# %% nbgrader={"solution": true, "grade_id": "task-6-hierarchical"}
#| export
def hierarchical(rank: Rank, x: torch.Tensor, island: int) -> torch.Tensor:
    """Return the sum of all ranks' x on every rank, island by island. About 6 lines."""
    ### BEGIN SOLUTION
    place = rank.rank % island
    base = rank.rank - place
    inside = rank.group(range(base, base + island))
    across = rank.group(range(place, rank.size, island))
    chunk = all_reduce(across, reduce_scatter(inside, x))
    return torch.cat(all_gather(inside, chunk)).reshape(x.shape)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "hierarchical"}
check("hierarchical")

# %% [markdown]
# **Predict, then measure.** Eight ranks in two islands of four. In a ring all-reduce, a single pair of ranks carries
# everything that goes from island 0 to island 1. In your hierarchical all-reduce several pairs share this work. By what
# factor does the ring's pair carry more bytes than the busiest of them?

# %%
guess = None  # bytes of the busiest pair between islands: ring / hierarchical

# %%
from plotly.subplots import make_subplots

ISLAND, P = 4, 8
PROGRAMS = {
    "tree": tree_all_reduce,
    "ring": all_reduce,
    "halving_doubling": halving_doubling,
    "hierarchical": lambda rank, x: hierarchical(rank, x, ISLAND),
}


def run_all():
    """Ledgers of the four programs, on 4096 bytes per rank."""
    xs = [torch.ones(1024)] * P
    return {name: run(program, xs).ledger for name, program in PROGRAMS.items()}


ledgers = run_all()
figure = make_subplots(2, 2, subplot_titles=list(PROGRAMS), vertical_spacing=0.14)
crossing = {}
for i, (name, ledger) in enumerate(ledgers.items()):
    links = ledger.link_bytes()
    crossing[name] = [n for (a, b), n in links.items() if a // ISLAND != b // ISLAND]
    print(
        f"{name:17} {ledger.steps:2} steps, {sum(crossing[name]):6,} bytes cross,",
        end="",
    )
    print(f" at most {max(crossing[name]):5,} over one pair")
    figure.add_heatmap(
        z=[[links.get((a, b)) for b in range(P)] for a in range(P)],
        coloraxis="coloraxis",
        hovertemplate="%{y} → %{x}: %{z} bytes<extra></extra>",
        row=i // 2 + 1,
        col=i % 2 + 1,
    )
for row in (1, 2):
    figure.update_yaxes(autorange="reversed", dtick=1, row=row)
colours = {"colorscale": "Viridis", "colorbar_title": "bytes"}
figure.update_layout(margin_t=60, coloraxis=colours, height=560)
show(figure, alt="Bytes by sender and receiver, a table for each form of all-reduce")
ratio = max(crossing["ring"]) / max(crossing["hierarchical"])
check.predict(guess, ratio, "times the bytes", within=0.1)

# %% [markdown]
# In each panel, everything outside the two 4 × 4 squares on the diagonal crosses the network. The hierarchical
# all-reduce sends a quarter of the array per rank across, through four ports in each direction; the ring sends seven
# times as much through one port. Halving and doubling sends its *largest* messages across.
#
# ## Task 7 · Predict, then choose
#
# *About 30 minutes.*
#
# **Goal.** A message of $s$ bytes takes about $\alpha + s\beta$ seconds (Hockney 1994): a latency $\alpha$, however
# short the message is, and $\beta$ for each byte, which is 1 / bandwidth. Predict the time of your algorithms from it,
# and choose the fastest, as NCCL's tuner does.


# %%
#| export
@dataclass(frozen=True)
class LinkCost:
    """Cost of a message: a latency, and 1 / `bytes_per_s` for each byte."""

    latency_s: float
    bytes_per_s: float

    def time_s(self, messages: float, sent_bytes: float) -> float:
        """Seconds of messages that follow one another, with this total of bytes."""
        return messages * self.latency_s + sent_bytes / self.bytes_per_s


@dataclass(frozen=True)
class Islands:
    """`size` ranks in islands of `island` each; links `inside` and `across` them."""

    size: int
    island: int
    inside: LinkCost
    across: LinkCost

    def message_s(self, source: int, destination: int, size_bytes: float) -> float:
        """Seconds of a message between two ranks."""
        same = source // self.island == destination // self.island
        return (self.inside if same else self.across).time_s(1, size_bytes)


# %% [markdown]
# **Interface**
#
# | | returns |
# |---|---|
# | `all_reduce_s(algorithm, ranks, size_bytes, link)` | seconds of a `"tree"`, `"ring"`, `"halving_doubling"` |
# | `crossover_bytes(first, second, ranks, link, *, largest=2**40)` | size above which `second` is faster, or `None` |
# | `predict_s(algorithm, size_bytes, topology)` | seconds on `Islands`: these three, and `"hierarchical"` |
# | `select_algorithm(size_bytes, topology)` | name of the fastest of the four on `Islands` |
#
# Steps follow one another, so their times add up; the messages of one step run at the same time, so its slowest
# message counts. The tree on one switch, for example, has $2\lceil\log_2 p\rceil$ steps of the whole array, so it
# takes
# `link.time_s(steps, steps * size_bytes)`. The other algorithms are yours to derive, from the limits in Tasks 4, 5 and
# 6. All chunks have the same length here, a whole number or not.
#
# **Example** (1 µs and 450 GB/s inside an island, 5 µs and 50 GB/s across)
#
# ```python
# nvlink, network = LinkCost(1e-6, 450e9), LinkCost(5e-6, 50e9)
# round(1e6 * all_reduce_s("tree", 8, 1e6, nvlink), 2)  # → 19.33
# round(1e6 * all_reduce_s("ring", 8, 1e6, nvlink), 2)  # → 17.89
# round(crossover_bytes("tree", "ring", 8, nvlink))  # → 847059
# crossover_bytes("halving_doubling", "ring", 8, nvlink)  # → None
# two_nodes = Islands(size=8, island=4, inside=nvlink, across=network)
# round(1e6 * predict_s("tree", 1e6, two_nodes), 2)  # → 62.89
# round(1e6 * predict_s("hierarchical", 1e6, two_nodes), 2)  # → 24.33
# select_algorithm(1e6, two_nodes)  # → 'hierarchical'
# ```
#
# **Requirements**
#
# - On islands, the trees of Task 2 have rank 0 as their root, and the message at distance $d$ goes across if $d \ge
#   m$.
# - A ring step is as slow as its slowest link: with several islands of several ranks it uses both kinds.
# - `crossover_bytes` returns `None` unless `second` becomes faster than `first` at a size from 0 to `largest` bytes.
#   If `second` is faster at every size, it may return 0 or `None`. The time of an algorithm is a straight line in the
#   size.
# - If several algorithms are equally fast, `select_algorithm` may return any of them.
#
# **Size:** about 7, 6, 12 and 2 lines.
#
# <details><summary>Details</summary>
#
# - `ranks` may be any number for the tree and the ring, a power of two for halving and doubling. On `Islands`, `size`
#   and `island` are powers of two, and there may be one island or islands of one rank.
# - A single rank needs 0 s. Latencies and sizes may be 0, and `bytes_per_s` may be `math.inf`.
# - Either kind of link may be the slower one.
# - `crossover_bytes` may be off by a byte, so a search by bisection is fine too.
#
# </details>


# %% nbgrader={"solution": true, "grade_id": "task-7-cost"}
#| export
def all_reduce_s(
    algorithm: str, ranks: int, size_bytes: float, link: LinkCost
) -> float:
    """Seconds of an all-reduce of `size_bytes` on one switch. About 7 lines."""
    ### BEGIN SOLUTION
    levels = math.ceil(math.log2(ranks))
    steps, arrays = {
        "tree": (2 * levels, 2 * levels),
        "ring": (2 * (ranks - 1), 2 * (ranks - 1) / ranks),
        "halving_doubling": (2 * levels, 2 * (ranks - 1) / ranks),
    }[algorithm]
    return link.time_s(steps, arrays * size_bytes)
    ### END SOLUTION


def crossover_bytes(
    first: str, second: str, ranks: int, link: LinkCost, *, largest: float = 2**40
) -> float | None:
    """Size above which `second` is the faster one. About 6 lines."""
    ### BEGIN SOLUTION
    first_s, second_s = (
        [all_reduce_s(algorithm, ranks, size, link) for size in (0, largest)]
        for algorithm in (first, second)
    )
    behind_s, ahead_s = second_s[0] - first_s[0], first_s[1] - second_s[1]
    if behind_s < 0 or ahead_s <= 0:
        return None
    return largest * behind_s / (behind_s + ahead_s)
    ### END SOLUTION


def predict_s(algorithm: str, size_bytes: float, topology: Islands) -> float:
    """Seconds of an all-reduce of `size_bytes` on islands. About 12 lines."""
    ### BEGIN SOLUTION
    p, m = topology.size, topology.island
    message_s = topology.message_s
    distances = [1 << k for k in range(p.bit_length() - 1)]
    if algorithm == "tree":
        return 2 * sum(message_s(0, d, size_bytes) for d in distances)
    if algorithm == "halving_doubling":
        return 2 * sum(message_s(0, d, size_bytes * d / p) for d in distances)
    if algorithm == "ring":
        step_s = max(message_s(r, (r + 1) % p, size_bytes / p) for r in range(p))
        return 2 * (p - 1) * step_s
    inside_s = 2 * (m - 1) * message_s(0, 1, size_bytes / m)
    return inside_s + 2 * (p // m - 1) * message_s(0, m, size_bytes / p)
    ### END SOLUTION


ALGORITHMS = ("tree", "ring", "halving_doubling", "hierarchical")


def select_algorithm(size_bytes: float, topology: Islands) -> str:
    """Name of the fastest of ALGORITHMS. About 2 lines."""
    ### BEGIN SOLUTION
    times_s = {name: predict_s(name, size_bytes, topology) for name in ALGORITHMS}
    return min(times_s, key=times_s.__getitem__)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "crossover"}
check("crossover")

# %% nbgrader={"grade": true, "grade_id": "choose"}
check("choose")

# %% [markdown]
# **Predict, then measure.** Eight ranks in two islands of four, with the links of the example. For short arrays
# halving and doubling is the fastest, for long ones the hierarchical all-reduce. From about how many bytes on?

# %%
guess = None  # bytes

# %% [markdown]
# Now your *programs* are measured, not your formulas. `schedule` replays the messages of a run on links of your choice:
# a message starts when both sides are ready and both ports are free. Lines are what you predicted, points are what your
# messages take. If a point is off its line, which of the two is wrong?

# %%
topology = Islands(P, ISLAND, LinkCost(1e-6, 450e9), LinkCost(5e-6, 50e9))


def replay_s(name, size_bytes):
    """Seconds that a program's messages take, scaled to an array of this size."""
    stretch = size_bytes / 4096  # `run_all` runs on 4096 bytes

    def message_s(source, destination, message_bytes):
        return topology.message_s(source, destination, message_bytes * stretch)

    return max(message.end for message in schedule(ledgers[name].logs, message_s))


ledgers = run_all()
sizes = [2.0**k for k in range(8, 31)]
figure, off = go.Figure(), 0.0
for name, colour in zip(ALGORITHMS, COLOURS, strict=False):
    measured = [replay_s(name, size) for size in sizes]
    predicted = [predict_s(name, size, topology) for size in sizes]
    pairs = zip(measured, predicted, strict=True)
    off = max(off, *(abs(a / b - 1) for a, b in pairs))
    figure.add_scatter(x=sizes, y=predicted, name=name, line_color=colour, mode="lines")
    style = {"mode": "markers", "marker_color": colour, "showlegend": False}
    figure.add_scatter(x=sizes, y=measured, **style)
figure.update_xaxes(title="bytes", type="log")
figure.update_yaxes(title="seconds", type="log")
figure.update_layout(title="Predicted (lines) and measured (points)", margin_t=60)
show(
    figure, alt="Seconds by bytes for four algorithms: predicted lines, measured points"
)
print(f"largest difference: {off:.2%}")
for name in ALGORITHMS:
    algbw = 2**30 / replay_s(name, 2**30) / 1e9
    busbw = algbw * 2 * (P - 1) / P
    print(f"1 GiB by {name:17} algbw {algbw:5.1f} GB/s, busbw {busbw:5.1f} GB/s")
low, high = 1.0, 2.0**30
while high - low > 1:
    middle = (low + high) / 2
    slower = replay_s("hierarchical", middle) > replay_s("halving_doubling", middle)
    low, high = (middle, high) if slower else (low, middle)
check.predict(guess, high, "bytes", within=0.5)

# %% [markdown]
# The hierarchical all-reduce has two more steps inside an island, which cost 2 µs whatever the size. In exchange it
# sends a quarter of the array across per rank, where halving and doubling sends a whole one. Inside it sends more than
# halving and doubling, which costs little at 450 GB/s. At the crossover, what it saves across, less what it adds
# inside, is 2 µs.
#
# The printed bandwidths are those of nccl-tests: **algbw** is size / time, and **busbw** multiplies it by
# $2\frac{p-1}{p}$, so that an ideal ring shows the rate of its slowest link, whatever $p$ is. Here the ring comes close
# to the 50 GB/s of the network. The hierarchical all-reduce reports a multiple of that, more than any network port
# carries: it is the rate that a single ring would need to be as fast.
#
# ## Task 8 · Data parallelism on your own engine
#
# *About 20 minutes.*
#
# **Goal.** In data parallelism every rank has the same model and its own part of the batch, and after each backward
# pass the ranks average their gradients. One all-reduce for each small parameter would pay $\alpha$ many times, so,
# like PyTorch's DDP, put gradients into **buckets** and all-reduce a bucket at a time.
#
# **Interface:** `average_gradients(parameters, group, bucket_bytes)` sets the `grad` of every parameter to the mean
# over the ranks of `group`, a `torch.Tensor` of the parameter's shape. Parameters are lab 01's `Tensor`s: yours, if you
# have handed that lab in.
#
# **Example**
#
# ```python
# from mlsys_lab.comm import run
# leaf = lambda n: Tensor(torch.zeros(n), requires_grad=True)
# parameters = [[leaf(2), leaf(1), leaf(3)] for rank in range(2)]
# for rank in range(2): parameters[rank][0].grad = torch.tensor([2.0, 4.0]) * rank
# _, ledger = run(lambda rank, mine: average_gradients(mine, rank, bucket_bytes=16), parameters)
# parameters[0][0].grad.tolist(), parameters[1][2].grad.tolist()  # → ([1.0, 2.0], [0.0, 0.0, 0.0])
# ledger.sent_messages(), ledger.sent_bytes()  # → ([4, 4], [24, 24])
# ```
#
# (4 bytes for each element: the last parameter, 12 bytes, and the one before it, 4 bytes, share a bucket of 16 bytes.
# The first one has a bucket of its own. Two buckets are two all-reduces, of 2 messages from each rank.)
#
# **Requirements**
#
# - Go through the parameters from the **last to the first**, the order in which the backward pass completes them.
#   Neighbours share a bucket as long as it has at most `bucket_bytes`.
# - Each bucket is one `all_reduce`: $2(p - 1)$ messages from each rank.
# - A parameter larger than `bucket_bytes` has a bucket of its own.
# - Where `grad` is `None`, the rank contributes zeros, and gets the mean like the others: if it stayed away, the other
#   ranks would wait.
# - `grad` becomes a new array in the parameter's shape. The old one must not change: another parameter may share it
#   (in `x + y` both may get the same one).
#
# **Size:** about 12 lines.
#
# <details><summary>Details</summary>
#
# - A parameter's own size counts, with or without a gradient. All parameters have one dtype and at least one element.
# - If `bucket_bytes` is 0, every parameter has a bucket of its own.
# - `parameters` is a list that must not change.
#
# </details>


# %%
#| export
engine = stack.load("autograd")
Tensor = engine.Tensor


# %% nbgrader={"solution": true, "grade_id": "task-8-data-parallel"}
#| export
def average_gradients(
    parameters: Sequence[Tensor], group: Rank, bucket_bytes: int = 25 << 20
) -> None:
    """Set each gradient to its mean over all ranks, by buckets. About 12 lines."""
    ### BEGIN SOLUTION
    buckets, filled = [], 0
    for parameter in reversed(parameters):
        if not buckets or filled + parameter.data.nbytes > bucket_bytes:
            buckets.append([])
            filled = 0
        buckets[-1].append(parameter)
        filled += parameter.data.nbytes
    for bucket in buckets:
        zeros = [torch.zeros_like(one.data) for one in bucket]
        pairs = zip(bucket, zeros, strict=True)
        grads = [zero if one.grad is None else one.grad for one, zero in pairs]
        flat = torch.cat([grad.reshape(-1) for grad in grads])
        mean = all_reduce(group, flat) / group.size
        parts = torch.split(mean, [one.data.numel() for one in bucket])
        for one, part in zip(bucket, parts, strict=True):
            one.grad = part.reshape(one.data.shape)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "average_gradients"}
check("average_gradients")

# %% [markdown]
# **See it.** A small network learns a curve, once on one rank, and once on four ranks with a quarter of the batch
# each. If your average is right, these are the same run. And what do buckets save? The last lines replay the messages
# of one step on a network of 5 µs and 50 GB/s.

# %%
torch.manual_seed(7)
X = torch.linspace(-3, 3, 64, dtype=torch.float64).reshape(-1, 1)
Y = torch.sin(X)
SHAPES = ((1, 16), (16,), (16, 16), (16,), (16, 1), (1,))
START = [torch.randn(s, dtype=torch.float64) / max(1, s[0]) ** 0.5 for s in SHAPES]


def train(rank, rows, bucket_bytes=1024, steps=200, rate=0.1):
    """Losses of every step on this rank's rows, and the weights at the end."""
    parameters = [Tensor(start.clone(), requires_grad=True) for start in START]
    w1, b1, w2, b2, w3, b3 = parameters
    x, y, losses = Tensor(X[rows]), Tensor(Y[rows]), []
    for _ in range(steps):
        error = ((x @ w1 + b1).tanh() @ w2 + b2).tanh() @ w3 + b3 - y
        loss = (error * error).mean()
        for parameter in parameters:
            parameter.grad = None
        loss.backward()
        average_gradients(parameters, rank, bucket_bytes)
        for parameter in parameters:
            parameter.data = parameter.data - rate * parameter.grad
        losses.append(loss.item())
    return losses, torch.cat([parameter.data.reshape(-1) for parameter in parameters])


((alone, weights_alone),), _ = run(train, [slice(None)])
quarters = [slice(16 * r, 16 * r + 16) for r in range(4)]
together, ledger = run(train, quarters)
mean = [sum(one) / 4 for one in zip(*(losses for losses, _ in together), strict=True)]
apart = max((weights - weights_alone).abs().max().item() for _, weights in together)
print(f"one rank:   loss {alone[0]:.3f} → {alone[-1]:.4f}")
print(f"four ranks: loss {mean[0]:.3f} → {mean[-1]:.4f}")
print(f"weights differ by at most {apart:.1e}; {ledger.total_bytes:,} bytes")
network = Islands(4, 1, LinkCost(5e-6, 50e9), LinkCost(5e-6, 50e9))
for bucket_bytes in (0, 1024, 1 << 20):

    def one_step(rank, rows, bucket_bytes=bucket_bytes):
        return train(rank, rows, bucket_bytes, steps=1)

    ledger = run(one_step, quarters, topology=network).ledger
    count = ledger.sent_messages()[0]
    print(
        f"bucket_bytes {bucket_bytes:9,}: {count:2} messages from each rank,", end=" "
    )
    print(f"{1e6 * ledger.end:.0f} µs")
figure = go.Figure()
figure.add_scatter(y=alone, mode="lines", name="one rank, all rows", line_width=5)
figure.add_scatter(y=mean, mode="lines", name="four ranks, mean", line_dash="dot")
figure.update_layout(xaxis_title="step", yaxis_title="loss", yaxis_type="log")
figure.update_layout(margin_t=30)
show(figure, alt="Loss by step: one rank and the mean of four ranks, on the same curve")

# %% [markdown]
# A network this small sends a few KB, so its all-reduces are pure latency, and fewer buckets mean proportionally less
# time. Large models fill buckets of 25 MB, PyTorch's default, and then a bucket has a second use: it can be
# all-reduced while the backward pass still computes the next one. That is [lab 08](08-data-parallel.ipynb), which runs
# on the collectives that you wrote here.
#
# ## Stretch: no points
#
# - **One-shot.** On NVLink a kernel reads the arrays of all its peers at once. Write `one_shot(rank, x)`: every rank
#   sends its whole array to all others with `isend`. At which size does it lose to two steps
#   (reduce-scatter, all-gather) with all peers at once? Chapter 09 derives the answer for eight GPUs.
# - **Double tree.** Half of the ranks in a tree are leaves, which never send on. Let a second tree over the same ranks
#   turn leaves into inner ranks, give each tree half of the array in segments, and compare bytes and steps with your
#   ring (Sanders, Speck and Träff 2009; `mlsys_lab/comm/collectives/all_reduce.py` has one).
#
# ## What you can read now
#
# - NCCL, `src/device/all_reduce.h`: `runRing` is your Tasks 3 and 4 on the GPU, `runTreeUpDown` your Task 2,
#   pipelined.
# - NCCL, `src/graph/tuning.cc`: `ncclTopoTuneModel` fills a table of latencies and bandwidths, from which the fastest
#   algorithm and protocol is chosen for each size: your Task 7. `NCCL_DEBUG=INFO` with `NCCL_DEBUG_SUBSYS=TUNING`
#   prints the choice.
# - Open MPI, `ompi/mca/coll/base/coll_base_allreduce.c`: `ompi_coll_base_allreduce_intra_ring`, and
#   `…_redscat_allgather`, which is halving and doubling.
# - vLLM, `csrc/custom_all_reduce.cuh`: `cross_device_reduce_1stage` and `cross_device_reduce_2stage`, for small
#   arrays.
# - PyTorch, `torch/csrc/distributed/c10d/reducer.cpp`: `compute_bucket_assignment_by_size` makes DDP's buckets.
#
# ## Test yourself
#
# <details><summary>One of eight ranks has fewer rows in its last batch. Is the mean of the eight gradients still the
# gradient of the mean loss?</summary>
#
# No: each rank's gradient is that of the mean over *its* rows, so rows on the short rank count more. Weight each rank's
# loss by its number of rows, *sum* the gradients instead of averaging them, and divide by the total number of rows,
# which takes one more all-reduce, of a single number.
#
# </details>
#
# <details><summary>Each algorithm adds in another order. Do all of them give the same bits? Do all ranks get the same
# bits? Which of the two matters for data parallelism?</summary>
#
# Different algorithms round differently. But in each of yours an element is summed up on one rank and then copied, so
# all ranks get the same bits, and that is what matters: ranks with different bits would drift apart, step by step.
#
# </details>
#
# <details><summary>In this model halving and doubling is never slower than the tree or the ring, if the number of ranks
# is a power of two. Why does NCCL use rings and trees all the same?</summary>
#
# The model assumes that the messages of a step share no link. At its largest distance halving and doubling sends half
# of the array between far-away ranks, all at the same time, through links that ranks share; a ring's neighbours can be
# next to each other on the same NVLink or rail. Rings and trees are also easy to pipeline, and they need no power of
# two.
#
# </details>
#
# <details><summary>Broadcast over eight ranks in two islands: your tree crosses between the islands four times, and
# so does a reduce that runs it backwards. Why, and how would each of them cross once?</summary>
#
# The broadcast uses distance 4 last, when four ranks have the array and all of them send it across. Reduce, read from
# the bottom of the table to the top, uses distance 4 first, when all four ranks of the second island still have
# something to send. A broadcast that takes its distances from the largest to the smallest crosses once, in its first
# step, and a reduce that takes them from the smallest to the largest crosses once, in its last.
#
# </details>
#
# <details><summary>What decides how large a bucket should be?</summary>
#
# Below about $p\,\alpha/\beta$ bytes an all-reduce by a ring is mostly latency: 2 MB for 8 ranks at 5 µs and 50 GB/s.
# Larger buckets approach full bandwidth, but a bucket starts only when its last gradient is there, so larger buckets
# overlap less of the backward pass.
#
# </details>
#
# When all checks pass, save the notebook and run `mlsys-lab check collectives` in a terminal.
