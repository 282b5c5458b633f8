"""Checks of tables, tasks 1 and 4: scripts of calls, played again on a pool that keeps every rule."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from mlsys_checks.sandboxed.serving import blocks as calls
from mlsys_checks.sandboxed.serving.blocks import COMMIT, DROP, RESERVE, START, TABLES, ragged, script_of
from mlsys_checks.sandboxed.spec import Arrays, Case, Check
from mlsys_checks.trusted.serving.pool import BrokenRuleError, Pool, as_given, by_step, group, judge, require_form

FEW, LARGE = range(40), (128, 1000)
"""Numbers of tokens whose blocks are asked for; larger sizes of blocks, asked for about their multiples."""
SHOWN = 14
"""Calls of a script that its code writes out; the code of a longer one ends there."""
WORDS = {START: "start", RESERVE: "try_reserve", COMMIT: "commit", DROP: "drop"}
Row = Sequence[int]
"""What, text, count, spare."""


class _Script:
    """A script while it is drawn: texts, and what of each has been started, reserved and kept."""

    def __init__(self, rng: np.random.Generator, case: Case) -> None:
        self.rng, self.p = rng, case.params
        self.rows: list[tuple[int, ...]] = []
        self.texts: list[list[int]] = []
        self.here: list[int] = []
        self.step = 0

    def add(self, what: int, *parts: tuple[int, int], spare: int = 0) -> None:
        self.rows += [(self.step, what, text, count, spare) for text, count in parts]
        self.step += 1

    def start(self) -> None:
        """Start a text which, in a case of prefixes, begins as another one or repeats it."""
        rng, text = self.rng, len(self.texts)
        length = int(rng.integers(1, self.p["longest"] + 1))
        old = self.texts[int(rng.integers(text))] if self.p.get("prefix") and text and rng.random() < 0.8 else []
        begins = old[: int(rng.integers(len(old) + 1))] if rng.random() < 0.6 else old
        tokens = (begins + rng.integers(0, 3, length).tolist())[: max(length, len(begins))]
        self.texts.append(tokens)
        self.add(START, (text, int(rng.integers(1, len(tokens) + 1)) if rng.random() < 0.5 else len(tokens)))
        self.here.append(text)

    def reserve(self) -> None:
        """Ask for room for one text, or for several at once, of which not all may find it."""
        chosen = [text for text in self.here if self.rng.random() < 0.5] or self.here[:1]
        spare = int(self.rng.integers(0, 3)) if self.rng.random() < 0.5 else 0
        most = [(text, len(self.texts[text])) for text in chosen]
        self.add(RESERVE, *((text, int(self.rng.integers(1, length + 1))) for text, length in most), spare=spare)

    def draw(self) -> Arrays:
        """Draw as many calls as the case asks for, one after the other; returns the script as a check's inputs."""
        while self.step < self.p["steps"]:
            what = self.rng.random()
            if not self.here or (len(self.here) < self.p["texts"] and what < 0.25):
                self.start()
            elif what < 0.6:
                self.reserve()
            elif what < 0.85:
                chosen = [text for text in self.here if self.rng.random() < 0.6] or self.here[:1]
                self.add(COMMIT, *((text, int(self.rng.integers(1, len(self.texts[text]) + 1))) for text in chosen))
            else:
                text = int(self.rng.choice(self.here))
                self.here.remove(text)
                self.add(DROP, (text, 0))
        return self.arrays()

    def arrays(self) -> Arrays:
        """The script so far, as the inputs of a check."""
        return {
            "pool": np.array(self.p["pool"]),
            "prefix": np.array(bool(self.p.get("prefix"))),
            "tokens": np.array([token for text in self.texts for token in text], dtype=np.int64),
            "lengths": np.array([len(text) for text in self.texts]),
            "script": np.array(self.rows),
            "pages": _draw_pages(self.p["pool"][1]),
        }


def _draw_pages(page: int) -> np.ndarray:
    """Sizes of blocks and numbers of tokens, (n, 2) int64: few tokens in blocks of a case, more in larger ones."""
    near = [(size, size * blocks + more) for size in LARGE for blocks in (1, 2, 7, 500) for more in (-1, 0, 1)]
    return np.array([*((page, tokens) for tokens in FEW), *((size, 1) for size in LARGE), *near])


