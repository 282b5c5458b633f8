"""DDPM's own scale: ᾱ, rotations between image and noise, β̃; densities in logarithms; a plan of all calls."""


def kept_of(sigma):
    return 1 / (1 + sigma**2)


def levels(betas):
    logs = torch.log1p(-betas).cumsum(0)
    return torch.sqrt(torch.expm1(-logs))


def q_sample(x0, sigma, noise):
    kept = per_image(kept_of(sigma), x0)
    return (kept.sqrt() * x0 + (1 - kept).sqrt() * noise) / kept.sqrt()


def denoise_mixture(x, sigma, means, weights, deviation):
    variance = (deviation**2 + sigma**2)[:, None].to(x)
    logs = torch.stack([-(x - mean).pow(2).sum(1) for mean in means], 1) / variance / 2 + weights.log()
    shares = (logs - logs.logsumexp(1, keepdim=True)).exp()
    towards = sum(share[:, None] * (mean - x) for share, mean in zip(shares.T, means, strict=True))
    return x + per_image(sigma**2, x) / variance * towards


def target(prediction, x0, sigma, noise):
    kept = per_image(kept_of(sigma), x0)
    return {"epsilon": noise, "x0": x0, "v": kept.sqrt() * noise - (1 - kept).sqrt() * x0}[prediction]


def denoised_from(prediction, answer, x, sigma):
    kept = per_image(kept_of(sigma), x)
    scaled = kept.sqrt() * x
    if prediction == "epsilon":
        return (scaled - (1 - kept).sqrt() * answer) / kept.sqrt()
    return answer if prediction == "x0" else kept.sqrt() * scaled - (1 - kept).sqrt() * answer


def loss_weight(prediction, sigma):
    kept = kept_of(sigma)
    return {"epsilon": kept / (1 - kept), "x0": kept / kept, "v": 1 / (1 - kept)}[prediction]


def posterior(x0, x, sigma, sigma_next, eta):
    now, then = kept_of(sigma), kept_of(sigma_next)
    beta = 1 - now / then
    drawn = eta**2 * (1 - then) / (1 - now) * beta
    noise = (x - x0) / sigma
    left = max(1 - then - drawn, 0.0)
    return x0 + (left / then) ** 0.5 * noise, (drawn / then) ** 0.5


def heun_step(denoiser, x, sigma, sigma_next, label=None):
    first = denoiser(x, level_of(sigma, x), label)
    ahead = first.lerp(x, sigma_next / sigma)
    if not sigma_next:
        return ahead
    second = denoiser(ahead, level_of(sigma_next, x), label)
    return x + (sigma_next - sigma) * ((x - first) / (2 * sigma) + (ahead - second) / (2 * sigma_next))


def serve(denoiser, requests, null, slots):
    free, plan = [0] * slots, []
    for i, request in enumerate(requests):
        start = min(free)
        free[free.index(start)] = start + len(request.grid) - 1
        plan.append((i, start, start + len(request.grid) - 1))
    images = [float(request.grid[0]) * request.noise for request in requests]
    for call in range(max(free)):
        now = [(requests[i], i, call - start) for i, start, end in plan if start <= call < end]
        sigma, sigma_next = torch.stack([one.grid[step : step + 2] for one, _, step in now], 1).double()
        settings = torch.tensor([(one.scale, one.low, one.high) for one, _, _ in now], dtype=torch.float64).T
        x = torch.stack([images[i] for _, i, _ in now])
        label = torch.tensor([one.label for one, _, _ in now])
        denoised = guide(denoiser, x, sigma, label, settings[0], null, settings[1], settings[2])
        for row, (_, i, _) in enumerate(now):
            images[i] = denoised[row] + float(sigma_next[row] / sigma[row]) * (x[row] - denoised[row])
    return images
