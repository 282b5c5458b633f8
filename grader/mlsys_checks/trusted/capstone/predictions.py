"""Cases and oracles of lab 16's predictions: costs worked out from the sizes of a model by formulas of the judge's own.

Dimension letters: L layers, D d_model, N query heads, K key/value heads, H head_dim, F d_ff, V vocabulary, n
parameters; B sequences of a batch, T tokens of a sequence, p ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from mlsys_checks.sandboxed.capstone import SENT
from mlsys_checks.sandboxed.spec import Arrays, Case
from mlsys_checks.sandboxed.values import decode_value, encode_text, encode_value
from mlsys_checks.trusted.answers import likely

Rng = np.random.Generator
BARS = ("products at peak", "products at their rates", "elementwise work", "communication", "not predicted")


class Model:
    """Counts of a model of given sizes."""

    def __init__(self, sizes: Mapping[str, Any]) -> None:
        names = ("n_layers", "d_model", "d_ff", "vocab_size", "n_heads", "n_kv_heads", "head_dim")
        self.L, self.D, self.F, self.V, self.N, self.K, self.H = (int(sizes[name]) for name in names)
        attention = 2 * self.D * self.H * (self.N + self.K)
        self.matrices = self.L * (attention + 3 * self.D * self.F)
        norms = (2 * self.L + 1) * self.D
        self.parameters = self.matrices + norms + self.V * self.D * (1 if sizes["tied"] else 2)
        self.read = self.matrices + norms + self.V * self.D
        """Weights that a forward pass reads."""

    def scores_flops(self, queries: int, keys: int) -> int:
        """FLOPs of the scores and weighted sums of all layers."""
        return 4 * self.L * self.N * self.H * queries * keys

    def forward_flops(self, tokens: int) -> int:
        """FLOPs of the forward pass of one sequence, logits of each token included."""
        return 2 * tokens * (self.matrices + self.V * self.D) + self.scores_flops(tokens, tokens)

    def kept(self, tokens: int) -> int:
        """Numbers that a backward pass needs of each token, without the probabilities of the loss."""
        layer = 4 * self.D + 2 * self.H * (self.N + self.K) + 4 * self.F + self.N * tokens
        return self.L * layer + 2 * self.D

    def units(self, tokens: int) -> int:
        """Lab 05's units of elementwise work of each token, without the optimizer's."""
        layer = 6 * self.D + 4 * self.N * self.H + 5 * self.N * tokens + self.F + 2 * self.D
        return self.L * layer + 6 * self.D + 4 * self.V

    def products(self, tokens: int, batch: int) -> list[tuple[int, tuple[int, int, int]]]:
        """Products of a forward pass: how many, and their shape."""
        rows, inner, keys = batch * tokens, self.N * self.H, self.K * self.H
        heads = self.L * batch * self.N
        return [
            (self.L, (rows, self.D, inner)),
            (2 * self.L, (rows, self.D, keys)),
            (heads, (tokens, self.H, tokens)),
            (heads, (tokens, tokens, self.H)),
            (self.L, (rows, inner, self.D)),
            (2 * self.L, (rows, self.D, self.F)),
            (self.L, (rows, self.F, self.D)),
            (1, (rows, self.D, self.V)),
        ]


def step_products(model: Model, tokens: int, batch: int) -> list[tuple[int, tuple[int, int, int]]]:
    """Products of a training step: Y = X W, then the gradients Y' W^T of X and X^T Y' of W."""
    forward = model.products(tokens, batch)
    return [(times, shape) for times, (m, k, n) in forward for shape in ((m, k, n), (m, n, k), (k, m, n))]


def sequences_of(batch_size: int, world_size: int) -> list[int]:
    """Sequences of each rank: earlier ranks have one more where they must."""
    return [len(part) for part in np.array_split(np.arange(batch_size), world_size)]


# --- cases ------------------------------------------------------------------------------------------------------------


def draw_sizes(rng: Rng, case: Case) -> dict[str, Any]:
    """Draw the sizes of a model, of `layers` if given; with `large`, one of 20 to 150 billion parameters."""
    if case.params.get("large"):
        kv_heads, group = int(rng.choice([4, 8])), int(rng.choice([4, 8, 16]))
        sizes: dict[str, Any] = {"n_layers": rng.integers(60, 100), "d_model": 512 * rng.integers(12, 24)}
        sizes |= {
            "head_dim": 128,
            "d_ff": 1024 * rng.integers(20, 40),
            "vocab_size": rng.integers(32_000, 256_000),
            "context": 16_384,
        }
    else:
        kv_heads, group = (int(rng.integers(1, 4)) for _ in range(2))
        sizes = {"n_layers": rng.integers(1, 5), "d_model": rng.integers(3, 60), "head_dim": 2 * rng.integers(1, 9)}
        sizes |= {"d_ff": rng.integers(3, 90), "vocab_size": rng.integers(5, 300), "context": 64}
    sizes |= {"n_kv_heads": kv_heads, "n_heads": kv_heads * group}
    sizes |= {"n_layers": case.params["layers"]} if "layers" in case.params else {}
    tied = case.params.get("tied", rng.integers(2))
    return {name: int(size) for name, size in sizes.items()} | {"tied": bool(tied)}


def draw_run(rng: Rng, case: Case) -> dict[str, Any]:
    """Draw sizes, a batch that its ranks need not divide evenly, and a sequence to generate."""
    large, p = case.params.get("large"), case.params["p"]
    batch = int(rng.integers(p, 2 * p + 60)) if large else int(p * rng.integers(1, 3) + rng.integers(0, p))
    tokens = int(rng.integers(512, 8192) if large else rng.integers(1, 40))
    train = {"batch_size": batch, "seq_len": tokens, "steps": int(rng.integers(10, 99)), "lr": 0.01}
    prompt, new = (int(rng.integers(1, 5000)), int(rng.integers(1, 300))) if large else rng.integers(1, 32, 2).tolist()
    serving = {"prompt_tokens": prompt, "new_tokens": case.params.get("new", new)}
    return {"config": draw_sizes(rng, case), "train": train, "world_size": p, "serving": serving}


def draw_calibration(rng: Rng, sizes: Mapping[str, Any], train: Mapping[str, Any], p: int) -> dict[str, Any]:
    """Draw a machine's rates; a product and its transpose have the same."""
    model, rates = Model(sizes), dict[tuple[int, ...], float]()
    for batch in set(sequences_of(train["batch_size"], p)):
        for _, shape in step_products(model, train["seq_len"], batch):
            rates[shape] = rates[shape[::-1]] = rates.get(shape, float(np.exp(rng.uniform(20, 26))))
    ranges = {"unit_s": (-22, -18), "latency_s": (-14, -8), "bytes_per_s": (18, 26)}
    ranges |= {"peak_flops_per_s": (26, 30), "memory_bytes_per_s": (20, 28)}
    machine = {name: float(np.exp(rng.uniform(*ends))) for name, ends in ranges.items()}
    return {"rates": [[*shape, rate] for shape, rate in rates.items()], "machine": machine}


