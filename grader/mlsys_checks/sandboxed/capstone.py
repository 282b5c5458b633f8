"""Call the learner's code for lab 16's checks, on a stack of the solved labs.

Sizes arrive as JSON in the array `case`. A function runs on right predecessors, so that a mistake costs points once.
What is lent fails the check of its own name: `_OPERATIONS` know double precision and small numbers only, and `_Bigram`
has no attention.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from functools import cache
from io import StringIO
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from mlsys_checks.sandboxed.inputs import unchanged
from mlsys_checks.sandboxed.lending import lend
from mlsys_checks.sandboxed.spec import Arrays
from mlsys_checks.sandboxed.storage import storage_only, without_modules
from mlsys_checks.sandboxed.values import array, column, count, decode_value, describe_value, encode_text, number, parts
from mlsys_lab.benchmark.memory import track_memory
from mlsys_lab.capstone.job import Calibration, Rates, Serving, TrainJob
from mlsys_lab.configs import TrainConfig, TransformerConfig
from mlsys_lab.errors import InputError
from mlsys_lab.models.transformer import Transformer
from mlsys_lab.stack import Layer, defined_names, using
from mlsys_lab.stack.solved import load_solved

if TYPE_CHECKING:
    from mlsys_lab.comm.rank import Rank

FIELDS = {
    "engine": "autograd",
    "collectives": "collectives",
    "data_parallel": "data-parallel",
    "cache": "kv-cache",
    "scheduler": "serving",
    "arithmetic": "transformer-arithmetic",
}
"""Topics of the layers of `load_stack`, each after those that it loads."""
WEIGHT = "weight "
"""Prefix of a model's weights among the arrays."""
CALLS: dict[str, list[int]] = {"first": [], "second": [1]}
"""Axes along which `decoder` turns the sequences of a case round for each call."""
STATE_FACTOR = 2.0
"""Factor by which `resume` multiplies the saved weights, so that only a run from the state gives the right answer."""
TRAINING = (
    *("training_flops", "parameters", "weight_bytes", "gradient_bytes", "master_bytes", "optimizer_bytes"),
    *("activation_bytes", "peak_bytes"),
)
SENT = ("elements_sent", "bytes_sent", "messages")
MESSAGES = (
    *(f"{array}_{what}" for array in ("gradient", "weight") for what in SENT),
    *("loss_elements_sent", "scalar_elements_sent"),
)
SERVING = (
    *("prefill_flops", "decode_flops", "decode_weight_bytes"),
    *("decode_cache_read_bytes", "decode_cache_written_bytes"),
)
SECONDS = ("products_s", "communication_s", "training_step_s", "decode_s")
SWAP = ("gradient_elements_sent", "gradient_messages", "master_bytes", "optimizer_bytes", "communication_s")
"""Keys of the numbers that each function predicts. Those that end in `_s` are seconds, all others are counts."""


@cache
def load_stack() -> SimpleNamespace:
    """Load the solved labs as the layers of a stack."""
    given: dict[str, Layer] = {}
    for topic in FIELDS.values():
        with using(given), redirect_stdout(StringIO()):
            module = load_solved(topic)
        if module is None:
            raise InputError("the checks of lab 16 run on the solved labs", got=f"no {topic}")
        given[topic] = Layer(topic, defined_names(module), {})
    return SimpleNamespace(**{field: given[topic] for field, topic in FIELDS.items()})


def make_config(case: Mapping[str, Any]) -> TransformerConfig:
    """The configuration of a case."""
    return TransformerConfig("drawn", **case["config"])


def make_weights(arrays: Arrays) -> dict[str, torch.Tensor]:
    """Copies of a model's weights, by name."""
    names = [name for name in arrays if name.startswith(WEIGHT)]
    return {name.removeprefix(WEIGHT): torch.from_numpy(arrays[name].copy()) for name in names}


# --- right predecessors -----------------------------------------------------------------------------------------------


def _causal_softmax(engine: Any, scores: Any, scale: float) -> Any:
    """Softmax of scores too small to overflow."""
    T = scores.data.shape[-1]
    exps = (scores * scale).exp() * engine.Tensor(torch.ones(T, T, dtype=torch.float64).tril())
    return exps / exps.sum(-1, keepdims=True)


