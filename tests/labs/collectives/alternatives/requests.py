"""All receives are posted before anything is sent; sends are waited for at the end."""


def exchange(rank, x, partner):
    coming = rank.irecv(partner)
    going = rank.isend(x.clone(), partner)
    going.wait()
    return coming.wait()


def broadcast(rank, x, root=0):
    """Recursive doubling of the ranks that have it, sends not waited for until the end."""
    number, rounds, going = (rank.rank - root) % rank.size, (rank.size - 1).bit_length(), []
    first = number.bit_length()  # the step after the one in which it comes
    x = rank.recv((root + number - (1 << first - 1)) % rank.size) if number else x.clone()
    for k in range(first, rounds):
        if number + (1 << k) < rank.size:
            going.append(rank.isend(x, (root + number + (1 << k)) % rank.size))
    for request in going:
        request.wait()
    return x


def reduce(rank, x, root=0):
    """Children first, all of them asked for at once; added in the order of their numbers."""
    p, number = rank.size, (rank.rank - root) % rank.size
    depth = (number & -number).bit_length() - 1 if number else (p - 1).bit_length()
    children = [number + (1 << k) for k in range(depth) if number + (1 << k) < p]
    coming = [rank.irecv((root + child) % p, like=x) for child in children]
    total = sum([request.wait() for request in coming], start=x)
    if number == 0:
        return total if children else total.clone()
    rank.send(total, (root + number - (1 << depth)) % p)


def reduce_scatter(rank, x):
    p = rank.size
    coming = [rank.irecv((rank.rank - 1) % p) for _ in range(p - 1)]
    chunks = split_chunks(x, p)
    partial, going = chunks[rank.rank - 1], []
    for step, request in enumerate(coming):
        going.append(rank.isend(partial, (rank.rank + 1) % p))
        partial = request.wait() + chunks[rank.rank - step - 2]
    for request in going:
        request.wait()
    return partial if coming else partial.clone()


def all_gather(rank, x):
    p, parts = rank.size, [None] * rank.size
    parts[rank.rank] = x.clone()
    coming = [rank.irecv((rank.rank - 1) % p) for _ in range(p - 1)]
    going, latest = [], parts[rank.rank]
    for step, request in enumerate(coming):
        going.append(rank.isend(latest, (rank.rank + 1) % p))
        latest = parts[rank.rank - step - 1] = request.wait()
    for request in going:
        request.wait()
    return tuple(parts)


def all_reduce(rank, x):
    gathered = torch.cat(list(all_gather(rank, reduce_scatter(rank, x.contiguous().view(-1)))))
    return gathered.view(x.shape)
