"""Derivatives by hand, in one function for the whole MLP; each rank's own maximum; chunks that run again."""


class WholeMLP(torch.autograd.Function):
    """Forward and backward of an MLP's shard, with the two sums where they belong."""

    @staticmethod
    def forward(ctx, x, up, up_bias, down, down_bias, group):
        hidden = (x @ up.T + up_bias).clamp(min=0)
        ctx.save_for_backward(x, up, down, hidden)
        ctx.group = group
        return collectives.all_reduce(group, hidden @ down.T) + down_bias

    @staticmethod
    def backward(ctx, gradient):
        x, up, down, hidden = ctx.saved_tensors
        back = (gradient @ down) * (hidden > 0)
        x_grad = collectives.all_reduce(ctx.group, back @ up)
        return x_grad, back.T @ x, back.sum(0), gradient.T @ hidden, gradient.sum(0), None


class ParallelMLP(nn.Module):
    def __init__(self, up, down, group):
        super().__init__()
        self.up, self.down, self.group = ColumnParallelLinear(up, group), RowParallelLinear(down, group), group

    def forward(self, x):
        return WholeMLP.apply(x, self.up.weight, self.up.bias, self.down.weight, self.down.bias, self.group)


class VocabParallelCrossEntropy(torch.autograd.Function):
    """One gather of two numbers a token, relative to each rank's own maximum."""

    @staticmethod
    def forward(ctx, logits, targets, group):
        log_sum = torch.logsumexp(logits, 1)
        columns = targets - group.rank * logits.shape[1]
        inside = (columns >= 0) & (columns < logits.shape[1])
        columns = columns.clamp(0, logits.shape[1] - 1)
        of_target = torch.where(inside, logits[torch.arange(len(targets)), columns], 0.0)
        gathered = torch.stack(collectives.all_gather(group, torch.stack([log_sum, of_target])))
        log_total = torch.logsumexp(gathered[:, 0], 0)
        ctx.save_for_backward(logits, log_total, columns, inside)
        return (log_total - gathered[:, 1].sum(0)).mean()

    @staticmethod
    def backward(ctx, gradient):
        logits, log_total, columns, inside = ctx.saved_tensors
        d = torch.exp(logits - log_total.unsqueeze(1))
        d.scatter_add_(1, columns.unsqueeze(1), -inside.double().unsqueeze(1))
        return d * (gradient / len(logits)), None, None


class Pipeline:
    """A rank keeps what went in, and runs its chunk once more in the backward pass."""

    def __init__(self, chunks, group):
        self.chunks, self.group = chunks, group

    def step(self, schedule, inputs, targets, loss):
        r, p, m = self.group.rank, self.group.size, len(inputs)
        xs, requests, mean = {}, [], 0.0
        for kind, i, chunk in schedule[r]:
            if kind == "forward":
                xs[i] = inputs[i].detach().clone() if r == 0 else self.group.recv(r - 1)
                with torch.no_grad():
                    output = self.chunks[chunk](xs[i])
                if r < p - 1:
                    requests += [self.group.isend(output, r + 1)]
            else:
                x = xs.pop(i).requires_grad_()
                output = self.chunks[chunk](x)
                if r == p - 1:
                    one = loss(output, targets[i])
                    mean += one.item() / m
                    torch.autograd.backward(one / m)
                else:
                    torch.autograd.backward([output], [self.group.recv(r + 1)])
                if r > 0:
                    requests += [self.group.isend(x.grad.clone(), r - 1)]
        while requests:
            requests.pop().wait()
        return mean if r == p - 1 else None


def zigzag_positions(tokens, ranks):
    length = tokens // (2 * ranks)
    chunks = [list(range(i * length, (i + 1) * length)) for i in range(2 * ranks)]
    return [torch.tensor(chunks[r] + chunks[-1 - r]) for r in range(ranks)]


def ring_attention(q, k, v, group, positions):
    """Receives are posted before each blocking send; keys and values as one flat message."""
    p, r = group.size, group.rank
    own, state = positions[r][:, None], None
    flat = torch.cat([k.reshape(-1), v.reshape(-1)])
    for step in range(p):
        keys, values = flat.view(2, *k.shape)
        hidden = torch.zeros(()).where(positions[(r - step) % p] <= own, -torch.inf)
        scores = (q @ keys.transpose(2, 3)) / math.sqrt(k.shape[3]) + hidden
        top = scores.amax(3, keepdim=True).clamp(min=-1e300)
        weights = (scores - top).exp()
        sums, parts = weights.sum(3, keepdim=True), weights @ values
        if state is None:
            state = top, sums, parts
        else:
            largest = torch.maximum(state[0], top)
            a, b = (state[0] - largest).exp(), (top - largest).exp()
            state = largest, state[1] * a + sums * b, state[2] * a + parts * b
        if step < p - 1:
            request = group.irecv((r - 1) % p)
            group.send(flat, (r + 1) % p)
            flat = request.wait()
    return state[2] / state[1]


def all_to_all(rank, parts):
    """Pair by pair: of two ranks the lower one sends first."""
    received = []
    for other in range(rank.size):
        if other == rank.rank:
            received.append(parts[other].clone())
        elif rank.rank < other:
            rank.send(parts[other], other)
            received.append(rank.recv(other))
        else:
            got = rank.recv(other)
            rank.send(parts[other], other)
            received.append(got)
    return received


def step_seconds(config, machine, layout, batch, tokens):
    d, t, p = layout.data, layout.tensor, layout.pipeline
    m, in_node = batch / d, min(d, machine.node / t)
    work = 6.0 * config.num_parameters * (m * tokens) / (t * p) / machine.peak_flops_per_s
    row = tokens * config.d_model * 2.0
    tensor = m * (config.layers / p) * 8 * row * (1 - 1 / t)
    held = 2.0 * config.num_parameters / t / p
    network = 2 * held * (1 - in_node / d) / in_node + (2 * m * row / t if p > 1 else 0)
    return {
        "network": network / machine.network_bytes_per_s,
        "link": (tensor + 2 * held * (1 - 1 / in_node)) / machine.link_bytes_per_s,
        "compute": work,
        "bubble": work / m * (p - 1),
    }
