# %% [markdown]
# # Lab 07 · Collectives from send and receive
#
# Eight GPUs have a gradient each, and all of them need the sum. In a training script that is one line, an
# **all-reduce**, and it is often the line that decides how fast the script is. What does it send, to whom, in what
# order? Could it send less? Here you write it, from nothing but messages between two ranks.
#
# **You will build**
#
# 1. exchanges between ranks that do not deadlock;
# 2. broadcast and reduce along a binomial tree;
# 3. reduce-scatter and all-gather round a ring, and all-reduce from the two;
# 4. recursive halving and doubling, and a hierarchical all-reduce for islands of fast links;
# 5. a cost model that chooses between them, tried on the messages that your own programs send;
# 6. data parallelism on your own engine: gradients of lab 01's `Tensor`, averaged over ranks.
#
# **At the end you can answer**
#
# - Why can a program of two lines hang for ever, and why does it hang only with large arrays?
# - How many bytes must each GPU send in an all-reduce at least, and which algorithms come down to that?
# - Why does no single algorithm win, and where does the best one change?
# - What does a slow network between fast nodes change, and why are gradients put into buckets?
#
# **Time:** about 240 minutes (each task says its share). **Points:** 100. **You need:** recursion, logarithms, slices
# of torch tensors; gradients (lab 01) for the last task. Chapter 09, *Collectives*, gives the background.
#
# **Readings it leans on:** *Demystifying NCCL: An In-depth Analysis of GPU Communication Protocols and Algorithms*
# (`hu2025nccl`), *The Ultra-Scale Playbook: Training LLMs on GPU Clusters* (`ultrascale-playbook`).
#
# **How it works.** Put your code in place of each line that raises `NotImplementedError`, run the cell, then run the
# `check` cell below it. Cells that begin with `#| export` make up the module that is graded. Grading runs the same
# checks with other numbers and a few more cases, each rank in a process of its own; whoever carries the messages counts
# them. Marked are the results, and what they cost: bytes, messages, and **steps**, the messages on the longest chain in
# which each waits for the one before: a rank sends one at a time, and receives one at a time. A task names the most
# that is allowed. Less is fine: an empty array need not be sent to a rank that knows its shape.
#
# **Ranks.** A program is a function `(rank, x)` that all ranks run at once, each with an `x` of its own. `rank.rank` is
# this one's number, `rank.size` how many there are (p in formulas), and there are four ways to talk:
#
# | call | what it does |
# |---|---|
# | `rank.send(x, destination)` | sends a torch tensor, and waits until it has been received |
# | `rank.recv(source)` | waits for the next tensor from `source`, and returns it |
# | `rank.isend(x, destination)` | starts to send, and returns a request |
# | `rank.irecv(source)` | starts to receive, and returns a request; its `wait()` returns the tensor |
#
# A request's `wait()` returns when the message is through. Until then the tensor that is sent must not change. So every
# request wants its `wait()`; where one is missing, the check fails.
#
# `run(program, inputs)` runs a program on as many ranks as there are inputs. Here these are threads that take turns, so
# that every run is the same; the same programs run on processes and GPUs. It gives back the results and a **ledger** of
# all messages.

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
# ## Task 1 · Two ranks, two messages
#
# *About 25 minutes.*
#
# Each rank wants its neighbour's array. What could be simpler than to send, and then to receive?


# %%
def send_then_receive(rank, x):
    rank.send(x, (rank.rank + 1) % rank.size)
    return rank.recv((rank.rank - 1) % rank.size)


try:
    run(send_then_receive, [torch.tensor([float(r)]) for r in range(3)])
except DeadlockError as error:
    print(error)

