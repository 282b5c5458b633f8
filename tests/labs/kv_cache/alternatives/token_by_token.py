"""A list of tokens for each sequence, each with its own arrays; attention query by query; prefill calls itself."""


class Contiguous(Cache):
    def __init__(self, model, *, sequences, capacity):
        super().__init__(sequences)
        self.tokens = [[[] for _ in range(sequences)] for _ in range(model.config.n_layers)]

    def kept(self, layer, sequence, k, v):
        """The list of (position, key, value), the new ones among them, of a layer."""
        there = self.tokens[layer][self.row(sequence)]
        length = self.length(sequence)
        there[:] = [one for one in there if one[0] < length]
        there += [(length + i, k[:, i].clone(), v[:, i].clone()) for i in range(k.shape[1])]
        return there

    def update(self, layer, sequence, k, v):
        places, keys, values = zip(*self.kept(layer, sequence, k, v), strict=True)
        return torch.stack(keys, 1), torch.stack(values, 1), torch.tensor(places)


class SlidingWindow(Contiguous):
    def __init__(self, model, *, sequences, chunk):
        super().__init__(model, sequences=sequences, capacity=0)
        self.window, self.chunk = model.window, chunk

    def update(self, layer, sequence, k, v):
        there = self.kept(layer, sequence, k, v)
        first = self.length(sequence) - self.window + 1
        seen = [one for one in there if one[0] >= first][::-1]
        del there[: -(self.window - 1 + self.chunk)]
        places, keys, values = zip(*seen, strict=True)
        return torch.stack(keys, 1), torch.stack(values, 1), torch.tensor(places)


def pack(cache, new):
    flat = [(token, cache.length(s) + i, i + 1 == len(part)) for s, part in new.items() for i, token in enumerate(part)]
    tokens, positions, ending = torch.tensor(flat).T
    return tokens[None], positions[None], ending.nonzero().flatten()


def attend(q, keys, values, mask):
    out = torch.empty_like(q)
    for n in range(len(q)):
        for t, seen in enumerate(mask):
            scores = (keys[n, seen] * q[n, t]).sum(-1) / q.shape[-1] ** 0.5
            out[n, t] = torch.softmax(scores, 0) @ values[n, seen]
    return out


def attend_grouped(q, keys, values, mask):
    size = len(q) // len(keys)
    return torch.cat(
        [attend(q[n : n + 1], keys[n // size, None], values[n // size, None], mask) for n in range(len(q))]
    )


def extend(model, cache, new, *, every_token=False):
    tokens, positions, last = pack(cache, new)
    owners = [sequence for sequence, part in new.items() for _ in part]

    def attend_step(layer, q, k, v):
        heads = torch.empty_like(q)
        for sequence in new:
            mine = [i for i, owner in enumerate(owners) if owner == sequence]
            keys, values, places = cache.update(layer, sequence, k[0, :, mine], v[0, :, mine])
            for i in mine:
                at = positions[0, i : i + 1]
                heads[0, :, i : i + 1] = attend_sequence(model, q[0, :, i : i + 1], keys, values, at, places)
        return heads

    with torch.no_grad():
        logits = model(tokens, positions=positions[0], attend=attend_step, rows=torch.arange(len(owners)))
    for owner in owners:
        cache.advance(owner, 1)
    return logits if every_token else logits.index_select(0, last)


def prefill(model, cache, sequence, prompt, chunk):
    while cache.length(sequence) >= len(prompt):
        cache.truncate(sequence, cache.length(sequence) - 1)
    first = cache.length(sequence)
    part = prompt[first : first + chunk]
    logits = extend(model, cache, {sequence: list(part)}, every_token=True)
    return prefill(model, cache, sequence, prompt, chunk) if first + len(part) < len(prompt) else logits[-1]