def _as_case(case: Mapping[str, Any], *names: str) -> Arrays:
    return {"case": encode_value({name: case[name] for name in names})}


def draw_training(rng: Rng, case: Case) -> Arrays:
    """Draw a model, a batch, and a number of ranks."""
    return _as_case(draw_run(rng, case), "config", "train", "world_size")


def draw_messages(rng: Rng, case: Case) -> Arrays:
    """Draw a number of parameters, which the ranks need not divide evenly."""
    large = case.params.get("large")
    parameters = int(rng.integers(10**10, 10**11) if large else rng.integers(case.params["p"], 5000))
    return _as_case({"parameters": parameters, "world_size": case.params["p"]}, "parameters", "world_size")


def draw_serving(rng: Rng, case: Case) -> Arrays:
    """Draw a model, a prompt, and a number of tokens to generate."""
    return _as_case(draw_run(rng, case), "config", "serving")


def draw_seconds(rng: Rng, case: Case) -> Arrays:
    """Draw a run and a machine's rates."""
    run = draw_run(rng, case)
    run |= draw_calibration(rng, run["config"], run["train"], run["world_size"])
    return {"case": encode_value(run)}


def draw_swap(rng: Rng, case: Case) -> Arrays:
    """Draw a model, the rates of a machine's links, and an algorithm."""
    run = draw_run(rng, case)
    algorithm = case.params.get("algorithm", str(rng.choice(["ring", "halving_doubling"])))
    run |= {"world_size": 2 ** case.params["levels"], "algorithm": algorithm}
    run |= draw_calibration(rng, run["config"], run["train"], 1)
    return _as_case(run, "config", "world_size", "algorithm", "rates", "machine")


def draw_bars(rng: Rng, case: Case) -> Arrays:
    """Draw predicted and measured seconds of a step, which need not be in order."""
    predicted = {name: float(np.exp(rng.uniform(-6, 0))) for name in ("products_s", "communication_s", "decode_s")}
    predicted["training_step_s"] = predicted["products_s"] + predicted["communication_s"] + float(rng.uniform(0, 2))
    predicted["training_flops"] = int(rng.integers(10**6, 10**12))
    measured = {name: float(predicted[name] * rng.uniform(0.5, 2)) for name in predicted}
    peak = float(np.exp(rng.uniform(20, 30)))
    return {"case": encode_value({"predicted": predicted, "measured": measured, "peak": peak})}


# --- oracles ----------------------------------------------------------------------------------------------------------


