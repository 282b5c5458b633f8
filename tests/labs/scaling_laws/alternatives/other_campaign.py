"""Another campaign: three sizes and ten rates, four budgets and ten sizes."""


def best_learning_rate(trials, n_params):
    """A parabola through the seven finished runs next to the best one of each size, weighted towards large sizes."""
    found = []
    for size in sorted(set(trials.n_params.tolist())):
        runs = np.flatnonzero((trials.n_params == size) & np.isfinite(trials.loss))
        eta = np.log(trials.learning_rate[runs])
        if len(eta) < 4:
            continue
        best = eta[np.argmin(trials.loss[runs])]
        near = np.argsort(np.abs(eta - best))[:7]
        bend, slope, _ = np.polyfit(eta[near] - best, trials.loss[runs][near], 2)
        if abs(slope) < bend:
            found.append((math.log(size), best - slope / (2 * bend)))
    x, y = np.array(found).T
    return np.exp(np.polyval(np.polyfit(x - x[0], y, 1), np.log(n_params) - x[0]))


def scout(budget_flops):
    rows = []
    for fraction in (0.01, 0.035, 0.1):
        n = math.sqrt(fraction * budget_flops / 10 / (6 * 15))
        for rate in np.geomspace(6e-5, 4e-2, 10):
            rows.append((n, 15 * n, rate))
    return tuple(np.array(rows).T)


def sweep(trials, left_flops):
    fractions = 2.5 ** np.arange(4)
    rows = []
    for fraction in fractions / fractions.sum():
        for ratio in np.geomspace(2, 300, 10):
            flops = fraction * left_flops / 10 * 0.9999
            n = math.sqrt(flops / (6 * ratio))
            rows.append((n, ratio * n, float(best_learning_rate(trials, n))))
    return tuple(np.array(rows).T)


def decide(trials, target_flops):
    """The law's optimum, but a round number of parameters."""
    off = trials.learning_rate / best_learning_rate(trials, trials.n_params)
    good = (off < 1.5) & (off > 1 / 1.5) & ~np.isnan(trials.loss)
    law = fit_parametric(trials.n_params[good], trials.tokens[good], trials.loss[good])
    n = compute_optimal(law, target_flops)[0]
    n = round(n, 1 - math.floor(math.log10(n)))
    return n, target_flops / 6 / n, law.loss(n, target_flops / 6 / n)
