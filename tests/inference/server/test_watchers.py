"""Snapshots are enabled while there are watchers; a slow watcher misses old steps and nothing else."""

from __future__ import annotations

import pytest

from mlsys_lab.inference.server import watchers as module
from mlsys_lab.inference.server.errors import ApiError
from mlsys_lab.inference.server.messages import EngineSnapshot, StepRecord
from mlsys_lab.inference.server.watchers import Watchers
from tests.loops import run


def snapshot(*steps):
    return EngineSnapshot(0.0, 16, 256, 256, [], [], [], [StepRecord(step, 0.0, 1, []) for step in steps])


def test_snapshots_are_enabled_while_there_are_watchers():
    enabled = []
    watchers = Watchers(enabled.append)
    watchers.publish(snapshot(1))
    watchers.resume()
    assert enabled == []
    with watchers.subscribe():
        with watchers.subscribe():
            assert enabled == [True, True]
        assert enabled == [True, True]
        watchers.resume()
    assert enabled == [True, True, True, False]


def test_snapshots_that_were_not_taken_are_merged(monkeypatch):
    monkeypatch.setattr(module, "MAX_STEPS", 3)
    watchers = Watchers(lambda is_enabled: None)
    with watchers.subscribe() as subscription:
        watchers.publish(snapshot(1))
        assert run(subscription.next()) == snapshot(1)
        watchers.publish(snapshot(2))
        watchers.publish(snapshot(3, 4))
        watchers.publish(snapshot(5))
        assert run(subscription.next()) == snapshot(3, 4, 5)
        watchers.close()
        assert run(subscription.next()) is None


def test_the_number_of_watchers_is_limited(monkeypatch):
    monkeypatch.setattr(module, "MAX_WATCHERS", 1)
    watchers = Watchers(lambda is_enabled: None)
    watchers.require_capacity()
    with watchers.subscribe(), pytest.raises(ApiError, match="too many watchers: got 1 already") as caught:
        watchers.require_capacity()
    assert caught.value.status == 429 and caught.value.code == "too_many_watchers"
    watchers.require_capacity()
