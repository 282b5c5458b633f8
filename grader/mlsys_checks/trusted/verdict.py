"""The trusted side of a check: draw inputs, hold back what is secret, and judge the arrays that came back."""

from __future__ import annotations

import zlib

import numpy as np

from mlsys_checks.sandboxed.spec import Arrays, Call, Case, Check, Mismatch, bind_partner


def draw_inputs(check: Check, case: Case, seed: int) -> Arrays:
    """The inputs of a case for a seed, the same on every machine; no two checks or cases share a stream."""
    stream = [zlib.crc32(f"{check.name}/{case.name}".encode()), seed]
    rng = np.random.default_rng(stream)
    return check.inputs(rng, case.draw(rng))


def public_inputs(arrays: Arrays) -> Arrays:
    """What may be shown to the learner's code: arrays whose names do not begin with an underscore."""
    return {name: array for name, array in arrays.items() if not name.startswith("_")}


def shown_inputs(check: Check, inputs: Arrays) -> Arrays:
    """What the code of a public case is written from: what a partner knows makes one up there."""
    return public_inputs(inputs) if check.partner is None else inputs


def bind_call(check: Check, inputs: Arrays) -> Call | Check:
    """What to attempt on the public part of `inputs`: the check, with its partner where it has one."""
    return check if check.partner is None else bind_partner(check, check.partner(inputs))


def judge_case(check: Check, case: Case, inputs: Arrays, got: Arrays) -> Mismatch | None:
    """None when `got` is accepted for `inputs` (all of them, private ones included), else what is wrong.

    Of a hidden case nothing is said, so that nobody can write answers into their code: names of arrays may hold inputs.
    """
    mismatch = check.compare(got, check.expect(inputs))
    if mismatch is not None and case.hidden:
        return Mismatch("a case that is not shown fails")
    return mismatch
