"""Checks of blocks, tasks 1 and 4: scripts of calls, played again on a pool that keeps every rule; keys of texts."""

from __future__ import annotations

import numpy as np

from mlsys_checks.sandboxed.serving import blocks as calls
from mlsys_checks.sandboxed.serving.blocks import ALLOCATE, FIND, REGISTER, RELEASE, SHARE, TABLES, ragged
from mlsys_checks.sandboxed.spec import Arrays, Case, Check
from mlsys_checks.trusted.compare import close
from mlsys_checks.trusted.serving.pool import BrokenRuleError, Pool, as_given, judge, require_form

BASES = (1, 10, 31, 33, 37, 131, 256, 257, 1000, 1009, 10_000, 1 << 16)
"""Bases of sums in which tokens are taken for digits, although there are more tokens than digits."""
SHOWN = 14
"""Calls of a script that its code writes out; the code of a longer one ends there."""
ASKS = 16
"""How often a large pool is asked what is available, after each call: to count takes ten times as long as all else."""
COLLIDING = (
    ([16867, 28445, 41977, 11869], [4146, 1001, 32096, 3]),
    ([26703, 24422, 14245, 57041], [4204, 4795, 18578, 3]),
)
"""Two blocks for which CPython's `hash` of a tuple gives one number, and two behind an element whose hash is 0."""
LOOKUPS = 6
"""Keys of a large pool that are asked for in a row: a search for each takes ten times as long as all else, and more."""


class _Calls:
    """A script while it is drawn: it names each block by the place in it at which the block was last given."""

    def __init__(self, count: int) -> None:
        self.pool, self.script = Pool(count), list[tuple[int, int, int]]()
        self._place, self._given = dict[int, int](), 0

    def add(self, what: int, block: int = 0, key: int = 0) -> int:
        """Make a call, and give the block that it gives, one of those that it may; -1 where there is none."""
        pool, found = self.pool, -1
        if what == ALLOCATE and pool.available:
            found = next(iter(pool.blank or pool.released))
            pool.take([found], "")
        elif what == FIND:
            found = pool.known.get(key, -1)
        elif what == REGISTER:
            pool.register(block, key)
        elif what in (SHARE, RELEASE):
            (pool.share if what == SHARE else pool.release)(block)
        self.script.append((what, self._place.get(block, 0), key))
        if what in (ALLOCATE, FIND):
            self._place[found] = self._given
            self._given += 1
        return found


def _draw_blocks(rng: np.random.Generator, case: Case) -> Arrays:
    count, prefix, large = (case.params.get(name, 0) for name in ("count", "prefix", "large"))
    calls_made = _Calls(count)
    if large:
        (_fill_known if prefix else _fill)(rng, calls_made, large)
    weights = [0.4, 0.15, 0.45, 0, 0] if not prefix else [0.3, 0.1, 0.3, 0.2, 0.1]
    pool = calls_made.pool
    while len(calls_made.script) < case.params.get("steps", 0):
        what, key = int(rng.choice(5, p=weights)), int(rng.integers(count + 1))
        used = [block for block, held in enumerate(pool.references) if held]
        choice = used + (list(pool.released) if what == SHARE else [])
        if choice or what in (ALLOCATE, FIND):
            calls_made.add(what, int(rng.choice(choice)) if choice else 0, key)
    script = np.array(calls_made.script)
    return {
        "count": np.array(count),
        "prefix": np.array(bool(prefix)),
        "script": script,
        "often": np.array(not large),
        "asks": np.array(ASKS if large and not prefix else 1),
    }


def _fill(rng: np.random.Generator, made: _Calls, rounds: int) -> None:
    """Give out block after block of a pool in which most stay free, and take some back."""
    used: list[int] = []
    for back in rng.random(rounds) < 0.5:
        used.append(made.add(ALLOCATE))
        if back:
            made.add(RELEASE, used.pop(int(rng.integers(len(used)))))


def _fill_known(rng: np.random.Generator, made: _Calls, rounds: int) -> None:
    """Make every block known, then look up old and new keys, use what is found, and give out the oldest."""
    count = len(made.pool.references)
    for key in range(count + rounds):
        if key >= count:
            *_, found = (made.add(FIND, key=int(rng.integers(key + 1))) for _ in range(LOOKUPS))
            if found >= 0:
                made.add(SHARE, found)
                made.add(RELEASE, found)
        block = made.add(ALLOCATE)
        made.add(REGISTER, block, key)
        made.add(RELEASE, block)


