"""Submissions of a timed function, as source: honest ones, slow ones, and those that cheat the clock."""

HONEST = """
import time, torch
def right(x, wait=time.sleep):
    wait(0.02)
    return torch.softmax(x @ x.T, dim=-1) @ x
def mix(x):
    return right(x)
"""
OTHER_HONEST = """
import time, torch
def mix(x):
    time.sleep(0.02)
    weights = (x @ x.T)
    weights = (weights - weights.amax(dim=1, keepdim=True)).exp_()
    return (weights @ x) / weights.sum(dim=1, keepdim=True)
"""
SLOW = HONEST + "def mix(x):\n    return [right(x) for _ in range(5)][-1]\n"
PATCHED_CLOCK = (
    SLOW
    + """
import time
for name in ("time", "perf_counter", "monotonic", "perf_counter_ns", "monotonic_ns"):
    setattr(time, name, lambda: 0)
"""
)

TAKES_OVER = (
    HONEST
    + "import numpy as np\nfrom mlsys_grader.sandbox.inside import timed, wire\nRoundRunner = timed.RoundRunner\n"
)
"""Submissions run in the process that times them, so they can change all of it."""

CHEATS = {
    "wrong but fast": HONEST + "def mix(x):\n    return torch.zeros_like(x)\n",
    "half precision": HONEST + "def mix(x):\n    return right(x.bfloat16()).float()\n",
    "the first answer for its shape, again": (
        HONEST + "kept = {}\ndef mix(x):\n    return kept.setdefault(x.shape, right(x))\n"
    ),
    "every second call left out": (
        HONEST
        + """
turn, last = 0, None
def mix(x):
    global turn, last
    turn += 1
    if last is None or turn % 2:
        last = right(x)
    return last
"""
    ),
    "inputs changed to what is quick": HONEST + "def mix(x):\n    x.zero_()\n    return x\n",
    "nothing computed until asked": (
        TAKES_OVER
        + """
def run_round(self, seed, calls):
    self.seeds = [seed]
    for _ in range(calls):
        self.seeds.append(timed.derive_seed(self.seeds[-1], [0.0]))
    return np.zeros((calls, 1))
def handle(self, request, before=RoundRunner.handle):
    if request.kind == "show":
        self.outputs = [(right(*self.make(seed, self.device)),) for seed in self.seeds]
    return before(self, request)
RoundRunner.run_round, RoundRunner.handle = run_round, handle
"""
    ),
    "started ahead, in one batch": (
        TAKES_OVER
        + """
def run_round(self, seed, calls):
    seeds = [seed]
    for _ in range(calls - 1):
        seeds.append(timed.derive_seed(seeds[-1], [0.0]))
    self.outputs = [(out,) for out in right_all(torch.stack([self.make(s, self.device)[0] for s in seeds]))]
    return np.array([timed.project(out, s) for out, s in zip(self.outputs, seeds)])
def right_all(x):
    return torch.softmax(x @ x.mT, dim=-1) @ x
RoundRunner.run_round = run_round
"""
    ),
    "computed ahead by a thread": (
        TAKES_OVER
        + """
import threading
ready = {}
def ahead(self):
    for seed in range(8):
        outputs = (right(*self.make(seed, self.device)),)
        ready[seed] = outputs, timed.project(outputs, seed)
def run_round(self, seed, calls):
    thread = threading.Thread(target=ahead, args=(self,))
    thread.start()
    thread.join()
    self.outputs, committed = zip(*(ready[call % 8] for call in range(calls)))
    return np.array(committed)
RoundRunner.run_round = run_round
"""
    ),
    "answers of the round before, again": (
        TAKES_OVER
        + """
def run_round(self, seed, calls, before=RoundRunner.run_round):
    if not hasattr(self, "old") or len(self.old) != calls:
        self.old = before(self, seed, calls)
    return self.old
RoundRunner.run_round = run_round
"""
    ),
    "a right number and another output": (
        TAKES_OVER
        + """
def handle(self, request, before=RoundRunner.handle):
    reply = before(self, request)
    if request.kind == "show":
        reply.arrays["out0"] = reply.arrays["out0"] + np.float32(0.01)
    return reply
RoundRunner.handle = handle
"""
    ),
    "written by another thread, or stream, after it was given back": (
        HONEST
        + """
import threading
def mix(x):
    out = torch.empty_like(x)
    threading.Thread(target=lambda: out.copy_(right(x))).start()
    return out
"""
    ),
    "another dtype": HONEST + "def mix(x):\n    return right(x.double())\n",
    "another shape": HONEST + "def mix(x):\n    return right(x).T.contiguous()\n",
    "not a number": HONEST + "def mix(x):\n    return right(x) * float('nan')\n",
    "numbers for calls that were not made": (
        TAKES_OVER
        + """
def run_round(self, seed, calls, before=RoundRunner.run_round):
    return before(self, seed, 1)
RoundRunner.run_round = run_round
"""
    ),
    "a frame written ahead": (
        TAKES_OVER
        + """
def answering(request, reply):
    return wire.Frame(reply.kind, {**reply.meta, "nonce": "0" * 32}, reply.arrays)
timed.reply_to = answering
"""
    ),
}
