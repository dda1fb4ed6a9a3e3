"""The Leung–Malik filter bank: 48 filters for edges, bars and spots of several sizes and orientations."""

import math
from functools import cache

import numpy as np
from scipy.signal import fftconvolve

from kernelmesh_experiments.settings import Floats

__all__ = ["leung_malik", "responses"]

_SUPPORT = 49
_DIRECTIONS = 6


@cache
def leung_malik() -> Floats:
    """48 × 49 × 49: first and second derivatives of Gaussians three times as long as wide, in 6 directions and 3 sizes
    (36); Laplacians of Gaussians in 8 sizes; Gaussians in 4.

    All but the Gaussians sum to zero; absolute values sum to one.

    >>> leung_malik().shape
    (48, 49, 49)
    """
    sizes = [math.sqrt(2) ** power for power in (1, 2, 3, 4)]
    half = _SUPPORT // 2
    up, across = np.mgrid[half : -half - 1 : -1, -half : half + 1].astype(float)
    bank = []
    for order in (1, 2):
        for size in sizes[:3]:
            for step in range(_DIRECTIONS):
                angle = math.pi * step / _DIRECTIONS
                along = math.cos(angle) * across - math.sin(angle) * up
                aside = math.sin(angle) * across + math.cos(angle) * up
                bell = _bell(aside, size)
                slope = -aside / size**2 * bell if order == 1 else (aside**2 / size**4 - 1 / size**2) * bell
                bank.append(_normalized(_bell(along, 3 * size) * slope))
    square = up**2 + across**2
    bank.extend(
        _normalized((square / size**4 - 2 / size**2) * np.exp(-square / (2 * size**2)))
        for size in [*sizes, *(3 * size for size in sizes)]
    )
    for size in sizes:
        bell = np.exp(-square / (2 * size**2))
        bank.append(bell / bell.sum())
    return np.stack(bank)


def _bell(x: Floats, size: float) -> Floats:
    return np.asarray(np.exp(-(x**2) / (2 * size**2)) / (size * math.sqrt(2 * math.pi)))


def _normalized(filter_: Floats) -> Floats:
    centered = filter_ - filter_.mean()
    return np.asarray(centered / np.abs(centered).sum())


def responses(image: Floats) -> Floats:
    """The response of every pixel to every filter: height × width × 48. The image is mirrored at its border."""
    margin = _SUPPORT // 2
    padded = np.pad(image, margin, mode="reflect")
    return np.stack([fftconvolve(padded, one, mode="valid") for one in leung_malik()], axis=-1)
