"""A distilled draft model next to one from scratch: acceptance by the target, and decode speed with each.

    python -m tests.bench.distilled_draft [--rounds N] [--draft FOLDER] [--record]

Both drafts have the same size, initial weights and number of training tokens. The package's learned from the book's
text; the other is distilled from the target by `book/distil_draft.py`, or was saved by it in FOLDER. Prints goals and
measurements, and exits with 1 if a goal is missed. It takes about six minutes on one thread.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

from book.distil_draft import RUN, distil_draft
from book.measure_pair import acceptance
from mlsys_lab.inference.pretrained import Pair, load_pair
from mlsys_lab.inference.speculative import make_drafter
from mlsys_lab.models import load
from tests.bench.decode import speculation_gain
from tests.bench.goals import HELP, Goal, conclude

GOALS = {
    "accepted of drafted tokens, greedy, distilled over scratch": Goal(">=", 1.05),
    "accepted of drafted tokens, sampled, distilled over scratch": Goal(">=", 1.05),
    "decode time, draft from scratch over distilled draft": Goal(">=", 1.0),
    "decode time, plain over speculative with the distilled draft": Goal(">=", 1.2),
}


def measure(pair: Pair, rounds: int) -> tuple[float, float, float]:
    """Fraction of a pair's drafted tokens that are accepted, greedy and sampled, and plain over speculative time."""
    accepted = []
    for name, temperature in (("greedy", 0.0), ("sampled", 1.0)):
        counted = acceptance(pair, name, temperature).parameters
        accepted.append(counted["accepted"] / counted["drafted"])
    return accepted[0], accepted[1], speculation_gain(make_drafter(pair.draft), rounds)


def main() -> int:
    """Exit status: 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("--rounds", type=int, default=15, help="prompts after which decoding is timed")
    parser.add_argument("--draft", type=Path, help="a draft that book/distil_draft.py saved")
    parser.add_argument("--record", action="store_true", help=HELP)
    args = parser.parse_args()
    torch.set_num_threads(1)
    pair = load_pair()
    draft = distil_draft(pair, RUN) if args.draft is None else load(args.draft, dtype=torch.float32).eval()
    measured = {}
    for name, model in (("from scratch", pair.draft), ("distilled", draft)):
        measured[name] = measure(pair._replace(draft=model), args.rounds)
        greedy, sampled, gain = measured[name]
        print(f"{name}: accepted {greedy:.3f} greedy, {sampled:.3f} sampled; {gain:.2f}× plain decoding", flush=True)
    scratch, distilled = measured["from scratch"], measured["distilled"]
    ratios = (*(b / a for a, b in zip(scratch, distilled, strict=True)), distilled[-1])
    title = "a distilled draft of the shipped target, on one thread"
    columns = {"measured": dict(zip(GOALS, ratios, strict=True))}
    return conclude("distilled_draft", title, GOALS, columns, record=args.record)


if __name__ == "__main__":
    sys.exit(main())
