"""Sums through rank 0 in messages of its own, few tensors at a time, and Python's own loops where they will do."""


def add_up(group, x):
    """The sum of all ranks' x, through rank 0."""
    if group.rank:
        group.send(x, 0)
        return group.recv(0)
    total = x.clone()
    for other in range(1, group.size):
        total += group.recv(other)
    for other in range(1, group.size):
        group.send(total, other)
    return total


class CopyToTensorParallelRegion(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return add_up(ctx.group, gradient), None


class ReduceFromTensorParallelRegion(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        return add_up(group, x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.clone(), None


def shard_parameter(parameter, dim, group):
    columns = list(parameter.detach().unbind(dim))
    length = len(columns) // group.size
    return nn.Parameter(torch.stack(columns[group.rank * length : (group.rank + 1) * length], dim))


class VocabParallelCrossEntropy(torch.autograd.Function):
    """Token by token: dictionaries of local targets."""

    @staticmethod
    def forward(ctx, logits, targets, group):
        maxima = [one.tolist() for one in collectives.all_gather(group, logits.max(dim=1).values)]
        largest = torch.tensor([max(column) for column in zip(*maxima, strict=True)], dtype=logits.dtype)
        width, own = logits.shape[1], {}
        for token, target in enumerate(targets.tolist()):
            if target // width == group.rank:
                own[token] = target % width
        known = torch.zeros(2, len(targets), dtype=logits.dtype)
        known[0] = torch.exp(logits - largest.view(-1, 1)).sum(1)
        for token, column in own.items():
            known[1, token] = logits[token, column] - largest[token]
        total, of_target = add_up(group, known)
        ctx.logits, ctx.log_total, ctx.own = logits, largest + total.log(), own
        return torch.mean(total.log() - of_target)

    @staticmethod
    def backward(ctx, gradient):
        d = torch.exp(ctx.logits - ctx.log_total[:, None])
        for token, column in ctx.own.items():
            d[token, column] -= 1
        return d.mul_(float(gradient)).div_(len(d)), None, None


def one_forward_one_backward(ranks, micro_batches):
    """From the last rank backwards: backward passes follow the forward passes that the next rank needs."""
    schedule = [[Action(kind, i) for i in range(micro_batches) for kind in ("forward", "backward")]]
    for _ in range(ranks - 1):
        actions, forward = [Action("forward", 0)], 1
        for kind, i, _chunk in schedule[0]:
            if kind == "forward" and forward < micro_batches and i + 1 == forward:
                actions.append(Action("forward", forward))
                forward += 1
            elif kind == "backward":
                actions.append(Action("backward", i))
        schedule.insert(0, actions)
    return schedule


def ring_attention(q, k, v, group, positions):
    """A query at a time asks which keys it sees."""
    p, own = group.size, positions[group.rank].tolist()
    top = q.new_full(q.shape[:3], -torch.inf)
    sums = torch.zeros(*q.shape[:3], q.shape[3] + 1, dtype=q.dtype)
    block = torch.stack([k, v])
    for step in range(p):
        if step < p - 1:
            moving = group.isend(block, (group.rank + 1) % p), group.irecv((group.rank - 1) % p)
        seen = positions[(group.rank - step) % p]
        for t, position in enumerate(own):
            visible = (seen <= position).nonzero().flatten()
            if not len(visible):
                continue
            keys, values = block[:, :, :, visible]
            scores = (keys @ q[:, :, t, :, None])[..., 0] / k.shape[3] ** 0.5
            largest = torch.maximum(top[:, :, t], scores.amax(2))
            weights = (scores - largest[..., None]).exp()
            terms = torch.cat([(weights[..., None] * values).sum(2), weights.sum(2, keepdim=True)], 2)
            sums[:, :, t] = sums[:, :, t] * (top[:, :, t] - largest).exp()[..., None] + terms
            top[:, :, t] = largest
        if step < p - 1:
            block = moving[1].wait()
            moving[0].wait()
    return sums[..., :-1] / sums[..., -1:]


def route(expert_ids, num_experts, capacity_factor=None):
    wanted = [
        (expert, choice, token) for token, row in enumerate(expert_ids.tolist()) for choice, expert in enumerate(row)
    ]
    capacity = len(wanted) if capacity_factor is None else -int(-capacity_factor * len(wanted) // num_experts)
    queues = [sorted(one for one in wanted if one[0] == expert) for expert in range(num_experts)]
    rows = [one for queue in queues for one in queue[:capacity]]
    tokens, choices = ([one[i] for one in rows] for i in (2, 1))
    counts = [min(capacity, len(queue)) for queue in queues]
    indices = (torch.tensor(one, dtype=torch.int64) for one in (tokens, choices, counts))
    return Routing(*indices, len(wanted) - len(rows))


def dispatch_and_combine(tokens, weights, routing, experts, group):
    """A row at a time on lists; the local number of its expert travels with each row."""
    local, lists, row = len(experts), [[] for _ in range(group.size)], 0
    for e, count in enumerate(routing.tokens_per_expert.tolist()):
        for _ in range(count):
            lists[e // local].append((int(routing.token_indices[row]), int(routing.topk_index[row]), e % local))
            row += 1
    numbers = all_to_all(group, [torch.tensor([e for *_, e in one], dtype=torch.int64) for one in lists])
    blocks = all_to_all(group, [tokens[[token for token, *_ in one]] for one in lists])
    for which, block in zip(numbers, blocks, strict=True):
        for i, e in enumerate(which.tolist()):
            block[i] = experts[e](block[i : i + 1])[0]
    out = torch.zeros_like(tokens)
    for one, block in zip(lists, all_to_all(group, blocks), strict=True):
        for (token, choice, _), result in zip(one, block, strict=True):
            out[token] += weights[token, choice] * result
    return out


def choose_layout(config, machine, devices, batch, tokens):
    found = []
    for t in (t for t in range(1, machine.node + 1) if not (machine.node % t or config.d_model % t or devices % t)):
        for d in (d for d in range(1, batch + 1) if not (batch % d or devices % (d * t))):
            p = devices // (d * t)
            stage_layers, rest = divmod(config.layers, p)
            states = config.num_parameters / t / p * 4 * (1 + 3 / d)
            activations = min(p, batch // d) * stage_layers * tokens * config.d_model * (10 * t + 24) / t
            if rest == 0 and states + activations <= machine.memory_bytes:
                one = Layout(data=d, tensor=t, pipeline=p)
                found.append((sum(step_seconds(config, machine, one, batch, tokens).values()), d, one))
    return min(found)[2] if found else None
