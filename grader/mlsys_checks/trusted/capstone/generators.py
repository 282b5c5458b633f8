"""Cases and oracles of lab 16's decoder, training and serving.

Dimension letters: B sequences, T tokens, V vocabulary, D d_model, K key/value heads, H head_dim, L layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from mlsys_checks.sandboxed.capstone import CALLS, STATE_FACTOR, WEIGHT
from mlsys_checks.sandboxed.ranks import join_ranks, split_ranks
from mlsys_checks.sandboxed.spec import Arrays, Case, Mismatch
from mlsys_checks.sandboxed.values import decode_value, encode_value
from mlsys_checks.trusted.compare import close
from mlsys_checks.trusted.ledger import read_ledger
from mlsys_checks.trusted.traffic import compare_run, expect_ranks, find_excess, limits_of
from mlsys_lab.configs import TrainConfig, TransformerConfig
from mlsys_lab.efficiency.grammar import Grammar
from mlsys_lab.models import Transformer, training

Rng = np.random.Generator
SCALAR_BYTES = 100
"""What a rank may send another in a step next to gradients and weights: a few numbers."""
LOSS = 0.02
"""How much higher, as a fraction, a loss may be than that of the judge's own run."""
HIDDEN_TOKENS = 6000
LARGE = 32
"""Axes from which on it counts what an operation's graph keeps: a number for each row is little then."""
OPERATIONS = ("causal_softmax", "rms_norm", "silu_mul")


# --- Task 1: operations -----------------------------------------------------------------------------------------------


def draw_operation(rng: Rng, case: Case) -> Arrays:
    """Draw operands, and an upstream gradient with axes of size 1, along which it is to be expanded.

    params: `name`, `size` of an operand's axes, `spread` of its numbers, `scale`, `single`; `first`: a row's factor.
    """
    p = case.params
    name, size = p.get("name") or str(rng.choice(OPERATIONS)), p["size"]
    dtype = np.float32 if p.get("single") else np.float64
    if name == "causal_softmax":
        shape = (*rng.integers(1, 4, p.get("axes", rng.integers(0, 4))).tolist(), size, size)
        numbers = [p.get("scale", round(float(rng.uniform(0.1, 1.5)), 2))]
        operands = [rng.normal(0, p.get("spread", 1.0), shape)]
    else:
        rows, width = int(rng.integers(1, 7)), size
        operands = [rng.normal(0, p.get("spread", 1.0), (rows, width)) for _ in range(2)]
        numbers = []
        if name == "rms_norm":
            operands[1] = operands[1][0]
            operands[0][0] *= p.get("first", 1.0)
            numbers = [float(10 ** rng.uniform(-6, 0))]
        shape = (rows, width)
    g = rng.normal(0, 1, [int(rng.choice([1, axis])) for axis in shape] if p.get("expanded", 1) else shape)
    arrays = {letter: one.astype(dtype) for letter, one in zip("xy", operands, strict=False)}
    given = {"name": name, "numbers": numbers, "is_large": size >= LARGE}
    return {"case": encode_value(given), "g": g.astype(dtype), **arrays}


def compare_gradients(got: Arrays, expected: Arrays) -> Mismatch | None:
    """`close`, with entries of size 1: a softmax's gradients cancel where all keys have the same upstream gradient."""
    return close(got, expected, min_size=dict.fromkeys(expected, 1.0))


def expect_operation(arrays: Arrays) -> Arrays:
    """Value and gradients by torch's autograd in double precision."""
    case, dtype = decode_value(arrays["case"]), arrays["x"].dtype
    x, *more = (torch.from_numpy(arrays[name]).double().requires_grad_() for name in "xy" if name in arrays)
    match case["name"]:
        case "causal_softmax":
            T = x.shape[-1]
            past = torch.arange(T)[:, None] >= torch.arange(T)
            result = torch.where(past, x * case["numbers"][0], -torch.inf).softmax(-1)
        case "rms_norm":
            result = F.rms_norm(x, x.shape[-1:], more[0], case["numbers"][0])
        case _:
            result = F.silu(x) * more[0]
    g = torch.from_numpy(arrays["g"]).double().expand(result.shape)
    found = torch.autograd.grad(result, [x, *more], g)
    answers = {"value": result.detach()} | {f"gradient of operand {i}": one for i, one in enumerate(found)}
    return {name: one.numpy().astype(dtype) for name, one in answers.items()}


