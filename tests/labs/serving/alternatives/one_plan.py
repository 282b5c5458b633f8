"""Schedulers that draw up a plan first, of texts with numbers of tokens, and turn it into a batch at the end."""


class Scheduler:
    def __init__(self, tables, limits):
        self.tables, self.limits, self.now_s, self.steps = tables, limits, 0.0, 0
        self.texts = []  # all that are here, in the order in which they came

    @property
    def running(self):
        return [one for one in self.texts if one.number is not None]

    @property
    def waiting(self):
        return [one for one in self.texts if one.number is None]

    @property
    def idle(self):
        return not self.texts

    def add(self, prompt, max_tokens):
        tokens = list(prompt)
        self.texts.append(Sequence(tokens, len(tokens) + max_tokens, self.now_s, prompt=len(tokens)))
        return self.texts[-1]

    def write(self, sequence, tokens):
        sequence.tokens.extend(tokens)

    def finish(self, sequence):
        self.texts.remove(sequence)
        self.leave(sequence)

    def leave(self, sequence):
        if sequence.number is not None:
            self.tables.drop(sequence.number)
        sequence.number = None

    def pending(self, sequence):
        return sequence.tokens[self.tables.length(sequence.number) :]

    def enter(self, sequence, room, spare=0):
        number = self.tables.start(sequence.tokens)
        if self.tables.try_reserve({number: room - self.tables.length(number)}, spare):
            sequence.number = number
        else:
            self.tables.drop(number)
        return sequence.number is not None

    def admit(self, sequence):
        return self.enter(sequence, sequence.most - 1)

    def batch(self, plan, preempted=()):
        new = {one.number: self.pending(one)[:count] for one, count in plan.items()}
        writers = [one for one, count in plan.items() if count == len(self.pending(one))]
        return Batch(new, writers, list(preempted))

    def newcomers(self):
        for sequence in self.waiting:
            if len(self.running) == self.limits.sequences or not self.admit(sequence):
                return
            yield sequence

    def schedule(self):
        plan = {one: len(self.pending(one)) for one in self.running}
        for one in self.newcomers():
            plan[one] = len(self.pending(one))
        return self.batch(plan)


class ChunkedScheduler(Scheduler):
    def schedule(self):
        plan, preempted = self.writers()
        left = self.limits.tokens - len(plan)
        for one in self.running:
            if left and one not in plan:
                plan[one] = min(left, len(self.pending(one)))
                left -= plan[one]
        if left:
            for one in self.newcomers():
                plan[one] = min(left, len(self.pending(one)))
                left -= plan[one]
                if not left:
                    break
        return self.batch(plan, preempted)

    def writers(self):
        return {one: 1 for one in self.running if len(self.pending(one)) == 1}, []


class PreemptiveScheduler(ChunkedScheduler):
    def admit(self, sequence):
        return self.enter(sequence, len(sequence.tokens), len(self.running))

    def writers(self):
        plan, preempted = {}, []
        for one in [one for one in self.running if len(self.pending(one)) == 1]:
            while one.number is not None:
                if self.tables.try_reserve({one.number: 1}):
                    plan[one] = 1
                    break
                preempted.append(self.running[-1])
                self.leave(preempted[-1])
        return plan, preempted


def steps_to_first(prompt, writers, tokens):
    return math.ceil(prompt / (tokens - writers))


def token_budget(clock, writers, past, tpot_s):
    def lasts_too_long(tokens):
        return clock([(1, past) for _ in range(writers)] + [(tokens - writers, 0)]) > tpot_s

    low, high = writers + 1, writers + 2
    while not lasts_too_long(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if lasts_too_long(middle) else (middle, high)
    return low


class PromisedScheduler(PreemptiveScheduler):
    def __init__(self, tables, limits, clock, objective):
        super().__init__(tables, limits)
        self.clock, self.objective = clock, objective

    def schedule(self):
        past = sum(self.tables.length(one.number) for one in self.running)
        writers = max(1, len(self.running))
        tokens = token_budget(self.clock, writers, past // writers, 0.95 * self.objective.tpot_s)
        self.limits = Limits(self.limits.sequences, max(self.limits.sequences, tokens))
        here, late = self.running, self.now_s - self.objective.ttft_s
        in_time = [one for one in self.waiting if one.arrived_s > late]
        rest = [one for one in self.waiting if one not in in_time]
        self.texts = here + sorted(in_time, key=lambda one: len(one.tokens)) + rest
        return super().schedule()
