"""Blocks of a paged cache: who uses each, which are free, and which still hold a prefix that may be asked for again."""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Sequence

from mlsys_lab.errors import InputError

Digest = bytes


def chain(before: Digest, tokens: Sequence[int]) -> Digest:
    """SHA-256 of a block's tokens and of all before them: `before` is the digest of the block before, at first `root`.

    Keys and values depend on every token before them, so equal blocks with different beginnings must not be mistaken.
    """
    return hashlib.sha256(before + array("q", tokens).tobytes()).digest()


def root(adapter: str | None) -> Digest:
    """What stands before the first block of a text: b"", or the SHA-256 of the adapter's name that the text is under.

    Keys and values depend on the weights that made them, so equal texts under different adapters share nothing.
    """
    return b"" if adapter is None else hashlib.sha256(adapter.encode()).digest()


class BlockManager:
    """Reference counts of blocks 0 to count - 1, and what unreferenced ones hold (PagedAttention, arXiv:2309.06180).

    A block whose content has a digest keeps it when its last reference goes, and can be found and shared again until it
    is evicted: blank blocks are given out first, then the one released longest ago.
    """

    def __init__(self, count: int) -> None:
        self.references = [0] * count
        self._blank = list(range(count))[::-1]
        self._evictable: OrderedDict[int, None] = (
            OrderedDict()
        )  # unreferenced with a digest, released longest ago first
        self._digests: dict[int, Digest] = {}
        self._blocks: dict[Digest, int] = {}

    @property
    def available(self) -> int:
        """Number of blocks that can be given out: blank or evictable."""
        return len(self._blank) + len(self._evictable)

    @property
    def used(self) -> int:
        """Number of blocks that some sequence refers to."""
        return len(self.references) - self.available

    @property
    def kept(self) -> list[int]:
        """Blocks without a reference that still hold a prefix, the first to be evicted first."""
        return list(self._evictable)

    def allocate(self) -> int:
        """Give out a block with one reference, evicting a prefix if it must be; InputError where none is left."""
        if not self.available:
            raise InputError("no block is left", got=f"{len(self.references)} in use", help="drop a sequence")
        if self._blank:
            block = self._blank.pop()
        else:
            block, _ = self._evictable.popitem(last=False)
            self.forget(block)
        self.references[block] = 1
        return block

    def share(self, block: int) -> None:
        """Add a reference to a block, in use or evictable."""
        self._evictable.pop(block, None)
        self.references[block] += 1

    def release(self, block: int) -> None:
        """Take a reference away; with the last one the block can be given out again."""
        self.references[block] -= 1
        if self.references[block] == 0:
            if block in self._digests:
                self._evictable[block] = None
            else:
                self._blank.append(block)

    def register(self, block: int, digest: Digest) -> None:
        """Say what a block in use holds, unless another block that holds as much is known already."""
        if digest not in self._blocks and block not in self._digests:
            self._blocks[digest], self._digests[block] = block, digest

    def forget(self, block: int) -> None:
        """Say that a block no longer holds what it was registered with."""
        digest = self._digests.pop(block, None)
        if digest is not None:
            del self._blocks[digest]

    def find(self, digest: Digest) -> int | None:
        """Block that holds what this digest stands for, or None."""
        return self._blocks.get(digest)
