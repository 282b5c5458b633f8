"""Layouts of 8 ranks: losses and final weights equal to one process; bytes equal to the closed forms."""

from __future__ import annotations

import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mlsys_lab.comm import Rank, RankError, run
from mlsys_lab.configs import Experts, LatentAttention, TrainConfig, TransformerConfig
from mlsys_lab.errors import InputError
from mlsys_lab.flops.layout import Layout
from mlsys_lab.models import training
from mlsys_lab.models.transformer import Transformer
from mlsys_lab.parallel.tags import Tag
from mlsys_lab.parallel.train import Trainer
from mlsys_lab.parallel.train.checkpoint import load_model, newest, save
from mlsys_lab.parallel.train.traffic import predict_bytes
from tests.sampling import keep

CONFIG = TransformerConfig("small", 2, d_model=16, n_heads=4, d_ff=24, vocab_size=24, context=16, tied=True)
UNEVEN = replace(CONFIG, n_layers=5)
MIXTURE = replace(CONFIG, n_layers=3, experts=Experts(count=4, active=2, d_ff=12, shared=1, dense_layers=1))
LATENT = LatentAttention(q_rank=7, kv_rank=6, nope_dim=2, rope_dim=2, v_dim=3)
OWN_HEAD = replace(CONFIG, n_layers=4, tied=False)
PLAN = TrainConfig(batch_size=8, seq_len=16, steps=6, lr=0.05)
IDS = np.random.default_rng(0).integers(24, size=600)
LAYOUTS = {
    "data × tensor × pipeline": (CONFIG, Layout(data=2, tensor=2, pipeline=2, micro_batch=2)),
    "ZeRO 1, sequence, recomputed": (
        CONFIG,
        Layout(data=2, tensor=2, pipeline=2, zero_stage=1, micro_batch=2, sequence_parallel=True, recomputation="full"),
    ),
    "ZeRO 2": (CONFIG, Layout(data=4, pipeline=2, zero_stage=2)),
    "ZeRO 3": (
        CONFIG,
        Layout(data=4, tensor=2, zero_stage=3, sequence_parallel=True, recomputation="selective", micro_batch=2),
    ),
    "ZeRO 3 of stages": (OWN_HEAD, Layout(data=2, pipeline=4, zero_stage=3, recomputation="full", micro_batch=2)),
    "ZeRO 3 of a tied head": (CONFIG, Layout(data=2, tensor=2, pipeline=2, zero_stage=3, micro_batch=2)),
    "uneven stages": (UNEVEN, Layout(data=2, tensor=2, pipeline=2, zero_stage=1)),
    "interleaved": (UNEVEN, Layout(data=2, context=2, pipeline=2, interleave=2, recomputation="full", micro_batch=2)),
    "interleaved, ZeRO 2": (UNEVEN, Layout(data=4, pipeline=2, interleave=2, zero_stage=2)),
    "interleaved, ZeRO 3": (UNEVEN, Layout(data=2, tensor=2, pipeline=2, interleave=2, zero_stage=3, micro_batch=2)),
    "embedding and head alone": (
        CONFIG,
        Layout(data=2, tensor=2, pipeline=2, interleave=2, zero_stage=3, sequence_parallel=True, recomputation="full"),
    ),
    "head alone": (
        replace(OWN_HEAD, n_layers=3),
        Layout(data=2, context=2, pipeline=2, interleave=2, zero_stage=1, micro_batch=2),
    ),
    "experts": (MIXTURE, Layout(data=4, pipeline=2, expert=2)),
    "experts, ZeRO 1 and context": (
        MIXTURE,
        Layout(data=2, context=2, pipeline=2, expert=2, zero_stage=1, micro_batch=2, recomputation="full"),
    ),
    "experts, ZeRO 2": (MIXTURE, Layout(data=8, expert=4, zero_stage=2)),
    "experts, ZeRO 3": (MIXTURE, Layout(data=4, pipeline=2, expert=2, zero_stage=3, recomputation="full")),
    "experts × tensor": (MIXTURE, Layout(data=2, tensor=2, pipeline=2, expert=2, zero_stage=1, micro_batch=2)),
    "experts × sequence": (
        MIXTURE,
        Layout(data=4, tensor=2, expert=2, sequence_parallel=True, micro_batch=2, recomputation="full"),
    ),
    "experts × sequence, ZeRO 3": (
        replace(MIXTURE, tied=False),
        Layout(data=4, tensor=2, expert=4, zero_stage=3, sequence_parallel=True, micro_batch=2),
    ),
    "experts, interleaved, ZeRO 3": (
        replace(MIXTURE, n_layers=5),
        Layout(data=2, tensor=2, pipeline=2, interleave=2, expert=2, zero_stage=3, micro_batch=2),
    ),
    "query and key norms": (replace(CONFIG, qk_norm=True), Layout(data=2, tensor=4, zero_stage=1)),
    "latent attention": (
        replace(CONFIG, head_dim=0, latent=LATENT),
        Layout(data=2, tensor=2, pipeline=2, sequence_parallel=True, recomputation="full"),
    ),
    "experts and latent attention": (
        replace(MIXTURE, head_dim=0, latent=LATENT),
        Layout(data=2, tensor=2, pipeline=2, expert=2, zero_stage=3, sequence_parallel=True, micro_batch=2),
    ),
    "context": (
        CONFIG,
        Layout(tensor=2, context=2, pipeline=2, zero_stage=1, sequence_parallel=True, micro_batch=4),
    ),
}
WEEKLY = (
    "uneven stages",
    "interleaved, ZeRO 2",
    "interleaved, ZeRO 3",
    "head alone",
    "experts, ZeRO 2",
    "experts, ZeRO 3",
    "experts × sequence",
    "experts, interleaved, ZeRO 3",
    "experts and latent attention",
)