# --- Task 2: the decoder ----------------------------------------------------------------------------------------------


def draw_decoder(rng: Rng, case: Case) -> Arrays:
    """Draw a model, its weights, and sequences.

    params: `layers`, `kv_heads`, `group` of query heads, `batch`, `tokens`; `tied`, drawn if missing.
    """
    p = case.params
    d_model, d_ff, vocab_size, half = (int(rng.integers(2, end)) for end in (14, 20, 30, 6))
    drawn = {"n_layers": p["layers"], "d_model": d_model, "d_ff": d_ff, "vocab_size": vocab_size, "head_dim": 2 * half}
    drawn |= {"n_kv_heads": p["kv_heads"], "n_heads": p["kv_heads"] * p["group"], "context": p["tokens"] + 1}
    drawn |= {"tied": bool(p.get("tied", rng.integers(2))), "norm_eps": float(rng.choice([1e-5, 1e-6, 0.1]))}
    drawn["rope_theta"] = float(rng.choice([50.0, 1e4, 5e5]))
    sequences = rng.integers(0, vocab_size, (p["batch"], p["tokens"] + 1))
    return {"case": encode_value({"config": drawn}), "sequences": sequences, **draw_weights(rng, drawn)}


def draw_weights(rng: Rng, config: Mapping[str, Any], size: float = 1.5) -> Arrays:
    """Draw weights of a model, far from their initial values."""
    with torch.random.fork_rng(devices=[]):
        shapes = {name: tuple(one.shape) for name, one in Transformer(_config(config)).named_parameters()}
    return {
        WEIGHT + name: rng.normal(0, size * shape[-1] ** -0.5, shape) if len(shape) > 1 else rng.normal(1, 0.3, shape)
        for name, shape in shapes.items()
    }


def _config(sizes: Mapping[str, Any]) -> TransformerConfig:
    return TransformerConfig("drawn", **sizes)


def make_model(arrays: Mapping[str, np.ndarray], dtype: torch.dtype = torch.float64) -> Transformer:
    """The model of a case, with its weights."""
    model = Transformer(_config(decode_value(arrays["case"])["config"])).to(dtype)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(torch.from_numpy(arrays[WEIGHT + name]))
    return model


@torch.no_grad()
def expect_decoder(arrays: Arrays) -> Arrays:
    """Logits (B·T, V) and losses of sequences, and of these backwards, by `models.Transformer`."""
    model, answers = make_model(arrays), Arrays()
    for when, flipped in CALLS.items():
        sequences = torch.from_numpy(arrays["sequences"]).flip(flipped)
        logits = model(sequences[:, :-1]).flatten(0, 1)
        loss = F.cross_entropy(logits, sequences[:, 1:].flatten())
        answers |= {f"logits of the {when} call": logits.numpy(), f"loss of the {when} call": loss.numpy()}
    return answers


def expect_gradients(arrays: Arrays) -> Arrays:
    """Gradients of all weights, by torch's autograd."""
    model = make_model(arrays)
    training.loss(model, torch.from_numpy(arrays["sequences"])).backward()  # type: ignore[no-untyped-call]
    return {name: one.grad.numpy() for name, one in model.named_parameters() if one.grad is not None}


# --- Task 3: training -------------------------------------------------------------------------------------------------


def count_ids(train: TrainConfig) -> int:
    """Tokens of a text of which a run uses each sequence at most once."""
    return (train.steps * train.batch_size + 3) * train.seq_len + 1


