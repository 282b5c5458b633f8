# %% [markdown]
# # Lab 05 · Transformer arithmetic: count everything before you run it
#
# A training run of a 70-billion-parameter model costs millions, and almost all that decides its cost can be worked out
# on paper: how many numbers it learns, how many operations a token takes, how many bytes must be held, how many devices
# that needs. In this lab you write that paper down as code, and then put it to the test on a model that you can run.
#
# **You will build**
#
# 1. an einsum calculator: from `"bij,bjk->bik"` and shapes to FLOPs, bytes and the cheapest order;
# 2. a parameter count that is exact for GPT-2 and Llama models, and a list of every matrix product they run;
# 3. a memory plan for training at 7 and 70 billion parameters, and the smallest number of devices that holds it;
# 4. a prediction of the step time of a real model on this machine, to be held against a clock;
# 5. a chooser that says which device serves a model cheapest, and what its speed is bound by.
#
# **At the end you can answer**
#
# - Where do 6 FLOPs per parameter and token come from, and when are they wrong?
# - Why does training a 7B model need about 16 bytes a parameter, and what do ZeRO and recomputation take away?
# - How many 80 GB devices hold a 70B model in training?
# - Why does a device that is twice as fast in FLOP/s often serve no more tokens?
#
# **Time:** about 225 minutes (each task says its share). **Points:** 100. **You need:** Python, matrix products, what a
# transformer is made of. Lab 01 comes first: Task 5 runs on the engine that you built there. Chapter 07, *Transformer
# arithmetic*, gives the background.
#
# **Readings it leans on:** *Einsum tutorial (Einstein Summation in NumPy)* (`einsum-tutorial`), *How to Scale Your
# Model, Part 4: All the Transformer Math You Need to Know* (`scaling-book-transformers`), *Where do LLMs spend their
# FLOPS?* (`timbers-llm-flops`), *The Ultra-Scale Playbook: Training LLMs on GPU Clusters* (`ultrascale-playbook`),
# *Transformer Inference Arithmetic* (`kipply-inference-arithmetic`).
#
# **How it works.** Put your code in place of each line that raises `NotImplementedError`, run the cell, then run the
# `check` cell below it. Cells that begin with `#| export` make up the module that is graded and that later labs run on.
# Counts are whole numbers and must be exact: use `//`, never `/`, where a count is asked for. A function leaves what it
# is given as it is, and each call gives a list or dictionary of its own, which the caller may change. Where a function
# calls one that you wrote before it, its check hands it that one's right answers, so that a slip costs points only
# once. Grading runs the same checks with other numbers and a few more cases.
#
# **Letters**, the same everywhere: B sequences in a batch, T tokens of a sequence, L layers, D width of the model, F
# width of the MLP, N query heads, K key/value heads, H width of a head, V vocabulary. A multiply-add is two FLOPs. GB
# is $10^9$ bytes.

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
# ## Task 1 · Einsum by hand
#
# *About 35 minutes.*
#
# `"bij,bjk->bik"` is a loop nest in one line. Each letter is a loop; the letters before a comma say which entry of an
# operand is read; the letters after the arrow say where the result is added. Letters that the output lacks are summed
# over:
#
# $$\mathrm{out}_{bik} = \sum_j \mathrm{first}_{bij}\,\mathrm{second}_{bjk}.$$
#
# **1a.** `parse_einsum(spec, *shapes)`: the operands' letters, the output's letters, and the size of each letter. Raise
# `ValueError` where an operand has another number of axes than letters, where a letter has two sizes, where there are
# more or fewer shapes than operands, or where the output has a letter that no operand has. Small and capital letters
# are different ones, a size may be 0, an operand without letters is a number, as in `",ij->ij"`, and a shape may be a
# list as well as a tuple. (You may rely on this, and need not check it: there is one `->`, there are no spaces and no
# `...`, and a letter stands at most once in an operand and at most once in the output. The functions below are asked
# about nothing that does not fit.)
#
# **1b.** `einsum_flops`: done as that one loop nest, the innermost line runs once for every combination of *all*
# letters. With $n$ operands it multiplies $n-1$ times, and adds once if anything is summed (the first addition, to
# zero, counts, so a letter of size 1 is summed like any other). And `einsum_bytes`: at the least, each operand is read
# once and the result is written once.
#
# **1c.** Three operands should hardly ever be multiplied in one nest. `best_first_pair` tries each of the three pairs:
# contract it first, keep in the intermediate exactly those letters that the third operand or the output still needs,
# then contract the intermediate with the third. Return the cheapest pair and the FLOPs of both steps together.
#
# **Size:** about 12, 3, 3 and 12 lines. **Cost:** none; these are counts. But the ratio of FLOPs to bytes, the
# **arithmetic intensity**, decides in a moment what the product costs on a device.


# %% nbgrader={"solution": true, "grade_id": "task-1-einsum"}
#| export
def parse_einsum(spec: str, *shapes: Sequence[int]) -> tuple[list[str], str, dict[str, int]]:
    """The operands' letters, the output's letters and the size of each letter. About 12 lines.

    parse_einsum("ij,jk->ik", (2, 3), (3, 4)) is (["ij", "jk"], "ik", {"i": 2, "j": 3, "k": 4}).
    Raises ValueError where letters and shapes do not fit together.
    """
    ### BEGIN SOLUTION
    left, output = spec.split("->")
    operands = left.split(",")
    if len(operands) != len(shapes):
        raise ValueError(f"{len(operands)} operands, {len(shapes)} shapes")
    sizes: dict[str, int] = {}
    for letters, shape in zip(operands, shapes, strict=True):
        if len(letters) != len(shape):
            raise ValueError(f"{letters} has {len(letters)} letters, its shape {len(shape)} axes")
        for letter, size in zip(letters, shape, strict=True):
            if sizes.setdefault(letter, size) != size:
                raise ValueError(f"{letter} is {sizes[letter]} and {size}")
    if unknown := set(output) - set(sizes):
        raise ValueError(f"no operand has {unknown}")
    return operands, output, sizes
    ### END SOLUTION