def _rms_norm(engine: Any, x: Any, weight: Any, eps: float) -> Any:
    offset = engine.Tensor(torch.full((1, 1), eps, dtype=torch.float64))
    return x * ((x * x).mean(-1, keepdims=True) + offset) ** -0.5 * weight


def _silu_mul(engine: Any, gate: Any, up: Any) -> Any:
    one = engine.Tensor(torch.ones(1, dtype=torch.float64))
    return gate / ((gate * -1.0).exp() + one) * up


class _Bigram:
    """A language model for `train_rank`: two matrices and a norm's weight, the next token from the last one alone."""

    def __init__(self, engine: Any, config: Any, weights: Mapping[str, torch.Tensor]) -> None:
        self.engine, self.config = engine, config
        self.parameters = {name: engine.Tensor(one.detach(), requires_grad=True) for name, one in weights.items()}

    def __call__(self, tokens: torch.Tensor) -> Any:
        embedding, norm, head = self.parameters.values()
        return (embedding[tokens.reshape(-1)] * norm).tanh() @ head.T

    def loss(self, sequences: torch.Tensor) -> Any:
        """Mean next-token cross-entropy."""
        if not len(sequences):
            raise InputError("the loss of no sequences", expected="a rank's own sequences of the batch")
        return self.engine.cross_entropy(self(sequences[:, :-1]), sequences[:, 1:].reshape(-1))


_OPERATIONS = {"causal_softmax": _causal_softmax, "rms_norm": _rms_norm, "silu_mul": _silu_mul}


# --- Tasks 1 and 2: the decoder ---------------------------------------------------------------------------------------


@storage_only
def operations(artifact: Any, arrays: Arrays) -> Arrays:
    """Call one operation: its value, and the gradient of each operand for an upstream gradient that is expanded."""
    case, engine = decode_value(arrays["case"]), load_stack().engine
    given = [torch.from_numpy(arrays[name].copy()) for name in ("x", "y") if name in arrays]
    operands = [engine.Tensor(one, requires_grad=True) for one in given]
    with unchanged(**dict(zip("xy", given, strict=False))):
        with track_memory() as memory:
            result = getattr(artifact, case["name"])(engine, *operands, *case["numbers"])
            kept_bytes = memory.current_bytes
        _require_one_operation(case["name"], engine, result, operands)
        if case["is_large"] and kept_bytes - result.data.nbytes >= given[0].nbytes:
            what = f"the graph of {case['name']} keeps an array as large as an operand, besides its result"
            raise InputError(what, got=f"{kept_bytes:,} bytes", expected=f"{result.data.nbytes:,} bytes of the result")
        answers = {"value": array("the value", result.data)}
        upstream = torch.from_numpy(arrays["g"].copy())
        with unchanged(upstream=upstream):
            result.backward(upstream.expand(result.data.shape))
    return answers | {f"gradient of operand {i}": array("a gradient", one.grad) for i, one in enumerate(operands)}


def _require_one_operation(name: str, engine: Any, result: Any, operands: Sequence[Any]) -> None:
    """Raise InputError unless a result's edges lead to the operands themselves."""
    if not isinstance(result, engine.Tensor):
        expected = "a Tensor of the engine: engine.record(data, (operand, vjp), …)"
        raise InputError(f"{name} returned something else", got=describe_value(result), expected=expected)
    if {id(operand) for operand, _ in result.edges} - {id(one) for one in operands}:
        got = f"a result of other operations than `record`, the last one {result.op or 'without a name'!r}"
        raise InputError(f"{name} is not one operation", got=got, expected="one call of engine.record on the operands")


@storage_only
def decoder(artifact: Any, arrays: Arrays) -> Arrays:
    """Build a `GPT` on right operations: its logits and losses for sequences, and for these backwards."""
    (gpt, given), answers = _make_gpt(artifact, arrays), Arrays()
    with lend(artifact, **_OPERATIONS), without_modules(), unchanged(sequences=given):
        for when, flipped in CALLS.items():
            sequences = given.flip(flipped)
            answers[f"logits of the {when} call"] = array("the logits", gpt(sequences[:, :-1]))
            answers[f"loss of the {when} call"] = array("the loss", gpt.loss(sequences))
    return answers


@storage_only
def gradients(artifact: Any, arrays: Arrays) -> Arrays:
    """Build a `GPT` on right operations: the gradient of its loss for each weight."""
    gpt, sequences = _make_gpt(artifact, arrays)
    with lend(artifact, **_OPERATIONS), without_modules():
        gpt.loss(sequences).backward()
    return {name: array(f"the gradient of {name}", one.grad) for name, one in gpt.parameters.items()}


