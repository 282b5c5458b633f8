"""scikit-learn's handwritten digits without the second that importing scikit-learn takes."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np


@cache
def digits() -> tuple[np.ndarray, np.ndarray]:
    """1,797 images (n, 64) of 0 to 16 in float64 and their classes (n,) in int64; not to be written to.

    Reads the file that scikit-learn brings, or asks scikit-learn should a release keep it elsewhere.
    """
    spec = find_spec("sklearn")
    folder = Path(spec.submodule_search_locations[0]) if spec and spec.submodule_search_locations else Path()
    file = folder / "datasets" / "data" / "digits.csv.gz"
    if file.is_file():
        table = np.loadtxt(file, delimiter=",")
        return table[:, :-1], table[:, -1].astype(np.int64)
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    return images, labels.astype(np.int64)
