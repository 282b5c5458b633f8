"""Checks of lab 12: names, points, hints, and the ranges from which cases are drawn.

generators   cases, oracles, and cases rendered as code
"""

from __future__ import annotations

from typing import Any

from mlsys_checks.sandboxed import diffusion as calls
from mlsys_checks.sandboxed.diffusion import PREDICTIONS
from mlsys_checks.sandboxed.spec import Case, Check, Lab, Range, draw_cases
from mlsys_checks.trusted.compare import close
from mlsys_checks.trusted.diffusion import generators as draw
from mlsys_checks.trusted.repeats import repeat_first_case

SIZES: dict[str, Any] = {"images": Range(1, 5), "axes": Range(0, 3), "single": Range(0, 1)}
"""Batches of a few images, also single numbers, in either precision."""
POINTS = {**SIZES, "images": 3, "axes": 1, "single": 0}
LARGER = {"images": Range(12, 30), "axes": Range(1, 2), "classes": Range(6, 12)}


def _make_run_check(**parts: Any) -> Check:
    """Return a check of sampling down a grid; `noisy` says whether noise is drawn for each step."""
    noisy = parts.pop("noisy")
    sizes = {**SIZES, "steps": Range(1, 6), "noisy": noisy}
    cases = (
        Case("points, two steps", {**sizes, **POINTS, "steps": 2, "above": 1}),
        Case("one step to level 0", {**sizes, **POINTS, "steps": 1, "above": 0}),
        Case("without labels", {**sizes, **POINTS, "unlabelled": True}),
        Case("single numbers, float32", {**sizes, "axes": 0, "single": 1, "steps": 3}),
        Case("hardly any noise", {**sizes, "low": 1, "single": 0, "above": 1, "steps": 3}),
        *draw_cases(sizes, public=3, hidden=2, **LARGER, steps=Range(10, 25)),
    )
    return Check(
        cases=cases,
        inputs=draw.draw_run,
        partner=draw.Ages,
        expect=draw.expect_run,
        compare=draw.compare_calls,
        **parts,
    )