def _replay_blocks(got: Arrays, asked: Arrays) -> None:
    script, count = asked["script"].tolist(), int(asked["count"])
    often = bool(asked["often"])
    rows = len(script) + 1 if often else 2
    require_form(got, {"given": (len(script),), "available": (len(script) + 1,), "references": (rows, None)})
    pool, given = Pool(count), list[int]()
    pool.compare("at first", got["available"][0], got["references"][0])
    for step, (what, place, key) in enumerate(script):
        where, answer = f"call {step}", int(got["given"][step])
        if what == ALLOCATE:
            where += ", allocate()"
            if (answer < 0) != (not pool.available):
                raise BrokenRuleError(where, answer, "a block" if pool.available else "ValueError: none is left")
            if answer >= 0:
                pool.take([answer], where)
            given.append(answer)
        elif what == FIND:
            where += ", find"
            known = pool.known.get(key, -1)
            if answer != known:
                raise BrokenRuleError(f"{where} gives the wrong block", answer, known if known >= 0 else "None")
            given.append(answer)
        elif what == REGISTER:
            pool.register(given[place], key)
            where += ", register"
        else:
            (pool.share if what == SHARE else pool.release)(given[place])
            where += f", {'share' if what == SHARE else 'release'} of block {given[place]}"
        references = got["references"][step + 1] if often else pool.references
        pool.compare(f"after {where}", got["available"][step + 1], references)
    pool.compare("at the end", got["available"][-1], got["references"][-1])


def _code_of_blocks(arrays: Arrays) -> str:
    name, given = TABLES[int(arrays["prefix"])][1], 0
    lines = [f"manager, other = {name}({arrays['count']}), {name}({arrays['count']})", "other.allocate()"]
    words = {SHARE: "share({})", RELEASE: "release({})", REGISTER: "register({}, {})", FIND: "find({1})"}
    for what, place, key in arrays["script"].tolist()[:SHOWN]:
        if what == ALLOCATE:
            lines += ["try:", f"    block{given} = manager.allocate()", "except ValueError:", f"    block{given} = -1"]
        else:
            begun = f"block{given} = " if what == FIND else ""
            lines.append(f"{begun}manager.{words[what].format(f'block{place}', key)}")
        given += what in (ALLOCATE, FIND)
    counts = "manager.references, " if arrays["often"] else ""
    return "\n".join([*lines, f"print({counts}manager.available, other.available)"])


# --- keys -------------------------------------------------------------------------------------------------------------


