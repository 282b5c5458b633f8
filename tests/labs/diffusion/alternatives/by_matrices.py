"""Lists of matrices, the posterior by precisions, gradients by torch.autograd.grad, guidance by a mask, a plan."""


def step_cost(config, batch=1, element_bytes=2):
    D, tokens, pixels = config.d_model, (config.size // config.patch) ** 2, config.patch**2
    block = [(D * 12 * D, tokens), (D * 6 * D, 1)]
    ends = [(pixels * (config.channels + config.out_channels) * D, tokens), ((256 + 3 * D) * D, 1)]
    matrices = config.n_layers * block + ends
    products = sum(size * rows for size, rows in matrices) + 2 * config.n_layers * tokens**2 * D
    return 2 * batch * products, element_bytes * sum(size for size, _ in matrices)


def predict_image(cost, machine, steps, solver="ddim", guided=False, requests=1):
    flops = requests * (1 + guided) * cost.flops
    is_compute = flops / cost.weight_bytes > machine.flops_per_s / machine.bytes_per_s
    call_s = flops / machine.flops_per_s if is_compute else cost.weight_bytes / machine.bytes_per_s
    per_step = [2 if solver == "heun" and step < steps - 1 else 1 for step in range(steps)]
    return sum(per_step) * call_s, ("memory", "compute")[is_compute]


def train_step(model, losses, optimizer, average):
    loss = losses.sum() / len(losses)
    optimizer.zero_grad()
    trained = [p for group in optimizer.param_groups for p in group["params"]]
    for parameter, gradient in zip(trained, torch.autograd.grad(loss, trained), strict=True):
        parameter.grad = gradient
    optimizer.step()
    average.update(model)
    return float(loss.detach())


def posterior(x0, x, sigma, sigma_next, eta=1.0):
    if sigma_next == 0:
        return x0.clone(), 0.0
    precision = 1 / sigma_next**2 + 1 / (sigma**2 - sigma_next**2)
    deviation = eta / math.sqrt(precision)
    kept = math.sqrt((sigma_next - deviation) * (sigma_next + deviation))
    return x0.lerp(x, kept / sigma), deviation


def ddim_step(denoiser, x, sigma, sigma_next, noise, eta=0.0, label=None):
    denoised = denoiser(x, full_level(sigma, x), label)
    if sigma_next == 0:
        return denoised
    mean, deviation = posterior(denoised, x, sigma, sigma_next, eta)
    return torch.add(mean, noise, alpha=deviation)


class ClassifierFreeGuidance:
    def __init__(self, denoiser, scale, null, low=0.0, high=math.inf):
        self.denoiser, self.scale, self.null, self.low, self.high = denoiser, scale, null, low, high

    def __call__(self, x, sigma, label):
        scale = self.scale if isinstance(self.scale, torch.Tensor) else torch.full_like(sigma, self.scale)
        acts = torch.ge(sigma, self.low) & torch.le(sigma, self.high) & torch.ne(scale, 1)
        nulls = torch.full((int(acts.sum()),), self.null)
        pairs = [torch.cat([values, values[acts]]) for values in (x, sigma)]
        answers = self.denoiser(*pairs, torch.cat([label, nulls]))
        first, without = answers.split([len(x), len(nulls)])
        denoised = first.clone()
        denoised[acts] = torch.lerp(without, first[acts], per_image(scale[acts], without))
        return denoised


def serve(denoise, requests, slots):
    free, plan = [0] * slots, []
    for i, request in enumerate(requests):
        start = min(free)
        free[free.index(start)] = end = start + len(request.grid) - 1
        plan.append((i, start, end))
    images = [float(request.grid[0]) * request.noise for request in requests]
    for call in range(max(free)):
        now = [(requests[i], i, call - start) for i, start, end in plan if start <= call < end]
        sigma, sigma_next = torch.stack([one.grid[step : step + 2] for one, _, step in now], 1).double()
        scale = torch.tensor([one.scale_at(one.grid[step].item()) for one, _, step in now]).double()
        x = torch.stack([images[i] for _, i, _ in now])
        denoised = denoise(x, sigma, torch.tensor([one.label for one, _, _ in now]), scale)
        for row, (_, i, _) in enumerate(now):
            images[i] = denoised[row] + float(sigma_next[row] / sigma[row]) * (x[row] - denoised[row])
    return images
