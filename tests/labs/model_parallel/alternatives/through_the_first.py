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
