"""Judge on this machine: one sandbox, and threads that wait for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from types import TracebackType

from mlsys_grader.engines import Result, Task
from mlsys_grader.judging.judge import judge
from mlsys_grader.judging.oracle import OracleServer
from mlsys_grader.sandbox.sandbox import Sandbox

PREFETCH = 2
"""Tasks queued beyond those being judged. Tasks still in the iterable take no memory."""


class LocalEngine:
    """Judge `workers` submissions at a time in a running sandbox; `time_factor` scales every time limit.

    Waits for the sandbox, and raises its `CourseError` if it cannot start; oracles warm up meanwhile. Close it, or use
    it as a context manager.
    """

    def __init__(self, sandbox: Sandbox, *, workers: int = 1, time_factor: float = 1.0) -> None:
        self.sandbox = sandbox
        self.workers = workers
        self.time_factor = time_factor
        self._oracles = OracleServer(sandbox.lab)
        try:
            sandbox.wait()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> LocalEngine:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the trusted process, even during a comparison."""
        self._oracles.close()

    def judge_all(self, tasks: Iterable[Task]) -> Iterator[Result]:
        """Yield one result per task; a task that raises gives a result with an error. Takes tasks as needed."""
        pool = ThreadPoolExecutor(self.workers, thread_name_prefix="judge")
        pending: set[Future[Result]] = set()
        try:
            for task in tasks:
                pending.add(pool.submit(self._judge, task))
                if len(pending) >= self.workers + PREFETCH:
                    ready, pending = wait(pending, return_when=FIRST_COMPLETED)
                    yield from (future.result() for future in ready)
            while pending:
                ready, pending = wait(pending, return_when=FIRST_COMPLETED)
                yield from (future.result() for future in ready)
        finally:
            pool.shutdown(wait=not pending, cancel_futures=True)  # if cut off, do not wait for running tasks

    def _judge(self, task: Task) -> Result:
        try:
            verdicts = judge(task.artifact, self.sandbox, self._oracles, time_factor=self.time_factor, seeds=task.seeds)
        except Exception as error:  # one submission must not stop the others
            return Result(task.student, error=f"{type(error).__name__}: {error}")
        return Result(task.student, tuple(verdicts))