def hide(
    rng: Rng, ids: np.ndarray, vocab_size: int, train: TrainConfig, ranks: int, sizes: Sequence[int] = ()
) -> list[np.ndarray]:
    """For each rank the text in which only its own sequences are right: no rank can train alone.

    sizes: how many of the ranks train in each step; all of them if it is empty.
    """
    sizes = sizes or [ranks] * train.steps
    seen = np.zeros((ranks, len(ids)), bool)
    batches = training.Batches(len(ids), train.batch_size, train.seq_len, train.seed)
    for size, starts in zip(sizes, batches, strict=False):
        for rank, own in enumerate(np.array_split(starts, size)):
            seen[rank, own[:, None] + np.arange(train.seq_len + 1)] = True
    return [np.where(mask, ids, rng.integers(0, vocab_size, len(ids))) for mask in seen]


def draw_run(rng: Rng, case: Case) -> Arrays:
    """Draw two matrices and a norm's weight, a text, and where a run stops.

    params: `p` ranks, `batch` sequences more than ranks, `tokens`, `steps`; `stop`, `first`, `then` of a resumed run.
    """
    p = case.params
    ranks = max(p.get("first", 0), p.get("then", 0), p.get("p", 0))
    V, D = int(rng.integers(5, 12)), int(rng.integers(8, 14))
    lr, seed = float(rng.choice([0.01, 0.03])), int(rng.integers(99))
    train = TrainConfig(ranks + p["batch"], p["tokens"], p["steps"], lr, seed)
    config = {"n_layers": 1, "d_model": D, "n_heads": 1, "head_dim": 2, "d_ff": 3, "vocab_size": V, "context": 32}
    given: dict[str, Any] = {"config": config, "train": vars(train)}
    sizes: list[int] = []
    if "stop" in p:
        given |= {name: p[name] for name in ("stop", "first", "then")}
        sizes = [p["first"]] * p["stop"] + [p["then"]] * (train.steps - p["stop"])
    shapes = {"embedding.weight": (V, D), "norm.weight": (D,), "head.weight": (V, D)}
    weights = {WEIGHT + name: rng.normal(0, 1, shape) for name, shape in shapes.items()}
    ids = rng.integers(0, V, count_ids(train))
    texts = hide(rng, ids, V, train, ranks, sizes)
    return join_ranks([{"case": encode_value(given), "ids": own, **weights} for own in texts]) | {"_ids": ids}


class Bigram:
    """One process that trains the checks' own small model on all tokens."""

    def __init__(self, arrays: Arrays) -> None:
        part = split_ranks(arrays)[0]
        self.case, self.ids = decode_value(part["case"]), arrays["_ids"]
        self.train = TrainConfig(**self.case["train"])
        names = [name for name in part if name.startswith(WEIGHT)]
        self.weights = {name.removeprefix(WEIGHT): torch.tensor(part[name], requires_grad=True) for name in names}
        options: dict[str, Any] = {"betas": training.BETAS, "weight_decay": training.WEIGHT_DECAY}
        self.optimizer = torch.optim.AdamW(self.weights.values(), lr=self.train.lr, **options)
        self.batches = training.Batches(len(self.ids), self.train.batch_size, self.train.seq_len, self.train.seed)
        self.steps = 0

    def run(self, until: int) -> Arrays:
        """Train up to a step: the losses, and the weights then."""
        losses = []
        embedding, norm, head = self.weights.values()
        while self.steps < until:
            sequences = training.windows(self.ids, next(self.batches), self.train.seq_len)
            logits = torch.tanh(embedding[sequences[:, :-1]] * norm) @ head.T
            loss = F.cross_entropy(logits.flatten(0, 1), sequences[:, 1:].flatten())
            grads = torch.autograd.grad(loss, [*self.weights.values()])
            size = float(torch.cat([grad.flatten() for grad in grads]).norm())
            for weight, grad in zip(self.weights.values(), grads, strict=True):
                weight.grad = grad * min(1.0, training.GRADIENT_NORM / size)
            self.steps += 1
            for group in self.optimizer.param_groups:
                group["lr"] = training.learning_rate(self.steps, self.train.steps, self.train.lr)
            self.optimizer.step()
            losses.append(loss.item())
        return {"losses": np.array(losses)} | {name: one.detach().numpy().copy() for name, one in self.weights.items()}

    def expect(self, until: int, ranks: int) -> list[Arrays]:
        """Train up to a step: what each rank returns."""
        answers = self.run(until)
        flat = np.concatenate([weight.detach().numpy().ravel() for weight in self.weights.values()])
        shards = np.array_split(flat, ranks)
        return [answers | {"state: weights": shard, "state: position": np.array(until)} for shard in shards]

    @property
    def weights_bytes(self) -> int:
        """Bytes of all weights."""
        return sum(weight.nbytes for weight in self.weights.values())


