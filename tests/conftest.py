"""Two parts; what is left to the weekly run; a test that cannot run here says so, and in CI that is a failure."""

from __future__ import annotations

import gc
import itertools
import os
import signal
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from mlsys_lab.errors import MissingToolError
from tests.times import add_times, turn_of

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# A busy machine is not a wrong answer.
settings.register_profile("no clock", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("no clock")
ROOT = Path(__file__).parents[1]
NO_GPU = "no CUDA device on this machine"
CASES = 4
"""Cases of a test function that every run has, spread evenly over all; the others are left to the weekly run."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--pictures", metavar="DIR", help="where the browser tests leave the README's pictures")
    parser.addoption("--part", choices=("spread", "alone"), help="only tests that bear others beside them, or the rest")
    parser.addoption("--weekly", action="store_true", help="also tests of which every run has a sample")
    parser.addoption("--times", metavar="FILE", type=Path, help="where to append each test's seconds")


def pytest_configure() -> None:
    """Take SIGINT where the suite runs in the background: what a test starts would inherit that it is ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Of the whole suite, the part of tests that stand alone reads no file without one: that spares half a minute."""
    if config.getoption("part") != "alone" or config.args_source is not config.ArgsSource.TESTPATHS:
        return None
    is_test = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
    return True if is_test and "mark.alone" not in collection_path.read_text(encoding="utf-8") else None


def _is_wanted(item: pytest.Item, config: pytest.Config) -> bool:
    """Whether a test is of the part asked for, and is not left to the weekly run."""
    if item.get_closest_marker("weekly") and not config.getoption("weekly"):
        return False
    part = config.getoption("part")
    return part is None or (part == "alone") == (item.get_closest_marker("alone") is not None)


def _leave_cases_to_the_weekly_run(items: list[pytest.Item]) -> None:
    functions: dict[str, list[pytest.Item]] = {}
    for item in items:
        if not item.get_closest_marker("weekly") and not item.get_closest_marker("every_case"):
            functions.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cases in functions.values():
        always = {round(i * (len(cases) - 1) / (CASES - 1)) for i in range(CASES)}
        for number, item in enumerate(cases):
            if number not in always:
                item.add_marker(pytest.mark.weekly)


def _keep_wanted(items: list[pytest.Item], config: pytest.Config) -> None:
    wanted = [_is_wanted(item, config) for item in items]
    config.hook.pytest_deselected(items=[item for item, kept in zip(items, wanted, strict=True) if not kept])
    items[:] = itertools.compress(items, wanted)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector off what is imported and collected here: it stays, and to walk it takes a second."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark what opens a page: whoever asks for the browser, or for what asks for it, needs Chromium."""
    if "browser" in getattr(item, "fixturenames", ()):
        item.add_marker(pytest.mark.browser)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item], config: pytest.Config) -> None:
    if not config.getoption("keyword"):  # tests that are asked for by name run with all of their cases
        _leave_cases_to_the_weekly_run(items)
    _keep_wanted(items, config)
    # Side by side what takes longest comes first, so that all processes end at about the same time; else it comes last.
    items.sort(key=lambda item: turn_of(str(item.path.relative_to(ROOT))), reverse=config.getoption("part") != "spread")
    gpu_tests = [item for item in items if item.get_closest_marker("gpu")]
    if gpu_tests:
        import torch

        if not torch.cuda.is_available():
            for item in gpu_tests:
                item.add_marker(pytest.mark.skip(reason=NO_GPU))


def _unexpected_skips(reporter: pytest.TerminalReporter) -> list[pytest.TestReport]:
    return [report for report in reporter.stats.get("skipped", []) if NO_GPU not in str(report.longrepr)]


def pytest_sessionfinish(session: pytest.Session) -> None:
    gc.unfreeze()
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("CI") and reporter and _unexpected_skips(reporter):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if (file := config.getoption("--times")) and not hasattr(config, "workerinput"):  # who spreads them has them all
        listed = [report for reports in terminalreporter.stats.values() for report in reports]
        add_times((report for report in listed if isinstance(report, pytest.TestReport)), file)
    for report in _unexpected_skips(terminalreporter):
        terminalreporter.write_line(f"NOT RUN HERE: {report.nodeid}", red=True, bold=True)


@pytest.fixture(scope="session")
def jupyter_path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The `JUPYTER_PATH` with which notebooks run in warm kernels."""
    from tests.warm.kernels import serve_kernels

    folder = tmp_path_factory.mktemp("jupyter")
    server = serve_kernels(folder)
    yield folder
    server.close()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Chromium, started once for all tests that look at a page."""
    from playwright.sync_api import expect

    from book.browser import chromium, find_chromium
    from tests.pages import PATIENCE_MS

    try:
        find_chromium()
    except MissingToolError as error:
        pytest.skip(str(error))
    expect.set_options(timeout=PATIENCE_MS)
    with chromium() as running:
        yield running
