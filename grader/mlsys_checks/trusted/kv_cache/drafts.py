"""Checks of task 8: which drafts stay, and a step that checks them. Oracle: the rule in exact fractions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from mlsys_checks.sandboxed.kv_cache import steps as calls
from mlsys_checks.sandboxed.spec import Arrays, Case, Check, Mismatch
from mlsys_checks.trusted.compare import close
from mlsys_checks.trusted.kv_cache.oracle import (
    VOCABULARY,
    Texts,
    begin_others,
    draw_others,
    draw_tokens,
    draw_weights,
    end_others,
    write_model,
    write_others,
)

ROWS = 40
"""Steps of a case that are accepted one by one."""


def _draw_distributions(rng: np.random.Generator, *shape: int, temperature: float = 1.0) -> np.ndarray:
    """Distributions over the last axis."""
    weights = np.exp(rng.standard_normal(shape) / temperature)
    spread: np.ndarray = weights / weights.sum(-1, keepdims=True)
    return spread


def _draw_from(rng: np.random.Generator, distributions: np.ndarray) -> np.ndarray:
    """A token of each distribution."""
    below = distributions.cumsum(-1) < rng.random((*distributions.shape[:-1], 1))
    tokens: np.ndarray = below.sum(-1).clip(max=distributions.shape[-1] - 1)
    return tokens


def _take(drafts: list[int], proposed: np.ndarray, wanted: np.ndarray, uniforms: np.ndarray) -> tuple[int, int]:
    """How many drafts stay, and the token after them, by Leviathan's algorithm 1 in exact arithmetic."""
    p, q = ([[Fraction(x) for x in row] for row in rows.tolist()] for rows in (wanted, proposed))
    u = [Fraction(x) for x in uniforms.tolist()]
    stay = 0
    while stay < len(drafts) and u[stay] * q[stay][drafts[stay]] < p[stay][drafts[stay]]:
        stay += 1
    weights = p[stay]
    if stay < len(drafts):
        weights = [max(Fraction(0), a - b) for a, b in zip(p[stay], q[stay], strict=True)]
    weights = weights if any(weights) else p[stay]
    left = u[-1] * sum(weights)
    for token, weight in enumerate(weights):
        left -= weight
        if left < 0:
            return stay, token
    raise AssertionError("a number below 1 is below the sum")


# --- accept -----------------------------------------------------------------------------------------------------------


def _draw_accept(rng: np.random.Generator, case: Case) -> Arrays:
    """Many steps of k drafts over V tokens, with what the case makes of their distributions and numbers."""
    k, v, kind = case.params["k"], case.params["V"], case.params.get("kind")
    wanted = _draw_distributions(rng, ROWS, k + 1, v)
    proposed = _draw_distributions(rng, ROWS, k, v)
    if kind == "alike":
        proposed = wanted[:, :k].copy()  # which numbers close to 1 must not tell apart
    if kind == "nearly":  # so alike that a draft seldom falls
        apart = 10.0 ** -rng.uniform(3, 7, (ROWS, 1, 1))
        proposed = wanted[:, :k] * (1 + apart * rng.standard_normal((ROWS, k, v)))
        proposed /= proposed.sum(-1, keepdims=True)
    if kind in ("sparse", "zeros"):  # tokens that one of the two never writes
        for some in (wanted, proposed):
            some *= rng.random(some.shape) < 0.6
            some[..., 0] += 1e-3
            some /= some.sum(-1, keepdims=True)
    if kind == "rounded":  # to float32, so that sums are not quite 1; the last token is never written
        wanted[..., -1] = 0.0
        wanted, proposed = (
            (some / some.sum(-1, keepdims=True)).astype(np.float32).astype(np.float64) for some in (wanted, proposed)
        )
    drafts = _draw_from(rng, proposed)
    if kind == "certain":  # of a drafter that looks tokens up
        drafts = rng.integers(0, v, (ROWS, k))
        proposed = np.eye(v)[drafts]
    if kind == "rare":  # drafts that hardly any of the two writes
        drafts = rng.integers(0, v, (ROWS, k))
        hardly = 10.0 ** -rng.uniform(9, 12, drafts.shape)
        for some in (wanted[:, :k], proposed):
            np.put_along_axis(some, drafts[..., None], hardly[..., None] * rng.uniform(0.5, 2, (ROWS, k, 1)), axis=-1)
            some /= some.sum(-1, keepdims=True)
    if kind == "rounding":  # more than wanted of every token, by a hair
        proposed = wanted[:, :k] * (1 + 1e-12)
    uniforms = rng.random((ROWS, k + 1))
    if kind == "zeros":
        uniforms[rng.random(uniforms.shape) < 0.5] = 0.0
    if kind == "alike":
        uniforms[:, :k][rng.random((ROWS, k)) < 0.5] = 1 - 1e-12
    if kind == "rounded":
        uniforms[:, -1] = 1 - 1e-9
    if kind == "nearly":
        uniforms[np.arange(ROWS), rng.integers(0, k, ROWS)] = 1 - 1e-9
    if kind == "late":  # the last draft falls, after others that stay
        uniforms *= np.array([0.05] * (k - 1) + [1.0, 1.0])
        uniforms[:, k - 1] = 1 - 1e-9
    if kind == "rounding":
        uniforms[rng.random(ROWS) < 0.5, rng.integers(0, k)] = 1 - 1e-14
    return {"drafts": drafts, "proposed": proposed, "wanted": wanted, "uniforms": uniforms}


