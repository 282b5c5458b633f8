"""Image by image and number by number where no call is at stake; requests as a queue of generators."""


def sigmas(alphas_cumprod):
    return torch.tensor([math.sqrt(1 / kept - 1) for kept in alphas_cumprod.tolist()], dtype=torch.float64)


def edm_grid(steps, sigma_min=0.002, sigma_max=80.0, rho=7.0):
    low, high = sigma_min ** (1 / rho), sigma_max ** (1 / rho)
    found = [(high + i / max(steps - 1, 1) * (low - high)) ** rho for i in range(steps)]
    return torch.tensor([*found, 0.0], dtype=torch.float64)


def sample_ode(denoiser, x, grid, label=None):
    for step in range(len(grid) - 1):
        sigma, sigma_next = float(grid[step]), float(grid[step + 1])
        denoised = denoiser(x, grid[step].expand(len(x)), label)
        x = denoised + sigma_next / sigma * (x - denoised)
    return x


def sample_sde(denoiser, x, grid, noise, label=None):
    for step in range(len(grid) - 1):
        sigma, sigma_next = float(grid[step]), float(grid[step + 1])
        denoised = denoiser(x, full_level(sigma, x), label)
        x = denoised + (sigma_next / sigma) ** 2 * (x - denoised)
        if sigma_next:
            x = x + (sigma**2 - sigma_next**2) ** 0.5 * noise[step]
    return x


def p_losses(denoiser, x0, sigma, noise, label):
    denoised = denoiser(x0 + per_image(sigma, x0) * noise, sigma, label)
    squares = [(denoised[i] - x0[i]).pow(2).mean() for i in range(len(x0))]
    return torch.stack(squares) / denoiser.at(sigma).out.to(x0) ** 2


class EMA:
    def __init__(self, model, decay=0.999):
        self.model, self.decay, self.updates = copy.deepcopy(model).requires_grad_(False).eval(), decay, 0

    @torch.no_grad()
    def update(self, model):
        self.updates += 1
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        parameters = dict(model.named_parameters())
        for name, average in self.model.named_parameters():
            average.lerp_(parameters[name], 1 - decay)


@dataclass(frozen=True, eq=False)
class ClassifierFreeGuidance:
    denoiser: Denoiser
    scale: float | torch.Tensor
    null: int
    low: float = 0.0
    high: float = math.inf

    def __call__(self, x, sigma, label):
        levels = sigma.tolist()
        scales = self.scale.tolist() if isinstance(self.scale, torch.Tensor) else [self.scale] * len(x)
        guided = [i for i in range(len(x)) if scales[i] != 1 and self.low <= levels[i] <= self.high]
        rows = torch.tensor([*range(len(x)), *guided])
        labels = label[rows]
        labels[len(x) :] = self.null
        answers = self.denoiser(x[rows], sigma[rows], labels)
        found = list(answers[: len(x)])
        for g, i in enumerate(guided):
            found[i] = (1 - scales[i]) * answers[len(x) + g] + scales[i] * found[i]
        return torch.stack(found)


def steps_of(request):
    """Steps of one request: yields what to denoise, is sent the answer."""
    x = request.noise * float(request.grid[0])
    for sigma, sigma_next in pairwise(request.grid.tolist()):
        denoised = yield x, sigma, request
        x = denoised + sigma_next / sigma * (x - denoised)
    yield x, None, request


def serve(denoise, requests, slots):
    images, running, waiting = {}, {}, list(enumerate(requests))
    while waiting or running:
        for number, request in waiting[: slots - len(running)]:
            steps = steps_of(request)
            running[number] = (steps, next(steps))
        waiting = [one for one in waiting if one[0] not in running]
        x, sigma, each = zip(*[wanted for _, wanted in running.values()], strict=True)
        scales = [request.scale_at(level) for request, level in zip(each, sigma, strict=True)]
        numbers = torch.tensor([sigma, scales], dtype=torch.float64)
        answers = denoise(torch.stack(x), numbers[0], torch.tensor([one.label for one in each]), numbers[1])
        for (number, (steps, _)), answer in zip(list(running.items()), answers, strict=True):
            wanted = steps.send(answer)
            running[number] = (steps, wanted)
            if wanted[1] is None:
                images[number] = wanted[0]
                del running[number]
    return [images[number] for number in range(len(requests))]
