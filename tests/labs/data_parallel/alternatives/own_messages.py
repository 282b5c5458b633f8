"""No collective of lab 07: messages straight to rank 0 or to each owner; buckets that are only started in the hook."""


def fill(ones, flat, attribute):
    """Set an attribute of each tensor to its part of a flat one."""
    for one in ones:
        size = one.data.numel()
        setattr(one, attribute, flat[:size].reshape(one.data.shape).clone())
        flat = flat[size:]


def join_grads(ones):
    return torch.cat([(one.data * 0 if one.grad is None else one.grad).reshape(-1) for one in ones])


def broadcast_tensors(parameters, rank):
    """One message to each rank, with all parameters."""
    flat = torch.cat([one.data.reshape(-1) for one in parameters])
    for other in range(1, rank.size) if rank.rank == 0 else ():
        rank.send(flat, other)
    if rank.rank:
        fill(parameters, rank.recv(0), "data")


def exchange_all(rank, parts):
    """parts[i] to each rank i; what all ranks sent here, in order."""
    others = [other for other in range(rank.size) if other != rank.rank]
    sent = [rank.isend(parts[other], other) for other in others]
    received = {other: rank.irecv(other) for other in others}
    for request in sent:
        request.wait()
    return [parts[i] if i == rank.rank else received[i].wait() for i in range(rank.size)]


def loss_weights(tokens, rank):
    """All ranks exchange their counts, as integers; the weights are a tensor."""
    total = sum(int(one) for one in exchange_all(rank, [torch.tensor(sum(tokens))] * rank.size))
    return torch.tensor(tokens, dtype=torch.float64) * rank.size / total


class Star:
    """A sum under way: all send to rank 0, which adds up and answers when somebody waits."""

    def __init__(self, rank, flat):
        self.rank, self.flat, sources = rank, flat, [0] if rank.rank else range(1, rank.size)
        self.sent = rank.isend(flat, 0) if rank.rank else None
        self.coming = [rank.irecv(source) for source in sources]

    def mean(self):
        if self.rank.rank:
            self.sent.wait()
            return self.coming[0].wait()
        total = sum((request.wait() for request in self.coming), self.flat) / self.rank.size
        for other in range(1, self.rank.size):
            self.rank.send(total, other)
        return total


def backward_and_average(loss, tokens, parameters, rank):
    (loss * float(loss_weights([tokens], rank)[0])).backward()
    fill(parameters, Star(rank, join_grads(parameters)).mean(), "grad")


class DDP(DDP):
    """A hook only starts a bucket's average; all are awaited in the end."""

    def __init__(self, parameters, rank, bucket_bytes=25 << 20):
        super().__init__(parameters, rank, bucket_bytes)
        self.stars = []

    def average_bucket(self, bucket):
        self.num_averaged += 1
        self.stars.append((bucket, Star(self.group, join_grads(bucket))))

    def finish_gradient_synchronization(self):
        super().finish_gradient_synchronization()
        for bucket, star in self.stars:
            fill(bucket, star.mean(), "grad")
        self.stars.clear()


class ShardedOptimizer(ShardedOptimizer):
    """Every rank sends each owner its chunk of the gradients, and every other rank its own weights."""

    def reduce_gradients(self):
        pieces = join_grads(self.params).tensor_split(self.group.size)
        self.shard.grad = sum(exchange_all(self.group, pieces)) / self.group.size

    def gather_weights(self):
        with torch.no_grad():
            whole = torch.cat(exchange_all(self.group, [self.shard.detach()] * self.group.size))
            torch.nn.utils.vector_to_parameters(whole, self.params)


def clip_grad_norm(shards, max_norm, rank):
    grads = [shard.grad for shard in shards]
    squares = exchange_all(rank, [sum(grad.dot(grad) for grad in grads)] * rank.size)
    norm = torch.stack(squares).sum() ** 0.5
    for grad in grads:
        grad.mul_(min(1.0, max_norm / norm.clamp(min=1e-300)))
    return norm
