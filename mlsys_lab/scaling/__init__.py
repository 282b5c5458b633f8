"""Scaling laws: published forms, three ways to fit one, intervals, allocation, a service and real runs to fit.

Letters: N parameters, D tokens, C = 6ND FLOPs, L loss in nats a token. Fits take and return the records below; where
a function takes numbers it takes NumPy arrays too.

laws        ChinchillaLaw(E, A, B, alpha, beta), KaplanLaw(N_c, D_c, alpha_N, alpha_D), both with
              .loss(n_params, tokens), .params_for_loss(loss, tokens=inf), .tokens_for_loss(loss, n_params=inf),
              .least_flops(loss), .frontier() -> Frontier, .floor, .terms(loss)
            PowerLaw(coefficient, exponent): law(x), .inverse(y), PowerLaw.fit(x, y)
            Frontier(params: PowerLaw, tokens: PowerLaw): .a, .b, .tokens_per_param(flops), Frontier.from_params(power)
            training_flops(n_params, tokens)
            HOFFMANN_2022, BESIROGLU_2024, KAPLAN_2020, KAPLAN_FRONTIER (and KAPLAN_PARAMS, _TOKENS, _COMPUTE)
published   HOFFMANN_TABLES: approach -> BestModels(n_params, tokens, flops): .frontier()
            CEREBRAS_GPT = PublishedRuns(n_params, tokens, flops, loss); CEREBRAS_FLOOR, CEREBRAS_COMPUTE
curves      Runs(n_params, tokens, loss), all (R,): len(), .flops, .take(rows), Runs.from_curves(curves)
            Curve(n_params, tokens, loss), the last two (K,): .flops, .final_loss
envelope    fit_envelope(curves, *, points=1500) -> Envelope(flops, n_params, tokens, loss, frontier)
isoflop     fit_isoflop(runs, *, tolerance=0.1) -> IsoFlop(parabolas, frontier); budgets(runs) -> (R,) group of each run
            fit_parabola(runs) -> Parabola(flops, n_opt, loss_opt, curvature, n_low, n_high): p(n_params), .has_minimum
parametric  fit_parametric(runs, *, delta=1e-3, starts=None, refine=24)
              -> ParametricFit(law, objective, residuals, converged): .frontier
            objective(theta, runs, delta) -> (value, gradient)
bootstrap   bootstrap(fit, runs_or_curves, *, resamples=100, level=0.8, seed=0, strata=None, progress=None)
              -> Interval(estimate, low, high, level, samples)
allocation  compute_optimal(law, flops) -> Allocation(n_params, tokens, loss, inference_tokens):
              .training_flops, .inference_flops, .total_flops, .tokens_per_param
            inference_optimal(law, loss, inference_tokens, *, inference_price=1.0) -> Allocation
            reach_loss(law, loss, n_params, inference_tokens=0) -> Allocation
service     ExperimentService(budget_flops, seed, *, noise=0.01, failure_rate=0.05, world=None):
              .run(n_params, tokens, learning_rate)
                -> Outcome(n_params, tokens, learning_rate, status, tokens_done, curve):
                .loss, .finished, .flops; status is "finished", "failed" or "diverged"
              .run_all(n_params, tokens, learning_rate), all (R,) -> (4, R): those and the losses
              .budget_flops, .spent_flops, .remaining_flops (exact integers), .history, .runs -> Runs
            World.draw(seed): .law, .best_learning_rate(n_params),
              .loss(n_params, tokens, learning_rate=None, progress=1.0)
text        read_corpus(text=None, *, vocabulary_size=512) -> Corpus(vocabulary, train, validation); course_text()
            byte_pairs(text, vocabulary_size) -> (vocabulary, ids)
runs        train_all(plan=PLAN, *, corpus=None, seed=0, progress=None) -> list[Curve]; PLAN: FLOPs -> Sizes
            train(size, tokens, *, corpus, seed=0, learning_rate=None, progress=None) -> Curve
            Size(layers, width, heads): .n_params(vocabulary_size); HELD_OUT = (size, FLOPs)
            tokens_for(size, flops, corpus) -> D; epochs(tokens, corpus)
            progress(FLOPs done, FLOPs in all)

Nothing here imports torch before a real run begins.
"""

from mlsys_lab.scaling.allocation import Allocation, compute_optimal, inference_optimal, reach_loss
from mlsys_lab.scaling.bootstrap import Interval, bootstrap
from mlsys_lab.scaling.curves import Curve, Runs
from mlsys_lab.scaling.envelope import Envelope, fit_envelope
from mlsys_lab.scaling.isoflop import IsoFlop, Parabola, budgets, fit_isoflop, fit_parabola
from mlsys_lab.scaling.laws import (
    BESIROGLU_2024,
    GOPHER_FLOPS,
    HOFFMANN_2022,
    KAPLAN_2020,
    KAPLAN_COMPUTE,
    KAPLAN_FRONTIER,
    KAPLAN_PARAMS,
    KAPLAN_TOKENS,
    PF_DAY,
    ChinchillaLaw,
    Frontier,
    KaplanLaw,
    Law,
    PowerLaw,
    training_flops,
)
from mlsys_lab.scaling.parametric import ParametricFit, fit_parametric, objective
from mlsys_lab.scaling.published import (
    CEREBRAS_COMPUTE,
    CEREBRAS_FLOOR,
    CEREBRAS_GPT,
    HOFFMANN_TABLES,
    BestModels,
    PublishedRuns,
)
from mlsys_lab.scaling.runs import HELD_OUT, PLAN, Size, epochs, tokens_for, train, train_all
from mlsys_lab.scaling.service import ExperimentService, Outcome, World
from mlsys_lab.scaling.text import Corpus, byte_pairs, course_text, read_corpus

__all__ = [
    "BESIROGLU_2024",
    "CEREBRAS_COMPUTE",
    "CEREBRAS_FLOOR",
    "CEREBRAS_GPT",
    "GOPHER_FLOPS",
    "HELD_OUT",
    "HOFFMANN_2022",
    "HOFFMANN_TABLES",
    "KAPLAN_2020",
    "KAPLAN_COMPUTE",
    "KAPLAN_FRONTIER",
    "KAPLAN_PARAMS",
    "KAPLAN_TOKENS",
    "PF_DAY",
    "PLAN",
    "Allocation",
    "BestModels",
    "ChinchillaLaw",
    "Corpus",
    "Curve",
    "Envelope",
    "ExperimentService",
    "Frontier",
    "Interval",
    "IsoFlop",
    "KaplanLaw",
    "Law",
    "Outcome",
    "Parabola",
    "ParametricFit",
    "PowerLaw",
    "PublishedRuns",
    "Runs",
    "Size",
    "World",
    "bootstrap",
    "budgets",
    "byte_pairs",
    "compute_optimal",
    "course_text",
    "epochs",
    "fit_envelope",
    "fit_isoflop",
    "fit_parabola",
    "fit_parametric",
    "inference_optimal",
    "objective",
    "reach_loss",
    "read_corpus",
    "tokens_for",
    "train",
    "train_all",
    "training_flops",
]
