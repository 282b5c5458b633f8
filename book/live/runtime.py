"""Put what runs cells in a browser under the site's static files: Pyodide, an editor, and the package's modules.

Pyodide and the editor come from npm, pinned in javascript/package-lock.json. Where npm cannot install them, the site is
built without the buttons that run cells, and a line says so.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

from book.files import tree_hash, write_if_changed
from book.live.alone import list_modules
from book.project import BUILD, ROOT

SOURCE = Path(__file__).parent / "javascript"
PYODIDE = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "pyodide-lock.json", "python_stdlib.zip")
PACKAGE = "package.zip"


def stage(static: Path) -> list[Path]:
    """Write everything into `static`/live; returns its files, or none where npm could not install them."""
    modules = _install()
    if modules is None:
        return []
    folder = static / "live"
    contents = {folder / name: (modules / "pyodide" / name).read_bytes() for name in PYODIDE}
    contents[folder / "editor.js"] = (modules.parent / "editor.min.js").read_bytes()
    contents[folder / PACKAGE] = pack_package()
    for path, content in contents.items():
        write_if_changed(path, content)
    return [*contents]


def download_bytes(static: Path) -> int:
    """Bytes that a browser loads before it can run its first cell; 0 where nothing is staged."""
    files = (static / "live" / name for name in (*PYODIDE, PACKAGE))
    return sum(file.stat().st_size for file in files if file.exists())


def pack_package() -> bytes:
    """A ZIP archive of the modules of `mlsys_lab` that the browser can import, their tables, and the session."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(_package_files()):
            _add(archive, file.relative_to(ROOT).as_posix(), file)
        _add(archive, "live_session.py", Path(__file__).with_name("session.py"))
    return packed.getvalue()


def _package_files() -> Iterator[Path]:
    for module in list_modules():
        path = ROOT.joinpath(*module.split("."))
        yield path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if path.is_dir():
            yield from path.glob("*.toml")


def _add(archive: zipfile.ZipFile, name: str, file: Path) -> None:
    """Add a file with a fixed date, so that equal files make equal archives."""
    entry = zipfile.ZipInfo(name)
    entry.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(entry, file.read_bytes())


def _install() -> Path | None:
    """The folder of the npm packages, with the bundled editor next to it; None if npm is missing or fails."""
    pinned = [SOURCE / name for name in ("package.json", "package-lock.json", "editor.js")]
    folder = BUILD / "live" / tree_hash(pinned, SOURCE)
    modules = folder / "node_modules"
    if (folder / "editor.min.js").is_file():
        return modules
    shutil.rmtree(folder.parent, ignore_errors=True)
    folder.mkdir(parents=True)
    for file in pinned:
        shutil.copyfile(file, folder / file.name)
    bundle = [
        modules / ".bin" / "esbuild",
        "editor.js",
        "--bundle",
        "--minify",
        "--format=esm",
        "--outfile=editor.min.js",
    ]
    scripts = Path(sys.executable).parent  # pip installs npm and node there
    path = os.pathsep.join([str(scripts), os.environ.get("PATH", "")])
    try:
        for command in (["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], bundle):
            subprocess.run(
                command, cwd=folder, env=os.environ | {"PATH": path}, check=True, capture_output=True, text=True
            )
    except (OSError, subprocess.CalledProcessError) as error:
        why = (getattr(error, "stderr", "") or str(error)).strip().splitlines()
        print(f"the site's cells will have no Run button: npm failed: {why[0] if why else error}", file=sys.stderr)
        (folder / "editor.min.js").unlink(missing_ok=True)
        return None
    return modules
