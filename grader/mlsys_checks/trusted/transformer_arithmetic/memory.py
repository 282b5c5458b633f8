"""Task 4: a memory plan. Oracle: shards of arrays without storage, what torch's autograd saves, all numbers tried."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import torch

from mlsys_checks.sandboxed.spec import Arrays, Case, Check
from mlsys_checks.sandboxed.transformer_arithmetic import memory as calls
from mlsys_checks.sandboxed.transformer_arithmetic.given import Answers
from mlsys_checks.sandboxed.transformer_arithmetic.models import RECOMPUTE
from mlsys_checks.sandboxed.values import encode_text
from mlsys_checks.trusted.answers import agree
from mlsys_checks.trusted.transformer_arithmetic.counts import GPT2_KIND, LLAMA_KIND, SHARED
from mlsys_checks.trusted.transformer_arithmetic.given import answer_parameters, give
from mlsys_checks.trusted.transformer_arithmetic.oracle import (
    META,
    draw_batch,
    draw_model,
    saved_bytes,
    sizes_of,
    weights_of,
)
from mlsys_checks.trusted.transformer_arithmetic.words import describe_calls

CUT_FROM = {"weights": 3, "gradients": 2, "optimizer": 1}
"""The stage of ZeRO from which on a kind is cut among the data-parallel devices."""
ARRAYS = {"weights": [torch.bfloat16], "gradients": [torch.bfloat16], "optimizer": [torch.float32] * 3}
TINY = {"d_model": 3, "n_heads": 1, "n_kv_heads": 1, "head_dim": 2, "d_ff": 5, "vocab_size": 7}
"""Some 200 parameters: of rounded parts, one more need not make the largest smaller."""
MANY = {"zero_stage": 3, "tensor": 16}
"""Groups so large that some thousand devices are few groups."""
MOST_TOKENS = 1000
"""Tokens of a batch that the oracle runs."""


def largest_shard(n: int, ways: int) -> int:
    """Elements of the largest of `ways` parts: of whoever is dealt the first element, and every ways-th after it."""
    return len(range(0, n, ways))


def shard_bytes(kind: str, n_parameters: int, stage: int, data: int, tensor: int) -> int:
    """Bytes of one kind of states on a device."""
    own = largest_shard(n_parameters, tensor)
    if stage >= CUT_FROM[kind]:
        own = largest_shard(own, data)
    return sum(torch.empty(own, dtype=dtype, device=META).nbytes for dtype in ARRAYS[kind])


def kept_bytes(model: np.ndarray, batch: int, tokens: int) -> dict[str, int]:
    """Bytes of activations under each kind of recomputation, from what autograd saves and arrays of known shapes."""
    s = sizes_of(model)

    def nbytes(*shape: int) -> int:
        return torch.empty(shape, dtype=torch.bfloat16, device=META).nbytes

    whole, one_layer, others = saved_bytes(model, batch, tokens), _of_one_layer(model, batch, tokens), s.n_layers - 1
    scores, inputs = nbytes(batch, s.n_heads, tokens, tokens), nbytes(batch, tokens, s.d_model)
    return {"none": whole, "selective": whole - others * scores, "full": whole - others * (one_layer - inputs)}


def kept_at(model: np.ndarray, batch: int, tokens: int, step: int) -> dict[str, int]:
    """What `kept_bytes` gives, for batches and lengths that are too long to run, and for one token.

    Sequences keep alike, and each a·T + b·T² bytes: a and b are what autograd saves at two lengths, `step` and twice.
    """
    if 1 < tokens <= MOST_TOKENS // batch:
        return kept_bytes(model, batch, tokens)
    step = max(step, 2)
    near, far = kept_bytes(model, 1, step), kept_bytes(model, 1, 2 * step)
    found = {}
    for kind, size in near.items():
        b = Fraction(far[kind] - 2 * size, 2 * step**2)
        found[kind] = int(batch * tokens * (Fraction(size, step) + b * (tokens - step)))
    return found


def _of_one_layer(model: np.ndarray, batch: int, tokens: int) -> int:
    """What one more layer adds to what autograd saves."""
    deeper = model.copy()
    deeper[0] += 1  # n_layers, the first of SIZES
    return saved_bytes(deeper, batch, tokens) - saved_bytes(model, batch, tokens)


# --- state_bytes ----------------------------------------------------------------------------------------------------


def _state_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    """Numbers of parameters that no tensor group divides evenly, or that exceed an even cut by `case.params["over"]`.

    The even cut is a multiple of 64: a float that is too short for the quotient loses just what exceeds it.
    """
    n_parameters, data, tensor = (int(rng.integers(*case.params[name])) for name in ("parameters", "data", "tensor"))
    n_parameters += n_parameters % tensor == 0
    if "over" in case.params:
        n_parameters += case.params["over"] - n_parameters % (64 * tensor * data)
    return {"n_parameters": np.array(n_parameters), "data": np.array(data), "tensor": np.array(tensor)}


def _state_expect(arrays: Arrays) -> Arrays:
    n_parameters, data, tensor = (int(arrays[name]) for name in ("n_parameters", "data", "tensor"))
    return {
        f"{kind} in stage {stage}": np.array(shard_bytes(kind, n_parameters, stage, data, tensor))
        for stage in range(4)
        for kind in calls.KINDS
    }


# --- activation_bytes -----------------------------------------------------------------------------------------------


def _activation_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    tensor = case.params.get("tensor", 1)
    return {
        "model": draw_model(rng, even=tensor, **case.params["kind"]),
        "batch": draw_batch(rng, case),
        "tokens": np.array(tensor * int(rng.integers(*case.params.get("tokens", (2, 20))))),
        "tensor": np.array(tensor),
    }


def _activation_expect(arrays: Arrays) -> Arrays:
    kept = kept_at(arrays["model"], int(arrays["batch"]), int(arrays["tokens"]), int(arrays["tensor"]))
    return {f'recompute="{kind}"': np.array(size // int(arrays["tensor"])) for kind, size in kept.items()}


# --- fewest_devices -------------------------------------------------------------------------------------------------


def _devices_inputs(rng: np.random.Generator, case: Case) -> Arrays:
    """Memories in which some number of devices fits exactly, one byte less than those, and one that is too small."""
    tensor, limit = case.params.get("tensor", 1), case.params.get("limit", 64)
    stage, recompute = case.params["zero_stage"], case.params.get("recompute", "none")
    arrays = {
        "model": draw_model(rng, even=tensor, **LLAMA_KIND | case.params.get("kind", {})),
        "tokens": np.array(tensor * int(rng.integers(2, 10))),
        "tensor": np.array(tensor),
        "zero_stage": np.array(stage),
        "recompute": np.array(RECOMPUTE.index(recompute)),
        "limit": np.array(limit),
    }
    held = _held(arrays)
    exact = rng.choice(held, 3)
    memory = [*exact, *(exact - 1), held.min(), held.min() - 1, held.max() + 1]
    given = give(answer_parameters(arrays["model"]), _states_answered(arrays), _activations_answered(arrays))
    return arrays | {"memory_bytes": np.array(memory, dtype=np.int64), **given}


def _states_answered(arrays: Arrays) -> Answers:
    """What `state_bytes` gives for every number of data-parallel devices up to the limit, and for one in any case."""
    stage, tensor = int(arrays["zero_stage"]), int(arrays["tensor"])
    n_parameters = sum(weights_of(arrays["model"]).by_kind().values())
    return {
        "state_bytes": {
            (n_parameters, stage, data, tensor): {
                kind: shard_bytes(kind, n_parameters, stage, data, tensor) for kind in calls.KINDS
            }
            for data in range(1, max(1, int(arrays["limit"]) // tensor) + 1)
        }
    }


def _activations_answered(arrays: Arrays) -> Answers:
    """What `activation_bytes` gives for one sequence in each tensor group."""
    tokens, tensor, recompute = int(arrays["tokens"]), int(arrays["tensor"]), RECOMPUTE[int(arrays["recompute"])]
    kept = kept_bytes(arrays["model"], 1, tokens)[recompute] // tensor
    return {"activation_bytes": {(tokens, 1, recompute, tensor): kept}}


def _held(arrays: Arrays) -> np.ndarray:
    """Bytes on a device for every number of data-parallel devices that `_states_answered` has."""
    (activations,) = _activations_answered(arrays)["activation_bytes"].values()
    return np.array([activations + sum(held.values()) for held in _states_answered(arrays)["state_bytes"].values()])


def _devices_expect(arrays: Arrays) -> Arrays:
    tensor = int(arrays["tensor"])
    held = _held(arrays)[: int(arrays["limit"]) // tensor]
    fits = [np.flatnonzero(held <= memory_bytes) for memory_bytes in arrays["memory_bytes"]]
    least = [int(at[0] + 1) * tensor if len(at) else None for at in fits]
    return {
        calls.write_call(size): encode_text(count)
        for size, count in zip(arrays["memory_bytes"].tolist(), least, strict=True)
    }


def _questions_code(arrays: Arrays) -> list[str]:
    """What the questions share, and a call for each memory, as code."""
    plan = {name: int(arrays[name]) for name in ("zero_stage", "tensor", "limit")}
    return [
        f"tokens = {arrays['tokens']}",
        f"plan = {plan | {'recompute': RECOMPUTE[int(arrays['recompute'])]}}",
        *map(calls.write_call, arrays["memory_bytes"].tolist()),
    ]


CHECKS = (
    Check(
        name="state_bytes",
        title="Weights, gradients and optimiser states a device",
        points=6,
        cases=(
            Case("one device", {"parameters": (100, 10**6), "data": (1, 2), "tensor": (1, 2)}),
            Case("ZeRO over a few devices", {"parameters": (100, 10**6), "data": (2, 17), "tensor": (1, 2)}),
            Case(
                "one parameter more than comes out even",
                {"parameters": (10**6, 10**9), "data": (5, 17), "tensor": (4, 9), "over": 1},
            ),
            Case(
                "cuts that come out even",
                {"parameters": (10**6, 10**9), "data": (2, 17), "tensor": (2, 9), "over": 0},
            ),
            Case(
                "one more than comes out even, of more than a float can count",
                {"parameters": (10**17, 10**18), "data": (5, 17), "tensor": (4, 9), "over": 1},
            ),
            Case("fewer parameters than devices", {"parameters": (1, 6), "data": (7, 17), "tensor": (2, 9)}),
            Case("both ways", {"parameters": (10**9, 10**11), "data": (2, 99), "tensor": (2, 9)}),
            Case("large clusters", {"parameters": (10**9, 10**12), "data": (99, 999), "tensor": (2, 65)}, hidden=True),
        ),
        inputs=_state_inputs,
        run=calls.state_bytes,
        describe=describe_calls(
            "[state_bytes({n_parameters}, stage, data={data}, tensor={tensor}) for stage in range(4)]"
        ),
        expect=_state_expect,
        compare=agree,
        first_hint="Take the stage that fails: which of the three kinds is cut in it, by which group, and what if that "
        "leaves a rest?",
        hint="Round up after each cut: first by the tensor group, then by data. Stage 1 cuts the optimiser states by "
        "data, stage 2 the gradients too, stage 3 the weights too. -(-a // b) rounds up in whole numbers.",
        uses=("state_bytes",),
    ),
    Check(
        name="activation_bytes",
        title="Activations a device, with and without recomputation",
        points=8,
        cases=(
            Case("a GPT-2", {"kind": GPT2_KIND}),
            Case("a Llama", {"kind": LLAMA_KIND}),
            Case("a tensor group of 4", {"kind": LLAMA_KIND, "tensor": 4}),
            Case(
                "relu, and sequences longer than the context",
                {"kind": {**GPT2_KIND, "activation": "relu", "context": 1}},
            ),
            Case("one token; one layer, one head of keys for all queries", {"kind": SHARED, "tokens": (1, 2)}),
            Case("long sequences", {"kind": LLAMA_KIND, "tensor": 2, "tokens": (30_000, 70_000)}),
            Case("any model in a group of 8", {"kind": {}, "tensor": 8}, hidden=True),
        ),
        inputs=_activation_inputs,
        run=calls.activation_bytes,
        describe=describe_calls(
            *(
                f'activation_bytes(config, {{tokens}}, batch={{batch}}, recompute="{kind}", tensor={{tensor}})'
                for kind in RECOMPUTE
            )
        ),
        expect=_activation_expect,
        compare=agree,
        first_hint="Which rows of the task's table are kept for each layer, which once, and which does this kind of "
        "recomputation drop?",
        hint="Add the table up in elements a token, times 2 bytes, and V times 4 bytes once. selective: one "
        "layer's softmax is there, not L. full: L inputs of D, and one layer adds the rest of its table, softmax too.",
        uses=("TransformerConfig", "activation_bytes"),
    ),
    Check(
        name="fewest_devices",
        title="The smallest number of devices that holds a training run",
        points=7,
        cases=(
            Case("ZeRO 3", {"zero_stage": 3}),
            Case(
                "ZeRO 1, full recomputation, so few parameters that one device more may not help, but some do",
                {"zero_stage": 1, "recompute": "full", "kind": TINY},
            ),
            Case("tensor groups of 4", {"zero_stage": 3, "tensor": 4, "recompute": "selective", "limit": 62}),
            Case("no ZeRO: more devices do not help", {"zero_stage": 0}),
            Case("a limit below one tensor group", {"zero_stage": 3, "tensor": 4, "limit": 3}),
            Case("more than 4,096 devices, if it must be, in groups of 16", MANY | {"limit": 5000}),
            Case("no limit but the one that is there by itself", MANY | {"limit": 4096}, hidden=True),
            Case("ZeRO 2 in groups of 2", {"zero_stage": 2, "tensor": 2, "limit": 33}, hidden=True),
        ),
        inputs=_devices_inputs,
        run=calls.fewest_devices,
        describe=describe_calls(further=_questions_code),
        expect=_devices_expect,
        compare=agree,
        first_hint="Which parts of the plan shrink as data grows, and which stay as they are?",
        hint="Try data = 1, 2, 3, … while data · tensor is at most the limit, and return data · tensor for the first "
        "whose plan adds up to no more than memory_bytes. Activations are those of one sequence, and no number "
        "of data-parallel devices makes them smaller.",
        uses=("TransformerConfig", "state_bytes", "activation_bytes", "memory_plan", "fewest_devices"),
    ),
)
