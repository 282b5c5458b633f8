from __future__ import annotations

import torch

from mlsys_lab.comm import Finish, Ledger, Message, Post, run, schedule


def test_a_root_that_sends_in_turn_takes_a_step_for_each():
    def program(rank, x):
        if rank.rank == 0:
            requests = [rank.isend(x, peer, "fan out") for peer in range(1, rank.size)]
            for request in requests:
                request.wait()
        else:
            rank.recv(0)

    _, ledger = run(program, [torch.zeros(3)] * 5)
    assert ledger.steps == 4
    assert ledger.sent_bytes() == [48, 0, 0, 0, 0] and ledger.received_bytes("fan out") == [0, 12, 12, 12, 12]
    assert ledger.link_bytes() == {(0, peer): 12 for peer in range(1, 5)}
    assert ledger.sent_messages() == [4, 0, 0, 0, 0]
    assert ledger.sent_bytes("other") == [0] * 5
    assert repr(ledger) == "Ledger(5 ranks, 4 messages, 48 bytes, 4 steps)"


def test_a_chain_takes_a_step_for_each_link_and_a_ring_in_step_takes_one():
    def chain(rank, x):
        x = rank.recv(rank.rank - 1) if rank.rank else x
        if rank.rank + 1 < rank.size:
            rank.send(x, rank.rank + 1)

    def ring(rank, x):
        request = rank.isend(x, (rank.rank + 1) % rank.size)
        rank.recv((rank.rank - 1) % rank.size)
        request.wait()

    assert run(chain, [torch.zeros(1)] * 6).ledger.steps == 5
    assert run(ring, [torch.zeros(1)] * 6).ledger.steps == 1


def test_a_schedule_by_hand():
    """Rank 0 sends 2 bytes to 1 and then 3 to 2, at a second a byte; 2 passes 1 byte on to 1 when it has both."""
    logs = [
        [Post("send", 1, 2), Post("send", 2, 3), Finish(0), Finish(1)],
        [Post("recv", 0), Post("recv", 2), Finish(0), Finish(1)],
        [Post("recv", 0), Finish(0), Post("send", 1, 1, "on"), Finish(1)],
    ]
    assert schedule(logs, lambda source, destination, size: size) == [
        Message(0, 1, 2, "", 0.0, 2.0),
        Message(0, 2, 3, "", 2.0, 5.0),
        Message(2, 1, 1, "on", 5.0, 6.0),
    ]


def test_a_busy_port_does_not_hold_up_a_message_between_others():
    logs = [
        [Post("send", 1, 1), Post("send", 2, 1), Finish(0), Finish(1)],
        [Post("recv", 0), Finish(0), Post("send", 3, 1), Finish(1)],
        [Post("recv", 0), Finish(0)],
        [Post("recv", 1), Finish(0)],
    ]
    ledger = Ledger(logs)
    assert [(m.source, m.destination, m.start) for m in ledger.messages] == [(0, 1, 0), (0, 2, 1), (1, 3, 1)]


def test_unmatched_posts_are_reported():
    logs = [[Post("send", 1, 4), Finish(0), Post("send", 1, 8)], [Post("recv", 0), Finish(0), Post("recv", 2)], []]
    assert Ledger(logs).unmatched == [(0, Post("send", 1, 8)), (1, Post("recv", 2))]
    assert Ledger(logs).total_bytes == 4
