"""Handwritten digits, real data that a laptop learns in a minute, and a classifier to evaluate samples.

            load_digits() -> (train, held out), of `mlsys_lab.models.digits`: images in [-1, 1] with their classes
classifier  Classifier, train_classifier(digits): for clean images, and noisy ones for classifier guidance
evaluation  accuracy, feature_distance (Fréchet), diversity, memorised_fraction
pictures    sheet(images) -> pixels, encode_png(pixels), write_png(path, pixels)
"""

from mlsys_lab.diffusion.digits.classifier import Classifier, train_classifier
from mlsys_lab.diffusion.digits.evaluation import accuracy, diversity, feature_distance, memorised_fraction
from mlsys_lab.diffusion.digits.pictures import encode_png, sheet, write_png
from mlsys_lab.models.digits import Digits, load_digits

__all__ = [
    "Classifier",
    "Digits",
    "accuracy",
    "diversity",
    "encode_png",
    "feature_distance",
    "load_digits",
    "memorised_fraction",
    "sheet",
    "train_classifier",
    "write_png",
]
