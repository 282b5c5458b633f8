"""A tree of values crosses as arrays by their paths, and comes back as the tree of arrays."""

from __future__ import annotations

import numpy as np
import pytest

from mlsys_checks.sandboxed.trees import SEPARATOR, flatten, nest
from mlsys_checks.sandboxed.values import decode_text
from mlsys_lab.errors import InputError


def test_a_tree_comes_back_with_arrays_for_leaves() -> None:
    tree = {"y": np.ones(2), "most": {"a kernel: it / reads|x": {"reads x": 3, "at": "line 1"}, "nothing": {}}}
    arrays = flatten(tree)
    assert all(type(array) is np.ndarray and name.isprintable() for name, array in arrays.items())
    back = nest(arrays)
    assert back["y"] is tree["y"]
    assert set(back["most"]) == {"a kernel: it / reads|x"}
    kernel = back["most"]["a kernel: it / reads|x"]
    assert kernel["reads x"].item() == 3 and decode_text(kernel["at"]) == "line 1"
    assert flatten(back).keys() == arrays.keys()


def test_names_without_paths_are_a_tree_of_one_level() -> None:
    arrays = {"x": np.zeros(1), "share of x in x * y": np.ones(1)}
    assert nest(arrays) == arrays and flatten(arrays) == arrays


def test_a_name_that_holds_the_separator_is_refused() -> None:
    with pytest.raises(InputError, match="holds the separator of paths"):
        flatten({"a": {f"b{SEPARATOR}c": 1}})


@pytest.mark.parametrize("paths", [("a", "a/b"), ("a/b", "a"), ("a/b/c", "a/b")])
def test_a_path_through_a_leaf_is_refused(paths: tuple[str, ...]) -> None:
    with pytest.raises(InputError, match="an array's path"):
        nest({path.replace("/", SEPARATOR): np.zeros(1) for path in paths})