def make_model(config: TransformerConfig) -> Transformer:
    with torch.random.fork_rng():
        torch.manual_seed(4)
        model = Transformer(config).double()
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.2)
        return model


def train(rank: Rank, given: tuple[TransformerConfig, Layout, Path | None]) -> list[float]:
    """Losses; a folder gets a checkpoint."""
    config, layout, folder = given
    trainer = Trainer(make_model(config), IDS, PLAN, layout, rank)
    losses = [trainer.step() for _ in range(PLAN.steps)]
    if folder is not None:
        save(trainer, folder)
    return losses


def count_rows_that_move(model: Transformer, layout: Layout) -> list[int]:
    """Counts, appended for every router call in one process, of choices of experts on another rank."""
    counts: list[int] = []

    def count(_module: torch.nn.Module, _inputs: Any, logits: torch.Tensor) -> None:
        tokens = torch.arange(len(logits)) // PLAN.seq_len  # of which sequence
        home = tokens // (PLAN.batch_size // layout.data) % layout.expert
        owner = logits.topk(2).indices // (logits.shape[1] // layout.expert)
        counts.append(int((owner != home[:, None]).sum()))

    for name, module in model.named_modules():
        if name.endswith("router"):
            module.register_forward_hook(count)
    return counts


@pytest.mark.parametrize("name", keep(list(LAYOUTS), [name for name in LAYOUTS if name not in WEEKLY]))
def test_losses_and_weights_equal_one_process(name: str, tmp_path: Path) -> None:
    config, layout = LAYOUTS[name]
    results, ledger = run(train, [(config, layout, tmp_path)] * 8)
    whole = make_model(config)
    rows = count_rows_that_move(whole, layout)
    alone = [loss for _, loss in training.train(whole, IDS, **asdict(PLAN))]
    for losses in results:
        assert losses == pytest.approx(alone, rel=1e-11)
    final = load_model(newest(tmp_path, print)).state_dict()
    for name_of_weight, weight in whole.state_dict().items():
        torch.testing.assert_close(final[name_of_weight], weight, rtol=1e-8, atol=1e-10)
    expected = predict_bytes(config, layout, batch=PLAN.batch_size, seq_len=PLAN.seq_len, element_bytes=8)
    sent = ledger.purpose_bytes()
    sent.pop("broadcast", None)  # before the first step, so that all begin alike
    sent.pop("barrier", None)  # of the checkpoint
    # An even choice of experts is a rough guess: each row that moves goes there and back, forward and backward.
    if Tag.EXPERT_TOKENS in expected:
        ways = 6 if layout.recomputation == "full" else 4
        assert sent[Tag.EXPERT_TOKENS] == ways * sum(rows) * config.d_model * 8 * layout.tensor
        assert sent.pop(Tag.EXPERT_TOKENS) / PLAN.steps == pytest.approx(expected.pop(Tag.EXPERT_TOKENS), rel=0.3)
    assert {purpose: size_bytes / PLAN.steps for purpose, size_bytes in sent.items()} == pytest.approx(expected)


