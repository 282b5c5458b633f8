"""Measure the pair of `mlsys_lab.inference.pretrained`: `python book/measure_pair.py`, after book/pretrain.py.

How many drafts the target accepts, and what quantised weights do to its perplexity on the book's held-out sections; a
record of each goes to book/data/measurements. It takes two minutes on one core.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from math import exp

import numpy as np
import torch

from book.pretrain import RECORDS
from mlsys_lab.benchmark import Bound, Record, new_record
from mlsys_lab.efficiency.quantization import MixedInt8Linear, quantize
from mlsys_lab.inference.engine import Request, SamplingParams
from mlsys_lab.inference.engine.sampler import probabilities
from mlsys_lab.inference.pretrained import Pair, load_pair, read_text
from mlsys_lab.inference.speculative import ModelDrafter, acceptance_rate, expected_tokens, speculate
from mlsys_lab.models import Transformer, training
from mlsys_lab.models.traffic import weight_bytes

COMMAND = "python book/measure_pair.py"
PROMPTS, PROMPT_TOKENS, NEW_TOKENS, DRAFTS = 20, 32, 64, 4
WINDOWS = 16
"""Sequences of the calibration text, each as long as the context."""
NAMES = ("int8", "int4", "int4-gptq", "llm-int8")
"""Recipes of quantization whose perplexity is measured."""
GROWN, FACTOR = (5, 77), 60.0
"""Channels that `grow_outliers` makes large, and how much: what models of 6.7 billion parameters grow by themselves."""


def main() -> None:
    """Write all records, and print what they say."""
    pair = load_pair()
    with training.one_thread():
        records = [acceptance(pair, "greedy", 0.0), acceptance(pair, "sampled", 1.0)]
        records += perplexities(pair)
    for record in records:
        record.save(RECORDS)
        print(f"{record.name}: {record.p50:.4g} {record.unit}, {record.parameters}")


def acceptance(pair: Pair, name: str, temperature: float) -> Record:
    """Share of drafted tokens that the target accepts, for continuations of held-out text; one sample a prompt.

    A draft that follows a rejected one is not looked at, so the share is below the probability that one which is looked
    at is accepted. Its mean over the texts, `overlap`, makes `expected_tokens_a_step`, which takes all tokens for
    equally easy.
    """
    ids = pair.tokenizer.encode(read_text("held-out"))
    shares, overlaps, steps, drafted, accepted, written = [], [], 0, 0, 0, 0
    for number, start in enumerate(np.linspace(0, len(ids) - PROMPT_TOKENS, PROMPTS, dtype=int)):
        sampling_params = SamplingParams(temperature=temperature, seed=number if temperature else None)
        request = Request(ids[start : start + PROMPT_TOKENS], NEW_TOKENS, sampling_params)
        got = speculate(pair.target, request, ModelDrafter(pair.draft), num_speculative_tokens=DRAFTS)
        shares.append(got.num_accepted_tokens / got.num_draft_tokens)
        steps, drafted = steps + got.num_steps, drafted + got.num_draft_tokens
        accepted += got.num_accepted_tokens
        written += len(got.completion.token_ids)
        overlaps.append(overlap(pair, request, got.completion.token_ids))
    alpha = float(np.mean(overlaps))
    return new_record(
        f"pretrained-acceptance-{name}",
        f"share of drafted tokens accepted, temperature {temperature:g}, one sample a held-out prompt",
        shares,
        unit="of drafts",
        better="higher",
        command=COMMAND,
        seed=0,
        parameters={
            "drafts": DRAFTS,
            "prompt_tokens": PROMPT_TOKENS,
            "new_tokens": NEW_TOKENS,
            "accepted": accepted,
            "drafted": drafted,
            "tokens_a_step": written / steps,
            "overlap": alpha,
            "expected_tokens_a_step": expected_tokens(alpha, DRAFTS),
            "draft_bytes": weight_bytes(pair.draft),
            "target_bytes": weight_bytes(pair.target),
        },
    )


@torch.no_grad()
def overlap(pair: Pair, request: Request, tokens: Sequence[int]) -> float:
    """Mean acceptance rate of the draft model at each of the output tokens."""
    text = torch.tensor([[*request.prompt_token_ids, *tokens]])
    first, params = len(request.prompt_token_ids) - 1, request.sampling_params
    wanted, proposed = (
        probabilities(params, model(text)[0, first:-1], [()] * len(tokens), [0] * len(tokens))
        for model in (pair.target, pair.draft)
    )
    return float(acceptance_rate(wanted, proposed).mean())


def perplexities(pair: Pair) -> list[Record]:
    """Held-out perplexity of the target with each quantisation, and of one that has outliers, with and without care."""
    context = pair.target.config.context
    held_out = np.array(pair.tokenizer.encode(read_text("held-out")), dtype=np.int64)
    known = np.array(pair.tokenizer.encode(read_text("calibration")), dtype=np.int64)
    calibration = training.windows(known, np.arange(min(WINDOWS, len(known) // context)) * context, context - 1)

    def perplexity(model: Transformer) -> float:
        return exp(training.mean_loss(model, held_out, context))

    exact = perplexity(pair.target)
    models = {name: quantize(pair.target, name, calibration) for name in NAMES}
    grown = grow_outliers(pair.target)
    models["llm-int8-grown"] = quantize(grown, "llm-int8", calibration)
    models["int8-activations-grown"] = quantize(grown, all_in_int8, calibration)
    notes = f"grown: outliers in channels {GROWN}, which change nothing in exact arithmetic"
    return [
        new_record(
            f"quantized-{name}",
            f"held-out perplexity of the target with blocks in {name}",
            [perplexity(model)],
            unit="perplexity",
            better="lower",
            command=COMMAND,
            seed=0,
            bound=Bound(exact, "the target with its weights in bf16"),
            notes=notes if "grown" in name else "",
            parameters=sizes(pair.target, model),
        )
        for name, model in models.items()
    ]


def sizes(model: Transformer, quantized: Transformer) -> dict[str, float]:
    """Bytes of the blocks in bf16 and quantised, and bits of a weight of their linear layers, scales included."""
    linear = sum(module.weight.numel() for module in model.blocks.modules() if isinstance(module, torch.nn.Linear))
    norms = sum(weight.numel() for weight in model.blocks.parameters()) - linear
    held = sum(tensor.nbytes for tensor in (*quantized.blocks.parameters(), *quantized.blocks.buffers()))
    held -= 4 * norms  # fp32 in memory
    return {"weights": linear, "bf16_bytes": 2 * linear, "bytes": held, "bits_a_weight": 8 * held / linear}


def grow_outliers(model: Transformer) -> Transformer:
    """A copy of a model with large activations in a few channels that follow a norm; the weights after them undo it."""
    grown = copy.deepcopy(model)
    channels = list(GROWN)
    with torch.no_grad():
        for block in grown.blocks:
            attention, mlp = block.attention, block.mlp
            for norm, readers in (
                (block.attention_norm, (attention.query, attention.key, attention.value)),
                (block.mlp_norm, (mlp.gate, mlp.up)),
            ):
                norm.weight[channels] *= FACTOR
                for reader in readers:
                    reader.weight[:, channels] /= FACTOR
    return grown


def all_in_int8(linear: torch.nn.Linear, inputs: torch.Tensor) -> MixedInt8Linear:
    """Layer with weights and activations in int8, outliers too."""
    return MixedInt8Linear(linear.weight, inputs, linear.bias, threshold=float("inf"))


if __name__ == "__main__":
    main()
