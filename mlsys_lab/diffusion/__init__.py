"""Diffusion: images made from noise by a network that guesses, at every level of noise, what lies beneath.

process           Denoiser(x, sigma, label) -> E[x₀ | x], the protocol all else is built on; q_sample, posterior, score
schedules         DDPM's and cosine betas, levels σ, and grids of levels to walk down: respace, edm_grid, flow_grid
preconditioning   Preconditioned(network, prediction): epsilon, x0, v, flow or edm, as a denoiser
samplers          DDIM(eta), which is DDPM and Euler too, SDE, Heun(churn), DPMSolver: one step, as a generator
sampling          Sampling(denoiser, grid, noise).step(state, i), .run(); invert(denoiser, images, grid)
guidance          ClassifierFree, on an interval of levels; ClassifierGuided
mixtures          Mixture: Gaussians whose denoiser is known exactly, to hold a sampler against
networks          DiT and a U-Net, conditioned on level and class
training          train(denoiser, images, labels, steps=...), p_losses
distillation      distil, halve, Halved: students that take half the steps, again and again
averaging         Average: an exponential moving average of weights
digits            real data: handwritten digits, a judge that reads them, measures of what is drawn
pretrained        load_digits_model, load_student, load_judge: a trained model of digits, and what it was distilled to
engine            Engine: many requests at different steps in one call of the network
caching           CachedDiT: features kept between steps
cost              evaluations, FLOPs and bytes of sampling and training, beside an autoregressive model

x is the image with noise of deviation σ on it, never scaled: DDPM's x_t is √ᾱ times that, rectified flow's 1 - t times.
"""