def einsum_flops(spec: str, *shapes: Sequence[int]) -> int:
    """FLOPs of the einsum as one loop nest over all letters. About 3 lines."""
    ### BEGIN SOLUTION
    operands, output, sizes = parse_einsum(spec, *shapes)
    summed = set(sizes) - set(output)
    return (len(operands) - 1 + bool(summed)) * math.prod(sizes.values())
    ### END SOLUTION


def einsum_bytes(spec: str, *shapes: Sequence[int], element_bytes: int = 2) -> int:
    """Least bytes moved: every operand read once, the output written once. About 3 lines."""
    ### BEGIN SOLUTION
    operands, output, sizes = parse_einsum(spec, *shapes)
    arrays = [*operands, output]
    return element_bytes * sum(math.prod(sizes[letter] for letter in letters) for letters in arrays)
    ### END SOLUTION


def best_first_pair(spec: str, *shapes: Sequence[int]) -> tuple[tuple[int, int], int]:
    """Of three operands, the two to contract first, and the FLOPs of both steps. About 12 lines.

    The pair is (0, 1), (0, 2) or (1, 2); the first of these where two cost the same.
    """
    ### BEGIN SOLUTION
    operands, output, sizes = parse_einsum(spec, *shapes)
    shape = {letters: tuple(sizes[letter] for letter in letters) for letters in operands}
    best = None
    for i, j in itertools.combinations(range(3), 2):
        third = operands[3 - i - j]
        both = dict.fromkeys(operands[i] + operands[j])
        between = "".join(letter for letter in both if letter in third + output)
        middle = tuple(sizes[letter] for letter in between)
        first = einsum_flops(f"{operands[i]},{operands[j]}->{between}", shape[operands[i]], shape[operands[j]])
        total = first + einsum_flops(f"{between},{third}->{output}", middle, shape[third])
        if best is None or total < best[1]:
            best = ((i, j), total)
    return best
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "einsum_parse"}
check("einsum_parse")

# %% nbgrader={"grade": true, "grade_id": "einsum_cost"}
check("einsum_cost")

# %% nbgrader={"grade": true, "grade_id": "einsum_order"}
check("einsum_order")

# %% [markdown]
# **See it.** Four products that a transformer of width 4,096 runs, as your functions count them, under the roofline of
# an H100. Work whose intensity lies left of the ridge waits for memory. The same weights serve 4,096 tokens or a
# single one; say before you run it where the two lie.

# %%
import plotly.graph_objects as go

from mlsys_lab.hardware import device
from mlsys_lab.widgets import show

works = {
    "MLP, 4,096 tokens": ("td,df->tf", (4096, 4096), (4096, 16384)),
    "MLP, 32 tokens": ("td,df->tf", (32, 4096), (4096, 16384)),
    "MLP, 1 token": ("td,df->tf", (1, 4096), (4096, 16384)),
    "scores, 1 new token of 32 sequences": ("bnh,bsnh->bns", (32, 32, 128), (32, 4096, 32, 128)),
}
h100 = device("H100")
intensity = {name: einsum_flops(*work) / einsum_bytes(*work) for name, work in works.items()}
ridge = h100.peak("bf16") / h100.memory_bandwidth_bytes_per_s
axis = sorted([*(2.0**power for power in range(-2, 14)), ridge])
height = {x: h100.attainable("bf16", x) / 1e12 for x in [*axis, *intensity.values()]}  # TFLOP/s
roof = go.Scatter(x=axis, y=[height[x] for x in axis], name="roofline of an H100, bf16", mode="lines")
points = [
    go.Scatter(x=[x], y=[height[x]], name=name, mode="markers", marker_size=13, marker_symbol=symbol)
    for symbol, (name, x) in zip(("circle", "square", "diamond", "x"), intensity.items(), strict=True)
]
figure = go.Figure([roof, *points])
figure.update_layout(xaxis_title="FLOP per byte", yaxis_title="TFLOP/s at most", xaxis_type="log", yaxis_type="log")
figure.update_xaxes(dtick=1, tickformat=",")
figure.update_yaxes(dtick=1, tickformat=",")
show(figure, alt="Your four products on the roofline of an H100; those with few tokens lie on its slope")
for name, x in intensity.items():
    print(f"{name:38s} {x:8.1f} FLOP/B, at most {h100.attainable('bf16', x) / h100.peak('bf16'):6.1%} of peak")

# %% [markdown]
# ## Task 2 · Count the parameters
#
# *About 30 minutes.*
#
# A decoder transformer is a stack of L blocks, $x \leftarrow x + \mathrm{attention}(\mathrm{norm}(x))$ and then $x
# \leftarrow x + \mathrm{MLP}(\mathrm{norm}(x))$, between an embedding and a head. All of its sizes stand in one record:


