"""Diffusion models: denoisers, noise schedules, samplers, guidance, training, distillation and a serving engine.

process          Denoiser(x, sigma, label) -> E[x₀ | x], the protocol of the package; q_sample, posterior, score
schedules        DDPM's and cosine betas, noise levels σ; a sampler's noise schedule: respace, edm_grid, flow_grid
preconditioning  Preconditioned(network, prediction): epsilon, x0, v, flow or edm, as a denoiser
samplers         DDIM(eta), which includes DDPM and Euler, SDE, Heun(churn), DPMSolver: one step, as a generator
sampling         Sampling(denoiser, grid, noise).step(state, i), .run(); invert(denoiser, images, grid)
guidance         ClassifierFreeGuidance, on a guidance interval; ClassifierGuidance
mixtures         Mixture: Gaussians whose denoiser is known exactly, to test samplers
networks         DiT and a U-Net, conditioned on noise level and class
training         train(denoiser, images, labels, steps=...), p_losses
distillation     distil, halve_grid, TwoStepTeacher: progressive distillation, a student with half the steps
ema              EMA: an exponential moving average of weights
digits           real data: handwritten digits, a classifier, measures of image quality
pretrained       load_digits_model, load_student, load_classifier: a model of digits, its students and a classifier
engine           Engine: continuous batching of many requests at different steps
caching          CachedDiT: features reused between steps
cost             evaluations, FLOPs and bytes of sampling and training, compared with an autoregressive model

x is the image with noise of deviation σ on it, never scaled: DDPM's x_t is √ᾱ times that, rectified flow's 1 - t times.
"""
