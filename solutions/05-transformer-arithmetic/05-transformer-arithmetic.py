# %% [markdown]
# # Lab 05 · Transformer arithmetic: count everything before you run it
#
# Llama 2 70B took 1,720,320 GPU hours: millions of dollars, on machines that had to be reserved beforehand. Does the
# run fit into memory? How long does a step take? Which GPU serves the model cheapest afterwards? All three answers
# follow from about ten numbers in a configuration file. In this lab you write that arithmetic as code, and then test it
# against a clock on a model that you can run.
#
# ```text
#                 ┌─► parameters ──► weights, gradients, optimizer states ─┐
#                 │                                                        ├─► memory per device ─► devices
#                 ├─► activations ─────────────────────────────────────────┘
#  configuration ─┤
#                 ├─► matrix products ──► FLOPs ──► seconds per training step ◄─► measured
#                 │
#                 └─► KV cache ──► batch size ──► decode step ──► dollars per million tokens
# ```
#
# **You will build**
#
# 1. an einsum calculator: from `"bij,bjk->bik"` and shapes to FLOPs, bytes and the cheapest order (`35 min`);
# 2. a parameter count that is exact for GPT-2 and Llama models (`30 min`);
# 3. a list of every matrix product that such a model runs, and its FLOPs (`35 min`);
# 4. a memory plan for training, and the smallest number of devices that holds it (`45 min`);
# 5. a prediction of the step time of a real model on this machine (`45 min`);
# 6. a choice of the GPU that serves a model cheapest, and what limits it (`35 min`).
#
# **At the end you can answer**
#
# - Where do the 6 FLOPs per parameter per token come from, and when is that number wrong?
# - Why does training take about 16 bytes per parameter plus activations, and which of these do ZeRO and recomputation
#   reduce?
# - Why does a GPU with twice the FLOP/s often generate no more tokens?
#
# **Time:** about 225 minutes. **Points:** 100. **You need:** Python, matrix products, and what a transformer is made
# of. [Lab 01](01-autograd.ipynb) comes first: Task 5 runs on the engine that you built there. Background: chapter 7,
# *Transformer arithmetic*.
#
# **Readings:** *Einsum tutorial (Einstein Summation in NumPy)* (`einsum-tutorial`), *How to Scale Your Model, Part 4:
# All the Transformer Math You Need to Know* (`scaling-book-transformers`), *Where do LLMs spend their FLOPS?*
# (`timbers-llm-flops`), *The Ultra-Scale Playbook: Training LLMs on GPU Clusters* (`ultrascale-playbook`),
# *Transformer Inference Arithmetic* (`kipply-inference-arithmetic`).
#
# **How it works.** Replace each line that raises `NotImplementedError`, run the cell, paste the example to see whether
# it does what the text says, then run the `check` below. Cells that start with `#| export` are what is graded. Names
# are those of the course's package, `mlsys_lab.flops`. Counts are exact ints: divide them with `//`, never with `/`. If
# a function calls one from an earlier task, it is judged with a correct version of that one, so a mistake costs points
# only once.
#
# **Letters:** B sequences in a batch, T tokens per sequence, L layers, D width of the model, F width of the MLP, N
# query heads, K key/value heads, H width of a head, V vocabulary. A multiply-add is two FLOPs, and a GB is $10^9$
# bytes.

# %%
from mlsys_lab.checks import lab

check = lab("transformer-arithmetic")

# %%
#| export
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# %% [markdown]
# ## Task 1 · FLOPs and bytes of an einsum
#
# *About 35 minutes.*
#
# **Goal.** An einsum is a loop nest in one line, and nearly all of a transformer's arithmetic can be written as
# einsums. Write a calculator that counts the FLOPs and bytes of any of them: their ratio, the **arithmetic
# intensity**, decides whether a GPU computes or waits for memory.
#
# ```text
# "bij,bjk->bik"     for b: for i: for j: for k:                 one loop for each letter
#                        out[b, i, k] += x[b, i, j] * y[b, j, k]
# ```
#
# The letters before a comma index an operand, those after the arrow index the output. A letter that the output does
# not have (here `j`) is summed over.
#
# **Interface**
#
# | | returns |
# |---|---|
# | `parse_einsum(subscripts, *shapes)` | the operands' letters, the output's letters, the size of each letter |
# | `einsum_flops(subscripts, *shapes)` | int: FLOPs of the loop nest over all letters |
# | `einsum_bytes(subscripts, *shapes, element_bytes=2)` | int: bytes to read each operand and write the output once |
# | `best_first_pair(subscripts, *shapes)` | of three operands, the two to contract first, and the FLOPs of both steps |
#
# **Example**
#
# ```python
# parse_einsum("ij,jk->ik", (2, 3), (3, 4))  # → (["ij", "jk"], "ik", {"i": 2, "j": 3, "k": 4})
# einsum_flops("ij,jk->ik", (2, 3), (3, 4))  # → 48
# einsum_flops("ij,ij->ij", (2, 3), (2, 3))  # → 6
# einsum_bytes("ij,jk->ik", (2, 3), (3, 4))  # → 52
# best_first_pair("ij,jk,kl->il", (10, 100), (100, 5), (5, 50))  # → ((0, 1), 15000)
# ```
#
# (Why 6: nothing is summed, so the innermost line multiplies and does not add. Why 15,000: the first two operands
# make a 10 × 5 matrix for 10,000 FLOPs, and 5,000 more contract it with the third. The other way round the
# intermediate is 100 × 50, and the two steps cost 150,000.)
#
# **Requirements**
#
# - `parse_einsum` raises `ValueError` if an operand has more or fewer letters than its shape has axes, if a letter has
#   two sizes, if there are more or fewer shapes than operands, or if the output has a letter that no operand has.
# - `einsum_flops`: work out how often the innermost line runs, and how many multiplications and additions it does
#   for any number of operands. The first addition, to zero, counts.
# - `best_first_pair` tries the pairs (0, 1), (0, 2) and (1, 2), in this order, and returns the first of them if two
#   cost the same. The cost is the FLOPs of both steps, each as `einsum_flops` counts them.
# - The intermediate keeps exactly those letters that the third operand or the output needs.
#
# **Size:** about 12, 3, 3 and 11 lines.
#
# <details><summary>Details</summary>
#
# - A letter of size 1 is summed like any other, and a size may be 0.
# - Small and capital letters are different letters. An operand without letters is a number, as in `",ij->ij"`.
# - A shape may be a list or a tuple.
# - The notation itself needs no check: there is one `->`, no space, and no letter twice in one operand.
#
# </details>


# %% nbgrader={"solution": true, "grade_id": "task-1-einsum"}
#| export
def parse_einsum(
    subscripts: str, *shapes: Sequence[int]
) -> tuple[list[str], str, dict[str, int]]:
    """Letters of the operands and of the output, size of each letter. About 12 lines.

    Raises ValueError if letters and shapes do not fit together.
    """
    ### BEGIN SOLUTION
    left, output = subscripts.split("->")
    operands = left.split(",")
    if len(operands) != len(shapes):
        raise ValueError(f"{len(operands)} operands, {len(shapes)} shapes")
    sizes: dict[str, int] = {}
    for letters, shape in zip(operands, shapes, strict=True):
        if len(letters) != len(shape):
            raise ValueError(f"operand {letters} has a shape of {len(shape)} axes")
        for letter, size in zip(letters, shape, strict=True):
            if sizes.setdefault(letter, size) != size:
                raise ValueError(f"{letter} is {sizes[letter]} and {size}")
    if unknown := set(output) - set(sizes):
        raise ValueError(f"no operand has {unknown}")
    return operands, output, sizes
    ### END SOLUTION


