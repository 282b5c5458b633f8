from __future__ import annotations

import os
from pathlib import Path

from book.files import remove_others, tree_hash, write_if_changed


def test_an_unchanged_file_keeps_its_time(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "a.txt"
    assert write_if_changed(path, b"one")
    os.utime(path, (1, 1))
    assert not write_if_changed(path, b"one")
    assert path.stat().st_mtime == 1
    assert write_if_changed(path, b"two")
    assert path.read_bytes() == b"two"


def test_only_files_to_keep_stay(tmp_path: Path) -> None:
    keep, drop = tmp_path / "a" / "keep", tmp_path / "a" / "drop"
    for path in (keep, drop):
        write_if_changed(path, b"")
    remove_others(tmp_path, {keep})
    assert keep.exists() and not drop.exists()


def test_a_hash_follows_names_and_contents_but_not_order(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    a.write_bytes(b"1")
    b.write_bytes(b"2")
    first = tree_hash([a, b], tmp_path)
    assert tree_hash([b, a], tmp_path) == first
    a.write_bytes(b"12")
    b.write_bytes(b"")
    assert tree_hash([a, b], tmp_path) != first  # the same bytes in a row, in other files
    b.write_bytes(b"2")
    a.write_bytes(b"1")
    assert tree_hash([a.rename(tmp_path / "c"), b], tmp_path) != first
