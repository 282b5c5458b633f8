"""Build hook of Hatch: put the exported cells of the solved labs into the wheel, for `mlsys_lab.stack`.

`HATCH_BUILD_NO_HOOKS=1` builds a wheel without them.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class SolvedLabs(BuildHookInterface):
    """Export each solved lab into mlsys_lab/_solved."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the modules to a folder of their own, and add them to what the wheel holds."""
        sys.path.insert(0, self.root)
        from mlsys_lab.stack.solved import export_solved

        self.exported = TemporaryDirectory()
        for source in sorted(Path(self.root, "solutions").glob("*/*.py")):
            module = Path(self.exported.name, source.name)
            module.write_text(export_solved(source.read_text(encoding="utf-8")).strip() + "\n", encoding="utf-8")
            build_data["force_include"][str(module)] = f"mlsys_lab/_solved/{source.name}"
