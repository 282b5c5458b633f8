"""Drawings of chapter 13: batches, a token budget, shared prefixes, an agent's session, latencies, disaggregation.

Steps, tables and times are those of the package's scheduler, block manager and simulator.
"""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from book.drawings.kit import Panel, arrow, box, cells, drawing, line, panel, text
from mlsys_lab.configs import preset
from mlsys_lab.flops.cache import bytes_per_token
from mlsys_lab.inference.engine import BlockManager, Scheduler, SchedulerConfig
from mlsys_lab.inference.engine import Sequence as EngineSequence
from mlsys_lab.inference.simulator import Arrival, simulate
from mlsys_lab.widgets.scheduler import INITIAL_ARRIVALS, run_scheduler

TONES = ("blue", "orange", "green", "violet")
SLOTS = 4
ANSWERS = (3, 9, 4, 2, 5, 2, 8, 3, 4, 2)
"""Tokens of the answers that both kinds of batch generate, in order of arrival."""


def static_slots(answers: Sequence[int], slots: int) -> list[list[int | None]]:
    """Answer in each slot by step, None where the slot is idle: a batch lasts as long as its longest answer."""
    rows: list[list[int | None]] = [[] for _ in range(slots)]
    for first in range(0, len(answers), slots):
        batch = answers[first : first + slots]
        for slot, row in enumerate(rows):
            mine = [first + slot] * batch[slot] if slot < len(batch) else []
            row += [*mine, *[None] * (max(batch) - len(mine))]
    return rows


def continuous_slots(answers: Sequence[int], slots: int) -> list[list[int | None]]:
    """Answer that is generated in each slot by step, None where it idles: steps are the package's scheduler's."""
    scheduler = Scheduler(BlockManager(2 * len(answers), max(answers) + 1), SchedulerConfig(slots, slots))
    numbers = {scheduler.add([number], max_tokens): number for number, max_tokens in enumerate(answers)}
    rows: list[list[int | None]] = [[] for _ in range(slots)]
    held: list[int | None] = [None] * slots
    while not scheduler.is_idle:
        output = scheduler.schedule()
        now = [numbers[seq] for seq in output.sampled]
        held = [number if number in now else None for number in held]
        for number in now:
            if number not in held:
                held[held.index(None)] = number
        for row, number_held in zip(rows, held, strict=True):
            row.append(number_held)
        scheduler.update_from_output(output, [[0]] * len(output.sampled))
        for seq in output.sampled:
            if seq.num_output_tokens == seq.max_tokens:
                scheduler.finish(seq)
    return rows


def batching() -> Markup:
    """The same answers with static and with continuous batching."""
    ways = {"static batching": static_slots(ANSWERS, SLOTS), "continuous batching": continuous_slots(ANSWERS, SLOTS)}

    def slots(title: str, rows: list[list[int | None]]) -> Panel:
        idle = sum(one is None for row in rows for one in row)

        def tone(slot: int, step: int) -> str:
            number = rows[slot][step]
            return "quiet" if number is None else TONES[number % len(TONES)]

        words = f"{len(rows[0])} steps, {idle} of {SLOTS * len(rows[0])} slots idle"
        pieces = [*cells(4, 4, SLOTS, len(rows[0]), tone), text(4, 86, words, size="small", anchor="start")]
        return panel(340, 94, pieces, title=title)

    return drawing(
        "Two tables of four slots by steps. With static batching, slots stay idle until the longest answer of their "
        "batch is finished; with continuous batching, the next answer starts in the step after one has finished.",
        *(slots(title, rows) for title, rows in ways.items()),
    )


def budget() -> Markup:
    """The steps of the interactive figure's opening load as columns of tokens: decodes, prompts, and what is left."""
    most = 6
    states = run_scheduler(INITIAL_ARRIVALS, most)
    pieces = [text(26, 22 + 24 * row, most - row, "quiet", size="small") for row in range(most)]
    for step, state in enumerate(states[1:]):
        x, letters = 40 + 24 * step, []
        for name, count in sorted(state["num_scheduled_tokens"].items(), key=lambda one: one[1] > 1):
            letters += [(name, "orange" if count > 1 else "blue")] * count
        for place in range(most):
            name, tone = letters[place] if place < len(letters) else ("", "quiet")
            pieces.append(box(x, 6 + 24 * (most - 1 - place), 22, 22, name, tone))
        pieces.append(text(x + 11, 164, step + 1, "quiet", size="small"))
    pieces.append(text(40, 184, "steps", "quiet", size="small", anchor="start"))
    pieces += [box(128, 173, 12, 12, tone="blue"), text(146, 184, "decode", size="small", anchor="start")]
    pieces += [box(218, 173, 12, 12, tone="orange"), text(236, 184, "prefill", size="small", anchor="start")]
    return drawing(
        f"Columns are steps of up to {most} tokens. At the bottom of each is one token for every sequence that is "
        "decoding; chunks of prompts fill what is left above them, and some slots stay empty.",
        panel(340, 192, pieces),
    )


