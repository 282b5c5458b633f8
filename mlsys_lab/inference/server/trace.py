"""Trace of a server: a line of JSON for each step and each finished request, for the simulator."""

from __future__ import annotations

import json
import time
from pathlib import Path

from mlsys_lab.errors import InputError
from mlsys_lab.inference.engine import SchedulerOutput


class TraceWriter:
    """Appends to a trace that `simulator.read_trace` and `simulator.read_steps` read; times count from here on."""

    def __init__(self, path: str) -> None:
        try:
            self.file = Path(path).open("a", encoding="utf-8", buffering=1)  # noqa: SIM115  # open as long as the engine
        except OSError as error:
            raise InputError("the trace cannot be written", got=path, help=error.strerror or str(error)) from None
        self.started_s = time.monotonic()

    def now_s(self) -> float:
        """Seconds since the trace was started."""
        return time.monotonic() - self.started_s

    def write_step(self, step_s: float, output: SchedulerOutput) -> None:
        """Note a step that has ended: its seconds, and new and cached tokens of each sequence."""
        parts = [[n, max(0, seq.num_computed_tokens - n)] for seq, n in output.num_scheduled_tokens.items()]
        self._write({"step_s": step_s, "parts": parts})

    def write_request(self, time_s: float, prompt: list[int], num_output_tokens: int) -> None:
        """Note a sequence that has finished, with the time at which it arrived."""
        self._write({"time_s": time_s, "prompt": prompt, "num_output_tokens": num_output_tokens})

    def _write(self, fields: dict[str, object]) -> None:
        self.file.write(json.dumps(fields) + "\n")
