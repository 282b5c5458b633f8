"""Image by image and number by number where no call is at stake; requests as a queue of generators."""


def levels(betas):
    found, kept = [], 1.0
    for beta in betas.tolist():
        kept *= 1 - beta
        found.append(math.sqrt(1 / kept - 1))
    return torch.tensor(found, dtype=torch.float64)


def edm_grid(steps, sigma_min=0.002, sigma_max=80.0, rho=7.0):
    low, high = sigma_min ** (1 / rho), sigma_max ** (1 / rho)
    found = [(high + i / max(steps - 1, 1) * (low - high)) ** rho for i in range(steps)]
    return torch.tensor([*found, 0.0], dtype=torch.float64)


def q_sample(x0, sigma, noise):
    noisy = torch.empty_like(x0)
    for i, level in enumerate(sigma.tolist()):
        noisy[i] = x0[i] + level * noise[i]
    return noisy


def score(denoised, x, sigma):
    return torch.stack([(d - one) / level**2 for d, one, level in zip(denoised, x, sigma.tolist(), strict=True)])


def slope(denoised, x, sigma):
    return torch.stack([(one - d) / level for d, one, level in zip(denoised, x, sigma.tolist(), strict=True)])


def walk_ode(denoiser, x, grid, label=None):
    for step in range(len(grid) - 1):
        sigma, sigma_next = float(grid[step]), float(grid[step + 1])
        denoised = denoiser(x, level_of(sigma, x), label)
        x = denoised + sigma_next / sigma * (x - denoised)
    return x


def walk_sde(denoiser, x, grid, noise, label=None):
    for step in range(len(grid) - 1):
        sigma, sigma_next = float(grid[step]), float(grid[step + 1])
        denoised = denoiser(x, level_of(sigma, x), label)
        x = denoised + (sigma_next / sigma) ** 2 * (x - denoised)
        if sigma_next:
            x = x + (sigma**2 - sigma_next**2) ** 0.5 * noise[step]
    return x


def drop_labels(label, uniforms, share, null):
    pairs = zip(label.tolist(), uniforms.tolist(), strict=True)
    return torch.tensor([null if uniform < share else one for one, uniform in pairs])


def update_average(average, weights, decay):
    for mean, weight in zip(average, weights, strict=True):
        mean.data = mean.data + (1 - decay) * (weight.detach() - mean.data)


def p_losses(network, prediction, x0, sigma, noise, label):
    x = x0 + per_image(sigma, x0) * noise
    answer = network(x / per_image(torch.hypot(sigma, torch.ones_like(sigma)), x0), (0.25 * sigma.log()).to(x), label)
    wanted = target(prediction, x0, sigma, noise)
    return torch.stack([(one - other).pow(2).mean() for one, other in zip(answer, wanted, strict=True)])


def guide(denoiser, x, sigma, label, scale, null, low=0.0, high=math.inf):
    ends = [torch.as_tensor(end, dtype=torch.float64).expand(len(x)).tolist() for end in (low, high)]
    levels_of, scales = sigma.tolist(), scale.tolist()
    guided = [i for i in range(len(x)) if scales[i] != 1 and ends[0][i] <= levels_of[i] <= ends[1][i]]
    rows = torch.tensor([*range(len(x)), *guided])
    labels = label[rows]
    labels[len(x) :] = null
    answers = denoiser(x[rows], sigma[rows], labels)
    found = list(answers[: len(x)])
    for i, without in zip(guided, answers[len(x) :], strict=True):
        found[i] = (1 - scales[i]) * without + scales[i] * found[i]
    return torch.stack(found)


def drawn(request):
    x = request.noise * float(request.grid[0])
    for sigma, sigma_next in pairwise(request.grid.tolist()):
        denoised = yield x, sigma, request
        x = denoised + sigma_next / sigma * (x - denoised)
    yield x, None, request


def serve(denoiser, requests, null, slots):
    images, running, waiting = {}, {}, list(enumerate(requests))
    while waiting or running:
        for number, request in waiting[: slots - len(running)]:
            walk = drawn(request)
            running[number] = (walk, next(walk))
        waiting = [one for one in waiting if one[0] not in running]
        asked = [question for _, question in running.values()]
        x, sigma, who = zip(*asked, strict=True)
        numbers = torch.tensor([(one.scale, one.low, one.high) for one in who], dtype=torch.float64)
        label, sigma = torch.tensor([one.label for one in who]), torch.tensor(sigma, dtype=torch.float64)
        answers = guide(denoiser, torch.stack(x), sigma, label, numbers[:, 0], null, numbers[:, 1], numbers[:, 2])
        for (number, (walk, _)), answer in zip(list(running.items()), answers, strict=True):
            question = walk.send(answer)
            running[number] = (walk, question)
            if question[1] is None:
                images[number] = question[0]
                del running[number]
    return [images[number] for number in range(len(requests))]
