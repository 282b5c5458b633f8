"""Integration point 2, second half: a trained checkpoint is exported, loaded by name, and served on the stack."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from mlsys_lab.capstone import Stack, checkpoints, load_stack
from mlsys_lab.capstone.serving import build_engine, generate_greedy, write_served
from mlsys_lab.cli import main
from mlsys_lab.configs import TransformerConfig
from mlsys_lab.errors import InputError
from mlsys_lab.inference.engine import SchedulerConfig
from mlsys_lab.inference.text.loading import BUNDLED
from mlsys_lab.inference.text.tokenizer import Tokenizer
from mlsys_lab.models import Transformer, load
from mlsys_lab.stack.workspace import Workspace
from tests.inference.server.serving import serving

TOKENS = 9
SMALL = SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=16)


@pytest.fixture(scope="module")
def served(config: TransformerConfig, weights: dict[str, torch.Tensor], tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    """The model after `checkpoints.save` and `mlsys-lab export`."""
    folder = tmp_path_factory.mktemp("run")
    single = {name: weight.float() for name, weight in weights.items()}
    checkpoints.save(folder / "checkpoints", config, single, 7, assets=[BUNDLED / "tokenizer.json"])
    assert main(["export", str(folder / "checkpoints"), str(folder / "exported")]) == 0
    return load(folder / "exported").eval()


def prompts() -> list[list[int]]:
    """Prompts of many lengths, half of which share a prefix of several blocks."""
    generator = torch.Generator().manual_seed(4)
    draw = lambda n: torch.randint(53, (n,), generator=generator).tolist()  # noqa: E731
    shared = draw(13)
    return [shared[:kept] + draw(more) for kept, more in zip([0, 13, 13, 9, 13, 0], [1, 3, 1, 20, 8, 30], strict=True)]


def decode_uncached(model: Transformer, prompt: list[int]) -> list[int]:
    """The likeliest tokens, each from a forward pass over all tokens before it."""
    tokens = list(prompt)
    for _ in range(TOKENS):
        with torch.no_grad():
            tokens.append(int(model(torch.tensor([tokens]))[0, -1].argmax()))
    return tokens[len(prompt) :]


def test_the_exported_weights_are_those_that_were_saved(served: Transformer, weights: dict[str, torch.Tensor]) -> None:
    loaded = dict(served.named_parameters())
    assert loaded.keys() == weights.keys()
    assert all(torch.equal(loaded[name], weight.float()) for name, weight in weights.items())


@pytest.mark.parametrize("swap", [None, "scheduler", "cache"])
def test_tokens_equal_uncached_greedy_decoding(served: Transformer, swap: str | None, tmp_path: Path) -> None:
    """Few blocks and a small budget: prompts come in chunks, prefixes are shared, and sequences are preempted."""
    stack = load_stack(Workspace.create(tmp_path), {swap: "reference"} if swap else {})
    engine = build_engine(stack, served, num_blocks=20, block_size=3, config=SMALL)
    assert generate_greedy(engine, prompts(), TOKENS) == [decode_uncached(served, prompt) for prompt in prompts()]
    assert engine.scheduler.block_manager.pool.num_used_blocks == 0


@pytest.mark.weekly
def test_the_server_gives_the_same_tokens_over_http(tmp_path: Path) -> None:
    config = TransformerConfig("t", n_layers=1, d_model=16, n_heads=2, d_ff=20, vocab_size=1024, context=64)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(6)
        model = Transformer(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(30)
    checkpoints.save(tmp_path / "run", config, dict(model.named_parameters()), 1, assets=[BUNDLED / "tokenizer.json"])
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "mine")]) == 0
    write_served(tmp_path / "stack.py", Workspace.create(tmp_path))
    tokenizer = Tokenizer.load(BUNDLED / "tokenizer.json")
    fields = {"model": "mine", "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    with serving("--model", str(tmp_path / "mine"), "--scheduler", str(tmp_path / "stack.py")) as served:
        ask = lambda prompt: served.complete(fields | {"prompt": prompt})[1]["choices"][0]["text"]  # noqa: E731
        with ThreadPoolExecutor(32) as clients:
            texts = list(clients.map(ask, prompts() * 6))
    expected = [tokenizer.decode(decode_uncached(model, prompt)) for prompt in prompts()]
    assert texts == expected * 6


def test_a_scheduler_that_allocates_no_blocks_is_one_clear_line(stack: Stack, served: Transformer) -> None:
    engine = build_engine(stack, served, num_blocks=20, block_size=3, config=SMALL)
    engine.scheduler.block_manager.allocate_slots = lambda *sizes: True
    with pytest.raises(InputError, match="tokens for which it allocated no block: got 0 blocks of 3 for 5 tokens"):
        generate_greedy(engine, [[1, 2, 3, 4, 5]], 2)
