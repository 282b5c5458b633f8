"""Keys laid out as (layer, row, position, head, size); a ragged batch in padded rows, attended to by einsum at once."""


class Contiguous(Cache):
    def __init__(self, model, *, sequences, capacity):
        super().__init__(sequences)
        c = model.config
        shape = (2, c.n_layers, sequences, capacity, c.n_kv_heads, c.head_dim)
        self.store = torch.full(shape, 7.0, dtype=model.embedding.weight.dtype)

    def update(self, layer, sequence, k, v):
        first, row = self.length(sequence), self.row(sequence)
        new = torch.arange(first, first + k.shape[1])
        for which, x in enumerate((k, v)):
            self.store[which, layer, row].index_copy_(0, new, x.transpose(0, 1))
        keys, values = self.store[:, layer, row, : first + k.shape[1]].transpose(1, 2)
        return keys, values, torch.arange(first + k.shape[1])


class SlidingWindow(Contiguous):
    def __init__(self, model, *, sequences, chunk):
        self.window, self.num_slots = model.window, model.window + chunk - 1
        super().__init__(model, sequences=sequences, capacity=self.num_slots)
        self.places = torch.full((model.config.n_layers, sequences, self.num_slots), -1)

    def drop(self, sequence):
        self.places[:, self.row(sequence)] = -1
        super().drop(sequence)

    def update(self, layer, sequence, k, v):
        row, length = self.row(sequence), self.length(sequence)
        places = self.places[layer, row]
        for i in range(k.shape[1]):
            slot = (length + i) % self.num_slots
            places[slot] = length + i
            self.store[:, layer, row, slot] = torch.stack((k[:, i], v[:, i]))
        wanted = ((places > length - self.window) & (places >= 0) & (places < length + k.shape[1])).nonzero()[:, 0]
        keys, values = self.store[:, layer, row, wanted].transpose(1, 2)
        return keys, values, places[wanted]


def attend(q, keys, values, mask):
    scores = torch.einsum("nth,nsh->nts", q, keys) * q.shape[2] ** -0.5
    scores = scores + torch.zeros_like(mask, dtype=q.dtype).masked_fill(~mask, float("-inf"))
    raised = (scores - scores.amax(-1, keepdim=True)).exp()
    return torch.einsum("nts,nsh->nth", raised, values) / raised.sum(-1, keepdim=True)


def attend_grouped(q, keys, values, mask):
    groups = zip(q.split(len(q) // len(keys)), keys, values, strict=True)
    return torch.cat([attend(part, *(x.expand(len(part), -1, -1) for x in kv), mask) for part, *kv in groups])


def extend(model, cache, new, *, every_token=False):
    tokens, positions, last = pack(cache, new)
    counts = torch.tensor([len(part) for part in new.values()])
    row = torch.repeat_interleave(torch.arange(len(new)), counts)
    column = torch.cat([torch.arange(count) for count in counts.tolist()])
    lengths = torch.tensor([cache.length(sequence) for sequence in new])

    def attend_step(layer, q, k, v):
        N, H, T, S = q.shape[1], q.shape[3], int(counts.max()), int((lengths + counts).max())
        padded, keys, values = (torch.zeros(len(new), N, x, H, dtype=q.dtype) for x in (T, S, S))
        padded[row, :, column] = q[0].transpose(0, 1)
        for r, sequence in enumerate(new):
            mine = (row == r).nonzero()[:, 0]
            kept_k, kept_v, places = cache.update(layer, sequence, k[0, :, mine], v[0, :, mine])
            shared = N // len(kept_k)
            keys[r, :, places] = kept_k.repeat_interleave(shared, 0)
            values[r, :, places] = kept_v.repeat_interleave(shared, 0)
        back = (lengths[:, None] + torch.arange(T))[:, :, None] - torch.arange(S)  # (R, T, S)
        there = (back >= 0) & (back < (model.window or S + T))
        scores = torch.einsum("rnth,rnsh->rnts", padded, keys) / H**0.5
        shares = scores.masked_fill(~there[:, None], -torch.inf).softmax(-1)
        heads = torch.einsum("rnts,rnsh->rnth", shares, values)
        return heads[row, :, column].transpose(0, 1)[None]

    with torch.inference_mode():
        logits = model.forward(tokens, positions=positions, attend=attend_step)[0]
    for sequence, part in new.items():
        cache.advance(sequence, len(part))
    return logits if every_token else logits[last]