# %% [markdown]
# `send` returns when the other side has received. That is a **rendezvous** send, and all transports do it with large
# arrays: nobody has room to put them. (With small ones many use a buffer. The program above then works, until the
# arrays grow.) So the order of calls matters on *both* sides.
#
# **Write**
#
# - `exchange(rank, x, partner)`: two ranks call it with each other's number; each gets the other's array. Only `send`
#   and `recv` are needed: let one of the two go first. At most 2 steps.
# - `send_recv(rank, x, destination, source)`, MPI's *Sendrecv*: send to one rank and receive from another, **at the
#   same time**, in 1 step. Nobody knows who goes first now: on a ring of ranks there is no first. Start the send,
#   receive, then wait for the send.
#
# The two arrays have one dtype, and need not have the same shape. Here and in all tasks, `x` may have any shape, also
# `()` and shapes without an element, and stays as it is.
#
# **Size:** about 6 and 4 lines. **Cost:** each rank sends one message.


# %% nbgrader={"solution": true, "grade_id": "task-1-exchange"}
#| export
def exchange(rank: Rank, x: torch.Tensor, partner: int) -> torch.Tensor:
    """The array with which rank `partner` calls this; it gets x. At most 2 steps. About 6 lines."""
    ### BEGIN SOLUTION
    if rank.rank < partner:
        rank.send(x, partner)
        return rank.recv(partner)
    received = rank.recv(partner)
    rank.send(x, partner)
    return received
    ### END SOLUTION


def send_recv(rank: Rank, x: torch.Tensor, destination: int, source: int) -> torch.Tensor:
    """The array that rank `source` sends, while x goes to rank `destination`: 1 step. About 4 lines."""
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
# **Broadcast**: one rank, the root, has an array that all shall have. It could send it p − 1 times, one after the
# other. But whoever has received it can help: in each step the number of ranks that have it can **double**.
#
# Number the ranks from the root: $v = (\text{rank} - \text{root}) \bmod p$. Before step $k = 0, 1, \dots$ the array is
# on $v = 0, \dots, 2^k - 1$, and in step $k$ each of those sends it to $v + 2^k$, if there is such a rank. That is a
# **binomial tree**.
#
# **Predict first.** How many steps does it take with 6 ranks? With 1000?

# %%
steps_6 = None  # your number
steps_1000 = None  # your number

for ranks, mine in ((6, steps_6), (1000, steps_1000)):
    if mine is None:
        print(f"{ranks} ranks: write a number first, then go on.")
    else:
        print(f"{ranks} ranks:", "right" if mine == (ranks - 1).bit_length() else "no: how often must 1 double?")

# %% [markdown]
# **Reduce** goes the other way: all ranks have an array, and the root shall have the sum. A binomial tree again, walked
# from its leaves.
# In step $k$ a rank whose $v$ has bit $k$ set, and has not sent yet, sends what it has added up to $v - 2^k$, and is
# done; one without that bit receives from $v + 2^k$, if there is such a rank, and adds.
#
# **Write** `broadcast(rank, x, root)`, in which ranks other than the root bring an array of the right shape and dtype
# with any numbers in it, NaN too, and `reduce(rank, x, root)`, which returns `None` on all ranks but the root. Nobody
# may be asked to send to a rank that is not there: p need not be a power of two. Here and in all tasks, what comes back
# has the dtype of `x`, and memory of its own, so that nobody who changes it changes `x`.
#
# **Size:** about 9 and 10 lines. **Cost:** p − 1 messages of n elements in $\lceil \log_2 p \rceil$ steps, along this
# tree or any other.


# %% nbgrader={"solution": true, "grade_id": "task-2-trees"}
#| export
def broadcast(rank: Rank, x: torch.Tensor, root: int = 0) -> torch.Tensor:
    """The root's x on every rank, in ceil(log2 p) steps. About 9 lines."""
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
    """The sum of all ranks' x on the root, None elsewhere, in ceil(log2 p) steps. About 10 lines."""
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
# `recv(source, like=x)` is worth its few letters: it refuses an array of another shape or dtype in one clear line.
#
# Reduce and then broadcast is an all-reduce already. For large arrays it is a bad one: every message carries the whole
# array, and at any time most ranks wait.

