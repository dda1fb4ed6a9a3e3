"""Texture features: responses to the Leung–Malik filters, their clusters (textons), and histograms of those over patches."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.signal import fftconvolve
from sklearn.cluster import KMeans

from kernelmesh import InvalidArgument
from kernelmesh_experiments.samples import Samples
from kernelmesh_experiments.settings import Floats, Ints

__all__ = ["Patches", "features", "leung_malik", "responses"]

# Pixels of each image that the textons are learned from.
_PIXELS_EACH = 4000
_ROWS = 1 << 16


@dataclass(frozen=True, eq=False, kw_only=True)
class Patches(Samples):
    """Features and classes of patches to train on and to test with, and how much the two overlap."""

    overlap: float
    """The share of test patches that share at least one pixel with a training patch."""


def features(
    images: Sequence[Floats], *, split: str, train: int, test: int, textons: int, patch: int, rng: np.random.Generator
) -> Patches:
    """Cut patches, some to train on and some to test with, and describe each by square roots of frequencies of textons.

    `random` draws both from all overlapping patches of whole images. `disjoint` draws training patches from the left half of
    each image and test patches from the right half, filters the halves apart, and learns textons from the left halves only.
    """
    if split == "random":
        regions = [[image] for image in images]
    else:
        regions = [[image[:, : image.shape[1] // 2], image[:, image.shape[1] // 2 :]] for image in images]
    answers = [[responses(region) for region in parts] for parts in regions]
    words, spread = _learn([parts[0] for parts in answers], textons, rng)
    maps = [[_assign(answer, words, spread) for answer in parts] for parts in answers]
    places = _places([[m.shape for m in parts] for parts in maps], split, train, test, patch, rng)
    points, held_points = (_describe(maps, rows, patch=patch, textons=textons) for rows in places)
    labels, held_labels = (rows[:, 0] for rows in places)
    overlap = _overlap(*places, patch=patch)
    return Patches(points=points, labels=labels, held_points=held_points, held_labels=held_labels, overlap=overlap)


def _learn(answers: Sequence[Floats], textons: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """Cluster centers of some pixels' filter responses, in units of each filter's spread over all images, and those units.

    Without them brightness, which the Gaussians answer to, would outweigh all edges and bars.
    """
    some = []
    for answer in answers:
        flat = answer.reshape(-1, answer.shape[-1])
        some.append(flat[rng.choice(len(flat), size=min(_PIXELS_EACH, len(flat)), replace=False)])
    pixels = np.concatenate(some)
    spread = np.maximum(pixels.std(axis=0), 1e-12)
    clusters = min(textons, len(pixels))
    found = KMeans(clusters, n_init=1, max_iter=100, random_state=int(rng.integers(2**31))).fit(pixels / spread)
    return np.asarray(found.cluster_centers_, dtype=np.float64), spread


def _assign(answer: Floats, words: Floats, spread: Floats) -> NDArray[np.int32]:
    """The nearest texton of every pixel."""
    flat = answer.reshape(-1, answer.shape[-1])
    out = np.empty(len(flat), dtype=np.int32)
    lengths = 0.5 * (words**2).sum(axis=1)
    for start in range(0, len(flat), _ROWS):
        rows = slice(start, start + _ROWS)
        out[rows] = ((flat[rows] / spread) @ words.T - lengths).argmax(axis=1)
    return out.reshape(answer.shape[:2])


def _places(
    shapes: Sequence[Sequence[tuple[int, ...]]], split: str, train: int, test: int, patch: int, rng: np.random.Generator
) -> tuple[Ints, Ints]:
    """Where to cut: rows of (image, part, y, x), without repetition; drawn from all patches there are."""

    def draw(part: int, count: int) -> Ints:
        sizes = [(parts[part][0] - patch + 1, parts[part][1] - patch + 1) for parts in shapes]
        if min(min(size) for size in sizes) < 1:
            rule = f"have parts with room for patches of {patch} pixels"
            raise InvalidArgument("brodatz", "images", rule, min(min(size) for size in sizes))
        ends = np.cumsum([h * w for h, w in sizes])
        if count > ends[-1]:
            rule = f"be at most the {ends[-1]} available patches"
            raise InvalidArgument("brodatz", "samples and held_out", rule, count)
        chosen = rng.choice(ends[-1], size=count, replace=False)
        image = np.searchsorted(ends, chosen, side="right")
        within = chosen - np.concatenate([[0], ends[:-1]])[image]
        width = np.array([w for _, w in sizes])[image]
        return np.stack([image, np.full(count, part), within // width, within % width], axis=1)

    if split == "random":
        both = draw(0, train + test)
        return both[:train], both[train:]
    return draw(0, train), draw(1, test)


def _describe(maps: Sequence[Sequence[NDArray[np.int32]]], places: Ints, *, patch: int, textons: int) -> Floats:
    counts = np.empty((len(places), textons))
    for row, (image, part, y, x) in enumerate(places):
        window = maps[image][part][y : y + patch, x : x + patch]
        counts[row] = np.bincount(window.ravel(), minlength=textons)
    counts /= patch * patch
    return np.sqrt(counts)


def _overlap(train: Ints, test: Ints, *, patch: int) -> float:
    """The share of test patches that share a pixel with a training patch of the same part of the same image."""
    shared = 0
    for image, part in np.unique(test[:, :2], axis=0):
        here = train[(train[:, 0] == image) & (train[:, 1] == part), 2:]
        there = test[(test[:, 0] == image) & (test[:, 1] == part), 2:]
        near = (np.abs(there[:, None, :] - here[None]) < patch).all(axis=2)
        shared += int(near.any(axis=1).sum()) if len(here) else 0
    return shared / len(test)


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