def prefix() -> Markup:
    """Blocks of three prompts with shared prefixes, as the package's block manager shares them."""
    system, document = list(range(8)), list(range(8, 16))
    prompts = {
        "A": [*system, *document, 101, 102],
        "B": [*system, *document, 201, 202, 203],
        "C": [*system, 301, 302, 303, 304, 305],
    }
    block_manager, sequences, num_cached = BlockManager(16, 4), {}, {}
    for number, (name, prompt) in enumerate(prompts.items()):
        seq = sequences[name] = EngineSequence(number, prompt, len(prompt), 0)
        num_cached[name] = block_manager.allocate_prefix(seq)
        block_manager.allocate_slots(seq, seq.num_pending_tokens)
        seq.num_computed_tokens = len(prompt)
        block_manager.cache_full_blocks(seq)
    pieces = [box(100, 4, 140, 30, f"system prompt: {len(system)}", "violet")]
    pieces += [arrow(140, 34, 110, 58), arrow(200, 34, 270, 58)]
    pieces += [box(30, 60, 150, 30, f"a document: {len(document)}", "violet")]
    pieces += [arrow(80, 90, 65, 114), arrow(130, 90, 173, 114)]
    for x, y, name, tone in ((18, 116, "A", "blue"), (126, 116, "B", "orange"), (224, 60, "C", "green")):
        own = len(prompts[name]) - len(system) - (len(document) if name in "AB" else 0)
        pieces.append(box(x, y, 94, 30, f"{name}: {own}", tone))
        blocks = " ".join(map(str, sequences[name].block_table))
        pieces.append(text(x + 47, y + 48, f"blocks {blocks}", size="small"))
    whole = sum(map(len, prompts.values()))
    read = whole - sum(num_cached.values())
    pieces.append(text(170, 190, f"{read} tokens computed instead of {whole}", size="small"))
    return drawing(
        "A tree of prefixes: a system prompt, under it a document, and three requests as leaves. Two requests share "
        "the blocks of both, the third only those of the system prompt.",
        panel(340, 198, pieces),
    )


ASKED = "ABCADBCDBACDADBC"
"""Prefixes of requests in order of arrival, for the drawing of two routers."""


def route(by_prefix: bool, *, replicas: int = 2, room: int = 2) -> list[tuple[int, bool]]:
    """Replica and cache hit of each request in ASKED; each replica keeps the `room` prefixes that it used last."""
    caches: list[list[str]] = [[] for _ in range(replicas)]
    found = []
    for number, prefix in enumerate(ASKED):
        replica = (sorted(set(ASKED)).index(prefix) if by_prefix else number) % replicas
        found.append((replica, prefix in caches[replica]))
        caches[replica] = [*(one for one in caches[replica] if one != prefix), prefix][-room:]
    return found


def routing() -> Markup:
    """The same requests sent to two replicas in turn and by prefix."""

    def router(title: str, found: list[tuple[int, bool]]) -> Panel:
        pieces = [text(8, 19 + 26 * replica, replica + 1, "quiet", size="small") for replica in range(2)]
        for number, (replica, is_hit) in enumerate(found):
            tone = "green" if is_hit else "orange"
            pieces.append(box(20 + 20 * number, 4 + 26 * replica, 18, 22, ASKED[number], tone))
        hits = sum(is_hit for _, is_hit in found)
        words = f"{hits} of {len(found)} prefixes hit (green)"
        return panel(340, 76, [*pieces, text(20, 70, words, size="small", anchor="start")], title=title)

    return drawing(
        "Two tables of sixteen requests on two replicas. Sent in turn, most requests must compute their prefix again; "
        "sent by prefix, each prefix is computed once and then hit.",
        router("in turn", route(by_prefix=False)),
        router("by prefix", route(by_prefix=True)),
    )