def einsum_flops(subscripts: str, *shapes: Sequence[int]) -> int:
    """FLOPs of the einsum as one loop nest over all letters. About 3 lines."""
    ### BEGIN SOLUTION
    operands, output, sizes = parse_einsum(subscripts, *shapes)
    is_summed = set(sizes) != set(output)
    return (len(operands) - 1 + is_summed) * math.prod(sizes.values())
    ### END SOLUTION


def einsum_bytes(
    subscripts: str, *shapes: Sequence[int], element_bytes: int = 2
) -> int:
    """Least bytes moved: operands read once, output written once. About 3 lines."""
    ### BEGIN SOLUTION
    operands, output, sizes = parse_einsum(subscripts, *shapes)
    arrays = [*operands, output]
    return element_bytes * sum(math.prod(sizes[x] for x in array) for array in arrays)
    ### END SOLUTION


def best_first_pair(
    subscripts: str, *shapes: Sequence[int]
) -> tuple[tuple[int, int], int]:
    """Of three operands, the pair to contract first; all FLOPs. About 11 lines."""
    ### BEGIN SOLUTION
    operands, output, sizes = parse_einsum(subscripts, *shapes)

    def cost(one: str, other: str, result: str) -> int:
        pair = [[sizes[letter] for letter in letters] for letters in (one, other)]
        return einsum_flops(f"{one},{other}->{result}", *pair)

    costs = {}
    for i, j in itertools.combinations(range(3), 2):
        third, letters = operands[3 - i - j], dict.fromkeys(operands[i] + operands[j])
        between = "".join(letter for letter in letters if letter in third + output)
        first = cost(operands[i], operands[j], between)
        costs[i, j] = first + cost(between, third, output)
    best = min(costs, key=costs.__getitem__)
    return best, costs[best]
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "einsum_parse"}
check("einsum_parse")

# %% nbgrader={"grade": true, "grade_id": "einsum_cost"}
check("einsum_cost")

# %% nbgrader={"grade": true, "grade_id": "einsum_order"}
check("einsum_order")

# %% [markdown]
# **Predict, then measure.** The first matrix of an MLP multiplies activations of width 4,096 by a weight matrix of
# 4,096 × 16,384. An H100 does 989 TFLOP/s in bf16 and reads 3.35 TB/s. What percentage of its peak can it reach when
# a single token is multiplied?

# %%
guess = None  # percent of peak, one token

# %%
import plotly.graph_objects as go

from mlsys_lab.hardware import device
from mlsys_lab.widgets import show

weights, keys = (4096, 16384), (32, 4096, 32, 128)
works = {
    "MLP, 4,096 tokens": ("td,df->tf", (4096, 4096), weights),
    "MLP, 32 tokens": ("td,df->tf", (32, 4096), weights),
    "MLP, 1 token": ("td,df->tf", (1, 4096), weights),
    "scores, 1 new token of 32 sequences": ("bnh,bsnh->bns", (32, 32, 128), keys),
}
h100 = device("H100")
peak, bandwidth = h100.peak("bf16"), h100.memory_bandwidth_bytes_per_s
intensity = {
    name: einsum_flops(*work) / einsum_bytes(*work) for name, work in works.items()
}
reached = {name: h100.attainable("bf16", x) / peak for name, x in intensity.items()}
axis = sorted([*(2.0**power for power in range(-2, 14)), peak / bandwidth])
roof = [h100.attainable("bf16", x) / 1e12 for x in axis]
figure = go.Figure(go.Scatter(x=axis, y=roof, name="roofline of an H100, bf16"))
symbols = ("circle", "square", "diamond", "x")
for symbol, (name, x) in zip(symbols, intensity.items(), strict=True):
    y = reached[name] * peak / 1e12
    figure.add_scatter(
        x=[x], y=[y], name=name, mode="markers", marker_size=13, marker_symbol=symbol
    )
    print(f"{name:38} {x:8.1f} FLOP/byte, at most {reached[name]:6.1%} of peak")
figure.update_layout(xaxis_title="FLOP/byte", yaxis_title="TFLOP/s at most")
figure.update_xaxes(type="log", dtick=1, tickformat=",")
figure.update_yaxes(type="log", dtick=1, tickformat=",")
show(
    figure, alt="Four products on the roofline of an H100; with few tokens on its slope"
)
check.predict(guess, 100 * reached["MLP, 1 token"], "% of peak")

# %% [markdown]
# One token takes two FLOPs per weight, and each weight is two bytes: 1 FLOP per byte, where the H100 needs 295 to be
# busy. The product is memory-bound by that factor. At this precision only more tokens per step help, because they share
# the weights. The last line shows what they do not share: each sequence reads keys of its own.
#
# ## Task 2 · Count the parameters
#
# *About 30 minutes.*
#
# **Goal.** GPT-2 and Llama are the same architecture with different sizes and switches. Count the parameters of any
# such model exactly and by kind: the bytes of weights, gradients, optimizer states and checkpoints are all multiples
# of this number.
#
# A decoder transformer is a stack of L layers between an embedding and a head. Each layer does
# `x = x + attention(norm(x))` and then `x = x + mlp(norm(x))`. One record holds all sizes:


# %%
#| export
@dataclass(frozen=True)
class TransformerConfig:
    """Sizes and switches of a decoder transformer."""

    name: str
    n_layers: int  # L
    d_model: int  # D
    n_heads: int  # N
    d_ff: int  # F
    vocab_size: int  # V
    context: int  # longest sequence
    n_kv_heads: int = 0  # K; 0: as many as query heads
    head_dim: int = 0  # H; 0: D / N
    position: str = "rotary"  # or "learned"
    norm: str = "rms"  # or "layer"
    activation: str = "swiglu"  # or "gelu" or "relu"
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    norm_bias: bool = False  # of layer norms; an RMS norm never has one
    tied: bool = False  # the head is the embedding's table

    def __post_init__(self) -> None:
        n_kv_heads = self.n_kv_heads or self.n_heads
        object.__setattr__(self, "n_kv_heads", n_kv_heads)
        head_dim = self.head_dim or self.d_model // self.n_heads
        object.__setattr__(self, "head_dim", head_dim)
        if self.n_heads % self.n_kv_heads:
            raise ValueError(f"{self.n_heads} heads in {self.n_kv_heads} groups")
        if self.norm == "rms" and self.norm_bias:
            raise ValueError("an RMS norm has no bias")


@dataclass(frozen=True)
class Parameters:
    """Parameters of a whole model by kind."""

    embedding: int
    position: int
    attention: int
    mlp: int
    norm: int
    head: int

    @property
    def total(self) -> int:
        """Number of all parameters."""
        return sum(vars(self).values())


TINY = TransformerConfig(
    "tiny",
    n_layers=1,
    d_model=4,
    n_heads=2,
    d_ff=6,
    vocab_size=10,
    context=8,
    n_kv_heads=1,
)

# %% [markdown]
# What the parts are made of (a matrix $A \to B$ has $A \cdot B$ weights, and a bias one number for each output):
#
# | part | how often | made of | bias if |
# |---|---|---|---|
# | `embedding` | once | a table of V rows of width D | |
# | `position` | once | `"learned"`: a row of width D for each position of the context; `"rotary"`: nothing | |
# | `attention` | per layer | query $D \to NH$, key and value $D \to KH$ each | `qkv_bias` |
# | | | output $NH \to D$ | `out_bias` |
# | `mlp` | per layer | up $D \to F$, down $F \to D$; with `"swiglu"` also gate $D \to F$ | `mlp_bias` |
# | `norm` | 2 per layer, 1 at the end | a weight for each channel | `norm_bias` |
# | `head` | once | a matrix $D \to V$; if `tied`, none of its own | never |
#
# **Interface**
#
# | | returns | |
# |---|---|---|
# | `parameters(config)` | `Parameters` | numbers of the whole model, all layers together |
#
# **Example**
#
# ```python
# parameters(TINY)  # → Parameters(embedding=40, position=0, attention=48, mlp=72, norm=12, head=40)
# parameters(TINY).total  # → 212
# ```
#
# (Attention: two query heads of width 2 make query and output matrices of 4 × 4; the one key/value head makes key
# and value matrices of 4 × 2.)
#
# **Requirements**
#
# - A group of $N/K$ query heads shares one key/value head. $NH$ need not be $D$.
# - A kind that the model does not have counts 0.
#
# **Size:** about 17 lines.


