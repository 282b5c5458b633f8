"""Read the last commit of a submitted Git repository as data: no Git command, no configuration, no links.

Only HEAD, refs, packed-refs, loose objects and packs are read, each opened without following links. Alternates,
commondir and pointers to other repositories are ignored, so objects outside the repository are missing. Runs in the
worker of `intake.bounded`, which limits a repository that is endless or grows while it is read.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import BinaryIO, TypeVar

from dulwich.object_format import SHA1
from dulwich.objects import Blob, Commit, ObjectID, ShaFile, Tree
from dulwich.pack import Pack, PackData, load_pack_index_file

from mlsys_grader.intake.found import MAX_ENTRIES, MAX_NOTEBOOKS
from mlsys_grader.intake.nofollow import is_link_error, open_below
from mlsys_grader.intake.platforms import NOTEBOOK, is_hidden, is_too_long
from mlsys_grader.intake.submission import MAX_FILE_BYTES
from mlsys_lab.errors import InputError

MAX_COMMITS = 20_000
"""Commits searched for the last change of a notebook."""
REF_BYTES = 16 << 20
MAX_SYMREFS = 5
"""Symbolic refs from HEAD to a commit."""
MAX_PACKS = 250
"""Packs opened, two files each."""
NOT_ITS_OWN = "its repository is not its own"
REF = re.compile(rb"ref: *(refs(?:/[^/\s]+)+)\s*")
OBJECT = re.compile(rb"([0-9a-f]{40})\s*")
T = TypeVar("T", bound=ShaFile)


def list_notebooks(checkout: Path) -> list[tuple[str, str]]:
    """Path and blob of each notebook in the last commit, sorted by path.

    Raises `InputError` for an unreadable repository, or too many files or notebooks.
    """
    with _open(checkout) as repository:
        seen, found = 0, []
        folders = [(PurePosixPath(), repository.head().tree)]
        while folders:
            folder, tree = folders.pop()
            inner = []
            for name, mode, sha in repository.read(tree, Tree).iteritems():
                if (seen := seen + 1) > MAX_ENTRIES:
                    raise InputError("its repository holds too many files", expected=f"at most {MAX_ENTRIES:,}")
                path = folder / os.fsdecode(name)
                if is_too_long(path):
                    continue
                if stat.S_ISDIR(mode):
                    inner.append((path, sha))
                elif stat.S_ISREG(mode) and NOTEBOOK.search(path.name) and not is_hidden(path):
                    found.append((str(path), sha.decode()))
            if len(found) > MAX_NOTEBOOKS:
                raise InputError("its repository holds too many notebooks", expected=f"at most {MAX_NOTEBOOKS:,}")
            folders += reversed(inner)
        return found


def read_notebook(checkout: Path, blob: str) -> bytes:
    """Read at most MAX_FILE_BYTES + 1 bytes of a blob."""
    with _open(checkout) as repository:
        return repository.read(blob.encode(), Blob).as_raw_string()[: MAX_FILE_BYTES + 1]


def find_commit_time(checkout: Path, path: str) -> str:
    """Time of the last commit that changed a path, in ISO format; "" if unknown.

    Like `git log -1 -- PATH`: a merge that took the path from a parent did not change it. A shallow history ends with
    its first commit.
    """
    names = [os.fsencode(name) for name in PurePosixPath(path).parts]
    with _open(checkout) as repository:
        commit = repository.head()
        for _ in range(MAX_COMMITS):
            blob = repository.find(commit, names)
            parents = (parent for parent in map(repository.parent, commit.parents) if parent is not None)
            same = next((parent for parent in parents if repository.find(parent, names) == blob), None)
            if same is None:
                with contextlib.suppress(ValueError, OverflowError, OSError):
                    return datetime.fromtimestamp(commit.commit_time, UTC).isoformat()
                return ""
            commit = same
        return ""


@contextmanager
def _open(checkout: Path) -> Iterator[_Repository]:
    with ExitStack() as files:
        yield _Repository(checkout, files)


class _Repository:
    """The repository in a checkout's `.git`; `files` closes its files."""

    def __init__(self, checkout: Path, files: ExitStack) -> None:
        self._checkout, self._files = checkout, files
        self._found: dict[bytes, tuple[int, bytes] | None] = {}
        if any(self._open_file(*names) for names in (("commondir",), ("objects", "info", "alternates"))):
            raise InputError(NOT_ITS_OWN)
        self._packs = list(self._open_packs())

    def head(self) -> Commit:
        """The commit of HEAD, directly or through a branch."""
        if (head := self._open_file("HEAD")) is None:
            raise InputError("its folder .git holds no Git repository")
        text = head.read(REF_BYTES)
        for _ in range(MAX_SYMREFS):
            if sha := OBJECT.fullmatch(text):
                return self.read(sha[1], Commit)
            if (ref := REF.fullmatch(text)) is None:
                break
            text = self._read_ref(ref[1])
        if self._has_folder("reftable") or re.fullmatch(rb"[0-9a-f]{64}\s*", text):
            help = "ask for a clone in Git's usual format: `git clone`, without --ref-format and --object-format"
            raise InputError("its repository is in a format that is not read", help=help)
        raise InputError("its repository has no commit")

    def read(self, sha: bytes, kind: type[T]) -> T:
        """Read an object of the given kind; `InputError` if it is missing or damaged."""
        try:
            found = self._find_object(sha)
            if found is not None and found.id != sha:
                raise ValueError("its content is not what its name says")
        except Exception as error:  # zlib, struct and dulwich raise errors of their own
            raise InputError(f"object {sha[:12].decode()} of its Git repository is damaged", got=error) from None
        if not isinstance(found, kind):
            raise InputError(f"object {sha[:12].decode()} of its Git repository is missing")
        return found

    def parent(self, sha: bytes) -> Commit | None:
        """A parent commit; None where a shallow clone ends."""
        try:
            return self.read(sha, Commit)
        except InputError:
            return None

    def find(self, commit: Commit, names: Sequence[bytes]) -> tuple[int, bytes] | None:
        """Mode and name of the object at a path of a commit, or None; always called with the same path."""
        if commit.tree not in self._found:
            mode, sha = stat.S_IFDIR, commit.tree
            for name in names:
                try:
                    mode, sha = self.read(sha, Tree)[name] if stat.S_ISDIR(mode) else (0, b"")
                except KeyError:
                    mode, sha = 0, b""
            self._found[commit.tree] = (mode, sha) if sha else None
        return self._found[commit.tree]

    def _read_ref(self, name: bytes) -> bytes:
        """Content of a branch; b"" if it does not exist yet."""
        parts = os.fsdecode(name).split("/")
        if {".", ".."}.isdisjoint(parts) and (file := self._open_file(*parts)) is not None:
            return file.read(REF_BYTES)
        packed = self._open_file("packed-refs")
        lines = packed.read(REF_BYTES).splitlines() if packed is not None else []
        return next((line[: -len(name)] for line in lines if line.endswith(b" " + name)), b"")

    def _find_object(self, sha: bytes) -> ShaFile | None:
        name = sha.decode()
        if (file := self._open_file("objects", name[:2], name[2:])) is not None:
            with file:
                return ShaFile.from_file(file)
        for pack in self._packs:
            if ObjectID(sha) in pack:
                kind, content = pack.get_raw(ObjectID(sha))
                return ShaFile.from_raw_string(kind, content)
        return None

    def _open_packs(self) -> Iterator[Pack]:
        if not self._has_folder("objects", "pack"):
            return
        descriptor = open_below(self._checkout, (".git", "objects", "pack"), os.O_DIRECTORY)
        try:
            with os.scandir(descriptor) as scan:
                names = sorted(entry.name for entry in scan)
        finally:
            os.close(descriptor)
        for name in [name for name in names if name.endswith(".idx")][:MAX_PACKS]:
            index, data = (
                self._open_file("objects", "pack", file) for file in (name, f"{name.removesuffix('.idx')}.pack")
            )
            if index is not None and data is not None:
                pack = Pack.from_objects(PackData.from_file(data, SHA1), load_pack_index_file(name, index, SHA1))
                self._files.callback(pack.close)
                yield pack

    def _open_file(self, *names: str) -> BinaryIO | None:
        """Open a regular file below .git until the repository is closed; None if there is none."""
        try:
            descriptor = open_below(self._checkout, (".git", *names))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise InputError(NOT_ITS_OWN if is_link_error(error) else f"{error.strerror}: {names[-1]}") from None
        file = self._files.enter_context(os.fdopen(descriptor, "rb"))
        return file if stat.S_ISREG(os.fstat(descriptor).st_mode) else None

    def _has_folder(self, *names: str) -> bool:
        try:
            os.close(open_below(self._checkout, (".git", *names), os.O_DIRECTORY))
        except FileNotFoundError:
            return False
        except OSError:
            raise InputError(NOT_ITS_OWN) from None
        return True
