"""The option `--swap LAYER=KIND` of the commands that run on your stack."""

from __future__ import annotations

from collections.abc import Iterable

from mlsys_lab.errors import InputError


def read_swaps(given: Iterable[str] | None) -> dict[str, str]:
    """Kinds by layer; InputError for what is not LAYER=KIND."""
    swaps = {}
    for text in given or []:
        layer, equals, kind = text.partition("=")
        if not equals:
            raise InputError("--swap takes a layer and a kind", got=repr(text), expected="such as collectives=solved")
        swaps[layer] = kind
    return swaps
