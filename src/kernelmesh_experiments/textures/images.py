"""The 13 Brodatz textures of the USC-SIPI database: from a folder, or downloaded once and verified by their pixels."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pooch
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from kernelmesh import InvalidArgument, KernelMeshError
from kernelmesh_experiments.settings import Floats

__all__ = ["NAMES", "Unavailable", "load"]

_SITE = "https://sipi.usc.edu/database/download.php?vol=textures&img="

# SHA-256 of the 512 × 512 gray values, row by row: the same for every lossless file format.
_PIXELS = {
    "1.1.01": "791ef4048969a7036680079ead7573545334a09a87db3d89200abee6a6f2d6f9",
    "1.1.02": "199023464f793ff0ef20459af7dba641620b4bd3e5ddd99b4ad7c1e6dd363fe5",
    "1.1.03": "abce51e2f2ce16328ab166059d554f99199f6b3761cac68661aa197eda88bba1",
    "1.1.04": "b18f045f9c841a7fa0a0c5f60c6d918a299f0e1699e6982566288bcadc5dff76",
    "1.1.05": "64ed583013404f874155a850b6accab60c1a145408242583f6a1157d0878a9e6",
    "1.1.06": "a0069a50e9c8d2f81e43bee69421a8fa371b2af5c4deae7d10b406335ff05d22",
    "1.1.07": "43347dcae3f3d5c8e16ea48c176f158e830caedd92950ccafd414963dbf454fe",
    "1.1.08": "56f28c14d909c4597386cf3e372cf5d75c64f13b8bfe7f4725038cac2ebe2fe3",
    "1.1.09": "afdfe7723132c4ff1bf959749ad1c4d1bd1c646d444831bdaf06089619ed13ca",
    "1.1.10": "4ddf87e63f999687ccbb24823ce58ca2493e504557168016d94bd19259e6370a",
    "1.1.11": "b5ebdf531e3041a65103dfc4c2823d1d7f0364d6e2e0786dcb7edbb6acd26520",
    "1.1.12": "930822b5dc07359936b42417265724c61beaf1fe02667f2ddd1d3f3cb06dcdaa",
    "1.1.13": "e1afdb716def0d8559c12e1691980d01f24de9f917f52399e5f3a5643d5b1b9f",
}
NAMES = tuple(_PIXELS)
# Rows at the bottom this dark are a border of the scan, not texture.
_DARK = 30
_SUFFIXES = (".png", ".tiff", ".tif", ".bmp", ".pgm")


class Unavailable(KernelMeshError, OSError):
    """The images are not available; the message says what to do."""


def load(folder: Path | None) -> tuple[list[Floats], list[str]]:
    """Gray values in [0, 1], without the black rows at the bottom, and the name of each image.

    Every image in a folder is a class, in the order of their names. Without a folder, the database's 13 are downloaded.
    """
    files = _fetch() if folder is None else _listed(folder)
    images = []
    for file in files:
        gray = _read(file)
        dark = int(np.cumprod((gray[::-1].max(axis=1) < _DARK).astype(int)).sum())
        images.append(np.ascontiguousarray(gray[: len(gray) - dark], dtype=np.float64) / 255.0)
    return images, [file.stem for file in files]


def _listed(folder: Path) -> list[Path]:
    files = sorted(file for file in folder.glob("*") if file.suffix.lower() in _SUFFIXES)
    if len(files) < 2:
        rule = f"be a folder with two or more of {', '.join(_SUFFIXES)}"
        raise InvalidArgument("brodatz", "images", rule, str(folder), remedy=f"it has {len(files)}")
    return files


def _fetch() -> Sequence[Path]:
    cache = Path(pooch.os_cache("kernelmesh")) / "brodatz"
    files = []
    for name, digest in _PIXELS.items():
        file = cache / f"{name}.tiff"
        if not file.exists():
            try:
                pooch.retrieve(_SITE + name, known_hash=None, fname=file.name, path=cache, progressbar=False)
            except Exception as error:  # whatever error the network library raises offline
                remedy = (
                    "download the volume 'Textures' of the USC-SIPI database by hand and pass its folder with --images DIR"
                )
                raise Unavailable(f"no Brodatz textures from sipi.usc.edu ({type(error).__name__}); {remedy}") from None
        if hashlib.sha256(_read(file).tobytes()).hexdigest() != digest:
            file.unlink()
            raise Unavailable(f"{name} as downloaded is not the expected image; it was removed, try again")
        files.append(file)
    return files


def _read(file: Path) -> NDArray[np.uint8]:
    try:
        with Image.open(file) as image:
            return np.asarray(image.convert("L"))
    except (UnidentifiedImageError, OSError) as error:
        raise InvalidArgument("brodatz", "images", f"be readable images ({error})", str(file)) from None
