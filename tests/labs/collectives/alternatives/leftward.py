"""Rings that turn left, chunks that end elsewhere first, a tree by recursion, times by loops."""


def exchange(rank, x, partner):
    request = rank.isend(x, partner)
    received = rank.recv(partner)
    request.wait()
    return received


def send_recv(rank, x, destination, source):
    coming = rank.irecv(source)
    rank.send(x, destination)
    return coming.wait()


def broadcast(rank, x, root=0):
    """The range of ranks is halved: the first of it sends to the first of its second half."""

    def pass_on(array, first, size):
        if size == 1:
            return array
        lower = 1 << ((size - 1).bit_length() - 1)
        middle = first + lower
        number = (rank.rank - root) % rank.size
        if number == first:
            rank.send(array, (root + middle) % rank.size)
        if number == middle:
            array = rank.recv((root + first) % rank.size, like=x)
        return pass_on(array, first, lower) if number < middle else pass_on(array, middle, size - lower)

    return pass_on(x, 0, rank.size).clone()


def reduce(rank, x, root=0):
    number, total = (rank.rank - root) % rank.size, x + 0
    for k in range((rank.size - 1).bit_length()):
        if number % 2:
            rank.send(total, ((number - 1 << k) + root) % rank.size)
            return None
        if (number + 1 << k) < rank.size:
            total = total + rank.recv(((number + 1 << k) + root) % rank.size)
        number //= 2
    return total


def split_chunks(x, parts):
    return list(torch.tensor_split(x.flatten(), parts))


def reduce_scatter(rank, x):
    p = rank.size
    chunks = [chunk.clone() for chunk in split_chunks(x, p)]
    for step in range(1, p):
        received = send_recv(rank, chunks[(rank.rank + step) % p], (rank.rank - 1) % p, (rank.rank + 1) % p)
        chunks[(rank.rank + step + 1) % p] += received
    return chunks[rank.rank]


def all_gather(rank, x):
    p, have = rank.size, [x.clone()]
    while len(have) < p:
        have.append(send_recv(rank, have[-1], (rank.rank - 1) % p, (rank.rank + 1) % p))
    return [have[(i - rank.rank) % p] for i in range(p)]


def ring_elements(n, p):
    sizes = [len(range(r, n, p)) for r in range(p)]  # as many as numbers dealt out in turn
    return [sum(sizes) - sizes[r] + sum(sizes) - sizes[r + 1 - p] for r in range(p)]


def all_reduce(rank, x):
    """Both halves in one loop, in place: rank r ends the first half with chunk r + 1."""
    p, out = rank.size, x.clone(memory_format=torch.contiguous_format)
    chunks = split_chunks(out.view(-1), p)
    for step in range(2 * p - 2):
        outgoing, incoming = chunks[(rank.rank - step) % p], chunks[(rank.rank - step - 1) % p]
        request = rank.isend(outgoing, (rank.rank + 1) % p)
        received = rank.recv((rank.rank - 1) % p, like=incoming)
        request.wait()
        incoming.copy_(incoming + received if step < p - 1 else received)
    return out


def all_reduce_s(algorithm, ranks, size_bytes, link):
    """One message after the other."""
    levels = (ranks - 1).bit_length()
    if algorithm == "tree":
        sizes = [size_bytes] * levels
    elif algorithm == "ring":
        sizes = [size_bytes / ranks] * (ranks - 1)
    else:
        sizes = [size_bytes / 2**k for k in range(1, levels + 1)]
    return 2 * sum(link.time_s(1, size) for size in sizes)


def crossover_bytes(first, second, ranks, link, *, largest=2**40):
    def gain(size):
        return all_reduce_s(first, ranks, size, link) - all_reduce_s(second, ranks, size, link)

    low, high = 0.0, largest
    if gain(low) > 0 or gain(high) <= 0:
        return None
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (low, middle) if gain(middle) > 0 else (middle, high)
    return high


def select_algorithm(size_bytes, topology):
    ranked = sorted((predict_s(name, size_bytes, topology), name) for name in ALGORITHMS)
    return ranked[0][1]
