"""Structure among arrays with names: a tree of dictionaries, and the flat dictionary as which it crosses.

Only arrays with names cross between the sandboxed and the trusted side. A leaf's name is then its path, whose parts
stand between separators. No part may hold the separator, so nothing has to be escaped, and no words are parsed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from mlsys_checks.sandboxed.spec import Arrays
from mlsys_checks.sandboxed.values import encode_text
from mlsys_lab.errors import InputError

SEPARATOR = "\N{SYMBOL FOR UNIT SEPARATOR}"
Tree = dict[str, Any]
"""Names to arrays, or to trees. `flatten` also takes numbers and texts for arrays."""


def flatten(tree: Mapping[str, Any]) -> Arrays:
    """The leaves of a tree as arrays by their paths: numbers without axes, texts as bytes; empty branches vanish."""
    found: Arrays = {}
    for name, value in tree.items():
        if SEPARATOR in name:
            raise InputError("a name among arrays holds the separator of paths", got=repr(name))
        if isinstance(value, Mapping):
            found |= {f"{name}{SEPARATOR}{path}": leaf for path, leaf in flatten(value).items()}
        else:
            found[name] = encode_text(value) if isinstance(value, str) else np.asarray(value)
    return found


def nest(arrays: Arrays) -> Tree:
    """The tree whose leaves these arrays are; `InputError` where a path goes on beyond a leaf."""
    tree: Tree = {}
    for path, array in arrays.items():
        *above, name = path.split(SEPARATOR)
        branch = tree
        for part in above:
            branch = branch.setdefault(part, {})
            if not isinstance(branch, dict):
                raise InputError("an array's path goes on beyond another array", got=repr(path))
        if name in branch:
            raise InputError("an array's path ends at a branch", got=repr(path))
        branch[name] = array
    return tree
