"""Writing and copying that leaves unchanged files alone, so that Sphinx and browsers see only what changed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path


def write_if_changed(path: Path, content: bytes) -> bool:
    """Write `content` to `path` unless the file holds it already; returns whether anything was written."""
    if path.is_file() and path.read_bytes() == content:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return True


def remove_others(folder: Path, keep: set[Path]) -> None:
    """Delete every file under `folder` that is not in `keep`."""
    for path in folder.rglob("*"):
        if path.is_file() and path not in keep:
            path.unlink()


def tree_hash(files: Iterable[Path], root: Path) -> str:
    """Hash of the files' names (relative to `root`) and contents: 16 hexadecimal digits."""
    digest = hashlib.sha256()
    for path in sorted(files):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()[:16]