# %% [markdown]
# ## Task 3 · Round the ring
#
# *About 45 minutes.*
#
# To keep all ranks at work, cut the array into p **chunks** and put the ranks on a ring, each sending to its right. The
# chunks: consecutive flat pieces whose lengths differ by at most one, the longer ones first. Ten elements on four ranks
# are 3, 3, 2, 2; two elements on three ranks are 1, 1, 0.
#
# **Reduce-scatter**: in the end rank r has chunk r of the sum. Follow one chunk, c, backwards: its owner, rank c, must
# be the last to add. So it starts on rank c + 1 and goes to the right, and each rank on its way adds its own numbers.
# All chunks travel at once: in every step each rank sends one partial sum and receives another.
#
# **All-gather**: rank r has one array; in the end all have all of them, in order of rank. Each passes on to the right
# what has just come from the left, beginning with its own. The arrays may differ in shape, as chunks do in length.
#
# **Write** `split_chunks(x, parts)`, whose chunks, and no other results, may be views of `x`, `reduce_scatter(rank, x)`
# and `all_gather(rank, x)`. `send_recv` does the talking. Rings that turn left are as good; all that is said of right
# and left then changes sides.
#
# **Size:** about 3, 6 and 5 lines. **Cost:** p − 1 steps each. In reduce-scatter a rank sends every chunk but its own:
# $n - c_r$ elements, $c_i$ being the length of chunk i. In all-gather every chunk but its right neighbour's.


# %% nbgrader={"solution": true, "grade_id": "task-3-ring"}
#| export
def split_chunks(x: torch.Tensor, parts: int) -> list[torch.Tensor]:
    """Consecutive flat pieces of x, whose lengths differ by at most one, longer ones first. About 3 lines."""
    ### BEGIN SOLUTION
    share, longer = divmod(x.numel(), parts)
    return list(torch.split(x.reshape(-1), [share + (i < longer) for i in range(parts)]))
    ### END SOLUTION


def reduce_scatter(rank: Rank, x: torch.Tensor) -> torch.Tensor:
    """Chunk number `rank.rank`, flat, of the sum of all ranks' x: p - 1 steps round the ring. About 6 lines."""
    ### BEGIN SOLUTION
    p, right, left = rank.size, (rank.rank + 1) % rank.size, (rank.rank - 1) % rank.size
    chunks = split_chunks(x, p)
    partial = chunks[left]
    for step in range(2, p + 1):
        partial = chunks[(rank.rank - step) % p] + send_recv(rank, partial, right, left)
    return partial.clone()
    ### END SOLUTION


def all_gather(rank: Rank, x: torch.Tensor) -> list[torch.Tensor]:
    """All ranks' x, whose shapes may differ, in order of rank: p - 1 steps round the ring. About 5 lines."""
    ### BEGIN SOLUTION
    p, right, left = rank.size, (rank.rank + 1) % rank.size, (rank.rank - 1) % rank.size
    parts = {rank.rank: x.clone()}
    for step in range(p - 1):
        parts[(rank.rank - step - 1) % p] = send_recv(rank, parts[(rank.rank - step) % p], right, left)
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
# Reduce-scatter, then all-gather of the chunks: every rank has the sum. Patarasuk and Yuan (2009) showed that no
# algorithm sends less. How much is that?
#
# **4a. Predict.** `ring_elements(n, p)`: how many elements each rank sends in an all-reduce of n elements by a ring
# that turns right, as a list of whole numbers, exact for any n. Add up what Task 3 says of each half. The famous
# $2\frac{p-1}{p}n$ is right on average only, and exact for each rank where p divides n.
#
# **4b. Build.** `all_reduce(rank, x)`, whose result has the shape of `x`.
#
# **Size:** about 3 lines and 1 line. **Cost:** 2(p − 1) steps, and 2(p − 1) messages from each rank.


