# %% [markdown]
# # Lab 16 · Capstone: one model, trained and served on your own stack

# %%
from mlsys_lab.capstone import load_stack
from mlsys_lab.checks import lab

check = lab("capstone")
stack = load_stack()
print(stack.report())

# %%
#| export
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from mlsys_lab.capstone.job import Calibration, Serving, State, TrainJob
from mlsys_lab.comm import Rank
from mlsys_lab.configs import TrainConfig, TransformerConfig
from mlsys_lab.models.positions import rotary_angles, rotate
from mlsys_lab.models.training import (
    BETAS,
    GRADIENT_NORM,
    WEIGHT_DECAY,
    Batches,
    learning_rate,
    windows,
)

Tensor = Any  # a Tensor of the stack's engine


# %%
#| export
def rotary(engine: Any, x: Tensor, angles: torch.Tensor) -> Tensor:
    """Rotary embedding: (..., T, H), angles (2, ..., T, H/2) -> (..., T, H)."""
    signs = torch.tensor([1.0, -1.0], dtype=angles.dtype)
    back = angles * signs.view(2, *[1] * (angles.ndim - 1))
    return engine.record(rotate(x.data, angles), (x, lambda g: rotate(g, back)))


# %% nbgrader={"solution": true, "grade_id": "task-1-operations"}
#| export
def causal_softmax(engine: Any, scores: Tensor, scale: float) -> Tensor:
    """Softmax of scale * scores (..., T, T), each query over itself and the past."""
    ### BEGIN SOLUTION
    T = scores.data.shape[-1]
    future = torch.ones(T, T, dtype=torch.bool).triu(1)
    weights = (scores.data * scale).masked_fill_(future, -math.inf).softmax(-1)

    def vjp(g: torch.Tensor) -> torch.Tensor:
        weighted = g * weights
        return scale * (weighted - weights * weighted.sum(-1, keepdim=True))

    return engine.record(weights, (scores, vjp))
    ### END SOLUTION


