"""Task 6: what a device can serve. Oracle: the cache array by array, a decode step as torch runs it, fractions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import torch

from mlsys_checks.sandboxed.spec import Arrays, Case, Check
from mlsys_checks.sandboxed.transformer_arithmetic import serving as calls
from mlsys_checks.sandboxed.transformer_arithmetic.given import Answers
from mlsys_checks.sandboxed.values import encode_text
from mlsys_checks.trusted.answers import agree
from mlsys_checks.trusted.transformer_arithmetic.counts import GPT2_KIND, LARGE, LLAMA_KIND, SHARED, SMALL_KIND
from mlsys_checks.trusted.transformer_arithmetic.given import answer_parameters, answer_products, give
from mlsys_checks.trusted.transformer_arithmetic.oracle import (
    META,
    draw_model,
    model_array,
    products_of,
    sizes_of,
    weights_of,
)
from mlsys_checks.trusted.transformer_arithmetic.words import describe_calls


def cache_bytes(model: np.ndarray, batch: int, tokens: int) -> int:
    """Bytes of every layer's keys and values."""
    s = sizes_of(model)
    shape = (batch, s.n_kv_heads, tokens, s.head_dim)
    return sum(torch.empty(shape, dtype=torch.bfloat16, device=META).nbytes for _ in range(s.n_layers) for _ in "kv")


def most_sequences(model: np.ndarray, tokens: int, memory_bytes: float) -> int:
    """How many sequences fit beside the parameters, one after the other."""
    held = sum(parameter.nbytes for parameter in weights_of(model).parameters())
    each, count = cache_bytes(model, 1, tokens), 0
    while held + (count + 1) * each <= memory_bytes:
        count += 1
    return count


def step_work(model: np.ndarray, batch: int, tokens: int) -> tuple[int, int]:
    """FLOPs of a decode step as torch runs it, and the bytes of weights that multiply or scale, and of the cache."""
    decoder = weights_of(model)
    ran = products_of(model, 1, 1, past=tokens - 1)  # of one sequence: no other has a part in it
    looked_up = {"position.weight"} | (set() if sizes_of(model).tied else {"embedding.weight"})
    read = sum(weight.nbytes for name, weight in decoder.named_parameters() if name not in looked_up)
    flops = batch * sum(2 * times * m * k * n for _, times, m, k, n in ran)
    return flops, read + cache_bytes(model, batch, tokens)


# --- serving_memory -------------------------------------------------------------------------------------------------