def _plan_scarce(script: _Script) -> Arrays:
    """Three texts or more, the first with blocks to spare: room for each, but not for all, then for all to the last.

    The second and the third want `blocks` each beside the last one, all further texts one.
    """
    (_, page), count, blocks = script.p["pool"], script.p.get("texts", 3), script.p.get("blocks", 1)
    length, most = (blocks + 2) * page, blocks * page
    script.texts = [script.rng.integers(0, 3, length).tolist() for _ in range(count)]
    for text in range(count):
        script.add(START, (text, length))
    few, many = (int(more) for more in script.rng.integers(1, page + 1, 2))
    further = [(text, few) for text in range(3, count)]
    script.add(RESERVE, (0, 3 * page))
    script.add(COMMIT, (0, 1))
    script.add(RESERVE, (0, 1), (1, most + page + many), (2, most + few), *further)
    script.add(RESERVE, (0, 1), (1, most + many), (2, most + few), *further, spare=1)
    script.add(RESERVE, (1, most + many), (2, most + few), *further)
    script.add(RESERVE, (0, few), spare=1)
    script.add(RESERVE, (0, few))
    return script.arrays()


def _plan_gone(script: _Script) -> Arrays:
    """A text whose first block is not known any more, although a later one is.

    Two equal texts are read: the first block is known as it lies with one, later ones as they lie with the other. The
    one ends, and a third text takes all blocks that nobody holds.
    """
    (count, page), full = script.p["pool"], int(script.rng.integers(2, 4))
    tokens = script.rng.integers(0, 3, full * page + 2).tolist()
    script.texts = [tokens, tokens, script.rng.integers(3, 6, count * page).tolist(), [*tokens, 1]]
    for text in (0, 1):
        script.add(START, (text, len(tokens)))
    script.add(RESERVE, (0, page), (1, full * page))
    script.add(COMMIT, (0, page))
    script.add(COMMIT, (1, full * page))
    script.add(DROP, (0, 0))
    script.add(START, (2, count * page))
    script.add(RESERVE, (2, (count - full) * page))
    script.add(START, (3, len(tokens) + 1))
    return script.arrays()


PLANS = {"scarce": _plan_scarce, "gone": _plan_gone}
"""Scripts that are written, not drawn; texts and counts are drawn."""


def _draw_tables(rng: np.random.Generator, case: Case) -> Arrays:
    """A script whose calls are all allowed: what is committed was reserved, and no text outgrows its tokens."""
    script = _Script(rng, case)
    drawn = PLANS[case.params["plan"]](script) if "plan" in case.params else script.draw()
    return drawn | {"script": np.array(list(_allowed(drawn)))}


def _allowed(drawn: Arrays) -> Iterator[Row]:
    """The script with counts cut to what is allowed, 0 beside others, and without calls of which nothing is left."""
    world, step = World(drawn), 0
    for rows in script_of(drawn["script"]):
        cut = []
        for what, text, count, spare in rows:
            if what == RESERVE:
                count = min(count, len(world.texts[text]) - world.kept[text])
            if what == COMMIT:
                count = min(count, world.reserved[text] - world.kept[text])
            cut.append((what, text, count, spare))
        if any(count for _, _, count, _ in cut) or what == DROP:
            world.play(cut)
            yield from ((step, *row) for row in cut)
            step += 1


