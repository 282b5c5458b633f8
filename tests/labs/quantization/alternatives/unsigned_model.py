"""Zero points and signed codes as candidates, a front of best choices, and 2:4 by two maxima."""


def mse_scale(x, scheme, fractions=FRACTIONS):
    widest, zero_point = max_scale(x, scheme)
    best = least = None
    for fraction in sorted(fractions):
        scale = (widest * fraction).half().float()
        codes = scheme.split(round_to_codes(x, scale, zero_point, scheme)).float()
        codes = codes if zero_point is None else codes - zero_point[..., None]
        error = (codes * scale[..., None] - scheme.split(x)).double().pow(2).sum(-1)
        if best is None:
            best, least = scale.clone(), error
        better = error < least
        best[better], least[better] = scale[better], error[better]
    return best, zero_point


def fold_scale(norm_weight, weights, scale):
    return norm_weight * scale.reciprocal(), [torch.einsum("oi,i->oi", w, scale) for w in weights]


def two_four_mask(scores):
    fours = scores.view(-1, 4)
    first = fours.argmax(1, keepdim=True)
    second = fours.scatter(1, first, -math.inf).argmax(1, keepdim=True)
    mask = torch.zeros_like(fours, dtype=torch.bool)
    mask[torch.arange(len(fours))[:, None], torch.cat([first, second], 1)] = True
    return mask.view(scores.shape)


def linear_bytes(shape, bits, *, is_sparse=False):
    fours = shape[0] * (shape[1] // 4)
    return fours * (2 * bits + 4 if is_sparse else 4 * bits) // 8


def least_time(tokens, shape, bits, machine, *, is_sparse=False):
    outputs, inputs = shape
    kept = 0.5 if is_sparse else 1.0
    compute_s = 2 * tokens * inputs * outputs * kept / machine.peak_flops_per_s
    size = linear_bytes(shape, bits, is_sparse=is_sparse) + 2 * tokens * inputs + 2 * tokens * outputs
    memory_s = size / machine.memory_bytes_per_s
    return compute_s if compute_s > memory_s else memory_s


def sensitivity(model, windows, candidates):
    linear, before = linear_layers(model), loss_of(model, windows)
    found = {}
    for name, choices in candidates.items():
        kept, rises = linear[name].weight.data, []
        for choice in choices:
            linear[name].weight.data = choice.dequantize()
            rises.append(loss_of(model, windows) - before)
        linear[name].weight.data = kept
        found[name] = torch.tensor(rises, dtype=torch.float64)
    return found


def allocate(num_bytes, increases, budget_bytes):
    """Keep only choices that no other beats in both bytes and increase."""
    front = [(0, 0.0, [])]
    for sizes, rises in zip(num_bytes, increases, strict=True):
        options = zip(range(len(sizes)), sizes, rises, strict=True)
        longer = [(b + s, r + rise, [*c, i]) for i, s, rise in options for b, r, c in front]
        front, least = [], math.inf
        for used, total, choices in sorted(longer, key=lambda one: one[:2]):
            if used <= budget_bytes and total < least:
                front.append((used, total, choices))
                least = total
    return front[-1][2]


def compress(model, windows, budget_bytes):
    fit, test = windows[:64], windows[64:]
    inputs, candidates = layer_inputs(model, fit), {}
    for name, layer in linear_layers(model).items():
        weight, h = layer.weight.detach(), hessian(inputs[name])
        candidates[name] = [
            gptq(weight, h, Scheme(IntFormat(3, False), "group", 64)),
            gptq(weight, h, Scheme(INT3, "group", 32)),
            gptq(weight, h, Scheme(UINT4, "group", 64)),
        ]
    rises = {name: list(map(float, some)) for name, some in sensitivity(model, test, candidates).items()}
    sizes = [[one.num_bytes for one in some] for some in candidates.values()]
    indices = allocate(sizes, list(rises.values()), budget_bytes)
    layers = {name: some[i] for (name, some), i in zip(candidates.items(), indices, strict=True)}
    total = sum(some[i] for some, i in zip(rises.values(), indices, strict=True))
    return Compressed(layers, max(total, 0.0))
