"""Quality of generated images: class accuracy, Fréchet distance of features, diversity, memorisation.

Dimension letters: B images, D features.
"""

from __future__ import annotations

import numpy as np
import torch

from mlsys_lab.diffusion.digits.classifier import Classifier
from mlsys_lab.errors import InputError


@torch.no_grad()
def accuracy(classifier: Classifier, images: torch.Tensor, labels: torch.Tensor) -> float:
    """Fraction of images (B, 1, 8, 8) that the classifier assigns to the requested class, (B,)."""
    return float((classifier(images).argmax(1) == labels).double().mean())


def frechet_distance(first: torch.Tensor, second: torch.Tensor) -> float:
    """Squared Fréchet distance of two sets of vectors (B, D), each fitted by a Gaussian (arXiv:1706.08500, eq. 6).

    The distance is |μ₁ - μ₂|² + tr(C₁ + C₂ - 2·√(C₁·C₂)). InputError for fewer than two vectors. Compare only sets of
    equal size: the smaller they are, the larger the distance, even between samples of one distribution.
    """
    if min(len(first), len(second)) < 2:
        raise InputError("too few images for a distance", got=min(len(first), len(second)), expected="2 or more")
    means, spreads = zip(*((x.double().mean(0), torch.cov(x.double().T)) for x in (first, second)), strict=True)
    # √(C₁·C₂) has the trace of √(√C₁·C₂·√C₁), which is symmetric.
    values, vectors = torch.linalg.eigh(spreads[0])
    root = vectors * values.clamp(min=0).sqrt() @ vectors.T
    cross = torch.linalg.eigvalsh(root @ spreads[1] @ root).clamp(min=0).sqrt().sum()
    return float((means[0] - means[1]).square().sum() + spreads[0].trace() + spreads[1].trace() - 2 * cross)


@torch.no_grad()
def feature_distance(classifier: Classifier, first: torch.Tensor, second: torch.Tensor) -> float:
    """Fréchet distance of two sets of images (B, 1, 8, 8) in the classifier's features."""
    features = [classifier.features(images, torch.zeros(len(images))) for images in (first, second)]
    return frechet_distance(*features)


def diversity(images: torch.Tensor, labels: torch.Tensor) -> float:
    """Mean distance between two images of one class, over all pairs and classes; images (B, ...), labels (B,)."""
    within = [torch.pdist(images[labels == label].flatten(1)) for label in torch.unique(labels)]
    return float(torch.cat(within).mean())


def nearest_distances(images: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
    """Distance of each image (B, ...) to the nearest of the known ones, (B,)."""
    return torch.cdist(images.flatten(1), known.flatten(1)).amin(1)


def memorised_fraction(images: torch.Tensor, training: torch.Tensor, held_out: torch.Tensor) -> float:
    """Fraction of images nearer to a training image than nearly all held-out images are: about 0.05 without copies.

    The threshold is the 5th percentile of the distances from held-out images (B, ...) to the training images.
    """
    bar = np.percentile(nearest_distances(held_out, training).numpy(), 5)
    return float((nearest_distances(images, training) < bar).double().mean())
