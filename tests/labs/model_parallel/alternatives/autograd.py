"""What torch can differentiate it differentiates: hooks, sharded sums with a backward pass, greedy schedules."""


def shard_parameter(parameter, dim, group):
    length = parameter.shape[dim] // group.size
    own = parameter.data.narrow(dim, group.rank * length, length)
    return nn.Parameter(torch.empty_like(own).copy_(own))


class ColumnParallelLinear(nn.Linear):
    def __init__(self, linear, group):
        super().__init__(linear.in_features, linear.out_features // group.size)
        self.weight, self.bias = shard_parameter(linear.weight, 0, group), shard_parameter(linear.bias, 0, group)


class RowParallelLinear(nn.Linear):
    def __init__(self, linear, group):
        super().__init__(linear.in_features // group.size, linear.out_features)
        self.weight, self.bias, self.group = shard_parameter(linear.weight, -1, group), linear.bias, group

    def forward(self, x):
        product = x @ self.weight.T
        return product + (collectives.all_reduce(self.group, product.detach()) - product.detach()) + self.bias


class ParallelMLP(nn.Module):
    def __init__(self, up, down, group):
        super().__init__()
        self.up, self.down, self.group = ColumnParallelLinear(up, group), RowParallelLinear(down, group), group

    def forward(self, x):
        entered = x.view_as(x)
        if entered.requires_grad:
            entered.register_hook(lambda gradient: collectives.all_reduce(self.group, gradient))
        return self.down(F.relu(self.up(entered)))


def vocab_parallel_cross_entropy(logits, targets, group):
    largest = torch.cat([one[None] for one in collectives.all_gather(group, logits.detach().amax(1))]).amax(0)
    shifted = logits - largest[:, None]
    start = group.rank * logits.shape[1]
    inside = torch.arange(start, start + logits.shape[1]) == targets[:, None]
    total = ReduceFromTensorParallelRegion.apply(shifted.exp().sum(1), group)
    of_target = ReduceFromTensorParallelRegion.apply(shifted.masked_fill(~inside, 0).sum(1), group)
    return (total.log() - of_target).sum() / len(targets)


def one_forward_one_backward(ranks, micro_batches):
    schedule = []
    for r in range(ranks):
        forward, backward, actions = 0, 0, []
        while backward < micro_batches:
            if forward < micro_batches and forward - backward < ranks - r:
                actions.append(("forward", forward))
                forward += 1
            else:
                actions.append(("backward", backward))
                backward += 1
        schedule.append(tuple(actions))
    return tuple(schedule)


class Pipeline:
    """Forward sends wait for the other side; the mean is a tensor."""

    def __init__(self, chunks, group):
        self.chunk, self.group = chunks[0], group

    def step(self, schedule, inputs, targets, loss):
        rank, size = self.group.rank, self.group.size
        graphs, starts, requests, losses = {}, {}, [], []
        for action in schedule[rank]:
            i = action.micro_batch
            if action.kind == "forward":
                starts[i] = inputs[i].clone() if rank == 0 else self.group.recv(rank - 1)
                graphs[i] = self.chunk(starts[i].requires_grad_())
                if rank + 1 < size:
                    self.group.send(graphs[i], rank + 1)
            elif rank + 1 < size:
                graphs.pop(i).backward(self.group.recv(rank + 1))
            else:
                losses.append(loss(graphs.pop(i), targets[i]))
                (losses[-1] / len(targets)).backward()
            if action.kind == "backward" and rank:
                requests.append(self.group.isend(starts.pop(i).grad, rank - 1))
        [one.wait() for one in requests]
        return torch.stack(losses).mean().detach() if losses else None


def ring_attention(q, k, v, group, positions):
    """Results merged by their log-sum-exp; blocks that no query here sees are only passed on; two messages a block."""
    p, own = group.size, positions[group.rank]
    out, log_sum = torch.zeros_like(q), q.new_full(q.shape[:3], -torch.inf)
    for step in range(p):
        if step + 1 < p:
            sending = [group.isend(one, (group.rank - 1) % p) for one in (k, v)]
            receiving = [group.irecv((group.rank + 1) % p) for _ in range(2)]
        seen = positions[(group.rank + step) % p]
        if seen.min() <= own.max():
            scores = torch.einsum("bnth,bnsh->bnts", q, k) * k.shape[3] ** -0.5
            scores = torch.where(seen <= own[:, None], scores, -torch.inf)
            both = torch.logaddexp(log_sum, scores.logsumexp(3))
            out = out * (log_sum - both).exp()[..., None] + (scores - both[..., None]).exp() @ v
            log_sum = both
        if step + 1 < p:
            k, v = (one.wait() for one in receiving)
            [one.wait() for one in sending]
    return out
