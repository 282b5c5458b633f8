"""The engine is asked for views while somebody watches; who reads slowly misses old steps and nothing else."""

from __future__ import annotations

import pytest

from mlsys_lab.inference.server import watchers
from mlsys_lab.inference.server.errors import ApiError
from mlsys_lab.inference.server.messages import View
from mlsys_lab.inference.server.watchers import Watchers
from tests.loops import run


def see(*steps):
    return View(0.0, 16, 256, 256, [], [], [], [{"step": step} for step in steps])


def test_the_engine_makes_views_as_long_as_somebody_watches():
    asked = []
    here = Watchers(asked.append)
    here.deliver(see(1))
    here.resume()
    assert asked == []
    with here.join():
        with here.join():
            assert asked == [True, True]
        assert asked == [True, True]
        here.resume()
    assert asked == [True, True, True, False]


def test_views_that_were_not_taken_are_joined_and_do_not_pile_up(monkeypatch):
    monkeypatch.setattr(watchers, "MOST_STEPS", 3)
    here = Watchers(lambda on: None)
    with here.join() as inbox:
        here.deliver(see(1))
        assert run(inbox.take()) == see(1)
        here.deliver(see(2))
        here.deliver(see(3, 4))
        here.deliver(see(5))
        assert run(inbox.take()) == see(3, 4, 5)
        here.end()
        assert run(inbox.take()) is None


def test_only_so_many_may_watch(monkeypatch):
    monkeypatch.setattr(watchers, "MOST", 1)
    here = Watchers(lambda on: None)
    here.require_room()
    with here.join(), pytest.raises(ApiError, match="1 watch already") as caught:
        here.require_room()
    assert caught.value.status == 429 and caught.value.code == "too_many_watchers"
    here.require_room()
