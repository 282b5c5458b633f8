"""The fit in plain units: more starts, BFGS without bounds, Nelder and Mead to finish; resampling by weights."""


def fit_law(n_params, tokens, loss, starts=STARTS):
    keep = np.flatnonzero(~np.isnan(loss))
    runs = n_params[keep], tokens[keep], loss[keep]

    def scaled(theta):
        value, gradient = objective(theta, *runs)
        return 1e6 * value, 1e6 * gradient

    best = None
    for e, alpha, beta in itertools.product((0.3, 0.7), (0.25, 0.5), (0.25, 0.5)):
        a, b = alpha * np.log(runs[0]).mean() - 1, beta * np.log(runs[1]).mean() - 1
        result = minimize(scaled, (a, b, e, alpha, beta), jac=True, method="BFGS", options={"gtol": 1e-6})
        if best is None or result.fun < best.fun:
            best = result
    for _ in range(3):
        better = minimize(scaled, best.x, jac=True, method="L-BFGS-B", options={"ftol": 0, "maxiter": 3000})
        best = better if better.fun < best.fun else best
    a, b, e, alpha, beta = best.x
    return Law(math.exp(e), math.exp(a), math.exp(b), alpha, beta)


def bootstrap(statistic, columns, resamples, level, rng):
    count, answers = len(columns[0]), []
    while len(answers) < resamples:
        times = rng.multinomial(count, [1 / count] * count)
        try:
            answers.append(statistic(*(np.repeat(column, times) for column in columns)))
        except ValueError:
            resamples -= 1
    answers.sort()
    cut = (1 - level) / 2 * len(answers)
    return answers[int(cut)], answers[min(len(answers) - 1, int(len(answers) - cut))]


def serving_optimal(law, loss, served_tokens):
    """Golden section in ln N."""
    above = loss - law.E

    def tokens(n):
        return (law.B / (above - law.A / n**law.alpha)) ** (1 / law.beta)

    def cost(x):
        return math.exp(x) * (6 * tokens(math.exp(x)) + 2 * served_tokens)

    low = math.log(law.A / above) / law.alpha + 1e-12
    high, golden = low + 10, (math.sqrt(5) - 1) / 2
    while high - low > 1e-9:
        one, two = high - golden * (high - low), low + golden * (high - low)
        low, high = (low, two) if cost(one) < cost(two) else (one, high)
    return math.exp(low), tokens(math.exp(low))
