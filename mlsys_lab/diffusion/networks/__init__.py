"""Networks that denoise, each told the level and the class.

dit            DiT(config): a transformer over patches, with adaLN-Zero; config in `mlsys_lab.flops.dit`
unet           UNet(config): residual convolutions at several sizes, as in ADM; config in `mlsys_lab.flops.unet`
conditioning   how a network is told the level and the class
"""

from mlsys_lab.diffusion.networks.dit import DiT
from mlsys_lab.diffusion.networks.unet import UNet

__all__ = ["DiT", "UNet"]
