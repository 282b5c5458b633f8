"""Route messages between the ranks of one program, and log them: the log is what communication checks are graded on.

Each rank is a hostile process, so a post is a claim about that rank only: it names its peer, never the sender. Arrays
pass through the judge, which counts messages and bytes where no rank can tamper with the numbers. Deferred inputs stay
here until a rank reveals them; the log records how many posts the rank had made by then.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlsys_checks.sandboxed.ranks import describe_deadlock, name_rank
from mlsys_checks.sandboxed.spec import Mismatch
from mlsys_checks.trusted.traffic import count_bytes
from mlsys_grader.judging.problem import Ending
from mlsys_grader.sandbox.inside import wire
from mlsys_lab.comm.ledger import Finish, Link, Log, Post

MAX_POSTS = 4096
"""Sends, receives and calls of `reveal` of all ranks in one case."""
MAX_BYTES = 64 << 20
"""Bytes that all ranks of one case may send."""
CHANNEL_CHARACTERS = 200


DETERMINISTIC_ENDINGS = (Ending.NOT_IMPLEMENTED, Ending.WRONG, Ending.ANSWER_TOO_LARGE)
"""Endings caused by the program itself, however busy the machine was."""


class RunAbortedError(Exception):
    """The run has been aborted; `MessageRouter.problem` has the reason."""


class InvalidPostError(Exception):
    """A rank sent a malformed post or exceeded a limit; `mismatch` describes it."""

    def __init__(self, mismatch: Mismatch) -> None:
        super().__init__(mismatch.what)
        self.mismatch = mismatch


@dataclass
class PendingPost:
    """A post and its state: the array sent or received, whether its peer has matched it, and whether its rank has
    waited.
    """

    post: Post
    array: np.ndarray | None = None
    is_matched: bool = False
    is_finished: bool = False


class MessageRouter:
    """Match the sends and receives of `size` ranks. One judge thread per rank calls these methods.

    `deferred` holds each rank's deferred inputs (None for none). `marks` records each rank's calls of `reveal` as pairs
    (element, number of posts made before).
    """

    def __init__(self, size: int, deferred: Sequence[Sequence[float] | None] = ()) -> None:
        self.size, self.deferred = size, deferred or [None] * size
        self.logs: list[Log] = [[] for _ in range(size)]
        self.marks: list[list[tuple[int, int]]] = [[] for _ in range(size)]
        self.problem: tuple[Mismatch, Ending] | None = None
        self._changed = threading.Condition()
        self._made: list[list[PendingPost]] = [[] for _ in range(size)]
        self._unmatched: dict[tuple[Link, str], deque[PendingPost]] = defaultdict(deque)
        self._waits_for: list[PendingPost | None] = [None] * size
        self._has_finished = [False] * size
        self._failures: dict[int, tuple[Mismatch, Ending]] = {}
        self._posts = self._bytes = 0

    @property
    def is_aborted(self) -> bool:
        """Whether the run has failed and every rank should stop."""
        return self.problem is not None

    def post(self, rank: int, frame: wire.Frame) -> None:
        """Record a send or receive. Raises `InvalidPostError`, and `RunAbortedError` once the run is aborted."""
        post, array = _read_post(frame, rank, self.size)
        with self._changed:
            self._enforce_limits(post.size_bytes)
            made = PendingPost(post, array)
            self._made[rank].append(made)
            self.logs[rank].append(post)
            self._match(made, post.link(rank))

    def reveal(self, rank: int, frame: wire.Frame) -> float:
        """Return one deferred input of a rank. Raises as `post` does."""
        i, deferred = frame.meta.get("index"), self.deferred[rank] or ()
        with self._changed:
            if type(i) is not int or not 0 <= i < len(deferred) or frame.arrays:
                raise InvalidPostError(_invalid_post(f"a question for input {i!r:.40}"))
            self._enforce_limits(0)
            self.marks[rank].append((i, len(self._made[rank])))
        return deferred[i]

    def wait(self, rank: int, frame: wire.Frame) -> np.ndarray | None:
        """Wait until a post completes; return the received array, None for a send. Raises as `post` does."""
        number = frame.meta.get("post")
        with self._changed:
            if type(number) is not int or not 0 <= number < len(self._made[rank]):
                raise InvalidPostError(_invalid_post(f"a wait for post {number!r:.40}"))
            made = self._made[rank][number]
            self._waits_for[rank] = made
            self._end_if_stuck()
            self._changed.wait_for(lambda: made.is_matched or self.is_aborted)
            self._waits_for[rank] = None
            if self.is_aborted:
                raise RunAbortedError
            if not made.is_finished:
                made.is_finished = True
                self.logs[rank].append(Finish(number))
            array, made.array = made.array, None  # a second wait must not deliver the array again
            return array if made.post.kind == "recv" else None

    def end(self, rank: int) -> None:
        """Record that a rank has returned its answer."""
        with self._changed:
            self._has_finished[rank] = True
            self._end_if_stuck()

    def fail(self, rank: int, mismatch: Mismatch, ending: Ending) -> None:
        """Record that a rank failed. The other ranks go on, so that no race decides which failure is reported."""
        with self._changed:
            self._failures[rank] = name_rank(mismatch, rank), ending
            self._has_finished[rank] = True
            self._end_if_stuck()

    def abort(self) -> None:
        """Abort the run for a reason outside the program."""
        with self._changed:
            self.problem = Mismatch("the judge was interrupted"), Ending.TIMEOUT
            self._changed.notify_all()

    def find_unreceived(self) -> Mismatch | None:
        """Return the first unmatched post after all ranks have finished, or None."""
        for rank, log in enumerate(self._made):
            for made in log:
                if not made.is_matched:
                    return Mismatch(f"all ranks have ended, but {made.post.describe(rank)}", "", "")
        return None

    def _match(self, made: PendingPost, link: Link) -> None:
        waiting = self._unmatched[link, "recv" if made.post.kind == "send" else "send"]
        if not waiting:
            self._unmatched[link, made.post.kind].append(made)
            return
        other = waiting.popleft()
        send, receive = (made, other) if made.post.kind == "send" else (other, made)
        receive.array, send.array = send.array, None
        made.is_matched = other.is_matched = True
        self._changed.notify_all()

    def _enforce_limits(self, size_bytes: int) -> None:
        if self.is_aborted:
            raise RunAbortedError
        self._posts, self._bytes = self._posts + 1, self._bytes + size_bytes
        if self._posts > MAX_POSTS:
            raise InvalidPostError(
                Mismatch("the ranks send too many messages", f"more than {MAX_POSTS:,} posts", "fewer")
            )
        if self._bytes > MAX_BYTES:
            raise InvalidPostError(Mismatch("the ranks send too much", f"more than {MAX_BYTES:,} bytes", "less"))

    def _end_if_stuck(self) -> None:
        """End the run if every rank has finished or is blocked for good, and not all finished. Lock held."""
        if self.is_aborted or not all(map(self._is_stuck, range(self.size))):
            return
        if self._failures:  # prefer a definite mistake to a timeout, then the lowest rank
            first = min(self._failures, key=lambda rank: (self._failures[rank][1] not in DETERMINISTIC_ENDINGS, rank))
            self.problem = self._failures[first]
        elif not all(self._has_finished):
            waits = enumerate(self._waits_for)
            told = [f"rank {rank} has ended" if made is None else made.post.describe(rank) for rank, made in waits]
            self.problem = describe_deadlock("; ".join(told)), Ending.WRONG
        self._changed.notify_all()

    def _is_stuck(self, rank: int) -> bool:
        made = self._waits_for[rank]
        return self._has_finished[rank] or (made is not None and not made.is_matched)


def _read_post(frame: wire.Frame, rank: int, size: int) -> tuple[Post, np.ndarray | None]:
    kind, peer, channel = (frame.meta.get(name) for name in ("kind", "peer", "channel"))
    fits = (
        kind in ("send", "recv")
        and (type(peer) is int and 0 <= peer < size and peer != rank)
        and (isinstance(channel, str) and len(channel) <= CHANNEL_CHARACTERS)
        and frame.arrays.keys() == ({"array"} if kind == "send" else set())
    )
    if not fits:
        raise InvalidPostError(_invalid_post(f"kind {kind!r:.40}, peer {peer!r:.40}, channel {channel!r:.40}"))
    array = frame.arrays.get("array")
    return Post(kind, peer, 0 if array is None else count_bytes(array), channel=channel), array  # type: ignore[arg-type]


def _invalid_post(got: Any) -> Mismatch:
    return Mismatch("it wrote to the grader's own channel", str(got), "messages sent by `rank`")