def expect_run(arrays: Arrays) -> Arrays:
    """Losses, weights and shards of one process; limits on what ranks send."""
    run, p = Bigram(arrays), len(split_ranks(arrays))
    return expect_ranks(run.expect(run.train.steps, p), **sharing(run.weights_bytes, p, run.train.steps))


def sharing(weights_bytes: int, p: int, steps: int) -> dict[str, int]:
    """Limits on what p ranks send that shard their optimizer: a reduce-scatter and an all-gather in each step.

    The most has room for weights that are sent twice at the start, and for chunks of one length.
    """
    least = 2 * steps * (p - 1) * weights_bytes
    scalars = steps * p * p * SCALAR_BYTES
    return {"least_bytes": least, "total_bytes": least + 2 * (p - 1) * weights_bytes + scalars + 16 * steps * p * p}


def expect_resumed(arrays: Arrays) -> Arrays:
    """Losses, weights and shards of one process that doubles its weights at the stop."""
    run, answers = Bigram(arrays), [{"idle": np.array(True)} for _ in split_ranks(arrays)]
    least, stop = 0, run.case["stop"]
    for when, ranks, until in (("to", run.case["first"], stop), ("after", run.case["then"], run.train.steps)):
        least += sharing(run.weights_bytes, ranks, until - run.steps)["least_bytes"]
        for answer, found in zip(answers, run.expect(until, ranks), strict=False):
            answer |= {f"{when} the stop: {name}": one for name, one in found.items()}
        for weight in run.weights.values():
            weight.data *= STATE_FACTOR
    return expect_ranks(answers, least_bytes=least)


def _near(got: Arrays, expected: Arrays) -> Mismatch | None:
    """`close` for weights after some steps: a norm that is clipped with torch's 1e-6 moves them by less."""
    return close(got, expected, scale=100.0)


def compare_training(got: Arrays, expected: Arrays) -> Mismatch | None:
    """Compare answers, and count what the ranks sent: neither more than sharding needs, nor less."""
    return compare_run(got, expected, _near) or find_shortfall(got, expected)


def find_shortfall(got: Arrays, expected: Arrays) -> Mismatch | None:
    """Ranks that send less than any algorithm must."""
    sent, least = sum(read_ledger(got).sent_bytes()), int(limits_of(expected)["least_bytes"])
    if sent < least:
        what = "all ranks together send too few bytes: gradients are not reduced and weights not gathered in each step"
        return Mismatch(what, f"{sent:,} bytes", f"at least {least:,} bytes")
    return None


# --- a budget of steps, on hidden text --------------------------------------------------------------------------------

DECODER = {"n_layers": 2, "d_model": 48, "n_heads": 4, "n_kv_heads": 2, "head_dim": 12, "d_ff": 128, "context": 64}


def draw_budget(rng: Rng, case: Case) -> Arrays:
    """Draw a grammar, a text of it, initial weights, and hidden text.

    params: `p` ranks, `batch` sequences of `tokens`, `steps`.
    """
    p, seeds = case.params, rng.integers(2**31, size=4).tolist()
    grammar = Grammar.random(seeds[0])
    train = TrainConfig(p["batch"], p["tokens"], p["steps"], 0.03, seeds[1])
    ids = grammar.sample(count_ids(train), seed=seeds[2])
    config = DECODER | {"vocab_size": grammar.vocab_size}
    model = training.new_model(_config(config), seeds[3])
    weights = {WEIGHT + name: one.detach().numpy() for name, one in model.named_parameters()}
    given = encode_value({"config": config, "train": vars(train)})
    texts = hide(rng, ids, grammar.vocab_size, train, p["p"])
    parts = [{"case": given, "ids": own, **weights} for own in texts]
    hidden = grammar.sample(HIDDEN_TOKENS, seed=int(rng.integers(2**31)))
    return join_ranks(parts) | {"_ids": ids, "_hidden": hidden, "_grammar": np.array(seeds[0])}