def _make_gpt(artifact: Any, arrays: Arrays) -> tuple[Any, torch.Tensor]:
    """The learner's `GPT` with the weights of a case, and sequences (B, T + 1)."""
    config = make_config(decode_value(arrays["case"]))
    gpt = artifact.GPT(load_stack().engine, config, make_weights(arrays))
    return gpt, torch.from_numpy(arrays["sequences"].copy())


# --- Task 3: training -------------------------------------------------------------------------------------------------


def _make_job(arrays: Arrays, state: Any, until: int) -> TrainJob:
    case = decode_value(arrays["case"])
    config, train = make_config(case), TrainConfig(**case["train"])
    return TrainJob(load_stack(), config, make_weights(arrays), arrays["ids"].copy(), train, state, until)


def _train(artifact: Any, rank: Rank, job: TrainJob) -> tuple[Arrays, dict[str, torch.Tensor]]:
    """Call `train_rank`: losses, weights, and the shard and position in the state; and the state."""
    before = {name: one.clone() for name, one in job.weights.items()}
    got = artifact.train_rank(rank, job)
    losses, weights, state = parts("train_rank", got, "losses", "weights", "state")
    if not isinstance(weights, Mapping) or set(weights) != set(before):
        found = ", ".join(map(str, weights)) if isinstance(weights, Mapping) else describe_value(weights)
        raise InputError("train_rank returned other weights", got=found, expected=", ".join(before))
    if changed := [name for name, one in before.items() if not torch.equal(job.weights[name], one)]:
        raise InputError(f"train_rank changes job.weights[{changed[0]!r}]", expected="a copy that the rank trains")
    if not isinstance(state, dict) or not state.keys() >= {"weights", "position"}:
        expected = "what the data_parallel layer's save_state(optimizer, position) returns"
        raise InputError("train_rank returned no state", got=describe_value(state), expected=expected)
    answers = {"losses": column("losses", losses)} | {name: array(name, weights[name]) for name in before}
    return answers | {f"state: {name}": array(name, state[name]) for name in ("weights", "position")}, state