# %% nbgrader={"solution": true, "grade_id": "task-2-parameters"}
#| export
def parameters(config: TransformerConfig) -> Parameters:
    """Parameters of the whole model, by kind. About 17 lines."""
    ### BEGIN SOLUTION
    c = config
    queries, keys = c.n_heads * c.head_dim, c.n_kv_heads * c.head_dim
    attention = c.d_model * (2 * queries + 2 * keys)
    attention += c.qkv_bias * (queries + 2 * keys) + c.out_bias * c.d_model
    matrices = 3 if c.activation == "swiglu" else 2
    mlp = matrices * c.d_model * c.d_ff
    mlp += c.mlp_bias * ((matrices - 1) * c.d_ff + c.d_model)
    norm = c.d_model * (1 + c.norm_bias)
    return Parameters(
        embedding=c.vocab_size * c.d_model,
        position=c.context * c.d_model if c.position == "learned" else 0,
        attention=c.n_layers * attention,
        mlp=c.n_layers * mlp,
        norm=(2 * c.n_layers + 1) * norm,
        head=0 if c.tied else c.d_model * c.vocab_size,
    )
    ### END SOLUTION


def count_parameters(config: TransformerConfig) -> int:
    """All parameters of the model."""
    return parameters(config).total


# %% nbgrader={"grade": true, "grade_id": "parameters_gpt2"}
check("parameters_gpt2")

# %% nbgrader={"grade": true, "grade_id": "parameters_llama"}
check("parameters_llama")

# %% [markdown]
# **See it.** Three models whose counts are published: yours must agree to the last digit. Which kind of parameters
# dominates the smallest model, and which the largest?

# %%
biases = dict.fromkeys(("qkv_bias", "out_bias", "mlp_bias", "norm_bias"), True)
GPT2 = TransformerConfig(
    "GPT-2 124M",
    n_layers=12,
    d_model=768,
    n_heads=12,
    d_ff=3072,
    vocab_size=50257,
    context=1024,
    position="learned",
    norm="layer",
    activation="gelu",
    tied=True,
    **biases,
)
LLAMA_7B = TransformerConfig("Llama 2 7B", 32, 4096, 32, 11008, 32000, 4096)
LLAMA_70B = TransformerConfig(
    "Llama 2 70B", 80, 8192, 64, 28672, 32000, 4096, n_kv_heads=8
)
published = {GPT2: 124_439_808, LLAMA_7B: 6_738_415_616, LLAMA_70B: 68_976_648_192}
for config, number in published.items():
    counted = count_parameters(config)
    print(f"{config.name:12} counted {counted:15,}, published {number:15,}")
tables = {config.name: parameters(config) for config in published}
figure = go.Figure()
for kind in vars(tables[GPT2.name]):
    fractions = [getattr(table, kind) / table.total for table in tables.values()]
    figure.add_bar(name=kind, x=list(tables), y=fractions)
figure.update_layout(barmode="stack", yaxis_title="fraction of all parameters")
figure.update_yaxes(tickformat=".0%")
show(
    figure, alt="Parameters of three models by kind: in the largest most are in the MLP"
)

# %% [markdown]
# Embedding and head grow with the width of a model, its layers with the square of the width. In GPT-2 the embedding
# table still has almost a third of all parameters; in Llama 2 70B it hardly shows.
#
# ## Task 3 · Every matrix product, and its FLOPs
#
# *About 35 minutes.*
#
# **Goal.** Matrix products do more than 99 % of a large transformer's arithmetic. List all of them, and the list tells
# you how much a training run computes, and from which sequence length on attention dominates.
#
# **Interface**
#
# | | returns |
# |---|---|
# | `forward_products(config, tokens, batch=1)` | list of `(name, times, m, k, n)`, as in the table below |
# | `training_flops(config, total_tokens)` | int: FLOPs of training on sequences of `config.context` tokens |
# | `attention_share(config, tokens)` | float: fraction of a sequence's FLOPs in `scores` and `weighted_sum` |
# | `attention_crossover(config)` | float: the number of tokens at which this fraction is one half |
#
# An entry stands for `times` products of an $(m, k)$ by a $(k, n)$ matrix, $2mkn$ FLOPs each.
# The products of a forward pass over B sequences of T tokens:
#
# | name | times | what is multiplied |
# |---|---|---|
# | `query`, `key`, `value` | L | all $BT$ tokens at once, by the matrices of Task 2 |
# | `scores` | L · B · N | per head: T queries by T keys, none of them masked out |
# | `weighted_sum` | L · B · N | per head: the (T, T) softmax of the scores by T values |
# | `output` | L | the heads' results, concatenated, back to width D |
# | `gate`, `up`, `down` | L | the MLP; `gate` with SwiGLU only |
# | `head` | 1 | logits of all tokens |
#
# **Example**
#
# ```python
# products = forward_products(TINY, tokens=3, batch=5)
# [product for product in products if product[0] == "key"]  # → [("key", 1, 15, 4, 2)]
# [product for product in products if product[0] == "scores"]  # → [("scores", 10, 3, 2, 3)]
# training_flops(TINY, 16)  # → 21504
# round(attention_share(TINY, 8), 3)  # → 0.286
# attention_crossover(TINY)  # → 20.0
# ```
#
# **Requirements**
#
# - Grouped heads make `key` and `value` smaller. They do not change `scores`: each query head still meets T keys.
# - Work out `training_flops` from what lab 01 taught you about the backward pass of a product: how many products, of
#   which size? The first layer's backward pass is no exception here: its input needs a gradient, which goes on to the
#   embedding.
# - `total_tokens` is a multiple of `config.context`, and may be 0.
# - For the crossover, split the FLOPs of a sequence into a part that grows with T and a part that grows with T². The
#   result need not be a whole number.
#
# **Size:** about 18, 3, 3 and 4 lines.
#
# <details><summary>Details</summary>
#
# - The order of the list does not matter, and one product may be listed in several entries.
# - T may exceed `config.context`, here and in what follows.
# - The embedding is a look-up and multiplies nothing. The head multiplies, tied or not.
#
# </details>


# %% nbgrader={"solution": true, "grade_id": "task-3-products"}
#| export
Product = tuple[str, int, int, int, int]
"""(name, times, m, k, n): `times` products of an (m, k) by a (k, n) matrix."""


def forward_products(
    config: TransformerConfig, tokens: int, batch: int = 1
) -> list[Product]:
    """Every matrix product of a forward pass. About 18 lines."""
    ### BEGIN SOLUTION
    c, rows = config, batch * tokens
    queries, keys = c.n_heads * c.head_dim, c.n_kv_heads * c.head_dim
    heads = batch * c.n_heads
    layer = [
        ("query", 1, rows, c.d_model, queries),
        ("key", 1, rows, c.d_model, keys),
        ("value", 1, rows, c.d_model, keys),
        ("scores", heads, tokens, c.head_dim, tokens),
        ("weighted_sum", heads, tokens, tokens, c.head_dim),
        ("output", 1, rows, queries, c.d_model),
        ("up", 1, rows, c.d_model, c.d_ff),
        ("down", 1, rows, c.d_ff, c.d_model),
    ]
    if c.activation == "swiglu":
        layer.append(("gate", 1, rows, c.d_model, c.d_ff))
    products = [(name, c.n_layers * times, m, k, n) for name, times, m, k, n in layer]
    return [*products, ("head", 1, rows, c.d_model, c.vocab_size)]
    ### END SOLUTION


def flops_of(products: Sequence[Product]) -> int:
    """FLOPs of all products of a list."""
    return sum(2 * times * m * k * n for _, times, m, k, n in products)


