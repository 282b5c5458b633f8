"""Bytes that come close to what each target understands, so that they get past its first line."""

import io
import json
import struct
import warnings
import zipfile

from hypothesis import strategies as st

from mlsys_grader.sandbox.inside.wire import DTYPES, MAGIC

TEXT = st.text(max_size=40) | st.sampled_from(["\ud800", "\0", "../", "a" * 2000, "NaN", "‮", "</script>"])
SCALARS = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | TEXT
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4), max_leaves=12
)
SPLICES = st.sampled_from(
    [
        b"",
        b"\0",
        b"\xff",
        b"[" * 5000,
        b'{"a":' * 3000,
        b"9" * 5000,
        b"1e999",
        b"NaN",
        b"-Infinity",
        b'"\\ud800"',
        b"\r\n",
    ]
)


def dumped(value) -> bytes:
    """JSON, with what JSON has no right to as well: NaN, lone surrogates."""
    return json.dumps(value).encode("utf-8", "surrogatepass")


@st.composite
def mutated(draw, original: bytes) -> bytes:
    """A sound file with a few bytes changed, cut out, doubled or put in."""
    data = bytearray(original)
    for _ in range(draw(st.integers(0, 6))):
        if not data:
            break
        at = draw(st.integers(0, len(data) - 1))
        match draw(st.sampled_from(["byte", "word", "cut", "double", "splice", "end"])):
            case "byte":
                data[at] = draw(st.integers(0, 255))
            case "word":
                word = struct.pack("<I", draw(st.sampled_from([0, 1, 0x7FFFFFFF, 0xFFFFFFFF, 0xFFFF, len(data)])))
                data[at : at + 4] = word
            case "cut":
                del data[at : at + draw(st.integers(1, 200))]
            case "double":
                data[at:at] = data[at : at + draw(st.integers(1, 200))]
            case "splice":
                data[at:at] = draw(SPLICES)
            case "end":
                del data[at:]
    return bytes(data)


@st.composite
def replaced(draw, document) -> bytes:
    """A JSON document in which a few values, wherever they stand, are others, gone or there twice."""
    document = json.loads(json.dumps(document))
    for _ in range(draw(st.integers(0, 5))):
        place, inner = document, document
        while isinstance(inner, dict | list) and inner and draw(st.integers(0, 4)):
            place = inner
            key = draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
            inner = place[key]
        if place is inner or not isinstance(place, dict | list):
            continue
        match draw(st.sampled_from(["other", "gone", "twice", "renamed"])):
            case "other":
                place[key] = draw(VALUES)
            case "gone":
                del place[key]
            case "twice" if isinstance(place, list):
                place.insert(key, place[key])
            case "renamed" if isinstance(place, dict):
                place[draw(TEXT)] = place.pop(key)
    return dumped(document)


SHAPES = st.lists(st.integers(-1, 9) | st.sampled_from([2**22, 2**31, 2**63, 10**30, True, 1.0, None]), max_size=10)
SHAPES |= st.lists(st.sampled_from([0, 1, 2**22]), max_size=8)  # of nothing, but long
ENTRIES = st.lists(st.lists(VALUES, max_size=4), max_size=4) | st.lists(
    st.tuples(TEXT, st.sampled_from([*DTYPES, "object", "O", "U4", "complex64"]), SHAPES), max_size=4
)
HEADERS = VALUES | st.fixed_dictionaries({"kind": TEXT | VALUES, "meta": VALUES, "arrays": ENTRIES})


@st.composite
def frame_bytes(draw) -> bytes:
    """One to three frames: mostly right in their outer form, with lengths that lie and bodies that end early."""
    pieces = []
    for _ in range(draw(st.integers(1, 3))):
        header = dumped(draw(HEADERS))
        length = draw(st.sampled_from([len(header)] * 6 + [0, len(header) + 1, 0xFFFFFFFF]))
        magic = draw(st.sampled_from([MAGIC] * 8 + [b"MLS2", b"\0\0\0\0"]))
        pieces.append(struct.pack("<4sI", magic, length) + header + draw(st.binary(max_size=300)))
    return b"".join(pieces)


ODD_NAMES = """
ada/01-tiny.ipynb|../../evil.ipynb|/etc/evil.ipynb|a\\..\\b.ipynb|.ipynb|/.ipynb|01-tiny.ipynb|_.ipynb|zoë/名前.ipynb|ada/
Ada_4711_assignsubmission_file_/x.ipynb|doe_LATE_1_2_01-tiny-9.ipynb|\x1b[2J.ipynb|con.ipynb|ada/01-tiny (٣).ipynb
ada/01-tiny-²².ipynb|ada/.. /x.ipynb|a_٣_assignsubmission_file_x.ipynb|__MACOSX/x.ipynb|ada//x.ipynb|./x.ipynb
"""
NAMES = (
    st.sampled_from([*ODD_NAMES.strip().replace("\n", "|").split("|"), "x" * 300 + ".ipynb", "a/" * 200 + "x.ipynb"])
    | st.text(max_size=30).map(lambda text: f"{text}.ipynb")
)  # fmt: skip


@st.composite
def zip_bytes(draw) -> bytes:
    """An archive of odd names and methods, then damaged on the level of bytes."""
    file = io.BytesIO()
    methods = [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]
    with zipfile.ZipFile(file, "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of names that come twice
        for _ in range(draw(st.integers(0, 4))):
            name = draw(NAMES).encode("utf-8", "replace").decode().replace("\0", "")
            entry = zipfile.ZipInfo(name or "x.ipynb")
            entry.external_attr = draw(st.sampled_from([0o100644, 0o120777, 0o040755, 0o010644, 0])) << 16
            entry.comment = draw(st.binary(max_size=20))
            entry.extra = draw(st.sampled_from([b"", b"\x01\x00\x08\x00" + b"\xff" * 8, b"\x75\x70\x05\x00\x01abcd"]))
            entry.compress_type = draw(st.sampled_from(methods))
            archive.writestr(entry, draw(st.binary(max_size=200) | st.just(b"{}" * 2000)))
    return draw(mutated(file.getvalue()))