def _expect_accept(arrays: Arrays) -> Arrays:
    rows = zip(*(arrays[name] for name in ("drafts", "proposed", "wanted", "uniforms")), strict=True)
    stay, token = zip(*(_take(drafts.tolist(), *given) for drafts, *given in rows), strict=True)
    return {"how many stay": np.array(stay), "token": np.array(token)}


def _same_rows(got: Arrays, expected: Arrays) -> Mismatch | None:
    """None where every row has its answer, else the first row that has another."""
    mismatch = close(got, expected)
    if mismatch is None or mismatch.is_form or got.keys() != expected.keys():
        return mismatch
    found, wanted = (np.stack([*answers.values()], 1) for answers in (got, expected))  # (rows, 2)
    row = int((found != wanted).any(1).argmax())
    told = (f"{stay} stay, then {token}" for stay, token in (found[row], wanted[row]))
    return Mismatch(f"`rows[{row}]` is the first that is wrong, of {len(wanted)}", *told)


# --- verify -----------------------------------------------------------------------------------------------------------


def _draw_verify(rng: np.random.Generator, case: Case) -> Arrays:
    """A text, and drafts for steps after it, of which the model likes many."""
    steps, k = case.params["steps"], case.params["k"]
    proposed = _draw_distributions(rng, steps, k, VOCABULARY)
    return {
        **draw_weights(rng, case),
        **draw_others(rng, case),
        "text": draw_tokens(rng, case.params["tokens"]),
        "drafts": _draw_from(rng, proposed),
        "proposed": proposed,
        "uniforms": rng.random((steps, k + 1)) * case.params.get("lenient", 1.0),
    }


def _expect_verify(arrays: Arrays) -> Arrays:
    texts, text, answers = Texts(arrays), arrays["text"].tolist(), Arrays()
    following = begin_others(texts, arrays)
    sequence = texts.start()
    if text[:-1]:
        texts.feed({sequence: text[:-1]})
    for step, drafts in enumerate(arrays["drafts"].tolist()):
        logits = texts.feed({sequence: [text[-1], *drafts]})
        raised = np.exp(logits - logits.max(-1, keepdims=True))
        wanted = raised / raised.sum(-1, keepdims=True)
        stay, token = _take(drafts, arrays["proposed"][step], wanted, arrays["uniforms"][step])
        text += [*drafts[:stay], token]
        texts.truncate(sequence, len(text) - 1)
        answers |= {f"tokens of step {step}": np.array(text[-stay - 1 :])}
        answers |= {f"length after step {step}": np.array(len(text) - 1)}
    return answers | end_others(texts, following)