def session() -> Markup:
    """Blocks of an agent's session that goes back to an earlier turn, as the package's block manager shares them."""
    system, turns = list(range(8)), [[100 * turn + i for i in range(4)] for turn in range(1, 6)]
    first = [*system, *turns[0], *turns[1], *turns[2]]
    second = [*system, *turns[0], *turns[3], *turns[4]]
    block_manager, num_cached = BlockManager(16, 4), {}
    for number, prompt in enumerate((first, second)):
        seq = EngineSequence(number, prompt, len(prompt), 0)
        num_cached[number] = block_manager.allocate_prefix(seq)
        block_manager.allocate_slots(seq, seq.num_pending_tokens)
        seq.num_computed_tokens = len(prompt)
        block_manager.cache_full_blocks(seq)
    pieces = [box(4, 40, 44, 30, "sys", "violet"), box(50, 40, 44, 30, "sys", "violet")]
    pieces += [box(96, 40, 58, 30, "turn 1", "violet"), arrow(154, 48, 178, 26), arrow(154, 62, 178, 88)]
    for y, names, tone in ((10, ("turn 2", "turn 3"), "blue"), (76, ("turn 2", "turn 3"), "orange")):
        pieces += [box(180 + 62 * i, y, 58, 30, name, tone) for i, name in enumerate(names)]
    pieces.append(text(240, 56, "blue first, then orange", size="small"))
    computed = len(second) - num_cached[1]
    pieces.append(
        text(4, 130, f"after the rewind: {computed} computed, {num_cached[1]} hit", size="small", anchor="start")
    )
    return drawing(
        "A row of blocks of a session: a system prompt and turn 1 are shared. Two branches follow, each with its own "
        "turns 2 and 3. The second branch computes only the tokens of its own turns.",
        panel(340, 138, pieces),
    )


def latency() -> Markup:
    """Times of one request in a busy server, from its arrival to its last token, to scale."""
    arrivals = [
        Arrival(0.0, (0,) * 4, 12),
        Arrival(0.5, (1,) * 40, 4),
        Arrival(1.5, (2,) * 20, 6),
        Arrival(5.5, (3,) * 30, 4),
    ]
    done = simulate(
        arrivals,
        lambda parts, moved: 0.4 + 0.05 * sum(new for new, _ in parts),
        num_blocks=40,
        block_size=4,
        config=SchedulerConfig(4, 16),
    )
    one = done.served[2]
    scale = 300 / (one.tokens_s[-1] - one.arrived_s)

    def at(time_s: float) -> float:
        return 20 + scale * (time_s - one.arrived_s)

    pieces = [line(20, 60, 320, 60, "plain"), arrow(20, 30, 20, 56), text(12, 22, "arrives", anchor="start")]
    pieces += [box(at(time_s) - 4, 52, 8, 16, tone="green") for time_s in one.tokens_s]
    gaps = one.gaps_s
    longest = max(range(len(gaps)), key=gaps.__getitem__)
    first, last = one.tokens_s[0], one.tokens_s[-1]
    pieces += [arrow(20, 92, at(first), 92, "orange"), text((20 + at(first)) / 2, 112, "TTFT", "orange", size="strong")]
    pieces += [arrow(at(first), 92, at(last), 92, "blue")]
    pieces.append(text((at(first) + at(last)) / 2, 112, f"{len(gaps)} × TPOT, the mean gap", "blue", size="small"))
    left, right = at(one.tokens_s[longest]), at(one.tokens_s[longest + 1])
    pieces += [
        arrow(left, 42, right, 42, "violet"),
        text((left + right) / 2, 32, "longest ITL", "violet", size="small"),
    ]
    return drawing(
        "A time line. A request arrives and waits for its first token; then tokens follow at uneven gaps. The "
        "longest gap is marked, and the mean of all gaps is the time per output token.",
        panel(340, 120, pieces),
    )


def apart() -> Markup:
    """Prefill on some devices, decode on others, and the KV cache that is sent between them."""
    token_kb = bytes_per_token(preset("llama3-70b")) / 1e3
    pieces = [text(170, 18, "requests"), arrow(170, 24, 80, 44)]
    pieces += [box(6, 46, 140, 74, tone="orange"), text(76, 66, "prefill", "orange", size="strong")]
    pieces += [text(76, 86, "single prompts", size="small"), text(76, 106, "compute-bound", size="small")]
    pieces += [box(194, 46, 140, 74, tone="blue"), text(264, 66, "decode", "blue", size="strong")]
    pieces += [text(264, 86, "large batches", size="small"), text(264, 106, "memory-bound", size="small")]
    pieces += [arrow(148, 84, 192, 84, "green"), arrow(264, 120, 264, 146), text(264, 162, "tokens")]
    pieces.append(text(4, 150, f"KV cache: {token_kb:.0f} kB per token", "green", size="small", anchor="start"))
    return drawing(
        "Requests go to devices that prefill; from there their KV cache is sent to other devices, which decode "
        "in large batches.",
        panel(340, 170, pieces),
    )


DRAWINGS = {
    "batching": batching,
    "budget": budget,
    "prefix": prefix,
    "session": session,
    "routing": routing,
    "latency": latency,
    "apart": apart,
}