def rms_norm(engine: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / √(mean of squares + eps) · weight: (R, D), (D,) -> (R, D)."""
    ### BEGIN SOLUTION
    inverse = (x.data.square().mean(-1, keepdim=True) + eps).rsqrt()  # (R, 1)

    def vjp(g: torch.Tensor) -> torch.Tensor:
        normed, g = x.data * inverse, g * weight.data
        return inverse * (g - normed * (g * normed).mean(-1, keepdim=True))

    def weight_vjp(g: torch.Tensor) -> torch.Tensor:
        return (g * x.data * inverse).sum(0)

    return engine.record(x.data * inverse * weight.data, (x, vjp), (weight, weight_vjp))
    ### END SOLUTION


def silu_mul(engine: Any, gate: Tensor, up: Tensor) -> Tensor:
    """gate · sigmoid(gate) · up, elementwise."""

    ### BEGIN SOLUTION
    def gate_vjp(g: torch.Tensor) -> torch.Tensor:
        s = gate.data.sigmoid()
        return g * up.data * s * (1 + gate.data * (1 - s))

    def up_vjp(g: torch.Tensor) -> torch.Tensor:
        return g * gate.data * gate.data.sigmoid()

    out = gate.data * gate.data.sigmoid() * up.data
    return engine.record(out, (gate, gate_vjp), (up, up_vjp))
    ### END SOLUTION


# %% nbgrader={"solution": true, "grade_id": "task-2-decoder"}
#| export
class GPT:
    """Decoder on an engine; `parameters` are its leaves, by the names of the weights."""

    def __init__(
        self,
        engine: Any,
        config: TransformerConfig,
        weights: Mapping[str, torch.Tensor],
    ) -> None:
        self.engine, self.config = engine, config
        self.parameters: dict[str, Tensor] = {
            name: engine.Tensor(weight.detach(), requires_grad=True)
            for name, weight in weights.items()
        }

    def linear(self, name: str, x: Tensor) -> Tensor:
        """Product with a weight (O, I): (R, I) -> (R, O)."""
        return x @ self.parameters[f"{name}.weight"].T

    def norm(self, name: str, x: Tensor) -> Tensor:
        """RMS norm by a weight (D,): (R, D) -> (R, D)."""
        weight = self.parameters[f"{name}.weight"]
        return rms_norm(self.engine, x, weight, self.config.norm_eps)

    def attention(self, block: str, x: Tensor, B: int, angles: torch.Tensor) -> Tensor:
        """Causal grouped-query attention of B sequences: (B·T, D) -> (B·T, D)."""
        ### BEGIN SOLUTION
        c = self.config
        K, G, H, T = (
            c.n_kv_heads,
            c.n_heads // c.n_kv_heads,
            c.head_dim,
            len(x.data) // B,
        )

        def heads(name: str, groups: int) -> Tensor:
            projected = self.linear(f"{block}.attention.{name}", x)
            return projected.reshape(B, T, K, groups, H).permute(0, 2, 3, 1, 4)

        q = rotary(self.engine, heads("query", G), angles)  # (B, K, G, T, H)
        k = rotary(self.engine, heads("key", 1), angles)  # (B, K, 1, T, H)
        weights = causal_softmax(self.engine, q @ k.T, H**-0.5)  # (B, K, G, T, T)
        out = (weights @ heads("value", 1)).permute(0, 3, 1, 2, 4)  # (B, T, K, G, H)
        return self.linear(f"{block}.attention.out", out.reshape(B * T, K * G * H))
        ### END SOLUTION

    def mlp(self, block: str, x: Tensor) -> Tensor:
        """SwiGLU: down(silu(gate(x)) · up(x)), (B·T, D) -> (B·T, D)."""
        ### BEGIN SOLUTION
        gate, up = (self.linear(f"{block}.mlp.{name}", x) for name in ("gate", "up"))
        return self.linear(f"{block}.mlp.down", silu_mul(self.engine, gate, up))
        ### END SOLUTION

    def __call__(self, tokens: torch.Tensor) -> Tensor:
        """Logits of the next token at each position: ids (B, T) -> (B·T, V)."""
        ### BEGIN SOLUTION
        (B, T), c = tokens.shape, self.config
        embedding = self.parameters["embedding.weight"]
        positions = torch.arange(T)
        angles = rotary_angles(positions, c.head_dim, c.rope_theta, embedding.data)
        x = embedding[tokens.reshape(-1)]  # (B·T, D)
        for layer in range(c.n_layers):
            block = f"blocks.{layer}"
            normed = self.norm(f"{block}.attention_norm", x)
            x = x + self.attention(block, normed, B, angles)
            x = x + self.mlp(block, self.norm(f"{block}.mlp_norm", x))
        return self.linear("embedding" if c.tied else "head", self.norm("norm", x))
        ### END SOLUTION

    def loss(self, sequences: torch.Tensor) -> Tensor:
        """Mean next-token cross-entropy of ids (B, T + 1), in nats per token."""
        ### BEGIN SOLUTION
        logits = self(sequences[:, :-1])
        loss: Tensor = self.engine.cross_entropy(logits, sequences[:, 1:].reshape(-1))
        return loss
        ### END SOLUTION


# %% nbgrader={"solution": true, "grade_id": "task-3-train"}
#| export
def train_rank(
    rank: Rank, job: TrainJob
) -> tuple[list[float], dict[str, torch.Tensor], State | None]:
    """Train as one rank: mean losses of all ranks, weights, and this rank's state."""
    ### BEGIN SOLUTION
    layer, train = job.stack.data_parallel, job.train
    copies = {name: one.detach().clone() for name, one in job.weights.items()}
    model = GPT(job.stack.engine, job.config, copies)
    leaves = list(model.parameters.values())
    parameters = [nn.Parameter(leaf.data) for leaf in leaves]
    options = {"lr": train.lr, "betas": BETAS, "weight_decay": WEIGHT_DECAY}
    optimizer = layer.ShardedOptimizer(parameters, torch.optim.AdamW, rank, **options)
    groups = optimizer.optimizer.param_groups
    shards = [shard for group in groups for shard in group["params"]]
    done = layer.load_state(optimizer, job.state) if job.state else 0

    def share_weights() -> None:
        for leaf, parameter in zip(leaves, parameters, strict=True):
            leaf.data = parameter.data

    losses = []
    batches = Batches(len(job.ids), train.batch_size, train.seq_len, train.seed)
    for step, starts in zip(range(1, job.until + 1), batches, strict=False):
        if step <= done:
            continue
        share_weights()
        sequences = windows(job.ids, starts, train.seq_len)
        own = sequences.tensor_split(rank.size)[rank.rank]
        (weight,) = layer.loss_weights([own[:, 1:].numel()], rank)
        loss = model.loss(own) * weight  # the ranks' mean is that of all tokens
        loss.backward()
        for leaf, parameter in zip(leaves, parameters, strict=True):
            parameter.grad, leaf.grad = leaf.grad, None
        optimizer.reduce_gradients()
        layer.clip_grad_norm(shards, GRADIENT_NORM, rank)
        for group in groups:
            group["lr"] = learning_rate(step, train.steps, train.lr)
        optimizer.step()
        total = job.stack.collectives.all_reduce(rank, loss.data.reshape(1))
        losses.append(total.item() / rank.size)
    share_weights()
    has_states = hasattr(layer, "save_state")  # the package's layer has none
    state = layer.save_state(optimizer, max(done, job.until)) if has_states else None
    return losses, {name: one.data for name, one in model.parameters.items()}, state
    ### END SOLUTION


# %% nbgrader={"solution": true, "grade_id": "task-4-sheet"}
#| export
Numbers = dict[str, float]


def predict_training(
    stack: Any, config: TransformerConfig, train: TrainConfig, world_size: int
) -> Numbers:
    """FLOPs of a training step of all ranks, and bytes that rank 0 holds."""
    ### BEGIN SOLUTION
    layer, B, T = stack.arithmetic, train.batch_size, train.seq_len
    parameters = layer.count_parameters(config)
    kept = layer.states(parameters, data=world_size, zero_stage=1)
    batch = -(-B // world_size)  # rank 0 has no fewer sequences than another rank
    probabilities = 4 * batch * T * config.vocab_size  # of the loss: fp32 already
    numbers: Numbers = {
        "training_flops": layer.flops_of(layer.step_products(config, T, B)),
        "parameters": parameters,
        "weight_bytes": 2 * kept.weights,
        "gradient_bytes": 2 * kept.gradients,
        "master_bytes": kept.master,
        "optimizer_bytes": kept.moments,
        "activation_bytes": 2 * layer.activation_bytes(config, T, batch)
        - probabilities,
    }
    held = ("weight", "gradient", "master", "optimizer", "activation")
    return numbers | {"peak_bytes": sum(numbers[f"{name}_bytes"] for name in held)}
    ### END SOLUTION


def predict_messages(stack: Any, parameters: int, world_size: int) -> Numbers:
    """What all ranks send in a training step."""
    ### BEGIN SOLUTION
    layer = stack.collectives
    half = sum(layer.ring_elements(parameters, world_size)) / 2
    one_number = sum(layer.ring_elements(1, world_size))
    messages = world_size * (world_size - 1)
    both = {
        f"{array}_{what}": number
        for array in ("gradient", "weight")
        for what, number in (
            ("elements_sent", half),
            ("bytes_sent", 4 * half),
            ("messages", messages),
        )
    }
    once = {"loss_elements_sent": one_number, "scalar_elements_sent": 2 * one_number}
    return both | once
    ### END SOLUTION


def predict_serving(stack: Any, config: TransformerConfig, serving: Serving) -> Numbers:
    """FLOPs of prefill and decode steps, and bytes that the decode steps move."""
    ### BEGIN SOLUTION
    layer, prompt = stack.arithmetic, serving.prompt_tokens
    head_flops = 2 * config.d_model * config.vocab_size * prompt
    forward_flops = layer.flops_of(layer.forward_products(config, prompt))
    steps = [
        stack.cache.step_cost(config, [part], weight_bytes=4, cache_bytes=4)
        for part in serving.decode_steps()
    ]
    return {
        "prefill_flops": forward_flops - head_flops,
        "decode_flops": sum(step.flops for step in steps),
        "decode_weight_bytes": sum(step.weight_bytes for step in steps),
        "decode_cache_read_bytes": sum(step.cache_read_bytes for step in steps),
        "decode_cache_written_bytes": sum(step.cache_written_bytes for step in steps),
    }
    ### END SOLUTION


def predict_seconds(
    stack: Any,
    config: TransformerConfig,
    train: TrainConfig,
    world_size: int,
    calibration: Calibration,
    serving: Serving,
) -> Numbers:
    """Seconds of a training step whose ranks take turns, and of the decode steps."""
    ### BEGIN SOLUTION
    T, batch_size = train.seq_len, train.batch_size
    batches = [
        batch_size // world_size + (rank < batch_size % world_size)
        for rank in range(world_size)
    ]

    def compute_s(unit_s: float) -> float:
        predict = stack.arithmetic.predict_training_step_s
        rates = calibration.rates
        return sum(predict(config, T, batch, rates, unit_s) for batch in batches)

    parameters = stack.arithmetic.count_parameters(config)
    link = stack.collectives.LinkCost(calibration.latency_s, calibration.bytes_per_s)
    sizes = [4 * parameters, 4, 4, 4]
    communication_s = world_size * sum(
        stack.collectives.all_reduce_s("ring", world_size, size, link) for size in sizes
    )
    machine = stack.cache.Machine(
        calibration.peak_flops_per_s, calibration.memory_bytes_per_s
    )
    steps = [
        stack.cache.step_cost(config, [part], weight_bytes=4, cache_bytes=4)
        for part in serving.decode_steps()
    ]
    return {
        "products_s": compute_s(0.0),
        "communication_s": communication_s,
        "training_step_s": compute_s(calibration.unit_s) + communication_s,
        "decode_s": sum(stack.cache.least_time(one, machine).time_s for one in steps),
    }
    ### END SOLUTION


# %% nbgrader={"solution": true, "grade_id": "task-5-serve"}
#| export
class BlockCache:
    """KV cache of lab 10's interface in blocks that lab 11's scheduler allocates.

    `sequences` are the scheduled ones, by their number in this step.
    """

    def __init__(self, kv_cache: Any, block_size: int) -> None:
        self.kv_cache, self.block_size = kv_cache, block_size
        self.sequences: dict[int, Any] = {}

    def length(self, sequence: int) -> int:
        """Tokens of a sequence in the cache."""
        ### BEGIN SOLUTION
        return int(self.sequences[sequence].num_computed_tokens)
        ### END SOLUTION

    def advance(self, sequence: int, num_tokens: int) -> None:
        """Nothing: the scheduler counts computed tokens."""

    def slots(self, sequence: int, end: int) -> torch.Tensor:
        """Slots of tokens 0 to end - 1 of a sequence: (end,)."""
        ### BEGIN SOLUTION
        table, size = self.sequences[sequence].block_table, self.block_size
        positions = torch.arange(end)
        return torch.tensor(table)[positions // size] * size + positions % size
        ### END SOLUTION

    def update(
        self, layer: int, sequence: int, k: torch.Tensor, v: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Store k, v (K, T, H); return all keys, values (K, S, H), positions (S,)."""
        ### BEGIN SOLUTION
        start = self.length(sequence)
        slots = self.slots(sequence, start + k.shape[1])
        self.kv_cache.store(layer, slots[start:], k.transpose(0, 1), v.transpose(0, 1))
        keys, values = self.kv_cache.load(layer, slots)  # (S, K, H) each
        return keys.transpose(0, 1), values.transpose(0, 1), torch.arange(len(slots))
        ### END SOLUTION


# %% nbgrader={"solution": true, "grade_id": "task-6-swap"}
#| export
def predict_swap(
    stack: Any,
    config: TransformerConfig,
    world_size: int,
    algorithm: str,
    calibration: Calibration,
) -> Numbers:
    """Cost of replicated optimizers: gradients all-reduced, states on every rank."""
    ### BEGIN SOLUTION
    parameters = stack.arithmetic.count_parameters(config)
    link = stack.collectives.LinkCost(calibration.latency_s, calibration.bytes_per_s)
    seconds = stack.collectives.all_reduce_s(
        algorithm, world_size, 4 * parameters, link
    )
    ring, exchanges = 2 * (world_size - 1), 2 * math.ceil(math.log2(world_size))
    steps = {"ring": ring, "halving_doubling": exchanges}[algorithm]
    return {
        "gradient_elements_sent": 2 * (world_size - 1) * parameters,
        "gradient_messages": world_size * steps,
        "master_bytes": 4 * parameters,
        "optimizer_bytes": 8 * parameters,
        "communication_s": world_size * seconds,
    }
    ### END SOLUTION


class Bar(NamedTuple):
    """A bar of a waterfall, from one time to another."""

    name: str
    start_s: float
    end_s: float


def waterfall(
    predicted: Numbers, measured: Numbers, peak_flops_per_s: float
) -> list[Bar]:
    """Bars from the bound of a training step to its measurement."""
    ### BEGIN SOLUTION
    ends = {
        "products at peak": predicted["training_flops"] / peak_flops_per_s,
        "products at their rates": predicted["products_s"],
        "elementwise work": predicted["training_step_s"] - predicted["communication_s"],
        "communication": predicted["training_step_s"],
        "not predicted": measured["training_step_s"],
    }
    starts = [0.0, *ends.values()]
    return [
        Bar(name, start_s, end_s)
        for start_s, (name, end_s) in zip(starts, ends.items(), strict=False)
    ]
    ### END SOLUTION