class World:
    """Tables as they must be: what each text keeps and holds, on a pool; blocks are its own, or those of a log."""

    def __init__(self, arrays: Arrays) -> None:
        count, self.page = arrays["pool"].tolist()
        self.prefix, self.pool = bool(arrays["prefix"]), Pool(count)
        self.texts = ragged(arrays["tokens"], arrays["lengths"])
        self.kept: dict[int, int] = {}
        self.reserved: dict[int, int] = {}
        self.tables: dict[int, list[int]] = {}

    def play(self, rows: Sequence[Row], held: dict[int, list[int]] | None = None, where: str = "") -> bool:
        """Make a call, and say what it gives; `held` are the blocks of each text after it."""
        what, pool = rows[0][0], self.pool
        if what == START:
            _, text, count, _ = rows[0]
            found = pool.find(self.texts[text][:count], self.page) if self.prefix else []
            self.tables[text], self.kept[text] = found, len(found) * self.page
            self.reserved[text] = self.kept[text]
            for block in found:
                pool.share(block)
        elif what == RESERVE:
            return self._reserve(rows, held, where)
        elif what == COMMIT:
            for _, text, count, _ in rows:
                before, self.kept[text] = self.kept[text], self.kept[text] + count
                for place in range(before // self.page, self.kept[text] // self.page) if self.prefix else ():
                    pool.register(self.tables[text][place], tuple(self.texts[text][: (place + 1) * self.page]))
        else:
            for block in reversed(self.tables.pop(rows[0][1])):
                pool.release(block)
            del self.kept[rows[0][1]]
        return True

    def _reserve(self, rows: Sequence[Row], held: dict[int, list[int]] | None, where: str) -> bool:
        needed = {text: -(-(self.kept[text] + count) // self.page) for _, text, count, _ in rows}
        lacking = {text: max(0, blocks - len(self.tables[text])) for text, blocks in needed.items()}
        if sum(lacking.values()) + rows[0][3] > self.pool.available:
            return False
        for _, text, count, _ in rows:
            self.reserved[text] = max(self.reserved[text], self.kept[text] + count)
        if held is None:
            free = [*sorted(self.pool.blank), *self.pool.released]
            new = {text: [free.pop(0) for _ in range(blocks)] for text, blocks in lacking.items()}
        else:
            new = {text: held.get(text, [])[len(self.tables[text]) :] for text in lacking}
            for text, blocks in new.items():
                if len(blocks) != lacking[text]:
                    what = f"{where}: text {text} is given the wrong number of blocks"
                    raise BrokenRuleError(what, len(blocks), lacking[text])
        self.pool.take([block for blocks in new.values() for block in blocks], where)
        for text, blocks in new.items():
            self.tables[text] += blocks
        return True


def _replay_tables(got: Arrays, asked: Arrays) -> None:
    script = [*script_of(asked["script"])]
    steps = len(script)
    require_form(got, {"given": (steps,), "available": (steps,), "references": (steps, None)})
    require_form(got, {"lengths": (None, 3), "held": (None, 3), "apart": (None, 3), "pages": (len(asked["pages"]),)})
    for (page, tokens), blocks in zip(asked["pages"].tolist(), got["pages"].tolist(), strict=True):
        if blocks != -(-tokens // page):
            raise BrokenRuleError(f"pages({tokens}), of blocks of {page} tokens, is wrong", blocks, -(-tokens // page))
    world = World(asked)
    held, lengths = ([group(rows) for rows in by_step(got[name], steps)] for name in ("held", "lengths"))
    for step, rows in enumerate(script):
        where = f"call {step}, {WORDS[rows[0][0]]} of text {', '.join(str(row[1]) for row in rows)}"
        answer = world.play(rows, held[step], where)
        if bool(got["given"][step]) != answer:
            raise BrokenRuleError(f"{where} gives the wrong answer", bool(got["given"][step]), answer)
        for text, kept in world.kept.items():
            if (length := lengths[step].get(text)) != [kept]:
                raise BrokenRuleError(f"after {where}, text {text} has the wrong length", length, [kept])
            if held[step].get(text, []) != world.tables[text]:
                what = f"after {where}, text {text} has the wrong table"
                raise BrokenRuleError(what, held[step].get(text, []), world.tables[text])
        world.pool.compare(f"after {where}", got["available"][step], got["references"][step])
    own = np.column_stack([np.arange(steps), np.full(steps, -1), got["available"]])
    if sorted(got["apart"].tolist()) != sorted([*own.tolist(), *got["lengths"].tolist()]):
        raise BrokenRuleError(
            "the same calls on two pools' tables do not give the same in both: have they books in common?"
        )


def _code_of_tables(arrays: Arrays) -> str:
    tables, manager = TABLES[int(arrays["prefix"])]
    count, page = arrays["pool"].tolist()
    texts = ragged(arrays["tokens"], arrays["lengths"])
    lines, kept, world = [f"tables = {tables}({manager}({count}), {page})"], dict[int, int](), World(arrays)
    for rows in list(script_of(arrays["script"]))[:SHOWN]:
        what, text, number, spare = rows[0]
        counts = ", ".join(f"text{one}: {number}" for _, one, number, _ in rows)
        if what == START:
            lines.append(f"text{text} = tables.start({texts[text][:number]})")
        elif what == RESERVE:
            lines.append(f"print(tables.try_reserve({{{counts}}}, spare={spare}))")
        elif what == COMMIT:
            kept = dict(world.kept)
            new = ", ".join(f"text{one}: {texts[one][kept[one] : kept[one] + number]}" for _, one, number, _ in rows)
            lines.append(f"tables.commit({{{new}}})")
        else:
            lines.append(f"tables.drop(text{text})")
        world.play(rows)
    return "\n".join([*lines, "print(tables.tables, tables.blocks.references, tables.blocks.available)"])


def _tables(name: str, title: str, points: float, cases: tuple[Case, ...], first_hint: str, hint: str) -> Check:
    return Check(
        name=name,
        title=title,
        points=points,
        cases=cases,
        inputs=_draw_tables,
        run=calls.tables,
        expect=as_given,
        compare=judge(_replay_tables),
        first_hint=first_hint,
        hint=hint,
        uses=TABLES[bool(cases[0].params.get("prefix"))],
        describe=_code_of_tables,
    )


TABLES_ALONE = (
    _tables(
        "tables",
        "Tables of blocks",
        10,
        (
            Case("one text", {"pool": (4, 4), "texts": 1, "longest": 14, "steps": 9}),
            Case("room for each, not for all", {"pool": (7, 3), "plan": "scarce"}),
            Case("two texts, few blocks", {"pool": (5, 3), "texts": 2, "longest": 12, "steps": 24}),
            Case("blocks of one token", {"pool": (9, 1), "texts": 3, "longest": 6, "steps": 40}),
            Case("several texts, a small pool", {"pool": (8, 4), "texts": 4, "longest": 20, "steps": 90}),
            Case("several texts, a larger pool", {"pool": (30, 2), "texts": 6, "longest": 16, "steps": 90}),
            Case("many calls", {"pool": (13, 5), "texts": 5, "longest": 33, "steps": 200}, hidden=True),
            Case("not for many", {"pool": (28, 3), "plan": "scarce", "texts": 8, "blocks": 9}, hidden=True),
        ),
        "How many blocks has the text already, and how many will it need? And what has changed after a False?",
        "Count what all texts of the call lack together before any block is given out; a text that has room enough "
        "lacks none, not fewer than none.",
    ),
)
PREFIX = (
    _tables(
        "prefixes",
        "Tables that share beginnings",
        8,
        (
            Case("two that begin alike", {"pool": (8, 2), "texts": 2, "longest": 7, "steps": 12, "prefix": True}),
            Case("blocks of one token", {"pool": (9, 1), "texts": 3, "longest": 6, "steps": 50, "prefix": True}),
            Case("many that begin alike", {"pool": (12, 3), "texts": 5, "longest": 14, "steps": 120, "prefix": True}),
            Case("a small pool", {"pool": (6, 2), "texts": 4, "longest": 9, "steps": 150, "prefix": True}),
            Case("the first block is gone", {"pool": (9, 3), "plan": "gone", "prefix": True}),
            Case("many calls", {"pool": (14, 4), "texts": 6, "longest": 26, "steps": 250, "prefix": True}, hidden=True),
            Case("long texts", {"pool": (99, 2), "texts": 9, "longest": 90, "steps": 180, "prefix": True}, hidden=True),
            Case(
                "not for many",
                {"pool": (28, 3), "plan": "scarce", "texts": 8, "blocks": 9, "prefix": True},
                hidden=True,
            ),
        ),
        "A prompt that is known to its last token: what does it start with? And from when on is a block known?",
        "Look the keys up one after the other, share what is found, stop at the first that is not, and leave the last "
        "token out. In commit, register only blocks that this call has filled.",
    ),
)