def _code_of_verify(arrays: Arrays) -> str:
    steps, tokens = len(arrays["drafts"]), arrays["text"].tolist()
    capacity = max(len(tokens) + steps * (arrays["drafts"].shape[1] + 2), arrays["beside"].shape[1])
    begun = "begun = extend(model, cache, {a: text[:-1]})" if tokens[:-1] else ""
    first, last = ("\n".join(lines) for lines in write_others(arrays))
    return f"""{write_model(arrays)}
text = {tokens}
cache = Contiguous(model, sequences={len(arrays["beside"]) + 1}, capacity={capacity})
{first}
a = cache.start()
{begun}
steps = zip(*(torch.from_numpy(given[name]) for name in ("drafts", "proposed", "uniforms")))
for step, drafted in enumerate(steps):
    text += verify(model, cache, a, text, *drafted)
    print(f"after step {{step}}: length {{cache.length(a)}} of {{text}}")
{last}""".replace("\n\n", "\n")


def _code_of_accept(arrays: Arrays) -> str:
    rows = ", ".join(f'given["{name}"]' for name in ("drafts", "proposed", "wanted", "uniforms"))
    return f"rows = [[*map(torch.from_numpy, row)] for row in zip({rows})]\n[accept(*row) for row in rows]"


CHECKS = (
    Check(
        name="accept",
        title="Which drafts stay, and the token after them",
        points=8,
        cases=(
            Case("one draft", {"k": 1, "V": 4}),
            Case("four drafts", {"k": 4, "V": 5}),
            Case("none", {"k": 0, "V": 6}),
            Case("drafter and model agree, and numbers close to 1", {"k": 12, "V": 6, "kind": "alike"}),
            Case("sums that are not quite 1, a last number close to 1", {"k": 1, "V": 40, "kind": "rounded"}),
            Case("drafts that both hardly ever write", {"k": 3, "V": 6, "kind": "rare"}),
            Case("the only token there is", {"k": 2, "V": 1}),
            Case("tokens that one of the two never writes", {"k": 3, "V": 7, "kind": "sparse"}),
            Case("drafts that were looked up", {"k": 2, "V": 3, "kind": "certain"}),
            Case("numbers that are 0", {"k": 2, "V": 5, "kind": "zeros"}),
            Case("nothing beyond but rounding", {"k": 2, "V": 4, "kind": "rounding"}),
            Case("little beyond, but more than rounding leaves", {"k": 2, "V": 6, "kind": "nearly"}),
            Case("a late draft falls", {"k": 9, "V": 6, "kind": "late"}),
            Case("many drafts of many tokens, a late one falls", {"k": 13, "V": 50, "kind": "late"}, hidden=True),
        ),
        inputs=_draw_accept,
        run=calls.accept,
        expect=_expect_accept,
        compare=_same_rows,
        describe=_code_of_accept,
        first_hint="Which is wrong, the number that stay or the token? In rows where all stay, or where one does not?",
        hint="The first draft that does not stay ends them; draw from the positive part of wanted less proposed "
        "there, else from the last row of wanted: running sums against the last number times their total.",
        uses=("accept",),
    ),
    Check(
        name="verify",
        title="A step that checks drafts",
        points=6,
        cases=(
            Case("three drafts a step", {"tokens": 4, "steps": 5, "k": 3}),
            Case("drafts that mostly stay", {"tokens": 3, "steps": 4, "k": 4, "lenient": 0.15}),
            Case("no drafts", {"tokens": 5, "steps": 4, "k": 0}),
            Case("beside another", {"tokens": 3, "steps": 2, "k": 2, "beside": (1, 15)}),
            Case("beside two others", {"tokens": 4, "steps": 3, "k": 3, "lenient": 0.3, "beside": (2, 4)}),
            Case("one draft a step", {"tokens": 2, "steps": 6, "k": 1}),
            Case("a text of one token", {"tokens": 1, "steps": 2, "k": 3, "lenient": 0.3}),
            Case("a longer text", {"tokens": 6, "steps": 7, "k": 4, "lenient": 0.6, "beside": (4, 3)}, hidden=True),
        ),
        inputs=_draw_verify,
        run=calls.verify,
        expect=_expect_verify,
        compare=close,
        describe=_code_of_verify,
        first_hint="Which step is the first to be wrong, and what did the step before it leave in the cache?",
        hint="Feed the text's last token and all drafts: row i of the logits follows the i-th of these. The text and "
        "the drafts that stay remain in the cache; the token after them has not been fed.",
        uses=("Contiguous", "extend", "accept", "verify"),
    ),
)
