"""Snapshots of a scheduler: every step with its prefills and decodes, and each sequence's block table."""

from __future__ import annotations

import pytest

from mlsys_lab.inference.engine import BlockManager, Scheduler, SchedulerConfig
from mlsys_lab.inference.server import snapshot
from mlsys_lab.inference.server.messages import SequenceState, decode_event, encode
from mlsys_lab.inference.server.snapshot import SnapshotRecorder


def run(scheduler, recorder):
    """One step, as an engine runs it, of a model that generates 7 again and again."""
    output = scheduler.schedule()
    scheduler.update_from_output(output, [[7]] * len(output.sampled))
    for seq in output.sampled:
        if seq.num_output_tokens == seq.max_tokens:
            scheduler.finish(seq)
    recorder.record(output)


def build(num_blocks=12, *limits):
    scheduler = Scheduler(BlockManager(num_blocks, 4), SchedulerConfig(*limits))
    return scheduler, SnapshotRecorder(scheduler)


def test_steps_distinguish_prefill_from_decode():
    scheduler, recorder = build(12, 2, 8)
    for prompt, max_tokens in (([1] * 3, 3), ([2] * 12, 1), ([3], 2)):
        scheduler.add(prompt, max_tokens)
    for _ in range(4):
        run(scheduler, recorder)
    seen = recorder.take()
    assert [step.step for step in seen.steps] == [1, 2, 3, 4]
    assert [step.scheduled for step in seen.steps] == [
        [(0, 3, False), (1, 5, False)],
        [(0, 1, True), (1, 7, False)],
        [(0, 1, True), (2, 1, False)],
        [(2, 1, True)],
    ]
    assert [step.num_sampled for step in seen.steps] == [1, 2, 2, 1]
    assert scheduler.is_idle and (seen.running, seen.waiting) == ([], []) and recorder.take().steps == []


def test_sequences_keep_their_ids_and_block_tables():
    scheduler, recorder = build(8, 2, 40)
    scheduler.add([1] * 9, 3)
    run(scheduler, recorder)
    scheduler.add([1] * 9 + [2], 9)
    scheduler.add([3], 1)
    run(scheduler, recorder)
    seen = recorder.take()
    first, second = seen.running
    assert (first.seq_id, first.num_prompt_tokens, first.num_output_tokens, first.num_computed_tokens) == (0, 9, 2, 10)
    assert second.num_cached_tokens == 8 and first.block_table[:2] == second.block_table[:2]
    assert len({*first.block_table, *second.block_table}) == 4
    assert seen.waiting == [SequenceState(2, 1, 0, 0, 0, [])]
    run(scheduler, recorder)
    assert [seq.seq_id for seq in recorder.take().running] == [1]
    scheduler.finish(scheduler.running[0])
    assert set(recorder.take().evictable_blocks) == set(second.block_table[:2])  # the third is not full
    assert decode_event(encode(seen)) == seen
    assert (seen.max_num_seqs, seen.max_num_batched_tokens, seen.num_blocks) == (2, 40, 8)


def test_snapshots_are_due_at_intervals_and_at_the_end(monkeypatch):
    scheduler, recorder = build()
    scheduler.add([1], 3)
    monkeypatch.setattr(snapshot, "INTERVAL_S", float("inf"))
    assert not recorder.is_due
    recorder.take()
    run(scheduler, recorder)
    assert not recorder.is_due
    monkeypatch.setattr(snapshot, "INTERVAL_S", 0)
    assert recorder.is_due
    monkeypatch.setattr(snapshot, "INTERVAL_S", float("inf"))
    run(scheduler, recorder)
    run(scheduler, recorder)
    assert scheduler.is_idle and recorder.is_due
    recorder.take()
    assert not recorder.is_due


def test_a_sequence_that_finishes_without_another_step_is_gone():
    scheduler, recorder = build()
    sequence = scheduler.add([1], 3)
    run(scheduler, recorder)
    recorder.take()
    scheduler.finish(sequence)
    assert recorder.is_due and recorder.take().running == []


@pytest.mark.parametrize(
    ("enables", "steps"),
    [((False, True), 0), ((True,), 1)],
    ids=["restarting drops earlier steps", "enabling again keeps them"],
)
def test_steps_are_recorded_while_enabled(enables, steps):
    scheduler, recorder = build()
    scheduler.add([1], 3)
    recorder.enable(True)
    run(scheduler, recorder)
    for is_enabled in enables:
        recorder.enable(is_enabled)
    assert recorder.is_enabled and len(recorder.take().steps) == steps
