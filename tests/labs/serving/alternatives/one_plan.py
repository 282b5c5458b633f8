"""Correct alternative solution that every check must accept: schedulers that plan a step before its output."""


class Scheduler(Scheduler):
    def __init__(self, block_manager, config):
        self.block_manager, self.config, self.now_s, self.num_added, self.num_steps = block_manager, config, 0.0, 0, 0
        self.sequences = []  # in the order of arrival
        self.admitted = set()

    @property
    def running(self):
        return [seq for seq in self.sequences if seq in self.admitted]

    @property
    def waiting(self):
        return [seq for seq in self.sequences if seq not in self.admitted]

    def add(self, prompt_token_ids, max_tokens):
        self.sequences.append(super().add(prompt_token_ids, max_tokens))
        return self.sequences[-1]

    def finish(self, seq):
        self.sequences.remove(seq)
        self.leave(seq)

    def leave(self, seq):
        self.block_manager.free(seq)
        self.admitted.discard(seq)

    def enter(self, seq, num_tokens, reserved=0):
        num_cached = self.block_manager.allocate_prefix(seq)
        if self.block_manager.allocate_slots(seq, num_tokens - num_cached, reserved):
            self.admitted.add(seq)
            return True
        self.block_manager.free(seq)
        return False

    def admit(self, seq):
        return self.enter(seq, seq.num_prompt_tokens + seq.max_tokens - 1)

    def output(self, plan, preempted=()):
        sampled = [seq for seq, count in plan.items() if count == seq.num_pending_tokens]
        return SchedulerOutput(plan, sampled, list(preempted))

    def newcomers(self):
        for seq in self.waiting:
            if len(self.running) == self.config.max_num_seqs or not self.admit(seq):
                return
            yield seq

    def schedule(self):
        plan = {seq: seq.num_pending_tokens for seq in self.running}
        for seq in self.newcomers():
            plan[seq] = seq.num_pending_tokens
        return self.output(plan)


class ChunkedScheduler(Scheduler):
    def schedule(self):
        plan, preempted = self.decodes()
        left = self.config.max_num_batched_tokens - len(plan)
        for seq in self.running:
            if left and seq not in plan:
                plan[seq] = min(left, seq.num_pending_tokens)
                left -= plan[seq]
        if left:
            for seq in self.newcomers():
                plan[seq] = min(left, seq.num_pending_tokens)
                left -= plan[seq]
                if not left:
                    break
        return self.output(plan, preempted)

    def decodes(self):
        return {seq: 1 for seq in self.running if seq.num_pending_tokens == 1}, []


class PreemptiveScheduler(ChunkedScheduler):
    def admit(self, seq):
        return self.enter(seq, len(seq.token_ids), len(self.running))

    def decodes(self):
        plan, preempted = {}, []
        for seq in [seq for seq in self.running if seq.num_pending_tokens == 1]:
            while seq in self.admitted:
                if self.block_manager.allocate_slots(seq, 1):
                    plan[seq] = 1
                    break
                preempted.append(self.running[-1])
                preempted[-1].num_preemptions += 1
                self.leave(preempted[-1])
        return plan, preempted


def steps_to_first(num_prompt_tokens, num_decoding, max_num_batched_tokens):
    return math.ceil(num_prompt_tokens / (max_num_batched_tokens - num_decoding))


def token_budget(step_time, num_decoding, num_computed, tpot_s):
    def takes_too_long(budget):
        return step_time([(1, num_computed) for _ in range(num_decoding)] + [(budget - num_decoding, 0)]) > tpot_s

    low, high = num_decoding + 1, num_decoding + 2
    while not takes_too_long(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if takes_too_long(middle) else (middle, high)
    return low


class SLOScheduler(PreemptiveScheduler):
    def __init__(self, block_manager, config, step_time, slo):
        super().__init__(block_manager, config)
        self.step_time, self.slo = step_time, slo

    def schedule(self):
        running = self.running
        num_decoding = max(1, len(running))
        mean = sum(seq.num_computed_tokens for seq in running) // num_decoding
        budget = token_budget(self.step_time, num_decoding, mean, 0.95 * self.slo.tpot_s)
        most = self.config.max_num_seqs
        self.config = SchedulerConfig(most, max(most, budget))
        waiting, late = self.waiting, self.now_s - self.slo.ttft_s
        in_time = [seq for seq in waiting if seq.arrival_s > late]
        rest = [seq for seq in waiting if seq.arrival_s <= late]
        self.sequences = running + sorted(in_time, key=lambda seq: len(seq.token_ids)) + rest
        return super().schedule()
