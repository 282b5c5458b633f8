"""Kernels of notebooks that are forked from a process with torch in it, which each would take seconds to import.

Whoever looks for the kernel `python3` finds these first while `JUPYTER_PATH` is the folder that is written here.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.warm.forks import ForkServer

KERNEL = Path(__file__).with_name("kernel.py")
IMPORTS = "import ipykernel.kernelapp, ipykernel.ipkernel, numpy, torch, plotly.graph_objects, ipywidgets"


def serve_kernels(folder: Path) -> ForkServer:
    """Start the server, and write the kernel's specification into a folder for `JUPYTER_PATH`."""
    server = ForkServer(IMPORTS)
    spec = {
        "argv": [sys.executable, str(KERNEL), server.address, "-f", "{connection_file}"],
        "display_name": "Python 3 (ipykernel)",
        "language": "python",
    }
    (folder / "kernels" / "python3").mkdir(parents=True)
    (folder / "kernels" / "python3" / "kernel.json").write_text(json.dumps(spec), encoding="utf-8")
    return server
