"""The trusted side of a check: draw inputs, withhold private ones, and judge the returned arrays."""

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
    """Inputs that the learner's code may see: arrays whose names do not begin with an underscore."""
    return {name: array for name, array in arrays.items() if not name.startswith("_")}


def shown_inputs(check: Check, inputs: Arrays) -> Arrays:
    """Inputs that the code of a public case is written from, including what its partner knows."""
    return public_inputs(inputs) if check.partner is None else inputs


def bind_call(check: Check, inputs: Arrays) -> Call | Check:
    """The call to attempt on the public part of `inputs`: the check, bound to its partner if it has one."""
    return check if check.partner is None else bind_partner(check, check.partner(inputs))


def judge_case(check: Check, case: Case, inputs: Arrays, got: Arrays) -> Mismatch | None:
    """None if `got` is accepted for `inputs` (private ones included), else the mismatch.

    A hidden case reveals nothing, so that no answer can be hard-coded: names of arrays may contain inputs.
    """
    mismatch = check.compare(got, check.expect(inputs))
    if mismatch is not None and case.hidden:
        return Mismatch("a case that is not shown fails")
    return mismatch
