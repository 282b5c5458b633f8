"""No collective of lab 07: messages straight to rank 0 or to each owner; buckets that are only started in the hook."""

import contextlib
from itertools import pairwise


def broadcast_tensors(parameters, rank):
    """One message to each rank, with all parameters."""
    flat = torch.cat([one.data.reshape(-1) for one in parameters])
    if rank.rank == 0:
        for other in range(1, rank.size):
            rank.send(flat, other)
        return
    at = 0
    flat = rank.recv(0)
    for one in parameters:
        end = at + one.data.numel()
        one.data = flat[at:end].reshape(one.data.shape).clone()
        at = end


def loss_weights(tokens, rank):
    """All ranks exchange their counts, as integers; the weights are a tensor."""
    total = sum(int(one) for one in exchange_all(rank, [torch.tensor(sum(tokens))] * rank.size))
    return torch.tensor(tokens, dtype=torch.float64) * rank.size / total


def exchange_all(rank, parts):
    """parts[i] to each rank i; what all ranks sent here, in order."""
    others = [other for other in range(rank.size) if other != rank.rank]
    sent = [rank.isend(parts[other], other) for other in others]
    received = {other: rank.irecv(other) for other in others}
    for request in sent:
        request.wait()
    return [parts[i] if i == rank.rank else received[i].wait() for i in range(rank.size)]


def cut(flat, p):
    """Pieces as NumPy cuts them."""
    ends = [0]
    for i in range(p):
        ends.append(ends[-1] + (len(flat) - ends[-1] + p - i - 1) // (p - i))
    return [flat[a:b] for a, b in pairwise(ends)]


class Star:
    """A sum under way: all send to rank 0, which adds up and answers when somebody waits."""

    def __init__(self, rank, flat):
        self.rank, self.flat = rank, flat
        p = rank.size
        if rank.rank:
            self.sent, self.coming = rank.isend(flat, 0), [rank.irecv(0)]
        else:
            self.coming = [rank.irecv(other) for other in range(1, p)]

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
    flat = torch.cat([(one.data * 0 if one.grad is None else one.grad).reshape(-1) for one in parameters])
    mean, at = Star(rank, flat).mean(), 0
    for one in parameters:
        one.grad = mean[at : at + one.data.numel()].reshape(one.data.shape).clone()
        at += one.data.numel()


def assign_buckets(parameters, bucket_bytes):
    """What is left gets shorter by a bucket at a time; each bucket from its first parameter on."""
    buckets, left = [], list(parameters)
    while left:
        count = 1
        while count < len(left) and sum(one.nbytes for one in left[-count - 1 :]) <= bucket_bytes:
            count += 1
        first = len(left) - count
        buckets.append(left[first:])
        del left[first:]
    return buckets


class DDP:
    def __init__(self, parameters, rank, bucket_bytes=25 << 20):
        broadcast_tensors(parameters, rank)
        self.rank, self.buckets = rank, assign_buckets(parameters, bucket_bytes)
        self.stars, self.require_backward_grad_sync = [], True
        self.missing = [len(bucket) for bucket in self.buckets]
        for place, bucket in enumerate(self.buckets):
            for one in bucket:
                one.register_post_accumulate_grad_hook(lambda _, place=place: self.came(place))

    def came(self, place):
        if not self.require_backward_grad_sync:
            return
        self.missing[place] -= 1
        while len(self.stars) < len(self.buckets) and not self.missing[len(self.stars)]:
            self.start()

    def start(self):
        ones = self.buckets[len(self.stars)]
        grads = [one.new_zeros(one.shape) if one.grad is None else one.grad for one in ones]
        self.stars.append((ones, Star(self.rank, torch.cat([grad.flatten() for grad in grads]))))

    def finish_gradient_synchronization(self):
        while len(self.stars) < len(self.buckets):
            self.start()
        for ones, star in self.stars:
            mean = star.mean()
            for one in ones:
                one.grad, mean = mean[: one.numel()].reshape(one.shape).clone(), mean[one.numel() :]
        self.stars = []
        self.missing = [len(bucket) for bucket in self.buckets]

    @contextlib.contextmanager
    def no_sync(self):
        self.require_backward_grad_sync = False
        yield
        self.require_backward_grad_sync = True


class ShardedOptimizer:
    def __init__(self, parameters, optimizer_class, rank, **options):
        broadcast_tensors(parameters, rank)
        self.rank, self.parameters = rank, list(parameters)
        whole = torch.cat([one.detach().flatten() for one in parameters])
        self.shard = torch.nn.Parameter(cut(whole, rank.size)[rank.rank].clone())
        self.optimizer = optimizer_class((self.shard,), **options)

    def reduce_gradients(self):
        grads = [one.grad if one.grad is not None else torch.zeros_like(one) for one in self.parameters]
        pieces = cut(torch.cat([grad.flatten() for grad in grads]), self.rank.size)
        self.shard.grad = sum(exchange_all(self.rank, pieces)) / self.rank.size

    def step(self):
        self.optimizer.step()
        self.gather_weights()

    def gather_weights(self):
        whole = torch.cat(exchange_all(self.rank, [self.shard.detach()] * self.rank.size))
        with torch.no_grad():
            for one in self.parameters:
                one.copy_(whole[: one.numel()].reshape(one.shape))
                whole = whole[one.numel() :]


def clip_grad_norm(shards, max_norm, rank):
    grads = [shard.grad for shard in shards]
    squares = exchange_all(rank, [sum(grad.dot(grad) for grad in grads)] * rank.size)
    norm = torch.stack(squares).sum() ** 0.5
    for grad in grads:
        grad.mul_(min(1.0, max_norm / norm.clamp(min=1e-300)))
    return norm