def training_flops(config: TransformerConfig, total_tokens: int) -> int:
    """FLOPs of a training run on sequences of config.context tokens. About 3 lines."""
    ### BEGIN SOLUTION
    sequences = total_tokens // config.context
    forward = flops_of(forward_products(config, config.context, sequences))
    return 3 * forward
    ### END SOLUTION


def attention_share(config: TransformerConfig, tokens: int) -> float:
    """Fraction of the FLOPs in scores and weighted sums. About 3 lines."""
    ### BEGIN SOLUTION
    products = forward_products(config, tokens)
    quadratic = [one for one in products if one[0] in ("scores", "weighted_sum")]
    return flops_of(quadratic) / flops_of(products)
    ### END SOLUTION


def attention_crossover(config: TransformerConfig) -> float:
    """Tokens of a sequence at which this fraction is one half. About 4 lines."""
    ### BEGIN SOLUTION
    total = flops_of(forward_products(config, 1))
    quadratic = 4 * config.n_layers * config.n_heads * config.head_dim
    return (total - quadratic) / quadratic
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "forward_products"}
check("forward_products")

# %% nbgrader={"grade": true, "grade_id": "training_flops"}
check("training_flops")

# %% nbgrader={"grade": true, "grade_id": "attention_share"}
check("attention_share")

# %% [markdown]
# **Predict, then measure.** Llama 2 7B has 6.6 billion weights that multiply every token, 32 layers, and 32 heads of
# width 128. At how many tokens per sequence is half of its arithmetic in scores and weighted sums?

# %%
guess = None  # tokens

# %%
lengths = [2**power for power in range(7, 21)]
figure = go.Figure()
for config in published:
    fractions = [attention_share(config, tokens) for tokens in lengths]
    figure.add_scatter(x=lengths, y=fractions, name=config.name)
    figure.add_vline(x=attention_crossover(config), line_dash="dot")
    print(f"{config.name:12} one half at {attention_crossover(config):9,.0f} tokens")
figure.update_layout(xaxis_title="tokens of a sequence", xaxis_type="log", height=360)
figure.update_yaxes(title="fraction of the FLOPs", tickformat=".0%")
show(figure, alt="Fraction of FLOPs in scores and weighted sums, with each crossover")
check.predict(guess, attention_crossover(LLAMA_7B), "tokens")

# %% [markdown]
# Well below its crossover a model is a stack of matrices, and its cost per token hardly depends on the length of a
# sequence. Far above, twice the length costs twice as much per token.
#
# **See it.** The rule of thumb says 6 FLOPs per parameter per token: 2 forward, 4 backward. Your exact count says how
# good the rule is. And what fraction of peak did Meta reach? It trained the two Llama 2 models on 2 trillion tokens and
# reports 184,320 and 1,720,320 A100 hours (Touvron et al. 2023, table 2).

# %%
a100 = device("A100 80GB").peak("bf16")
reported_hours = {LLAMA_7B: 184_320, LLAMA_70B: 1_720_320}
for config, hours in reported_hours.items():
    tokens = 2_000_000_000_000 // config.context * config.context
    total, rule = training_flops(config, tokens), 6 * count_parameters(config) * tokens
    print(f"{config.name}: {total:.3g} FLOPs, of which the rule finds", end=" ")
    print(f"{rule / total:.1%}; {total / (hours * 3600 * a100):.0%} of peak reached")

# %% [markdown]
# The rule misses the scores and weighted sums, and counts an embedding that multiplies nothing. Here it finds about
# nine tenths of the FLOPs; the longer the sequences, the less. The fraction of peak is called **model FLOPs
# utilization** (MFU). Nearly half of peak is a good value for a large run.
#
# ## Task 4 · A memory plan
#
# *About 45 minutes.*
#
# **Goal.** Training holds weights, gradients and optimizer states, which depend on the model alone, and activations,
# which grow with the batch. Work out the bytes of each on one device, and you know how many devices a run needs.
#
# Devices are arranged as `data` × `tensor`. A group of `tensor` devices holds one replica of the model and divides
# every array evenly. Different groups see different data. ZeRO also shards what the `data` replicas would otherwise
# all hold:
#
# | kind | format | bytes per parameter | sharded among `data` ranks from |
# |---|---|---|---|
# | weights | bf16 | 2 | stage 3 |
# | gradients | bf16 | 2 | stage 2 |
# | master copy of the weights | fp32 | 4 | stage 1 |
# | Adam's two moments | fp32 | 8 | stage 1 |
#
# **Interface**
#
# ```text
# states(n_parameters, *, data=1, zero_stage=0, tensor=1) -> States
# activation_bytes(config, tokens, batch=1, *, tensor=1, recomputation="none") -> int
# fewest_devices(config, tokens, memory_bytes, *, tensor=1, zero_stage=3,
#                recomputation="none", max_devices=4096) -> int or None
# ```
#
# The first two return bytes on one device: of the four kinds of states, and of the activations of `batch` sequences
# in its tensor-parallel group. `fewest_devices` returns the smallest `data` · `tensor` with which one sequence per
# group fits into `memory_bytes` on each device.


# %%
#| export
@dataclass(frozen=True)
class States:
    """Bytes of training states on one device."""

    weights: int
    gradients: int
    master: int
    moments: int

    @property
    def total(self) -> int:
        """Bytes of all kinds."""
        return sum(vars(self).values())


# %% [markdown]
# **What activations are kept?** Whatever the backward pass will read, in bf16:
#
# | operation | keeps | operation | keeps |
# |---|---|---|---|
# | product with a weight matrix | its input | elementwise product of two arrays | both |
# | product of two activations | both | SiLU, GELU | its input |
# | softmax | its result | ReLU | its result |
# | norm | its input | addition, scaling, mask | nothing |
#
# An array that two operations keep is kept once. For the first half of a layer this gives, in elements per token:
#
# | kept | because | elements |
# |---|---|---|
# | input and result of the norm | norm; query, key and value matrices | 2 D |
# | queries, keys, values | scores; weighted sum | NH + 2 KH |
# | softmax of the scores | softmax; weighted sum | NT |
# | result of attention | output matrix | NH |
#
# Work out the second half (a norm and the MLP) yourself, for each of the three activations; SwiGLU's hidden layer is
# $\mathrm{silu}(xW_\mathrm{gate}) \odot xW_\mathrm{up}$. After the last layer come the last norm, the head, and the
# probabilities of the loss: V elements in **fp32**.
#
# **Recomputation** keeps less, and repeats part of the forward pass when a layer's backward pass starts:
#
# | `recomputation` | a layer keeps |
# |---|---|
# | `"none"` | everything |
# | `"selective"` | everything but the softmax of the scores |
# | `"full"` | its input only (D elements per token) |
#
# The peak comes when one layer has recomputed what it did not keep: that layer then holds **everything**, while each
# of the other L − 1 layers holds what the table says.
#
# **Example**
#
# ```python
# states(1001, data=4, zero_stage=1)  # → States(weights=2002, gradients=2002, master=1004, moments=2008)
# activation_bytes(TINY, tokens=8)  # → 1536
# two = TransformerConfig("two layers", 2, 4, 2, 6, 10, 8, n_kv_heads=1)
# [activation_bytes(two, 8, recomputation=how) for how in ("none", "selective", "full")]  # → [2624, 2368, 1600]
# fewest_devices(TINY, 8, memory_bytes=2500)  # → 4
# ```
#
# (1,001 parameters on 4 ranks: no rank gets more than 251, and 251 · 4 bytes = 1,004. The 1,536 bytes: 68 elements
# per token in the layer and 8 for the last norm, 2 bytes each; 10 probabilities of 4 bytes; all that for 8 tokens.)
#
# **Requirements**
#
# - `states`: divide by `tensor` first, then by `data` if the stage says so. After each division round the **number of
#   parameters** up; multiply by bytes last.
# - `activation_bytes`: divide the total by `tensor`, what norms keep included. (D, F, V, N, K and T are multiples of it
#   here.)
# - `fewest_devices`: the result is a multiple of `tensor` and at most `max_devices`; `None` if there is none. A plan
#   that fills the memory exactly fits. `training_memory`, which is given, adds up your two functions.
#
# **Size:** about 8, 14 and 8 lines.
#
# <details><summary>Details</summary>
#
# - The norm's own statistics, dropout masks, what rotary positions need, communication buffers and the complete weights
#   that ZeRO 3 gathers for the layer being computed are left out.
# - To divide what norms keep by `tensor` too, as is done here, is called *sequence parallelism* (Megatron-LM).
# - More data-parallel ranks make states smaller, never the activations of a sequence.
#
# </details>