def expect_budget(arrays: Arrays) -> Arrays:
    """Loss on the hidden text of the judge's own run, and that of the grammar itself."""
    part = split_ranks(arrays)[0]
    train = decode_value(part["case"])["train"]
    model = make_model(part, torch.float32)
    for _ in training.train(model, arrays["_ids"], **train):
        pass
    hidden = arrays["_hidden"]
    grammar = Grammar.random(int(arrays["_grammar"]))
    judged_by = {"_hidden": hidden, "case": part["case"]} | {
        "own": np.array(training.mean_loss(model, hidden, train["seq_len"])),
        "least": np.array(min(grammar.loss(hidden), grammar.entropy)),
    }
    weights = {name: one for name, one in part.items() if name.startswith(WEIGHT)}
    n, p = sum(one.size for one in weights.values()), len(split_ranks(arrays))
    return expect_ranks([judged_by | weights], **sharing(4 * n, p, train["steps"]))


def compare_budget(got: Arrays, expected: Arrays) -> Mismatch | None:
    """Count what the ranks sent, and evaluate rank 0's weights on the hidden text."""
    given, limits = split_ranks(expected)[0], limits_of(expected)
    first, seq_len = split_ranks(got)[0], decode_value(given["case"])["train"]["seq_len"]
    weights = {name: first[name.removeprefix(WEIGHT)] for name in given if name.startswith(WEIGHT)}
    for name, found in weights.items():
        if found.shape != given[name].shape or found.dtype != np.float32:
            wanted = f"float32 of shape {given[name].shape}"
            return Mismatch(f"{name} has another form", f"{found.dtype} of shape {found.shape}", wanted, is_form=True)
    if (mismatch := find_excess(read_ledger(got), limits) or find_shortfall(got, expected)) is not None:
        return mismatch
    model = make_model({"case": given["case"], **weights}, torch.float32)
    loss, least = training.mean_loss(model, given["_hidden"], seq_len), float(given["least"])
    most = (1 + LOSS) * float(given["own"])
    if not least <= loss <= most:
        what = "the loss of rank 0's weights on hidden text is out of range"
        expected_loss = f"{least:.4f}, the grammar's entropy, to {most:.4f}, {LOSS:.0%} above training in one process"
        return Mismatch(what, f"{loss:.4f} nats per token", expected_loss)
    return None


# --- Task 5: serving --------------------------------------------------------------------------------------------------