def _draw_keys(rng: np.random.Generator, case: Case) -> Arrays:
    """Texts that begin alike, differ at one place, or have equal blocks behind different beginnings."""
    page, blocks = case.params["page"], case.params["blocks"]
    if case.params.get("alone"):
        texts = [rng.integers(0, 9, page * blocks).tolist()] * 2
    elif case.params.get("near"):
        texts = _draw_near(rng, page)
    else:
        base = rng.integers(0, case.params.get("vocabulary", 9), page * blocks + case.params.get("more", 0))
        texts = [base.tolist()]
        for place in (0, page - 1, page * (blocks // 2), page * blocks - 1):
            other = base.copy()
            other[place] += 1
            texts.append(other.tolist())
        block, zeros = base[:page].tolist(), [0] * page
        texts += [block * 3, zeros + block, base[:-1].tolist(), [*zeros, *zeros, *zeros], [], block[::-1] + zeros]
    lengths = np.array([len(text) for text in texts])
    return {"tokens": np.array([token for text in texts for token in text]), "lengths": lengths, "page": np.array(page)}


def _draw_near(rng: np.random.Generator, page: int) -> list[list[int]]:
    """Blocks that are equal to whoever joins digits, adds, counts to a base, hashes, or has room for small numbers."""
    one, other = (int(token) for token in rng.integers(70_000, 130_000, 2))
    pairs = [(one, other), (other, one)]
    pairs += [(one, other + room) for room in (1 << 8, 1 << 16)]
    pairs += [(one + 1, other - base) for base in BASES]
    one, digit, other = (int(rng.integers(least, 10 * least)) for least in (10, 1, 10))
    pairs += [(one, 100 * digit + other), (10 * one + digit, other)]
    rest = rng.integers(0, 9, page - 2).tolist()
    return [[*pair, *rest] for pair in pairs] + [block for pair in COLLIDING for block in pair]


def _expect_keys(arrays: Arrays) -> Arrays:
    page, seen = int(arrays["page"]), dict[tuple[int, ...], int]()
    texts = ragged(arrays["tokens"], arrays["lengths"])
    counts = [len(text) // page for text in texts]
    begins = [tuple(text[: (i + 1) * page]) for text, count in zip(texts, counts, strict=True) for i in range(count)]
    alike = np.array([seen.setdefault(one, len(seen)) for one in begins])
    return {
        "counts": np.array(counts),
        "alike": alike,
        calls.WIDE: np.array([len(text) // (2 * page) for text in texts]),
    }


def _code_of_keys(arrays: Arrays) -> str:
    texts = calls.mixed_kinds(ragged(arrays["tokens"], arrays["lengths"]))
    page = int(arrays["page"])
    return f"texts = {texts}\nfor text in texts:\n    print(keys(text, {page}), len(keys(text, {2 * page})))"


def _blocks(name: str, title: str, points: float, cases: tuple[Case, ...], first_hint: str, hint: str) -> Check:
    return Check(
        name=name,
        title=title,
        points=points,
        cases=cases,
        inputs=_draw_blocks,
        run=calls.blocks,
        expect=as_given,
        compare=judge(_replay_blocks),
        first_hint=first_hint,
        hint=hint,
        uses=(TABLES[bool(cases[0].params.get("prefix"))][1],),
        time_limit_s=1.0,
        describe=_code_of_blocks,
    )


BLOCKS = (
    _blocks(
        "blocks",
        "Blocks and their references",
        8,
        (
            Case("a few calls", {"count": 3, "steps": 8}),
            Case("one block", {"count": 1, "steps": 12}),
            Case("a small pool, often empty", {"count": 4, "steps": 60}),
            Case("a larger pool", {"count": 12, "steps": 120}),
            Case("a hundred thousand blocks", {"count": 100_000, "large": 12_000}),
            Case("many calls", {"count": 7, "steps": 300}, hidden=True),
        ),
        "Which list says who holds a block, and which says what can be given out? Do they always agree?",
        "allocate takes any free block, without a search, and sets its count to one; release gives it back only when "
        "its count has come down to zero.",
    ),
)
PREFIX = (
    Check(
        name="keys",
        title="Keys of beginnings",
        points=3,
        cases=(
            Case("blocks of two", {"page": 2, "blocks": 3}),
            Case("blocks of one", {"page": 1, "blocks": 4}),
            Case("a part of a large block more", {"page": 20, "blocks": 3, "more": 2}),
            Case("few different tokens", {"page": 2, "blocks": 4, "vocabulary": 2, "more": 1}),
            Case("nearly alike", {"page": 4, "blocks": 1, "near": True}),
            Case("one long text, twice", {"page": 1, "blocks": 1500, "alone": True}),
            Case("large blocks", {"page": 24, "blocks": 5, "vocabulary": 30000, "more": 23}, hidden=True),
        ),
        inputs=_draw_keys,
        run=calls.keys,
        expect=_expect_keys,
        compare=close,
        first_hint="Two texts hold the same block behind different beginnings: are its keys different?",
        hint="Go through the full blocks only; each key is made of the key before it and the tokens of its block.",
        uses=("keys",),
        describe=_code_of_keys,
    ),
    _blocks(
        "prefix_blocks",
        "Blocks that are known",
        7,
        (
            Case("a few calls", {"count": 3, "steps": 10, "prefix": True}),
            Case("one block", {"count": 1, "steps": 30, "prefix": True}),
            Case("a small pool, often empty", {"count": 4, "steps": 120, "prefix": True}),
            Case("a larger pool", {"count": 9, "steps": 200, "prefix": True}),
            Case("ten thousand blocks", {"count": 10_000, "large": 4000, "prefix": True}),
            Case("many calls", {"count": 6, "steps": 500, "prefix": True}, hidden=True),
        ),
        "Of each block: has it a reference, has it a key, and is it among those to be given out, and in which order?",
        "A known block without references waits in the order of release. Whoever shares it takes it out of that order; "
        "whoever is given it takes its key from it. Dictionaries need no search for any of this.",
    ),
)
