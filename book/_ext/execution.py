"""Executes pages side by side before they are read: MyST-NB executes one at a time, and most of a build is spent there.

What is executed goes into MyST-NB's cache, where it finds the page when it reads it. A page that fails is not kept:
MyST-NB executes it again, and tells what is wrong as it tells of any other page.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from jupyter_cache import get_cache
from jupyter_cache.base import CacheBundleIn
from jupyter_cache.cache.main import JupyterCacheBase
from jupyter_cache.executors.utils import ExecutionResult, single_nb_execution
from myst_nb.core.read import create_nb_reader
from nbformat import NotebookNode
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

MOST = 4
"""Pages that are executed at a time: each has a process with torch in it, of half a gigabyte."""


def read_notebook(env: BuildEnvironment, page: str) -> NotebookNode | None:
    """The page as MyST-NB reads it, or None where it has no cells to execute."""
    path = env.doc2path(page)
    text = Path(path).read_text(encoding="utf-8")
    reader = create_nb_reader(path, env.myst_config, env.mystnb_config, text)
    is_excluded = any(Path(path).match(one) for one in env.mystnb_config.execution_excludepatterns)
    return None if reader is None or is_excluded else reader.read(text)


def _is_cached(cache: JupyterCacheBase, notebook: NotebookNode) -> bool:
    with suppress(KeyError):
        cache.match_cache_notebook(notebook)
        return True
    return False


def execute_pages(app: Sphinx, env: BuildEnvironment, pages: list[str]) -> None:
    """Execute those of the pages that the cache lacks, each in a process of its own, as many at a time as cores."""
    settings = env.mystnb_config
    if settings.execution_mode != "cache":
        return
    cache = get_cache(settings.execution_cache_path)
    found = {page: read_notebook(env, page) for page in sorted(pages, reverse=True)}  # late chapters take longest
    wanted = {page: one for page, one in found.items() if one is not None and not _is_cached(cache, one)}

    def execute(page: str) -> ExecutionResult:
        folder = Path(env.doc2path(page)).parent
        return single_nb_execution(
            wanted[page], cwd=str(folder), timeout=settings.execution_timeout, allow_errors=False
        )

    with ThreadPoolExecutor(min(MOST, max(2, os.cpu_count() or 1))) as pool:
        for page, result in zip(wanted, pool.map(execute, wanted), strict=True):
            if result.err is None:
                bundle = CacheBundleIn(wanted[page], env.doc2path(page), data={"execution_seconds": result.time})
                cache.cache_notebook_bundle(bundle, check_validity=False, overwrite=True)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.connect("env-before-read-docs", execute_pages)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
