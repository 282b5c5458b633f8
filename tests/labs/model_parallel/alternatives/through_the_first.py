"""Sums through rank 0 in messages of its own, few tensors at a time, and Python's own loops where they will do."""

import math


def add_up(rank, x):
    """Everybody's x through rank 0."""
    if rank.rank:
        rank.send(x, 0)
        return rank.recv(0)
    total = x.clone()
    for other in range(1, rank.size):
        total += rank.recv(other)
    for other in range(1, rank.size):
        rank.send(total, other)
    return total


class CopyToTensorParallelRegion(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, rank):
        ctx.rank = rank
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return add_up(ctx.rank, grad), None


class ReduceFromTensorParallelRegion(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, rank):
        return add_up(rank, x)

    @staticmethod
    def backward(ctx, grad):
        return grad.clone(), None


def take_part(rank, x, dim):
    columns = list(x.detach().unbind(dim))
    n, p = len(columns), rank.size
    lengths = [n // p + (r < n % p) for r in range(p)]
    first = sum(lengths[: rank.rank])
    own = columns[first : first + lengths[rank.rank]]
    return torch.stack(own, dim) if own else x.detach().narrow(dim, 0, 0).clone()


class CrossEntropy(torch.autograd.Function):
    """Token by token: dictionaries of what lies here."""

    @staticmethod
    def forward(ctx, logits, rank, start, targets):
        maxima = [one.tolist() for one in collectives.all_gather(rank, logits.max(dim=1).values)]
        largest = torch.tensor([max(column) for column in zip(*maxima, strict=True)], dtype=logits.dtype)
        width, own = logits.shape[1], {}
        for token, target in enumerate(targets.tolist()):
            if start <= target < start + width:
                own[token] = target - start
        known = torch.zeros(2, len(targets), dtype=logits.dtype)
        known[0] = torch.exp(logits - largest.view(-1, 1)).sum(1)
        for token, column in own.items():
            known[1, token] = logits[token, column] - largest[token]
        total, of_target = add_up(rank, known)
        ctx.logits, ctx.log_total, ctx.own = logits, largest + total.log(), own
        return torch.mean(total.log() - of_target)

    @staticmethod
    def backward(ctx, grad):
        d = torch.exp(ctx.logits - ctx.log_total[:, None])
        for token, column in ctx.own.items():
            d[token, column] -= 1
        return d.mul_(float(grad)).div_(len(d)), None, None, None


def one_forward_one_backward(p, m):
    """By what the stage behind does: its backward passes come right behind the forward passes that they need."""
    last = [action for i in range(m) for action in (("forward", i), ("backward", i))]
    schedule = [last]
    for _ in range(p - 1):
        behind = schedule[0]
        actions, forward = [("forward", 0)], 1
        for kind, i in behind:
            if kind == "forward" and forward < m and i + 1 == forward:
                actions.append(("forward", forward))
                forward += 1
            elif kind == "backward":
                actions.append(("backward", i))
        schedule.insert(0, actions)
    return schedule


def ring_attention(rank, q, k, v, positions):
    """Head by head on the block that is here; a query at a time asks which keys it sees."""
    p, own = rank.size, positions[rank.rank].tolist()
    heads, width = q.shape[0], v.shape[2]
    top = [[-float("inf")] * len(own) for _ in range(heads)]
    sums = torch.zeros(heads, len(own), width + 1, dtype=q.dtype)
    block = torch.cat([v, torch.ones_like(v[..., :1]), k], 2)
    for step in range(p):
        moving = (rank.isend(block[..., [*range(width), *range(width + 1, block.shape[2])]], (rank.rank + 1) % p),
                  rank.irecv((rank.rank - 1) % p)) if step < p - 1 else None  # fmt: skip
        seen = positions[(rank.rank - step) % p]
        for t, position in enumerate(own):
            visible = (seen <= position).nonzero().flatten()
            if not len(visible):
                continue
            keys, values = block[:, visible, width + 1 :], block[:, visible, : width + 1]
            for n in range(heads):
                scores = (keys[n] @ q[n, t]) / k.shape[2] ** 0.5
                most = max(top[n][t], float(scores.max()))
                shrink = math.exp(top[n][t] - most)
                sums[n, t] = sums[n, t] * shrink + (scores - most).exp() @ values[n]
                top[n][t] = most
        if moving:
            came = moving[1].wait()
            block = torch.cat([came[..., :width], torch.ones_like(came[..., :1]), came[..., width:]], 2)
            moving[0].wait()
    return sums[..., :width] / sums[..., width:]


def route(logits, k, capacity):
    n, count = logits.shape
    rows = [sorted(range(count), key=row.__getitem__, reverse=True)[:k] for row in logits.tolist()]
    experts = torch.tensor(rows, dtype=torch.int64).reshape(n, k)
    wanted = [[] for _ in range(count)]
    for choice in range(k):
        for token in range(n):
            wanted[rows[token][choice]].append((token, choice))
    kept = torch.zeros(n, k, dtype=torch.bool)
    for queue in wanted:
        for token, choice in queue[:capacity]:
            kept[token, choice] = True
    top = torch.take_along_dim(logits, experts, 1)
    return experts, (top - top.logsumexp(1, keepdim=True)).exp(), kept


def dispatch(rank, x, experts, weights, kept, owners, work):
    """A token at a time on lists, three exchanges in all."""
    lists = [[] for _ in range(rank.size)]
    for token in range(len(x)):
        for choice in range(experts.shape[1]):
            if kept[token, choice]:
                e = int(experts[token, choice])
                lists[int(owners[e])].append((token, choice, e))
    numbers = all_to_all(rank, [torch.tensor([e for *_, e in one], dtype=torch.int64) for one in lists])
    blocks = all_to_all(rank, [x[[token for token, *_ in one]] for one in lists])
    for which, block in zip(numbers, blocks, strict=True):
        for row, e in enumerate(which.tolist()):
            block[row] = work(e, block[row : row + 1])[0]
    out = torch.zeros_like(x)
    for one, block in zip(lists, all_to_all(rank, blocks), strict=True):
        for (token, choice, _), row in zip(one, block, strict=True):
            out[token] += weights[token, choice] * row
    return out


def choose_layout(model, machine, devices, batch):
    found = []
    for t in (t for t in range(1, machine.node + 1) if not (machine.node % t or model.width % t or devices % t)):
        for d in (d for d in range(1, batch + 1) if not (batch % d or devices % (d * t))):
            p = devices // (d * t)
            stage_layers, rest = divmod(model.layers, p)
            states = model.parameters / t / p * 4 * (1 + 3 / d)
            text = min(p, batch // d) * stage_layers * model.tokens * model.width * (10 * t + 24) / t
            if rest == 0 and states + text <= machine.memory_bytes:
                one = Layout(data=d, tensor=t, pipeline=p)
                found.append((sum(step_parts(model, machine, one, batch).values()), d, one))
    return min(found)[2] if found else None