# %%
#| export
@dataclass(frozen=True)
class TransformerConfig:
    """The sizes of a decoder transformer.

    n_kv_heads 0 means as many as query heads; head_dim 0 means d_model / n_heads. `position` is "learned" (a table of
    one row for each place up to `context`) or "rotary" (nothing to learn). `norm` is "rms" (one weight a channel,
    never a bias) or "layer" (one weight a channel, and a bias if `norm_bias`). `activation` is "swiglu" (an MLP of
    three matrices) or "gelu" or "relu" (of two). Biases: `qkv_bias` of queries, keys and values, `out_bias` of
    attention's output, `mlp_bias` of all matrices of the MLP. `tied`: the head is the embedding's table once more, and
    learns nothing of its own. It has no bias.
    """

    name: str
    n_layers: int  # L
    d_model: int  # D
    n_heads: int  # N
    d_ff: int  # F
    vocab_size: int  # V
    context: int
    n_kv_heads: int = 0  # K
    head_dim: int = 0  # H
    position: str = "rotary"
    norm: str = "rms"
    activation: str = "swiglu"
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    norm_bias: bool = False
    tied: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "n_kv_heads", self.n_kv_heads or self.n_heads)
        object.__setattr__(self, "head_dim", self.head_dim or self.d_model // self.n_heads)
        if self.n_heads % self.n_kv_heads:
            raise ValueError(f"{self.n_heads} query heads do not divide among {self.n_kv_heads} key/value heads")
        if self.norm == "rms" and self.norm_bias:
            raise ValueError("an RMS norm has no bias")


# %% [markdown]
# **Attention** has four matrices: queries $D \to NH$, keys and values $D \to KH$ each, output $NH \to D$. (A group of
# $N/K$ query heads shares one key/value head. $NH$ need not be $D$.) **The MLP** has two matrices, $D \to F \to D$, or
# three with SwiGLU, whose hidden layer is $\mathrm{silu}(xW_1) \odot xW_2$. **Norms:** two in each block, one at the
# end. A bias has one number for each output of its matrix.
#
# **Write** `parameter_table`: a dictionary with the keys `embedding`, `position`, `attention`, `mlp`, `norm`, `head`,
# each the number of parameters of that kind in the whole model, 0 where there are none.
#
# **Size:** about 14 lines. **Cost:** at 2 bytes each, what a device must at least hold to run the model.


# %% nbgrader={"solution": true, "grade_id": "task-2-parameters"}
#| export
def parameter_table(config: TransformerConfig) -> dict[str, int]:
    """Parameters of the whole model by kind: embedding, position, attention, mlp, norm, head. About 14 lines."""
    ### BEGIN SOLUTION
    c = config
    queries, keys = c.n_heads * c.head_dim, c.n_kv_heads * c.head_dim
    attention = c.d_model * (2 * queries + 2 * keys)
    attention += c.qkv_bias * (queries + 2 * keys) + c.out_bias * c.d_model
    matrices = 3 if c.activation == "swiglu" else 2
    mlp = matrices * c.d_model * c.d_ff + c.mlp_bias * ((matrices - 1) * c.d_ff + c.d_model)
    norm = c.d_model * (1 + c.norm_bias)
    return {
        "embedding": c.vocab_size * c.d_model,
        "position": c.context * c.d_model if c.position == "learned" else 0,
        "attention": c.n_layers * attention,
        "mlp": c.n_layers * mlp,
        "norm": (2 * c.n_layers + 1) * norm,
        "head": 0 if c.tied else c.d_model * c.vocab_size,
    }
    ### END SOLUTION


def count_parameters(config: TransformerConfig) -> int:
    """All parameters of the model."""
    return sum(parameter_table(config).values())


# %% nbgrader={"grade": true, "grade_id": "parameters_gpt2"}
check("parameters_gpt2")

# %% nbgrader={"grade": true, "grade_id": "parameters_llama"}
check("parameters_llama")

# %% [markdown]
# **See it.** Three models whose counts are published: yours must meet them to the last digit. Then where the parameters
# are: what is the largest part of the smallest model, and what of the largest?

# %%
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
    qkv_bias=True,
    out_bias=True,
    mlp_bias=True,
    norm_bias=True,
    tied=True,
)
LLAMA_7B = TransformerConfig(
    "Llama 2 7B", n_layers=32, d_model=4096, n_heads=32, d_ff=11008, vocab_size=32000, context=4096
)
LLAMA_70B = TransformerConfig(
    "Llama 2 70B", n_layers=80, d_model=8192, n_heads=64, d_ff=28672, vocab_size=32000, context=4096, n_kv_heads=8
)
published = {GPT2: 124_439_808, LLAMA_7B: 6_738_415_616, LLAMA_70B: 68_976_648_192}
for config, count in published.items():
    print(f"{config.name:12s} counted {count_parameters(config):15,d}, published {count:15,d}")
tables = {config.name: parameter_table(config) for config in published}
figure = go.Figure(
    [
        go.Bar(name=kind, x=list(tables), y=[table[kind] / sum(table.values()) for table in tables.values()])
        for kind in tables[GPT2.name]
    ]
)
figure.update_layout(barmode="stack", yaxis_title="share of all parameters", yaxis_tickformat=".0%")
show(figure, alt="Shares of embedding, attention, MLP and the rest in three models: in the largest, the MLP has most")

# %% [markdown]
# ## Task 3 · Every matrix product, and its FLOPs
#
# *About 35 minutes.*
#
# Matrix products do more than 99 % of a large transformer's arithmetic, so the list of them is nearly all there is to
# know. One entry is `(name, times, m, k, n)`: `times` products of an $(m, k)$ by a $(k, n)$ matrix, $2mkn$ FLOPs each.
#
# **3a.** `forward_products(config, batch, tokens)`: all products of one forward pass over B sequences of T tokens. (T
# may exceed `config.context`, here and in what follows: a count does not mind.)
#
# | product | times | what |
# |---|---|---|
# | `query`, `key`, `value` | L | all $BT$ tokens at once, by the matrices of Task 2 |
# | `scores` | L · B · N | in each head, T queries against T keys: no mask is skipped |
# | `mixed` | L · B · N | in each head, the (T, T) weights times T values |
# | `output` | L | the heads side by side, back to D |
# | `gate`, `up`, `down` | L | the MLP; `gate` with SwiGLU only |
# | `head` | 1 | logits of all tokens. The embedding looks rows up, and multiplies nothing |
#
# Grouped heads change the key and value projections, not the scores: every query head still meets T keys.
#
# **3b.** `training_flops(config, tokens)`: the FLOPs of training on `tokens` tokens altogether, cut into sequences of
# `config.context` tokens (`tokens` is a multiple of it, 0 too). You know from lab 01 what the backward pass costs:
# each product has two of the same size, and nothing is left out, because the embedding wants its gradient.
#
# **3c.** `attention_share(config, tokens)`: which part of the forward FLOPs of a sequence of T tokens is in `scores`
# and `mixed`; and `attention_crossover(config)`: the T, a real number, at which that part is one half. Everything else
# is linear in T. These two are quadratic.
#
# **Size:** about 18, 3, 3 and 4 lines. **Cost:** that is the question.


# %% nbgrader={"solution": true, "grade_id": "task-3-products"}
#| export
Product = tuple[str, int, int, int, int]
"""(name, times, m, k, n): so many products of an (m, k) by a (k, n) matrix."""


