"""Arrays that grow by joining, by sequence; torch's fused attention; drafts accepted all at once."""


class Contiguous(Cache):
    def __init__(self, model, *, sequences, capacity):
        super().__init__(sequences)
        c, self.dtype, self.joined = model.config, model.embedding.weight.dtype, {}
        self.nothing = torch.empty(c.n_kv_heads, 0, c.head_dim, dtype=self.dtype)

    def update(self, layer, sequence, k, v):
        before = self.joined.get((sequence, layer), (self.nothing, self.nothing))
        length = self.length(sequence)
        now = tuple(torch.cat((old[:, :length], x), dim=1) for old, x in zip(before, (k, v), strict=True))
        self.joined[sequence, layer] = now
        return *now, torch.arange(now[0].shape[1])

    def drop(self, sequence):
        super().drop(sequence)
        self.joined = {key: kept for key, kept in self.joined.items() if key[0] != sequence}


class SlidingWindow(Contiguous):
    def __init__(self, model, *, sequences, chunk):
        super().__init__(model, sequences=sequences, capacity=0)
        self.num_slots, self.window = model.window - 1 + chunk, model.window
        self.ends = {}

    def update(self, layer, sequence, k, v):
        keys, values = self.joined.get((sequence, layer), (self.nothing, self.nothing))
        length = self.length(sequence)
        stale = self.ends.get((sequence, layer), 0) - length
        stay = slice(0, keys.shape[1] - stale)
        both = [
            torch.cat((old[:, stay], x), dim=1)[:, -self.num_slots :].clone() for old, x in ((keys, k), (values, v))
        ]
        self.joined[sequence, layer] = tuple(both)
        self.ends[sequence, layer] = end = length + k.shape[1]
        seen = min(length, self.window - 1) + k.shape[1]
        return both[0][:, -seen:], both[1][:, -seen:], torch.arange(end - seen, end)


def causal_mask(queries, keys):
    return ~(keys.unsqueeze(0) > queries.unsqueeze(1))


def sliding_window_mask(queries, keys, window):
    return causal_mask(queries, keys) & ~causal_mask(queries - window, keys)


def attend(q, keys, values, mask):
    return torch.nn.functional.scaled_dot_product_attention(q, keys, values, attn_mask=mask)


def attend_grouped(q, keys, values, mask):
    return torch.nn.functional.scaled_dot_product_attention(
        q[None], keys[None], values[None], attn_mask=mask, enable_gqa=True
    )[0]


def step_cost(config, parts, *, weight_bytes=2, cache_bytes=2, window=None):
    c, window = config, window or 10**9
    width = c.head_dim * (2 * c.n_heads + 2 * c.n_kv_heads)
    blocks, head = c.n_layers * c.d_model * (width + 3 * c.d_ff), c.vocab_size * c.d_model
    token = 2 * c.n_layers * c.n_kv_heads * c.head_dim * cache_bytes
    flops = read = written = 0
    for new, cached in parts:
        seen = [(max(0, position + 1 - window), position + 1) for position in range(cached, cached + new)]
        flops += 2 * blocks * new + 2 * head
        flops += 4 * c.n_layers * c.n_heads * c.head_dim * sum(end - first for first, end in seen)
        read, written = read + (cached - seen[0][0]) * token, written + new * token
    return StepCost(flops, (blocks + head + c.d_model + 2 * c.n_layers * c.d_model) * weight_bytes, read, written)


def accept(drafts, proposed, wanted, uniforms):
    k = len(drafts)
    rows = torch.arange(k)
    stays = uniforms[:k] * proposed[rows, drafts] < wanted[rows, drafts]
    count = int(stays.long().cumprod(0).sum())
    beyond = torch.relu(wanted - torch.cat((proposed, torch.zeros_like(wanted[:1]))))[count]
    weights = beyond if beyond.sum() > 0 else wanted[count]
    return count, int((weights.cumsum(0) > uniforms[k] * weights.sum()).long().argmax())
