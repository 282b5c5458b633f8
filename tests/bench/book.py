"""How long the site takes to build: cold, and again after one page was edited. In a copy of the tracked files."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
COLD_S, AGAIN_S = 90.0, 15.0
EDITED = "book/chapters/01-introduction.md"


def copy_tracked(target: Path) -> None:
    """What a fresh clone would hold, with uncommitted changes."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target / name)


def build_s(checkout: Path) -> float:
    """Seconds of one `make book` in the copy."""
    start = time.monotonic()
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    subprocess.run([sys.executable, "book/build.py", "--quiet"], cwd=checkout, env=environment, check=True)
    return time.monotonic() - start


def main() -> int:
    """Print asked and measured; 1 when a goal is missed."""
    with tempfile.TemporaryDirectory() as folder:
        checkout = Path(folder)
        copy_tracked(checkout)
        cold = build_s(checkout)
        with (checkout / EDITED).open("a", encoding="utf-8") as page:
            page.write("\nOne more sentence.\n")
        again = build_s(checkout)
    print(f"{'goal':42}{'asked':>10}{'measured':>12}")
    for goal, asked, measured in (
        ("cold build of the site", COLD_S, cold),
        ("the same after editing one page", AGAIN_S, again),
    ):
        print(f"{goal:42}{asked:>8.0f} s{measured:>10.1f} s{'' if measured <= asked else '   MISSED'}")
    return int(cold > COLD_S or again > AGAIN_S)


if __name__ == "__main__":
    sys.exit(main())
