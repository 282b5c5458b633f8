"""Denoising networks, conditioned on noise level and class.

dit           DiT(config): a transformer over patches with adaLN-Zero; config in `mlsys_lab.flops.dit`
unet          UNet(config): residual convolutions at several resolutions, as in ADM; config in `mlsys_lab.flops.unet`
conditioning  embeddings of noise level and class
"""

from mlsys_lab.diffusion.networks.dit import DiT
from mlsys_lab.diffusion.networks.unet import UNet

__all__ = ["DiT", "UNet"]
