"""`mlsys-lab serve`, as far as its command line goes; servers are in `tests/inference/server`."""

from __future__ import annotations

from collections.abc import Callable

Call = Callable[..., tuple[int, str, str]]


def test_replicas_belong_to_ray(call: Call) -> None:
    for options, words in (
        (("--replicas", "2"), "--replicas is of --engine ray: got 2; help: add --engine ray"),
        (("--engine", "ray", "--replicas", "0"), "num_replicas must be at least 1: got 0"),
    ):
        code, out, err = call("serve", *options)
        assert (code, out) == (1, "") and words in err and len(err.splitlines()) == 1