@pytest.mark.parametrize(
    ("changes", "layout", "said"),
    [
        ({}, Layout(tensor=3), "query heads do not divide evenly: got 4 among 3 tensor-parallel ranks"),
        ({}, Layout(pipeline=3), "a model chunk without a layer: got 2 layers for 3 model chunks"),
        ({"n_layers": 4}, Layout(pipeline=2, interleave=2, micro_batch=8), "a multiple of the stages: got 1 over 2"),
        ({}, Layout(data=3), "the batch does not divide evenly: got 8 sequences, expected a multiple of 3"),
        (
            {},
            Layout(context=3),
            "sequences do not fit the layout or the model: got 16 tokens, expected a multiple of 6",
        ),
        (
            {"d_ff": 36, "n_heads": 6, "n_kv_heads": 6, "d_model": 24},
            Layout(context=2, tensor=3, sequence_parallel=True),
            "sequences do not fit the layout or the model: got 16 tokens, expected a multiple of 12",
        ),
        ({}, Layout(expert=2, data=2), "small has no experts to divide: got 2 expert-parallel ranks"),
        ({"context": 8}, Layout(), "got 16 tokens, expected a multiple of 1, up to 8"),
        ({"vocab_size": 25}, Layout(tensor=2), "the vocabulary does not divide evenly: got 25 tokens among 2"),
        (
            {"position": "alibi"},
            Layout(tensor=2),
            "tensor parallelism does not support this model: got small with ALiBi",
        ),
    ],
)
def test_a_layout_that_does_not_fit_raises(changes: dict[str, Any], layout: Layout, said: str) -> None:
    with pytest.raises((RankError, InputError), match=re.escape(said)):
        run(train, [(replace(CONFIG, **changes), layout, None)] * layout.devices)


@pytest.mark.parametrize(
    ("changes", "window", "said"),
    [
        ({}, 3, "got small with a sliding window"),
        ({"position": "alibi", "experts": MIXTURE.experts}, None, "got small with ALiBi"),
        (
            {"latent": LATENT, "n_kv_heads": 0, "experts": MIXTURE.experts},
            None,
            "got small with latent attention",
        ),
    ],
)
def test_context_parallelism_refuses_what_ring_attention_would_ignore(
    changes: dict[str, Any], window: int | None, said: str
) -> None:
    config, layout = replace(CONFIG, **changes), Layout(context=2)
    with pytest.raises((RankError, InputError), match=f"context parallelism does not support this model: {said}"):
        run(lambda rank, _: Trainer(Transformer(config, window=window), IDS, PLAN, layout, rank), [None] * 2)


@pytest.mark.parametrize("changes", [{"qk_norm": True}, {"parallel_blocks": True}, {"position": "alibi"}])
def test_one_tensor_parallel_rank_trains_any_model(changes: dict[str, Any]) -> None:
    config = replace(CONFIG, **changes)
    alone = [loss for _, loss in training.train(make_model(config), IDS, **asdict(PLAN))]
    for losses in run(train, [(config, Layout(data=2), None)] * 2).results:
        assert losses == pytest.approx(alone, rel=1e-11)
