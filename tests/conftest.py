"""Fast tests first; a test that cannot run here says so, and in CI that is a failure."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

SLOW_LAST = ("labs", "grader", "book", "e2e")
settings.register_profile("no deadline", deadline=None)  # a busy machine is not a wrong answer
settings.load_profile("no deadline")
NO_GPU = "no CUDA device on this machine"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--pictures", metavar="DIR", help="where the browser tests leave the README's pictures")


def _slowness(item: pytest.Item) -> int:
    folder = item.path.relative_to(Path(__file__).parent).parts[0]
    return SLOW_LAST.index(folder) + 1 if folder in SLOW_LAST else 0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_slowness)
    gpu_tests = [item for item in items if item.get_closest_marker("gpu")]
    if gpu_tests:
        import torch

        if not torch.cuda.is_available():
            for item in gpu_tests:
                item.add_marker(pytest.mark.skip(reason=NO_GPU))


def _unexpected_skips(reporter: pytest.TerminalReporter) -> list[pytest.TestReport]:
    return [report for report in reporter.stats.get("skipped", []) if NO_GPU not in str(report.longrepr)]


def pytest_sessionfinish(session: pytest.Session) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("CI") and reporter and _unexpected_skips(reporter):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for report in _unexpected_skips(terminalreporter):
        terminalreporter.write_line(f"NOT RUN HERE: {report.nodeid}", red=True, bold=True)
