"""Pages of the labs: the released notebooks, byte for byte."""

from __future__ import annotations

from pathlib import Path

from book.files import remove_others, write_if_changed
from mlsys_lab.errors import InputError
from mlsys_lab.stack.labinfo import released_labs


def stage(labs: Path, target: Path) -> None:
    """Copy every released notebook under `labs` to `target`/NN-topic.ipynb, and drop those that are no longer released.

    Raises:
        InputError: a lab.toml is wrong, or no lab has been released.
    """
    wanted = {target / lab.notebook.name: lab.notebook for lab in released_labs(labs)}
    if not wanted:
        raise InputError(f"no released labs in {labs}", help="make labs")
    for copy, source in wanted.items():
        write_if_changed(copy, source.read_bytes())
    remove_others(target, set(wanted))
