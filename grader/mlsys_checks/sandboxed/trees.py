"""Trees of named arrays, and the flat dictionary as which they cross.

Only named arrays cross between the sandboxed and the trusted side. A leaf's name is its path, joined by a separator
that no part may contain, so nothing needs escaping or parsing.
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
"""Names to arrays or trees. `flatten` also accepts numbers and strings as leaves."""


def flatten(tree: Mapping[str, Any]) -> Arrays:
    """Flatten a tree to arrays by path: numbers become 0-d arrays, strings bytes; empty branches vanish."""
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
    """Inverse of `flatten`; `InputError` if a path continues beyond a leaf."""
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
