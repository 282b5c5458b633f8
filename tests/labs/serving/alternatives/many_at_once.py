"""Correct alternative solution that every check must accept: a running digest for each sequence.

Blocks of all decoding sequences are allocated at once, and slack takes the place of lateness.
"""


def hash_blocks(token_ids, block_size):
    running, found = hashlib.md5(), []
    for count, token in enumerate(token_ids, start=1):
        running.update(token.to_bytes(8, "little", signed=True))
        if count % block_size == 0:
            found.append(running.hexdigest())
    return found


class PrefixBlockManager(PrefixBlockManager):
    def __init__(self, num_blocks, block_size=16):
        super().__init__(num_blocks, block_size)
        self.num_hashed = {}

    def allocate_prefix(self, seq):
        hashes = hash_blocks(seq.token_ids, self.block_size)
        hits = [self.pool.get_cached_block(one) for one in hashes]
        hits = hits[: hits.index(None)] if None in hits else hits
        if len(hits) * self.block_size == len(seq.token_ids):
            hits = hits[:-1]
        for block in hits:
            self.pool.touch(block)
        seq.block_table.extend(hits)
        self.num_hashed[seq] = len(hits)
        seq.num_computed_tokens = len(hits) * self.block_size
        return seq.num_computed_tokens

    def cache_full_blocks(self, seq):
        before = self.num_hashed.get(seq, 0)
        hashes = hash_blocks(seq.token_ids[: seq.num_computed_tokens], self.block_size)
        for block, block_hash in list(zip(seq.block_table, hashes, strict=False))[before:]:
            self.pool.cache(block, block_hash)
        self.num_hashed[seq] = len(hashes)

    def free(self, seq):
        super().free(seq)
        self.num_hashed.pop(seq, None)


class PreemptiveScheduler(PreemptiveScheduler):
    def preempt(self, seq, output):
        self.running.remove(seq)
        self.block_manager.free(seq)
        self.waiting = [seq, *self.waiting]
        output.preempted, seq.num_preemptions = [seq, *output.preempted], seq.num_preemptions + 1

    def schedule_decodes(self, output):
        manager = self.block_manager
        decodes = [seq for seq in self.running if seq.num_pending_tokens == 1]
        while sum(manager.blocks_for(len(seq.token_ids)) - len(seq.block_table) for seq in decodes) > (
            manager.pool.num_free_blocks
        ):
            last = self.running[-1]
            if last in decodes:
                decodes.remove(last)
            self.preempt(last, output)
        for seq in decodes:
            assert manager.allocate_slots(seq, 1)
            self.schedule_tokens(seq, 1, output)


class SLOScheduler(PreemptiveScheduler):
    def __init__(self, block_manager, config, step_time, slo):
        super().__init__(block_manager, config)
        self.step_time, self.slo = step_time, slo

    def schedule(self):
        parts = [(1, seq.num_computed_tokens) for seq in self.running if seq.num_pending_tokens == 1]
        left_s = self.slo.tpot_s - self.step_time(parts)
        chunk = max(0, int(left_s / (self.step_time([(1, 0)]) - self.step_time([]))))
        most = self.config.max_num_seqs
        self.config = SchedulerConfig(most, max(most, len(parts) + chunk))
        in_time = [seq for seq in self.waiting if self.slack_s(seq) > 0]
        too_late = [seq for seq in self.waiting if self.slack_s(seq) <= 0]
        in_time.sort(key=lambda seq: (seq.num_prompt_tokens, seq.max_tokens))
        self.waiting = in_time + sorted(too_late, key=lambda seq: seq.num_prompt_tokens + seq.max_tokens)
        return super().schedule()

    def slack_s(self, seq):
        until_s = seq.arrival_s + self.slo.ttft_s
        return until_s - self.now_s - self.step_time([(seq.num_prompt_tokens, 0)])