# %% nbgrader={"solution": true, "grade_id": "task-4-memory"}
#| export
def states(
    n_parameters: int, *, data: int = 1, zero_stage: int = 0, tensor: int = 1
) -> States:
    """Bytes of weights, gradients, master copy and moments. About 8 lines."""
    ### BEGIN SOLUTION
    own = -(-n_parameters // tensor)
    shard = -(-own // data)
    return States(
        weights=2 * (shard if zero_stage >= 3 else own),
        gradients=2 * (shard if zero_stage >= 2 else own),
        master=4 * (shard if zero_stage >= 1 else own),
        moments=8 * (shard if zero_stage >= 1 else own),
    )
    ### END SOLUTION


def activation_bytes(
    config: TransformerConfig,
    tokens: int,
    batch: int = 1,
    *,
    tensor: int = 1,
    recomputation: str = "none",
) -> int:
    """Bytes of activations per device. About 14 lines."""
    ### BEGIN SOLUTION
    c = config
    attention = 2 * (c.n_heads + c.n_kv_heads) * c.head_dim
    mlp = {"swiglu": 4, "gelu": 2, "relu": 1}[c.activation] * c.d_ff
    everything = 4 * c.d_model + attention + mlp + c.n_heads * tokens
    kept = {
        "none": everything,
        "selective": everything - c.n_heads * tokens,
        "full": c.d_model,
    }
    layers = (c.n_layers - 1) * kept[recomputation] + everything
    token_bytes = 2 * (layers + 2 * c.d_model) + 4 * c.vocab_size
    return batch * tokens * token_bytes // tensor
    ### END SOLUTION


def training_memory(
    config: TransformerConfig,
    tokens: int,
    batch: int = 1,
    *,
    data: int = 1,
    tensor: int = 1,
    zero_stage: int = 0,
    recomputation: str = "none",
) -> dict[str, int]:
    """Bytes on one device, for `batch` sequences in each tensor-parallel group."""
    held = states(
        count_parameters(config), data=data, zero_stage=zero_stage, tensor=tensor
    )
    kept = activation_bytes(
        config, tokens, batch, tensor=tensor, recomputation=recomputation
    )
    return {**vars(held), "activations": kept}


def fewest_devices(
    config: TransformerConfig,
    tokens: int,
    memory_bytes: int,
    *,
    tensor: int = 1,
    zero_stage: int = 3,
    recomputation: str = "none",
    max_devices: int = 4096,
) -> int | None:
    """The smallest number of devices that holds a run. About 8 lines."""
    ### BEGIN SOLUTION
    plan = {"tensor": tensor, "zero_stage": zero_stage, "recomputation": recomputation}
    for data in range(1, max_devices // tensor + 1):
        held = training_memory(config, tokens, data=data, **plan)
        if sum(held.values()) <= memory_bytes:
            return data * tensor
    return None
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "state_bytes"}
check("state_bytes")

# %% nbgrader={"grade": true, "grade_id": "activation_bytes"}
check("activation_bytes")

# %% nbgrader={"grade": true, "grade_id": "fewest_devices"}
check("fewest_devices")

# %% [markdown]
# **Predict, then measure.** Llama 2 70B has 69 billion parameters. How many devices of 80 GB does it need at least to
# train on sequences of 4,096 tokens, with ZeRO 3 and full recomputation?

# %%
guess = None  # devices

# %%
plans = {
    "ZeRO 0": {},
    "ZeRO 1": {"zero_stage": 1},
    "ZeRO 2": {"zero_stage": 2},
    "ZeRO 3": {"zero_stage": 3},
    "ZeRO 3, selective": {"zero_stage": 3, "recomputation": "selective"},
    "ZeRO 3, full": {"zero_stage": 3, "recomputation": "full"},
    "ZeRO 1, tensor 8, full": {"zero_stage": 1, "tensor": 8, "recomputation": "full"},
}
fewest = {}
for config in (LLAMA_7B, LLAMA_70B):
    bars = {}
    for name, plan in plans.items():
        data = 64 // plan.get("tensor", 1)
        bars[name] = training_memory(config, 4096, data=data, **plan)
        if plan:
            fewest[config.name, name] = fewest_devices(config, 4096, 80 * 10**9, **plan)
            found = fewest[config.name, name] or "never, or more than 4,096"
            print(f"{config.name:11}, {name:22}: fewest devices: {found}")
    figure = go.Figure()
    for kind in ("weights", "gradients", "master", "moments", "activations"):
        x = [name.replace(", ", "<br>") for name in bars]
        figure.add_bar(name=kind, x=x, y=[bar[kind] / 1e9 for bar in bars.values()])
    figure.add_hline(y=80, line_dash="dot", annotation_text="80 GB")
    figure.update_layout(barmode="stack", title=f"{config.name} on 64 devices")
    figure.update_yaxes(title="GB per device")
    show(
        figure,
        alt=f"Memory per device of {config.name} on 64 devices, by plan and kind",
    )
check.predict(guess, fewest[LLAMA_70B.name, "ZeRO 3, full"], "devices")

# %% [markdown]
# The states alone, 16 bytes per parameter, fill 13.8 devices. Full recomputation leaves so few activations that they
# add only two more; without it, the activations of one sequence fill a device several times over, and no number of
# data-parallel ranks helps. Which bars stay below the line, and what would you shard next in the others?
#
# ## Task 5 · Predict a step, then measure it
#
# *About 45 minutes.*
#
# **Goal.** Now a model that this machine can run, on the engine of lab 01: yours if it was accepted, else the
# course's. Predict the time of a training step from its parts, before the model has run once.
#
# A step spends its time on two things:
#
# - **matrix products**, whose speed depends on their shape, so a rate is measured for each shape;
# - **elementwise work** (norms, softmax, additions, copies), which does hardly any arithmetic and waits for memory. Its
#   unit is one element of an array that the forward pass writes, together with its part of the backward pass.
#
# This is the model. It has RMS norms, ReLU, learned positions, an untied head and no biases:

# %%
import torch

from mlsys_lab import stack
from mlsys_lab.benchmark import compare

torch.set_num_threads(1)
engine = stack.load("autograd")
SMALL = TransformerConfig(
    "small",
    n_layers=4,
    d_model=512,
    n_heads=8,
    d_ff=2048,
    vocab_size=2048,
    context=128,
    position="learned",
    activation="relu",
)


class SmallTransformer:
    """SMALL on the engine: token ids (B, T) → logits (B·T, V)."""

    def __init__(self, config):
        c, self.config, self.weights = config, config, {}
        inner = c.n_heads * c.head_dim
        shapes = {
            "tokens": (c.vocab_size, c.d_model),
            "head": (c.d_model, c.vocab_size),
        }
        shapes["positions"] = (c.context, c.d_model)
        for i in range(c.n_layers):
            inward = (f"query{i}", f"key{i}", f"value{i}")
            shapes |= {name: (c.d_model, inner) for name in inward}
            shapes[f"output{i}"] = (inner, c.d_model)
            shapes |= {f"up{i}": (c.d_model, c.d_ff), f"down{i}": (c.d_ff, c.d_model)}
        for name, shape in shapes.items():
            initial = torch.randn(shape) / math.sqrt(shape[0])
            self.weights[name] = engine.Tensor(initial, requires_grad=True)
        for name in ("norm", *(f"norm{j}{i}" for i in range(c.n_layers) for j in "ab")):
            ones = torch.ones(c.d_model)
            self.weights[name] = engine.Tensor(ones, requires_grad=True)
        masked = torch.full((c.context, c.context), -1e9).triu(1)
        self.mask = engine.Tensor(masked)

    def norm(self, x, name):
        inverse = ((x * x).mean(-1, keepdims=True) + 1e-6) ** -0.5  # (B·T, 1)
        return x * inverse * self.weights[name]

    def attention(self, x, i, B, T):
        N, H = self.config.n_heads, self.config.head_dim

        def heads(name):  # (B, N, T, H): one copy, made when it is first multiplied
            y = x @ self.weights[f"{name}{i}"]
            return y.reshape(B, T, N, H).permute(0, 2, 1, 3)

        scores = heads("query") @ heads("key").T  # (B, N, T, T)
        scores = scores * (1 / math.sqrt(H))
        scores = scores + self.mask[:T, :T]
        scores = scores - engine.Tensor(scores.data.amax(-1, keepdim=True))
        raised = scores.exp()
        softmax = raised / raised.sum(-1, keepdims=True)
        summed = softmax @ heads("value")  # (B, N, T, H)
        summed = summed.permute(0, 2, 1, 3).reshape(B * T, N * H)  # another copy
        return summed @ self.weights[f"output{i}"]

    def __call__(self, ids):
        B, T = ids.shape
        x = self.weights["tokens"][ids.reshape(-1)]
        x = x + self.weights["positions"][torch.arange(T).repeat(B)]
        for i in range(self.config.n_layers):
            x = x + self.attention(self.norm(x, f"norma{i}"), i, B, T)
            hidden = (self.norm(x, f"normb{i}") @ self.weights[f"up{i}"]).relu()
            x = x + hidden @ self.weights[f"down{i}"]
        return self.norm(x, "norm") @ self.weights["head"]


# %% [markdown]
# **Interface**
#
# | | returns |
# |---|---|
# | `step_products(config, tokens, batch=1)` | list: all products of a training step, forward and backward |
# | `elementwise_units(config, tokens, batch=1)` | int: units of elementwise work in a training step |
# | `predict_training_step_s(config, tokens, batch, rates, unit_s)` | float: seconds of a training step |
#
# Products are entries as in Task 3, with names of your choice. `rates[m, k, n]` is the FLOP/s of a product of that
# shape, and `unit_s` the seconds of one unit.
#
# **Elementwise work.** Matrix products, sums over rows and views do not count. The rest is counted in the code above,
# one unit for each element that an operation writes:
#
# | where | how often | units per token |
# |---|---|---|
# | `norm`: `x * x`, `x * inverse`, `… * weights` | 2 per layer, 1 at the end | 3 D |
# | copies of queries, keys, values and the result of attention | per layer | 4 NH |
# | after the product `scores`, up to `softmax` | per layer | NT for each (T, T) array that is written: how many? |
# | ReLU, and the two additions `x + …` | per layer | work it out |
# | embedding, positions, their sum | once | 3 D |
# | loss | once | 4 V |
#
# On top of that the update of the weights takes one unit per parameter and step, whatever the number of tokens.
#
# **Example**
#
# ```python
# small = TransformerConfig("s", 1, 4, 2, 6, 10, 8, position="learned", activation="relu")
# sum(2 * times * m * k * n for _, times, m, k, n in step_products(small, 3))  # → 3168
# elementwise_units(small, tokens=3)  # → 680
# elementwise_units(small, tokens=3, batch=2)  # → 1124
# rates = dict.fromkeys({(m, k, n) for _, _, m, k, n in step_products(small, 3)}, 1000.0)
# round(predict_training_step_s(small, 3, 1, rates, unit_s=0.001), 3)  # → 3.848
# ```
#
# (236 of the 680 units are parameters. With every rate at 1,000 FLOP/s, the 3,168 FLOPs of the step take 3.168 s, and
# the elementwise work takes 0.680 s.)
#
# **Requirements**
#
# - The backward pass of a product $Y = XW$ of shapes $(m, k) \cdot (k, n)$ runs two more products, one for the gradient
#   of each factor. Derive their shapes from the shapes of the gradients.
# - A product and its transpose, $(m, k, n)$ and $(n, k, m)$, count as the same product and have the same rate.
# - `predict_training_step_s` adds the seconds of **all** products of the step, each at the rate of its own shape, and
#   the seconds of the elementwise work. `rates` has every shape of your list, and its transpose.
#
# **Size:** about 4, 7 and 5 lines.


# %% nbgrader={"solution": true, "grade_id": "task-5-predict"}
#| export
def step_products(
    config: TransformerConfig, tokens: int, batch: int = 1
) -> list[Product]:
    """Every matrix product of a training step. About 4 lines."""
    ### BEGIN SOLUTION
    forward = forward_products(config, tokens, batch)
    to_input = [(f"{name}, dX", times, m, n, k) for name, times, m, k, n in forward]
    to_weight = [(f"{name}, dW", times, k, m, n) for name, times, m, k, n in forward]
    return [*forward, *to_input, *to_weight]
    ### END SOLUTION


def elementwise_units(config: TransformerConfig, tokens: int, batch: int = 1) -> int:
    """Units of elementwise work in a training step. About 7 lines."""
    ### BEGIN SOLUTION
    c = config
    norm, heads, scores = 3 * c.d_model, c.n_heads * c.head_dim, c.n_heads * tokens
    layer = 2 * norm + 4 * heads + 5 * scores + c.d_ff + 2 * c.d_model
    once = norm + 3 * c.d_model + 4 * c.vocab_size
    per_token = c.n_layers * layer + once
    return batch * tokens * per_token + count_parameters(c)
    ### END SOLUTION


def predict_training_step_s(
    config: TransformerConfig,
    tokens: int,
    batch: int,
    rates: Mapping[tuple[int, int, int], float],
    unit_s: float,
) -> float:
    """Seconds of a training step. About 5 lines."""
    ### BEGIN SOLUTION
    products_s = 0.0
    for _, times, m, k, n in step_products(config, tokens, batch):
        products_s += 2 * times * m * k * n / rates[m, k, n]
    elementwise_s = elementwise_units(config, tokens, batch) * unit_s
    return products_s + elementwise_s
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "step_products"}
check("step_products")

# %% nbgrader={"grade": true, "grade_id": "elementwise_units"}
check("elementwise_units")

# %% nbgrader={"grade": true, "grade_id": "predict_step"}
check("predict_step")

# %% [markdown]
# **Predict, then measure.** First the parts by themselves, on one thread: a product of each shape, and four elementwise
# operations of your engine, forward and backward. Your function predicts the step from these alone. What percentage of
# the step will be elementwise work?

# %%
guess = None  # percent of the predicted step

# %%
batch, tokens = 16, 64
UNITS = 4 * 2**22  # four operations on arrays of 16 MiB, which few caches hold


def at_once(times):
    """Heads of one layer are multiplied B·N at a time, everything else one by one."""
    heads = batch * SMALL.n_heads
    return heads if times % (SMALL.n_layers * heads) == 0 else 1


def parts():
    """Calls to time: a product of each shape, and some elementwise work."""
    calls = {}
    for _, times, m, k, n in step_products(SMALL, tokens, batch):
        x = torch.randn(at_once(times), m, k).squeeze(0)
        y = torch.randn(at_once(times), k, n).squeeze(0)
        calls[m, k, n, at_once(times)] = lambda x=x, y=y: x @ y
    x, y = (
        engine.Tensor(torch.randn(UNITS // 4), requires_grad=True) for _ in range(2)
    )
    g = torch.ones(UNITS // 4)

    def four_operations():
        x.grad = y.grad = None
        ((x * y).exp() + x).relu().backward(g)

    return calls | {"units": four_operations}


def predict(timings):
    """Your prediction from the times of the parts, and its elementwise work, in s."""
    rates = {}
    for m, k, n, count in (key for key in timings if isinstance(key, tuple)):
        rates[m, k, n] = 2 * count * m * k * n / timings[m, k, n, count].p50_s
    unit_s = timings["units"].p50_s / UNITS
    slowest, fastest = min(rates.values()) / 1e9, max(rates.values()) / 1e9
    print(f"products reach {slowest:.0f} to {fastest:.0f} GFLOP/s, by their shape")
    predicted_s = predict_training_step_s(SMALL, tokens, batch, rates, unit_s)
    return predicted_s, elementwise_units(SMALL, tokens, batch) * unit_s


predicted_s, elementwise_s = predict(compare(parts(), samples=7).timings)
print(f"predicted: {predicted_s * 1e3:.0f} ms per step")
check.predict(guess, 100 * elementwise_s / predicted_s, "% elementwise work")

# %% [markdown]
# Elementwise work does hardly any FLOPs and still takes a good part of the time: that is why kernels are fused. Now the
# model itself. Your code's prediction is judged like a guess.

# %%
torch.manual_seed(0)
model = SmallTransformer(SMALL)
held = sum(weight.data.numel() for weight in model.weights.values())
print(f"parameters: {count_parameters(SMALL):,} counted, {held:,} held")
ids = torch.randint(0, SMALL.vocab_size, (batch, tokens + 1))
losses = []


def train_step():
    """One step of plain gradient descent."""
    for weight in model.weights.values():
        weight.grad = None
    loss = engine.cross_entropy(model(ids[:, :-1]), ids[:, 1:].reshape(-1))
    loss.backward()
    for weight in model.weights.values():
        weight.data -= 0.1 * weight.grad
    losses.append(loss.item())


# The parts again, in turns with the step: a slow moment hits all of them alike.
timings = compare(parts() | {"step": train_step}, samples=7, warmup=1).timings
predicted_s, elementwise_s = predict(timings)
measured_s = timings["step"].p50_s
print(f"loss {losses[0]:.2f} at first, {losses[-1]:.2f} at last")
check.predict(1e3 * predicted_s, 1e3 * measured_s, "ms per step", within=0.25)
figure = go.Figure()
figure.add_bar(name="products", x=["predicted"], y=[predicted_s - elementwise_s])
figure.add_bar(name="elementwise", x=["predicted"], y=[elementwise_s])
figure.add_bar(name="measured", x=["measured"], y=[measured_s])
for fraction in (0.75, 1.25):
    figure.add_hline(
        fraction * measured_s,
        line_dash="dot",
        annotation_text=f"{fraction - 1:+.0%}",
        annotation_position="right",
    )
figure.update_layout(barmode="stack", yaxis_title="seconds per step")
figure.update_layout(legend={"orientation": "h", "y": 1.15})
show(figure, alt="Predicted step time by kind of work, next to the measured one")

# %% [markdown]
# On an idle machine a count made before anything ran lands within 25 % of the clock. On a busy one the long step is
# interrupted more often than the short parts, and the prediction comes out too low: run the cell again. If it stays
# outside, ask what the count leaves out: arrays that still fit into a cache, gradients that are added up, Python
# between the operations. Change `batch` or the width and predict again: where does the prediction fail first?
#
# ## Task 6 · Which GPU serves it?
#
# *About 35 minutes.*
#
# **Goal.** To generate text, a model runs once per token. Find out how many sequences a GPU can serve together, what
# limits a step, and which GPU generates a million tokens at the lowest price.
#
# In a **decode step** each sequence of the batch gets one new token. The step reads every weight once, however large
# the batch is, and each sequence's own **KV cache**: the keys and values of all of its tokens in every layer. All
# numbers are in bf16, 2 bytes.


# %%
#| export
@dataclass(frozen=True)
class Machine:
    """A GPU to rent."""

    name: str
    memory_bytes: float
    memory_bytes_per_s: float
    peak_flops_per_s: float
    price_per_hour: float


@dataclass(frozen=True)
class Choice:
    """How a machine serves a model with its largest batch."""

    machine: str  # its name
    batch: int
    step_s: float
    limit: str  # "memory" or "compute"
    cost_per_million_tokens: float


# %% [markdown]
# **Interface**
#
# | | returns |
# |---|---|
# | `kv_cache_bytes(config, tokens, batch=1)` | int: bytes of the keys and values of `batch` sequences |
# | `largest_batch(config, tokens, memory_bytes)` | int: how many sequences fit next to all parameters, or 0 |
# | `decode_work(config, tokens, batch=1)` | `(int, int)`: FLOPs and bytes of a decode step |
# | `choose_machine(config, tokens, machines)` | `Choice` of the machine with the lowest price per token, or None |
#
# A sequence has `tokens` tokens; in `decode_work` the new token is one of them.
#
# **Example**
#
# ```python
# kv_cache_bytes(TINY, tokens=3, batch=2)  # → 48
# largest_batch(TINY, 3, memory_bytes=500)  # → 3
# decode_work(TINY, tokens=1)  # → (336, 352)
# decode_work(TINY, tokens=3, batch=2)  # → (736, 392)
# offers = [Machine("A", 500, 1e3, 1e4, 1.0), Machine("B", 600, 1e3, 1e3, 1.0)]
# best = choose_machine(TINY, 3, offers)
# best.machine, best.batch, best.limit, round(best.step_s, 3)  # → ("A", 3, "memory", 0.416)
# round(best.cost_per_million_tokens, 1)  # → 38.5
# ```
#
# (A: 3 sequences read 416 bytes at 1,000 bytes/s, 0.416 s; their FLOPs take less. B holds 7 sequences, but computes
# ten times as slowly.)
#
# **Requirements**
#
# - FLOPs of a decode step: the products of Task 3 for one token per sequence, except that its query meets `tokens` keys
#   and values. How many FLOPs does each key after the first add?
# - Bytes of a decode step: all parameters once, biases included, and the whole cache. Leave out what is only looked up:
#   learned positions, and the embedding unless it is tied. A tied embedding is read as the head.
# - `choose_machine` considers each machine by itself, with its `largest_batch` for sequences of `tokens` tokens. A
#   machine that cannot hold one sequence is left out.
# - A step takes $\max(\mathrm{FLOPs}/\mathrm{peak},\ \mathrm{bytes}/\mathrm{bandwidth})$ seconds. The larger one is the
#   `limit`; `"compute"` if they are equal.
# - The price of a million tokens follows from the price of an hour and from how many tokens an hour generates. The
#   machine that comes first in `machines` wins if two cost the same per token. Return `None` if no machine is left.
#
# **Size:** about 2, 3, 9 and 13 lines.
#
# <details><summary>Details</summary>
#
# - `memory_bytes` may be a float, even one with a fraction. `largest_batch` returns an int all the same.
# - The few rows of embedding and positions that are looked up, and activations, are left out.
#
# </details>


# %% nbgrader={"solution": true, "grade_id": "task-6-serve"}
#| export
def kv_cache_bytes(config: TransformerConfig, tokens: int, batch: int = 1) -> int:
    """Bytes of keys and values. About 2 lines."""
    ### BEGIN SOLUTION
    token_bytes = 2 * 2 * config.n_layers * config.n_kv_heads * config.head_dim
    return batch * tokens * token_bytes
    ### END SOLUTION


def largest_batch(config: TransformerConfig, tokens: int, memory_bytes: float) -> int:
    """How many sequences fit next to the parameters. About 3 lines."""
    ### BEGIN SOLUTION
    left = memory_bytes - 2 * count_parameters(config)
    return max(0, int(left // kv_cache_bytes(config, tokens)))
    ### END SOLUTION


def decode_work(
    config: TransformerConfig, tokens: int, batch: int = 1
) -> tuple[int, int]:
    """FLOPs and bytes of a decode step. About 9 lines."""
    ### BEGIN SOLUTION
    per_key = 4 * config.n_layers * config.n_heads * config.head_dim
    flops = flops_of(forward_products(config, 1, batch))
    flops += batch * (tokens - 1) * per_key
    held = parameters(config)
    read = held.total - held.position
    if not config.tied:
        read -= held.embedding
    return flops, 2 * read + kv_cache_bytes(config, tokens, batch)
    ### END SOLUTION


def choose_machine(
    config: TransformerConfig, tokens: int, machines: Sequence[Machine]
) -> Choice | None:
    """The machine that serves cheapest; None if none fits. About 13 lines."""
    ### BEGIN SOLUTION
    choices = []
    for machine in machines:
        batch = largest_batch(config, tokens, machine.memory_bytes)
        if batch == 0:
            continue
        flops, size_bytes = decode_work(config, tokens, batch)
        compute_s = flops / machine.peak_flops_per_s
        memory_s = size_bytes / machine.memory_bytes_per_s
        step_s = max(compute_s, memory_s)
        limit = "compute" if compute_s >= memory_s else "memory"
        cost = machine.price_per_hour / 3600 * step_s / batch * 1e6
        choices.append(Choice(machine.name, batch, step_s, limit, cost))
    return min(choices, key=lambda one: one.cost_per_million_tokens, default=None)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "serving_memory"}
check("serving_memory")

# %% nbgrader={"grade": true, "grade_id": "decode_work"}
check("decode_work")

# %% nbgrader={"grade": true, "grade_id": "choose_machine"}
check("choose_machine")

# %% [markdown]
# **Predict, then measure.** An H200 has the peak FLOP/s of an H100, 1.4 times its bandwidth and 1.8 times its memory.
# How many times as many tokens per second does it generate with Llama 2 7B and sequences of 4,096 tokens, each GPU
# with its largest batch?

# %%
guess = None  # tokens per second of an H200 / those of an H100

# %%
PRICES = {  # dollars per hour, made up: put in those that you are offered
    "T4": 0.4,
    "L4": 0.8,
    "RTX 4090": 0.6,
    "A100 80GB": 1.8,
    "H100": 3.0,
    "H200": 3.8,
}
machines = []
for name, price in PRICES.items():
    gpu = device(name)
    speeds = (gpu.memory_bandwidth_bytes_per_s, gpu.peak("fp16"))
    machines.append(Machine(name, gpu.memory_bytes, *speeds, price))
lengths = [256, 1024, 4096, 16384]
figure, tokens_per_s = go.Figure(), {}
for i, machine in enumerate(machines):
    found = {tokens: choose_machine(LLAMA_7B, tokens, [machine]) for tokens in lengths}
    found = {tokens: choice for tokens, choice in found.items() if choice}
    for tokens, choice in found.items():
        tokens_per_s[machine.name, tokens] = choice.batch / choice.step_s
        print(f"{machine.name:9} {tokens:6,} tokens: batch {choice.batch:4},", end=" ")
        print(f"{choice.step_s * 1e3:5.1f} ms per step, limit: {choice.limit}")
    prices = [choice.cost_per_million_tokens for choice in found.values()]
    dash = ("solid", "dot")[i % 2]
    figure.add_scatter(x=list(found), y=prices, name=machine.name, line_dash=dash)
figure.update_layout(xaxis_title="tokens of a sequence", xaxis_type="log")
figure.update_xaxes(tickvals=lengths, ticktext=[f"{tokens:,}" for tokens in lengths])
figure.update_yaxes(title="dollars per million tokens, at least", type="log")
show(figure, alt="Price of a million tokens by length of the sequences, for each GPU")
for config in (GPT2, LLAMA_7B, LLAMA_70B):
    best = choose_machine(config, 4096, machines)
    cost = f"{best.cost_per_million_tokens:.2f} dollars" if best else "fits nowhere"
    print(f"{config.name:12} {best.machine if best else '–':9} {cost}")
ratio = tokens_per_s["H200", 4096] / tokens_per_s["H100", 4096]
check.predict(guess, ratio, "times the tokens per second")

# %% [markdown]
# FLOP/s decide nothing here: memory is the limit. More bandwidth makes steps shorter for the same batch, and more
# memory allows a larger batch, over which the weights are shared. Together they give more than the bandwidth alone.
# Where a GPU is missing from the list, the model and one sequence do not fit.
#
# ## Stretch: no points
#
# - **Any number of operands.** Extend `best_first_pair` to the cheapest order of four or more operands. Compare with
#   `numpy.einsum_path(..., optimize="optimal")`, and with `optimize="greedy"` to see when greedy is good enough.
# - **Let PyTorch count.** Run `torch.utils.flop_counter.FlopCounterMode` on a model of `mlsys_lab.models` and compare
#   with your `forward_products`. Which products does it not see?
# - **Causal attention.** FlashAttention skips blocks above the diagonal. Write `attention_crossover` for a kernel that
#   computes only the pairs that the mask lets through.
#
# ## What you can read now
#
# - Megatron-LM, `megatron/training/theoretical_memory_usage.py`: `compute_weight_and_optimizer_memory` and
#   `compute_activation_memory` are your Task 4; `num_floating_point_operations` in `megatron/training/training.py` is
#   your `training_flops`.
# - PyTorch, `torch/utils/flop_counter.py`: `FlopCounterMode` records products as they run, by a formula for each
#   operation.
# - NumPy, `numpy/_core/einsumfunc.py`: `einsum_path` is `best_first_pair` for any number of operands.
# - nanoGPT, `model.py`: `GPT.get_num_params` and `GPT.estimate_mfu`.
# - The course's own `mlsys_lab/flops`: the same counts with mixture of experts, latent attention and pipelines.
#
# ## Test yourself
#
# <details><summary>Grouped heads shrink the KV cache by N/K and leave the FLOPs of the scores as they are. What does
# that do to decoding?</summary>
#
# The intensity of attention in decoding rises by N/K, because each key that is read serves N/K query heads. Steps with
# long sequences become shorter, and the largest batch grows. It matters once the caches of the batch are larger than
# the weights.
#
# </details>
#
# <details><summary>Full recomputation costs another forward pass. Which FLOPs rise, those of the hardware or those of
# the model?</summary>
#
# Those of the hardware, by a third: 4 units in place of 3. The model needs as many as before. So the utilization
# counted in hardware FLOPs (HFU) may stay the same while the MFU falls.
#
# </details>
#
# <details><summary>A causal mask throws half of the T × T scores away. Where is the crossover for a kernel that skips
# them?</summary>
#
# At about twice as many tokens: the quadratic part is half as large, so T must be twice as long to reach the linear
# part.
#
# </details>
#
# <details><summary>The fewest devices that hold a run are seldom the best number to use. What is missing from the
# plan?</summary>
#
# Time. With few devices a step takes long; with many, each has so few tokens that communication is no longer hidden
# behind the arithmetic. One needs the bytes that are sent, and the speed of the links: chapters 9 to 11.
#
# </details>
#
# <details><summary>A product of (64, 4096) by (4096, 4096) matrices in bf16: is it limited by memory or by compute on
# an H100?</summary>
#
# By memory: 2 · 64 FLOPs per weight of 2 bytes are about 64 FLOP/byte (62 with inputs and outputs), well left of the
# roofline's ridge, the 295 FLOP/byte at which its slope meets its flat top.
#
# </details>
#
# When all checks pass, save the notebook and run `mlsys-lab check transformer-arithmetic` in a terminal. Lab 06 then
# holds the rule C = 6ND against your counts, and lab 10 predicts decode steps with them.