def forward_products(config: TransformerConfig, batch: int, tokens: int) -> list[Product]:
    """Every matrix product of a forward pass over `batch` sequences of `tokens` tokens. About 18 lines."""
    ### BEGIN SOLUTION
    c, rows = config, batch * tokens
    queries, keys, heads = c.n_heads * c.head_dim, c.n_kv_heads * c.head_dim, batch * c.n_heads
    layer = [
        ("query", 1, rows, c.d_model, queries),
        ("key", 1, rows, c.d_model, keys),
        ("value", 1, rows, c.d_model, keys),
        ("scores", heads, tokens, c.head_dim, tokens),
        ("mixed", heads, tokens, tokens, c.head_dim),
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
    """FLOPs of all products in a list."""
    return sum(2 * times * m * k * n for _, times, m, k, n in products)


def training_flops(config: TransformerConfig, tokens: int) -> int:
    """FLOPs of training on `tokens` tokens, in sequences of config.context tokens. About 3 lines."""
    ### BEGIN SOLUTION
    sequences = tokens // config.context
    return 3 * flops_of(forward_products(config, sequences, config.context))
    ### END SOLUTION


def attention_share(config: TransformerConfig, tokens: int) -> float:
    """Part of the forward FLOPs of a sequence that is in scores and mixed. About 3 lines."""
    ### BEGIN SOLUTION
    products = forward_products(config, 1, tokens)
    quadratic = [product for product in products if product[0] in ("scores", "mixed")]
    return flops_of(quadratic) / flops_of(products)
    ### END SOLUTION


def attention_crossover(config: TransformerConfig) -> float:
    """The length T of a sequence at which scores and mixed are half of the forward FLOPs. About 4 lines."""
    ### BEGIN SOLUTION
    total = flops_of(forward_products(config, 1, 1))
    per_pair = 4 * config.n_layers * config.n_heads * config.head_dim
    return (total - per_pair) / per_pair
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "forward_products"}
check("forward_products")

# %% nbgrader={"grade": true, "grade_id": "training_flops"}
check("training_flops")

# %% nbgrader={"grade": true, "grade_id": "attention_share"}
check("attention_share")

# %% [markdown]
# **See it.** The rule of thumb says 6 FLOPs for each parameter and token: 2 forward, 4 back. Your exact count says how
# good it is. Meta trained the two Llama 2 models on 2 trillion tokens and reports 184,320 and 1,720,320 hours of A100
# (Touvron et al. 2023, *Llama 2*, table 2): how much of that device's peak did they reach?

# %%
a100 = device("A100 80GB")
reported_hours = {LLAMA_7B: 184_320, LLAMA_70B: 1_720_320}
for config, hours in reported_hours.items():
    tokens = 2_000_000_000_000 // config.context * config.context
    total, rule = training_flops(config, tokens), 6 * count_parameters(config) * tokens
    reached = total / (hours * 3600 * a100.peak("bf16"))
    print(f"{config.name}: {total:.3g} FLOPs ({rule / total:.1%} of it by the rule), {reached:.0%} of peak reached")

lengths = [2**power for power in range(7, 21)]
figure = go.Figure(
    [go.Scatter(x=lengths, y=[attention_share(config, t) for t in lengths], name=config.name) for config in published]
)
for config in published:
    figure.add_vline(x=attention_crossover(config), line_dash="dot")
    print(f"{config.name}: half of the FLOPs are in scores and mixed at {attention_crossover(config):,.0f} tokens")
figure.update_layout(xaxis_title="tokens of a sequence", yaxis_title="share of the FLOPs", xaxis_type="log")
figure.update_yaxes(tickformat=".0%")
show(
    figure, alt="Share of attention's quadratic part against the length, with each model's crossover marked", height=360
)

# %% [markdown]
# ## Task 4 · A memory plan
#
# *About 45 minutes.*
#
# Training holds four kinds of bytes. The usual recipe of mixed precision has, for each parameter, 2 bytes of
# **weights** (bf16), 2 of **gradients**, and 12 of **optimiser states** (a master copy and Adam's two moments, fp32).
# The fourth kind,
# **activations**, grows with the batch.
#
# Devices are laid out as `data` × `tensor`. Each tensor group of `tensor` devices holds one copy of the model, cut
# evenly; groups differ in their data only. ZeRO cuts more, among the `data` devices that would hold the same: stage 1
# the optimiser states, stage 2 the gradients too, stage 3 the weights too. A cut that does not come out even is padded:
# of $p$ numbers among $d$ devices, each holds $\lceil p/d \rceil$.
#
# **4a.** `state_bytes`: bytes a device of each of the three kinds. Cut by `tensor` first, then by `data` where the
# stage says so. It is the numbers that are rounded up; the bytes come after.
#
# **4b.** `activation_bytes`: what the forward pass must leave for the backward pass, for `batch` sequences in one
# tensor group, in bf16 (2 bytes) unless said otherwise. In elements for each token:
#
# | kept in each layer | elements |
# |---|---|
# | input and result of both norms | 4 D |
# | queries, keys, values | NH + 2 KH |
# | softmax of the scores | N T |
# | result of attention, before the output matrix | NH |
# | MLP with gelu: before and after it | 2 F |
# | MLP with relu, whose slope can be read off its result | F |
# | MLP with SwiGLU: $xW_1$, $\mathrm{silu}(xW_1)$, $xW_2$, and their product | 4 F |
#
# At the end, once: input and result of the last norm (2 D), and the probabilities of the loss in **fp32** (V). With
# `recompute="selective"` a layer does not keep its softmax, with `"full"` it keeps its input only (D). What it does not
# keep is computed again when its backward pass begins: at the worst moment one layer is there whole, and the others
# hold what they keep. In a tensor group (which divides the sequence as well, where heads and widths cannot be divided)
# everything is cut by `tensor`, of which D, F, V, N, K and T are multiples here.
#
# **4c.** `fewest_devices`: the smallest number of devices, a multiple of `tensor` and at most `limit`, on each of which
# everything fits into `memory_bytes` (exactly full fits), with one sequence in each tensor group. `None` if there is no
# such number.
#
# **Predict first.** How many devices of 80 GB does Llama 2 70B need in training, whatever is done about activations?