def train_steps(artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Train a lent model on all ranks, from the first step to the last."""
    steps = decode_value(arrays["case"])["train"]["steps"]
    with lend(artifact, GPT=_Bigram):
        return _train(artifact, rank, _make_job(arrays, None, steps))[0]


def resume(artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Train on some ranks, stop, double the saved weights, and continue on some ranks, perhaps a different number."""
    case, layer = decode_value(arrays["case"]), load_stack().data_parallel
    answers, state = Arrays(idle=np.array(True)), dict[str, torch.Tensor]()
    with lend(artifact, GPT=_Bigram):
        if rank.rank < case["first"]:
            group = rank.group(range(case["first"]))
            found, state = _train(artifact, group, _make_job(arrays, None, case["stop"]))
            answers |= {f"to the stop: {name}": one for name, one in found.items()}
            state["weights"] = STATE_FACTOR * state["weights"]
        states = [_share(rank, state, source) for source in range(case["first"])]
        if rank.rank < case["then"]:
            group = rank.group(range(case["then"]))
            own = layer.reshard(states, case["then"])[rank.rank]
            found, _ = _train(artifact, group, _make_job(arrays, own, case["train"]["steps"]))
            answers |= {f"after the stop: {name}": one for name, one in found.items()}
    return answers


def _share(rank: Rank, state: dict[str, torch.Tensor], source: int) -> dict[str, torch.Tensor]:
    """The state of rank `source`, on all ranks."""
    if rank.rank != source:
        names = bytes(rank.recv(source).tolist()).decode().split("\n")
        return {name: rank.recv(source) for name in names}
    for other in range(rank.size):
        if other != source:
            for one in (torch.from_numpy(encode_text("\n".join(state))), *state.values()):
                rank.send(one, other)
    return state


def train_budget(artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Train the learner's own decoder: the losses, and rank 0's weights."""
    steps = decode_value(arrays["case"])["train"]["steps"]
    answers, _ = _train(artifact, rank, _make_job(arrays, None, steps))
    return answers if rank.rank == 0 else {"losses": answers["losses"]}


# --- Tasks 4 and 6: predictions ---------------------------------------------------------------------------------------


def sheet(name: str, got: Any, keys: Sequence[str]) -> Arrays:
    """The numbers that a function predicts, counts as text of up to 256 bits."""
    if not isinstance(got, Mapping):
        raise InputError(f"{name} returned no dictionary", got=describe_value(got), expected=", ".join(keys))
    if missing := [key for key in keys if key not in got]:
        what = f"{name} does not predict {missing[0]!r}"
        raise InputError(what, got=", ".join(map(str, got)), expected=", ".join(keys))
    if extra := [key for key in got if key not in keys]:
        raise InputError(f"{name} predicts an unknown number", got=repr(extra[0]), expected=", ".join(keys))
    return {key: number(key, got[key]) if key.endswith("_s") else _count(key, got[key]) for key in keys}


def _count(key: str, got: Any) -> np.ndarray:
    value = got.item() if isinstance(got, np.generic | torch.Tensor) else got
    return count(key, int(value) if isinstance(value, float) and value.is_integer() else value)


def make_calibration(case: Mapping[str, Any]) -> Calibration:
    """The calibration of a case."""
    rates = {(int(m), int(k), int(n)): rate for m, k, n, rate in case["rates"]}
    return Calibration(Rates(rates), **case["machine"])


def predict_training(artifact: Any, arrays: Arrays) -> Arrays:
    case = decode_value(arrays["case"])
    train = TrainConfig(**case["train"])
    got = artifact.predict_training(load_stack(), make_config(case), train, case["world_size"])
    return sheet("predict_training", got, TRAINING)


def predict_messages(artifact: Any, arrays: Arrays) -> Arrays:
    case = decode_value(arrays["case"])
    got = artifact.predict_messages(load_stack(), case["parameters"], case["world_size"])
    return sheet("predict_messages", got, MESSAGES)


def predict_serving(artifact: Any, arrays: Arrays) -> Arrays:
    case = decode_value(arrays["case"])
    got = artifact.predict_serving(load_stack(), make_config(case), Serving(**case["serving"]))
    return sheet("predict_serving", got, SERVING)


def predict_seconds(artifact: Any, arrays: Arrays) -> Arrays:
    case = decode_value(arrays["case"])
    train, calibration, serving = TrainConfig(**case["train"]), make_calibration(case), Serving(**case["serving"])
    sizes = make_config(case), train, case["world_size"]
    return sheet("predict_seconds", artifact.predict_seconds(load_stack(), *sizes, calibration, serving), SECONDS)


def predict_swap(artifact: Any, arrays: Arrays) -> Arrays:
    case = decode_value(arrays["case"])
    asked = make_config(case), case["world_size"], case["algorithm"], make_calibration(case)
    return sheet("predict_swap", artifact.predict_swap(load_stack(), *asked), SWAP)


def waterfall(artifact: Any, arrays: Arrays) -> Arrays:
    """Call `waterfall`: name, start and end of each bar."""
    case = decode_value(arrays["case"])
    bars = artifact.waterfall(case["predicted"], case["measured"], case["peak"])
    if not isinstance(bars, list | tuple):
        raise InputError("waterfall returned no list", got=describe_value(bars), expected="a list of Bar")
    answers: Arrays = {}
    for i, bar in enumerate(bars):
        name, start_s, end_s = parts("a bar", bar, "name", "start_s", "end_s")
        answers[f"name of bar {i}"] = encode_text(name)
        answers |= {f"start of bar {i}": number("start_s", start_s), f"end of bar {i}": number("end_s", end_s)}
    return answers


# --- Task 5: serving --------------------------------------------------------------------------------------------------


class StubStore:
    """Keys and values of tokens by slot, NaN where nothing was stored: (2, L, slots, K, H)."""

    def __init__(self, shape: Sequence[int], dtype: torch.dtype) -> None:
        self.kv = torch.full((2, *shape), float("nan"), dtype=dtype)

    def store(self, layer: int, slots: Any, k: torch.Tensor, v: torch.Tensor) -> None:
        """Store keys and values (..., K, H) in slots (...)."""
        for kv, x in zip(self.kv[:, layer], (k, v), strict=True):
            kv[self._index(slots)] = x

    def load(self, layer: int, slots: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values (..., K, H) of slots (...)."""
        keys, values = (kv[self._index(slots)] for kv in self.kv[:, layer])
        return keys, values

    def _index(self, slots: Any) -> torch.Tensor:
        index = torch.as_tensor(list(slots) if isinstance(slots, range) else slots)
        limit = self.kv.shape[2]
        if index.dtype == torch.bool or index.is_floating_point() or (index < 0).any() or (index >= limit).any():
            got = f"{index.dtype}, {index.flatten()[:8].tolist()} …"
            raise InputError("slots that there are not", got=got, expected=f"whole numbers from 0 to {limit - 1}")
        return index


def block_cache(artifact: Any, arrays: Arrays) -> Arrays:
    """Make updates of several sequences in one store: what each returned, and what is in the store in the end."""
    case = decode_value(arrays["case"])
    k, v = (torch.from_numpy(arrays[name].copy()) for name in "kv")  # (L, tokens, K, H)
    size = case["block_size"]
    store = StubStore((len(k), case["num_blocks"] * size, *k.shape[2:]), k.dtype)
    cache = artifact.BlockCache(store, size)
    answers: Arrays = {}
    for i, step in enumerate(case["steps"]):
        scheduled = [SimpleNamespace(block_table=table, num_computed_tokens=n) for table, n, _, _ in step]
        cache.sequences = dict(enumerate(scheduled))
        for layer in range(len(k)):
            for sequence, (_, _, first, new) in enumerate(step):
                name = f"step {i}, layer {layer}, sequence {sequence}"
                part = [x[layer, first : first + new].transpose(0, 1).clone() for x in (k, v)]  # (K, T, H)
                got = parts("update", cache.update(layer, sequence, *part), "keys", "values", "positions")
                answers |= {
                    f"{name}: {what}": array(what, one)
                    for what, one in zip(("keys", "values", "positions"), got, strict=True)
                }
                for one in part:
                    one.fill_(float("nan"))  # the caller reuses its memory
        for sequence, (_, computed, _, new) in enumerate(step):
            where = f"step {i}, sequence {sequence}"
            answers[f"{where}: slots"] = array("slots", cache.slots(sequence, computed + new))
            answers[f"{where}: length"] = np.array(int(cache.length(sequence)))
            cache.advance(sequence, new)
    return answers | {"store": np.nan_to_num(store.kv.numpy(), nan=-1.0)}


def make_transformer(arrays: Arrays) -> Transformer:
    """The model of a case, in double precision."""
    model = Transformer(make_config(decode_value(arrays["case"]))).double().eval()
    for name, weight in model.named_parameters():
        weight.requires_grad_(False).copy_(torch.from_numpy(arrays[WEIGHT + name]))
    return model


@torch.no_grad()
def serve(artifact: Any, arrays: Arrays) -> Arrays:
    """Serve requests through the solved scheduler and `extend`, and the learner's cache: the tokens of each."""
    case, stack, model = decode_value(arrays["case"]), load_stack(), make_transformer(arrays)
    size, config = case["block_size"], model.config
    limits = stack.scheduler.SchedulerConfig(case["max_num_seqs"], case["max_num_batched_tokens"])
    scheduler = stack.scheduler.build(case["num_blocks"], size, limits)
    shape = (config.n_layers, case["num_blocks"] * size, config.n_kv_heads, config.head_dim)
    store = StubStore(shape, torch.float64)
    cache = artifact.BlockCache(store, size)
    waiting, sequences = list(case["requests"]), []
    step = 0
    while waiting or not scheduler.is_idle:
        while waiting and waiting[0][0] <= step:
            _, prompt, max_tokens = waiting.pop(0)
            sequences.append(scheduler.add(prompt, max_tokens))
        step += 1
        output = scheduler.schedule()
        if not output.num_scheduled_tokens:
            continue
        scheduled = list(output.num_scheduled_tokens)
        cache.sequences = dict(enumerate(scheduled))
        new = {
            number: seq.token_ids[seq.num_computed_tokens :][: output.num_scheduled_tokens[seq]]
            for number, seq in enumerate(scheduled)
        }
        logits = stack.cache.extend(model, cache, new)
        tokens = [[int(logits[scheduled.index(seq)].argmax())] for seq in output.sampled]
        scheduler.update_from_output(output, tokens)
        for seq in output.sampled:
            if seq.num_output_tokens == seq.max_tokens:
                scheduler.finish(seq)
    return {
        f"tokens of request {i}": np.array(seq.token_ids[seq.num_prompt_tokens :], np.int64)
        for i, seq in enumerate(sequences)
    }
