"""A running digest for each sequence, blocks for all decoding sequences at once, slack in place of lateness."""


def keys(tokens, page):
    running, found = hashlib.md5(), []
    for place, token in enumerate(tokens, start=1):
        running.update(token.to_bytes(8, "little", signed=True))
        if place % page == 0:
            found.append(running.hexdigest())
    return found


class PrefixTables(PageTables):
    def __init__(self, blocks, page):
        super().__init__(blocks, page)
        self.running, self.full = {}, {}

    def start(self, tokens=()):
        number = super().start()
        table = self.tables[number]
        hits = [self.blocks.find(key) for key in keys(tokens, self.page)]
        hits = hits[: hits.index(None)] if None in hits else hits
        if len(hits) * self.page == len(tokens):
            hits = hits[:-1]
        for block in hits:
            self.blocks.share(block)
        table.extend(hits)
        self.kept[number] = list(tokens[: len(hits) * self.page])
        self.running[number], self.full[number] = hashlib.md5(), len(hits)
        for token in self.kept[number]:
            self.running[number].update(token.to_bytes(8, "little", signed=True))
        return number

    def commit(self, new):
        for number, tokens in new.items():
            for token in tokens:
                self.kept[number].append(token)
                self.running[number].update(token.to_bytes(8, "little", signed=True))
                if len(self.kept[number]) == (self.full[number] + 1) * self.page:
                    block = self.tables[number][self.full[number]]
                    self.blocks.register(block, self.running[number].hexdigest())
                    self.full[number] += 1


class PreemptiveScheduler(ChunkedScheduler):
    def admit(self, sequence):
        number = self.tables.start(sequence.tokens)
        missing = len(sequence.tokens) - self.tables.length(number)
        if not self.tables.try_reserve({number: missing}, len(self.running)):
            self.tables.drop(number)
            return False
        self.waiting.remove(sequence)
        self.running.append(sequence)
        sequence.number = number
        return True

    def preempt(self, sequence, batch):
        self.running.remove(sequence)
        self.tables.drop(sequence.number)
        sequence.number = None
        self.waiting = [sequence, *self.waiting]
        batch.preempted = [sequence, *batch.preempted]

    def feed_writers(self, batch):
        writers = {one: 1 for one in self.running if self.pending(one) == 1}
        while not self.tables.try_reserve({one.number: count for one, count in writers.items()}):
            writers.pop(self.running[-1], None)
            self.preempt(self.running[-1], batch)
        for one, count in writers.items():
            self.feed(batch, one, count)


class PromisedScheduler(PreemptiveScheduler):
    def __init__(self, tables, limits, clock, objective):
        super().__init__(tables, limits)
        self.clock, self.objective = clock, objective

    def schedule(self):
        parts = [(1, self.tables.length(one.number)) for one in self.running if self.pending(one) == 1]
        left_s = self.objective.tpot_s - self.clock(parts)
        chunk = max(0, int(left_s / (self.clock([(1, 0)]) - self.clock([]))))
        self.limits = Limits(self.limits.sequences, max(self.limits.sequences, len(parts) + chunk))
        in_time = [one for one in self.waiting if self.slack_s(one) > 0]
        too_late = [one for one in self.waiting if self.slack_s(one) <= 0]
        self.waiting = sorted(in_time, key=lambda one: (one.prompt, one.most)) + sorted(
            too_late, key=lambda one: one.most
        )
        return super().schedule()

    def slack_s(self, sequence):
        until_s = sequence.arrived_s + self.objective.ttft_s
        return until_s - self.now_s - self.clock([(sequence.prompt, 0)])
