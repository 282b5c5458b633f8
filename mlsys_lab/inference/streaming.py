"""Streams on the serving engine: iterate over the output of one request while all others go on."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from mlsys_lab.inference.engine.engine import Engine
from mlsys_lab.inference.engine.sequence import Request, SequenceDelta


class StreamingEngine(Engine):
    """Engine whose requests can be read one by one: `step` and `run` return the outputs that no stream yields."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._streams: dict[int, deque[SequenceDelta]] = {}  # by request: outputs that its stream has yet to yield
        self._outputs: list[SequenceDelta] = []  # outputs of all other requests that `step` has yet to return

    @property
    def is_idle(self) -> bool:
        """Whether every request has finished, and `step` has returned all outputs."""
        return super().is_idle and not self._outputs

    def step(self) -> list[SequenceDelta]:
        """Run one step; outputs that the steps of a stream generated for other requests come first."""
        self._step()
        outputs, self._outputs = self._outputs, []
        return outputs

    def abort_request(self, request_id: int) -> None:
        """Abort a request, and end its stream."""
        super().abort_request(request_id)
        self._streams.pop(request_id, None)

    def stream(self, request: Request, **options: Any) -> Iterator[SequenceDelta]:
        """Add a request and yield its outputs as they are generated; closed early, the request is aborted.

        `options` are those of `add_request`.
        """
        request_id, num_unfinished = self.add_request(request, **options), request.n
        inbox = self._streams[request_id] = deque()
        try:
            while num_unfinished and request_id in self._streams:
                while inbox:
                    output = inbox.popleft()
                    num_unfinished -= output.completion is not None
                    yield output
                if num_unfinished:
                    self._step()
        finally:
            if any(state.request_id == request_id for state in self._states.values()):
                self.abort_request(request_id)
            self._streams.pop(request_id, None)

    def _step(self) -> None:
        for output in super().step():
            self._streams.get(output.request_id, self._outputs).append(output)
