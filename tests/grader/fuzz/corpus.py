"""Where the fuzzer begins: sound files, and files that each once broke something or might well."""

import io
import json
import socket
import struct
import zipfile
from dataclasses import asdict

import numpy as np

from mlsys_grader.gradebook.record import Record
from mlsys_grader.judging.verdict import Verdict
from mlsys_grader.sandbox.inside import wire

DEEP = 100_000


def seeds(lab) -> dict[str, list[bytes]]:
    """Per target, whole files."""
    notebook = json.loads(lab.info.notebook.read_bytes())
    return {"frames": _frames(), "submission": _submissions(notebook), "archive": _archives(), "record": _records()}


def notebook(lab) -> dict:
    """The released notebook, to be altered."""
    return json.loads(lab.info.notebook.read_bytes())


def record() -> dict:
    """A sound record, to be altered."""
    verdicts = (
        Verdict("double", "double", 1, 1, seed=2**63 + 1, time_s=0.1),
        Verdict("mean", "mean", 2, 0, "wrong", "1", "2", "a hint", "no numbers", hidden=True, seed=3),
    )
    return json.loads(json.dumps(asdict(Record("ada", "01-tiny", "d" * 64, "v1", verdicts, notes=("a note",)))))


def sent(frame: wire.Frame) -> bytes:
    """A frame as it crosses."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        wire.send(ours, frame)
        return theirs.recv(1 << 20)


def _raw(header: bytes, body: bytes = b"") -> bytes:
    return struct.pack("<4sI", wire.MAGIC, len(header)) + header + body


def _frames() -> list[bytes]:
    arrays = {"x": np.arange(6, dtype=np.float32).reshape(2, 3), "e": np.zeros((0, 3), bool), "s": np.array(1, "int8")}
    listed = b'{"kind": "answer", "meta": {}, "arrays": [["x", "float64", %s]]}'
    return [
        b"",
        b"MLS1",
        sent(wire.Frame("answer", {"nonce": "0"}, arrays)) * 2,
        _raw(b""),
        _raw(b"[" * DEEP),
        _raw(b'{"kind": "a", "meta": {}, "arrays": []}' + b" " * 70_000),
        _raw(listed % b"[4194304]"),
        _raw(listed % b"[0, 9223372036854775807]"),
        _raw(listed % b"[-1]", bytes(64)),
        _raw(listed % b"[true]", bytes(64)),
        _raw(listed % (b"[" + b"9" * 5000 + b"]")),
        _raw(b'{"kind": "a", "meta": {"x": NaN}, "arrays": []}'),
        _raw(b'{"kind": "\\ud800", "meta": {}, "arrays": []}'),
    ]


def _submissions(notebook: dict) -> list[bytes]:
    cells = notebook["cells"]
    many = {**notebook, "cells": [{"cell_type": "code", "source": "#| export\nx = 1", "metadata": {}}] * 150 + cells}
    odd = [
        {**cell, "cell_type": kind}
        for cell, kind in zip(cells, ["raw", "code", "markdown", 3, None] * 20, strict=False)
    ]
    solved = json.dumps(notebook).replace("raise NotImplementedError", "return x")
    return [
        json.dumps(notebook).encode(),
        solved.encode(),
        json.dumps({**notebook, "cells": cells + cells}).encode(),
        json.dumps({**notebook, "cells": cells[::-1]}).encode(),
        json.dumps({**notebook, "cells": odd}).encode(),
        json.dumps(many).encode(),
        json.dumps({**notebook, "metadata": [], "nbformat": "five"}).encode(),
        b"\xef\xbb\xbf" + solved.encode(),
        solved.encode("utf-16"),
        solved.replace("x", "\\ud800").encode(),
        solved.replace("x", "\\u0000").encode(),
        b"[" * DEEP,
        b'{"cells": ' + b"[" * DEEP,
        b'{"cells": [{"cell_type": "code", "source": [1, [2], null]}], "metadata": {}}',
        b'{"cells": [{"cell_type": "code", "source": "#| export\\n' + b"(" * 5000 + b'", "metadata": {}}]}',
        b"",
        b"null",
    ]


def _archives() -> list[bytes]:
    found = [b"", b"PK\x05\x06" + bytes(18), b"PK\x03\x04", b"PK\x05\x06" + b"\xff" * 18]
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w", method) as archive:
            archive.writestr("ada/01-tiny.ipynb", "{}" * 100)
            archive.writestr("zoë/x.ipynb", "{}")
        found.append(file.getvalue())
    whole = found[-1]
    found.append(whole.replace("zoë".encode(), b"z\xff\xfe\xfd"[:4]))  # a name that says it is UTF-8 and is not
    found.append(whole[:10] + b"\xff\xff" + whole[12:])
    entry = whole.index(b"PK\x01\x02")
    for offset, value in ((6, b"\xff\xff"), (10, b"\x63\x00"), (20, b"\xff" * 8), (42, b"\xff" * 4), (8, b"\x01\x00")):
        found.append(whole[: entry + offset] + value + whole[entry + offset + len(value) :])
    return found


def _records() -> list[bytes]:
    sound = record()
    verdict = sound["verdicts"][0]
    changes = [
        {"verdicts": None},
        {"verdicts": "double"},
        {"verdicts": [{**verdict, "earned": "1"}]},
        {"verdicts": [{**verdict, "earned": float("nan")}]},
        {"verdicts": [{**verdict, "points": float("inf"), "earned": float("inf")}]},
        {"verdicts": [{**verdict, "earned": 10**400}]},
        {"verdicts": [{**verdict, "earned": 7}]},
        {"verdicts": [{**verdict, "earned": -1}]},
        {"verdicts": [{**verdict, "what": None}]},
        {"notes": [1]},
        {"notes": "note"},
        {"student": ["ada"]},
        {"entered": "yes"},
        {"digest": "\ud800"},
    ]
    whole = json.dumps(sound).encode()
    return [whole, whole[:-1], b"[" * DEEP, b"null", *(json.dumps(sound | change).encode() for change in changes)]
