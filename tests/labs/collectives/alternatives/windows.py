"""Halving and doubling in a loop on windows of one array; empty messages are left out; gradients in one buffer."""


def send_recv(rank, x, destination, source):
    requests = [rank.irecv(source), rank.isend(x, destination)]
    received, _ = [request.wait() for request in requests]
    return received


def broadcast(rank, x, root=0):
    """Parent and children of the binomial tree, found from the bits of the number."""
    number = (rank.rank - root) % rank.size
    lowest = number & -number or 1 << (rank.size - 1).bit_length()
    have = rank.recv((number - lowest + root) % rank.size) if number else x.clone()
    while lowest > 1:
        lowest //= 2
        if number + lowest < rank.size:
            rank.send(have, (number + lowest + root) % rank.size)
    return have


def _pass(rank, outgoing, incoming_elements, right, left):
    """Do as send_recv does, but leave empty messages out."""
    request = rank.isend(outgoing, right) if outgoing.numel() else None
    received = rank.recv(left) if incoming_elements else outgoing.new_empty(0)
    if request is not None:
        request.wait()
    return received


def reduce_scatter(rank, x):
    p, r = rank.size, rank.rank
    sizes = [len(chunk) for chunk in split_chunks(x, p)]
    starts = [sum(sizes[:i]) for i in range(p)]
    flat = x.clone(memory_format=torch.contiguous_format).view(-1)
    for step in range(1, p):
        give, take = (r - step) % p, (r - step - 1) % p
        window = flat[starts[take] : starts[take] + sizes[take]]
        window += _pass(rank, flat[starts[give] : starts[give] + sizes[give]], sizes[take], (r + 1) % p, (r - 1) % p)
    return flat[starts[r] : starts[r] + sizes[r]]


def halving_doubling(rank, x):
    power = 2 ** int(math.log2(rank.size))
    out = x.clone(memory_format=torch.contiguous_format)
    flat, r = out.view(-1), rank.rank
    if r >= power:
        rank.send(flat, r - power)
        flat.copy_(rank.recv(r - power))
        return out
    if r + power < rank.size:
        flat += rank.recv(r + power)
    low, high, given = 0, len(flat), []
    distance = power
    while distance > 1:
        distance //= 2
        middle = low + (high - low + 1) // 2
        keep, give = [(low, middle), (middle, high)][:: -1 if r // distance % 2 else 1]
        flat[slice(*keep)] += send_recv(rank, flat[slice(*give)], r ^ distance, r ^ distance)
        low, high = keep
        given.append((distance, give))
    for distance, give in reversed(given):
        flat[slice(*give)] = send_recv(rank, flat[low:high], r ^ distance, r ^ distance)
        low, high = min(low, give[0]), max(high, give[1])
    if r + power < rank.size:
        rank.send(flat, r + power)
    return out


def hierarchical(rank, x, island):
    """Groups from a list of lists; the sums across by halving and doubling, so long as that costs no byte more."""
    islands = [list(range(start, start + island)) for start in range(0, rank.size, island)]
    mine = rank.group(next(one for one in islands if rank.rank in one))
    across = rank.group([one[mine.rank] for one in islands])
    chunk = reduce_scatter(mine, x)
    form = halving_doubling if across.size in (1, 2, 4) and len(chunk) % across.size == 0 else all_reduce
    pieces = all_gather(mine, form(across, chunk))
    return torch.cat(pieces).view(x.shape)


def predict_s(algorithm, size_bytes, topology):
    p, m, inside, across = topology.size, topology.island, topology.inside, topology.across
    q, levels, low_levels, chunk = p // m, int(math.log2(p)), int(math.log2(m)), size_bytes / p
    slow_levels = levels - low_levels
    if algorithm == "tree":
        return 2 * (
            inside.time_s(low_levels, low_levels * size_bytes) + across.time_s(slow_levels, slow_levels * size_bytes)
        )
    if algorithm == "ring":
        step_s = max(inside.time_s(1, chunk) if m > 1 else 0, across.time_s(1, chunk) if q > 1 else 0)
        return 2 * (p - 1) * step_s
    if algorithm == "halving_doubling":
        return 2 * (inside.time_s(low_levels, (m - 1) * chunk) + across.time_s(slow_levels, (p - m) * chunk))
    return 2 * (inside.time_s(m - 1, (m - 1) * size_bytes / m) + across.time_s(q - 1, (q - 1) * chunk))


def average_gradients(parameters, group, bucket_bytes=1 << 20):
    """Each bucket is a flat buffer, filled slice by slice; `starts` says where each begins."""
    parameters = list(parameters)[::-1]
    sizes = [parameter.data.nbytes for parameter in parameters]
    starts = [0]
    for i in range(1, len(sizes)):
        if sum(sizes[starts[-1] : i + 1]) > bucket_bytes:
            starts.append(i)
    for start, stop in zip(starts, [*starts[1:], len(parameters)], strict=True):
        bucket = parameters[start:stop]
        buffer = torch.zeros(sum(one.data.numel() for one in bucket), dtype=bucket[0].data.dtype)
        at = 0
        for one in bucket:
            if one.grad is not None:
                buffer[at : at + one.data.numel()] = one.grad.flatten()
            at += one.data.numel()
        buffer = all_reduce(group, buffer / group.size)
        for one in bucket:
            one.grad, buffer = buffer[: one.data.numel()].view(one.data.shape), buffer[one.data.numel() :]