def draw_updates(rng: Rng, case: Case) -> Arrays:
    """Draw steps of several sequences whose blocks lie anywhere, with shared prefixes and preempted sequences.

    params: `block_size`, `sequences`, `steps`, `layers`, `longest` part of a step.
    """
    p, size = case.params, case.params["block_size"]
    num_blocks = 2 + p["sequences"] * (2 + p["steps"] * p["longest"] // size)
    free = rng.permutation(num_blocks).tolist()
    tables: list[list[int]] = [[] for _ in range(p["sequences"])]
    computed = [0] * p["sequences"]
    shared: set[int] = set()
    steps, total = [], 0
    for number in range(p["steps"]):
        step = []
        for sequence in rng.permutation(p["sequences"])[: rng.integers(1, p["sequences"] + 1)].tolist():
            table = tables[sequence]
            if number and rng.random() < 0.2 and not shared.intersection(table):  # preempted, and admitted again
                free += table[::-1]
                table, computed[sequence] = [], 0
            other = int(rng.integers(p["sequences"]))
            whole = computed[other] // size
            if not table and whole and other != sequence and rng.random() < 0.7:  # a cached prefix
                table, computed[sequence] = tables[other][:whole], whole * size
                shared.update(table)
            new = int(rng.integers(1, p["longest"] + 1))
            needed = -(-(computed[sequence] + new) // size) + int(rng.integers(0, 2))
            while len(table) < needed and free:
                table = [*table, free.pop(0)]
            new = min(new, len(table) * size - computed[sequence])
            tables[sequence] = table
            if new > 0:
                step.append([table, computed[sequence], total, new])
                computed[sequence] += new
                total += new
        if step:
            steps.append(step)
    shape = (p["layers"], total, int(rng.integers(1, 4)), int(rng.integers(1, 5)))
    dtype = np.float32 if p.get("single") else np.float64
    drawn = {name: rng.normal(0, 1, shape).astype(dtype) for name in "kv"}
    return {"case": encode_value({"block_size": size, "num_blocks": num_blocks, "steps": steps})} | drawn


def expect_updates(arrays: Arrays) -> Arrays:
    """Replay the steps on a table of slots."""
    case, size = decode_value(arrays["case"]), decode_value(arrays["case"])["block_size"]
    k, v = arrays["k"], arrays["v"]
    store = np.full((2, len(k), case["num_blocks"] * size, *k.shape[2:]), -1, k.dtype)
    answers: Arrays = {}
    for i, step in enumerate(case["steps"]):
        for sequence, (table, computed, first, new) in enumerate(step):
            slots = np.array([block * size + offset for block in table for offset in range(size)][: computed + new])
            for kv, x in zip(store, (k, v), strict=True):
                kv[:, slots[computed:]] = x[:, first : first + new]
            for layer in range(len(k)):
                name = f"step {i}, layer {layer}, sequence {sequence}"
                keys, values = store[:, layer, slots].swapaxes(1, 2).copy()
                answers |= {f"{name}: keys": keys, f"{name}: values": values}
                answers[f"{name}: positions"] = np.arange(len(slots))
            answers[f"step {i}, sequence {sequence}: slots"] = slots
            answers[f"step {i}, sequence {sequence}: length"] = np.array(computed)
    return answers | {"store": store}


def draw_requests(rng: Rng, case: Case) -> Arrays:
    """Draw a model, requests over time, half of which share a prefix, and so few blocks that some are preempted.

    params: `block_size`, `requests`, `tokens` of the longest prompt, `new` tokens at least and twice that at most.
    """
    p, size = case.params, case.params["block_size"]
    kv_heads, group = (int(rng.integers(1, 3)) for _ in range(2))
    config = {"n_layers": 2, "d_model": 10, "n_heads": kv_heads * group, "n_kv_heads": kv_heads, "head_dim": 4}
    config |= {"d_ff": 14, "vocab_size": 40, "context": 128}
    prefix = rng.integers(0, 40, p["tokens"]).tolist()
    requests: list[tuple[int, list[int], int]] = []
    arrival = 0
    for _ in range(p["requests"]):
        length = int(rng.integers(1, p["tokens"] + 1))
        start = prefix[: int(rng.integers(0, length))] if rng.random() < 0.5 else []
        prompt = [*start, *rng.integers(0, 40, length - len(start)).tolist()]
        requests.append((arrival, prompt, int(rng.integers(p["new"], 2 * p["new"] + 1))))
        arrival += int(rng.integers(0, 2))
    longest = max(-(-(len(prompt) + new) // size) for _, prompt, new in requests)
    given = {"config": config, "requests": requests, "block_size": size, "num_blocks": longest + int(rng.integers(2))}
    given |= {"max_num_seqs": int(rng.integers(3, 6)), "max_num_batched_tokens": int(rng.integers(6, 30))}
    return {"case": encode_value(given), **draw_weights(rng, config, 3.0)}


@torch.no_grad()
def expect_tokens(arrays: Arrays) -> Arrays:
    """The likeliest tokens, each from a forward pass over all tokens before it."""
    model, answers = make_model(arrays), Arrays()
    for i, (_, prompt, new) in enumerate(decode_value(arrays["case"])["requests"]):
        tokens = list(prompt)
        for _ in range(new):
            tokens.append(int(model(torch.tensor([tokens]))[0, -1].argmax()))
        answers[f"tokens of request {i}"] = np.array(tokens[len(prompt) :])
    return answers