def _counts(**numbers: int) -> Arrays:
    """Counts as text, as they cross."""
    return {name: encode_text(value) for name, value in numbers.items()}


def _seconds(**numbers: float) -> Arrays:
    return {name: np.array(float(value)) for name, value in numbers.items()}


def expect_training(arrays: Arrays) -> Arrays:
    """Counts of a training step in fp32, and values that common mistakes give."""
    case = decode_value(arrays["case"])
    model, p = Model(case["config"]), case["world_size"]
    B, T, n = case["train"]["batch_size"], case["train"]["seq_len"], model.parameters
    batch, shard = -(-B // p), -(-n // p)
    kept = {size: size * T * (4 * model.kept(T) + 4 * model.V) for size in (batch, B // p, B)}
    forward = B * model.forward_flops(T)
    bytes_ = {"weight_bytes": 4 * n, "gradient_bytes": 4 * n, "master_bytes": 4 * shard, "optimizer_bytes": 8 * shard}
    bytes_["activation_bytes"] = kept[batch]
    mistakes = {
        "training_flops": {"the backward pass is left out": forward, "it is that of one sequence": 3 * forward // B},
        "weight_bytes": {"fp32 has 4 bytes, and `states` counts 2": 2 * n, "ZeRO stage 1 shards none": 4 * shard},
        "gradient_bytes": {"fp32 has 4 bytes, and `states` counts 2": 2 * n, "ZeRO stage 1 shards none": 4 * shard},
        "master_bytes": {"each rank keeps its shard only": 4 * n, "`states` counts 4 bytes already": 8 * shard},
        "optimizer_bytes": {"each rank keeps its shard only": 8 * n, "`states` counts 8 bytes already": 16 * shard},
        "activation_bytes": {
            "the probabilities of the loss are fp32 already": kept[batch] + 4 * batch * T * model.V,
            "it is that of all ranks": kept[B],
            "rank 0 has as many sequences as any rank, rounded up": kept[B // p],
        },
    }
    answers = _counts(training_flops=3 * forward, parameters=n, **bytes_, peak_bytes=sum(bytes_.values()))
    for name, values in mistakes.items():
        right = answers[name].tobytes().decode()
        answers |= likely(name, {why: value for why, value in values.items() if str(value) != right})
    return answers


def expect_messages(arrays: Arrays) -> Arrays:
    """What p ranks send: a reduce-scatter and an all-gather of n numbers, and three all-reduces of one."""
    case = decode_value(arrays["case"])
    n, p = case["parameters"], case["world_size"]
    sent = dict(zip(SENT, ((p - 1) * n, 4 * (p - 1) * n, p * (p - 1)), strict=True))
    numbers = {f"{phase}_{what}": value for phase in ("gradient", "weight") for what, value in sent.items()}
    answers = _counts(**numbers, loss_elements_sent=2 * (p - 1), scalar_elements_sent=4 * (p - 1))
    if p > 1:
        whole = {"a reduce-scatter is half of an all-reduce": 2 * (p - 1) * n}
        answers |= likely("gradient_elements_sent", whole) | likely("weight_elements_sent", whole)
        answers |= likely("gradient_messages", {"it is half of an all-reduce's": 2 * p * (p - 1), "of one rank": p - 1})
    return answers


def _decode(case: Mapping[str, Any]) -> list[dict[str, int]]:
    """FLOPs and bytes of each decode step."""
    model, serving = Model(case["config"]), case["serving"]
    token = 2 * 4 * model.L * model.K * model.H
    first = serving["prompt_tokens"]
    return [
        {
            "flops": 2 * (model.matrices + model.V * model.D) + model.scores_flops(1, cached + 1),
            "weight_bytes": 4 * model.read,
            "cache_read_bytes": cached * token,
            "cache_written_bytes": token,
        }
        for cached in range(first, first + serving["new_tokens"] - 1)
    ]


def expect_serving(arrays: Arrays) -> Arrays:
    """Counts of a prefill without logits, and sums over the decode steps."""
    case = decode_value(arrays["case"])
    model, steps, prompt = Model(case["config"]), _decode(case), case["serving"]["prompt_tokens"]
    prefill = model.forward_flops(prompt) - 2 * prompt * model.V * model.D
    names = ("flops", "weight_bytes", "cache_read_bytes", "cache_written_bytes")
    answers = _counts(prefill_flops=prefill, **{f"decode_{name}": sum(step[name] for step in steps) for name in names})
    answers |= likely("prefill_flops", {"it is without the head": model.forward_flops(prompt)})
    if steps:
        one_more = _decode(case | {"serving": case["serving"] | {"new_tokens": len(steps) + 2}})
        for name in names:
            more, half = sum(step[name] for step in one_more), sum(step[name] for step in steps) // 2
            mistakes = {"the prefill gives the first new token": more}
            mistakes |= {} if name == "flops" else {"fp32 has 4 bytes, and `step_cost` takes 2 by default": half}
            answers |= likely(f"decode_{name}", mistakes)
    return answers


def expect_seconds(arrays: Arrays) -> Arrays:
    """Seconds of ranks that take turns, and the bound of the decode steps."""
    case = decode_value(arrays["case"])
    model, p, machine = Model(case["config"]), case["world_size"], case["machine"]
    T, rates = case["train"]["seq_len"], {tuple(shape): rate for *shape, rate in case["rates"]}
    products_s = units = 0.0
    for batch in sequences_of(case["train"]["batch_size"], p):
        for times, (m, k, n) in step_products(model, T, batch):
            products_s += times * 2 * m * k * n / rates[m, k, n]
        units += batch * T * model.units(T) + model.parameters
    one_all_reduce = 2 * (p - 1) * machine["latency_s"]
    sent = 2 * (p - 1) / p * 4 * (model.parameters + 3) / machine["bytes_per_s"]
    communication_s = p * (4 * one_all_reduce + sent)
    decode_s = 0.0
    for step in _decode(case):
        moved = step["weight_bytes"] + step["cache_read_bytes"] + step["cache_written_bytes"]
        decode_s += max(step["flops"] / machine["peak_flops_per_s"], moved / machine["memory_bytes_per_s"])
    step_s = products_s + units * machine["unit_s"] + communication_s
    numbers = {"products_s": products_s, "communication_s": communication_s, "training_step_s": step_s}
    mistakes = {"the ranks take turns, so their times add up": communication_s / p}
    mistakes["three numbers are all-reduced too"] = p * (one_all_reduce + sent)
    return _seconds(**numbers, decode_s=decode_s) | likely("communication_s", mistakes if p > 1 else {})


def expect_swap(arrays: Arrays) -> Arrays:
    """Costs of an all-reduce of all gradients, and of all states on every rank."""
    case = decode_value(arrays["case"])
    n, p, machine = Model(case["config"]).parameters, case["world_size"], case["machine"]
    steps = 2 * (p - 1) if case["algorithm"] == "ring" else 2 * (p.bit_length() - 1)
    seconds = p * (steps * machine["latency_s"] + 2 * (p - 1) / p * 4 * n / machine["bytes_per_s"])
    answers = _counts(gradient_elements_sent=2 * (p - 1) * n, gradient_messages=p * steps)
    answers |= _counts(master_bytes=4 * n, optimizer_bytes=8 * n) | _seconds(communication_s=seconds)
    if p > 1:
        sharded = {"without ZeRO each rank keeps all of it": 4 * -(-n // p)}
        answers |= likely("master_bytes", sharded) | likely(
            "gradient_elements_sent", {"of one rank": 2 * (p - 1) * n // p}
        )
    return answers


def expect_bars(arrays: Arrays) -> Arrays:
    """Bars whose ends are the next ones' starts."""
    case = decode_value(arrays["case"])
    predicted, step_s = case["predicted"], case["predicted"]["training_step_s"]
    ends = [predicted["training_flops"] / case["peak"], predicted["products_s"], step_s - predicted["communication_s"]]
    ends += [step_s, case["measured"]["training_step_s"]]
    answers: Arrays = {}
    for i, (name, start, end) in enumerate(zip(BARS, [0.0, *ends[:-1]], ends, strict=True)):
        answers[f"name of bar {i}"] = encode_text(name)
        answers |= _seconds(**{f"start of bar {i}": start, f"end of bar {i}": end})
    return answers


# --- public cases as code ---------------------------------------------------------------------------------------------


def render_call(name: str, *arguments: str) -> Callable[[Arrays], str]:
    """A check's `describe`: the call of a function on the solved labs' layers, with the sizes of the case."""

    def render(arrays: Arrays) -> str:
        case = decode_value(arrays["case"])
        lines = ["from mlsys_checks.sandboxed import capstone as calls", ""]
        if "config" in case:
            lines.append(f'config = TransformerConfig("drawn", **{case["config"]})')
        if "train" in case:
            lines.append(f"train = TrainConfig(**{case['train']})")
        if "serving" in case:
            lines.append(f"serving = Serving(**{case['serving']})")
        if "rates" in case:
            lines += ["import json", 'case = json.loads(given["case"].tobytes())  # rates by shape, and the machine']
            lines.append("calibration = calls.make_calibration(case)")
        given = [argument if argument.isidentifier() else repr(case[argument[1:]]) for argument in arguments]
        return "\n".join([*lines, f"{name}({', '.join(['calls.load_stack()', *given])})"])

    return render


def render_bars(arrays: Arrays) -> str:
    """The call of `waterfall`."""
    case = decode_value(arrays["case"])
    return f"waterfall({case['predicted']}, {case['measured']}, {case['peak']})"