CHECKS = (
    Check(
        name="levels",
        title="Noise levels of a DDPM schedule",
        points=5,
        cases=(
            Case("three timesteps", {"T": 3, "digits": 1}),
            *draw_cases({"T": Range(1, 40), "digits": Range(1, 6)}, public=2, hidden=1, T=Range(300, 1000)),
        ),
        inputs=draw.draw_schedule,
        run=calls.sigmas,
        expect=draw.expect_levels,
        compare=close,
        first_hint="At ᾱ = 0.5 image and noise have the same factor: which noise level is that?",
        hint="Divide x_t by the factor of x0. What is left in front of the noise is the level.",
        uses=("sigmas",),
        snippet="sigmas(alphas_cumprod)",
    ),
    Check(
        name="edm_grid",
        title="EDM's noise levels",
        points=6,
        cases=(
            Case("six steps", {"steps": 6}),
            Case("EDM's own numbers", {"steps": 18, "usual": True}),
            Case("one step", {"steps": 1, "usual": True}),
            *draw_cases({"steps": Range(1, 9)}, public=2, hidden=2, steps=Range(20, 70)),
        ),
        inputs=draw.draw_edm,
        run=calls.edm_grid,
        expect=draw.expect_edm,
        compare=draw.compare_grids,
        first_hint="Compare the number of levels, both ends, and one level in the middle.",
        hint="Space numbers evenly between the two ends, each raised to 1/ρ first; raise all of them to ρ; append 0.",
        uses=("edm_grid",),
        describe=draw.render_edm,
    ),
    Check(
        name="mixture",
        title="Exact denoiser of a mixture",
        points=8,
        cases=(
            Case("three components", {"images": 4, "classes": 3, "unlabelled": True}),
            Case("with labels", {"images": 6, "classes": 3}),
            Case("components without spread", {"images": 4, "classes": 3, "sharp": True}),
            Case("far from every mean", {"images": 5, "classes": 3, "far": 200}),
            Case("float32", {"images": 4, "classes": 3, "single": 1}),
            *draw_cases(
                {"images": Range(1, 6), "classes": Range(1, 5), "single": Range(0, 1)},
                public=3,
                hidden=2,
                images=Range(12, 30),
                classes=Range(6, 12),
            ),
            Case("hardly any noise", {"images": 5, "classes": 3, "low": 1, "sharp": True}, hidden=True),
        ),
        inputs=draw.draw_mixture,
        run=calls.mixture,
        expect=draw.expect_mixture,
        compare=close,
        first_hint="Do the responsibilities of a point add up to 1? Which variance has a component with noise on it?",
        hint="Logarithms of the mixture weights less squared distances over twice the variance; then a softmax over "
        "components. A label puts all responsibility on one component.",
        uses=("Mixture",),
        describe=draw.render_mixture,
    ),
    _make_run_check(
        name="walk_ode",
        title="Sampling along the ODE",
        points=4,
        noisy=0,
        run=calls.sample_ode,
        first_hint="How often is the denoiser called, at which levels, and where does the last step end?",
        hint="In each step: denoise at the level where the step begins; then the slope times the difference of the "
        "two levels, which is negative.",
        uses=("sample_ode",),
        describe=draw.render_sampling("sample_ode(denoiser, x, " + draw.ref("grid") + ", label)"),
    ),
    _make_run_check(
        name="walk_sde",
        title="Sampling along the SDE",
        points=6,
        noisy=1,
        run=calls.sample_sde,
        first_hint="Which variance does a step remove, and which does it add? What about a last step to 0?",
        hint="The score times the difference of the squared levels; then noise of exactly that variance, unless the "
        "next level is 0.",
        uses=("sample_sde",),
        describe=draw.render_sampling(
            "sample_sde(denoiser, x, " + draw.ref("grid") + ", " + draw.ref("noise") + ", label)"
        ),
    ),
    Check(
        name="predictions",
        title="Prediction types as one formula",
        points=9,
        cases=(
            *(Case(f"predicting {name}", {**POINTS, "prediction": i}) for i, name in enumerate(PREDICTIONS)),
            Case("v, float32", {**POINTS, "single": 1, "prediction": 2}),
            Case("without labels", {**POINTS, "unlabelled": True, "prediction": 0}),
            *draw_cases({**SIZES, "prediction": Range(0, 4)}, public=3, hidden=3, images=Range(1, 9)),
            Case("hardly any noise", {**POINTS, "low": 1, "prediction": Range(0, 3)}, hidden=True),
        ),
        inputs=draw.draw_network,
        run=calls.predictions,
        expect=draw.expect_predictions,
        compare=close,
        first_hint="Take numbers: x0 = 1, ε = 2, σ = 3. What is x, what should the network output, and does your D "
        "give 1 again?",
        hint="Replace ε in the definition of the output by (x - x0)/σ and solve for x0: the factor of x is c_skip, "
        "that of the output c_out.",
        uses=("coefficients", "Preconditioned"),
        describe=draw.render_predictions,
    ),
    Check(
        name="p_losses",
        title="A loss for each image",
        points=8,
        cases=(
            Case("points", POINTS),
            Case("without labels", {**POINTS, "unlabelled": True}),
            Case("images of unequal sides", {**POINTS, "axes": 3}),
            *draw_cases({**SIZES, "axes": Range(1, 3)}, public=3, hidden=2, images=Range(6, 12)),
        ),
        inputs=draw.draw_network,
        run=calls.p_losses,
        expect=draw.expect_losses,
        compare=close,
        first_hint="Which error is squared, that of the image or that of the network's output?",
        hint="Subtract the two equations of the task text from each other: the term with x cancels, and one "
        "coefficient remains. Then the mean of squares over all axes but the first.",
        uses=("p_losses",),
        describe=draw.render_losses,
    ),
    Check(
        name="update_average",
        title="Average of the parameters",
        points=3,
        cases=(
            Case("one update", {"updates": 1, "late": 0}),
            Case("the decay is reached", {"updates": 6, "late": 1}),
            *draw_cases(
                {"updates": Range(1, 9), "late": Range(0, 1), "single": Range(0, 1), "offsets": Range(0, 2)},
                public=2,
                hidden=2,
                updates=Range(10, 40),
                late=1,
                offsets=Range(3, 5),
            ),
        ),
        inputs=draw.draw_average,
        run=calls.update_average,
        expect=draw.expect_average,
        compare=close,
        first_hint="What is the decay of the first update? And which tensors does the update write to?",
        hint="Count the update first. Then, without gradients, multiply each averaged tensor in place by the decay, "
        "and add the parameter times 1 less the decay.",
        uses=("EMA",),
        describe=draw.render_average,
    ),
    Check(
        name="train_step",
        title="A training step",
        points=5,
        cases=(
            Case("one step", {"images": 4, "steps": 1}),
            Case("three steps", {"images": 3, "steps": 3}),
            Case("not all parameters are trained", {"images": 3, "steps": 2, "trained": 2}),
            *draw_cases(
                {"images": Range(1, 5), "steps": Range(1, 4), "single": Range(0, 1), "offsets": Range(0, 2)},
                public=1,
                hidden=1,
                steps=Range(6, 12),
            ),
        ),
        inputs=draw.draw_training,
        run=calls.train_step,
        expect=draw.expect_training,
        compare=draw.compare_training,
        first_hint="What goes wrong first: the loss, the parameters, or what the average sees?",
        hint="In this order: mean, clear, backward, step, average. The loss returned is the one before the step.",
        uses=("train_step",),
        describe=draw.render_training,
    ),
    Check(
        name="posterior",
        title="DDPM's posterior and DDIM's step",
        points=8,
        cases=(
            Case("DDPM, η = 1", {**POINTS, "eta": 1}),
            Case("DDIM, η = 0", {**POINTS, "eta": 0}),
            Case("η in between", {**POINTS, "eta": 2}),
            Case("to level 0", {**POINTS, "eta": 1, "to": 0}),
            Case("to level 1", {**POINTS, "eta": 2, "to": 1}),
            Case("without labels", {**POINTS, "eta": 2, "unlabelled": True}),
            Case("single numbers, float32", {**SIZES, "axes": 0, "single": 1, "eta": 2}),
            Case("to nearly 0", {**POINTS, "eta": 1, "to": 1e-3}),
            *draw_cases({**SIZES, "eta": Range(0, 2)}, public=3, hidden=2, **LARGER),
        ),
        inputs=draw.draw_step,
        run=calls.posterior,
        partner=draw.Ages,
        expect=draw.expect_step,
        compare=draw.compare_calls,
        first_hint="η = 0 draws nothing. With η = 1, is the deviation below both σ' and the root of σ² - σ'²?",
        hint="Precisions add: 1/τ₁² is 1/σ'² plus one over the variance between the levels. And the kept noise's "
        "variance is what τ² leaves of σ'².",
        uses=("posterior", "ddim_step"),
        describe=draw.render_sampling(
            "x0, noise = " + draw.ref("x0") + ", " + draw.ref("noise") + "\n"
            "posterior(x0, x, {sigma!r}, {sigma_next!r}, {eta!r})\n"
            "ddim_step(denoiser, x, {sigma!r}, {sigma_next!r}, noise, {eta!r}, label)"
        ),
    ),
    Check(
        name="heun_step",
        title="Heun's step",
        points=8,
        cases=(
            Case("one step", {**POINTS, "steps": 1, "above": 1}),
            Case("one step to level 0", {**POINTS, "steps": 1, "above": 0}),
            Case("two steps", {**POINTS, "steps": 2, "above": 1}),
            Case("hardly any noise", {**POINTS, "steps": 2, "above": 1, "low": 1}),
            Case("without labels", {**POINTS, "steps": 2, "unlabelled": True}),
            Case("single numbers, float32", {**SIZES, "axes": 0, "single": 1, "steps": 2}),
            *draw_cases({**SIZES, "steps": Range(1, 3)}, public=3, hidden=2, **LARGER),
        ),
        inputs=draw.draw_run,
        run=calls.heun_step,
        partner=draw.Ages,
        expect=draw.expect_heun,
        compare=draw.compare_calls,
        first_hint="At which point and level is the second slope, and from where does the mean of both lead on?",
        hint="The second slope is where Euler's step ends, at the level there; the mean is followed from the point "
        "where the step began. To level 0 the first slope is all.",
        uses=("heun_step",),
        describe=draw.render_sampling(
            "levels = given['grid'].tolist()\n"
            "for sigma, sigma_next in zip(levels, levels[1:]):\n"
            "    x = heun_step(denoiser, x, sigma, sigma_next, label)\nx"
        ),
    ),
    Check(
        name="guide",
        title="Guidance in one call",
        points=8,
        cases=(
            Case("all levels, one scale", {**POINTS, "inside": 2, "alike": True}),
            Case("an interval", {**POINTS, "images": 6, "axes": 2, "inside": 1}),
            Case("no level inside", {**POINTS, "inside": 0}),
            Case("many scales", {**POINTS, "images": 24, "inside": 2}),
            Case("single numbers, float32", {**SIZES, "images": 6, "axes": 0, "single": 1, "inside": 1}),
            *draw_cases({**SIZES, "inside": Range(0, 2)}, public=3, hidden=3, **LARGER),
        ),
        inputs=draw.draw_guidance,
        run=calls.guide,
        partner=draw.Ages,
        expect=draw.expect_guidance,
        compare=draw.compare_calls,
        first_hint="How many images has the call, and which of them have the null class? Which keep their first "
        "estimate?",
        hint="Find the guided images first. Call the denoiser with all images, followed by these with the null class; "
        "then start from the estimate without the class and go scale times the difference.",
        uses=("ClassifierFreeGuidance",),
        describe=draw.render_sampling(
            "guided = ClassifierFreeGuidance(denoiser, {scales}, {null}{interval})\n"
            "guided(x, " + draw.ref("sigma") + ", label)"
        ),
    ),
    Check(
        name="dit_work",
        title="FLOPs and bytes of a call",
        points=4,
        cases=(
            Case("DiT-XL/2", {"config": (28, 1152, 16, 32, 2, 4, 8), "batch": 1, "element_bytes": 2}),
            Case("DiT-S/8, batch 3", {"config": (12, 384, 6, 32, 8, 4, 8), "batch": 3, "element_bytes": 4}),
            *draw_cases({"batch": Range(1, 9), "element_bytes": Range(1, 4)}, public=2, hidden=2, batch=Range(30, 99)),
        ),
        inputs=draw.draw_config,
        run=calls.step_cost,
        expect=draw.expect_cost,
        compare=draw.compare_answers,
        first_hint="Which products are made for each token, which once per image, and which have no weights?",
        hint="Add up the weights used once per image and those used for each token. Attention adds two products of "
        "T x D x T per block. Weights are read once, whatever the batch.",
        uses=("DiTConfig", "Cost", "step_cost"),
        describe=draw.render_cost,
    ),
    Check(
        name="predict_image",
        title="Seconds of images, and what limits them",
        points=7,
        cases=(
            *(
                Case(f"{solver}, {kind}", {"steps": 8, "requests": 3, "solver": i, "guided": guided})
                for i, solver in enumerate(("DDIM", "Heun"))
                for guided, kind in enumerate(("not guided", "guided"))
            ),
            Case("a tie", {"steps": 4, "requests": 2, "solver": 0, "guided": 1, "tied": True}),
            *draw_cases(
                {"steps": Range(1, 60), "requests": Range(1, 9), "solver": Range(0, 1), "guided": Range(0, 1)},
                public=4,
                hidden=4,
                requests=Range(1, 60),
            ),
        ),
        inputs=draw.draw_image,
        run=calls.predict_image,
        expect=draw.expect_image,
        compare=draw.compare_answers,
        first_hint="How many calls are made, with how many images each, and is a call limited by computing or reading?",
        hint="Seconds of one call: the larger of images times FLOPs over FLOP/s, and bytes over bytes per second. Then "
        "times the calls of the solver.",
        uses=("Cost", "Machine", "predict_image"),
        describe=draw.render_image,
    ),
    Check(
        name="serve",
        title="Requests that share calls",
        points=11,
        cases=(
            Case("two requests, one slot", {"requests": 2, "axes": 1, "longest": 3, "slots": 1}),
            Case("three slots", {"requests": 6, "axes": 1, "longest": 5, "slots": 3}),
            Case("more slots than requests", {"requests": 3, "axes": 2, "longest": 4, "slots": 8}),
            Case("no request", {"requests": 0, "axes": 1, "longest": 1, "slots": 2}),
            Case("a request twice", {"requests": 4, "axes": 1, "longest": 4, "slots": 2, "twice": True}),
            Case("single numbers, float32", {"requests": 5, "axes": 0, "single": 1, "longest": 4, "slots": 2}),
            *draw_cases(
                {
                    "requests": Range(1, 8),
                    "axes": Range(0, 2),
                    "single": Range(0, 1),
                    "longest": Range(1, 6),
                    "slots": Range(1, 5),
                    "low": Range(0, 1),
                },
                public=4,
                hidden=2,
                requests=Range(9, 20),
            ),
        ),
        inputs=draw.draw_requests,
        run=calls.serve,
        partner=draw.Ages,
        expect=draw.expect_images,
        compare=draw.compare_calls,
        first_hint="Write down for each call which requests are in it, and at which level of its grid each stands.",
        hint="Fill the slots; collect image, level, label and scale of each running request; call once; step each "
        "image to its own next level; remove the requests at the end of their grids.",
        uses=("Request", "serve"),
        describe=draw.render_requests,
    ),
)
LAB = Lab("diffusion", repeat_first_case(CHECKS))
