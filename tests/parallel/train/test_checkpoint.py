"""Checkpoints: resumed in any layout, in the same one bit for bit; a kill leaves the last complete checkpoint."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from mlsys_lab.comm import Rank, RankError, run
from mlsys_lab.configs import TrainConfig, TransformerConfig
from mlsys_lab.errors import InputError
from mlsys_lab.flops.layout import Layout
from mlsys_lab.models import training
from mlsys_lab.parallel.train import Trainer, checkpoint
from mlsys_lab.parallel.train.checkpoint import Checkpoint, list_checkpoints, restore, save
from tests.parallel.train.test_trainer import CONFIG as SMALL
from tests.parallel.train.test_trainer import IDS, MIXTURE, make_model

CONFIG = replace(SMALL, n_layers=4)
PLAN = TrainConfig(batch_size=4, seq_len=16, steps=6, lr=0.05)
BEFORE = 3
"""Steps before the break."""


def make_trainer(rank: Rank, layout: Layout, config: TransformerConfig = CONFIG, plan: TrainConfig = PLAN) -> Trainer:
    return Trainer(make_model(config), IDS, plan, layout, rank)


def train_uninterrupted(rank: Rank, given: tuple[Layout, Path]) -> tuple[list[float], torch.Tensor]:
    """Losses, with a checkpoint after three steps and one at the end, and a number drawn in the end."""
    layout, folder = given
    trainer, losses = make_trainer(rank, layout), []
    torch.manual_seed(100 + rank.rank)
    for _ in range(2):
        losses += [trainer.step() for _ in range(BEFORE)]
        save(trainer, folder)
    return losses, torch.rand(1)


def resume_run(rank: Rank, given: tuple[Layout, Path, Path]) -> tuple[list[float], torch.Tensor]:
    layout, path, folder = given
    trainer = make_trainer(rank, layout)
    restore(trainer, path)
    losses = [trainer.step() for _ in range(BEFORE)]
    save(trainer, folder)
    return losses, torch.rand(1)


@pytest.fixture(scope="module")
def uninterrupted_run(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Layout, Path, list[tuple[list[float], torch.Tensor]]]:
    """A run on four ranks without a break: its layout, the folder of its two checkpoints, what each rank returned."""
    layout = Layout(data=2, pipeline=2, zero_stage=1)
    folder = tmp_path_factory.mktemp("whole")
    results, _ = run(train_uninterrupted, [(layout, folder)] * 4)
    assert [path.name for path in list_checkpoints(folder)] == ["step-00000003", "step-00000006"]
    return layout, folder, results


def test_the_same_layout_resumes_bit_for_bit(uninterrupted_run, tmp_path: Path) -> None:
    layout, folder, uninterrupted = uninterrupted_run
    results, _ = run(resume_run, [(layout, list_checkpoints(folder)[0], tmp_path)] * 4)
    for (losses, drawn), (whole, drawn_then) in zip(results, uninterrupted, strict=True):
        assert losses == whole[BEFORE:]
        assert torch.equal(drawn, drawn_then)
    for rank in range(4):
        ends = [list_checkpoints(one)[-1] / f"rank-{rank}.safetensors" for one in (folder, tmp_path)]
        assert ends[0].read_bytes() == ends[1].read_bytes()


@pytest.mark.parametrize(
    "layout",
    [
        Layout(tensor=2, sequence_parallel=True),
        Layout(data=4, tensor=2, zero_stage=3),
        Layout(data=2, tensor=2, pipeline=2, zero_stage=2),
        Layout(data=2, pipeline=2, interleave=2, zero_stage=3),
    ],
    ids=["2 ranks", "8 ranks, ZeRO 3", "8 ranks, stages", "4 ranks, interleaved stages"],
)
def test_other_layouts_resume_as_one_process_would(layout: Layout, uninterrupted_run, tmp_path: Path) -> None:
    _, folder, uninterrupted = uninterrupted_run
    results, _ = run(resume_run, [(layout, list_checkpoints(folder)[0], tmp_path)] * layout.devices)
    for losses, _ in results:
        assert losses == pytest.approx(uninterrupted[0][0][BEFORE:], rel=1e-11)
    alone = make_model(CONFIG)
    for _ in training.train(alone, IDS, **asdict(PLAN)):
        pass
    for path in (list_checkpoints(folder)[1], list_checkpoints(tmp_path)[0]):
        for name, parameter in alone.named_parameters():
            torch.testing.assert_close(Checkpoint(path).read(name), parameter.detach(), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("layout", [Layout(), Layout(data=2, tensor=2, zero_stage=3)], ids=["1 rank", "4 ranks"])
def test_a_finished_run_goes_on_with_the_learning_rates_of_the_longer_one(
    layout: Layout, uninterrupted_run, tmp_path: Path
) -> None:
    folder, longer = list_checkpoints(uninterrupted_run[1])[1], replace(PLAN, steps=9)

    def extend(rank: Rank, _: None) -> list[float]:
        trainer = make_trainer(rank, layout, plan=longer)
        assert restore(trainer, folder) == PLAN.steps
        return [trainer.step() for _ in range(3)]

    model = make_model(CONFIG)
    optimizer = torch.optim.AdamW(model.parameters(), betas=training.BETAS, weight_decay=training.WEIGHT_DECAY)
    alone = []
    batches = training.Batches(len(IDS), PLAN.batch_size, PLAN.seq_len, PLAN.seed)
    for step, starts in zip(range(1, 10), batches, strict=False):
        plan = PLAN if step <= PLAN.steps else longer
        optimizer.param_groups[0]["lr"] = training.learning_rate(step, plan.steps, plan.lr)
        optimizer.zero_grad()
        loss = training.loss(model, training.windows(IDS, starts, PLAN.seq_len))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), training.GRADIENT_NORM)
        optimizer.step()
        alone.append(loss.item())
    for losses in run(extend, [None] * layout.devices).results:
        assert losses == pytest.approx(alone[PLAN.steps :], rel=1e-11)


def test_experts_resume_on_other_ranks(tmp_path: Path) -> None:
    before, after = Layout(data=2, expert=2), Layout(data=4, expert=4, zero_stage=1)

    def start(rank: Rank, _: None) -> None:
        trainer = make_trainer(rank, before, MIXTURE)
        for _ in range(BEFORE):
            trainer.step()
        save(trainer, tmp_path)

    def end(rank: Rank, _: None) -> list[float]:
        trainer = make_trainer(rank, after, MIXTURE)
        restore(trainer, list_checkpoints(tmp_path)[-1])
        return [trainer.step() for _ in range(BEFORE)]

    run(start, [None] * 2)
    alone = [loss for _, loss in training.train(make_model(MIXTURE), IDS, **asdict(PLAN))]
    for losses in run(end, [None] * 4).results:
        assert losses == pytest.approx(alone[BEFORE:], rel=1e-11)


def train_and_be_killed(rank: Rank, folder: Path) -> None:
    """Rank 1 dies while it writes its second checkpoint."""
    trainer = make_trainer(rank, Layout(data=2, zero_stage=1))
    write = checkpoint.save_file

    def write_and_die(*given, **options) -> None:
        write(*given, **options)
        if rank.rank == 1 and trainer.steps_done == 2 * BEFORE - 2:
            os.kill(os.getpid(), signal.SIGKILL)

    checkpoint.save_file = write_and_die
    for _ in range(PLAN.steps):
        trainer.step()
        if trainer.steps_done % 2 == 0:
            save(trainer, folder)


def test_resuming_from_the_last_complete_checkpoint_after_a_kill(tmp_path: Path) -> None:
    with pytest.raises(RankError, match="rank 1 died: killed by SIGKILL"):
        run(train_and_be_killed, [tmp_path] * 2, backend="gloo")
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-00000002"]
    assert (tmp_path / "step-00000004.part").exists()

    def finish(rank: Rank, path: Path | None) -> list[float]:
        trainer = make_trainer(rank, Layout(data=2, zero_stage=1))
        if path is not None:
            restore(trainer, path)
        losses = [trainer.step() for _ in range(PLAN.steps - trainer.steps_done)]
        save(trainer, tmp_path)
        return losses

    rest, _ = run(finish, [list_checkpoints(tmp_path)[-1]] * 2)
    whole, _ = run(finish, [None] * 2)
    assert rest[0] == whole[0][2:]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000002", "step-00000006"]


def test_an_interruption_at_any_fsync_leaves_a_complete_checkpoint(tmp_path: Path, monkeypatch) -> None:
    def save_next(rank: Rank, _: None) -> None:
        trainer = make_trainer(rank, Layout())
        if found := list_checkpoints(tmp_path):
            restore(trainer, found[-1])
        trainer.step()
        save(trainer, tmp_path)

    run(save_next, [None])
    fsync = os.fsync
    for breaks_at in range(1, 5):
        calls = []

        def break_off(handle: int, calls=calls, breaks_at=breaks_at) -> None:
            calls.append(handle)
            if len(calls) == breaks_at:
                raise KeyboardInterrupt
            fsync(handle)

        monkeypatch.setattr(os, "fsync", break_off)
        with pytest.raises(RankError, match="KeyboardInterrupt"):
            run(save_next, [None])
        assert len(calls) == breaks_at
        is_renamed = breaks_at == 4  # the last call is behind the renaming
        assert [path.name for path in list_checkpoints(tmp_path)][-1] == f"step-0000000{2 if is_renamed else 1}"
        Checkpoint(list_checkpoints(tmp_path)[-1])
    monkeypatch.setattr(os, "fsync", fsync)
    for _ in range(3):
        run(save_next, [None])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000004", "step-00000005"]


def test_another_run_is_not_saved_over_a_checkpoint_or_before_one(tmp_path: Path) -> None:
    def start(rank: Rank, given: tuple[int, int]) -> Path:
        seed, steps = given
        trainer = make_trainer(rank, Layout(), plan=replace(PLAN, seed=seed))
        for _ in range(steps):
            trainer.step()
        return save(trainer, tmp_path)

    run(start, [(0, 2)])
    for steps in (1, 2):
        with pytest.raises((RankError, InputError), match="the checkpoint is of another run: got seed=0, expected"):
            run(start, [(1, steps)])
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000002"]
    assert run(start, [(0, 2)]).results == [tmp_path / "step-00000002"]


def cut_short(path: Path) -> None:
    file = path / "rank-1.safetensors"
    file.write_bytes(file.read_bytes()[:100])


def scribble(path: Path) -> None:
    file = path / "rank-0.safetensors"
    file.write_bytes(b"\xff" * file.stat().st_size)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (cut_short, r"incomplete checkpoint: got 100 bytes of .*rank-1.safetensors, expected \d+ bytes"),
        (scribble, r"incomplete checkpoint: got .*rank-0.safetensors: .*header"),
        (lambda path: (path / "rank-2.safetensors").unlink(), "got 0 bytes of .*rank-2.safetensors"),
        (lambda path: (path / "manifest.json").unlink(), "incomplete checkpoint: got .* without a readable manifest"),
        (lambda path: (path / "manifest.json").write_text("{"), "without a readable manifest"),
    ],
)
def test_an_incomplete_checkpoint_raises(
    spoil: Callable[[Path], object], said: str, uninterrupted_run, tmp_path: Path
) -> None:
    path = shutil.copytree(list_checkpoints(uninterrupted_run[1])[0], tmp_path / "half")
    spoil(path)
    with pytest.raises(InputError, match=said) as raised:
        Checkpoint(path)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("config", "plan", "said"),
    [
        (
            replace(CONFIG, d_ff=32, name="other"),
            PLAN,
            "the checkpoint is of another model: got name=small, d_ff=24, expected name=other, d_ff=32",
        ),
        (
            CONFIG,
            replace(PLAN, batch_size=2),
            "the checkpoint is of another run: got batch_size=4, expected batch_size=2",
        ),
    ],
)
def test_a_checkpoint_of_another_model_or_run_raises(
    config: TransformerConfig, plan: TrainConfig, said: str, uninterrupted_run
) -> None:
    def resume(rank: Rank, path: Path) -> None:
        restore(make_trainer(rank, Layout(), config, plan), path)

    with pytest.raises((RankError, InputError), match=re.escape(said)):
        run(resume, [list_checkpoints(uninterrupted_run[1])[0]])


def test_a_manifest_says_what_the_run_was(uninterrupted_run) -> None:
    layout, folder, _ = uninterrupted_run
    manifest = json.loads((list_checkpoints(folder)[0] / "manifest.json").read_text())
    assert (manifest["layout"], manifest["config"], manifest["steps_done"]) == (asdict(layout), asdict(PLAN), BEFORE)
