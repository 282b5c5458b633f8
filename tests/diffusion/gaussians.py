"""Data whose every noise level is known exactly, and networks that answer perfectly for it."""

from __future__ import annotations

import torch
from torch import nn

from mlsys_lab.diffusion.mixtures import Mixture
from mlsys_lab.diffusion.preconditioning import Preconditioned
from mlsys_lab.diffusion.process import per_image

F64 = torch.float64
GAUSSIAN = Mixture(torch.tensor([[0.5, -1.0]], dtype=F64), torch.ones(1, dtype=F64), 0.7)
TWO = Mixture(torch.tensor([[2.0, 0.0], [-2.0, 0.5]], dtype=F64), torch.tensor([0.3, 0.7], dtype=F64), 0.5)


class Perfect(nn.Module):
    """What a network would answer that made no error on a mixture, given what `Preconditioned` gives it."""

    def __init__(self, mixture, prediction, sigma_data=0.5):
        super().__init__()
        self.mixture, self.wrapper = mixture, Preconditioned(nn.Identity(), prediction, sigma_data)

    def forward(self, scaled, noise, label):
        sigma = (4 * noise).exp()
        x = scaled / per_image(self.wrapper.at(sigma).into, scaled)
        return self.wrapper.target(self.mixture(x, sigma, label), x, sigma)


def perfect(mixture, prediction):
    """A denoiser around a network that predicts as named, exactly."""
    return Preconditioned(Perfect(mixture, prediction), prediction)