def _memory_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    """Memories that are exactly full, one byte short, also of one sequence, and smaller than the weights."""
    if "published" in case.params:
        model, tokens = model_array(**case.params["published"]), int(rng.integers(10_000, 20_000))
    else:
        model, tokens = draw_model(rng, **case.params["kind"]), int(rng.integers(*case.params.get("tokens", (2, 100))))
    weights = sum(parameter.nbytes for parameter in weights_of(model).parameters())
    counts = rng.integers((1, 1, 2000), (30, 30, 5000)).tolist()
    each = cache_bytes(model, 1, tokens)
    full = [weights + count * each for count in counts]
    memory = [*full, *(size - 1 for size in full), weights // 2, weights + each - 1]
    return {
        "model": model,
        "batch": rng.integers(1, 40, ()),
        "tokens": np.array(tokens),
        "memory_bytes": np.array(memory, dtype=np.int64),
        **give(answer_parameters(model)),
    }


def _memory_expect(arrays: Arrays) -> Arrays:
    model, tokens = arrays["model"], int(arrays["tokens"])
    return {"kv_cache_bytes": np.array(cache_bytes(model, int(arrays["batch"]), tokens))} | {
        calls.write_call(size): np.array(most_sequences(model, tokens, size)) for size in calls.memories(arrays)
    }


def _batches_code(arrays: Arrays) -> list[str]:
    """A call of `largest_batch` for each memory, as code."""
    return [f"tokens = {arrays['tokens']}", *map(calls.write_call, calls.memories(arrays))]


# --- decode_work ----------------------------------------------------------------------------------------------------


def _work_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    tokens = rng.integers(1, 2, ()) if case.params.get("first") else rng.integers(2, 200, ())
    model, (low, high) = draw_model(rng, **case.params["kind"]), case.params.get("batch", (1, 40))
    batch = rng.integers(low, high, ())
    sizes = [(some, int(tokens)) for some in (1, int(batch))]
    earlier = {"kv_cache_bytes": {size: cache_bytes(model, *size) for size in sizes}}
    given = give(answer_parameters(model), answer_products(model, (int(batch), 1), (1, 1)), earlier)
    return {"model": model, "batch": batch, "tokens": tokens, **given}


def _work_expect(arrays: Arrays) -> Arrays:
    flops, moved = step_work(arrays["model"], int(arrays["batch"]), int(arrays["tokens"]))
    return {"FLOPs": np.array(flops), "bytes": np.array(moved)}


# --- choose_machine -------------------------------------------------------------------------------------------------


def _machine_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    """Machines such that `case.params["bound"]` binds, or none fits; of three digits unless both are to bind."""
    model, tokens = draw_model(rng, **case.params.get("kind", LLAMA_KIND)), int(rng.integers(2, 100))
    weights = sum(parameter.nbytes for parameter in weights_of(model).parameters())
    cache, count = cache_bytes(model, 1, tokens), case.params.get("machines", 4)
    sequences = rng.uniform(1.5, 30, count) if case.params.get("fits", True) else rng.uniform(-5, 0.9, count)
    sequences[: case.params.get("too small", 0)] = 0.5
    sequences[: case.params.get("just one", 0)] = 1.5
    bandwidth = _round(np.exp(rng.uniform(24, 28, count)))
    price = _round(rng.uniform(0.2, 5, count) * case.params.get("dollars", 1))
    if case.params.get("dear"):  # the first has the fastest step, for one sequence and at a price that loses
        sequences[0], price[0] = 1.5, np.ceil(3 * price.max() * bandwidth.max() / bandwidth.min())
        bandwidth[0] = 2 * bandwidth.max()
    memory = np.maximum(weights + sequences * cache, 1.0).round()
    bound = case.params.get("bound", "either")
    low, high = {"memory": (6, 9), "compute": (-4, -2)}.get(bound, (-2, 5))
    peak = _round(bandwidth * np.exp(rng.uniform(low, high, count)))
    if bound == "both":
        work = [step_work(model, most_sequences(model, tokens, size), tokens) for size in memory.tolist()]
        peak, bandwidth = np.array(work, dtype=np.float64).T * 2.0**20
    machines = np.stack([memory, bandwidth, peak, price], axis=1)
    if "offers" in case.params:
        machines = machines * np.array([(size, speed, speed, price) for size, speed, price in case.params["offers"]])
    if case.params.get("twice"):
        machines = np.concatenate([machines, machines])
    names = np.arange(len(machines))[::-1] * (not case.params.get("one name"))  # not in the order of the alphabet
    batches = {size: most_sequences(model, tokens, size) for size in machines[:, 0].tolist()}
    earlier: Answers = {
        "largest_batch": {(tokens, size): batch for size, batch in batches.items()},
        "decode_work": {(batch, tokens): step_work(model, batch, tokens) for batch in batches.values() if batch},
    }
    return {"model": model, "tokens": np.array(tokens), "machines": machines, "names": names, **give(earlier)}


def _round(values: np.ndarray) -> np.ndarray:
    """To three digits."""
    return np.array([float(f"{value:.3g}") for value in values])


def _machines_code(arrays: Arrays) -> list[str]:
    """The machines as code."""
    rows = [", ".join(np.format_float_positional(x, trim="-") for x in row) for row in arrays["machines"]]
    named = zip(arrays["names"].tolist(), rows, strict=True)
    machines = [f'    Machine("{calls.name_machine(i)}", {row}),' for i, row in named]
    return ["machines = [  # name, bytes, bytes a second, FLOP/s, dollars an hour", *machines, "]"]


def _machine_expect(arrays: Arrays) -> Arrays:
    model, tokens, best = arrays["model"], int(arrays["tokens"]), None
    for i, row in zip(arrays["names"].tolist(), arrays["machines"].tolist(), strict=True):
        memory_bytes, bandwidth, peak, price = map(Fraction, row)
        batch = most_sequences(model, tokens, float(memory_bytes))
        if not batch:
            continue
        flops, moved = step_work(model, batch, tokens)
        compute_s, memory_s = flops / peak, moved / bandwidth
        step_s = max(compute_s, memory_s)
        dollars = price * step_s / 3600 * 1_000_000 / batch
        if best is None or dollars < best[0]:
            best = (dollars, i, batch, step_s, memory_s > compute_s)
    if best is None:
        return {"choose_machine": encode_text(None)}
    dollars, i, batch, step_s, by_memory = best
    return {
        "choose_machine": encode_text("a Choice"),
        "device": encode_text(calls.name_machine(i)),
        "batch": np.array(batch),
        "step_s": np.array(float(step_s)),
        "bound": encode_text("memory" if by_memory else "compute"),
        "dollars_per_million": np.array(float(dollars)),
    }


OFFERS = ((2, 1, 1000), (1, 2, 3), (1, 1, 1), (1, 0.25, 0.5))
"""Memory, speeds and price an hour of machines beside those of the third, which is the cheapest for a token."""
FREE = ((1, 1, 1), (1, 1, 0), (1, 2, 0), (1, 1, 2))
"""The third is faster than the second, at the same price."""
EIGHTH = (*((1, 1, 1),) * 7, (1, 1, 1e-6), (1, 1, 1))
"""The eighth is the cheapest of nine, whatever they are."""

CHECKS = (
    Check(
        name="serving_memory",
        title="Bytes of the cache, and the largest batch",
        points=4,
        cases=(
            Case("a Llama with grouped heads", {"kind": {**LLAMA_KIND, "n_heads": 6, "n_kv_heads": 2}}),
            Case("a GPT-2", {"kind": GPT2_KIND}),
            Case("one token; one layer, one head of keys for all queries", {"kind": SHARED, "tokens": (1, 2)}),
            Case("a large one and long sequences", {"published": LARGE | LLAMA_KIND}),
            Case("any model of six layers", {"kind": {"n_layers": 6}}, hidden=True),
        ),
        inputs=_memory_inputs,
        run=calls.serving_memory,
        describe=describe_calls("kv_cache_bytes(config, {batch}, tokens)", further=_batches_code),
        expect=_memory_expect,
        compare=agree,
        first_hint="What does one token leave behind in one layer, and what lies in memory beside it?",
        hint="Keys and values: two arrays in each layer, of K heads, not N, at 2 bytes. Beside the cache lie all "
        "parameters, as parameter_table counts them, at 2 bytes each; round down, and return 0 rather than a negative "
        "number.",
        uses=("TransformerConfig", "count_parameters", "kv_cache_bytes", "largest_batch"),
    ),
    Check(
        name="decode_work",
        title="FLOPs and bytes of one token more",
        points=5,
        cases=(
            Case("a Llama with grouped heads", {"kind": {**LLAMA_KIND, "n_heads": 6, "n_kv_heads": 2}}),
            Case("a GPT-2, tied", {"kind": GPT2_KIND}),
            Case("the small model of Task 5, of heads that are one wide", {"kind": SMALL_KIND | {"head_dim": 1}}),
            Case("the first token", {"kind": LLAMA_KIND, "first": True}),
            Case("one sequence; one layer, one head of keys for all queries", {"kind": SHARED, "batch": (1, 2)}),
            Case("any model", {"kind": {}}, hidden=True),
        ),
        inputs=_work_inputs,
        run=calls.decode_work,
        describe=describe_calls("decode_work(config, {batch}, {tokens})"),
        expect=_work_expect,
        compare=agree,
        first_hint="Of one step: what is read once for the whole batch, what for each sequence, and what is merely "
        "looked up?",
        hint="The products of one token by itself have scores and mixed for one key: what do the other tokens − 1 add, "
        "in each layer and sequence? The weights are read once for the whole batch, the cache once for each sequence. "
        "Tables are only looked up: leave out positions, and the embedding unless it is tied.",
        uses=("TransformerConfig", "forward_products", "parameter_table", "kv_cache_bytes", "decode_work"),
    ),
    Check(
        name="choose_machine",
        title="The device that serves cheapest, and what binds",
        points=6,
        cases=(
            Case("one machine, memory binds", {"machines": 1, "bound": "memory"}),
            Case("one machine, compute binds", {"machines": 1, "bound": "compute"}),
            Case("one machine, both times are equal", {"machines": 1, "bound": "both"}),
            Case("the fastest is dear", {"machines": 3, "bound": "memory", "dear": True}),
            Case("neither the largest, nor the fastest, nor the cheapest hour", {"machines": 1, "offers": OFFERS}),
            Case("one is a hair cheaper", {"machines": 1, "offers": ((1, 1, 1), (1, 1, 0.999999))}),
            Case("two that cost nothing: the first of them", {"machines": 1, "offers": FREE}),
            Case("two offers of one device", {"machines": 1, "offers": ((1, 1, 1), (1, 1, 2)), "one name": True}),
            Case("all fit", {"machines": 4}),
            Case("all fit, at prices that nobody can pay", {"machines": 3, "dollars": 1e18}),
            Case("some are too small", {"machines": 5, "too small": 2}),
            Case("none fits", {"fits": False}),
            Case("no machine at all", {"machines": 0}),
            Case("each is there twice", {"machines": 3, "twice": True}),
            Case("room for one sequence alone", {"machines": 1, "just one": 1}),
            Case(
                "a GPT-2, nine machines",
                {"kind": GPT2_KIND, "machines": 9, "too small": 1, "offers": EIGHTH},
                hidden=True,
            ),
            Case("any model", {"kind": {}, "machines": 3}, hidden=True),
        ),
        inputs=_machine_inputs,
        run=calls.choose_machine,
        describe=describe_calls("choose_machine(config, {tokens}, machines)", further=_machines_code),
        expect=_machine_expect,
        compare=agree,
        first_hint="For the machine that is right: how many tokens does an hour make, and what does an hour cost?",
        hint="dollars_per_hour / 3600 · step_s is what a step costs; it makes `batch` tokens. Take the larger of the "
        "two times, not their sum. Leave a machine out whose largest batch is 0.",
        uses=("TransformerConfig", "Machine", "Choice", "largest_batch", "decode_work", "choose_machine"),
    ),
)
