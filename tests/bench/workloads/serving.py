"""The serving engine against `transformers` on the same weights, and against a batch in which nothing is wasted.

The model has TinyLlama's sizes (arXiv:2401.02385, table 1), 1.1 billion weights drawn at random, in bf16; texts are
greedy and as long as they are asked to be. What is checked is a copy in fp32, of which two programs write the same
tokens: in bf16 the largest of random logits depends on the order of sums.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import torch

from mlsys_lab.configs import TransformerConfig
from mlsys_lab.inference.engine import CompletionOutput, Engine, Request, SamplingParams, SchedulerConfig
from mlsys_lab.inference.generate import generate
from mlsys_lab.models import Transformer
from mlsys_lab.models.saving import save
from tests.bench.kernels.entries import Entry, Machine, Program

ONE_BY_ONE, IDEAL = 10.0, 0.9
"""Asked of the engine: its tokens a second over those of `transformers`, request after request; over the ideal's."""
BLOCK_SIZE, BUDGET = 16, 2048
"""Tokens of a block, and of a step."""
CHECKED = ((5, 9), (40, 3), (17, 12), (1, 7), (33, 10))
"""Tokens of the prompts, and of the answers, whose texts are checked."""


def config(layers: int, width: int) -> TransformerConfig:
    """TinyLlama's sizes at 22 layers and a width of 2,048; others in proportion."""
    return TransformerConfig(
        f"llama-{layers}x{width}",
        n_layers=layers,
        d_model=width,
        n_heads=width // 64,
        n_kv_heads=max(1, width // 512),
        d_ff=width * 11 // 4,
        vocab_size=width * 125 // 8,
        context=2048,
    )


def make_model(machine: Machine, layers: int, width: int) -> Transformer:
    """A model with random weights in bf16."""
    torch.manual_seed(0)
    with torch.device(machine.device):
        return Transformer(config(layers, width)).to(torch.bfloat16).requires_grad_(False)


def make_theirs(model: Transformer) -> Any:
    """The same model in `transformers`, on the same device; no token ends its texts."""
    from transformers import LlamaForCausalLM

    weight = model.embedding.weight
    with TemporaryDirectory() as folder:
        save(model, Path(folder))
        theirs: Any = LlamaForCausalLM.from_pretrained(folder, dtype=weight.dtype)
    theirs.generation_config.pad_token_id, theirs.generation_config.eos_token_id = 0, None
    return theirs.to(weight.device).eval()


def ask(lengths: Sequence[tuple[int, int]], vocabulary: int) -> list[Request]:
    """Greedy requests with so many tokens of a prompt, drawn evenly, and of an answer each."""
    random = Random(0)
    return [
        Request([random.randrange(vocabulary) for _ in range(prompt)], writes, SamplingParams(temperature=0))
        for prompt, writes in lengths
    ]


def serve(model: Transformer, requests: Sequence[Request], slots: int, budget: int = BUDGET) -> list[CompletionOutput]:
    """Answers of a new engine to requests that all wait from the start, with enough blocks for all that run."""
    longest = max(len(request.prompt_token_ids) + request.max_tokens for request in requests)
    num_blocks = (slots + 1) * -(-longest // BLOCK_SIZE)
    config = SchedulerConfig(slots, max(slots, budget), enable_prefix_caching=False)
    engine = Engine(model, num_blocks=num_blocks, block_size=BLOCK_SIZE, config=config)
    for request in requests:
        engine.add_request(request)
    return [answer for _, (answer,) in sorted(engine.run().items())]


@torch.no_grad()
def continue_in_theirs(theirs: Any, requests: Sequence[Request]) -> torch.Tensor:
    """Tokens that `transformers` writes in one batch after prompts of one length, as many for each."""
    (writes,) = {request.max_tokens for request in requests}
    prompts = torch.tensor([request.prompt_token_ids for request in requests], device=theirs.device)
    written: torch.Tensor = theirs.generate(
        prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=writes, do_sample=False
    )
    return written[:, prompts.shape[1] :].cpu()


def check(model: Transformer, theirs: Any) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Texts of requests of different lengths, by the engine and by `transformers` one after another, both in fp32."""
    requests = ask(CHECKED, model.config.vocab_size)

    def ours() -> list[torch.Tensor]:
        answers = serve(copy.deepcopy(model).float(), requests, slots=3, budget=16)
        return [torch.tensor(answer.token_ids) for answer in answers]

    def expected() -> list[torch.Tensor]:
        fine = copy.deepcopy(theirs).float()
        return [continue_in_theirs(fine, [request])[0] for request in requests]

    return ours, expected


def one_by_one(machine: Machine, layers: int, width: int, slots: int, prompt: int, writes: int) -> Program:
    """As many requests at once as the engine has slots, beside `transformers` with one request, and with all at once.

    One request stands for one after another: each takes the time of that one.
    """
    model = make_model(machine, layers, width)
    theirs = make_theirs(model)
    requests = ask([(prompt, writes)] * slots, model.config.vocab_size)
    checked, expected = check(model, theirs)
    return Program(
        partial(serve, model, requests, slots),
        {
            "transformers": partial(continue_in_theirs, theirs, requests[:1]),
            "transformers-batch": partial(continue_in_theirs, theirs, requests),
        },
        expected,
        slots * writes,
        "tokens/s",
        {"dtype": "torch.bfloat16", "model": model.config.name},
        checked=checked,
        amounts={"transformers": writes},
    )


def ragged_lengths(prompt: int, writes: int, requests: int) -> list[tuple[int, int]]:
    """Tokens of prompts and answers: even from an eighth of their means to the rest of twice the means.

    They are drawn in pairs of opposites, so that their means are exactly those.
    """
    random, lengths = Random(0), []
    while len(lengths) < requests:
        p, w = (random.randint(mean // 8, 2 * mean - mean // 8) for mean in (prompt, writes))
        lengths += [(p, w), (2 * prompt - p, 2 * writes - w)]
    random.shuffle(lengths)
    return lengths


def ragged(machine: Machine, layers: int, width: int, slots: int, prompt: int, writes: int, requests: int) -> Program:
    """Requests of all lengths beside an ideal batch, of prompts and answers of the mean lengths that fill all slots.

    Nothing of the ideal is wasted: no row is padded, none waits for a longer one, nothing is scheduled and no page
    looked up (`generate`, with a row of the cache for each).
    """
    model = make_model(machine, layers, width)
    lengths = ragged_lengths(prompt, writes, requests)
    ideal = ask([(prompt, writes)] * slots, model.config.vocab_size)
    checked, expected = check(model, make_theirs(model))
    return Program(
        partial(serve, model, ask(lengths, model.config.vocab_size), slots),
        {"ideal": partial(generate, model, ideal)},
        expected,
        sum(writes for _, writes in lengths),
        "tokens/s",
        {"dtype": "torch.bfloat16", "model": model.config.name},
        checked=checked,
        amounts={"ideal": slots * writes},
    )


ENTRIES = [
    Entry(
        "gpu-serving-batch",
        "the engine with 64 requests at once, prompts and answers of 128 tokens",
        one_by_one,
        (22, 2048, 64, 128, 128),
        (2, 128, 3, 5, 4),
        {"transformers": ONE_BY_ONE},
        samples=3,
    ),
    Entry(
        "gpu-serving-ragged",
        "the engine with 768 requests of all lengths on 64 slots",
        ragged,
        (22, 2048, 64, 128, 64, 768),
        (2, 128, 3, 9, 8, 8),
        {"ideal": IDEAL},
        samples=3,
    ),
]
