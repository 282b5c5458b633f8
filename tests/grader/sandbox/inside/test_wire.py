import contextlib
import json
import socket
import struct
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from mlsys_checks.sandboxed.attempt import DTYPES, MAX_ARRAYS
from mlsys_grader.sandbox.inside import wire
from tests.grader.processes import soon


@pytest.fixture
def pair():
    left, right = socket.socketpair()
    yield left, right
    left.close()
    right.close()


def raw(header, body=b"", magic=b"MLS1", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<4sI", magic, len(text) if length is None else length) + text + body


def listing(*entries):
    return {"kind": "answer", "meta": {}, "arrays": list(entries)}


@settings(max_examples=50)
@given(
    st.dictionaries(
        st.text("abc x@.", min_size=1, max_size=9).filter(str.isprintable),
        arrays.arrays(st.sampled_from(sorted(wire.DTYPES)), arrays.array_shapes(min_dims=0, min_side=0, max_side=4)),
        max_size=3,
    )
)
def test_arrays_cross_unchanged(sent):
    left, right = socket.socketpair()
    with left, right:
        wire.send(left, wire.Frame("case", {"n": 1}, sent), deadline=soon())
        got = wire.receive(right, deadline=soon())
    assert (got.kind, got.meta, list(got.arrays)) == ("case", {"n": 1}, list(sent))
    for name, array in sent.items():
        assert got.arrays[name].dtype == array.dtype
        assert got.arrays[name].shape == array.shape
        assert got.arrays[name].tobytes() == array.tobytes()


def test_arrays_that_are_not_contiguous_cross(pair):
    array = np.arange(12).reshape(3, 4).T[::2]
    wire.send(pair[0], wire.Frame("case", arrays={"x": array}), deadline=soon())
    assert np.array_equal(wire.receive(pair[1], deadline=soon()).arrays["x"], array)


@pytest.mark.parametrize(
    "array", [np.array([object()]), np.array(["text"]), np.zeros(2, complex), np.zeros(2, ">f4").astype("f16")]
)
def test_other_dtypes_are_not_sent(pair, array):
    with pytest.raises(wire.WireError, match="dtype"):
        wire.send(pair[0], wire.Frame("case", arrays={"x": array}), deadline=soon())


@pytest.mark.parametrize(
    "message",
    [
        raw(listing(), magic=b"HTTP"),
        raw(listing(), length=2**32 - 1),
        raw(b"\xff\xfe{}"),
        raw(b"[" * 100_000),
        raw(b'{"kind": "a", "meta": {"x": NaN}, "arrays": []}'),
        raw([]),
        raw({"kind": "a", "meta": {}}),
        raw({"kind": 1, "meta": {}, "arrays": []}),
        raw({"kind": "a", "meta": [], "arrays": []}),
        raw(listing(["x", "object", [1]]), b"\0" * 8),
        raw(listing(["x", "O", [1]]), b"\0" * 8),
        raw(listing(["x", "float64", [-1]])),
        raw(listing(["x", "float64", [True]]), b"\0" * 8),
        raw(listing(["x", "float64", [1.0]]), b"\0" * 8),
        raw(listing(["x", "float64", [1] * 9]), b"\0" * 8),
        raw(listing(["x", "float64", [2**40]])),
        raw(listing(["x", "float64", [0, 2**70]])),
        raw(listing(["x", "float64", [2**20, 2**20]])),
        raw(listing(["x", "float64", [0, 2**22, 2**22, 2**22]])),
        raw(listing(["x", "int8", [2**22, 2**22, 2**22, 0]])),
        raw(listing(["x\n", "float64", [0]])),
        raw(listing(["", "float64", [0]])),
        raw(listing([7, "float64", [0]])),
        raw(listing(["x", "float64", [0]], ["x", "float64", [0]])),
        raw(listing("xyz")),
        raw(listing(*([f"x{i}", "int8", [0]] for i in range(300)))),
    ],
)
def test_malformed_frames_are_refused(pair, message):
    pair[0].settimeout(0.2)
    with contextlib.suppress(TimeoutError):  # more than the socket holds, which the reader refuses unread
        pair[0].sendall(message)
    with pytest.raises(wire.WireError) as caught:
        wire.receive(pair[1], deadline=soon())
    assert not isinstance(caught.value, wire.ClosedError | wire.DeadlineError)


def test_bytes_that_are_no_bool_become_one(pair):
    pair[0].sendall(raw(listing(["x", "bool", [3]]), b"\x00\x01\x07"))
    assert wire.receive(pair[1], deadline=soon()).arrays["x"].view(np.uint8).tolist() == [0, 1, 1]


def test_received_arrays_can_be_written_to(pair):
    wire.send(pair[0], wire.Frame("case", arrays={"x": np.zeros(3)}), deadline=soon())
    got = wire.receive(pair[1], deadline=soon()).arrays["x"]
    got += 1
    assert got.tolist() == [1, 1, 1]


def test_an_answer_that_a_notebook_takes_crosses_whole():
    assert wire.Limits().arrays == MAX_ARRAYS and set(wire.DTYPES) == DTYPES


def test_a_half_frame_ends_at_the_deadline(pair):
    pair[0].sendall(raw(listing(["x", "int8", [5]]), b"ab"))
    with pytest.raises(wire.DeadlineError):
        wire.receive(pair[1], deadline=time.monotonic() + 0.1)


def test_a_reader_that_does_not_read_ends_at_the_deadline(pair):
    with pytest.raises(wire.DeadlineError):
        wire.send(pair[0], wire.Frame("case", arrays={"x": np.zeros(1 << 22)}), deadline=time.monotonic() + 0.1)


def test_the_end_of_the_other_side_is_told(pair):
    pair[0].sendall(raw(listing())[:5])
    pair[0].close()
    with pytest.raises(wire.ClosedError):
        wire.receive(pair[1], deadline=soon())