# %% nbgrader={"solution": true, "grade_id": "task-4-all-reduce"}
#| export
def ring_elements(n: int, p: int) -> list[int]:
    """Elements that rank 0, 1, … p - 1 sends in a ring all-reduce of n elements. About 3 lines."""
    ### BEGIN SOLUTION
    lengths = [n // p + (i < n % p) for i in range(p)]
    return [2 * n - lengths[r] - lengths[(r + 1) % p] for r in range(p)]
    ### END SOLUTION


def all_reduce(rank: Rank, x: torch.Tensor) -> torch.Tensor:
    """The sum of all ranks' x on every rank, in the shape of x, by reduce-scatter and all-gather. About 1 line."""
    ### BEGIN SOLUTION
    return torch.cat(all_gather(rank, reduce_scatter(rank, x))).reshape(x.shape)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ring_elements"}
check("ring_elements")

# %% nbgrader={"grade": true, "grade_id": "all_reduce"}
check("all_reduce")

# %% [markdown]
# **See it.** Predicted and measured, and your messages in time. Each bar is a message that its rank sends; a step is
# one message long. Below the ring is the all-reduce by Task 2's trees. Who waits?

# %%
import plotly.graph_objects as go

from mlsys_lab.widgets import show

COLOURS = ("#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#a463f2", "#97bbf5", "#9c6b4e")


def tree_all_reduce(rank, x):
    """Reduce to rank 0, then broadcast."""
    total = reduce(rank, x)
    return broadcast(rank, x if total is None else total)


def draw_timeline(ledger, title):
    """The messages of a run as bars: who sends, to whom, in which step, how many bytes."""
    figure = go.Figure()
    for one in ledger.messages:
        label = f"→{one.destination}"
        figure.add_bar(
            y=[f"rank {one.source}"],
            x=[one.end - one.start],
            base=[one.start],
            orientation="h",
            text=[label],
            marker_color=COLOURS[one.destination % len(COLOURS)],
            hovertext=[f"{one.source} → {one.destination}, {one.size_bytes} bytes"],
            hoverinfo="text",
            showlegend=False,
        )
    figure.update_yaxes(categoryorder="category descending")  # rank 0 on top
    figure.update_layout(title=title, barmode="overlay", xaxis_title="step", margin_t=60)
    show(figure, alt=f"{title}: a row for each rank, a bar for each message that it sends", height=320)


inputs = [torch.arange(10) * 10**r for r in range(4)]
results, ledger = run(all_reduce, inputs)
print("predicted", ring_elements(10, 4), "elements")
print("measured ", [sent // 8 for sent in ledger.sent_bytes()], "elements,", ledger)
draw_timeline(ledger, "All-reduce of four ranks round a ring")
draw_timeline(run(tree_all_reduce, inputs).ledger, "The same sum by trees")

# %% [markdown]
# ## Task 5 · Few steps and few bytes
#
# *About 35 minutes.*
#
# The ring's bytes are the least there are, but its 2(p − 1) steps grow with every rank that joins. Trees have few steps
# and too many bytes. **Recursive halving and doubling** (Rabenseifner 2004) has both, for p a power of two:
#
# - *halving*: exchange half of the array with the rank at distance p/2, so that you keep the first half if your
#   number's bit p/2 is 0, else the second half, and add what comes to it. Then a half of that half with the rank at
#   distance p/4, and so on, down to distance 1;
# - *doubling*: the same exchanges backwards, from distance 1 up: give your finished piece, get the other, join them.
#
# It is a recursion: *exchange halves; all-reduce the half that is left, at half the distance; exchange the results.*
# The rank at distance d is `rank.rank ^ d`.
#
# For other p, take $P = 2^k$, the largest power of two in it. Rank P + i **folds**: it sends its whole array to rank i,
# waits while the first P ranks do the above, and gets the sum back.
#
# **Write** `halving_doubling(rank, x)`, for every p and every shape. Halves may differ by one element. Either may be
# the longer one, as long as partners agree on it.
#
# **Size:** about 19 lines, a helper among them. **Cost:** $2 \log_2 P$ steps, and 2 more with folding. At distance d a
# rank sends about $n \cdot d/P$ elements each way.


# %% nbgrader={"solution": true, "grade_id": "task-5-halving-doubling"}
#| export
def halving_doubling(rank: Rank, x: torch.Tensor) -> torch.Tensor:
    """The sum of all ranks' x on every rank, by recursive halving and doubling. About 19 lines."""
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
# ## Task 6 · Islands
#
# *About 25 minutes.*
#
# Inside a node GPUs talk over fast links; between nodes each has a port to a network, ten times slower or more. Say
# islands of m ranks, q of them, ranks numbered island by island. What counts now is how little crosses.
#
# A **hierarchical** all-reduce: reduce-scatter *inside* each island, so that each rank has an m-th of the island's sum;
# all-reduce that chunk *across*, with the ranks that stand in the same place in the other islands; all-gather inside.
# Everybody's port is in use, and each carries $2\frac{q-1}{q} \cdot \frac{n}{m}$ elements only.
#
# `rank.group(ranks)` gives this rank as a member of a smaller group, numbered anew from 0 in the order of `ranks`. All
# members must call it with the same ranks, and nobody else. What you have written works in groups as it is.
#
# **Write** `hierarchical(rank, x, island)`, whose result has the shape of `x`; p is a multiple of `island`, the number
# of ranks in one.
#
# **Size:** about 6 lines. **Cost:** 2(m − 1) + 2(q − 1) steps.


# %% nbgrader={"solution": true, "grade_id": "task-6-hierarchical"}
#| export
def hierarchical(rank: Rank, x: torch.Tensor, island: int) -> torch.Tensor:
    """The sum of all ranks' x on every rank; islands are `island` consecutive ranks each. About 6 lines."""
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
# **See it.** Bytes from each rank to each other, for 8 ranks in two islands of 4. What lies outside the two squares on
# the diagonal crosses the network. Halving and doubling sends its *largest* messages there.

# %%
from plotly.subplots import make_subplots

ISLAND, P = 4, 8
FORMS = {
    "tree": tree_all_reduce,
    "ring": all_reduce,
    "halving_doubling": halving_doubling,
    "hierarchical": lambda rank, x: hierarchical(rank, x, ISLAND),
}


def run_all() -> dict:
    """The ledger of each form on 1024 float32 a rank."""
    return {name: run(form, [torch.ones(1024)] * P).ledger for name, form in FORMS.items()}


ledgers = run_all()
figure = make_subplots(2, 2, subplot_titles=list(FORMS), vertical_spacing=0.14)
for place, (name, one) in enumerate(ledgers.items()):
    sent = [[one.link_bytes().get((a, b)) for b in range(P)] for a in range(P)]
    style = {"coloraxis": "coloraxis", "hovertemplate": "%{y} → %{x}: %{z} bytes<extra></extra>"}
    figure.add_heatmap(z=sent, **style, row=place // 2 + 1, col=place % 2 + 1)
    crossing = [size for (a, b), size in one.link_bytes().items() if a // ISLAND != b // ISLAND]
    print(f"{name:17} {one.steps:3} steps, {sum(crossing):6,} bytes cross, at most {max(crossing):5,} on one pair")
for row in (1, 2):
    figure.update_yaxes(autorange="reversed", dtick=1, row=row)
figure.update_layout(margin_t=60, coloraxis={"colorscale": "Viridis", "colorbar_title": "bytes"})
show(figure, alt="Four tables of bytes by sender and receiver, one for each form of all-reduce", height=560)

# %% [markdown]
# ## Task 7 · Predict, then choose
#
# *About 30 minutes.*
#
# A message of m bytes takes about $\alpha + m\beta$ seconds (Hockney 1994): α however short it is, β for each byte. Let
# n now be **bytes**, and all chunks of one length, n/p, whole or not. An algorithm that takes S steps, one after the
# other, then takes the sum of its steps' times, if no two messages of a step share a wire.
#
# **7a. One switch**, all pairs alike. Tree (reduce, then broadcast): $2 \lceil \log_2 p \rceil$ steps of n bytes. Ring:
# 2(p − 1) steps of n/p bytes. **Write** `crossover_bytes(p, wire)` for p ≥ 2, α ≥ 0 and β > 0: the size above which the
# ring is the faster one. It is 0 where the ring is never slower.
#
# **7b. Islands** of m ranks, with one kind of wire inside and another across, mostly the slower one. **Write**
# `predict(p, size_bytes, island, inside, across)`: a dictionary of seconds for
#
# | name | steps |
# |---|---|
# | `"tree"` | Task 2's, from root 0: at distance d across if $d \ge m$, else inside; n bytes; twice |
# | `"ring"` | each as slow as the slowest wire in the ring, which has both kinds unless m = 1 or m = p |
# | `"halving_doubling"` | at distance d across if $d \ge m$, else inside; $n \cdot d/p$ bytes; twice |
# | `"hierarchical"` | 2(m − 1) steps of n/m bytes inside, 2(q − 1) steps of n/p bytes across |
#
# Here p and m are powers of two, and m = p is one island. p = 1 is a power of two: all four take 0 s then. α, β and n
# may be 0.
#
# **7c.** `choose(p, size_bytes, island, inside, across)`: the name of the fastest, or of any of several that are
# equally fast. Libraries do just this; NCCL prints its choice when `NCCL_DEBUG=INFO` asks for it.
#
# **Size:** about 4, 14 and 2 lines. **Cost:** none; that is the point of a model.


# %% nbgrader={"solution": true, "grade_id": "task-7-cost"}
#| export
@dataclass(frozen=True)
class Wire:
    """What a message costs: alpha seconds, and beta seconds for each byte."""

    alpha: float
    beta: float

    def time_s(self, size_bytes: float) -> float:
        """Seconds for a message of so many bytes."""
        return self.alpha + size_bytes * self.beta


def crossover_bytes(p: int, wire: Wire) -> float:
    """Bytes above which a ring of p >= 2 ranks is faster than trees; 0 where it is never slower. About 4 lines."""
    ### BEGIN SOLUTION
    levels = math.ceil(math.log2(p))
    fewer_steps = p - 1 - levels
    fewer_bytes = levels - (p - 1) / p
    return fewer_steps * wire.alpha / (fewer_bytes * wire.beta)
    ### END SOLUTION


def predict(p: int, size_bytes: float, island: int, inside: Wire, across: Wire) -> dict[str, float]:
    """Seconds of "tree", "ring", "halving_doubling" and "hierarchical"; p, island powers of two. About 14 lines."""
    ### BEGIN SOLUTION
    distances = [1 << k for k in range(p.bit_length() - 1)]
    wires = [inside if d < island else across for d in distances]
    used = {inside} if island == p else {across} if island == 1 else {inside, across}
    within = 2 * (island - 1) * inside.time_s(size_bytes / island)
    between = 2 * (p // island - 1) * across.time_s(size_bytes / p)
    return {
        "tree": 2 * sum(wire.time_s(size_bytes) for wire in wires),
        "ring": 2 * (p - 1) * max(wire.time_s(size_bytes / p) for wire in used),
        "halving_doubling": 2 * sum(w.time_s(size_bytes * d / p) for d, w in zip(distances, wires, strict=True)),
        "hierarchical": within + between,
    }
    ### END SOLUTION


def choose(p: int, size_bytes: float, island: int, inside: Wire, across: Wire) -> str:
    """The name of the fastest form of all-reduce, by `predict`. About 2 lines."""
    ### BEGIN SOLUTION
    times_s = predict(p, size_bytes, island, inside, across)
    return min(times_s, key=times_s.__getitem__)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "crossover"}
check("crossover")

# %% nbgrader={"grade": true, "grade_id": "choose"}
check("choose")

# %% [markdown]
# **Predict.** 8 ranks, islands of 4, 1 µs and 450 GB/s inside, 5 µs and 50 GB/s across. Which form would you take for
# 1 KB, and for 1 GB? From about which size on does the best one change?

# %%
guess_small = None  # "tree", "ring", "halving_doubling" or "hierarchical"
guess_large = None  # likewise
guess_bytes = None  # bytes

INSIDE, ACROSS = Wire(1e-6, 1 / 450e9), Wire(5e-6, 1 / 50e9)
sizes = [2.0**k for k in range(8, 31)]
chosen = [choose(P, size, ISLAND, INSIDE, ACROSS) for size in sizes]
if None in (guess_small, guess_large, guess_bytes):
    print("Write down your three answers first, then go on.")
else:
    change = next(size for size, name in zip(sizes, chosen, strict=True) if name == chosen[-1])
    print(f"yours: {guess_small}, {guess_large}, {guess_bytes:.3g} bytes")
    print(f"your model's: {chosen[0]}, {chosen[-1]}, between {change / 2:.3g} and {change:.3g} bytes")

# %% [markdown]
# **Measure.** Now your programs themselves, not their formulas: `schedule` replays the ledger of a run on wires that
# take as long as we say. A message starts when both sides are there and both ports are free. So the lines below are
# what you *predicted*, and the points are what your *messages* take. If a point is off its line, which of the two is
# wrong?

# %%
figure = go.Figure()
off = 0.0
for (name, one), colour in zip(run_all().items(), COLOURS, strict=False):
    measured = []
    for size in sizes:

        def wire_s(source, destination, message_bytes, share=size / 4096):
            wire = INSIDE if source // ISLAND == destination // ISLAND else ACROSS
            return wire.time_s(message_bytes * share)

        measured.append(max(message.end for message in schedule(one.logs, wire_s)))
    predicted = [predict(P, size, ISLAND, INSIDE, ACROSS)[name] for size in sizes]
    off = max(off, *(abs(a / b - 1) for a, b in zip(measured, predicted, strict=True)))
    figure.add_scatter(x=sizes, y=predicted, mode="lines", name=name, line_color=colour)
    figure.add_scatter(x=sizes, y=measured, mode="markers", marker_color=colour, showlegend=False)
figure.update_xaxes(title="bytes", type="log")
figure.update_yaxes(title="seconds", type="log")
figure.update_layout(title="Predicted (lines) and measured (points)", margin_t=60)
show(figure, alt="Seconds against bytes for four forms of all-reduce: predicted lines, measured points")
print(f"largest difference: {off:.2%}")
cross = crossover_bytes(64, ACROSS)
print(f"64 ranks on one switch of 50 GB/s: trees up to {cross / 1e6:.1f} MB, a ring above")

# %% [markdown]
# ## Task 8 · Data parallelism on your own engine
#
# *About 20 minutes.*
#
# Every rank has the same model and its own part of the batch. After the backward pass each has gradients of its own,
# and all need the **mean**; with the same step from the same weights they then stay alike for ever. That is data
# parallelism.
#
# A model has many small parameters, and an all-reduce for each pays α many times over. PyTorch's DDP fills **buckets**:
# it goes through the parameters from the *last* to the first, since the backward pass finishes them in that order, and
# puts neighbours together as long as a bucket's gradients have at most `bucket_bytes`. A parameter that is larger alone
# is a bucket of its own; with a `bucket_bytes` of 0 each is. What counts is a parameter's size, with or without a
# gradient.
#
# **Write** `average_gradients(rank, parameters, bucket_bytes)`: afterwards the `grad` of every parameter is the mean
# over all ranks, in the parameter's shape. The mean lies in new memory. The array that was `grad` before stays as it
# is, since other parameters may share it (in `x + y` both may get the same one), and no later call changes what this
# one has given. A rank on which a parameter got no gradient (`grad` is `None`: its part of the batch did not need it)
# counts as zeros, and gets the mean too, zeros if no rank has one; if it stayed away, the others would wait. Each
# bucket is one `all_reduce` of yours. `parameters` are lab 01's `Tensor`s: yours, if you have handed it in. All have
# one dtype and at least one number each, and none comes twice.
#
# **Size:** about 12 lines. **Cost:** 2(p − 1) messages from each rank and bucket.


# %%
#| export
engine = stack.load("autograd")
Tensor = engine.Tensor


# %% nbgrader={"solution": true, "grade_id": "task-8-data-parallel"}
#| export
def average_gradients(rank: Rank, parameters: Sequence[Tensor], bucket_bytes: int = 25 << 20) -> None:
    """Replace the gradient of each parameter by its mean over all ranks, bucket by bucket. About 12 lines."""
    ### BEGIN SOLUTION
    buckets, filled = [], 0
    for parameter in reversed(parameters):
        if not buckets or filled + parameter.data.nbytes > bucket_bytes:
            buckets.append([])
            filled = 0
        buckets[-1].append(parameter)
        filled += parameter.data.nbytes
    for bucket in buckets:
        grads = [torch.zeros_like(one.data) if one.grad is None else one.grad for one in bucket]
        mean = all_reduce(rank, torch.cat([grad.reshape(-1) for grad in grads])) / rank.size
        for one, part in zip(bucket, torch.split(mean, [grad.numel() for grad in grads]), strict=True):
            one.grad = part.reshape(one.data.shape)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "average_gradients"}
check("average_gradients")

# %% [markdown]
# **See it.** A small network learns a curve, once on one rank, and once on four with a quarter of the batch each. If
# your average is right, these are the same run.

# %%
torch.manual_seed(7)
X = torch.linspace(-3, 3, 64, dtype=torch.float64).reshape(-1, 1)
Y = torch.sin(X)
SHAPES = ((1, 16), (16,), (16, 16), (16,), (16, 1), (1,))
START = [torch.randn(shape, dtype=torch.float64) / max(1, shape[0]) ** 0.5 for shape in SHAPES]


def train(rank, rows, bucket_bytes=1024, steps=200, rate=0.1):
    """Losses of every step on this rank's rows, and the weights in the end."""
    parameters = [Tensor(start.clone(), requires_grad=True) for start in START]
    w1, b1, w2, b2, w3, b3 = parameters
    x, y, losses = Tensor(X[rows]), Tensor(Y[rows]), []
    for _ in range(steps):
        error = ((x @ w1 + b1).tanh() @ w2 + b2).tanh() @ w3 + b3 - y
        loss = (error * error).mean()
        for parameter in parameters:
            parameter.grad = None
        loss.backward()
        average_gradients(rank, parameters, bucket_bytes)
        for parameter in parameters:
            parameter.data = parameter.data - rate * parameter.grad
        losses.append(loss.item())
    return losses, torch.cat([parameter.data.reshape(-1) for parameter in parameters])


((alone, weights_alone),), _ = run(train, [slice(None)])
together, ledger = run(train, [slice(16 * r, 16 * r + 16) for r in range(4)])
parts = [losses for losses, _ in together]
mean = [sum(one) / 4 for one in zip(*parts, strict=True)]
apart = max((weights - weights_alone).abs().max().item() for _, weights in together)
print(f"loss {alone[0]:.3f} → {alone[-1]:.4f} on one rank, {mean[0]:.3f} → {mean[-1]:.4f} on four")
print(f"weights differ by at most {apart:.1e}; {len(ledger.messages):,} messages, {ledger.total_bytes:,} bytes")
figure = go.Figure()
figure.add_scatter(y=alone, mode="lines", name="one rank, all rows", line_width=5)
figure.add_scatter(y=mean, mode="lines", name="four ranks, mean of their losses", line_dash="dot")
figure.update_layout(xaxis_title="step", yaxis_title="loss", yaxis_type="log", margin_t=30)
show(figure, alt="Loss against step: the curve of one rank and the mean of four lie on each other")

# %% [markdown]
# ## Answer for yourself
#
# - One of eight ranks has fewer rows in its last batch. Is the mean of the eight gradients still the gradient of the
#   mean loss? What would have to be all-reduced besides?
# - Your sums are added in another order by each algorithm. Do the four forms give the same bits? On every rank the same
#   bits? Does it matter to data parallelism?
# - On one switch halving and doubling is never slower than trees or rings in this model, if p is a power of two. Why
#   does NCCL use rings and trees all the same? (Look at who talks to whom, and what their messages share.)
# - In the table of Task 6 your broadcast crosses between the islands four times, your reduce once. Why? In which order
#   must a broadcast take its distances to cross once?
# - Which of your all-reduces could start before the backward pass has ended? What decides how large a bucket should be
#   then?
#
# When all checks pass, save the notebook and run `mlsys-lab check collectives` in a terminal.
