"""Shards of one length, padded with zeros; layers that autograd knows, whose saved weights are gathered when needed."""

import numpy as np


def padded_chunk(rank, flat):
    """This rank's row of as many equal rows as there are ranks."""
    rows = torch.nn.functional.pad(flat, (0, -len(flat) % rank.size)).reshape(rank.size, -1)
    return rows[rank.rank].clone()


def padded_mean(rank, flat):
    return collectives.reduce_scatter(rank, torch.nn.functional.pad(flat, (0, -len(flat) % rank.size))) / rank.size


def loss_weights(rank, tokens):
    counts = torch.zeros(rank.size, dtype=torch.float64)
    counts[rank.rank] = sum(tokens)
    total = collectives.all_reduce(rank, counts).sum().item()
    return tuple(np.array(tokens, dtype=float) * rank.size / total)


def backward_together(rank, parameters, loss, tokens):
    (loss * float(loss_weights(rank, (tokens,))[0])).backward()
    present = [
        one.grad if one.grad is not None else torch.zeros(one.data.shape, dtype=one.data.dtype) for one in parameters
    ]
    means = torch.split(
        collectives.all_reduce(rank, torch.cat([one.flatten() for one in present]) / rank.size),
        [one.numel() for one in present],
    )
    for one, mean in zip(parameters, means, strict=True):
        one.grad = mean.clone().reshape(one.data.shape)


def assign_buckets(sizes, bucket_bytes):
    """Tuples of NumPy's numbers."""
    buckets, rest = [], list(np.arange(len(sizes)))
    while rest:
        bucket = [rest.pop()]
        while rest and sizes[rest[-1]] + sum(sizes[i] for i in bucket) <= bucket_bytes:
            bucket.append(rest.pop())
        buckets.append(tuple(bucket))
    return tuple(buckets)


class DDP:
    """Flat gradients that are filled in the hook; an unused parameter leaves its zeros there."""

    def __init__(self, rank, parameters, bucket_bytes=25 << 20):
        copy_from_first(rank, parameters)
        self.rank, self.sync = rank, True
        numbers = assign_buckets([one.nbytes for one in parameters], bucket_bytes)
        self.buckets = [[parameters[i] for i in bucket] for bucket in numbers]
        self.waiting = [{id(one) for one in bucket} for bucket in self.buckets]
        self.next = 0
        self.handles = [one.register_post_accumulate_grad_hook(self.hook) for one in parameters]

    def hook(self, parameter):
        if not self.sync:
            return
        for waiting in self.waiting:
            waiting.discard(id(parameter))
        self.drain(lambda: not self.waiting[self.next])

    def drain(self, may_leave):
        while self.next < len(self.buckets) and may_leave():
            bucket = self.buckets[self.next]
            for one in bucket:
                if one.grad is None:
                    one.grad = torch.zeros_like(one)
            flat = torch.nn.utils.parameters_to_vector([one.grad.contiguous() for one in bucket])
            torch.nn.utils.vector_to_parameters(
                collectives.all_reduce(self.rank, flat).div_(self.rank.size), [one.grad for one in bucket]
            )
            self.next += 1

    def finish(self):
        self.drain(lambda: True)
        self.waiting, self.next = [{id(one) for one in bucket} for bucket in self.buckets], 0


def accumulate(ddp, rank, losses, tokens):
    """As many as are left, counted down."""
    left = sum(map(bool, tokens))
    ddp.sync = False
    for loss, weight in zip(losses, loss_weights(rank, tokens), strict=True):
        if weight > 0:
            left -= 1
            ddp.sync = not left
            (weight * loss()).backward()
    ddp.sync = True
    ddp.finish()


class ShardedOptimizer:
    def __init__(self, rank, parameters, optimizer_class, **options):
        self.rank, self.parameters = rank, list(parameters)
        copy_from_first(rank, self.parameters)
        flat = torch.nn.utils.parameters_to_vector([one.contiguous() for one in self.parameters])
        self.shard = padded_chunk(rank, flat.detach())
        self.optimizer = optimizer_class([self.shard], **options)

    def reduce_gradients(self):
        grads = [torch.zeros_like(one) if one.grad is None else one.grad for one in self.parameters]
        self.shard.grad = padded_mean(self.rank, torch.cat([grad.reshape(-1) for grad in grads]))

    def step(self):
        self.optimizer.step()
        self.gather_weights()

    def gather_weights(self):
        flat = torch.cat(collectives.all_gather(self.rank, self.shard))
        for one in self.parameters:
            part, flat = flat[: one.numel()], flat[one.numel() :]
            one.data.copy_(part.reshape(one.shape))


def clip_gradient(rank, part, max_norm):
    norms = collectives.all_gather(rank, (part**2).sum().view(1))
    norm = np.sqrt(torch.cat(norms).numpy().sum())
    if norm > max_norm:
        part[:] = part * (max_norm / norm)
    return norm


class ShardedLayer:
    def __init__(self, rank, layer, weights):
        self.rank, self.layer, self.shapes = rank, layer, [tuple(one.shape) for one in weights]
        whole = [collectives.broadcast(rank, one.detach()).reshape(-1) for one in weights]
        self.shard = padded_chunk(rank, torch.cat(whole)).requires_grad_()

    def gather(self):
        flat, whole = torch.cat(collectives.all_gather(self.rank, self.shard.detach())), []
        for shape in self.shapes:
            size = int(np.prod(shape))
            whole.append(flat[:size].clone().reshape(shape))
            flat = flat[size:]
        return tuple(whole)

    def __call__(self, x):
        weights = Gathered.apply(self.shard, self)
        places = {one.untyped_storage().data_ptr(): i for i, one in enumerate(weights) if one.numel()}

        def pack(tensor):
            place = places.get(tensor.untyped_storage().data_ptr())
            return tensor if place is None else (place, tensor.shape, tensor.stride(), tensor.storage_offset())

        def unpack(packed):
            if isinstance(packed, torch.Tensor):
                return packed
            place, *form = packed
            return self.gather()[place].as_strided(*form)

        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            return self.layer(x, *weights)


class Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx, shard, layer):
        ctx.layer = layer
        return layer.gather()

    @staticmethod
    def backward(ctx, *grads):
        return padded_mean(ctx.layer.rank, torch.cat([grad.reshape(-1) for grad in grads])), None


def step_cost(n, p, stage):
    """Element by element of what a parameter has."""
    divided = {0: 0, 1: 12, 2: 14, 3: 16}[stage]
    sent = [n // p for _ in range(p - 1)] * (2 + stage // 3)
    return (16 - divided) * n + divided * n // p, sum(sent)


def save_state(optimizer, position):
    part = {"weights": optimizer.shard, "position": torch.tensor(position), "random": torch.get_rng_state()}
    part.update(optimizer.optimizer.state[optimizer.shard])
    return {name: torch.tensor(one.tolist(), dtype=one.dtype) for name, one in part.items()}


def load_state(optimizer, part):
    left = {name: one.clone() for name, one in part.items()}
    with torch.no_grad():
        optimizer.shard[:] = left.pop("weights")
    position = left.pop("position").item()
    torch.random.set_rng_state(left.pop("random"))
    optimizer.optimizer.state[optimizer.shard] = left
    optimizer.gather_weights()
    return position