# %%
guess = None  # your number of devices

if guess is None:
    print("Write a number first, then go on.")
else:
    least = -(-16 * count_parameters(LLAMA_70B) // 80_000_000_000)
    print(f"{least} hold the {16 * count_parameters(LLAMA_70B) / 1e9:,.0f} GB of its states; you said {guess}.")

# %% [markdown]
# **Size:** about 10, 13 and 6 lines.


# %% nbgrader={"solution": true, "grade_id": "task-4-memory"}
#| export
def state_bytes(n_parameters: int, zero_stage: int = 0, data: int = 1, tensor: int = 1) -> dict[str, int]:
    """Bytes a device of `weights`, `gradients` and `optimizer`, at 2, 2 and 12 bytes a parameter. About 10 lines."""
    ### BEGIN SOLUTION
    own = -(-n_parameters // tensor)
    part = -(-own // data)
    return {
        "weights": 2 * (part if zero_stage >= 3 else own),
        "gradients": 2 * (part if zero_stage >= 2 else own),
        "optimizer": 12 * (part if zero_stage >= 1 else own),
    }
    ### END SOLUTION


def activation_bytes(
    config: TransformerConfig, tokens: int, batch: int = 1, recompute: str = "none", tensor: int = 1
) -> int:
    """Bytes a device of activations, for `batch` sequences of `tokens` tokens in a tensor group. About 13 lines.

    recompute is "none", "selective" or "full".
    """
    ### BEGIN SOLUTION
    c = config
    attention = 2 * c.n_heads * c.head_dim + 2 * c.n_kv_heads * c.head_dim
    layer = 4 * c.d_model + attention + {"swiglu": 4, "gelu": 2, "relu": 1}[c.activation] * c.d_ff
    scores = c.n_heads * tokens
    if recompute == "none":
        elements = c.n_layers * (layer + scores)
    elif recompute == "selective":
        elements = c.n_layers * layer + scores
    else:
        elements = (c.n_layers - 1) * c.d_model + layer + scores
    token_bytes = 2 * (elements + 2 * c.d_model) + 4 * c.vocab_size
    return batch * tokens * token_bytes // tensor
    ### END SOLUTION


def memory_plan(
    config: TransformerConfig,
    tokens: int,
    batch: int = 1,
    *,
    zero_stage: int = 0,
    data: int = 1,
    tensor: int = 1,
    recompute: str = "none",
) -> dict[str, int]:
    """Bytes a device of all four kinds, for `batch` sequences in each tensor group."""
    states = state_bytes(count_parameters(config), zero_stage, data, tensor)
    return {**states, "activations": activation_bytes(config, tokens, batch, recompute, tensor)}


def fewest_devices(
    config: TransformerConfig,
    tokens: int,
    memory_bytes: int,
    *,
    zero_stage: int = 3,
    tensor: int = 1,
    recompute: str = "none",
    limit: int = 4096,
) -> int | None:
    """The smallest data · tensor, up to `limit`, on which one sequence a tensor group fits. About 6 lines."""
    ### BEGIN SOLUTION
    for data in range(1, limit // tensor + 1):
        plan = memory_plan(config, tokens, zero_stage=zero_stage, data=data, tensor=tensor, recompute=recompute)
        if sum(plan.values()) <= memory_bytes:
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
# **See it.** Your plan for 64 devices of 80 GB, one sequence of 4,096 tokens for each tensor group. Which bars stay
# below the line, and what would you cut next in those that do not?

# %%
plans = {
    "ZeRO 0": {},
    "ZeRO 1": {"zero_stage": 1},
    "ZeRO 2": {"zero_stage": 2},
    "ZeRO 3": {"zero_stage": 3},
    "ZeRO 3, selective": {"zero_stage": 3, "recompute": "selective"},
    "ZeRO 3, full": {"zero_stage": 3, "recompute": "full"},
    "ZeRO 1, tensor 8, full": {"zero_stage": 1, "tensor": 8, "recompute": "full"},
}
for config in (LLAMA_7B, LLAMA_70B):
    bars = {name: memory_plan(config, 4096, data=64 // how.get("tensor", 1), **how) for name, how in plans.items()}
    figure = go.Figure(
        [
            go.Bar(
                name=kind,
                x=[name.replace(", ", "<br>") for name in bars],
                y=[plan[kind] / 1e9 for plan in bars.values()],
            )
            for kind in ("weights", "gradients", "optimizer", "activations")
        ]
    )
    figure.add_hline(y=80, line_dash="dot", annotation_text="80 GB")
    figure.update_layout(barmode="stack", yaxis_title="GB a device", title=f"{config.name} on 64 devices")
    show(figure, alt=f"Memory of each of 64 devices in training {config.name} under seven plans, by kind")
    for name, how in plans.items():
        if "zero_stage" in how:
            fewest = fewest_devices(config, 4096, 80_000_000_000, **how)
            print(f"{config.name}, {name}:", f"at least {fewest} devices" if fewest else "more than 4,096, or never")

# %% [markdown]
# ## Task 5 · Predict a step, then measure it
#
# *About 45 minutes.*
#
# Now a model that this machine can run, on the engine of lab 01: yours, if it was accepted, else the course's. It has
# RMS norms, relu in the MLP, learned positions, no biases, a head of its own, and as many key/value heads as query
# heads. The update is plain gradient descent. A step spends its time on two things:
#
# - **matrix products**, at a rate that depends on their shape: it is measured for each shape that occurs, and nothing
#   else is;
# - **elementwise work** (norms, softmax, relu, additions, copies), which does hardly any arithmetic and waits for
#   memory. One unit of it is one element of an array, written in the forward pass, with its share of the backward pass;
#   the seconds that a unit takes are measured too.
#
# **5a.** `step_products`: the products of a whole training step, forward and back. For each forward
# $(m, k) \cdot (k, n)$ with gradient $G$ of shape $(m, n)$: $G\,Y^{\mathsf T}$ is $(m, n) \cdot (n, k)$, and
# $X^{\mathsf T} G$ is $(k, m) \cdot (m, n)$. (Its transpose, $G^{\mathsf T} X$, will do as well: a product and its
# transpose count as one, and run at one rate.) Names are yours to choose.
#
# **5b.** `elementwise_units(config, batch, tokens)`: elements written in the forward pass, in this model. For each
# token:
#
# | where | elements |
# |---|---|
# | in each layer: two norms, of 3 results each | 6 D |
# | in each layer: two additions to the stream | 2 D |
# | in each layer: heads laid side by side (queries, keys, values, result) | 4 NH |
# | in each layer: scale, mask, shift, exponential, division of the scores | 5 NT |
# | in each layer: relu | F |
# | outside the layers: embedding, positions, their sum, the last norm's 3 results | 6 D |
# | outside the layers: the loss | 4 V |
#
# and once a step, whatever the number of tokens, the update: one unit for each parameter of the model.
#
# **5c.** `predict_training_step_s`: the time of all products at their rates, plus the time of the elementwise work.
# `rates` gives FLOP/s for each shape `(m, k, n)` that your list has; what the check gives has the transposed
# `(n, k, m)` too.
#
# **Size:** about 4, 5 and 3 lines.


# %% nbgrader={"solution": true, "grade_id": "task-5-predict"}
#| export
def step_products(config: TransformerConfig, batch: int, tokens: int) -> list[Product]:
    """Every matrix product of a training step: forward, and the two of each in the backward pass. About 4 lines."""
    ### BEGIN SOLUTION
    products = forward_products(config, batch, tokens)
    back_x = [(f"{name} back to its input", times, m, n, k) for name, times, m, k, n in products]
    back_y = [(f"{name} back to its weight", times, k, m, n) for name, times, m, k, n in products]
    return [*products, *back_x, *back_y]
    ### END SOLUTION


def elementwise_units(config: TransformerConfig, batch: int, tokens: int) -> int:
    """Elements that the small model's elementwise work writes, the update included. About 5 lines."""
    ### BEGIN SOLUTION
    c = config
    heads = c.n_heads * c.head_dim
    layer = 8 * c.d_model + 4 * heads + 5 * c.n_heads * tokens + c.d_ff
    once = 6 * c.d_model + 4 * c.vocab_size
    return batch * tokens * (c.n_layers * layer + once) + count_parameters(c)
    ### END SOLUTION


def predict_training_step_s(
    config: TransformerConfig,
    batch: int,
    tokens: int,
    rates: Mapping[tuple[int, int, int], float],
    unit_s: float,
) -> float:
    """Seconds of a training step: products at rates[m, k, n] FLOP/s, elementwise work at unit_s each. About 3 lines."""
    ### BEGIN SOLUTION
    products = step_products(config, batch, tokens)
    products_s = sum(2 * times * m * k * n / rates[m, k, n] for _, times, m, k, n in products)
    return products_s + elementwise_units(config, batch, tokens) * unit_s
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "step_products"}
check("step_products")

# %% nbgrader={"grade": true, "grade_id": "elementwise_units"}
check("elementwise_units")

# %% nbgrader={"grade": true, "grade_id": "predict_step"}
check("predict_step")

# %% [markdown]
# Now the machine, on one thread, which a busy neighbour disturbs least. First the pieces by themselves: one product of
# each shape, and four elementwise operations of your engine, forward and back. Your prediction is made of these alone,
# before the model has run.

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
batch, tokens = 16, 64


UNITS = 4 * 2**22  # four operations on arrays of 16 MiB, which few caches hold


def pieces(config: TransformerConfig, batch: int, tokens: int) -> dict:
    """What to time: a product of each shape (those inside of heads B·N at a time), and some elementwise work."""
    calls = {}
    for _, times, m, k, n in step_products(config, batch, tokens):
        x, y = torch.randn(at_once(times), m, k).squeeze(0), torch.randn(at_once(times), k, n).squeeze(0)
        calls[m, k, n, at_once(times)] = lambda x=x, y=y: x @ y
    x, y = (engine.Tensor(torch.randn(UNITS // 4), requires_grad=True) for _ in range(2))
    g = torch.ones(UNITS // 4)

    def four_units() -> None:
        x.grad = y.grad = None
        ((x * y).exp() + x).relu().backward(g)

    return calls | {"units": four_units}


def at_once(times: int) -> int:
    heads = batch * SMALL.n_heads
    return heads if times % (SMALL.n_layers * heads) == 0 else 1


def predict(timings: dict) -> tuple[float, float]:
    """Your prediction from the times of the pieces, and how much of it is elementwise work."""
    shapes = [shape for shape in timings if isinstance(shape, tuple)]
    rates = {(m, k, n): 2 * count * m * k * n / timings[m, k, n, count].p50_s for m, k, n, count in shapes}
    unit_s = timings["units"].p50_s / UNITS
    print(f"products reach {min(rates.values()) / 1e9:.0f} to {max(rates.values()) / 1e9:.0f} GFLOP/s, by their shape")
    elementwise_s = elementwise_units(SMALL, batch, tokens) * unit_s
    return predict_training_step_s(SMALL, batch, tokens, rates, unit_s), elementwise_s


predicted_s, elementwise_s = predict(compare(pieces(SMALL, batch, tokens), samples=7).timings)
print(f"predicted: {predicted_s * 1e3:.0f} ms a step, of which {elementwise_s / predicted_s:.0%} elementwise")

# %% [markdown]
# And the model itself, on your engine.


# %%
class SmallTransformer:
    """SMALL on the engine: token ids (B, T) → logits (B·T, V)."""

    def __init__(self, config: TransformerConfig) -> None:
        c, self.config, self.weights = config, config, {}
        shapes = {
            "tokens": (c.vocab_size, c.d_model),
            "places": (c.context, c.d_model),
            "head": (c.d_model, c.vocab_size),
        }
        for i in range(c.n_layers):
            shapes |= {f"{name}{i}": (c.d_model, c.n_heads * c.head_dim) for name in ("query", "key", "value")}
            shapes |= {f"output{i}": (c.n_heads * c.head_dim, c.d_model)}
            shapes |= {f"up{i}": (c.d_model, c.d_ff), f"down{i}": (c.d_ff, c.d_model)}
        for name, shape in shapes.items():
            self.weights[name] = engine.Tensor(torch.randn(shape) / math.sqrt(shape[0]), requires_grad=True)
        for name in ("norm", *(f"norm{j}{i}" for i in range(c.n_layers) for j in "ab")):
            self.weights[name] = engine.Tensor(torch.ones(c.d_model), requires_grad=True)
        self.mask = engine.Tensor(torch.full((c.context, c.context), -1e9).triu(1))

    def norm(self, x, name):
        return x * ((x * x).mean(-1, keepdims=True) + 1e-6) ** -0.5 * self.weights[name]

    def attention(self, x, i, B, T):
        N, H = self.config.n_heads, self.config.head_dim

        def split(name):
            return (x @ self.weights[f"{name}{i}"]).reshape(B, T, N, H).permute(0, 2, 1, 3)  # (B, N, T, H)

        scores = (split("query") @ split("key").T) * (1 / math.sqrt(H)) + self.mask[:T, :T]  # (B, N, T, T)
        raised = (scores - engine.Tensor(scores.data.amax(-1, keepdim=True))).exp()
        mixed = (raised / raised.sum(-1, keepdims=True)) @ split("value")  # (B, N, T, H)
        return mixed.permute(0, 2, 1, 3).reshape(B * T, N * H) @ self.weights[f"output{i}"]

    def __call__(self, ids: torch.Tensor):
        B, T = ids.shape
        x = self.weights["tokens"][ids.reshape(-1)] + self.weights["places"][torch.arange(T).repeat(B)]  # (B·T, D)
        for i in range(self.config.n_layers):
            x = x + self.attention(self.norm(x, f"norma{i}"), i, B, T)
            x = x + (self.norm(x, f"normb{i}") @ self.weights[f"up{i}"]).relu() @ self.weights[f"down{i}"]
        return self.norm(x, "norm") @ self.weights["head"]


torch.manual_seed(0)
model = SmallTransformer(SMALL)
held = sum(weight.data.numel() for weight in model.weights.values())
print(f"parameters: {count_parameters(SMALL):,} counted, {held:,} held")
ids = torch.randint(0, SMALL.vocab_size, (batch, tokens + 1))
losses = []


def train_step() -> None:
    for weight in model.weights.values():
        weight.grad = None
    loss = engine.cross_entropy(model(ids[:, :-1]), ids[:, 1:].reshape(-1))
    loss.backward()
    for weight in model.weights.values():
        weight.data -= 0.1 * weight.grad
    losses.append(loss.item())


# Once more the pieces, and the step between them in turns: a slow moment strikes all alike.
timings = compare(pieces(SMALL, batch, tokens) | {"step": train_step}, samples=7, warmup=1).timings
predicted_s, elementwise_s = predict(timings)
measured_s = timings["step"].p50_s
print(f"loss {losses[0]:.2f} at first, {losses[-1]:.2f} at last")
print(f"predicted {predicted_s * 1e3:.0f} ms, measured {measured_s * 1e3:.0f} ms: {predicted_s / measured_s - 1:+.0%}")
figure = go.Figure(
    [
        go.Bar(name="products", x=["predicted"], y=[predicted_s - elementwise_s]),
        go.Bar(name="elementwise", x=["predicted"], y=[elementwise_s]),
        go.Bar(name="measured", x=["measured"], y=[measured_s]),
    ]
)
for share in (0.75, 1.25):
    figure.add_hline(
        share * measured_s, line_dash="dot", annotation_text=f"{share - 1:+.0%}", annotation_position="right"
    )
figure.update_layout(barmode="stack", yaxis_title="seconds a step", legend={"orientation": "h", "y": 1.15})
show(figure, alt="Predicted step time, products and elementwise work, beside the measured one, with 25 % either way")

# %% [markdown]
# On a machine that does nothing else, a count made before anything ran should land within a quarter of the clock. On a
# busy one, the long step is interrupted more often than the short pieces, and the prediction mostly comes out too low:
# run the cell again. Where it stays outside, ask what the count left out: arrays that no longer fit into a cache,
# gradients being added up, Python between the operations. Change `batch` or the width and predict again: where does the
# prediction go wrong first?

# %% [markdown]
# ## Task 6 · Which device serves it?
#
# *About 35 minutes.*
#
# To generate, a model runs once for each new token. Every weight is read for that, however many sequences share the
# step, and each sequence reads its own **KV cache**: the keys and values of all its tokens, in every layer, so that
# they need not be computed again. Everything is in bf16, 2 bytes.


# %%
#| export
@dataclass(frozen=True)
class Machine:
    """A device to rent."""

    name: str
    memory_bytes: float
    bandwidth_bytes_per_s: float
    flops_per_s: float
    dollars_per_hour: float


@dataclass(frozen=True)
class Choice:
    """How a device serves a model: sequences at a time, least seconds a step, what binds, dollars a million tokens."""

    device: str
    batch: int
    step_s: float
    bound: str  # "memory" or "compute"
    dollars_per_million: float


# %% [markdown]
# **6a.** `kv_cache_bytes`: keys and values (K heads of width H each) of `tokens` tokens of `batch` sequences. And
# `largest_batch`: how many sequences of `tokens` tokens fit beside all the parameters; 0 if not one does. (A
# whole number again, though the bytes of a device may come as a float, even with a fraction of a byte.)
#
# **6b.** `decode_work(config, batch, tokens)`: FLOPs and bytes of one step that makes one token for each of `batch`
# sequences, each of which then has `tokens` tokens, the new one included.
#
# - FLOPs: your list of products for B sequences of *one* token, except that its query meets `tokens` keys and values.
# - Bytes: all parameters but the tables that are only looked up (positions; and the embedding, unless it is tied and
#   so read as the head), and the whole cache. A few rows and activations are left out.
#
# **6c.** `choose_machine(config, tokens, machines)`: let each machine serve its largest batch, on its own. A step takes
# no less than $\max(\mathrm{FLOPs}/\mathrm{peak},\ \mathrm{bytes}/\mathrm{bandwidth})$; the larger of the two binds
# (`"compute"` when equal). Return the `Choice` with the lowest price for a million tokens, the first one where two are
# equal, as those of like machines are, or of two that cost nothing; and `None` if the model fits nowhere.
#
# **Size:** about 2, 3, 9 and 13 lines.


# %% nbgrader={"solution": true, "grade_id": "task-6-serve"}
#| export
def kv_cache_bytes(config: TransformerConfig, batch: int, tokens: int) -> int:
    """Bytes of keys and values of `tokens` tokens of `batch` sequences. About 2 lines."""
    ### BEGIN SOLUTION
    token_bytes = 2 * 2 * config.n_layers * config.n_kv_heads * config.head_dim
    return batch * tokens * token_bytes
    ### END SOLUTION


def largest_batch(config: TransformerConfig, tokens: int, memory_bytes: float) -> int:
    """How many sequences of `tokens` tokens fit beside the parameters. About 3 lines."""
    ### BEGIN SOLUTION
    left = memory_bytes - 2 * count_parameters(config)
    return max(0, int(left // kv_cache_bytes(config, 1, tokens)))
    ### END SOLUTION


def decode_work(config: TransformerConfig, batch: int, tokens: int) -> tuple[int, int]:
    """FLOPs and bytes of one new token for each of `batch` sequences of `tokens` tokens. About 9 lines."""
    ### BEGIN SOLUTION
    flops = flops_of(forward_products(config, batch, 1))
    flops += 4 * batch * config.n_layers * config.n_heads * config.head_dim * (tokens - 1)
    table = parameter_table(config)
    read = sum(table.values()) - table["position"]
    if not config.tied:
        read -= table["embedding"]
    return flops, 2 * read + kv_cache_bytes(config, batch, tokens)
    ### END SOLUTION


def choose_machine(config: TransformerConfig, tokens: int, machines: Sequence[Machine]) -> Choice | None:
    """The machine that serves cheapest, each with its largest batch; None if the model fits nowhere. About 13 lines."""
    ### BEGIN SOLUTION
    choices = []
    for machine in machines:
        batch = largest_batch(config, tokens, machine.memory_bytes)
        if batch == 0:
            continue
        flops, moved = decode_work(config, batch, tokens)
        compute_s, memory_s = flops / machine.flops_per_s, moved / machine.bandwidth_bytes_per_s
        step_s = max(compute_s, memory_s)
        bound = "compute" if compute_s >= memory_s else "memory"
        dollars = machine.dollars_per_hour / 3600 * step_s / batch * 1e6
        choices.append(Choice(machine.name, batch, step_s, bound, dollars))
    return min(choices, key=lambda choice: choice.dollars_per_million, default=None)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "serving_memory"}
check("serving_memory")

# %% nbgrader={"grade": true, "grade_id": "decode_work"}
check("decode_work")

# %% nbgrader={"grade": true, "grade_id": "choose_machine"}
check("choose_machine")

# %% [markdown]
# **See it.** Rows of the course's device table. The prices are made up: put in those that you are offered. Say before
# you run it: which rows cannot hold Llama 2 7B and one sequence of 16,384 tokens, and what binds the others?

# %%
PRICES = {"T4": 0.4, "L4": 0.8, "RTX 4090": 0.6, "A100 80GB": 1.8, "H100": 3.0, "H200": 3.8}
machines = [
    Machine(
        name,
        device(name).memory_bytes,
        device(name).memory_bandwidth_bytes_per_s,
        device(name).peak("fp16"),
        dollars,
    )
    for name, dollars in PRICES.items()
]
lengths = [256, 1024, 4096, 16384]
figure = go.Figure()
for i, machine in enumerate(machines):
    choices = {tokens: choose_machine(LLAMA_7B, tokens, [machine]) for tokens in lengths}
    shown = {tokens: choice for tokens, choice in choices.items() if choice}
    if not shown:
        print(f"{machine.name}: does not fit")
        continue
    prices = [choice.dollars_per_million for choice in shown.values()]
    figure.add_scatter(x=list(shown), y=prices, name=machine.name, line_dash=("solid", "dot")[i % 2])
    longest = shown[max(shown)]
    print(
        f"{machine.name}: batch {longest.batch} of {max(shown):,} tokens a sequence, "
        f"{longest.step_s * 1e3:.1f} ms a step at least, bound by {longest.bound}"
    )
figure.update_layout(
    xaxis_title="tokens of a sequence",
    yaxis_title="dollars a million tokens, at least",
    xaxis_type="log",
    yaxis_type="log",
    xaxis_tickvals=lengths,
    xaxis_ticktext=[f"{tokens:,}" for tokens in lengths],
)
show(figure, alt="Least price of a million tokens of Llama 2 7B against the length of the sequences, for each device")
for config in (GPT2, LLAMA_7B, LLAMA_70B):
    best = choose_machine(config, 4096, machines)
    print(
        f"{config.name}, 4,096 tokens a sequence: cheapest on {best.device}, batch {best.batch}, "
        f"{best.dollars_per_million:.2f} dollars a million tokens, bound by {best.bound}"
        if best
        else f"{config.name}: fits nowhere"
    )

# %% [markdown]
# ## Answer for yourself
#
# - Grouped heads shrink the cache by $N/K$ and leave the FLOPs of the scores as they are. What does that do to the
#   intensity of decoding, and from which length on does it matter more than the weights?
# - Full recomputation costs one more forward pass. Which rises, and which falls: the FLOPs that the hardware does, or
#   those that the model needs? (The first over the peak is called HFU, the second MFU.)
# - Your training FLOPs count all T × T scores, though a causal mask throws half of them away. What would the crossover
#   be for a kernel that skips them?
# - The smallest number of devices that fits is seldom the best number to use. What would you have to add to your memory
#   plan to find that one? (Chapters 9 to 11 do.)
#
# When all checks pass, save the notebook and run `mlsys-lab check transformer-arithmetic` in a terminal: your counts
# are then what lab 06 plans its experiments with.
