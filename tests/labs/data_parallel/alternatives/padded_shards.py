"""Shards of one length, padded with zeros; layers that autograd knows, whose saved weights are gathered when needed."""

import numpy as np


def padded_chunk(rank, flat):
    """This rank's row of as many equal rows as there are ranks."""
    rows = torch.nn.functional.pad(flat, (0, -len(flat) % rank.size)).reshape(rank.size, -1)
    return rows[rank.rank].clone()


def padded_mean(rank, flat):
    return collectives.reduce_scatter(rank, torch.nn.functional.pad(flat, (0, -len(flat) % rank.size))) / rank.size


class DDP:
    """Flat gradients that are filled in the hook; an unused parameter contributes zeros."""

    def __init__(self, parameters, rank, bucket_bytes=25 << 20):
        broadcast_tensors(parameters, rank)
        self.rank, self.require_backward_grad_sync = rank, True
        self.buckets = assign_buckets(parameters, bucket_bytes)
        self.waiting = [{id(one) for one in bucket} for bucket in self.buckets]
        self.next = 0
        self.handles = [one.register_post_accumulate_grad_hook(self.hook) for one in parameters]

    def hook(self, parameter):
        if not self.require_backward_grad_sync:
            return
        for waiting in self.waiting:
            waiting.discard(id(parameter))
        self.drain(lambda: not self.waiting[self.next])

    def drain(self, is_ready):
        while self.next < len(self.buckets) and is_ready():
            bucket = self.buckets[self.next]
            for one in bucket:
                if one.grad is None:
                    one.grad = torch.zeros_like(one)
            flat = torch.nn.utils.parameters_to_vector([one.grad.contiguous() for one in bucket])
            torch.nn.utils.vector_to_parameters(
                collectives.all_reduce(self.rank, flat).div_(self.rank.size), [one.grad for one in bucket]
            )
            self.next += 1

    def finish_gradient_synchronization(self):
        self.drain(lambda: True)
        self.waiting, self.next = [{id(one) for one in bucket} for bucket in self.buckets], 0


def accumulate_gradients(ddp, losses, tokens, rank):
    """As many as are left, counted down."""
    left = sum(map(bool, tokens))
    ddp.require_backward_grad_sync = False
    for loss, weight in zip(losses, loss_weights(tokens, rank), strict=True):
        if weight > 0:
            left -= 1
            ddp.require_backward_grad_sync = not left
            (weight * loss()).backward()
    ddp.require_backward_grad_sync = True
    ddp.finish_gradient_synchronization()


class ShardedOptimizer:
    def __init__(self, parameters, optimizer_class, rank, **options):
        self.rank, self.parameters = rank, list(parameters)
        broadcast_tensors(self.parameters, rank)
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


def clip_grad_norm(shards, max_norm, rank):
    """The shards' gradients as one flat tensor, which is written back."""
    flat = torch.cat([shard.grad for shard in shards])
    norms = collectives.all_gather(rank, (flat**2).sum().view(1))
    norm = np.sqrt(torch.cat(norms).numpy().sum())
    if norm > max_norm:
        for shard in shards:
            shard.grad[:] = shard.grad * (max_norm / norm)
    return norm


class FSDPUnit:
    def __init__(self, layer, weights, rank):
        self.rank, self.layer, self.shapes = rank, layer, [tuple(one.shape) for one in weights]
        whole = [collectives.broadcast(rank, one.detach()).reshape(-1) for one in weights]
        self.shard = padded_chunk(rank, torch.cat(whole)).requires_grad_()

    def unshard(self):
        flat, whole = torch.cat(collectives.all_gather(self.rank, self.shard.detach())), []
        for shape in self.shapes:
            size = int(np.prod(shape))
            whole.append(flat[:size].clone().reshape(shape))
            flat = flat[size:]
        return tuple(whole)

    def __call__(self, x):
        weights = FSDPFunction.apply(self.shard, self)
        places = {one.untyped_storage().data_ptr(): i for i, one in enumerate(weights) if one.numel()}

        def pack(tensor):
            place = places.get(tensor.untyped_storage().data_ptr())
            return tensor if place is None else (place, tensor.shape, tensor.stride(), tensor.storage_offset())

        def unpack(packed):
            if isinstance(packed, torch.Tensor):
                return packed
            place, *form = packed
            return self.unshard()[place].as_strided(*form)

        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            return self.layer(x, *weights)


class FSDPFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, shard, layer):
        ctx.layer = layer
        return layer.unshard()

    @staticmethod
    def backward(ctx, *grads):
        return padded_mean(ctx.layer.rank, torch.cat([grad.reshape(-1) for grad in grads])), None


def zero_step_cost(n, p, stage):
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
